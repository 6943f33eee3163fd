"""UnICORNN: undamped independent oscillators, whose states can be computed backwards."""

import torch
from torch import Tensor, nn

from lem.kernels.cpu.affine import affine
from lem.kernels.cpu.units import UnICORNNKernel
from lem.kernels.reconstruct import ReconstructKernel
from lem.nn.cells.base import Cell, State, within
from lem.nn.cells.cornn import OscillatorState
from lem.shapes import Float


class UnICORNNCell(Cell):
    """Undamped independent controlled oscillatory RNN, one layer, one step: Rusch and Mishra (ICML 2021).

        s = dt sigmoid(c)
        z = z - s * (tanh(w * y + V u + b) + alpha y)
        y = y + s * z                                      with the new z

    The step is symplectic (its Jacobian has determinant 1) and can be undone::

        y_old = y - s z,   z_old = z + s (tanh(w y_old + V u + b) + alpha y_old)

    With `reconstruct` the backward pass does so instead of storing the states: besides its input it keeps only the
    final state, whatever the number of steps. Gradients agree to rounding (after 17,984 steps the start is recovered to
    4e-14 in float64, 1e-4 in float32).

    Parameters: weight_u (d, m) = V, weight_y (d,) = w, scale (d,) = c, bias (d,). Layers are those of `Recurrent`; one
    dt for each is given by `layer_options`.

    Differs from the paper: none.

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d.
        bias: whether the affine map has a bias.
        dt: the largest time step.
        alpha: the frequency of the oscillators.
        reconstruct: recompute the states in the backward pass instead of storing them; this runs on the loop.
        backend: what runs whole sequences; see `lem.nn.cells.Cell`.
        device: where the parameters live.
        dtype: the type of the parameters.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import UnICORNNCell
        >>> outputs, state = UnICORNNCell(3, 8)(torch.randn(100, 4, 3))  # (time, batch, channels)
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 8]), ('y', 'z'))
    """

    state_type = OscillatorState
    kernels = (ReconstructKernel(), UnICORNNKernel())

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        dt: float = 0.1,
        alpha: float = 1.0,
        reconstruct: bool = False,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, backend)
        self.dt = within(self, "dt", dt, "(0, inf)")
        self.alpha = within(self, "alpha", alpha, "[0, inf)")
        if self.dt**2 * self.alpha >= 4.0:
            raise ValueError(
                "`dt` and `alpha` of UnICORNNCell must keep its oscillators stable: alpha dt^2 < 4; "
                f"got {self.dt**2 * self.alpha:.4g}. Use a smaller dt."
            )
        self.reconstruct = reconstruct
        d = hidden_size
        self.weight_u = nn.Parameter(torch.empty(d, input_size, device=device, dtype=dtype))
        self.weight_y = nn.Parameter(torch.empty(d, device=device, dtype=dtype))
        self.scale = nn.Parameter(torch.empty(d, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(d, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw w from U(0, 1), c from U(-0.1, 0.1), V Kaiming-uniform with a = 8; b starts at zero."""
        with torch.no_grad():
            nn.init.kaiming_uniform_(self.weight_u, a=8.0)
            self.weight_y.uniform_(0.0, 1.0)
            self.scale.uniform_(-0.1, 0.1)
            if self.bias is not None:
                self.bias.zero_()

    def prepare(self, batch: int) -> tuple[Tensor, ...]:
        """Compute s."""
        return (self.dt * torch.sigmoid(self.scale),)

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Compute V u + b."""
        return affine(u, self.weight_u, self.bias)

    def step(
        self,
        x: Float[Tensor, "batch k"],
        state: State,
        *prepared: Tensor,
        elapsed: Float[Tensor, "batch 1"] | None = None,
    ) -> State:
        """Advance (y, z); `elapsed` multiplies dt."""
        (y, z), (s,) = state, prepared
        s = s if elapsed is None else s * elapsed
        z = z - s * (torch.tanh(self.weight_y * y + x) + self.alpha * y)
        return OscillatorState(y + s * z, z)
