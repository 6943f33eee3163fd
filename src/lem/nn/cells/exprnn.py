"""expRNN and DTRIV: an orthogonal recurrent matrix through the exponential map."""

import math
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


class ExpRNNCell(PointwiseCell):
    """expRNN (Lezcano-Casado and Martinez-Rubio, ICML 2019) and DTRIV (Lezcano-Casado, NeurIPS 2019), one step.

        W = B exp(A - A^T)                     orthogonal
        h = modrelu(W h + V u, b)              modrelu(x, b) = sign(x) max(|x| + b, 0)

    expRNN has B = I and learns A from its initial value. DTRIV (`dynamic`) puts the initial matrix into B and learns
    A from zero; every `rebase_every` updates (the paper's K) W becomes the new base B and A returns to zero. Rebasing
    happens after an optimiser step and before the next W is built, so that no gradient is applied in another chart
    than its own. The optimiser's own averages are kept, as in the authors' code.

    Parameters: skew (d(d-1)/2,) the upper triangle of A - A^T; weight_u (d, m) = V; bias (d,) = b; with
    `input_bias` also bias_u (d,), added to V u. DTRIV has the buffer base (d, d) = B.

    Differs from the paper: none. (`input_bias` is not part of it; some published parameter counts contain it.)

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d.
        input_bias: whether V u has a bias too.
        init: how the initial angles are drawn, "cayley" or "henaff" (see `lem.nn.cells.skew.initial_rotations`).
        dynamic: whether W has a base, which is DTRIV.
        rebase_every: the number of optimiser steps between two rebasings; None for DTRIV-infinity.
        project_every: after how many rebasings the base is projected to the orthogonal matrices by an SVD.
        orthogonal_rate: the learning rate of A as a share of that of the other parameters.
        backend: what runs whole sequences; see `lem.nn.cells.Cell`.
        device: where the parameters live.
        dtype: the type of the parameters.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import ExpRNNCell
        >>> outputs, state = ExpRNNCell(3, 8)(torch.randn(100, 4, 3))  # (time, batch, channels)
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 8]), ('h',))
    """

    kernels = (CoupledKernel(coupled.MODRELU),)
    base: Tensor | None
    updates: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        input_bias: bool = False,
        init: str = "cayley",
        dynamic: bool = False,
        rebase_every: int | None = None,
        project_every: int = 100,
        orthogonal_rate: float = 0.1,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, backend)
        if rebase_every is not None and not dynamic:
            raise ValueError("`rebase_every` of ExpRNNCell must be None if `dynamic` is False: there is no base.")
        self.rebase_every = (
            None if rebase_every is None else int(within(self, "rebase_every", rebase_every, "[1, inf)"))
        )
        self.project_every = int(within(self, "project_every", project_every, "[1, inf)"))
        self.orthogonal_rate = within(self, "orthogonal_rate", orthogonal_rate, "(0, inf)")
        self.init = init
        self.dynamic = dynamic
        d = hidden_size
        self.weight_u = nn.Parameter(torch.empty(d, input_size, device=device, dtype=dtype))
        self.skew = nn.Parameter(torch.empty(free_numbers(d), device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(d, device=device, dtype=dtype))
        self.bias_u = nn.Parameter(torch.empty(d, device=device, dtype=dtype)) if input_bias else None
        self.register_buffer("base", torch.empty(d, d, device=device, dtype=dtype) if dynamic else None)
        self.register_buffer("updates", torch.zeros((), dtype=torch.long, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw V from N(0, 2 / m), b from U(-0.01, 0.01) and the angles of W by `init`."""
        angles = initial_rotations(self.hidden_size, self.init)
        with torch.no_grad():
            self.weight_u.normal_(0.0, math.sqrt(2.0 / self.input_size))
            self.bias.uniform_(-0.01, 0.01)
            if self.bias_u is not None:
                self.bias_u.zero_()
            self.updates.zero_()
            if self.base is None:
                self.skew.copy_(angles)
            else:
                self.skew.zero_()
                self.base.copy_(orthogonal_matrix(angles, self.hidden_size))

    def recurrent_matrix(self) -> Float[Tensor, "d d"]:
        """Return W."""
        return orthogonal_matrix(self.skew, self.hidden_size, self.base)

    def prepare(self, batch: int) -> tuple[Tensor, ...]:
        """Build W, transposed."""
        return self.recurrent_matrix().T, self.bias

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Compute V u."""
        return affine(u, self.weight_u, self.bias_u)

    def constants(self, *rest: Tensor) -> Float[Tensor, "constants hidden"]:
        """Return b."""
        return rest[0][None]

    def pointwise(self, a: Float[Tensor, "batch k"], state: State, *rest: Tensor) -> State:
        """Advance h."""
        return Hidden(modrelu(a, rest[0]))

    def param_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Return A at its own, smaller rate, and the rest."""
        others = [p for p in self.parameters() if p is not self.skew]
        return [
            {"params": others, "lr": learning_rate},
            {"params": [self.skew], "lr": learning_rate * self.orthogonal_rate},
        ]

    @torch.no_grad()
    def after_update(self) -> None:
        """Move the base to the present W every `rebase_every` updates."""
        if self.base is None or self.rebase_every is None:
            return
        self.updates += 1
        rebases, early = divmod(int(self.updates), self.rebase_every)
        if early:
            return
        self.base.copy_(self.recurrent_matrix())
        self.skew.zero_()
        if rebases % self.project_every == 0:
            left, _, right = torch.linalg.svd(self.base.double())
            self.base.copy_(left @ right)
