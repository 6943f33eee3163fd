"""THEORY S1 to S7: the bounds, the exact Jacobian, the expansion, and the adjoint."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lem import LEMCell
from lem.analysis import bounds
from lem.nn.cells import LEMState
from tests import paper
from tests.close import TABLE, assert_close


def cell(inputs=2, units=4, seed=0, scale=1.0, **options):
    torch.manual_seed(seed)
    made = LEMCell(inputs, units, dtype=torch.float64, **options)
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(scale)
    return made.eval()


def saturated(dt, alternating=False):
    """One unit with open gates and tanh = 1, or the sign of the input: the worst case of the state bound."""
    one = {name: np.zeros((1, 1)) for name in ("W1", "W2", "Wz", "Wy", "V1", "V2", "Vz", "Vy")}
    one |= {name: np.full(1, 40.0) for name in ("b1", "b2", "bz", "by")}
    if alternating:
        one |= {"Vz": np.full((1, 1), 40.0), "Vy": np.full((1, 1), 40.0), "bz": np.zeros(1), "by": np.zeros(1)}
    inputs = np.array([[(-1.0) ** n] for n in range(40)])
    y, z = paper.lem(one, inputs, np.zeros(1), np.zeros(1), dt)
    return np.maximum(np.abs(y), np.abs(z))[:, 0]


@pytest.mark.parametrize("dt", [0.1, 0.7, 1.0, 1.2, 1.5, 1.9, 2.0])
def test_the_sharp_state_bound_is_attained(dt):
    reached = saturated(dt, alternating=dt > 1)
    assert_close([bounds.state_bound(dt, n + 1) for n in range(40)], reached, "float64")


def test_the_state_bounds_for_large_dt_and_any_start():
    assert_close([bounds.state_bound(dt, 10**4) for dt in (1.2, 1.5, 1.9)], [1.5, 3.0, 19.0], "float64")
    assert bounds.state_bound(2.0, 50) == 100.0
    assert bounds.state_bound(0.5, 100, start=3.0) == 3.0
    assert bounds.state_bound(1.5, 100, start=5.0) == 5.0


@given(st.floats(1e-4, 1.0), st.integers(1, 2000))
def test_the_papers_state_bound_is_true_but_not_sharp(dt, steps):
    assert bounds.state_bound(dt, steps) <= min(1.0, steps * dt) + TABLE["float64"].absolute
    assert bounds.state_bound(dt, steps) <= bounds.state_bound_paper(dt, steps) + TABLE["float64"].absolute


def test_proposition_1_refuses_a_large_dt():
    with pytest.raises(ValueError, match=r"Proposition 1 must be a number in \(0, 1\]; got 1.9"):
        bounds.state_bound_paper(1.9, 5)
    with pytest.raises(ValueError, match=r"`dt` of state_bound"):
        bounds.state_bound(2.5, 5)


def by_autograd(made, u, state):
    """The Jacobian of one step by automatic differentiation, ordered (z, y)."""
    d = made.hidden_size

    def step(x):
        after = made(u, LEMState(x[:, d:], x[:, :d]))
        return torch.cat([after[1], after[0]], 1)

    x = torch.cat([state[1], state[0]], 1)
    full = torch.autograd.functional.jacobian(step, x)
    return torch.stack([full[i, :, i] for i in range(len(x))])


@pytest.mark.parametrize(
    "options", [{}, {"dt": 0.3}, {"dt": 1.7}, {"clip": (0.4, 0.6)}, {"single_scale": True, "dt": 0.5}]
)
def test_the_one_step_jacobian_is_exact(options):
    for seed in range(20):
        made = cell(seed=seed, scale=float(10 ** (seed / 10 - 1)), **options)
        u, state = torch.randn(3, 2).double(), LEMState(torch.rand(3, 4).double(), torch.rand(3, 4).double())
        e, f = bounds.jacobian(made, u, state)
        built = torch.eye(8).double() + made.dt * e + made.dt**2 * f
        assert_close(built, by_autograd(made, u, state), "float64")


def test_the_jacobian_without_its_second_order_part_is_caught():
    made = cell(scale=2.0)
    u, state = torch.randn(3, 2).double(), LEMState(torch.rand(3, 4).double(), torch.rand(3, 4).double())
    e, _ = bounds.jacobian(made, u, state)
    with pytest.raises(AssertionError, match="values differ"):
        assert_close(torch.eye(8).double() + made.dt * e, by_autograd(made, u, state), "float64")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.01, 1.0), st.floats(0.1, 10.0))
def test_the_norm_bounds_hold(seed, dt, scale):
    made = cell(seed=seed, dt=dt, scale=scale)
    u = 3 * torch.randn(15, 1, 2).double()
    eta = bounds.gain(made)
    with torch.no_grad():
        (y, z), _ = made.trajectory(u)
    product, slack = torch.eye(8).double(), 1 + TABLE["float64"].relative
    for n in range(1, 15):
        e, f = (m[0].detach() for m in bounds.jacobian(made, u[n], LEMState(y[n - 1], z[n - 1])))
        step = torch.eye(8).double() + dt * e + dt**2 * f
        limit = bounds.norm_bounds(eta, dt, n + 1)
        for matrix, bound in zip((e, f, step), limit):
            assert float(matrix.abs().sum(1).max()) <= bound * slack
        product = step @ product
        assert math.log10(float(product.abs().sum(1).max())) <= bounds.log10_product_bound(eta, dt, n) + slack - 1


def test_the_linear_growth_needs_a_short_time():
    x = bounds.LINEAR_LIMIT / 2
    assert_close(math.exp(x), 1 + 2 * x, "float64")
    for factor, holds in ((0.999, True), (1.001, False)):
        total, n = factor * bounds.LINEAR_LIMIT, 10**7
        assert ((1 + total / 2 / n) ** n <= 1 + total) is holds
    # Gamma >= 2 always, so dt ~ n^(-1/2) (the paper's remark) is covered for no weights at all once n >= 2.
    assert bounds.growth(0.0) * 100**0.5 > bounds.LINEAR_LIMIT


def gradients(made, u, target):
    made.zero_grad()
    outputs, _ = made.sequence(u[:, None])
    error = outputs[-1, 0] - target
    (0.5 * (error**2).sum()).backward()
    return error.detach()


def test_the_corrected_total_gradient_bound_holds():
    worst = 0.0
    for seed in range(60):
        d, n = 1 + seed % 5, 2 + seed % 17
        made = cell(units=d, seed=seed, scale=float(torch.rand(1)) * 2)
        made.dt = min(1.0, 0.9999 * bounds.LINEAR_LIMIT / (bounds.growth(bounds.gain(made)) * n))
        u, target = 2 * torch.rand(n, 2).double() - 1, 3 * torch.randn(d).double()
        error = gradients(made, u, target)
        limit = bounds.total_gradient_bound(made, n, float(error.abs().sum()))
        for name, p in made.named_parameters():
            kind = {"weight_u": "V", "bias": "b"}.get(name, "W")
            worst = max(worst, float(p.grad.abs().max()) / limit[kind])
    assert 0.05 < worst <= 1.0


def printed_bound(made, n, target):
    """Proposition 2 as printed: (1 + Y) t_n (1 + Gamma t_n)."""
    t_n, gamma = n * made.dt, bounds.growth(bounds.gain(made))
    return (1 + float(target.abs().max())) * t_n * (1 + gamma * t_n)


def test_the_total_gradient_bound_is_false_as_printed_for_many_units():
    d, n = 1000, 100
    made = cell(inputs=1, units=d, scale=0.0, dt=0.85 / n)
    with torch.no_grad():
        made.weight_y[d : 2 * d, 0] = 0.1
        made.bias[d] = 40.0  # the gate of unit 1 is open
        made.bias[3 * d + 1 :] = 8.0
    target = torch.full((d,), -100.0).double()
    error = gradients(made, torch.zeros(n, 1).double(), target)
    seen = float(made.bias.grad[3 * d])
    assert abs(seen) > printed_bound(made, n, target)
    assert_close([abs(seen), printed_bound(made, n, target)], [510.8, 294.6], "quoted")
    assert abs(seen) <= bounds.total_gradient_bound(made, n, float(error.abs().sum()))["b"]


def test_the_total_gradient_bound_is_false_as_printed_for_large_inputs():
    made, n = cell(inputs=1, units=1, scale=0.0, dt=0.01), 100
    with torch.no_grad():
        made.bias[1] = 40.0
    target, u = torch.full((1,), -1.0).double(), torch.full((n, 1), 50.0).double()
    error = gradients(made, u, target)
    seen = float(made.weight_u.grad.abs().max())
    assert_close([seen, printed_bound(made, n, target)], [31.7, 6.0], "quoted")
    assert seen > printed_bound(made, n, target)
    assert seen <= bounds.total_gradient_bound(made, n, float(error.abs().sum()), largest_input=50.0)["V"]


@pytest.mark.parametrize(
    ("options", "steps", "named"),
    [
        ({"dt": 1.5}, 1, "dt must be at most 1; it is 1.5"),
        ({"dt": 0.1}, 1000, "Gamma t_n must be at most 2.5129"),
        ({"dt": 1e-6, "clip": (0.0, 1.0)}, 10, "must not be clipped"),
        ({"dt": 1e-6, "learn_initial_state": True}, 10, "initial state must be zero"),
        ({"dt": 1e-6, "state_dropout": 0.5}, 10, "state dropout must be off"),
    ],
)
def test_proposition_2_names_the_violated_hypothesis(options, steps, named):
    made = cell(**options)
    if made.y_0 is not None:
        torch.nn.init.ones_(made.y_0)
    made.train()
    with pytest.raises(ValueError, match=named):
        bounds.total_gradient_bound(made, steps, 1.0)


# --- Proposition 3 -------------------------------------------------------------------------------------------------


def slope(x, y):
    return float(np.polyfit(np.log(x), np.log(np.abs(y)), 1)[0])


TARGET = torch.tensor([0.7, -1.0, 0.4, 1.3]).double()


def expansion(start, steps=12, k=3):
    """dt, and for each the exact value and the first and second term of the corrected expansion."""
    rows = []
    u = torch.randn(steps, 2).double()
    for power in range(5, 12):
        made = cell(seed=3, dt=2.0**-power)
        state = LEMState(torch.full((1, 4), start).double(), torch.full((1, 4), start).double())
        p = bounds.partial_gradient(made, u, k, 1, 2, TARGET, state)
        rows.append((made.dt, *p))
    return np.array(rows).T


def test_the_partial_gradient_is_exact():
    made, u = cell(seed=3, scale=2.0, dt=0.3), torch.randn(6, 2).double()
    # Two copies of W_y: the one used at step k only, by autograd.
    w_y = made.weight_z.detach().clone().requires_grad_()
    y, z = (torch.zeros(1, 4).double() for _ in range(2))
    for n in range(6):
        step = torch.func.functional_call(
            made, {"weight_z": w_y if n == 2 else made.weight_z.detach()}, (u[n : n + 1], (y, z))
        )
        y, z = step
    (0.5 * (y**2).sum()).backward()
    for alpha, beta in ((0, 0), (1, 3), (2, 1)):
        assert_close(bounds.partial_gradient(made, u, 3, alpha, beta).exact, w_y.grad[alpha, beta], "float64")


@pytest.mark.parametrize("seed", range(6))
def test_the_corrected_expansion_leaves_a_third_order_remainder(seed):
    """(exact - first) / second tends to 1 with an error that halves with dt; how small it is depends on the draw."""
    torch.manual_seed(seed)
    u, state = torch.randn(12, 2).double(), LEMState(*(torch.full((1, 4), 0.5).double() for _ in range(2)))
    dts = [2.0**-power for power in range(8, 12)]
    found = [bounds.partial_gradient(cell(seed=seed, dt=dt), u, 3, 1, 2, TARGET, state) for dt in dts]
    assert slope(dts, [p.exact - p.first - p.second for p in found]) > 2.9
    missed = np.array([(p.exact - p.first) / p.second - 1 for p in found])
    assert_close(missed[:-1] / missed[1:], [2.0] * 3, "halving")
    assert abs(missed[-1]) < 5e-3


def test_the_expansion_is_false_with_the_printed_sign():
    torch.manual_seed(0)
    u = torch.randn(12, 2).double()
    remainders, dts = [], [2.0**-p for p in range(5, 12)]
    for dt in dts:
        made = cell(seed=3, dt=dt)
        state = LEMState(torch.full((1, 4), 0.5).double(), torch.full((1, 4), 0.5).double())
        p = bounds.partial_gradient(made, u, 3, 1, 2, TARGET, state)
        (y, _), _ = made.trajectory(u[:, None], state)
        before = torch.cat([state[0][None], y[:-1]])[:, 0]
        dt_y = bounds.parts(made, u, before).dt_y
        leak = p.first * float(dt_y[3:, 1].detach().sum())
        remainders.append(p.exact - p.first - (p.second + 2 * leak))
    assert_close(slope(dts[3:], remainders[3:]), 2.0, "convergence order")


def test_from_a_zero_start_the_orders_are_two_and_four():
    dt, exact, first, second = expansion(start=0.0)
    assert_close(slope(dt[3:], exact[3:]), 2.0, "convergence order")
    assert slope(dt[3:], (exact - first - second)[3:]) > 3.9


def contribution(made, u, k):
    """What step k adds to dE_n / dW_y, all entries, by autograd: W_y of that step alone is a variable."""
    w_y = made.weight_z.detach().clone().requires_grad_()
    with torch.no_grad():
        before = made.sequence(u[: k - 1, None])[1]
    y, z = torch.func.functional_call(made, {"weight_z": w_y}, (u[k - 1 : k], tuple(before)))
    y = made.sequence(u[k:, None], LEMState(y, z))[1][0]
    (0.5 * (y**2).sum()).backward()
    return float(w_y.grad.norm()), float(y.detach().abs().sum())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("regime", "order"), [("fixed", 2.0), ("root", 1.5), ("proportional", 1.0)])
def test_the_order_of_the_partial_gradient_depends_on_k(regime, order, seed):
    """Printed: O(dt^(3/2)) whatever k. It is that for k ~ dt^(-1/2) only; everywhere it is an upper bound.

    The norm over all entries is taken: a single entry may change sign within the range and then has no exponent.
    """
    values, dts = [], [2.0**-p for p in range(7, 11)]
    for dt in dts:
        made, n = cell(seed=seed, scale=1.5, dt=dt), round(1 / dt)
        u = torch.sin(torch.arange(1, n + 1) * dt)[:, None].repeat(1, 2).double() + 0.5
        k = {"fixed": 3, "root": round(dt**-0.5), "proportional": n // 2}[regime]
        value, error = contribution(made, u, k)
        values.append(value)
        limit = math.log10(dt * bounds.state_bound(dt, k) * error * made.hidden_size)
        assert math.log10(value) <= limit + bounds.log10_product_bound(bounds.gain(made), dt, n - k)
    assert_close(slope(dts, values), order, "regime order")


# --- the adjoint ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"dt": 0.4}, {"clip": (0.4, 0.6)}, {"single_scale": True, "dt": 0.5}])
def test_the_adjoint_equals_autograd(options):
    made, u = cell(scale=2.0, **options), torch.randn(9, 3, 2).double()
    start = [torch.zeros(3, 4).double().requires_grad_() for _ in range(2)]
    outputs, _ = made.sequence(u, LEMState(*start))
    error = torch.randn(3, 4).double()
    (outputs[-1] * error).sum().backward()
    expected = sum(s.grad.abs().sum(1) for s in start)
    norms = bounds.adjoint(made, u, error)
    assert_close(norms[-1], expected, "float64 gradient")
    assert norms.shape == (10, 3)
    assert (bounds.adjoint(made, u, error, absolute=True) >= norms - TABLE["float64"].absolute).all()


@pytest.mark.parametrize("options", [{"dt": 0.4}, {"dt": 1.0}, {"clip": (0.4, 0.6)}, {"single_scale": True, "dt": 0.5}])
def test_the_adjoint_with_elapsed_times_equals_autograd(options):
    made, u = cell(scale=2.0, **options), torch.randn(9, 3, 2).double()
    elapsed = torch.exp(torch.randn(9, 3).double())
    elapsed[4] = 1.0
    states = [[torch.zeros(3, 4).double().requires_grad_() for _ in range(2)]]
    error = torch.randn(3, 4).double()
    for t in range(9):
        states.append(list(made.sequence(u[t : t + 1], LEMState(*states[-1]), elapsed=elapsed[t : t + 1])[1]))
    loss = (states[-1][0] * error).sum()
    grads = torch.autograd.grad(loss, [s for pair in states[:-1] for s in pair])
    expected = [a.abs().sum(1) + b.abs().sum(1) for a, b in zip(grads[::2], grads[1::2])]
    norms = bounds.adjoint(made, u, error, elapsed=elapsed)
    assert_close(norms[1:], torch.stack(expected[::-1]), "float64 gradient")
    with pytest.raises(AssertionError):
        assert_close(norms, bounds.adjoint(made, u, error), "float64 gradient")
    assert torch.equal(bounds.adjoint(made, u, error, elapsed=torch.ones_like(elapsed)), bounds.adjoint(made, u, error))
    absolute = bounds.adjoint(made, u, error, absolute=True, elapsed=elapsed)
    assert (absolute >= norms - TABLE["float64"].absolute).all()


def test_random_state_dropout_is_refused():
    made = cell(state_dropout=0.5).train()
    with pytest.raises(ValueError, match=r"Call cell.eval\(\)"):
        bounds.adjoint(made, torch.zeros(3, 1, 2).double())


def test_at_a_fixed_time_the_expansion_is_not_asymptotic():
    """The relative error of the two terms does not fall with dt where t_n - t_k stays; it falls with that time."""
    target = torch.tensor([0.7, -1.0, 0.4, 1.3]).double()
    found = {}
    for time in (1.0, 0.1):
        for n in (50, 400):
            u = torch.sin(torch.arange(1, n + 1) * time / n)[:, None].repeat(1, 2).double() + 0.5
            p = bounds.partial_gradient(cell(seed=5, scale=2.0, dt=time / n), u, n // 10, 1, 2, target)
            found[time, n] = abs(p.exact - p.first - p.second) / abs(p.exact)
    assert found[1.0, 400] > 0.5 * found[1.0, 50] > 0.01
    assert found[0.1, 400] < 0.05 * found[1.0, 400]
