"""The contract of a cell, and the only time loop of the library.

A cell is one step of a recurrent network. It owns its parameters and says how one state becomes the next; running
it over a sequence, in either direction and over rows of unequal length, is written once, here.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from lem.shapes import Float, Int

State: TypeAlias = tuple[Tensor, ...]
"""A NamedTuple of tensors whose first axis is the batch; field 0 is what others read."""


class Hidden(NamedTuple):
    """The state of a cell that carries one vector `h`."""

    h: Tensor


def within(owner: object, name: str, value: Any, interval: str) -> float:
    """Return `value` as a float if it is a number inside `interval`, written "(0, 2]"; refuse it otherwise."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    above = number and (value > low or (value == low and interval[0] == "["))
    if not (above and (value < high or (value == high and interval[-1] == "]"))):
        who = owner if isinstance(owner, str) else type(owner).__name__
        raise ValueError(f"`{name}` of {who} must be a number in {interval}; got {value!r}.")
    return float(value)


class Cell(nn.Module):
    """One step of a recurrent network: the contract every model of the library fulfils.

    A subclass sets `state_type`, registers its parameters and writes `project` and `step`. Everything else has a
    working default: a fused `sequence` may replace the loop, and must then equal it (the conformance tests compare).
    """

    state_type: type[Any] = Hidden
    """The NamedTuple of the state; field 0 is the output."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"`{name}` of {type(self).__name__} must be a positive integer; got {size!r}.")
        self.input_size = input_size
        self.hidden_size = hidden_size

    # --- what a cell says of itself -------------------------------------------------------------------------------

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The width of each field of the state."""
        return (self.hidden_size,) * len(self.state_type._fields)

    def init_state(self, batch: int) -> State:
        """Return the state before the first step: zeros unless the cell says otherwise."""
        like = next(self.parameters())
        return self.state_type(*(like.new_zeros(batch, size) for size in self.state_sizes))

    def prepare(self, batch: int) -> tuple[Tensor, ...]:
        """Return what stays fixed while one sequence runs: a dropout mask, a matrix built from its parametrisation.

        It is evaluated once per sequence and handed to every `step`.
        """
        return ()

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Compute all that needs no state, for the whole sequence in one product."""
        raise NotImplementedError

    def step(self, x: Float[Tensor, "batch k"], state: State, *prepared: Tensor) -> State:
        """Advance the state by one time step: the equation."""
        raise NotImplementedError

    # --- running it -----------------------------------------------------------------------------------------------

    def forward(self, u: Float[Tensor, "*batch input"], state: State | None = None) -> State:
        """Take one step, as nn.LSTMCell does: `u` is (batch, input) or (input,)."""
        name = type(self).__name__
        if not isinstance(u, Tensor):
            raise TypeError(f"`u` of {name} must be a tensor; got {type(u).__name__}.")
        if u.dim() not in (1, 2) or u.shape[-1] != self.input_size:
            raise ValueError(
                f"`u` of {name} must have shape (batch, {self.input_size}) or ({self.input_size},); "
                f"got {tuple(u.shape)}."
            )
        batched = u if u.dim() == 2 else u[None]
        if state is None:
            state = self.init_state(len(batched))
        else:
            fields = self.state_type._fields
            expected = [(*u.shape[:-1], size) for size in self.state_sizes]
            got = [tuple(s.shape) if isinstance(s, Tensor) else type(s).__name__ for s in state]
            if got != expected:
                raise ValueError(f"`state` {fields} of {name} must have shapes {expected}; got {got}.")
            state = self.state_type(*(s if u.dim() == 2 else s[None] for s in state))
        after = self.step(self.project(batched[None])[0], state, *self.prepare(len(batched)))
        return after if u.dim() == 2 else self.state_type(*(s[0] for s in after))

    def sequence(
        self,
        u: Float[Tensor, "time batch input"],
        state: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        reverse: bool = False,
    ) -> tuple[Float[Tensor, "time batch output"], State]:
        """Run over time; return the outputs of all steps and the state after the last.

        With `lengths`, each row stops at its own length: its outputs past the end are zero and its final state is
        the one at its end. With `reverse`, time runs backwards and each row starts at its own end.
        """
        kept, final = self._loop(u, state, lengths, reverse, fields=(0,))
        return kept[0], final

    def trajectory(
        self,
        u: Float[Tensor, "time batch input"],
        state: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        reverse: bool = False,
    ) -> tuple[State, State]:
        """Run as `sequence` does, by the loop; return every field of the state at all steps, and the final state."""
        kept, final = self._loop(u, state, lengths, reverse, fields=range(len(self.state_type._fields)))
        return self.state_type(*kept), final

    def _loop(
        self, u: Tensor, state: State | None, lengths: Tensor | None, reverse: bool, fields: Iterable[int]
    ) -> tuple[list[Tensor], State]:
        steps, batch = u.shape[:2]
        state = self.init_state(batch) if state is None else state
        alive: tuple[Tensor, ...] | None = None
        if lengths is not None:
            inside = torch.arange(steps, device=u.device)[:, None] < lengths.to(u.device)
            # Whatever stands in the padding, NaN included, must reach neither the outputs nor the gradients.
            u = u.masked_fill(~inside[:, :, None], 0.0)
            alive = inside[:, :, None].unbind(0)
        # unbind, not x[t]: the gradient of T separate selections would cost T full-size buffers.
        x = self.project(u).unbind(0)
        prepared = self.prepare(batch)
        kept: list[list[Tensor]] = [[] for _ in fields]
        for t in reversed(range(steps)) if reverse else range(steps):
            after = self.step(x[t], state, *prepared)
            if alive is None:
                shown = state = after
            else:
                here = alive[t]
                shown = self.state_type(*(torch.where(here, new, torch.zeros_like(new)) for new in after))
                state = self.state_type(*(torch.where(here, new, old) for new, old in zip(after, state)))
            for row, field in zip(kept, fields):
                row.append(shown[field])
        return [torch.stack(row[::-1] if reverse else row) for row in kept], state

    def backend_for(self, u: Float[Tensor, "time batch input"]) -> tuple[str, str]:
        """Return what a sequence like `u` would run on, and why: the loop, or the cell's own `sequence`."""
        if type(self).sequence is Cell.sequence:
            return "loop", f"{type(self).__name__} has no kernel"
        if (refusal := self._refusal(u)) is not None:
            return "loop", refusal
        return "own", f"{type(self).__name__} runs whole sequences by itself"

    def _refusal(self, u: Tensor, state: State = (), lengths: Tensor | None = None) -> str | None:
        """Return why the cell's own `sequence` leaves such a call to the loop, or None where it does not."""
        return None

    # --- hooks of the constrained families: no-ops by default ------------------------------------------------------

    def param_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Return the optimiser's parameter groups: all parameters at one rate unless the cell says otherwise."""
        return [{"params": list(self.parameters()), "lr": learning_rate}]

    def penalty(self) -> Tensor | None:
        """Return a term the cell adds to the training loss, or None."""
        return None

    def after_update(self) -> None:
        """Restore a constraint after an optimiser step."""

    def degrees_of_freedom(self) -> int:
        """Count the free numbers of the cell, as the paper's tables do (a skew matrix counts d(d-1)/2)."""
        return sum(p.numel() for p in self.parameters())
