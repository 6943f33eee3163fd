"""How LEM relates to its neighbours, as maps that can be run: its ODE, the LSTM, Hodgkin-Huxley, multiscale solvers."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from lem.analysis.bounds import parts, recurrent_weights
from lem.nn.cells import LEMCell, LEMState
from lem.nn.recurrent import LEM
from lem.shapes import Float

OPEN = 40.0
"""A bias at which the sigmoid is exactly 1, in float64 and in float32."""


# --- the ODE ---------------------------------------------------------------------------------------------------------


def vector_field(cell: LEMCell, u: Float[Tensor, "batch input"], state: LEMState) -> LEMState:
    """Return (dy/dt, dz/dt) of the ODE (2) whose first-order scheme with step `cell.dt` the cell is."""
    y, z = state
    dt_z, dt_y, inside_z, input_y = parts(cell, u, y)
    new_z = dt_z / cell.dt * (torch.tanh(inside_z) - z)
    new_y = dt_y / cell.dt * (torch.tanh(functional.linear(z, cell.weight_z) + input_y) - y)
    return LEMState(new_y, new_z)


def solve_ode(cell: LEMCell, u: Callable[[float], Float[Tensor, "batch input"]], time: float, steps: int) -> LEMState:
    """Solve the ODE (2) from zero to `time` by `steps` classical Runge-Kutta steps of order four.

    Examples:
        >>> import math
        >>> import torch
        >>> from lem import LEMCell
        >>> from lem.analysis.relations import solve_ode
        >>> cell = LEMCell(2, 4, dtype=torch.float64)
        >>> state = solve_ode(cell, lambda t: torch.full((1, 2), math.sin(t)).double(), time=5.0, steps=50)
        >>> state.y.shape
        torch.Size([1, 4])
    """
    state, h = cell.init_state(len(u(0.0))), time / steps

    def moved(by: float, slope: LEMState) -> LEMState:
        return LEMState(*(s + by * ds for s, ds in zip(state, slope)))

    for n in range(steps):
        t = n * h
        k_1 = vector_field(cell, u(t), LEMState(*state))
        k_2 = vector_field(cell, u(t + h / 2), moved(h / 2, k_1))
        k_3 = vector_field(cell, u(t + h / 2), moved(h / 2, k_2))
        k_4 = vector_field(cell, u(t + h), moved(h, k_3))
        state = LEMState(*(s + h / 6 * (a + 2 * b + 2 * c + d) for s, a, b, c, d in zip(state, k_1, k_2, k_3, k_4)))
    return LEMState(*state)


def ode_errors(
    cell: LEMCell, u: Callable[[float], Float[Tensor, "batch input"]], time: float, steps: Sequence[int]
) -> list[float]:
    """Return the largest difference between LEM with dt = time / n and the ODE at `time`, for every n of `steps`.

    LEM of order one: twice the steps, half the error.

    Examples:
        >>> import math
        >>> import torch
        >>> from lem import LEMCell
        >>> from lem.analysis.relations import ode_errors
        >>> cell = LEMCell(2, 4, dtype=torch.float64)
        >>> coarse, fine = ode_errors(cell, lambda t: torch.full((1, 2), math.sin(t)).double(), 1.0, [20, 40])
        >>> 1.8 < coarse / fine < 2.2  # order one
        True
    """
    before = cell.dt
    try:
        with torch.no_grad():
            exact = solve_ode(cell, u, time, max(steps))  # order four: its error does not count
            errors = []
            for count in steps:
                cell.dt = time / count
                inputs = torch.stack([u((n + 1) * cell.dt) for n in range(count)])
                found = cell.sequence(inputs)[1]
                errors.append(max(float((a - b).abs().max()) for a, b in zip(found, exact)))
    finally:
        cell.dt = before
    return errors


def two_scale_cell(cell: LEMCell, tau_z: float, tau_y: float) -> LEMCell:
    """Return a copy of `cell` with gates fixed to dt tau_z and dt tau_y: a scheme for the two-scale ODE (1).

    W_1 = W_2 = V_1 = V_2 = 0, b_1 = logit(tau_z), b_2 = logit(tau_y); the paper's text has the two biases swapped.

    Examples:
        >>> import torch
        >>> from lem import LEMCell
        >>> from lem.analysis.relations import two_scale_cell
        >>> cell = two_scale_cell(LEMCell(2, 4, dtype=torch.float64), tau_z=0.9, tau_y=0.02)
        >>> cell.bias[:8].sigmoid()
        tensor([0.9000, 0.9000, 0.9000, 0.9000, 0.0200, 0.0200, 0.0200, 0.0200], ...
    """
    if cell.single_scale or cell.bias is None:
        raise ValueError("`cell` of two_scale_cell must have gates and biases.")
    if not (0.0 < tau_z < 1.0 and 0.0 < tau_y < 1.0):
        raise ValueError(f"`tau_z` and `tau_y` of two_scale_cell must be numbers in (0, 1); got {tau_z!r}, {tau_y!r}.")
    like = cell.weight_z
    new = LEMCell(cell.input_size, cell.hidden_size, dt=cell.dt, device=like.device, dtype=like.dtype)
    new.load_state_dict(cell.state_dict())
    d = cell.hidden_size
    with torch.no_grad():
        assert new.bias is not None
        new.weight_y[: 2 * d] = 0.0
        new.weight_u[: 2 * d] = 0.0
        new.bias[:d] = math.log(tau_z / (1.0 - tau_z))
        new.bias[d : 2 * d] = math.log(tau_y / (1.0 - tau_y))
    return new


# --- the LSTM --------------------------------------------------------------------------------------------------------


def lstm_to_lem(lstm: nn.LSTM) -> LEM:
    """Convert an nn.LSTM whose gates are coupled, f = 1 - i and o = 1, into the LEM with the same outputs.

    That needs W_f = -W_i, V_f = -V_i, b_f = -b_i, and an output gate held open: W_o = V_o = 0, b_o >= 37 in float64
    (17 in float32). Then LEM with dt = 1, its first gate = i, second gate open, W_y = I, V_y = 0, b_y = 0 is the LSTM.

    Examples:
        >>> import torch
        >>> from lem.analysis.relations import couple_lstm, lstm_to_lem
        >>> lstm = couple_lstm(torch.nn.LSTM(3, 6).double())
        >>> lem, u = lstm_to_lem(lstm), torch.randn(50, 2, 3).double()
        >>> torch.allclose(lem(u)[0], lstm(u)[0])
        True
    """
    if lstm.num_layers != 1 or lstm.bidirectional or not lstm.bias or lstm.proj_size:
        raise ValueError("`lstm` of lstm_to_lem must have one layer, one direction, biases and no projection.")
    v, w, *biases = (p.detach() for p in lstm.parameters())
    b = biases[0] + biases[1]
    (v_i, v_f, v_g, v_o), (w_i, w_f, w_g, w_o), (b_i, b_f, b_g, b_o) = (t.chunk(4) for t in (v, w, b))
    coupled = all(torch.equal(f, -i) for f, i in ((v_f, v_i), (w_f, w_i), (b_f, b_i)))
    opened = not (v_o.any() or w_o.any()) and bool((torch.sigmoid(b_o) == 1).all())
    if not (coupled and opened):
        wrong = "the forget gate must be 1 - input gate" if not coupled else "the output gate must be held at 1"
        raise ValueError(f"`lstm` of lstm_to_lem must have coupled gates, for a LEM to equal it: {wrong}.")
    d, m = lstm.hidden_size, lstm.input_size
    lem = LEM(m, d, batch_first=lstm.batch_first, dt=1.0, device=v.device, dtype=v.dtype)
    cell = lem.cells[0]
    assert isinstance(cell, LEMCell)
    with torch.no_grad():
        assert cell.bias is not None
        cell.weight_u.copy_(torch.cat([v_i, 0 * v_i, v_g, 0 * v_i]))
        cell.weight_y.copy_(torch.cat([w_i, 0 * w_i, w_g]))
        cell.weight_z.copy_(torch.eye(d))
        cell.bias.copy_(torch.cat([b_i, torch.full_like(b_i, OPEN), b_g, 0 * b_i]))
    return lem


def couple_lstm(lstm: nn.LSTM) -> nn.LSTM:
    """Return a copy of a one-layer nn.LSTM with the gates coupled as `lstm_to_lem` needs them: f = 1 - i, o = 1.

    Examples:
        >>> import torch
        >>> from lem.analysis.relations import couple_lstm
        >>> lstm = couple_lstm(torch.nn.LSTM(3, 6))
        >>> torch.equal(lstm.weight_ih_l0[:6], -lstm.weight_ih_l0[6:12])  # f = 1 - i
        True
    """
    new = nn.LSTM(lstm.input_size, lstm.hidden_size, batch_first=lstm.batch_first, dtype=lstm.weight_ih_l0.dtype)
    new.load_state_dict(lstm.state_dict())
    d = lstm.hidden_size
    with torch.no_grad():
        for p in new.parameters():
            p[d : 2 * d] = -p[:d]
            p[3 * d :] = OPEN / 2 if p.dim() == 1 else 0.0
    return new


# --- Hodgkin-Huxley --------------------------------------------------------------------------------------------------

CONDUCTANCES = (36.0, 120.0, 0.3)
"""Of potassium, sodium and the leak (c_1, c_2, c_3), in mS/cm^2; unit capacitance."""
REVERSALS = (-12.0, 115.0, 10.613)
"""The potentials at which the three currents change sign, in mV above rest."""


def hh_rates(y: Tensor, rest: float = 0.0, beta_3_constant: float = 3.0) -> tuple[Tensor, Tensor]:
    """Return alpha and beta, (..., 3), of potassium activation, sodium activation and sodium inactivation.

    The paper prints the constant of beta_3 as 1; Hodgkin and Huxley have 3.
    """
    x = rest - y

    def ratio(v: Tensor) -> Tensor:
        safe = torch.where(v.abs() < 1e-6, torch.ones_like(v), v)
        return torch.where(v.abs() < 1e-6, 1.0 - v / 2, safe / torch.expm1(safe))  # v / (e^v - 1), 1 at v = 0

    alpha = torch.stack([0.1 * ratio((10 + x) / 10), ratio((25 + x) / 10), 0.07 * torch.exp(x / 20)], -1)
    beta_3 = 1 / (1 + torch.exp(beta_3_constant + x / 10))
    return alpha, torch.stack([0.125 * torch.exp(x / 80), 4 * torch.exp(x / 18), beta_3], -1)


def hodgkin_huxley(y: Tensor, z: Float[Tensor, "*points 3"], current: Tensor) -> tuple[Tensor, Tensor]:
    """Return (dy/dt, dz/dt) of the membrane potential and the three gating probabilities, as sums of ionic currents.

    Examples:
        >>> import torch
        >>> from lem.analysis.relations import hodgkin_huxley
        >>> dy, dz = hodgkin_huxley(torch.zeros(1), torch.full((1, 3), 0.5), torch.ones(1))
        >>> dy.shape, dz.shape
        (torch.Size([1]), torch.Size([1, 3]))
    """
    alpha, beta = hh_rates(y)
    potassium = CONDUCTANCES[0] * z[..., 0] ** 4 * (REVERSALS[0] - y)
    sodium = CONDUCTANCES[1] * z[..., 1] ** 3 * z[..., 2] * (REVERSALS[1] - y)
    leak = CONDUCTANCES[2] * (REVERSALS[2] - y)
    return current + potassium + sodium + leak, alpha * (1 - z) - beta * z


def hh_in_lem_form(y: Tensor, z: Float[Tensor, "*points 3"], current: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same by the general form of LEM's ODE: z' = F_z - G_z z and y' = F_y . H - G_y y.

    F_y = (u + c_3 y_L, z_1^4, z_2^3 z_3), H = (1, c_1 (y_K - y), c_2 (y_Na - y)), G_y = c_3, and . is an inner product;
    with the elementwise product of scalars that the paper prints, the equations are not Hodgkin and Huxley's.
    """
    alpha, beta = hh_rates(y)
    f_y = torch.stack([current + CONDUCTANCES[2] * REVERSALS[2], z[..., 0] ** 4, z[..., 1] ** 3 * z[..., 2]], -1)
    h = torch.stack([torch.ones_like(y), *(c * (r - y) for c, r in zip(CONDUCTANCES[:2], REVERSALS[:2]))], -1)
    return (f_y * h).sum(-1) - CONDUCTANCES[2] * y, alpha - (alpha + beta) * z


def lem_in_general_form(cell: LEMCell, u: Float[Tensor, "batch input"], state: LEMState) -> LEMState:
    """Return `vector_field` by the same general form: H = G_y = sigmoid(B), F_y = tanh(D), F_z = sigmoid(A) tanh(C)."""
    w_1, w_2, w_z, w_y = recurrent_weights(cell)
    a, b, c, d = functional.linear(u, cell.weight_u, cell.bias).chunk(4, dim=-1)
    y, z = state
    g_z, g_y = torch.sigmoid(y @ w_1.T + a), torch.sigmoid(y @ w_2.T + b)
    f_z, f_y = g_z * torch.tanh(y @ w_z.T + c), torch.tanh(z @ w_y.T + d)
    return LEMState(f_y * g_y - g_y * y, f_z - g_z * z)


# --- the heterogeneous multiscale method -----------------------------------------------------------------------------


def multiscale_solver(
    f: Callable[[Tensor], Tensor],
    g: Callable[[Tensor, Tensor], Tensor],
    macro: float,
    micro: float,
    micro_steps: int,
    steps: int,
    size: int = 1,
) -> tuple[Tensor, Tensor]:
    """Solve h' = (f(c) - h) / tau, c' = g(h, c) from zero by the heterogeneous multiscale method, for any small tau.

    Between two macro steps of size `macro` the fast h takes `micro_steps` steps h + micro (f(c) - h), `micro` in units
    of tau. (The paper prints a minus, with which it diverges.) Returns h and c after every macro step, (steps, size).
    `construct.heterogeneous(f, g, macro, (1 - micro) ** micro_steps, ...)` is the LEM that does the same.

    Examples:
        >>> import torch
        >>> from lem.analysis.relations import multiscale_solver
        >>> g = lambda h, c: 1 - h - 0.5 * c
        >>> h, c = multiscale_solver(torch.sin, g, macro=0.1, micro=0.2, micro_steps=10, steps=20)
        >>> c.shape
        torch.Size([20, 1])
    """
    h, c = torch.zeros(1, size, dtype=torch.float64), torch.zeros(1, size, dtype=torch.float64)
    fast, slow = [], []
    for _ in range(steps):
        for _ in range(micro_steps):
            h = h + micro * (f(c) - h)
        c = c + macro * g(h, c)
        fast.append(h)
        slow.append(c)
    return torch.cat(fast), torch.cat(slow)
