"""UnICORNN: undamped independent oscillators, whose states can be computed backwards."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lem.cells.base import Cell, State, within
from lem.cells.cornn import OscillatorState
from lem.native.affine import affine
from lem.native.library import loop_asked
from lem.native.once import edge, first_only
from lem.native.units import oscillate, units_refusal
from lem.shapes import Float, Int

CHUNK = 64
"""Steps per product with V where the states are reconstructed: large enough for a full GEMM, constant in T."""


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
        device: where the parameters live.
        dtype: the type of the parameters.
    """

    state_type = OscillatorState

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        dt: float = 0.1,
        alpha: float = 1.0,
        reconstruct: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.dt = within(self, "dt", dt, "(0, inf)")
        self.alpha = within(self, "alpha", alpha, "[0, inf)")
        if self.dt**2 * self.alpha >= 4.0:
            raise ValueError(
                "`dt` and `alpha` of UnICORNNCell must keep its oscillators stable: alpha dt^2 < 4; "
                f"got {self.dt**2 * self.alpha:.4g}. A smaller dt does it."
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

    def step(self, x: Float[Tensor, "batch k"], state: State, *prepared: Tensor) -> State:
        """Advance (y, z)."""
        (y, z), (s,) = state, prepared
        z = z - s * (torch.tanh(self.weight_y * y + x) + self.alpha * y)
        return OscillatorState(y + s * z, z)

    def sequence(
        self,
        u: Float[Tensor, "time batch input"],
        state: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        reverse: bool = False,
    ) -> tuple[Float[Tensor, "time batch output"], State]:
        """Run over time, by the kernel where rows are equally long; with `reconstruct` without storing the states."""
        y, z = self.init_state(u.shape[1]) if state is None else state
        if self._refusal(u, (y, z), lengths) is not None:
            return super().sequence(u, state, lengths, reverse)
        if not self.reconstruct:
            x, (s,) = self.project(u), self.prepare(u.shape[1])
            out, y, z = oscillate(x.flip(0) if reverse else x, self.weight_y, s, y, z, self.alpha)
            return out.flip(0) if reverse else out, OscillatorState(y, z)
        alive = None
        if lengths is not None:
            inside = torch.arange(len(u), device=u.device)[:, None] < lengths.to(u.device)
            u = u.masked_fill(~inside[:, :, None], 0.0)
            alive = inside[:, :, None].to(u.dtype)
        (s,) = self.prepare(u.shape[1])
        tensors = (u, self.weight_u, self.bias, self.weight_y, s, y, z)
        out, y, z = _Reversible.apply(edge(*tensors), *tensors, alive, self.alpha, reverse)
        return out, OscillatorState(y, z)

    def _refusal(self, u: Tensor, state: State = (), lengths: Tensor | None = None) -> str | None:
        if type(self).step is not UnICORNNCell.step:
            return f"{type(self).__name__} has a step of its own"
        if self.reconstruct:
            return "the loop was asked for" if loop_asked() else None
        return units_refusal(u, self.weight_u, *state, lengths=lengths)


class _Reversible(torch.autograd.Function):
    """The sequence of UnICORNN, with a backward pass that computes the states backwards from the final one.

    A step outside a row's length has s = 0, which leaves the state as it is, forwards and backwards.
    """

    @staticmethod
    def forward(
        ctx: Any,
        edge: Tensor,
        u: Tensor,
        V: Tensor,
        b: Tensor | None,
        w: Tensor,
        s: Tensor,
        y: Tensor,
        z: Tensor,
        alive: Tensor | None,
        alpha: float,
        reverse: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        out = u.new_empty(*u.shape[:2], len(w))
        for times in _chunks(len(u), reverse):
            x = functional.linear(u[times.start : times.stop], V, b)
            for t in reversed(times) if reverse else times:
                s_t = s if alive is None else s * alive[t]
                z = z - s_t * (torch.tanh(w * y + x[t - times.start]) + alpha * y)
                y = y + s_t * z
                out[t] = y if alive is None else y * alive[t]
        ctx.save_for_backward(u, V, b, w, s, y, z, alive)
        ctx.alpha, ctx.reverse, ctx.edge = alpha, reverse, edge
        return out, y, z

    @staticmethod
    @first_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Undo the steps one by one and pull the gradient through each."""
        d_out, d_y, d_z = grads
        u, V, b, w, s, y, z, alive = ctx.saved_tensors
        alpha, reverse = ctx.alpha, ctx.reverse
        d_u, d_V = torch.empty_like(u), torch.zeros_like(V)
        d_b, d_w, d_s = (torch.zeros_like(w) for _ in range(3))
        for times in reversed(_chunks(len(u), reverse)):
            part = slice(times.start, times.stop)
            x = functional.linear(u[part], V, b)
            d_x = torch.empty_like(x)
            for t in times if reverse else reversed(times):
                on = 1.0 if alive is None else alive[t]
                s_t = s * on
                y_old = y - s_t * z
                force = torch.tanh(w * y_old + x[t - times.start])
                pull = force + alpha * y_old
                d_y = d_y + d_out[t] * on
                d_z = d_z + s_t * d_y
                d_s += ((d_y * z - d_z * pull) * on).sum(0)
                d_pre = -s_t * d_z * (1 - force**2)
                d_x[t - times.start] = d_pre
                d_w += (d_pre * y_old).sum(0)
                d_y = d_y + d_pre * w - s_t * d_z * alpha
                y, z = y_old, z + s_t * pull
            d_u[part] = d_x @ V
            d_V += d_x.flatten(0, 1).T @ u[part].flatten(0, 1)
            d_b += d_x.sum((0, 1))
        return None, d_u, d_V, None if b is None else d_b, d_w, d_s, d_y, d_z, None, None, None


def _chunks(steps: int, reverse: bool) -> list[range]:
    """Return the time axis in pieces, in the order in which they are run."""
    pieces = [range(start, min(start + CHUNK, steps)) for start in range(0, steps, CHUNK)]
    return pieces[::-1] if reverse else pieces
