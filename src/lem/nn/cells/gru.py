"""GRU in torch's form."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from lem.kernels.torch_rnn import TorchKernel
from lem.nn.cells.base import Cell, Hidden, State
from lem.shapes import Float


class GRUCell(Cell):
    """Gated recurrent unit, one step: Cho et al. (2014), in the form torch computes.

        r = sigmoid(W_r h + V_r u + b_r)
        s = sigmoid(W_s h + V_s u + b_s)
        n = tanh(V_n u + b_n + r * (W_n h + b_hn))
        h = (1 - s) * n + s * h

    Parameters, with rows in torch's order r, s, n: weight_u (3d, m), weight_h (3d, d), bias (3d,), and with
    `two_biases` also bias_h (3d,), whose last part is b_hn. A sequence runs on torch's own kernel.

    Differs from the paper: the 2014 form applies r to h before the matrix; the sizes agree.

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d.
        bias: whether the affine maps have biases.
        two_biases: give each map a second bias, as nn.GRU does.
        backend: what runs whole sequences; see `lem.nn.cells.Cell`.
        device: where the parameters live.
        dtype: the type of the parameters.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import GRUCell
        >>> outputs, state = GRUCell(3, 8)(torch.randn(100, 4, 3))  # (time, batch, channels)
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 8]), ('h',))
    """

    kernels = (TorchKernel(torch.gru),)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        two_biases: bool = False,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, backend)
        if two_biases and not bias:
            raise ValueError("`bias` of GRUCell must be True if `two_biases` is given.")
        d = hidden_size
        self.weight_u = nn.Parameter(torch.empty(3 * d, input_size, device=device, dtype=dtype))
        self.weight_h = nn.Parameter(torch.empty(3 * d, d, device=device, dtype=dtype))
        for name, present in (("bias", bias), ("bias_h", two_biases)):
            value = nn.Parameter(torch.empty(3 * d, device=device, dtype=dtype)) if present else None
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
        """Compute V u + b of all three lines."""
        return functional.linear(u, self.weight_u, self.bias)

    def step(self, x: Float[Tensor, "batch k"], state: State, *prepared: Tensor) -> State:
        """Advance h."""
        (h,) = state
        r_u, s_u, n_u = x.chunk(3, dim=-1)
        r_h, s_h, n_h = functional.linear(h, self.weight_h, self.bias_h).chunk(3, dim=-1)
        r, s = torch.sigmoid(r_u + r_h), torch.sigmoid(s_u + s_h)
        return Hidden((1 - s) * torch.tanh(n_u + r * n_h) + s * h)

    def torch_weights(self) -> list[Tensor | None] | None:
        """Return the weights of nn.GRU."""
        return [self.weight_u, self.weight_h, self.bias, self.bias_h]
