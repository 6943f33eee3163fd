"""THEORY S0, S11 to S13 where a tool computes them: the ODE, the LSTM, Hodgkin-Huxley, the multiscale solver."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from lem import LEMCell
from lem.analysis import relations
from lem.nn.cells import LEMState
from tests import paper
from tests.close import assert_close
from tests.nn.cells.weights import paper_weights


def smooth(t):
    return torch.tensor([[math.sin(t), math.cos(0.7 * t)]]).double()


def test_lem_converges_to_its_ode_with_order_one():
    torch.manual_seed(0)
    cell = LEMCell(2, 5, dtype=torch.float64)
    errors = relations.ode_errors(cell, smooth, 5.0, [160, 320, 640])
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert_close(orders, [1.0, 1.0], "convergence order")
    assert cell.dt == 1.0


def test_the_two_scale_ode_has_the_biases_the_right_way_round():
    torch.manual_seed(0)
    cell = relations.two_scale_cell(LEMCell(2, 4, dt=0.5, dtype=torch.float64), tau_z=0.9, tau_y=0.02)
    y, z = torch.rand(3, 4).double(), torch.rand(3, 4).double()
    u = torch.randn(3, 2).double()
    slopes = relations.vector_field(cell, u, LEMState(y, z))
    w = paper_weights(cell)
    expected_z = 0.9 * (np.tanh(y.numpy() @ w["Wz"].T + u.numpy() @ w["Vz"].T + w["bz"]) - z.numpy())
    expected_y = 0.02 * (np.tanh(z.numpy() @ w["Wy"].T + u.numpy() @ w["Vy"].T + w["by"]) - y.numpy())
    assert_close(slopes.z, expected_z, "float64")
    assert_close(slopes.y, expected_y, "float64")
    with pytest.raises(ValueError, match="must be numbers in"):
        relations.two_scale_cell(cell, 1.0, 0.1)


def test_an_lstm_with_coupled_gates_is_a_lem():
    lstm = relations.couple_lstm(nn.LSTM(3, 6).double())
    lem, u = relations.lstm_to_lem(lstm), torch.randn(50, 2, 3).double()
    with torch.no_grad():
        h, (_, c) = lstm(u)
        y, (_, z) = lem(u)
    assert_close(y, h, "float64")
    assert_close(z, c, "float64")
    w = {}
    for prefix, name in (("V", "weight_ih_l0"), ("W", "weight_hh_l0")):
        for gate, block in zip("ifgo", getattr(lstm, name).detach().numpy().reshape(4, 6, -1)):
            w[prefix + gate] = block
    biases = (lstm.bias_ih_l0 + lstm.bias_hh_l0).detach().numpy().reshape(4, 6)
    w |= {"b" + gate: block for gate, block in zip("ifgo", biases)}
    assert_close(y[:, 0], paper.lstm(w, u[:, 0].numpy(), np.zeros(6), np.zeros(6)), "float64")
    # False as printed, without W_y = I:
    with torch.no_grad():
        lem.cells[0].weight_z.normal_()
        assert float((lem(u)[0] - h).abs().max()) > 0.1


def test_other_lstms_are_refused_with_the_reason():
    with pytest.raises(ValueError, match="forget gate must be 1 - input gate"):
        relations.lstm_to_lem(nn.LSTM(2, 3))
    closed = relations.couple_lstm(nn.LSTM(2, 3))
    with torch.no_grad():
        closed.bias_ih_l0[-1] = 0.0
        closed.bias_hh_l0[-1] = 0.0
    with pytest.raises(ValueError, match="output gate must be held at 1"):
        relations.lstm_to_lem(closed)
    with pytest.raises(ValueError, match="one layer"):
        relations.lstm_to_lem(nn.LSTM(2, 3, num_layers=2))


def points(count=500):
    y = 150 * torch.rand(count).double() - 30
    return y, torch.rand(count, 3).double(), 20 * torch.rand(count).double()


def test_hodgkin_huxley_has_the_corrected_form():
    y, z, current = points()
    for a, b in zip(relations.hodgkin_huxley(y, z, current), relations.hh_in_lem_form(y, z, current)):
        assert_close(a, b, "float64 gradient")


def test_hodgkin_huxley_is_not_of_the_printed_form():
    """The best scalar-product fit c (u + z1^4 + z2^3 z3)(y_bar - y) - c_3 y leaves most of the right-hand side."""
    y, z, current = (x.numpy() for x in points(4000))
    target = relations.hodgkin_huxley(*points(0))[0]  # keeps the signature honest
    assert target.numel() == 0
    truth = relations.hodgkin_huxley(*(torch.from_numpy(x) for x in (y, z, current)))[0].numpy()
    f_y = current + z[:, 0] ** 4 + z[:, 1] ** 3 * z[:, 2]
    basis = np.stack([f_y, -f_y * y, -y], 1)
    left = truth - basis @ np.linalg.lstsq(basis, truth, rcond=None)[0]
    assert np.linalg.norm(left) > 0.5 * np.linalg.norm(truth)


def test_the_rest_values_of_the_gates_need_the_constant_three():
    rest = torch.zeros(()).double()
    for constant, h in ((3.0, 0.596), (1.0, 0.207)):
        alpha, beta = relations.hh_rates(rest, beta_3_constant=constant)
        assert_close(alpha / (alpha + beta), [0.318, 0.053, h], "three digits")


def test_the_rates_pass_through_their_removable_poles():
    at = relations.hh_rates(torch.tensor([10.0, 25.0]).double())[0]
    near = relations.hh_rates(torch.tensor([10.0 + 1e-4, 25.0 + 1e-4]).double())[0]
    assert_close(at, near, "float32")


def test_lem_is_of_the_general_form():
    cell = LEMCell(2, 4, dt=0.3, dtype=torch.float64)
    state, u = LEMState(torch.rand(3, 4).double(), torch.rand(3, 4).double()), torch.randn(3, 2).double()
    for a, b in zip(relations.vector_field(cell, u, state), relations.lem_in_general_form(cell, u, state)):
        assert_close(a, b, "float64")


def test_the_micro_solver_has_a_closed_form():
    macro, micro, count = 0.05, 0.1, 20
    h, c = relations.multiscale_solver(torch.sin, lambda h, c: 1 - h - 0.5 * c, macro, micro, count, 20)
    leak, fast, slow = (1 - micro) ** count, 0.0, 0.0
    for n in range(20):
        fast = leak * fast + (1 - leak) * math.sin(slow)
        slow = slow + macro * (1 - fast - 0.5 * slow)
        assert_close([h[n, 0], c[n, 0]], [fast, slow], "float64")
    # False as printed: with a minus before the micro step the fast state runs away.
    runaway, _ = relations.multiscale_solver(torch.sin, lambda h, c: 1 - h - 0.5 * c, macro, -micro, count, 20)
    assert float(runaway.abs().max()) > 10
