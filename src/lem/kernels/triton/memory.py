"""How much memory a call on a GPU needs, and what to keep for the backward pass within a budget.

The modes are those of the CPU kernel. The gates are always computed again, by products that a GPU does in parallel over
time, so "store" and "recompute" are the same here: both keep z of every step. "bounded" keeps the states between
segments of about the square root of the steps.
"""

import torch
from torch import Tensor

from lem.kernels.cpu.memory import Forecast, segment_of

WORK_BYTES = 256 << 20
"""What the scratch of one chunk of time may take, unless a single step takes more."""


def chunk_of(steps: int, bytes_per_step: int) -> int:
    """Return how many steps a chunk has whose scratch takes this many bytes a step."""
    return max(1, min(steps, WORK_BYTES // max(1, bytes_per_step)))


def work_per_step(batch: int, d: int, single: bool, item: int, elapsed: bool = False) -> int:
    """Return the bytes of scratch that one step of a backward chunk takes; `elapsed`: with a gradient of the times."""
    pairs, maps = (1, 2) if single else (3, 4)
    # Coefficients and adjoints in pairs of float32; the pre-activations' adjoints and y in the type of the call.
    # The gradient of the times takes one pair more, and a product of pairs.
    return batch * d * (8 * (pairs + 1 + 2 * elapsed) + item * (maps + 1))


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
) -> Forecast:
    """Forecast the memory of forward and backward on a GPU, with a gradient for every output.

    `memory` is "store", "recompute", "bounded", or "nothing" for a forward pass alone. With `proj_size` the kernels
    run y at the width of z, and the outputs are a copy; `elapsed`: elapsed times with a gradient.
    """
    item, d, maps = dtype.itemsize, hidden_size, 2 if single_scale else 4
    outputs = steps * batch * (proj_size or d) * item
    wide = steps * batch * d * item  # y as wide as z
    copies = wide if proj_size else 0
    weights = maps * d * (d + input_size + 1)
    # The forward pass projects the input before the recurrence, chunk by chunk.
    projected = batch * maps * d * item
    work = chunk_of(steps, projected) * projected + weights * 4 + copies
    if memory == "nothing":
        return Forecast(outputs, 0, work, 0)
    per_step = work_per_step(batch, d, single_scale, item, elapsed)
    if memory == "bounded":
        segment = segment_of(steps)
        kept = 2 * -(-steps // segment) * batch * d * 4
        backward = segment * (per_step + 2 * batch * d * item)
    else:
        kept = wide
        backward = chunk_of(steps, per_step) * per_step
    # Weights packed for the kernels, sums of their gradients, and the products added to the sums.
    backward += weights * 12 + 2 * copies
    gradients = outputs + weights * item + 2 * batch * d * item + (steps * batch * input_size * item) * input_gradient
    return Forecast(outputs, kept, max(work, backward), gradients)


def plan(
    u: Tensor, d: int, single_scale: bool, memory: str | int, elapsed: bool = False, proj_size: int = 0
) -> tuple[str, int]:
    """Return what to keep and the steps of a segment: as asked for, or the fastest that fits into the budget."""
    steps, batch, m = u.shape
    if memory == "bounded":
        return "bounded", segment_of(steps)
    if memory in ("store", "recompute") or torch.compiler.is_compiling():
        return "recompute", 1
    # Below a gigabyte there is no need to check the free memory.
    if memory == "auto" and 4 * steps * batch * (d + m) * u.dtype.itemsize < 1 << 30:
        return "recompute", 1
    budget = memory if isinstance(memory, int) else torch.cuda.mem_get_info(u.device)[0] // 2
    found = memory_forecast(
        steps,
        batch,
        m,
        d,
        dtype=u.dtype,
        single_scale=single_scale,
        input_gradient=u.requires_grad,
        proj_size=proj_size,
        elapsed=elapsed,
    )
    return ("recompute", 1) if found.peak <= budget else ("bounded", segment_of(steps))
