"""How much memory a call will need, and what to keep for the backward pass within a budget."""

import ctypes
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lem.native.library import KEEP, Problem, library, threads


class Forecast(NamedTuple):
    """Bytes that one layer adds to the input and the weights between the start of forward and the end of backward."""

    outputs: int
    kept: int
    work: int
    gradients: int

    @property
    def peak(self) -> int:
        """The largest sum at any moment."""
        return sum(self)


def memory_forecast(
    steps: int,
    batch: int,
    input_size: int,
    hidden_size: int,
    *,
    memory: str = "store",
    dtype: torch.dtype = torch.float32,
    single_scale: bool = False,
    input_gradient: bool = False,
) -> Forecast:
    """Forecast the memory of forward and backward through the kernel, with a gradient for every output.

    `memory` is "store", "recompute", "bounded", or "nothing" for a forward pass alone.
    """
    if memory not in KEEP:
        raise ValueError(f"`memory` of memory_forecast must be one of {', '.join(KEEP)}; got {memory!r}.")
    item, d = dtype.itemsize, hidden_size
    p = Problem(ctypes.sizeof(Problem), item, steps, batch, input_size, d, not single_scale)
    p.threads, p.keep, p.segment = threads(), KEEP[memory], segment_of(steps)
    p.grad_u = 1 if input_gradient else None  # only whether it is null counts here
    kept, forward = library().lem_saved_bytes(p), library().lem_work_bytes(p, 0)
    if kept < 0:
        raise ValueError(f"sizes of memory_forecast must be positive; got {(steps, batch, input_size, hidden_size)}.")
    outputs, maps = steps * batch * d * item, 2 if single_scale else 4
    if memory == "nothing":
        return Forecast(outputs, 0, forward, 0)
    weights = (maps * d * (d + input_size + 1) + 2 * batch * d) * item
    gradients = outputs + weights + (steps * batch * input_size * item if input_gradient else 0)
    return Forecast(outputs, kept, max(forward, library().lem_work_bytes(p, 1)), gradients)


def segment_of(steps: int) -> int:
    """Return the steps of a segment of a bounded run over this many steps."""
    # 2 states per T / S segments and 6 values per S steps: the sum is least at S = sqrt(T / 3).
    return max(1, round((steps / 3) ** 0.5))


def plan(u: Tensor, d: int, single_scale: bool, memory: str | int) -> tuple[str, int]:
    """Return what to keep and the steps of a segment: as asked for, or the fastest that fits into the budget."""
    if memory == "bounded":
        return "bounded", segment_of(u.shape[0])
    if memory in ("store", "recompute") or torch.compiler.is_compiling():
        return ("recompute" if memory == "recompute" else "store"), 1
    steps, batch, m = u.shape
    # Below a gigabyte nobody needs to be asked.
    if memory == "auto" and 6 * steps * batch * (d + 16) * u.dtype.itemsize < 1 << 30:
        return "store", 1
    budget = memory if isinstance(memory, int) else _available() // 2
    for keep in ("store", "recompute"):
        forecast = memory_forecast(
            steps, batch, m, d, memory=keep, dtype=u.dtype, single_scale=single_scale, input_gradient=u.requires_grad
        )
        if forecast.peak <= budget:
            return keep, 1
    return "bounded", segment_of(steps)


def _available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 1 << 62


def check_options(backend: str, memory: str | int) -> None:
    """Refuse a `backend` or a `memory` that LEMCell does not know."""
    if backend not in ("auto", "native", "loop"):
        raise ValueError(f"`backend` of LEMCell must be 'auto', 'native' or 'loop'; got {backend!r}.")
    known = memory in ("auto", "store", "recompute", "bounded")
    if not known and not (isinstance(memory, int) and not isinstance(memory, bool) and memory > 0):
        raise ValueError(
            f"`memory` of LEMCell must be 'auto', 'store', 'recompute', 'bounded' or a budget in bytes; got {memory!r}."
        )
