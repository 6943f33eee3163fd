"""The operator `lem::sequence` on CUDA and ROCm devices, which share a dispatch key.

Triton is imported by the first call, not with this module. Gradients and shapes are those of the operator's definition
in `lem.kernels.cpu.lem`; the arguments are taken by their names there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lem.kernels.cpu import lem as definition
from lem.kernels.cpu.library import KEEP
from lem.kernels.triton.memory import plan
from lem.kernels.triton.paths import Card, Path, card_of, choose, mode_of


def _named(operator: Any, values: tuple[Any, ...]) -> dict[str, Any]:
    return {argument.name: value for argument, value in zip(operator.default._schema.arguments, values)}


def card(u: Tensor) -> Card:
    """Return the card that a tensor is on."""
    return card_of(u.device.index or 0)


_kind: str | None = None  # the path that a `using` block asks for


@contextmanager
def using(kind: str) -> Iterator[None]:
    """Run calls inside this block on the "alternating" path, forward and backward, for measurements."""
    global _kind
    if kind != "alternating":
        raise ValueError(f"`kind` of using must be 'alternating', the path that serves every width; got {kind!r}.")
    before, _kind = _kind, kind
    try:
        yield
    finally:
        _kind = before


def path_of(u: Tensor, d: int, timed: bool = False) -> Path:
    """Return how a call with this input and width runs; `timed`: with elapsed times or restarts."""
    found = card(u)
    path = choose(d, mode_of(u.dtype, found.vendor), found, timed)
    return path if _kind is None else path._replace(kind=_kind)


def _problem(named: dict[str, Any]) -> Any:
    from lem.kernels.triton.lem import Problem

    given = {name: named.get(name) for name in Problem._fields}
    return Problem(**given | {"clip": None if named["clip"] is None else tuple(named["clip"])})


def _segment(named: dict[str, Any]) -> int | None:
    return named["segment"] if named["keep"] == KEEP["bounded"] else None


def forward(*values: Any) -> tuple[Tensor, ...]:
    """Run the operator on the device of its input."""
    from lem.kernels.triton import lem

    named = _named(torch.ops.lem.sequence, values)
    p = _problem(named)
    with torch.autocast(p.u.device.type, enabled=False), torch.cuda.device_of(p.u):
        return lem.forward(
            p, path_of(p.u, p.weight_z.shape[1], p.timed), named["keep"] != KEEP["nothing"], _segment(named)
        )


def backward(*values: Any) -> tuple[Tensor, ...]:
    """Run the adjoint on the device of the forward pass's input."""
    from lem.kernels.triton import lem

    named = _named(torch.ops.lem.sequence_backward, values)
    p = _problem(named)
    grad_out, grad_y, grad_z = (named[f"grad_{name}"] for name in ("out", "y_n", "z_n"))
    path, segment, wanted = path_of(p.u, p.weight_z.shape[1], p.timed), _segment(named), named["input_gradient"]
    with torch.autocast(p.u.device.type, enabled=False), torch.cuda.device_of(p.u):
        return lem.backward(
            grad_out, grad_y, grad_z, p, named["out"], named["saved"], path, segment, wanted,
            bool(named.get("elapsed_gradient")),
        )  # fmt: skip


def saved(u: Tensor, widths: tuple[int, int], keep: int, segment: int, paced: bool) -> Tensor:
    """Return a tensor of the shape of what the forward pass leaves for the backward pass."""
    (steps, batch), d = u.shape[:2], widths[1]
    if keep == KEEP["bounded"]:
        return u.new_empty((2, -(-steps // max(segment, 1)), batch, d), dtype=torch.float32)
    return u.new_empty(0 if keep == KEEP["nothing"] else (steps, batch, d))


torch.library.impl("lem::sequence", "CUDA", forward)
torch.library.impl("lem::sequence_backward", "CUDA", backward)
definition.SAVED["cuda"] = saved


def types_of(u: Tensor, precision: str) -> tuple[torch.dtype, torch.dtype]:
    """Return the type that a call runs in, and the type of what it returns."""
    kind = u.device.type
    returns = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else u.dtype
    return (returns if precision == "auto" else getattr(torch, precision)), returns


def sequence(
    u: Tensor,
    weight_u: Tensor,
    weight_y: Tensor,
    weight_z: Tensor,
    bias: Tensor | None,
    y_0: Tensor,
    z_0: Tensor,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    elapsed: Tensor | None = None,
    resets: Tensor | None = None,
    start: tuple[Tensor, Tensor] | None = None,
    *,
    dt: float = 1.0,
    clip: tuple[float, float] | None = None,
    reverse: bool = False,
    memory: str | int = "auto",
    precision: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Run LEM over a sequence on a GPU; return the outputs and the final y and z. Parameters as in `LEMCell`.

    `start` is the learned initial state, which a reset returns to (zeros without it). Under autocast outputs and
    states have autocast's type, as those of cuDNN's LSTM have.
    """
    tensors: tuple[Tensor | None, ...] = (u, weight_u, weight_y, weight_z, bias, y_0, z_0, mask)
    computes, returns = types_of(u, precision)
    tensors = tuple(None if t is None else t.to(computes) for t in tensors)
    y_start, z_start = (None, None) if start is None or resets is None else (s.to(computes) for s in start)
    times = elapsed, resets, y_start, z_start
    keep, segment = "nothing", 1
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (*tensors, *times)):
        d_y, d_z = weight_z.shape
        paced, proj_size = elapsed is not None, d_y if d_y < d_z else 0
        keep, segment = plan(u, d_z, len(weight_y) == d_z, memory, paced, proj_size)
    if lengths is not None:
        # From the host to the device, if they are not there already, without waiting.
        lengths = lengths.to(device=u.device, dtype=torch.int64, non_blocking=True)
    out, y_n, z_n, _ = torch.ops.lem.sequence(
        *tensors, lengths, dt, None if clip is None else list(clip), reverse, KEEP[keep], segment, *times
    )
    return out.to(returns), y_n.to(returns), z_n.to(returns)
