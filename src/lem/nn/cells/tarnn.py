"""TARNN: a time-adaptive RNN that integrates an inner differential equation."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from lem.nn.cells.base import Cell, State, within
from lem.shapes import Float


class TARNNState(NamedTuple):
    """The output `h`, the last input as the cell uses it, `previous` = W_2 u, and the number of steps taken."""

    h: Tensor
    previous: Tensor
    steps: Tensor


class TARNNCell(Cell):
    """Time-adaptive RNN, one step: Kag and Saligrama (CVPR 2021), in the discrete form of the authors' code.

        g = sigmoid(U_g h + W_g u + b_g)
        a = U_2 h + W_1 u + W_2 u_previous + b_1,     q = B_1 u + B_2 h,     u_previous = u at the first step
        s = h;  K times:  s = (1 - alpha) s + alpha (relu(U_1 s + a) - s - h + q)
        h = (1 - g) * h + g * s

    and without `gate_outside`, the authors' other variant:  s = s + alpha g * (the same bracket), h = s.
    alpha is learned for each inner iteration and each of the first `length` steps; later steps share the last one.

    Parameters: weight_u (4d, m) = W_g, W_1, W_2, B_1; weight_h (3d, d) = U_g, U_2, B_2; weight_s (d, d) = U_1; bias
    (2d,) = b_g, b_1; alpha (K, length).

    Differs from the paper: the released discretisation, which has more matrices than the paper's equation; it is
    the one whose size the LEM paper quotes. Its unused bias b_2 is left out.

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d.
        bias: whether gate and bracket have biases.
        iterations: the number K of inner iterations.
        length: the number of steps with a separate alpha; the length of the sequences in the authors' code.
        gate_outside: whether the gate acts after the inner iterations (the authors' `b_variant`) or inside them.
        backend: what runs whole sequences; see `lem.nn.cells.Cell`.
        device: where the parameters live.
        dtype: the type of the parameters.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import TARNNCell
        >>> outputs, state = TARNNCell(3, 8, iterations=2)(torch.randn(100, 4, 3))  # (time, batch, channels)
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 8]), ('h', 'previous', 'steps'))
    """

    state_type = TARNNState

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        iterations: int = 1,
        length: int = 1,
        gate_outside: bool = True,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, backend)
        self.iterations = int(within(self, "iterations", iterations, "[1, inf)"))
        self.length = int(within(self, "length", length, "[1, inf)"))
        self.gate_outside = gate_outside
        d = hidden_size
        self.weight_u = nn.Parameter(torch.empty(4 * d, input_size, device=device, dtype=dtype))
        self.weight_h = nn.Parameter(torch.empty(3 * d, d, device=device, dtype=dtype))
        self.weight_s = nn.Parameter(torch.empty(d, d, device=device, dtype=dtype))
        self.alpha = nn.Parameter(torch.empty(self.iterations, self.length, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(2 * d, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The width of each field of the state."""
        return (self.hidden_size, self.hidden_size, 1)

    def reset_parameters(self) -> None:
        """Draw the matrices from N(0, 0.1^2); alpha = 0.01, b_1 = 0, b_g = -3 (0 for the other variant)."""
        with torch.no_grad():
            for p in (self.weight_u, self.weight_h, self.weight_s):
                p.normal_(0.0, 0.1)
            self.alpha.fill_(0.01)
            if self.bias is not None:
                self.bias.zero_()
                if self.gate_outside:
                    self.bias[: self.hidden_size] = -3.0

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Compute the parts of g, a and q that come from the input, and W_2 u for the next step."""
        x = functional.linear(u, self.weight_u)
        return x if self.bias is None else x + functional.pad(self.bias, (0, 2 * self.hidden_size))

    def step(self, x: Float[Tensor, "batch k"], state: State, *prepared: Tensor) -> State:
        """Advance h by K inner iterations."""
        h, previous, steps = state
        g_u, a_u, now, q_u = x.chunk(4, dim=-1)
        g_h, a_h, q_h = functional.linear(h, self.weight_h).chunk(3, dim=-1)
        taken = steps.detach().round()
        g = torch.sigmoid(g_u + g_h)
        a = a_u + a_h + torch.where(taken == 0, now, previous)
        q = q_u + q_h
        alphas = self.alpha[:, taken.long().clamp(max=self.length - 1)]  # (K, batch, 1)
        s = h
        for alpha in alphas:
            bracket = torch.relu(functional.linear(s, self.weight_s) + a) - s - h + q
            s = (1 - alpha) * s + alpha * bracket if self.gate_outside else s + alpha * g * bracket
        if self.gate_outside:
            s = (1 - g) * h + g * s
        return TARNNState(s, now, steps + 1)
