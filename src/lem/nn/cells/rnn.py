"""The plain recurrent network with tanh."""

import math

import torch
from torch import Tensor, nn

from lem.kernels.cpu import coupled
from lem.kernels.cpu.affine import affine
from lem.kernels.cpu.coupled import CoupledKernel
from lem.kernels.torch_rnn import TorchKernel
from lem.nn.cells.base import Hidden, State
from lem.nn.cells.pointwise import PointwiseCell
from lem.shapes import Float


class RNNCell(PointwiseCell):
    """The tanh-RNN, one step: Elman (1990).

        h = tanh(W h + V u + b)

    Parameters: weight_u (d, m), weight_h (d, d), bias (d,), and with `two_biases` also bias_h (d,). Where our
    kernel cannot run a sequence, torch's does.

    Differs from the paper: none.

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d.
        bias: whether the affine map has a bias.
        two_biases: give it a second bias, as nn.RNN does.
        backend: what runs whole sequences; see `lem.nn.cells.Cell`.
        device: where the parameters live.
        dtype: the type of the parameters.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import RNNCell
        >>> outputs, state = RNNCell(3, 8)(torch.randn(100, 4, 3))  # (time, batch, channels)
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 8]), ('h',))
    """

    kernels = (CoupledKernel(coupled.RESIDUAL), TorchKernel(torch.rnn_tanh))

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
            raise ValueError("`bias` of RNNCell must be True if `two_biases` is given.")
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
        bias = self.bias if self.bias_h is None or self.bias is None else self.bias + self.bias_h
        return affine(u, self.weight_u, bias)

    def prepare(self, batch: int) -> tuple[Tensor, ...]:
        """Transpose W."""
        return (self.weight_h.T,)

    def pointwise(self, a: Float[Tensor, "batch k"], state: State, *rest: Tensor) -> State:
        """Advance h."""
        return Hidden(torch.tanh(a))

    def constants(self, *rest: Tensor) -> Float[Tensor, "constants hidden"]:
        """Return what the kernel multiplies tanh(a) and the old h with: 1 and 0."""
        return self.weight_h.new_tensor([1.0, 0.0])[:, None].expand(2, self.hidden_size)

    def torch_weights(self) -> list[Tensor | None] | None:
        """Return the weights of nn.RNN."""
        return [self.weight_u, self.weight_h, self.bias, self.bias_h]
