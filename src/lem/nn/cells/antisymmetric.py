"""The anti-symmetric RNN, gated and ungated."""

import math

import torch
from torch import Tensor, nn

from lem.kernels.cpu import coupled
from lem.kernels.cpu.affine import affine
from lem.kernels.cpu.coupled import CoupledKernel
from lem.nn.cells.base import Hidden, State, within
from lem.nn.cells.pointwise import PointwiseCell
from lem.nn.cells.skew import free_numbers, skew_matrix
from lem.shapes import Float


class AntisymmetricCell(PointwiseCell):
    """AntisymmetricRNN, one step: Chang, Chen, Haber and Chi (ICLR 2019).

        K = W - W^T - gamma I                                      with eigenvalues of real part -gamma
        h = h + epsilon * g * tanh(K h + V_h u + b_h)
        g = sigmoid(K h + V_g u + b_g) if gated, 1 otherwise       the same K

    Parameters: skew (d(d-1)/2,) the upper triangle of W - W^T; weight_u (d, m) and bias (d,), twice as many rows
    if gated, V_h first.

    Differs from the paper: none.

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d.
        bias: whether the affine maps have biases.
        gated: whether the increment is gated.
        epsilon: the step of the Euler scheme.
        gamma: the diffusion that damps the scheme.
        sigma_w: W starts as N(0, sigma_w^2 / d).
        backend: what runs whole sequences; see `lem.nn.cells.Cell`.
        device: where the parameters live.
        dtype: the type of the parameters.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import AntisymmetricCell
        >>> outputs, state = AntisymmetricCell(3, 8, gated=True)(torch.randn(100, 4, 3))  # (time, batch, channels)
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 8]), ('h',))
    """

    kernels = (CoupledKernel(coupled.RESIDUAL, unless="gated"),)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        gated: bool = False,
        epsilon: float = 0.1,
        gamma: float = 0.01,
        sigma_w: float = 1.0,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, backend)
        self.gated = gated
        self.epsilon = within(self, "epsilon", epsilon, "(0, inf)")
        self.gamma = within(self, "gamma", gamma, "[0, inf)")
        self.sigma_w = within(self, "sigma_w", sigma_w, "[0, inf)")
        d, rows = hidden_size, (2 if gated else 1) * hidden_size
        self.skew = nn.Parameter(torch.empty(free_numbers(d), device=device, dtype=dtype))
        self.weight_u = nn.Parameter(torch.empty(rows, input_size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(rows, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw W from N(0, sigma_w^2 / d) and V from N(0, 1 / m); the biases start at zero."""
        with torch.no_grad():
            self.skew.normal_(0.0, self.sigma_w / math.sqrt(self.hidden_size))
            self.weight_u.normal_(0.0, 1.0 / math.sqrt(self.input_size))
            if self.bias is not None:
                self.bias.zero_()

    def prepare(self, batch: int) -> tuple[Tensor, ...]:
        """Build K, once for each gate."""
        d = self.hidden_size
        eye = torch.eye(d, device=self.skew.device, dtype=self.skew.dtype)
        K = skew_matrix(self.skew, d) - self.gamma * eye
        return (torch.cat((K, K)).T if self.gated else K.T,)

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Compute V u + b."""
        return affine(u, self.weight_u, self.bias)

    def constants(self, *rest: Tensor) -> Float[Tensor, "constants hidden"]:
        """Return the weights of the increment and of h; they are not parameters."""
        return self.weight_u.new_tensor((self.epsilon, 1.0))[:, None].expand(-1, self.hidden_size)

    def pointwise(
        self,
        a: Float[Tensor, "batch k"],
        state: State,
        *rest: Tensor,
        elapsed: Float[Tensor, "batch 1"] | None = None,
    ) -> State:
        """Advance h by one Euler step; `elapsed` multiplies epsilon."""
        (h,) = state
        a_h, *a_g = a.chunk(2 if self.gated else 1, dim=-1)
        increment = torch.tanh(a_h)
        if self.gated:
            increment = torch.sigmoid(a_g[0]) * increment
        return Hidden(h + (self.epsilon if elapsed is None else self.epsilon * elapsed) * increment)
