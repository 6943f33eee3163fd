"""What the paper proves of LEM's states and gradients, as functions that can be called on any cell and any batch.

Statements follow the paper's Propositions 1 to 3 in their corrected form (docs/misprints.md lists each difference).
A bound refuses to answer outside its hypotheses; `lem.analysis.certificate` measures the same quantities.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from lem.nn.cells import LEMCell, LEMState
from lem.nn.cells.timing import stretch
from lem.shapes import Float

LINEAR_LIMIT = 2.5128624172523393
"""Twice the root of e^x = 1 + 2x: up to it (1 + Gamma dt/2)^n <= 1 + Gamma t_n, on which Proposition 2 rests."""


# --- states: Proposition 1 -----------------------------------------------------------------------------------------


def state_bound(dt: float, steps: int, start: float = 0.0) -> float:
    """Return the sharp bound of every |z|, |y| after `steps` steps from states no larger than `start`.

    For dt <= 1 a zero start gives 1 - (1 - dt)^n <= min(1, t_n), sharper than Proposition 1; for 1 < dt < 2 the
    states stay below dt / (2 - dt), attained by saturated alternating input; at dt = 2 they can grow by 2 a step.

    Examples:
        >>> from lem.analysis.bounds import state_bound
        >>> round(state_bound(dt=0.1, steps=10), 4), state_bound(dt=0.1, steps=1000) <= 1
        (0.6513, True)
    """
    if not 0.0 < dt <= 2.0:
        raise ValueError(f"`dt` of state_bound must be a number in (0, 2]; got {dt!r}.")
    # |x| <= |1 - g| |x| + g with a gate g in [0, dt]: the worst gate is dt itself, or 0.
    if dt <= 1.0:
        return max(start, 1.0 - (1.0 - dt) ** steps * (1.0 - start))
    factor = dt - 1.0
    grown = start + dt * steps if factor == 1.0 else start * factor**steps + dt * (1 - factor**steps) / (1 - factor)
    return max(start, grown)


def state_bound_paper(dt: float, steps: int) -> float:
    """Return Proposition 1's bound min(1, (1 + dt) sqrt(t_n / (2 - dt))); it needs dt <= 1 and a zero start."""
    if not 0.0 < dt <= 1.0:
        raise ValueError(
            f"`dt` of Proposition 1 must be a number in (0, 1]; got {dt!r}. Use state_bound, which holds to 2."
        )
    return min(1.0, (1.0 + dt) * math.sqrt(steps * dt / (2.0 - dt)))


# --- one step: the Jacobian and its norms --------------------------------------------------------------------------


class _Steps(NamedTuple):
    """Gates, their slopes and both tanh of any number of steps at once; each (..., hidden)."""

    dt_z: Tensor
    dt_y: Tensor
    slope_z: Tensor
    slope_y: Tensor
    tanh_z: Tensor
    tanh_y: Tensor


def recurrent_weights(cell: LEMCell) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return W_1, W_2, W_z, W_y; a single-scale cell has zeros for the first two."""
    if cell.single_scale:
        zero = torch.zeros_like(cell.weight_z)
        return zero, zero, cell.weight_y, cell.weight_z
    w_1, w_2, w_z = cell.weight_y.chunk(3)
    return w_1, w_2, w_z, cell.weight_z


class Parts(NamedTuple):
    """The gates of some steps, the argument of z's tanh, and the input's part of y's; each (..., hidden)."""

    dt_z: Tensor
    dt_y: Tensor
    inside_z: Tensor
    input_y: Tensor


def parts(cell: LEMCell, u: Float[Tensor, "*steps input"], y: Float[Tensor, "*steps hidden"]) -> Parts:
    """Take apart the steps with input `u` and slow state `y` before them, any number at once."""
    *gates_u, z_u, y_u = functional.linear(u, cell.weight_u, cell.bias).chunk(2 if cell.single_scale else 4, dim=-1)
    *gates_y, z_y = functional.linear(y, cell.weight_y).chunk(len(gates_u) + 1, dim=-1)
    dt_z, dt_y = (torch.as_tensor(gate).to(y).expand_as(y) for gate in cell.time_steps(gates_u, gates_y))
    return Parts(dt_z, dt_y, z_y + z_u, y_u)


def _linearise(cell: LEMCell, u: Tensor, y: Tensor, z_after: Tensor, elapsed: Tensor | None = None) -> _Steps:
    dt_z, dt_y, inside_z, input_y = parts(cell, u, y)
    low, high = cell.clip or (-1.0, 3.0)
    gates, slopes = [dt_z, dt_y], []
    for k, gate in enumerate(gates):
        moves = (gate > low) & (gate < high) & (not cell.single_scale)  # a clipped or fixed gate has slope zero
        slopes.append(torch.where(moves, gate * (1 - gate / cell.dt), 0.0))
        if elapsed is not None:  # the gate becomes 1 - (1 - gate)^elapsed
            gates[k] = stretch(gate, elapsed)
            slopes[k] = torch.where(gate < 1.0, slopes[k] * elapsed * (1 - gate) ** (elapsed - 1), 0.0)
    tanh_y = torch.tanh(functional.linear(z_after, cell.weight_z) + input_y)
    return _Steps(gates[0], gates[1], slopes[0], slopes[1], torch.tanh(inside_z), tanh_y)


def jacobian(
    cell: LEMCell, u: Float[Tensor, "batch input"], state: LEMState
) -> tuple[Float[Tensor, "batch both both"], Float[Tensor, "batch both both"]]:
    """Return E and F of the exact one-step Jacobian I + dt E + dt^2 F (the paper's eqs. grad6 to grad8).

    Rows and columns are ordered (z, y), all of z before all of y; the paper interleaves them, which changes no norm.

    Examples:
        >>> import torch
        >>> from lem import LEMCell
        >>> from lem.analysis.bounds import jacobian
        >>> cell = LEMCell(2, 4, dtype=torch.float64)
        >>> E, F = jacobian(cell, torch.rand(3, 2).double(), cell.init_state(batch=3))
        >>> E.shape
        torch.Size([3, 8, 8])
    """
    _no_dropout(cell)
    y, z = state
    after = cell(u, state)
    s = _linearise(cell, u, y, after[1])
    w_1, w_2, w_z, w_y = recurrent_weights(cell)
    a, b = s.dt_z / cell.dt, s.dt_y / cell.dt
    m = (s.slope_z * (s.tanh_z - z) / cell.dt)[..., None] * w_1 + (a * (1 - s.tanh_z**2))[..., None] * w_z
    e_yz = (b * (1 - s.tanh_y**2))[..., None] * w_y
    e_yy = torch.diag_embed(-b) + (s.slope_y * (s.tanh_y - y) / cell.dt)[..., None] * w_2
    zero = torch.zeros_like(m)
    e = torch.cat([torch.cat([torch.diag_embed(-a), m], -1), torch.cat([e_yz, e_yy], -1)], -2)
    f = torch.cat([torch.cat([zero, zero], -1), torch.cat([-e_yz * a[..., None, :], e_yz @ m], -1)], -2)
    return e, f


def gain(cell: LEMCell) -> float:
    """Return eta, the largest row sum of |W_1|, |W_2|, |W_z|, |W_y|."""
    return max(float(w.detach().abs().sum(1).max()) for w in recurrent_weights(cell))


def growth(eta: float) -> float:
    """Return the paper's Gamma = 2 (1 + eta) (1 + 3 eta)."""
    return 2.0 * (1.0 + eta) * (1.0 + 3.0 * eta)


class NormBounds(NamedTuple):
    """Bounds of the largest row sum of E, F and the one-step Jacobian."""

    e: float
    f: float
    jacobian: float


def norm_bounds(eta: float, dt: float, step: int) -> NormBounds:
    """Return the paper's bounds (grad9, grad10 and the line after) at step number `step`; dt <= 1, zero start.

    Examples:
        >>> from lem.analysis.bounds import norm_bounds
        >>> norm_bounds(eta=1.0, dt=0.01, step=100)
        NormBounds(e=3.71..., f=3.71..., jacobian=1.08)
    """
    mu = state_bound_paper(dt, step)
    e = 1.0 + (2.0 + mu) * eta
    return NormBounds(e, eta * e, 1.0 + 0.5 * growth(eta) * dt)


def log10_product_bound(eta: float, dt: float, steps: int) -> float:
    """Return the logarithm of (1 + Gamma dt / 2)^steps, which bounds the norm of dX_n / dX_{n - steps} for dt <= 1."""
    state_bound_paper(dt, 1)
    return steps * math.log10(1.0 + 0.5 * growth(eta) * dt)


# --- all steps: Propositions 2 and 3 -------------------------------------------------------------------------------


def violated(cell: LEMCell, steps: int) -> list[str]:
    """List the hypotheses of Proposition 2 that `cell` does not meet over `steps` steps, each as a sentence."""
    wrong = []
    if cell.dt > 1.0:
        wrong.append(f"dt must be at most 1; it is {cell.dt:g}")
    gamma_t = growth(gain(cell)) * steps * cell.dt
    if gamma_t > LINEAR_LIMIT:
        allowed = LINEAR_LIMIT / (growth(gain(cell)) * steps)
        wrong.append(f"Gamma t_n must be at most {LINEAR_LIMIT:.4f} (dt <= {allowed:.2g} here); it is {gamma_t:.4g}")
    if cell.y_0 is not None and cell.z_0 is not None and bool((cell.y_0 != 0).any() | (cell.z_0 != 0).any()):
        wrong.append("the initial state must be zero; it was learned")
    if cell.clip is not None:
        wrong.append(f"the gates must not be clipped; they are, to {cell.clip}")
    if cell.training and cell.state_dropout > 0.0:
        wrong.append("state dropout must be off (call eval()); it is on")
    return wrong


def total_gradient_bound(cell: LEMCell, steps: int, error: float, largest_input: float = 1.0) -> dict[str, float]:
    """Return the corrected bound of Proposition 2 on |dE_n / d theta| for the weights W, the weights V and the biases.

    Args:
        cell: the cell whose weights enter through Gamma.
        steps: the number n of steps.
        error: the 1-norm of dE_n / dy_n, that is of y_n minus its target.
        largest_input: the largest |u| of the sequence, which the bound for V needs.

    Examples:
        >>> import torch
        >>> from lem import LEMCell
        >>> from lem.analysis.bounds import total_gradient_bound
        >>> _ = torch.manual_seed(0)
        >>> sorted(total_gradient_bound(LEMCell(2, 8, dt=1e-4), steps=50, error=1.0))
        ['V', 'W', 'b']
    """
    wrong = violated(cell, steps)
    if wrong:
        raise ValueError(f"Proposition 2 does not apply to this cell over {steps} steps: {'; '.join(wrong)}.")
    eta, t_n = gain(cell), steps * cell.dt
    base = error * max(1.0, eta * cell.dt) * t_n * (1.0 + growth(eta) * t_n)
    return {"W": base, "V": base * max(1.0, largest_input), "b": base}


class PartialGradient(NamedTuple):
    """dE_n^(k) / d(W_y)_ab: exact, and Proposition 3's leading terms corrected; first + second ~ exact."""

    exact: float
    first: float
    second: float


def partial_gradient(
    cell: LEMCell,
    u: Float[Tensor, "time input"],
    k: int,
    alpha: int,
    beta: int,
    target: Float[Tensor, "hidden"] | None = None,
    state: LEMState | None = None,
) -> PartialGradient:
    """Return what step `k` (from 1) contributes to dE_n / d(W_y)[alpha, beta] with E_n = |y_n - target|^2 / 2.

    `first` is of order dt, `second` of order dt^2; the remainder is O(dt ((n - k) dt)^2) times the first factor, so
    the expansion is asymptotic for a fixed n - k, not for a fixed time t_n.

    Examples:
        >>> import torch
        >>> from lem import LEMCell
        >>> from lem.analysis.bounds import partial_gradient
        >>> cell = LEMCell(2, 4, dt=0.1, dtype=torch.float64)
        >>> parts = partial_gradient(cell, torch.rand(20, 2).double(), k=15, alpha=0, beta=1)
        >>> parts._fields
        ('exact', 'first', 'second')
    """
    _no_dropout(cell)
    with torch.no_grad():
        start = cell.init_state(1) if state is None else state
        (y, z), final = cell.trajectory(u[:, None], start)
        y_before, z_before = (torch.cat([s0[None], s[:-1]])[:, 0] for s0, s in zip(start, (y, z)))
        s = _linearise(cell, u, y_before, z[:, 0])
        error, dt = final[0][0] - (0.0 if target is None else target), cell.dt
        p = s.dt_y[k - 1, alpha] / dt * (1 - s.tanh_y[k - 1, alpha] ** 2) * z[k - 1, 0, beta]
        push = torch.zeros(2 * cell.hidden_size, dtype=y.dtype)
        push[cell.hidden_size + alpha] = dt * p
        for e, f in zip(*jacobian(cell, u[k:], LEMState(y_before[k:], z_before[k:]))):
            push = push + dt * (e @ push) + dt**2 * (f @ push)
        w_2 = recurrent_weights(cell)[1]
        through_gate = ((s.slope_y / dt) * (s.tanh_y - y_before))[k:].sum(0) @ (error * w_2[:, alpha])
        leak = error[alpha] * s.dt_y[k:, alpha].sum() / dt
        first = dt * p * error[alpha]
        second = dt**2 * p * (through_gate - leak)
    return PartialGradient(float(push[cell.hidden_size :] @ error), float(first), float(second))


def adjoint(
    cell: LEMCell,
    u: Float[Tensor, "time batch input"],
    error: Float[Tensor, "batch hidden"] | None = None,
    absolute: bool = False,
    elapsed: Float[Tensor, "time batch"] | None = None,
) -> Float[Tensor, "lag batch"]:
    """Return the 1-norms of dE_n / dX_{n - lag} for lag 0..n, by the transposed one-step Jacobians.

    `error` is dE_n / dy_n, and y_n itself (the paper's loss with target zero) where it is not given. With `absolute`
    the recursion carries |weights| and |slopes|: what the gradient would be if all signs agreed, hence a bound.
    `elapsed` are the lengths of the steps, 1 where not given.
    """
    _no_dropout(cell)
    with torch.no_grad():
        start = cell.init_state(u.shape[1])
        (y, z), final = cell.trajectory(u, start, elapsed=elapsed)
        y, z_before = torch.cat([start[0][None], y[:-1]]), torch.cat([start[1][None], z[:-1]])
        s = _linearise(cell, u, y, z, None if elapsed is None else elapsed[:, :, None])
        factors = [1 - s.dt_z, 1 - s.dt_y, s.slope_z * (s.tanh_z - z_before), s.slope_y * (s.tanh_y - y)]
        factors += [s.dt_z * (1 - s.tanh_z**2), s.dt_y * (1 - s.tanh_y**2), *recurrent_weights(cell)]
        factors.append(final[0] if error is None else error)
        keep_z, keep_y, into_1, into_2, into_z, into_y, w_1, w_2, w_z, w_y, gy = (
            f.abs() if absolute else f for f in factors
        )
        gz = torch.zeros_like(gy)
        norms = [gy.abs().sum(-1)]
        for n in reversed(range(len(u))):
            gz = gz + (gy * into_y[n]) @ w_y
            gy = gy * keep_y[n] + (gz * into_1[n]) @ w_1 + (gy * into_2[n]) @ w_2 + (gz * into_z[n]) @ w_z
            gz = gz * keep_z[n]
            norms.append(gy.abs().sum(-1) + gz.abs().sum(-1))
    return torch.stack(norms)


def _no_dropout(cell: LEMCell) -> None:
    if cell.training and cell.state_dropout > 0.0:
        raise ValueError("`cell` of lem.analysis must be in eval mode: its state dropout is random. Call cell.eval().")
