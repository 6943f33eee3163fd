"""FastRNN and FastGRNN: a plain RNN with a weighted residual connection, and its gated form."""

import torch
from torch import Tensor, nn

from lem.kernels.cpu import coupled
from lem.kernels.cpu.affine import affine
from lem.kernels.cpu.coupled import CoupledKernel
from lem.nn.cells.base import Hidden, State
from lem.nn.cells.pointwise import PointwiseCell
from lem.shapes import Float


class FastRNNCell(PointwiseCell):
    """FastRNN, one step: Kusupati, Singh, Bhatia, Kumar, Jain and Varma (NeurIPS 2018).

        h = sigmoid(beta) h + sigmoid(alpha) tanh(W h + V u + b)          alpha, beta scalars

    Parameters: weight_u (d, m) = V, weight_h (d, d) = W, bias (d,), alpha (), beta ().

    Differs from the paper: none; the matrices have full rank, as in the sizes of the paper's tables.

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d.
        bias: whether the affine map has a bias.
        backend: what runs whole sequences; see `lem.nn.cells.Cell`.
        device: where the parameters live.
        dtype: the type of the parameters.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import FastRNNCell
        >>> outputs, state = FastRNNCell(3, 8)(torch.randn(100, 4, 3))  # (time, batch, channels)
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 8]), ('h',))
    """

    kernels = (CoupledKernel(coupled.RESIDUAL),)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, backend)
        d = hidden_size
        self.weight_u = nn.Parameter(torch.empty(d, input_size, device=device, dtype=dtype))
        self.weight_h = nn.Parameter(torch.empty(d, d, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(d, device=device, dtype=dtype)) if bias else None
        self.alpha = nn.Parameter(torch.empty((), device=device, dtype=dtype))
        self.beta = nn.Parameter(torch.empty((), device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the matrices from N(0, 0.1^2); b = 1, alpha = -3, beta = 3."""
        with torch.no_grad():
            self.weight_u.normal_(0.0, 0.1)
            self.weight_h.normal_(0.0, 0.1)
            if self.bias is not None:
                self.bias.fill_(1.0)
            self.alpha.fill_(-3.0)
            self.beta.fill_(3.0)

    def prepare(self, batch: int) -> tuple[Tensor, ...]:
        """Transpose W; compute both weights of the sum."""
        return self.weight_h.T, torch.sigmoid(self.alpha), torch.sigmoid(self.beta)

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Compute V u + b."""
        return affine(u, self.weight_u, self.bias)

    def constants(self, *rest: Tensor) -> Float[Tensor, "constants hidden"]:
        """Return both weights of the sum, the same for every unit."""
        return torch.stack(rest)[:, None].expand(-1, self.hidden_size)

    def pointwise(
        self,
        a: Float[Tensor, "batch k"],
        state: State,
        *rest: Tensor,
        elapsed: Float[Tensor, "batch 1"] | None = None,
    ) -> State:
        """Advance h; with `elapsed`, by as many steps towards the same candidate: beta h + alpha c repeated."""
        (h,), (new, old) = state, rest
        if elapsed is not None:
            # old^elapsed, and new (1 + old + old^2 + ...) with elapsed terms.
            faded = torch.expm1(elapsed * torch.log(old))
            terms = torch.where(old < 1.0, -faded / (1.0 - torch.where(old < 1.0, old, 0.0)), elapsed)
            old, new = 1.0 + faded, new * terms
        return Hidden(old * h + new * torch.tanh(a))


class FastGRNNCell(PointwiseCell):
    """FastGRNN, one step: Kusupati, Singh, Bhatia, Kumar, Jain and Varma (NeurIPS 2018).

        p = W h + V u                                                     shared by gate and candidate
        g = sigmoid(p + b_g)
        h = (sigmoid(zeta) (1 - g) + sigmoid(nu)) * tanh(p + b_h) + g * h         zeta, nu scalars

    Parameters: weight_u (d, m) = V, weight_h (d, d) = W, bias (2d,) = b_g, b_h, zeta (), nu ().

    Differs from the paper: none; the matrices have full rank, as in the sizes of the paper's tables.

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d.
        bias: whether gate and candidate have biases.
        backend: what runs whole sequences; see `lem.nn.cells.Cell`.
        device: where the parameters live.
        dtype: the type of the parameters.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import FastGRNNCell
        >>> outputs, state = FastGRNNCell(3, 8)(torch.randn(100, 4, 3))  # (time, batch, channels)
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 8]), ('h',))
    """

    kernels = (CoupledKernel(coupled.GATED),)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, backend)
        d = hidden_size
        self.weight_u = nn.Parameter(torch.empty(d, input_size, device=device, dtype=dtype))
        self.weight_h = nn.Parameter(torch.empty(d, d, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(2 * d, device=device, dtype=dtype)) if bias else None
        self.zeta = nn.Parameter(torch.empty((), device=device, dtype=dtype))
        self.nu = nn.Parameter(torch.empty((), device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the matrices from N(0, 0.1^2); both biases are 1, zeta = 1, nu = -4."""
        with torch.no_grad():
            self.weight_u.normal_(0.0, 0.1)
            self.weight_h.normal_(0.0, 0.1)
            if self.bias is not None:
                self.bias.fill_(1.0)
            self.zeta.fill_(1.0)
            self.nu.fill_(-4.0)

    def prepare(self, batch: int) -> tuple[Tensor, ...]:
        """Transpose W; compute both scalars; part the bias."""
        b_g, b_h = (self.zeta.new_zeros(2 * self.hidden_size) if self.bias is None else self.bias).chunk(2)
        return self.weight_h.T, torch.sigmoid(self.zeta), torch.sigmoid(self.nu), b_g, b_h

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Compute V u; the two biases differ and are added in the step."""
        return affine(u, self.weight_u)

    def constants(self, *rest: Tensor) -> Float[Tensor, "constants hidden"]:
        """Return both scalars, the same for every unit, and both biases."""
        return torch.stack([r.expand(self.hidden_size) for r in rest])

    def pointwise(self, a: Float[Tensor, "batch k"], state: State, *rest: Tensor) -> State:
        """Advance h."""
        (h,), (zeta, nu, b_g, b_h) = state, rest
        g = torch.sigmoid(a + b_g)
        return Hidden((zeta * (1 - g) + nu) * torch.tanh(a + b_h) + g * h)
