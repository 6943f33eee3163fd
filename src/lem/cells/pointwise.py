"""Cells whose step is one product with the state and an elementwise map: most of the zoo."""

from typing import Any

import torch
from torch import Tensor

from lem.cells.base import Cell, State
from lem.shapes import Float


class PointwiseCell(Cell):
    """A cell with `step(x, state, W, ...) = pointwise(x + read(state) W, state, ...)`.

    A subclass returns W, (width of what it reads, k d), as the first of `prepare`, and writes `pointwise`.
    """

    reads: tuple[int, ...] = (0,)
    """The fields of the state that are multiplied by W, side by side."""

    def prepare(self, batch: int) -> tuple[Any, ...]:
        """Return W and whatever else `pointwise` takes."""
        raise NotImplementedError

    def pointwise(self, a: Float[Tensor, "batch k"], state: State, *rest: Tensor) -> State:
        """Return the next state from `a`, the affine map of input and state, unit by unit."""
        raise NotImplementedError

    def step(self, x: Float[Tensor, "batch k"], state: State, *prepared: Any) -> State:
        """Advance the state by one time step."""
        W, *rest = prepared
        return self.pointwise(torch.addmm(x, self._read(state), W), state, *rest)

    def _read(self, state: State) -> Tensor:
        return state[self.reads[0]] if len(self.reads) == 1 else torch.cat([state[i] for i in self.reads], -1)
