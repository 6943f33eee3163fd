"""Cells whose step is one product with the state and an elementwise map: most of the zoo."""

import inspect
from typing import Any

import torch
from torch import Tensor

from lem.nn.cells.base import Cell, State
from lem.shapes import Float


class PointwiseCell(Cell):
    """A cell with `step(x, state, W, ...) = pointwise(x + read(state) W, state, ...)`.

    A subclass returns W, of shape (width of what it reads, k d), as the first of `prepare`, and writes `pointwise`. If
    the C++ kernel knows that map, it lists a `CoupledKernel` of its kind and writes `constants`.
    """

    reads: tuple[int, ...] = (0,)
    """The fields of the state that are multiplied by W, side by side."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Find out whether the cell's map takes elapsed times."""
        super().__init_subclass__(**options)
        cls.takes_elapsed = cls.takes_elapsed and "elapsed" in inspect.signature(cls.pointwise).parameters

    def prepare(self, batch: int) -> tuple[Any, ...]:
        """Return W and whatever else `pointwise` takes."""
        raise NotImplementedError

    def pointwise(self, a: Float[Tensor, "batch k"], state: State, *rest: Tensor) -> State:
        """Return the next state from `a`, the affine map of input and state, unit by unit.

        A cell with a time step also takes a keyword `elapsed`, as in `step`.
        """
        raise NotImplementedError

    def constants(self, *rest: Tensor) -> Float[Tensor, "constants hidden"]:
        """Return the kernel's constants of every unit from what `pointwise` takes."""
        raise NotImplementedError

    def step(
        self,
        x: Float[Tensor, "batch k"],
        state: State,
        *prepared: Any,
        elapsed: Float[Tensor, "batch 1"] | None = None,
    ) -> State:
        """Advance the state by one time step."""
        W, *rest = prepared
        timed = {} if elapsed is None else {"elapsed": elapsed}
        return self.pointwise(torch.addmm(x, self._read(state), W), state, *rest, **timed)

    def _read(self, state: State) -> Tensor:
        return state[self.reads[0]] if len(self.reads) == 1 else torch.cat([state[i] for i in self.reads], -1)
