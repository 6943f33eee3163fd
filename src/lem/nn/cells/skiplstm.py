"""Skip RNN with an LSTM inside: each sample learns which steps to leave out."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from lem.kernels.choose import Call
from lem.nn.cells.base import Cell, State, within
from lem.shapes import Float


class SkipLSTMState(NamedTuple):
    """The LSTM's `h` and `c`; the gate's `increment` and accumulated `pending`; the number of `updates` so far."""

    h: Tensor
    c: Tensor
    increment: Tensor
    pending: Tensor
    updates: Tensor


class SkipLSTMCell(Cell):
    """Skip LSTM, one step: Campos, Jou, Giro-i-Nieto, Torres and Chang (ICLR 2018).

        pending   = pending + min(increment, 1 - pending)
        g         = round(pending)                               for each sample; its gradient is taken as 1
        c', h'    = LSTM(u; c, h)                                with 1 added to the forget gate
        c, h      = g c' + (1 - g) c,  g h' + (1 - g) h
        increment = g sigmoid(w c' + b_w) + (1 - g) increment
        pending   = (1 - g) pending

    The increment starts at 1, so that the first step always updates. With `cost_per_update` the training loss gets
    that number times the mean number of updates of a sample.

    Parameters, LSTM rows in torch's order i, f, g, o: weight_u (4d, m), weight_h (4d, d), bias (4d,); weight_gate (d,)
    = w, bias_gate () = b_w; with `learn_initial_state` h_0 (d,) and c_0 (d,).

    Differs from the paper: the gate reads the LSTM's cell state, as in the authors' code; the initial state is zero
    unless `learn_initial_state` is set.

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d.
        bias: whether the LSTM's affine maps have biases.
        cost_per_update: the price of an update in the training loss.
        learn_initial_state: make h and c before the first step parameters, drawn from N(0, 1).
        backend: what runs whole sequences; see `lem.nn.cells.Cell`.
        device: where the parameters live.
        dtype: the type of the parameters.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import SkipLSTMCell
        >>> outputs, state = SkipLSTMCell(3, 8)(torch.randn(100, 4, 3))  # (time, batch, channels)
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 8]), ('h', 'c', 'increment', 'pending', 'updates'))
    """

    state_type = SkipLSTMState

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        cost_per_update: float = 0.0,
        learn_initial_state: bool = False,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, backend)
        self.cost_per_update = within(self, "cost_per_update", cost_per_update, "[0, inf)")
        d = hidden_size
        self.weight_u = nn.Parameter(torch.empty(4 * d, input_size, device=device, dtype=dtype))
        self.weight_h = nn.Parameter(torch.empty(4 * d, d, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(4 * d, device=device, dtype=dtype)) if bias else None
        self.weight_gate = nn.Parameter(torch.empty(d, device=device, dtype=dtype))
        self.bias_gate = nn.Parameter(torch.empty((), device=device, dtype=dtype))
        self.h_0 = nn.Parameter(torch.empty(d, device=device, dtype=dtype)) if learn_initial_state else None
        self.c_0 = nn.Parameter(torch.empty(d, device=device, dtype=dtype)) if learn_initial_state else None
        self._updates: Tensor | None = None
        self.reset_parameters()

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The width of each field of the state."""
        return (self.hidden_size, self.hidden_size, 1, 1, 1)

    def reset_parameters(self) -> None:
        """Draw the weights Glorot-uniform; the biases are 0, that of the gate is 1."""
        d, m = self.hidden_size, self.input_size
        bound = math.sqrt(6.0 / (m + d + 4 * d))
        with torch.no_grad():
            self.weight_u.uniform_(-bound, bound)
            self.weight_h.uniform_(-bound, bound)
            self.weight_gate.uniform_(-math.sqrt(6.0 / (d + 1)), math.sqrt(6.0 / (d + 1)))
            self.bias_gate.fill_(1.0)
            if self.bias is not None:
                self.bias.zero_()
            for p in (self.h_0, self.c_0):
                if p is not None:
                    p.normal_()

    def init_state(self, batch: int) -> State:
        """Return zeros, or the learned h and c; the gate's increment starts at 1."""
        h, c, increment, pending, updates = super().init_state(batch)
        if self.h_0 is not None and self.c_0 is not None:
            h, c = self.h_0.expand(batch, -1), self.c_0.expand(batch, -1)
        return SkipLSTMState(h, c, increment + 1.0, pending, updates)

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Compute V u + b of the LSTM."""
        return functional.linear(u, self.weight_u, self.bias)

    def step(self, x: Float[Tensor, "batch k"], state: State, *prepared: Tensor) -> State:
        """Advance the state, or keep it if the gate is shut."""
        h, c, increment, pending, updates = state
        pending = pending + torch.minimum(increment, 1 - pending)
        gate = pending.detach().round() + (pending - pending.detach())  # exactly 0 or 1, with the gradient of pending
        i, f, g, o = (x + functional.linear(h, self.weight_h)).chunk(4, dim=-1)
        c_new = torch.sigmoid(f + 1.0) * c + torch.sigmoid(i) * torch.tanh(g)
        h_new = torch.sigmoid(o) * torch.tanh(c_new)
        proposal = torch.sigmoid(c_new @ self.weight_gate[:, None] + self.bias_gate)
        return SkipLSTMState(
            gate * h_new + (1 - gate) * h,
            gate * c_new + (1 - gate) * c,
            gate * proposal + (1 - gate) * increment,
            (1 - gate) * pending,
            updates + gate,
        )

    def before_sequence(self, call: Call) -> None:
        """Refuse resets if updates are counted: a reset restarts the count."""
        if call.resets is not None and self.training and self.cost_per_update:
            raise ValueError(
                "`resets` of SkipLSTMCell must be None if `cost_per_update` is used in training: a reset "
                "restarts the count of updates."
            )

    def after_sequence(self, before: State, after: State) -> None:
        """Keep the number of updates for `penalty` if they have a price."""
        if self.training and self.cost_per_update:
            self._updates = (after[-1] - before[-1]).mean()

    def penalty(self) -> Tensor | None:
        """Return the price of the updates of the last training sequence, once."""
        updates, self._updates = self._updates, None
        return None if updates is None else self.cost_per_update * updates

    def __getstate__(self) -> dict[str, Any]:
        """Leave the graph of the last sequence behind: a copy has run nothing yet."""
        return {**self.__dict__, "_updates": None}
