"""LSTM, its chrono initialisation and the paper's two dt-LSTMs."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lem.kernels.cpu import coupled
from lem.kernels.cpu.affine import affine
from lem.kernels.cpu.coupled import CoupledKernel
from lem.kernels.torch_rnn import TorchKernel
from lem.nn.cells.base import State, within
from lem.nn.cells.pointwise import PointwiseCell
from lem.shapes import Float

LARGE = 769
"""The number of units from which torch's kernel is faster than the C++ kernel (docs/kernel.md)."""


class LSTMState(NamedTuple):
    """The hidden state `h`, which is the output, and the cell state `c`."""

    h: Tensor
    c: Tensor


class LSTMCell(PointwiseCell):
    """Long short-term memory, one step: Hochreiter and Schmidhuber (1997) with the forget gate of Gers et al. (2000).

        i, f, o = sigmoid(W h + V u + b)          each with its own W, V, b
        g       = tanh(W_g h + V_g u + b_g)
        c       = forget_scale * f * c + input_scale * i * g
        h       = o * tanh(c)

    Parameters, with rows in torch's order i, f, g, o: weight_u (4d, m), weight_h (4d, d), bias (4d,), and with
    `two_biases` also bias_h (4d,). Sequences that the C++ kernel cannot run use torch's kernel, or the loop if a gate
    is scaled.

    Differs from the paper: none. (nn.LSTM has two biases where the equation has one; see `two_biases`.)

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d.
        bias: whether the affine maps have biases.
        two_biases: give each gate a second bias, as nn.LSTM does.
        t_max: initialise by the chrono rule of Tallec and Ollivier (2018) for memories of up to `t_max` steps:
            b_f = log U[1, t_max - 1], b_i = -b_f, all other biases zero.
        forget_bias: the bias of the forget gate at the start; None draws it like the other biases, as nn.LSTM does.
            With 1.0, the rule of Jozefowicz et al. (2015), a new LSTM keeps its cell state for longer.
        forget_scale: the factor of the forget gate.
        input_scale: the factor of the input gate.
        backend: what runs whole sequences; see `lem.nn.cells.Cell`.
        device: where the parameters live.
        dtype: the type of the parameters.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import LSTMCell
        >>> outputs, state = LSTMCell(3, 8, t_max=100.0)(torch.randn(100, 4, 3))  # (time, batch, channels)
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 8]), ('h', 'c'))
    """

    state_type = LSTMState
    kernels = (
        TorchKernel(torch.lstm, least_units=LARGE),
        CoupledKernel(coupled.LSTM),
        TorchKernel(torch.lstm),
    )

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        two_biases: bool = False,
        t_max: float | None = None,
        forget_bias: float | None = None,
        forget_scale: float = 1.0,
        input_scale: float = 1.0,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, backend)
        self.t_max = None if t_max is None else within(self, "t_max", t_max, "(2, inf)")
        self.forget_bias = None if forget_bias is None else within(self, "forget_bias", forget_bias, "(-inf, inf)")
        self.forget_scale = within(self, "forget_scale", forget_scale, "[0, 1]")
        self.input_scale = within(self, "input_scale", input_scale, "[0, 1]")
        if not bias and (two_biases or t_max is not None or forget_bias is not None):
            raise ValueError("`bias` of LSTMCell must be True if `two_biases`, `t_max` or `forget_bias` is given.")
        if t_max is not None and forget_bias is not None:
            raise ValueError("`forget_bias` of LSTMCell must be None if `t_max` is given, which draws the same biases.")
        d = hidden_size
        self.weight_u = nn.Parameter(torch.empty(4 * d, input_size, device=device, dtype=dtype))
        self.weight_h = nn.Parameter(torch.empty(4 * d, d, device=device, dtype=dtype))
        for name, present in (("bias", bias), ("bias_h", two_biases)):
            value = nn.Parameter(torch.empty(4 * d, device=device, dtype=dtype)) if present else None
            self.register_parameter(name, value)
        self.bias: nn.Parameter | None
        self.bias_h: nn.Parameter | None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights uniform in +-1/sqrt(d) as torch does; `t_max` and `forget_bias` set biases."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        with torch.no_grad():
            for p in self.parameters():
                p.uniform_(-bound, bound)
            if self.t_max is not None and self.bias is not None:
                for b in (self.bias, self.bias_h):
                    if b is not None:
                        b.zero_()
                # 1 / (1 - f) = 1 + U then spreads over [2, t_max] steps.
                i, f, *_ = self.bias.chunk(4)
                f.uniform_(1.0, self.t_max - 1.0).log_()
                i.copy_(-f)
            if self.forget_bias is not None and self.bias is not None:
                self.bias.chunk(4)[1].fill_(self.forget_bias)
                if self.bias_h is not None:
                    self.bias_h.chunk(4)[1].zero_()

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Compute V u + b of all four gates."""
        bias = self.bias if self.bias_h is None or self.bias is None else self.bias + self.bias_h
        return affine(u, self.weight_u, bias)

    def prepare(self, batch: int) -> tuple[Tensor, ...]:
        """Transpose W."""
        return (self.weight_h.T,)

    def pointwise(self, a: Float[Tensor, "batch k"], state: State, *rest: Tensor) -> State:
        """Advance (h, c)."""
        c = state[1]
        i, f, g, o = a.chunk(4, dim=-1)
        keep, write = self.forget_scale * torch.sigmoid(f), self.input_scale * torch.sigmoid(i)
        c = keep * c + write * torch.tanh(g)
        return LSTMState(torch.sigmoid(o) * torch.tanh(c), c)

    def constants(self, *rest: Tensor) -> Float[Tensor, "constants hidden"]:
        """Return the factors of the two gates for every unit."""
        scales = self.weight_h.new_tensor([self.forget_scale, self.input_scale])
        return scales[:, None].expand(2, self.hidden_size)

    def torch_weights(self) -> list[Tensor | None] | None:
        """Return the weights of nn.LSTM, which has no scaled gates."""
        if self.forget_scale != 1.0 or self.input_scale != 1.0:
            return None
        return [self.weight_u, self.weight_h, self.bias, self.bias_h]


def dt_lstm_v1(
    input_size: int,
    hidden_size: int,
    bias: bool = True,
    *,
    dt: float = 0.5,
    backend: str = "auto",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> LSTMCell:
    """Return the paper's first dt-LSTM: both the forget and the input gate are multiplied by `dt`.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import dt_lstm_v1
        >>> outputs, state = dt_lstm_v1(3, 8, dt=0.1)(torch.randn(100, 4, 3))  # (time, batch, channels)
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 8]), ('h', 'c'))
    """
    dt = within("dt-lstm-v1", "dt", dt, "(0, 1]")
    return LSTMCell(
        input_size, hidden_size, bias, forget_scale=dt, input_scale=dt, backend=backend, device=device, dtype=dtype
    )


def dt_lstm_v2(
    input_size: int,
    hidden_size: int,
    bias: bool = True,
    *,
    dt: float = 0.5,
    backend: str = "auto",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> LSTMCell:
    """Return the paper's second dt-LSTM: the forget gate is multiplied by 1 - `dt`, the input gate by `dt`.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import dt_lstm_v2
        >>> outputs, state = dt_lstm_v2(3, 8, dt=0.1)(torch.randn(100, 4, 3))  # (time, batch, channels)
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 8]), ('h', 'c'))
    """
    dt = within("dt-lstm-v2", "dt", dt, "(0, 1)")
    return LSTMCell(
        input_size,
        hidden_size,
        bias,
        forget_scale=1.0 - dt,
        input_scale=dt,
        backend=backend,
        device=device,
        dtype=dtype,
    )
