"""Raise a clear error on a second derivative through a kernel that has only the first."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., tuple[Tensor | None, ...]]


def first_only(backward: Backward) -> Backward:
    """Decorate a backward pass so that differentiating it raises; its `ctx` must have a `graph_edge`.

    torch's `once_differentiable` treats the gradients as constants if the incoming gradients are constant: the second
    derivative of a sum would silently be zero.
    """

    @wraps(backward)
    def run(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            found = backward(ctx, *grads)
        if not torch.is_grad_enabled():
            return found
        marked = iter(_Raise.apply(ctx.graph_edge, *(g for g in found if g is not None)))
        return tuple(None if g is None else next(marked) for g in found)

    return run


def graph_edge(*tensors: Tensor | None) -> Tensor:
    """Return an empty tensor that depends on all of these, so that a second derivative reaches `_Raise`."""
    return _Edge.apply(*tensors)


class _Edge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor | None) -> Tensor:
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (None,) * len(ctx.needs_input_grad)


class _Raise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph_edge: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError(
            "the kernel of this layer has no second derivative. Run the forward pass inside "
            "`with lem.kernels.loop_only():` to get one."
        )
