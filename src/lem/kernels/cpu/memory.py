"""How much memory a call will need, and what to keep for the backward pass within a budget."""

import ctypes
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lem.kernels.cpu.library import KEEP, Problem, library, threads
from lem.wording import check_choice


class Forecast(NamedTuple):
    """Bytes that one layer adds to the input and the weights between the start of forward and the end of backward.

    Examples:
        >>> from lem.kernels import memory_forecast
        >>> forecast = memory_forecast(steps=1000, batch=32, input_size=3, hidden_size=64)
        >>> forecast.peak >= forecast.outputs + forecast.kept
        True
    """

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
    proj_size: int = 0,
    elapsed: bool = False,
    resets: bool = False,
) -> Forecast:
    """Forecast the memory of forward and backward through the kernel, with a gradient for every output.

    `memory` is "store", "recompute", "bounded", or "nothing" for a forward pass alone. `elapsed` and `resets` tell
    whether these arguments are given.

    Examples:
        >>> from lem.kernels import memory_forecast
        >>> store = memory_forecast(17984, 8, 6, 32).peak
        >>> bounded = memory_forecast(17984, 8, 6, 32, memory="bounded").peak
        >>> store > 3 * bounded
        True
    """
    check_choice("memory_forecast", "memory", memory, KEEP)
    item, d_z, d_y = dtype.itemsize, hidden_size, proj_size or hidden_size
    sizes = (steps, batch, input_size, hidden_size)
    # Far above what the kernel takes; in C the products would wrap around.
    if 64 * item * (steps * batch + hidden_size + 64) * (input_size + hidden_size + 64) >= 1 << 62:
        raise ValueError(f"sizes of memory_forecast must ask for less than 2^62 bytes; got {sizes}.")
    p = Problem(ctypes.sizeof(Problem), item, steps, batch, input_size, d_z, d_y, not single_scale)
    p.threads, p.keep, p.segment = threads(), KEEP[memory], segment_of(steps)
    # Only whether these are null counts here.
    p.grad_u, p.elapsed, p.resets = (1 if given else None for given in (input_gradient, elapsed, resets))
    kept, forward = library().lem_saved_bytes(p), library().lem_work_bytes(p, 0)
    if kept < 0:
        raise ValueError(
            f"sizes of memory_forecast must be positive, and `proj_size` at most `hidden_size`; "
            f"got {sizes} and {proj_size}."
        )
    outputs, rows = steps * batch * d_y * item, d_z if single_scale else 2 * d_z + d_y
    if memory == "nothing":
        return Forecast(outputs, 0, forward, 0)
    weights = (rows * d_y + d_y * d_z + (rows + d_y) * (input_size + 1) + batch * (d_y + d_z)) * item
    gradients = outputs + weights + (steps * batch * input_size * item if input_gradient else 0)
    return Forecast(outputs, kept, max(forward, library().lem_work_bytes(p, 1)), gradients)


def segment_of(steps: int) -> int:
    """Return the steps of a segment of a bounded run over this many steps."""
    # 2 states per T / S segments and 6 values per S steps: the sum is least at S = sqrt(T / 3).
    return max(1, round((steps / 3) ** 0.5))


def plan(
    u: Tensor,
    d: int,
    single_scale: bool,
    memory: str | int,
    *,
    proj_size: int = 0,
    elapsed: bool = False,
    resets: bool = False,
) -> tuple[str, int]:
    """Return what to keep and the steps of a segment: as asked for, or the fastest that fits into the budget."""
    if memory == "bounded":
        return "bounded", segment_of(u.shape[0])
    if memory in ("store", "recompute") or torch.compiler.is_compiling():
        return ("recompute" if memory == "recompute" else "store"), 1
    steps, batch, m = u.shape
    # Below a gigabyte there is no need to check the free memory.
    if memory == "auto" and (8 if elapsed else 6) * steps * batch * (d + 16) * u.dtype.itemsize < 1 << 30:
        return "store", 1
    budget = memory if isinstance(memory, int) else _available() // 2
    for keep in ("store", "recompute"):
        forecast = memory_forecast(
            steps, batch, m, d, memory=keep, dtype=u.dtype, single_scale=single_scale, input_gradient=u.requires_grad,
            proj_size=proj_size, elapsed=elapsed, resets=resets,
        )  # fmt: skip
        if forecast.peak <= budget:
            return keep, 1
    return "bounded", segment_of(steps)


def _available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 1 << 62


def check_memory(memory: str | int) -> None:
    """Raise ValueError if LEMCell does not know this value of `memory`."""
    known = memory in ("auto", "store", "recompute", "bounded")
    if not known and not (isinstance(memory, int) and not isinstance(memory, bool) and memory > 0):
        raise ValueError(
            f"`memory` of LEMCell must be 'auto', 'store', 'recompute', 'bounded' or a number of bytes; got {memory!r}."
        )
