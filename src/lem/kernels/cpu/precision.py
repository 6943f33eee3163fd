"""Which number types a call of the LEM kernel computes in, and which it returns.

The kernel computes in float32 or float64. With bfloat16 it rounds the operands of its matrix products and keeps sums,
gates, states and everything the backward pass needs in float32. That needs a processor with AVX512-BF16; on others,
and for float16, the kernel computes in float32 and only its results are rounded.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lem.kernels.cpu.buffers import empty
from lem.kernels.cpu.library import library

PRECISIONS = ("auto", "float32", "bfloat16")
"""The values of `precision`: follow the tensors and autocast, or set the type of the products' operands."""

HALF = (torch.bfloat16, torch.float16)


class Precision(NamedTuple):
    """The types of one call."""

    computes: torch.dtype
    """The type of sums, states and saved values."""
    bfloat16: bool
    """Whether the operands of the matrix products are rounded to bfloat16."""
    returns: torch.dtype
    """The type of the outputs and the final state: what `nn.LSTM` would return."""


def has_bfloat16() -> bool:
    """Return whether the target that runs multiplies bfloat16 numbers."""
    return bool(library().lem_target_bfloat16(library().lem_target_chosen()))


def precision_of(u: Tensor, precision: str = "auto") -> Precision:
    """Return the types of a call with this input; `precision` is the option of the layer."""
    if u.dtype == torch.float64:
        return Precision(u.dtype, False, u.dtype)  # autocast leaves float64 as it is
    returns = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else u.dtype
    wanted = precision == "bfloat16" or (precision == "auto" and returns == torch.bfloat16)
    return Precision(torch.float32, wanted and has_bfloat16(), returns)


def describe_precision(u: Tensor, precision: str = "auto") -> str:
    """Return how the call computes, for `backend_for`."""
    types = precision_of(u, precision)
    if types.bfloat16:
        return "products of bfloat16 numbers, sums in float32"
    wanted = precision == "bfloat16" or (precision == "auto" and types.returns == torch.bfloat16)
    if wanted and u.dtype != torch.float64:
        return "float32, because this processor has no AVX512-BF16"
    if types.returns in HALF:
        return f"float32, results rounded to {str(types.returns).removeprefix('torch.')}"
    return str(types.computes).removeprefix("torch.")


def converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `x` in another type, its gradient in its own. Long sequences go into buffers that are reused."""
    if x.dtype == dtype:
        return x
    if torch.compiler.is_compiling():
        return x.to(dtype)
    result: Tensor = _Converted.apply(x, dtype)
    return result


class _Converted(torch.autograd.Function):
    """`x.to(dtype)` without fresh memory: the system's page faults would cost more than the conversion."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.before = x.dtype
        return empty(tuple(x.shape), dtype).copy_(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return empty(tuple(grads[0].shape), ctx.before).copy_(grads[0]), None
