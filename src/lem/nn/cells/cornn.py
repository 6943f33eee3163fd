"""coRNN: coupled oscillators, discretised implicitly-explicitly."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lem.kernels.cpu import coupled
from lem.kernels.cpu.affine import affine
from lem.kernels.cpu.coupled import CoupledKernel
from lem.nn.cells.base import State, within
from lem.nn.cells.pointwise import PointwiseCell
from lem.shapes import Float


class OscillatorState(NamedTuple):
    """The positions `y`, which are the output, and the velocities `z` of the oscillators."""

    y: Tensor
    z: Tensor


class CoRNNCell(PointwiseCell):
    """Coupled oscillatory RNN, one step: Rusch and Mishra (ICLR 2021).

        z = z + dt (tanh(W_y y + W_z z + V u + b) - gamma y - epsilon z)
        y = y + dt z                                                          with the new z

    Parameters: weight_u (d, m) = V, weight_y (d, d), weight_z (d, d), bias (d,).

    Differs from the paper: the damping acts on the old z, as in the authors' code. The defaults are those of the
    authors' sMNIST script.

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d.
        bias: whether the affine map has a bias.
        dt: the time step.
        gamma: the frequency of the oscillators.
        epsilon: their damping.
        backend: what runs whole sequences; see `lem.nn.cells.Cell`.
        device: where the parameters live.
        dtype: the type of the parameters.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import CoRNNCell
        >>> outputs, state = CoRNNCell(3, 8, dt=0.05)(torch.randn(100, 4, 3))  # (time, batch, channels)
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 8]), ('y', 'z'))
    """

    state_type = OscillatorState
    reads = (0, 1)
    kernels = (CoupledKernel(coupled.OSCILLATOR),)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        dt: float = 0.042,
        gamma: float = 2.7,
        epsilon: float = 4.7,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, backend)
        self.dt = within(self, "dt", dt, "(0, inf)")
        self.gamma = within(self, "gamma", gamma, "(0, inf)")
        self.epsilon = within(self, "epsilon", epsilon, "(0, inf)")
        # Jury's conditions for both eigenvalues of the linear part to lie inside the unit circle.
        damping, stiffness = self.epsilon * self.dt, self.gamma * self.dt**2
        if not (damping < 2.0 and stiffness < 4.0 - 2.0 * damping):
            raise ValueError(
                "`dt`, `gamma` and `epsilon` of CoRNNCell must keep its oscillators stable: epsilon dt < 2 and "
                f"gamma dt^2 < 4 - 2 epsilon dt; got epsilon dt = {damping:.4g} and gamma dt^2 = {stiffness:.4g}. "
                "Use a smaller dt."
            )
        d = hidden_size
        self.weight_u = nn.Parameter(torch.empty(d, input_size, device=device, dtype=dtype))
        self.weight_y = nn.Parameter(torch.empty(d, d, device=device, dtype=dtype))
        self.weight_z = nn.Parameter(torch.empty(d, d, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(d, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights uniform in +-1/sqrt(m + 2d), the default of one linear map of (u, z, y)."""
        bound = 1.0 / math.sqrt(self.input_size + 2 * self.hidden_size)
        with torch.no_grad():
            for p in self.parameters():
                p.uniform_(-bound, bound)

    def prepare(self, batch: int) -> tuple[Tensor, ...]:
        """Stack W_y and W_z into one matrix that (y, z) is multiplied by."""
        return (torch.cat((self.weight_y, self.weight_z), 1).T,)

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Compute V u + b."""
        return affine(u, self.weight_u, self.bias)

    def constants(self, *rest: Tensor) -> Float[Tensor, "constants hidden"]:
        """Return epsilon, gamma and dt, which are not trained and the same for every unit."""
        return self.weight_u.new_tensor((self.epsilon, self.gamma, self.dt))[:, None].expand(-1, self.hidden_size)

    def pointwise(
        self,
        a: Float[Tensor, "batch k"],
        state: State,
        *rest: Tensor,
        elapsed: Float[Tensor, "batch 1"] | None = None,
    ) -> State:
        """Advance (y, z); `elapsed` multiplies dt."""
        y, z = state
        if elapsed is not None:
            dt = self.dt * elapsed
            z = z + dt * (torch.tanh(a) - self.gamma * y - self.epsilon * z)
            return OscillatorState(y + dt * z, z)
        # The equation with its factors gathered: every operation counts in a loop over thousands of steps.
        z = torch.add((1.0 - self.dt * self.epsilon) * z, y, alpha=-self.dt * self.gamma)
        z = torch.add(z, torch.tanh(a), alpha=self.dt)
        return OscillatorState(torch.add(y, z, alpha=self.dt), z)
