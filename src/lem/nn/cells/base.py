"""The interface of a cell, and the only time loop of the library.

A cell is one step of a recurrent network. It owns its parameters and computes the next state. Running it over a
sequence, in either direction and over rows of unequal length, is written once, here.
"""

import inspect
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from lem.kernels import choose
from lem.kernels.choose import Call, Kernel
from lem.nn.cells.errors import InputError
from lem.nn.cells.scan import scan
from lem.nn.cells.state import register_state
from lem.nn.cells.timing import check_elapsed, seen_by_steps
from lem.shapes import Bool, Float, Int
from lem.wording import check_choice

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
    working default. A subclass that has kernels lists them in `kernels`; the conformance tests compare each of them
    with the loop.

    Args:
        input_size: the number of input channels.
        hidden_size: the number of units.
        backend: what runs whole sequences: "auto" (the fastest kernel that can run the call, else the loop), "native"
            (the C++ kernel), "triton" (the GPU kernel), "torch" (torch's own kernel) or "loop" (any device and type,
            every derivative). A named kernel raises RuntimeError with the reason if it cannot run the call.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import Cell, Hidden
        >>> class Decay(Cell):
        ...     def __init__(self, input_size, hidden_size):
        ...         super().__init__(input_size, hidden_size)
        ...         self.weight = torch.nn.Parameter(torch.ones(hidden_size, input_size))
        ...     def project(self, u):
        ...         return u @ self.weight.T
        ...     def step(self, x, state, *prepared):
        ...         return Hidden(0.5 * state.h + x)
        >>> outputs, state = Decay(1, 1).sequence(torch.ones(4, 1, 1))
        >>> outputs.flatten().tolist()
        [1.0, 1.5, 1.75, 1.875]
    """

    kernels: tuple[Kernel, ...] = ()
    """The kernels that compute this class's equation, fastest first."""

    overridden: tuple[str | None, ...] = ()
    """For each kernel, the method it computes that a subclass has overridden, or None."""

    state_type: type[Any] = Hidden
    """The NamedTuple of the state; field 0 is the output."""

    takes_elapsed = False
    """Whether `step` has the argument `elapsed`."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Register the state with torch, and find out which kernels a subclass disables by overriding methods."""
        super().__init_subclass__(**options)
        register_state(cls.state_type)
        cls.overridden = choose.overridden_methods(cls)
        cls.takes_elapsed = "elapsed" in inspect.signature(cls.step).parameters

    def __init__(self, input_size: int, hidden_size: int, backend: str = "auto") -> None:
        super().__init__()
        check_choice(type(self).__name__, "backend", backend, choose.BACKENDS)
        self.backend = backend
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"`{name}` of {type(self).__name__} must be a positive integer; got {size!r}.")
        self.input_size = input_size
        self.hidden_size = hidden_size

    # --- properties of a cell -------------------------------------------------------------------------------------

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The width of each field of the state."""
        return (self.hidden_size,) * len(self.state_type._fields)

    def init_state(self, batch: int) -> State:
        """Return the state before the first step: zeros by default."""
        like = self.any_parameter()
        return self.state_type(*(like.new_zeros(batch, size) for size in self.state_sizes))

    def any_parameter(self) -> Tensor:
        """Return one of the cell's parameters, for its type and device."""
        for parameter in self._parameters.values():  # many times faster than next(self.parameters())
            if parameter is not None:
                return parameter
        return next(self.parameters())

    def prepare(self, batch: int) -> tuple[Tensor, ...]:
        """Return what stays fixed while one sequence runs: a dropout mask, a matrix built from its parametrisation.

        It is evaluated once per sequence and handed to every `step`.
        """
        return ()

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Compute all that needs no state, for the whole sequence in one product."""
        raise NotImplementedError

    def step(self, x: Float[Tensor, "batch k"], state: State, *prepared: Tensor) -> State:
        """Advance the state by one time step: the equation.

        A cell whose equation has a time step also takes a keyword `elapsed`, of shape (batch, 1): the length of the
        step, where 1 is the usual one. A cell without that keyword refuses sequences with elapsed times.
        """
        raise NotImplementedError

    def refuse_elapsed(self) -> str | None:
        """Return why the cell cannot take elapsed times, or None if it can."""
        return None if self.takes_elapsed else f"{type(self).__name__} has no time step"

    # --- running it -----------------------------------------------------------------------------------------------

    def forward(
        self,
        u: Tensor,
        state: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        reverse: bool = False,
        elapsed: Tensor | float | None = None,
        resets: Tensor | None = None,
    ) -> Any:
        """Take one step or run a sequence, depending on the shape of `u`.

        If `u` has shape (batch, input) or (input,), take one step and return the next state, like nn.LSTMCell. If `u`
        has shape (time, batch, input), run the whole sequence and return what `sequence` returns.

        `elapsed` is the time since the previous observation, in units of the usual step: one number, or one for each
        row, for a single step. `resets` marks where new pieces begin and needs a sequence.
        """
        name = type(self).__name__
        if not isinstance(u, Tensor):
            raise TypeError(f"`u` of {name} must be a tensor; got {type(u).__name__}.")
        if u.dim() not in (1, 2, 3) or u.shape[-1] != self.input_size:
            raise InputError(
                f"input has inconsistent input_size: got {u.shape[-1] if u.dim() else 0} expected {self.input_size}. "
                f"`u` of {name} must have shape (batch, {self.input_size}) or ({self.input_size},) for one step, or "
                f"(time, batch, {self.input_size}) for a sequence; got {tuple(u.shape)}."
            )
        if state is not None:
            fields = self.state_type._fields
            expected = [(*u.shape[-2:-1], size) for size in self.state_sizes]
            got = [tuple(s.shape) if isinstance(s, Tensor) else type(s).__name__ for s in state]
            if got != expected:
                wrong = _wrong_state(u, state, self.state_sizes)
                raise InputError(f"{wrong}`state` {fields} of {name} must have shapes {expected}; got {got}.")
        if u.dim() == 3:
            timing = {"elapsed": elapsed, "resets": resets}
            given = {key: value for key, value in timing.items() if value is not None}
            return self.sequence(u, state, lengths, reverse, **given)  # type: ignore[arg-type]
        if lengths is not None or resets is not None or reverse:
            raise ValueError(
                f"`lengths`, `resets` and `reverse` of {name} need a sequence of shape (time, batch, input) as `u`."
            )
        batched = u if u.dim() == 2 else u[None]
        if state is None:
            state = self.init_state(len(batched))
        else:
            state = self.state_type(*(s if u.dim() == 2 else s[None] for s in state))
        timed = {} if elapsed is None else {"elapsed": self._one_gap(elapsed, batched)}
        after = self.step(self.project(batched[None])[0], state, *self.prepare(len(batched)), **timed)
        return after if u.dim() == 2 else self.state_type(*(s[0] for s in after))

    def _one_gap(self, elapsed: Any, u: Tensor) -> Tensor:
        """Return the elapsed time of a single step as (batch, 1)."""
        name = type(self).__name__
        if (reason := self.refuse_elapsed()) is not None:
            raise ValueError(f"`elapsed` of {name} must be None: {reason}.")
        gap = torch.as_tensor(elapsed, dtype=u.dtype, device=u.device)
        check_elapsed(name, gap.expand(1, len(u)) if gap.dim() == 0 else gap[None], 1, len(u), None)
        return gap.expand(len(u))[:, None]

    def sequence(
        self,
        u: Float[Tensor, "time batch input"],
        state: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        reverse: bool = False,
        elapsed: Float[Tensor, "time batch"] | None = None,
        resets: Bool[Tensor, "time batch"] | None = None,
    ) -> tuple[Float[Tensor, "time batch output"], State]:
        """Run over time on the kernel that `backend` selects; return the outputs of all steps and the final state.

        With `lengths`, each row stops at its own length: its outputs past the end are zero and its final state is
        the one at its end. With `reverse`, time runs backwards and each row starts at its own end.

        `elapsed` is the time from the previous observation to each one, where 1 is the usual step; in reverse, step t
        takes that of t + 1. `resets` marks where a new piece begins: the state restarts there from `init_state`.
        """
        if elapsed is not None and (reason := self.refuse_elapsed()) is not None:
            raise ValueError(f"`elapsed` of {type(self).__name__} must be None: {reason}.")
        fresh = state is None
        state = self.init_state(u.shape[1]) if state is None else state
        call = Call(self, u, state, lengths, reverse, elapsed, resets, fresh)
        self.before_sequence(call)
        if torch.jit.is_tracing():
            choose.check_tracer(type(self).__name__)
        elif torch.compiler.is_compiling() and choose.portable_requested():
            return scan(self, u, state, lengths, reverse, elapsed, resets)
        kernel, _ = choose.choose(call)
        if kernel is None:
            outputs, final = self.loop(u, state, lengths, reverse, elapsed, resets)
        else:
            outputs, fields = kernel.run(call)
            final = self.state_type(*fields)
        self.after_sequence(state, final)
        return outputs, final

    def loop(
        self,
        u: Float[Tensor, "time batch input"],
        state: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        reverse: bool = False,
        elapsed: Float[Tensor, "time batch"] | None = None,
        resets: Bool[Tensor, "time batch"] | None = None,
    ) -> tuple[Float[Tensor, "time batch output"], State]:
        """Run as `sequence` does, step by step in Python."""
        kept, final = self._steps(u, state, lengths, reverse, elapsed, resets, fields=(0,))
        return kept[0], final

    def trajectory(
        self,
        u: Float[Tensor, "time batch input"],
        state: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        reverse: bool = False,
        elapsed: Float[Tensor, "time batch"] | None = None,
        resets: Bool[Tensor, "time batch"] | None = None,
    ) -> tuple[State, State]:
        """Run as `loop` does; return every field of the state at all steps, and the final state."""
        fields = range(len(self.state_type._fields))
        kept, final = self._steps(u, state, lengths, reverse, elapsed, resets, fields)
        return self.state_type(*kept), final

    def _steps(
        self,
        u: Tensor,
        state: State | None,
        lengths: Tensor | None,
        reverse: bool,
        elapsed: Tensor | None,
        resets: Tensor | None,
        fields: Iterable[int],
    ) -> tuple[list[Tensor], State]:
        if elapsed is not None and (reason := self.refuse_elapsed()) is not None:
            raise ValueError(f"`elapsed` of {type(self).__name__} must be None: {reason}.")
        steps, batch = u.shape[:2]
        state = self.init_state(batch) if state is None else state
        alive: tuple[Tensor, ...] | None = None
        if lengths is not None:
            inside = torch.arange(steps, device=u.device)[:, None] < lengths.to(u.device)
            # Whatever stands in the padding, NaN included, must reach neither the outputs nor the gradients.
            u = u.masked_fill(~inside[:, :, None], 0.0)
            alive = inside[:, :, None].unbind(0)
        elapsed, resets = seen_by_steps(elapsed, resets, lengths, reverse)
        gaps = None if elapsed is None else elapsed.unbind(0)
        fresh = None if resets is None else self.init_state(batch)
        # unbind, not x[t]: the gradient of T separate selections would cost T full-size buffers.
        x = self.project(u).unbind(0)
        prepared = self.prepare(batch)
        kept: list[list[Tensor]] = [[] for _ in fields]
        for t in reversed(range(steps)) if reverse else range(steps):
            if resets is not None and fresh is not None:
                state = self.state_type(*(torch.where(resets[t], new, old) for new, old in zip(fresh, state)))
            timed = {} if gaps is None else {"elapsed": gaps[t]}
            after = self.step(x[t], state, *prepared, **timed)
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
        """Return the backend that a sequence like `u` would run on, and how it runs or why no kernel can run it."""
        return choose.backend_for(Call(self, u, self.init_state(u.shape[1]), fresh=True))

    # --- hooks: no-ops by default ----------------------------------------------------------------------------------

    def before_sequence(self, call: Call) -> None:
        """Raise if the cell cannot run this sequence on any backend."""

    def after_sequence(self, before: State, after: State) -> None:
        """Take note of a sequence that has run, from its initial and final states."""

    def param_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Return the optimiser's parameter groups: all parameters at one rate by default."""
        return [{"params": list(self.parameters()), "lr": learning_rate}]

    def penalty(self) -> Tensor | None:
        """Return a term the cell adds to the training loss, or None."""
        return None

    def after_update(self) -> None:
        """Restore a constraint after an optimiser step."""


def _wrong_state(u: Tensor, state: State, widths: tuple[int, ...]) -> str:
    """Return what is wrong with a state in the words of nn.LSTMCell, if it has words for it."""
    for k, (field, width) in enumerate(zip(state, widths)):
        if not isinstance(field, Tensor):
            return ""
        if field.dim() not in (1, 2, 3):
            return f"Expected hx[{k}] to be 1D or 2D, got {field.dim()}D instead. "
        if field.shape[-1] != width:
            return f"hidden{k} has inconsistent hidden_size: got {field.shape[-1]}, expected {width}. "
        if u.dim() == 2 and field.shape[0] != len(u):
            return f"Input batch size {len(u)} doesn't match hidden{k} batch size {field.shape[0]}. "
    return ""
