"""Cells whose step is one product with the state and an elementwise map: most of the zoo."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lem.cells.base import Cell, State
from lem.cells.torch_kernels import run_kernel
from lem.native.coupled import coupled_sequence
from lem.native.library import loop_asked
from lem.native.units import units_refusal
from lem.shapes import Float, Int


class PointwiseCell(Cell):
    """A cell with `step(x, state, W, ...) = pointwise(x + read(state) W, state, ...)`.

    A subclass returns W, (width of what it reads, k d), as the first of `prepare`, and writes `pointwise`. Where the
    kernel knows that map, it says so by `kind` and `constants`: sequences of equally long rows then run on it. Where
    torch has a kernel too, `torch_kernel` names it.
    """

    reads: tuple[int, ...] = (0,)
    """The fields of the state that are multiplied by W, side by side."""

    kind: int | None = None
    """What `pointwise` is called in `lem.native.coupled`, if it has a name there."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Take the kernel from a class that writes an equation of its own."""
        super().__init_subclass__(**options)
        if not {"pointwise", "step"}.isdisjoint(vars(cls)) and "kind" not in vars(cls):
            cls.kind = None

    def prepare(self, batch: int) -> tuple[Any, ...]:
        """Return W and whatever else `pointwise` takes."""
        raise NotImplementedError

    def pointwise(self, a: Float[Tensor, "batch k"], state: State, *rest: Tensor) -> State:
        """Return the next state from `a`, the affine map of input and state, unit by unit."""
        raise NotImplementedError

    def constants(self, *rest: Tensor) -> Float[Tensor, "constants hidden"]:
        """Return the kernel's constants of every unit from what `pointwise` takes."""
        raise NotImplementedError

    def torch_kernel(self) -> tuple[Callable[..., Any], list[Tensor | None]] | None:
        """Return torch's own kernel and its weights, for what ours cannot run; None where it has none."""
        return None

    def step(self, x: Float[Tensor, "batch k"], state: State, *prepared: Any) -> State:
        """Advance the state by one time step."""
        W, *rest = prepared
        return self.pointwise(torch.addmm(x, self._read(state), W), state, *rest)

    def _read(self, state: State) -> Tensor:
        return state[self.reads[0]] if len(self.reads) == 1 else torch.cat([state[i] for i in self.reads], -1)

    def _refusal(self, u: Tensor, state: State = (), lengths: Tensor | None = None) -> str | None:
        if self.kind is None:
            return f"{type(self).__name__} has no kernel"
        return units_refusal(u, next(self.parameters()), *state, lengths=lengths)

    def _torchs(self) -> tuple[Callable[..., Any], list[Tensor | None]] | None:
        return None if self.kind is None or loop_asked() else self.torch_kernel()

    def sequence(
        self,
        u: Float[Tensor, "time batch input"],
        state: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        reverse: bool = False,
    ) -> tuple[Float[Tensor, "time batch output"], State]:
        """Run over time: by our kernel, by torch's or by the loop, the first of them that can."""
        state = self.init_state(u.shape[1]) if state is None else state
        if self._refusal(u, state, lengths) is not None:
            if (torchs := self._torchs()) is None:
                return super().sequence(u, state, lengths, reverse)
            return run_kernel(*torchs, self, u, state, lengths, reverse)
        assert self.kind is not None
        x, (W, *rest) = self.project(u), self.prepare(u.shape[1])
        out, final = coupled_sequence(self.kind, x.flip(0) if reverse else x, W, self.constants(*rest), state)
        return out.flip(0) if reverse else out, self.state_type(*final)

    def backend_for(self, u: Float[Tensor, "time batch input"]) -> tuple[str, str]:
        """Return what a sequence like `u` would run on, and why."""
        if type(self).sequence is not PointwiseCell.sequence:
            return super().backend_for(u)
        if (refusal := self._refusal(u)) is None:
            return "own", "the kernel of coupled units"
        return "loop" if self._torchs() is None else "torch", refusal
