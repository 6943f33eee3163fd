"""Run a cell over a sequence as one operator that every runtime of torch programs has: torch's `scan`.

It is slow in Python and made for tracing: in an exported program the time loop stays one node with a free time axis,
instead of a graph with a copy of the step for each time step, and `torch.onnx.export` translates it to ONNX's Scan.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lem.nn.cells.timing import seen_by_steps
from lem.shapes import Bool, Float, Int

if TYPE_CHECKING:
    from lem.nn.cells.base import Cell, State


def scan(
    cell: "Cell",
    u: Float[Tensor, "time batch input"],
    state: "State | None" = None,
    lengths: Int[Tensor, "batch"] | None = None,
    reverse: bool = False,
    elapsed: Float[Tensor, "time batch"] | None = None,
    resets: Bool[Tensor, "time batch"] | None = None,
    prepared: Sequence[Tensor] | None = None,
) -> tuple[Float[Tensor, "time batch output"], "State"]:
    """Do what `Cell.loop` does, by the operator `scan` instead of a Python loop.

    Args:
        cell: the cell.
        u: the input of all steps.
        state: the state before the first step; the cell's own if not given.
        lengths: the steps of each row.
        reverse: whether time runs backwards.
        elapsed: the time from the previous observation to each one.
        resets: where the state restarts.
        prepared: what `cell.prepare` returned before tracing, for what no other runtime can compute.
    """
    from torch._higher_order_ops.scan import scan as torch_scan

    steps, batch = u.shape[:2]
    state = cell.init_state(batch) if state is None else state
    fixed = list(cell.prepare(batch) if prepared is None else prepared)
    inside = None
    if lengths is not None:
        inside = (torch.arange(steps, device=u.device)[:, None] < lengths.to(u.device))[:, :, None]
        u = torch.where(inside, u, torch.zeros_like(u))
    gaps, fresh = seen_by_steps(elapsed, resets, lengths, reverse)
    # Masks travel as numbers: ONNX runtimes accept few types inside a Scan.
    flags = [None if mask is None else mask.to(u.dtype) for mask in (inside, fresh)]
    scanned = [cell.project(u), *(x for x in (gaps, *flags) if x is not None)]
    first = list(cell.init_state(batch)) if fresh is not None else []
    # An expanded parameter has another memory layout than the states that follow it.
    start = [field.clone(memory_format=torch.contiguous_format) for field in state]

    def step(carry: list[Tensor], given: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        x, *others = given
        rest = iter(others)
        timed = {} if gaps is None else {"elapsed": next(rest)}
        alive = None if inside is None else next(rest)
        if fresh is not None:
            again = next(rest) > 0.5
            carry = [torch.where(again, new, old) for new, old in zip(first, carry)]
        after = list(cell.step(x, cell.state_type(*carry), *fixed, **timed))
        shown = after[0]
        if alive is not None:
            here = alive > 0.5
            shown = torch.where(here, shown, torch.zeros_like(shown))
            after = [torch.where(here, new, old) for new, old in zip(after, carry)]
        # The inductor can only size the outputs by the batch if the step mentions it.
        return [field.clone() for field in after], shown.reshape(batch, -1).clone()

    final, outputs = torch_scan(step, start, scanned, reverse=reverse)
    return outputs, cell.state_type(*final)
