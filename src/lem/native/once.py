"""The end of the derivatives: what a kernel with a first derivative only says to whoever asks for a second."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., tuple[Tensor | None, ...]]


def first_only(backward: Backward) -> Backward:
    """Make a backward pass that cannot be differentiated say so; its `ctx` has an `edge`.

    torch's `once_differentiable` takes the gradients for constants where those that come in are: the derivative of a
    sum's gradient would be zero without a word.
    """

    @wraps(backward)
    def run(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            found = backward(ctx, *grads)
        if not torch.is_grad_enabled():
            return found
        marked = iter(_End.apply(ctx.edge, *(g for g in found if g is not None)))
        return tuple(None if g is None else next(marked) for g in found)

    return run


def edge(*tensors: Tensor | None) -> Tensor:
    """Return a tensor of no size that depends on all of these: the way a second derivative would take to them."""
    return _Edge.apply(*tensors)


class _Edge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor | None) -> Tensor:
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (None,) * len(ctx.needs_input_grad)


class _End(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, edge: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError(
            "the kernel of this layer has no second derivative; run its forward pass inside "
            "`with lem.native.loop_only():` for it."
        )
