"""NRDE: a neural rough differential equation, driven by the log-signature of windows of its input."""

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from lem.kernels.choose import Call, Kernel, Reason
from lem.nn.cells.base import Cell, State, within
from lem.shapes import Float


class NRDEState(NamedTuple):
    """The output `h`, the last input `sample`, the `signature` since the last window's end, the `steps` taken."""

    h: Tensor
    sample: Tensor
    signature: Tensor
    steps: Tensor


class WindowsKernel(Kernel):
    """Compute the log-signatures of all windows at once, in operations of torch."""

    backend = "torch"
    computes = ("project", "step", "init_state", "all_windows")

    def refuse(self, call: Call) -> Reason | None:
        """Refuse calls in which windows begin at different steps in different rows or before the sequence."""
        if not call.fresh:
            return Reason("initial state", "the windows of a continued sequence begin before it")
        if call.lengths is not None:
            return Reason("lengths", "the windows of rows of unequal length end at different steps")
        return None

    def describe(self, call: Call) -> str:
        """Say what is done at once."""
        return "all windows at once"

    def run(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run over all windows of the sequence, reversed if the call asks for it."""
        out, final = call.cell.all_windows(call.u.flip(0) if call.reverse else call.u)
        return (out.flip(0) if call.reverse else out), final


class NRDECell(Cell):
    """Neural rough differential equation: Morrill, Salvi, Kidger and Foster (ICML 2021).

        path     X = (time, u) with C = m + 1 channels; time grows by 1 / (length - 1) a sample
        start    h = L X_0 + b
        window   of `window` steps, ends shared; l = its log-signature to `depth`, of D entries
        at its end   h <- the solution at 1 of  dh/ds = F(h) l,  h(0) = h,  by one step of the solver
        F(h)     = a d x D matrix: Linear(tanh(Linear(relu(... Linear(h)))))

    Between the ends of windows the output is held, and samples after the last full window have no effect on it, so
    that the outputs are as many as the inputs and a sequence may be cut anywhere: the state carries the open window.
    The log-signature is given by the coefficients of the Lyndon words in the tensor algebra.

    Parameters: start (d, C) and (d,) = L, b; field, the `layers` + 1 affine maps of F, `inner_size` wide.

    Differs from the paper: each layer of F has its own weights (the authors' code shares one among all inner layers,
    which for two layers is the same) and every window is applied once (their code applies the last one twice).

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d.
        window: the number of steps of a window.
        depth: the depth of the log-signature, 1, 2 or 3.
        inner_size: the width of F's inner layers; 3 d by default.
        layers: the number of F's inner layers.
        length: the number of samples over which time runs from 0 to 1; the length of the sequences.
        solver: "rk4" or "midpoint".
        final_rate: the learning rate of F's last map as a multiple of that of the other parameters.
        backend: what runs whole sequences; see `lem.nn.cells.Cell`.
        device: where the parameters live.
        dtype: the type of the parameters.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import NRDECell
        >>> outputs, state = NRDECell(3, 8, window=4, length=100)(torch.randn(100, 4, 3))  # (time, batch, channels)
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 8]), ('h', 'sample', 'signature', 'steps'))
    """

    kernels = (WindowsKernel(),)
    state_type = NRDEState
    words_2: Tensor
    words_3: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        window: int = 4,
        depth: int = 2,
        inner_size: int | None = None,
        layers: int = 2,
        length: int = 1000,
        solver: str = "rk4",
        final_rate: float = 10.0,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, backend)
        if depth not in (1, 2, 3):
            raise ValueError(f"`depth` of NRDECell must be 1, 2 or 3; got {depth!r}.")
        if solver not in ("rk4", "midpoint"):
            raise ValueError(f"`solver` of NRDECell must be 'rk4' or 'midpoint'; got {solver!r}.")
        self.window = int(within(self, "window", window, "[1, inf)"))
        self.layers = int(within(self, "layers", layers, "[1, inf)"))
        self.length = int(within(self, "length", length, "[2, inf)"))
        self.final_rate = within(self, "final_rate", final_rate, "(0, inf)")
        self.depth = depth
        self.solver = solver
        self.channels = input_size + 1
        inner = 3 * hidden_size if inner_size is None else int(within(self, "inner_size", inner_size, "[1, inf)"))
        for level in (2, 3):
            words = lyndon_words(self.channels, level) if level <= depth else []
            self.register_buffer(
                f"words_{level}", torch.tensor(words, dtype=torch.long, device=device), persistent=False
            )
        self.entries = self.channels + len(self.words_2) + len(self.words_3)
        widths = [hidden_size, *[inner] * self.layers, hidden_size * self.entries]
        self.start = nn.Linear(self.channels, hidden_size, device=device, dtype=dtype)
        self.field = nn.ModuleList(
            nn.Linear(before, after, device=device, dtype=dtype) for before, after in itertools.pairwise(widths)
        )

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The width of each field of the state."""
        signature = sum(self.channels**level for level in range(1, self.depth + 1))
        return (self.hidden_size, self.input_size, signature, 1)

    def reset_parameters(self) -> None:
        """Draw all weights as torch's linear maps do."""
        for linear in (self.start, *self.field):
            linear.reset_parameters()

    # --- one sample at a time ---------------------------------------------------------------------------------------

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Return the input itself: what a window needs of it depends on where the window began."""
        return u

    def step(self, x: Float[Tensor, "batch k"], state: State, *prepared: Tensor) -> State:
        """Extend the open window by one sample; at its end, advance h."""
        h, sample, signature, steps = state
        seen = steps.detach().round()
        first = seen == 0
        if bool(first.any()):
            h = torch.where(first, self.start(functional.pad(x, (1, 0))), h)
        increment = functional.pad(x - sample, (1, 0), value=self._time_step)
        signature = torch.where(first, signature, self._extend(signature, increment))
        ended = ~first & (seen % self.window == 0)
        if bool(ended.any()):
            h = torch.where(ended, self._advance(h, self._log(signature)), h)
            signature = torch.where(ended, torch.zeros_like(signature), signature)
        return NRDEState(h, x, signature, steps + 1)

    # --- all windows at once ----------------------------------------------------------------------------------------

    def all_windows(self, u: Float[Tensor, "time batch input"]) -> tuple[Float[Tensor, "time batch output"], NRDEState]:
        """Run over whole rows from the initial state, with the log-signatures of all windows at once."""
        steps, batch = u.shape[:2]
        count = (steps - 1) // self.window
        increments = functional.pad(u.diff(dim=0), (1, 0), value=self._time_step)
        windows = increments[: count * self.window].unflatten(0, (count, self.window)) if count else increments[:0]
        h = self.start(functional.pad(u[0], (1, 0)))
        ends = [h]
        if count:
            signature = u.new_zeros(count, batch, self.state_sizes[2])
            for increment in windows.unbind(1):
                signature = self._extend(signature, increment)
            for logsignature in self._log(signature).unbind(0):
                h = self._advance(h, logsignature)
                ends.append(h)
        signature = u.new_zeros(batch, self.state_sizes[2])
        for increment in increments[count * self.window :]:
            signature = self._extend(signature, increment)
        out = torch.stack(ends)[torch.arange(steps, device=u.device) // self.window]
        return out, NRDEState(h, u[-1], signature, u.new_full((batch, 1), steps))

    # --- the mathematics ----------------------------------------------------------------------------------------------

    @property
    def _time_step(self) -> float:
        return 1.0 / (self.length - 1)

    def _levels(self, signature: Tensor) -> list[Tensor]:
        """Cut the flat signature into its levels, of shapes (C,), (C, C) and (C, C, C)."""
        sizes = [self.channels**level for level in range(1, self.depth + 1)]
        parts = signature.split(sizes, dim=-1)
        return [part.unflatten(-1, (self.channels,) * (k + 1)) for k, part in enumerate(parts)]

    def _extend(self, signature: Tensor, increment: Tensor) -> Tensor:
        """Multiply the signature by that of one straight piece (Chen's rule)."""
        levels, d = self._levels(signature), increment
        new = [levels[0] + d]
        if self.depth > 1:
            new.append(levels[1] + (levels[0] + d / 2)[..., None] * d[..., None, :])
        if self.depth > 2:
            inner = levels[1] + (levels[0] / 2 + d / 6)[..., None] * d[..., None, :]
            new.append(levels[2] + inner[..., None] * d[..., None, None, :])
        return torch.cat([level.flatten(increment.dim() - 1) for level in new], dim=-1)

    def _log(self, signature: Tensor) -> Tensor:
        """Return the coefficients of the Lyndon words in the logarithm of the signature."""
        levels = self._levels(signature)
        s1 = levels[0]
        parts = [s1]
        if self.depth > 1:
            s2, s11 = levels[1], s1[..., :, None] * s1[..., None, :]
            i, j = self.words_2.T
            parts.append((s2 - s11 / 2)[..., i, j])
        if self.depth > 2:
            left, right = s2[..., None] * s1[..., None, None, :], s1[..., :, None, None] * s2[..., None, :, :]
            s111 = s11[..., None] * s1[..., None, None, :]
            i, j, k = self.words_3.T
            parts.append((levels[2] - (left + right) / 2 + s111 / 3)[..., i, j, k])
        return torch.cat(parts, dim=-1)

    def _advance(self, h: Tensor, logsignature: Tensor) -> Tensor:
        """Solve dh/ds = F(h) l over one window by one step."""

        def slope(h: Tensor) -> Tensor:
            *inner, last = self.field
            for k, linear in enumerate(inner):
                h = linear(h)
                h = torch.tanh(h) if k == len(inner) - 1 else torch.relu(h)
            matrix = last(h).unflatten(-1, (self.hidden_size, self.entries))
            return (matrix @ logsignature[..., None])[..., 0]

        k1 = slope(h)
        k2 = slope(h + k1 / 2)
        if self.solver == "midpoint":
            return h + k2
        k3 = slope(h + k2 / 2)
        k4 = slope(h + k3)
        return h + (k1 + 2 * k2 + 2 * k3 + k4) / 6

    def param_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Return F's last map at its own, larger rate, and the rest."""
        final = list(self.field[-1].parameters())
        others = [p for p in self.parameters() if all(p is not q for q in final)]
        return [
            {"params": others, "lr": learning_rate},
            {"params": final, "lr": learning_rate * self.final_rate},
        ]


def lyndon_words(letters: int, length: int) -> list[tuple[int, ...]]:
    """Return the words smaller than all their own rotations, in order."""
    words = itertools.product(range(letters), repeat=length)
    return [word for word in words if all(word < word[k:] + word[:k] for k in range(1, length))]
