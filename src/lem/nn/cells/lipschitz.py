"""The Lipschitz RNN, by Euler's or the midpoint scheme."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from lem.nn.cells.base import Cell, Hidden, State, within
from lem.shapes import Float


class LipschitzCell(Cell):
    """Lipschitz RNN, one step: Erichson, Azencot, Queiruga, Hodgkinson and Mahoney (ICLR 2021).

        A  = beta (M_A - M_A^T) + (1 - beta) (M_A + M_A^T) - gamma I,     W from M_W in the same way
        h' = A h + tanh(W h + V u + b) =: F(h)
        euler:     h = h + epsilon F(h)
        midpoint:  h = h + epsilon F(h + epsilon / 2 F(h))                the input is held over the step

    Parameters: weight_a (d, d) = M_A, weight_w (d, d) = M_W, weight_u (d, m) = V, bias (d,).

    Differs from the paper: beta and gamma are shared by A and W, as in the authors' code.

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d.
        bias: whether the affine map has a bias.
        beta: the share of the skew-symmetric part, in [0, 1].
        gamma: the damping.
        epsilon: the time step.
        solver: "midpoint" or "euler".
        init_std: M_A and M_W start as N(0, (init_std / d)^2).
        backend: what runs whole sequences; see `lem.nn.cells.Cell`.
        device: where the parameters live.
        dtype: the type of the parameters.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import LipschitzCell
        >>> outputs, state = LipschitzCell(3, 8, epsilon=0.1)(torch.randn(100, 4, 3))  # (time, batch, channels)
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 8]), ('h',))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        beta: float = 0.75,
        gamma: float = 0.001,
        epsilon: float = 0.03,
        solver: str = "midpoint",
        init_std: float = 0.1,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, backend)
        if solver not in ("euler", "midpoint"):
            raise ValueError(f"`solver` of LipschitzCell must be 'euler' or 'midpoint'; got {solver!r}.")
        self.beta = within(self, "beta", beta, "[0, 1]")
        self.gamma = within(self, "gamma", gamma, "[0, inf)")
        self.epsilon = within(self, "epsilon", epsilon, "(0, inf)")
        self.init_std = within(self, "init_std", init_std, "[0, inf)")
        self.solver = solver
        d = hidden_size
        self.weight_a = nn.Parameter(torch.empty(d, d, device=device, dtype=dtype))
        self.weight_w = nn.Parameter(torch.empty(d, d, device=device, dtype=dtype))
        self.weight_u = nn.Parameter(torch.empty(d, input_size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(d, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw M_A and M_W from N(0, (init_std / d)^2), V and b uniform in +-1/sqrt(m)."""
        bound = 1.0 / math.sqrt(self.input_size)
        with torch.no_grad():
            for matrix in (self.weight_a, self.weight_w):
                matrix.normal_(0.0, self.init_std / self.hidden_size)
            for p in (self.weight_u, self.bias):
                if p is not None:
                    p.uniform_(-bound, bound)

    def prepare(self, batch: int) -> tuple[Tensor, ...]:
        """Build A and W, transposed as the products of `step` want them."""
        eye = torch.eye(self.hidden_size, device=self.weight_a.device, dtype=self.weight_a.dtype)
        return tuple(
            (self.beta * (M - M.T) + (1.0 - self.beta) * (M + M.T) - self.gamma * eye).T
            for M in (self.weight_a, self.weight_w)
        )

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Compute V u + b."""
        return functional.linear(u, self.weight_u, self.bias)

    def step(
        self,
        x: Float[Tensor, "batch k"],
        state: State,
        *prepared: Tensor,
        elapsed: Float[Tensor, "batch 1"] | None = None,
    ) -> State:
        """Advance h by one step of the solver; `elapsed` multiplies epsilon."""
        (h,), (A, W) = state, prepared

        def F(h: Tensor) -> Tensor:  # noqa: N802
            return torch.addmm(torch.tanh(torch.addmm(x, h, W)), h, A)

        if elapsed is not None:
            epsilon = self.epsilon * elapsed
            middle = h + 0.5 * epsilon * F(h) if self.solver == "midpoint" else h
            return Hidden(h + epsilon * F(middle))
        if self.solver == "midpoint":
            half = torch.add(h, F(h), alpha=0.5 * self.epsilon)
            return Hidden(torch.add(h, F(half), alpha=self.epsilon))
        return Hidden(torch.add(h, F(h), alpha=self.epsilon))
