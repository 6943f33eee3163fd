"""The laws of LEM: equation (3) against the paper's voice, and THEORY's statements S0, S1, S2, S13 and S14."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lem import LEM, LEMCell
from lem.nn.cells import LEMState
from tests import paper
from tests.close import TABLE, assert_close
from tests.nn.cells.weights import paper_weights

D, M, STEPS = 5, 3, 40


def cell_and_inputs(seed=0, scale=1.0, steps=STEPS, **options):
    torch.manual_seed(seed)
    cell = LEMCell(M, D, dtype=torch.float64, **options)
    with torch.no_grad():
        for p in cell.parameters():
            p.mul_(scale)
    return cell, torch.randn(steps, 1, M, dtype=torch.float64)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dt": 0.03},
        {"dt": 2.0},
        {"clip": (0.25, 1.0)},
        {"clip": (1.0, 1.0)},
        {"single_scale": True, "dt": 0.3},
        {"t_max": 100.0},
        {"initial_dt": 0.01},
        {"bias": False},
    ],
    ids=str,
)
def test_equation_3_agrees_with_the_paper(options):
    cell, u = cell_and_inputs(**options)
    y_0, z_0 = torch.rand(2, 1, D, dtype=torch.float64)
    states, _ = cell.trajectory(u, LEMState(y_0, z_0))
    y, z = paper.lem(
        paper_weights(cell),
        u[:, 0].numpy(),
        y_0[0].numpy(),
        z_0[0].numpy(),
        cell.dt,
        clip=options.get("clip"),
        single_scale=options.get("single_scale", False),
    )
    assert_close(states.y[:, 0], y, "float64")
    assert_close(states.z[:, 0], z, "float64")


def test_gradient_agrees_with_the_papers_adjoint():
    cell, u = cell_and_inputs(dt=0.7)
    u.requires_grad_()
    y_0, z_0 = (torch.rand(1, D, dtype=torch.float64).requires_grad_() for _ in range(2))
    weight = torch.randn(STEPS, 1, D, dtype=torch.float64)
    outputs, _ = cell.sequence(u, LEMState(y_0, z_0))
    (outputs * weight).sum().backward()
    arrays = (t.detach().numpy() for t in (u[:, 0], y_0[0], z_0[0]))
    expected, grad_u, grad_y, grad_z = paper.lem_gradient(paper_weights(cell), *arrays, cell.dt, weight[:, 0].numpy())
    assert_close(u.grad[:, 0], grad_u, "float64 gradient")
    assert_close(y_0.grad[0], grad_y, "float64 gradient")
    assert_close(z_0.grad[0], grad_z, "float64 gradient")
    names = ("1", "2", "z", "y")
    assert_close(cell.weight_u.grad, np.concatenate([expected["V" + n] for n in names]), "float64 gradient")
    assert_close(cell.weight_y.grad, np.concatenate([expected["W" + n] for n in names[:3]]), "float64 gradient")
    assert_close(cell.weight_z.grad, expected["Wy"], "float64 gradient")
    assert_close(cell.bias.grad, np.concatenate([expected["b" + n] for n in names]), "float64 gradient")


def test_the_authors_weights_give_the_authors_outputs():
    rng = np.random.default_rng(0)
    shapes = {
        "inp2hid.weight": (4 * D, M),
        "inp2hid.bias": (4 * D,),
        "hid2hid.weight": (3 * D, D),
        "hid2hid.bias": (3 * D,),
        "transform_z.weight": (D, D),
        "transform_z.bias": (D,),
    }
    weights = {key: rng.uniform(-1, 1, shape) for key, shape in shapes.items()}
    u = rng.standard_normal((STEPS, M))
    expected = paper.authors_lem(weights, u, dt=0.6)
    tensors = {key: torch.from_numpy(value) for key, value in weights.items()}
    cell = LEMCell.from_official(tensors, dt=0.6)
    assert_close(cell.sequence(torch.from_numpy(u)[:, None])[0][:, 0], expected, "official")
    prefixed = {f"rnn.cell.{key}": value for key, value in tensors.items()}
    assert_close(LEM.from_official(prefixed, dt=0.6)(torch.from_numpy(u))[0], expected, "official")


def test_state_dropout_drops_y_where_it_enters_the_gates_and_z_only():
    cell, u = cell_and_inputs(state_dropout=0.5)
    torch.manual_seed(4)
    outputs, _ = cell.sequence(u)
    torch.manual_seed(4)
    (mask,) = cell.prepare(1)
    assert set(mask.flatten().tolist()) == {0.0, 2.0}
    zero = np.zeros(D)
    y, _ = paper.lem(paper_weights(cell), u[:, 0].numpy(), zero, zero, cell.dt, mask=mask[0].numpy())
    assert_close(outputs[:, 0], y, "float64")
    cell.eval()
    y, _ = paper.lem(paper_weights(cell), u[:, 0].numpy(), zero, zero, cell.dt)
    assert_close(cell.sequence(u)[0][:, 0], y, "float64")


def test_two_biases_train_as_a_module_with_two_biases_does():
    ours, u = cell_and_inputs(two_biases=True)
    theirs = LEMCell(M, D, dtype=torch.float64)
    second = torch.zeros_like(ours.bias, requires_grad=True)
    theirs.load_state_dict(ours.state_dict())
    first = theirs.bias
    mine = torch.optim.Adam(ours.param_groups(0.01))
    reference = torch.optim.Adam([*theirs.parameters(), second], lr=0.01)
    for _ in range(5):
        mine.zero_grad()
        ours.sequence(u)[0].square().sum().backward()
        mine.step()
        reference.zero_grad()
        first.data += second.data  # run with the sum, whose gradient is that of each
        theirs.sequence(u)[0].square().sum().backward()
        first.data -= second.data
        second.grad = first.grad.clone()
        reference.step()
    assert_close(ours.bias, first + second, "float64")
    assert_close(ours.weight_y, theirs.weight_y, "float64")
    spread = LEMCell(2, 1000, two_biases=True).bias.detach() * math.sqrt(1000)
    assert 1.5 < spread.abs().max() <= 2.0


def test_the_learned_initial_state_starts_at_zero_and_gets_a_gradient():
    cell, u = cell_and_inputs(learn_initial_state=True)
    assert not any(s.any() for s in cell.init_state(2))
    cell.sequence(u)[0].sum().backward()
    assert cell.y_0.grad.abs().min() > 0
    assert cell.z_0.grad.abs().min() > 0


@pytest.mark.parametrize(("options", "count"), [({}, 4 * D * D + 4 * D * M + 4 * D), ({"single_scale": True}, 90)])
def test_parameter_count(options, count):
    assert sum(p.numel() for p in LEMCell(M, D, **options).parameters()) == count


def test_as_many_parameters_as_an_lstm_with_one_bias():
    lstm = torch.nn.LSTM(7, 33)
    assert sum(p.numel() for p in LEM(7, 33).parameters()) == sum(p.numel() for p in lstm.parameters()) - 4 * 33


def test_initial_weights_are_uniform_in_one_over_sqrt_d():
    cell = LEMCell(50, 64)
    for p in cell.parameters():
        assert 0.12 < p.abs().max() <= 0.125
        assert p.mean().abs() < 0.02


# --- THEORY ---------------------------------------------------------------------------------------------------------


def test_s0_first_order_convergence_to_the_ode():
    from scipy.integrate import solve_ivp

    torch.manual_seed(0)
    cells = LEMCell(M, D, dtype=torch.float64)
    w = paper_weights(cells)

    def signal(t):
        return np.array([np.sin(t), np.cos(2 * t), np.sin(0.5 * t + 1)])

    def slope(t, x):
        y, z, u = x[:D], x[D:], signal(t)
        dz = paper.sigmoid(w["W1"] @ y + w["V1"] @ u + w["b1"]) * (np.tanh(w["Wz"] @ y + w["Vz"] @ u + w["bz"]) - z)
        dy = paper.sigmoid(w["W2"] @ y + w["V2"] @ u + w["b2"]) * (np.tanh(w["Wy"] @ z + w["Vy"] @ u + w["by"]) - y)
        return np.concatenate([dy, dz])

    exact = solve_ivp(slope, (0, 5), np.zeros(2 * D), rtol=1e-11, atol=1e-12).y[:D, -1]
    errors = []
    for k in (6, 7, 8, 9):
        cells.dt = 2.0**-k
        times = cells.dt * np.arange(1, 5 * 2**k + 1)
        u = torch.from_numpy(np.stack([signal(t) for t in times]))[:, None]
        with torch.no_grad():
            errors.append(np.abs(cells.sequence(u)[1].y[0].numpy() - exact).max())
    orders = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    assert_close(orders, np.ones(3), "convergence order")


@settings(max_examples=60, deadline=None)
@given(
    dt=st.floats(1e-4, 1.0),
    scale=st.floats(0.1, 10.0),
    size=st.sampled_from([1e-3, 1.0, 3.0, 1e4]),
    seed=st.integers(0, 10**6),
)
def test_s1_states_stay_below_the_sharp_bound(dt, scale, size, seed):
    cell, u = cell_and_inputs(seed, scale * math.sqrt(D), steps=30, dt=dt)
    states, _ = cell.trajectory(size * u)
    bound = 1.0 - (1.0 - dt) ** torch.arange(1, 31, dtype=torch.float64)
    rounding = 1.0 + TABLE["float64"].relative
    for field in states:
        assert (field.abs().amax(dim=(1, 2)) <= bound * rounding).all()


@pytest.mark.parametrize("dt", [1.2, 1.5, 1.9])
def test_s1_beyond_dt_1_saturated_alternating_input_attains_the_bound(dt):
    cell = LEMCell(1, 1, dt=dt, dtype=torch.float64)
    with torch.no_grad():
        for p in cell.parameters():
            p.zero_()
        cell.bias[:2] = 40.0
        cell.weight_u[2] = 40.0
    u = torch.tensor([(-1.0) ** n for n in range(400)], dtype=torch.float64)[:, None, None]
    z = cell.trajectory(u)[0].z.abs()
    assert_close(z.max(), torch.tensor(dt / (2 - dt)), "float64")


@pytest.mark.parametrize("dt", [0.05, 1.0, 1.7])
def test_s2_the_one_step_jacobian_is_exact(dt):
    for seed in range(20):
        cell, u = cell_and_inputs(seed, 3.0, steps=1, dt=dt)
        w, u_0 = paper_weights(cell), u[0, 0].numpy()
        y, z = np.random.default_rng(seed).uniform(-1, 1, (2, D))
        a, b = (paper.sigmoid(w["W" + k] @ y + w["V" + k] @ u_0 + w["b" + k]) for k in "12")
        c = np.tanh(w["Wz"] @ y + w["Vz"] @ u_0 + w["bz"])
        z_new = (1 - dt * a) * z + dt * a * c
        d = np.tanh(w["Wy"] @ z_new + w["Vy"] @ u_0 + w["by"])
        m = np.diag(a * (1 - a) * (c - z)) @ w["W1"] + np.diag(a * (1 - c**2)) @ w["Wz"]
        e_yz = np.diag(b * (1 - d**2)) @ w["Wy"]
        e_yy = -np.diag(b) + np.diag(b * (1 - b) * (d - y)) @ w["W2"]
        eye = np.eye(D)
        expected = {
            "zz": eye - dt * np.diag(a),
            "zy": dt * m,
            "yz": dt * e_yz - dt**2 * e_yz @ np.diag(a),
            "yy": eye + dt * e_yy + dt**2 * e_yz @ m,
        }

        def one_step(y, z, cell=cell, u=u):
            after = cell(u[0, 0], LEMState(y, z))
            return after.y, after.z

        (yy, yz), (zy, zz) = torch.autograd.functional.jacobian(one_step, (torch.from_numpy(y), torch.from_numpy(z)))
        for got, key in ((yy, "yy"), (yz, "yz"), (zy, "zy"), (zz, "zz")):
            assert_close(got, expected[key], "float64")


def test_s13_lstm_equivalence():
    rng = np.random.default_rng(3)
    w = {k + g: rng.standard_normal(s) for g in "ig" for k, s in (("W", (D, D)), ("V", (D, M)), ("b", (D,)))}
    w |= {k + "f": -w[k + "i"] for k in "WVb"}
    w |= {"Wo": np.zeros((D, D)), "Vo": np.zeros((D, M)), "bo": np.full(D, 40.0)}
    u = rng.standard_normal((50, M))
    expected = paper.lstm(w, u, np.zeros(D), np.zeros(D))
    cell = LEMCell(M, D, dtype=torch.float64)
    zero_v, zero_w = np.zeros((D, M)), np.zeros((D, D))
    with torch.no_grad():
        cell.weight_u.copy_(torch.from_numpy(np.concatenate([w["Vi"], zero_v, w["Vg"], zero_v])))
        cell.weight_y.copy_(torch.from_numpy(np.concatenate([w["Wi"], zero_w, w["Wg"]])))
        cell.weight_z.copy_(torch.eye(D))
        cell.bias.copy_(torch.from_numpy(np.concatenate([w["bi"], np.full(D, 40.0), w["bg"], np.zeros(D)])))
    outputs = cell.sequence(torch.from_numpy(u)[:, None])[0][:, 0]
    assert_close(outputs, expected, "float64")
    with torch.no_grad():
        cell.weight_z.normal_()
    assert (cell.sequence(torch.from_numpy(u)[:, None])[0][:, 0] - torch.from_numpy(expected)).abs().max() > 0.5


@pytest.mark.parametrize(("t_max", "dt"), [(17984, 1.0), (17984, 0.0016), (100, 0.5)])
def test_s14_chrono_time_constants(t_max, dt):
    cell = LEMCell(2, 4000, dt=dt, t_max=t_max, dtype=torch.float64)
    gate = dt * torch.sigmoid(cell.bias[:4000])
    steps = 1.0 / gate
    assert steps.min() >= 2.0 / dt * (1 - TABLE["float64"].relative)
    assert steps.max() <= t_max * (1 + TABLE["float64"].relative)
    assert steps.max() > 0.99 * t_max
    assert not cell.bias[4000:].any()


def test_s14_chrono_interval_is_empty_for_short_memories():
    with pytest.warns(UserWarning, match="must exceed 2"):
        cell = LEMCell(2, 3, dt=0.1, t_max=20)
    assert not cell.bias.any()


@pytest.mark.parametrize("init", ["uniform", "language"])
@pytest.mark.parametrize(("dt", "initial_dt"), [(1.0, 0.0121), (2.0, 1.9), (0.5, 1e-6)])
def test_gates_start_at_initial_dt(dt, initial_dt, init):
    """The drawn biases scatter around it; all else is drawn as without it."""
    cells = []
    for options in ({"initial_dt": initial_dt}, {}):
        torch.manual_seed(0)
        cells.append(LEMCell(2, 400, dt=dt, init=init, dtype=torch.float64, **options))
    moved, plain = (cell.bias.detach().clone() for cell in cells)
    plain[:400] -= float(init == "language")
    start = dt * torch.sigmoid(moved[:800] - plain[:800])
    assert_close(start, torch.full_like(start, initial_dt), "float64")
    assert torch.equal(moved[800:], plain[800:])
    assert all(
        torch.equal(p, q) for (n, p), q in zip(cells[0].named_parameters(), cells[1].parameters()) if n != "bias"
    )
    assert f"initial_dt={initial_dt}" in repr(cells[0])
    assert "initial_dt" not in repr(cells[1])


def test_initial_dt_of_half_dt_is_the_start_without_it():
    torch.manual_seed(0)
    plain = LEMCell(2, 5, dt=0.3)
    torch.manual_seed(0)
    assert torch.equal(LEMCell(2, 5, dt=0.3, initial_dt=0.15).bias, plain.bias)


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dt": 0.0}, r"`dt` of LEMCell must be a number in \(0, 2\]; got 0.0"),
        ({"dt": 2.1}, r"`dt` of LEMCell"),
        ({"dt": math.nan}, r"`dt` of LEMCell"),
        ({"dt": "1"}, r"`dt` of LEMCell"),
        ({"clip": (0.5, 0.1)}, "`clip` of LEMCell"),
        ({"clip": (0.5,)}, "`clip` of LEMCell"),
        ({"state_dropout": 1.0}, "`state_dropout` of LEMCell"),
        ({"t_max": -1}, "`t_max` of LEMCell"),
        ({"single_scale": True, "clip": (0.1, 1.0)}, "`single_scale` of LEMCell"),
        ({"bias": False, "t_max": 10}, "`bias` of LEMCell"),
        ({"bias": False, "initial_dt": 0.1}, "`bias` of LEMCell"),
        ({"single_scale": True, "initial_dt": 0.1}, "`single_scale` of LEMCell"),
        ({"initial_dt": 0.0}, r"`initial_dt` of LEMCell must be a number in \(0, 1.0\); got 0.0"),
        ({"initial_dt": 0.5, "dt": 0.5}, r"`initial_dt` of LEMCell must be a number in \(0, 0.5\); got 0.5"),
        ({"initial_dt": 0.1, "t_max": 10}, "`initial_dt` of LEMCell must be None"),
    ],
    ids=str,
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        LEMCell(2, 3, **options)


@pytest.mark.parametrize(
    ("sizes", "message"), [((0, 3), "`input_size`"), ((2, -1), "`hidden_size`"), ((2, 3.0), "`hidden_size`")]
)
def test_bad_sizes(sizes, message):
    with pytest.raises(ValueError, match=message):
        LEMCell(*sizes)


def test_bad_step_arguments():
    cell = LEMCell(2, 3)
    with pytest.raises(ValueError, match=r"`u` of LEMCell must have shape \(batch, 2\)"):
        cell(torch.zeros(4, 5))
    with pytest.raises(ValueError, match=r"`state` .* of LEMCell must have shapes .*; got"):
        cell(torch.zeros(4, 2), (torch.zeros(4, 3), torch.zeros(3, 3)))
    with pytest.raises(ValueError, match="must hold"):
        LEMCell.from_official({"inp2hid.weight": torch.zeros(4, 1)})


def test_language_initialisation_has_the_stated_deviations():
    cell = LEMCell(200, 400, init="language")
    with torch.no_grad():
        for parameter, inputs in ((cell.weight_u, 200), (cell.weight_y, 400), (cell.weight_z, 400)):
            assert 0.98 < float(parameter.std()) * math.sqrt(inputs) < 1.02
            assert float(parameter.abs().max()) <= 2.0 * math.sqrt(1.3 / inputs)
        assert 0.98 < float(cell.bias[:400].mean()) < 1.02
        assert -0.02 < float(cell.bias[400:].mean()) < 0.02
    with pytest.raises(ValueError, match="`init` of LEMCell must be 'uniform' or 'language'; got 'best'"):
        LEMCell(2, 3, init="best")
