"""nnRNN: a non-normal recurrent matrix in Schur form."""

from typing import Any

import torch
from torch import Tensor, nn

from lem.kernels.cpu import coupled
from lem.kernels.cpu.affine import affine
from lem.kernels.cpu.coupled import CoupledKernel
from lem.nn.cells.base import Hidden, State, within
from lem.nn.cells.pointwise import PointwiseCell
from lem.nn.cells.skew import free_numbers, initial_rotations, modrelu, orthogonal_matrix
from lem.shapes import Float


class NNRNNCell(PointwiseCell):
    """Non-normal RNN, one step: Kerg, Goyette et al. (NeurIPS 2019).

        W = P S P^T,  P = exp(skew) orthogonal,  S = blockdiag(gamma_i Rot(theta_i)) + T
        h = modrelu(W h + V u, b)
        loss += delta sum_i (gamma_i - 1)^2

    T is strictly upper triangular by 2 x 2 blocks, so that the eigenvalues of W are gamma_i exp(+-i theta_i).

    Parameters: skew (d(d-1)/2,) of P; gamma (d/2,); theta (d/2,); upper (d(d-2)/2,) = T row by row; weight_u (d, m)
    = V; bias (d,) = b.

    Differs from the paper: none. (The authors' code lets T overlap the rotation blocks, which changes the moduli of
    the eigenvalues and has d/2 entries more.)

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d, even.
        init: how the angles of P are drawn, "cayley" or "henaff" (see `lem.nn.cells.skew.initial_rotations`).
        delta: the weight of the penalty on the moduli gamma.
        upper_decay: the weight decay of T.
        orthogonal_rate: the learning rate of P as a share of that of the other parameters.
        backend: what runs whole sequences; see `lem.nn.cells.Cell`.
        device: where the parameters live.
        dtype: the type of the parameters.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import NNRNNCell
        >>> outputs, state = NNRNNCell(3, 8)(torch.randn(100, 4, 3))  # (time, batch, channels)
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 8]), ('h',))
    """

    kernels = (CoupledKernel(coupled.MODRELU),)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        init: str = "henaff",
        delta: float = 1e-4,
        upper_decay: float = 1e-5,
        orthogonal_rate: float = 0.1,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, backend)
        if hidden_size % 2:
            raise ValueError(f"`hidden_size` of NNRNNCell must be even (2 x 2 blocks); got {hidden_size}.")
        self.init = init
        self.delta = within(self, "delta", delta, "[0, inf)")
        self.upper_decay = within(self, "upper_decay", upper_decay, "[0, inf)")
        self.orthogonal_rate = within(self, "orthogonal_rate", orthogonal_rate, "(0, inf)")
        d = hidden_size
        self.weight_u = nn.Parameter(torch.empty(d, input_size, device=device, dtype=dtype))
        self.skew = nn.Parameter(torch.empty(free_numbers(d), device=device, dtype=dtype))
        self.gamma = nn.Parameter(torch.empty(d // 2, device=device, dtype=dtype))
        self.theta = nn.Parameter(torch.empty(d // 2, device=device, dtype=dtype))
        self.upper = nn.Parameter(torch.empty(d * (d - 2) // 2, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(d, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start at a random rotation: theta ~ U(0, 2 pi), gamma = 1, T = 0, P by `init`; V ~ N(0, 2 / m)."""
        with torch.no_grad():
            self.weight_u.normal_(0.0, (2.0 / self.input_size) ** 0.5)
            self.skew.copy_(initial_rotations(self.hidden_size, self.init))
            self.gamma.fill_(1.0)
            self.theta.uniform_(0.0, 2.0 * torch.pi)
            self.upper.zero_()
            self.bias.uniform_(-0.01, 0.01)

    def recurrent_matrix(self) -> Float[Tensor, "d d"]:
        """Return W."""
        d, device = self.hidden_size, self.gamma.device
        first = torch.arange(0, d, 2, device=device)
        block = torch.arange(d, device=device) // 2
        rows, columns = (block[:, None] < block).nonzero(as_tuple=True)
        real, imaginary = self.gamma * torch.cos(self.theta), self.gamma * torch.sin(self.theta)
        S = self.gamma.new_zeros(d, d).index_put(
            (
                torch.cat([rows, first, first + 1, first, first + 1]),
                torch.cat([columns, first, first + 1, first + 1, first]),
            ),
            torch.cat([self.upper, real, real, -imaginary, imaginary]),
        )
        P = orthogonal_matrix(self.skew, d)
        return P @ S @ P.T

    def prepare(self, batch: int) -> tuple[Tensor, ...]:
        """Build W, transposed."""
        return self.recurrent_matrix().T, self.bias

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Compute V u."""
        return affine(u, self.weight_u)

    def constants(self, *rest: Tensor) -> Float[Tensor, "constants hidden"]:
        """Return b."""
        return rest[0][None]

    def pointwise(self, a: Float[Tensor, "batch k"], state: State, *rest: Tensor) -> State:
        """Advance h."""
        return Hidden(modrelu(a, rest[0]))

    def param_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Return P at its own, smaller rate, T with its decay, and the rest."""
        others = [p for p in self.parameters() if p is not self.skew and p is not self.upper]
        return [
            {"params": others, "lr": learning_rate},
            {"params": [self.skew], "lr": learning_rate * self.orthogonal_rate},
            {"params": [self.upper], "lr": learning_rate, "weight_decay": self.upper_decay},
        ]

    def penalty(self) -> Tensor | None:
        """Return delta * sum (gamma - 1)^2, which keeps the moduli of the eigenvalues near 1."""
        return self.delta * ((self.gamma - 1.0) ** 2).sum() if self.delta else None
