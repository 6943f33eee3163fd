"""IndRNN: independent units with ReLU."""

from typing import Any

import torch
from torch import Tensor, nn

from lem.kernels.choose import Call
from lem.kernels.cpu.affine import affine
from lem.kernels.cpu.units import IndRNNKernel
from lem.nn.cells.base import Cell, Hidden, State, within
from lem.shapes import Float


class IndRNNCell(Cell):
    """Independently recurrent network, one layer, one step: Li, Li, Cook, Zhu and Gao (CVPR 2018).

        h = relu(w * h + V u + b),    |w| <= magnitude^(1 / length)

    so that a unit multiplies its state by at most `magnitude` over `length` steps. The bound is restored after each
    optimiser step.

    Parameters: weight_u (d, m) = V, weight_h (d,) = w, bias (d,); with `batch_norm` the 2d of the normalisation.

    Differs from the paper: `batch_norm` normalises V u, before the recurrence, over batch and time. The authors offer
    this and, as their default, to normalise the layer's output, which would make output and state two things.

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d.
        bias: whether the affine map has a bias.
        length: the number of steps over which the growth of a unit is bounded; the length of the sequences.
        magnitude: that bound.
        batch_norm: normalise V u over batch and time.
        weight_decay: the weight decay of V, and of V only.
        backend: what runs whole sequences; see `lem.nn.cells.Cell`.
        device: where the parameters live.
        dtype: the type of the parameters.

    Examples:
        >>> import torch
        >>> from lem.nn.cells import IndRNNCell
        >>> outputs, state = IndRNNCell(3, 8, length=100)(torch.randn(100, 4, 3))  # (time, batch, channels)
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 8]), ('h',))
    """

    kernels = (IndRNNKernel(),)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        length: int = 1000,
        magnitude: float = 5.0,
        batch_norm: bool = False,
        weight_decay: float = 0.0,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, backend)
        self.length = int(within(self, "length", length, "[1, inf)"))
        self.magnitude = within(self, "magnitude", magnitude, "(0, inf)")
        self.weight_decay = within(self, "weight_decay", weight_decay, "[0, inf)")
        self.largest = self.magnitude ** (1.0 / self.length)
        d = hidden_size
        self.weight_u = nn.Parameter(torch.empty(d, input_size, device=device, dtype=dtype))
        self.weight_h = nn.Parameter(torch.empty(d, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(d, device=device, dtype=dtype)) if bias else None
        self.norm = nn.BatchNorm1d(d, device=device, dtype=dtype) if batch_norm else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw w from U(0, magnitude^(1 / length)) and V Kaiming-uniform with a = 8; b starts at zero."""
        with torch.no_grad():
            nn.init.kaiming_uniform_(self.weight_u, a=8.0)
            self.weight_h.uniform_(0.0, self.largest)
            if self.bias is not None:
                self.bias.zero_()
            if self.norm is not None:
                self.norm.reset_parameters()

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Compute V u, normalised if so chosen, + b."""
        if self.norm is None:
            return affine(u, self.weight_u, self.bias)
        x = self.norm(affine(u, self.weight_u).flatten(0, 1)).unflatten(0, u.shape[:2])
        return x if self.bias is None else x + self.bias

    def step(self, x: Float[Tensor, "batch k"], state: State, *prepared: Tensor) -> State:
        """Advance h."""
        (h,) = state
        return Hidden(torch.relu(self.weight_h * h + x))

    def before_sequence(self, call: Call) -> None:
        """Refuse to train batch normalisation on padded rows: its statistics would count the padding."""
        u, lengths = call.u, call.lengths
        if self.norm is not None and self.training and lengths is not None and bool((lengths < len(u)).any()):
            raise ValueError(
                "IndRNNCell cannot train with `batch_norm` on rows of unequal length, because its statistics would "
                f"count the padding: `lengths` must all equal {len(u)}; got {lengths.tolist()}."
            )

    def param_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Return V with its decay, and the rest."""
        if not self.weight_decay:
            return super().param_groups(learning_rate)
        others = [p for p in self.parameters() if p is not self.weight_u]
        return [
            {"params": others, "lr": learning_rate},
            {"params": [self.weight_u], "lr": learning_rate, "weight_decay": self.weight_decay},
        ]

    @torch.no_grad()
    def after_update(self) -> None:
        """Bring w back into its bound."""
        self.weight_h.clamp_(-self.largest, self.largest)
