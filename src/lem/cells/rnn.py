"""The plain recurrent network with tanh."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from lem.cells.base import Cell, Hidden, State
from lem.cells.torch_kernels import run_kernel
from lem.shapes import Float, Int


class RNNCell(Cell):
    """The tanh-RNN, one step: Elman (1990).

        h = tanh(W h + V u + b)

    Parameters: weight_u (d, m), weight_h (d, d), bias (d,), and with `two_biases` also bias_h (d,). A sequence runs
    on torch's own kernel.

    Differs from the paper: none.

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d.
        bias: whether the affine map has a bias.
        two_biases: give it a second bias, as nn.RNN does.
        device: where the parameters live.
        dtype: the type of the parameters.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        two_biases: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        if two_biases and not bias:
            raise ValueError("`bias` of RNNCell must be True where `two_biases` is given.")
        d = hidden_size
        self.weight_u = nn.Parameter(torch.empty(d, input_size, device=device, dtype=dtype))
        self.weight_h = nn.Parameter(torch.empty(d, d, device=device, dtype=dtype))
        for name, present in (("bias", bias), ("bias_h", two_biases)):
            value = nn.Parameter(torch.empty(d, device=device, dtype=dtype)) if present else None
            self.register_parameter(name, value)
        self.bias: nn.Parameter | None
        self.bias_h: nn.Parameter | None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights uniform in +-1/sqrt(d) as torch does."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        with torch.no_grad():
            for p in self.parameters():
                p.uniform_(-bound, bound)

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Compute V u + b."""
        return functional.linear(u, self.weight_u, self.bias)

    def step(self, x: Float[Tensor, "batch k"], state: State, *prepared: Tensor) -> State:
        """Advance h."""
        (h,) = state
        return Hidden(torch.tanh(x + functional.linear(h, self.weight_h, self.bias_h)))

    def sequence(
        self,
        u: Float[Tensor, "time batch input"],
        state: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        reverse: bool = False,
    ) -> tuple[Float[Tensor, "time batch output"], State]:
        """Run over time on torch's kernel."""
        weights = [self.weight_u, self.weight_h, self.bias, self.bias_h]
        return run_kernel(torch.rnn_tanh, self, weights, u, state, lengths, reverse)
