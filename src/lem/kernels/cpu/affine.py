"""V u + b over a whole sequence, for the kernels that take it ready made."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lem.kernels.cpu.buffers import empty
from lem.kernels.cpu.units import refuse_tensors
from lem.shapes import Float


def affine(
    u: Float[Tensor, "*shape input"], weight: Float[Tensor, "rows input"], bias: Float[Tensor, "rows"] | None = None
) -> Float[Tensor, "*shape rows"]:
    """Return what `functional.linear` does, in memory that is kept, with a quicker gradient of a narrow weight.

    torch multiplies (rows, steps) by (steps, inputs) for it, which takes about ten times as long as the transpose,
    (inputs, steps) by (steps, rows), with 2 to 8 inputs (docs/log.md).
    """
    if refuse_tensors(u, weight, bias) is not None:
        return functional.linear(u, weight, bias)
    return _Affine.apply(u, weight, bias) if torch.is_grad_enabled() else _product(u, weight, bias)


def _product(u: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = u.reshape(-1, u.shape[-1])
    out = empty((len(rows), len(weight)), u.dtype)
    if bias is None:
        torch.mm(rows, weight.T, out=out)
    else:
        torch.addmm(bias, rows, weight.T, out=out)
    return out.view(*u.shape[:-1], -1)


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(u, weight)
        return _product(u, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, by operations that can be differentiated again."""
        (u, weight), (grad,), need = ctx.saved_tensors, grads, ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1])
        return (
            grad @ weight if need[0] else None,
            (u.reshape(-1, u.shape[-1]).T @ rows).T if need[1] else None,
            rows.sum(0) if need[2] else None,
        )
