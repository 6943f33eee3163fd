"""Tests of the tests: broken twins that the comparison helpers must catch."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from lem import LEMCell
from lem.experiments.runner import run
from lem.nn.cells import Cell, LEMState
from lem.training.checkpoint import load_tree, save_tree
from tests import paper
from tests.close import TABLE, assert_close
from tests.nn.cells.weights import paper_weights
from tests.runs import assert_same_run, tiny

D, M, STEPS = 17, 3, 12


class GatesSwapped(LEMCell):
    def time_steps(self, gates_u, gates_y):
        return super().time_steps(gates_u, gates_y)[::-1]


class YFromTheOldZ(LEMCell):
    def step(self, x, state, *mask):
        new = super().step(x, state, *mask)
        x_y = x.chunk(4, dim=-1)[3]
        x_gate, y_gate = x.chunk(4, dim=-1)[1], functional.linear(state[0], self.weight_y).chunk(3, dim=-1)[1]
        dt_y = self.dt * torch.sigmoid(x_gate + y_gate)
        y = (1 - dt_y) * state[0] + dt_y * torch.tanh(functional.linear(state[1], self.weight_z) + x_y)
        return LEMState(y, new[1])


class NoBiasOfZ(LEMCell):
    def project(self, u):
        bias = self.bias.clone()
        bias[2 * self.hidden_size : 3 * self.hidden_size] = 0.0
        return functional.linear(u, self.weight_u, bias)


class LastUnitUntouched(LEMCell):
    def step(self, x, state, *mask):
        y, z = super().step(x, state, *mask)
        return LEMState(torch.cat([y[:, :-1], state[0][:, -1:]], dim=1), z)


class TimeReversed(LEMCell):
    def sequence(self, u, state=None, lengths=None, reverse=False):
        return super().sequence(u, state, lengths, not reverse)


def compare_with_the_paper(cell: Cell) -> None:
    u = torch.randn(STEPS, 1, M, dtype=torch.float64)
    zero = np.zeros(D)
    expected, _ = paper.lem(paper_weights(cell), u[:, 0].numpy(), zero, zero, cell.dt)
    assert_close(cell.sequence(u)[0][:, 0], expected, "float64")


def test_the_true_cell_passes():
    compare_with_the_paper(LEMCell(M, D, dtype=torch.float64))


@pytest.mark.parametrize("twin", [GatesSwapped, YFromTheOldZ, NoBiasOfZ, LastUnitUntouched, TimeReversed])
def test_a_broken_twin_is_caught(twin):
    with pytest.raises(AssertionError, match="values differ"):
        compare_with_the_paper(twin(M, D, dtype=torch.float64))


def test_a_broken_adjoint_is_caught():
    """The gradient helper notices a gate's derivative that is missing."""
    cell = LEMCell(M, D, dtype=torch.float64)
    u = torch.randn(STEPS, 1, M, dtype=torch.float64)
    zero, ones = np.zeros(D), np.ones((STEPS, D))
    cell.sequence(u)[0].sum().backward()
    right = paper.lem_gradient(paper_weights(cell), u[:, 0].numpy(), zero, zero, cell.dt, ones)[0]
    assert_close(cell.weight_z.grad, right["Wy"], "float64 gradient")
    with pytest.raises(AssertionError, match="values differ"):
        assert_close(cell.weight_z.grad * (1 + 1e-6), right["Wy"], "float64 gradient")


@pytest.mark.parametrize("kind", sorted(TABLE))
def test_every_row_refuses_twice_its_tolerance_nan_and_another_shape(kind):
    one = np.ones(3)
    limit = TABLE[kind].absolute + TABLE[kind].relative
    assert_close(one, one + 0.49 * limit, kind)
    for wrong in (one + 2.1 * limit + 1e-300 + 1e-15, np.array([1.0, np.nan, 1.0]), np.ones(2)):
        with pytest.raises(AssertionError):
            assert_close(wrong, one, kind)


def test_infinities_and_nans_compare_as_values():
    special = np.array([np.inf, -np.inf, np.nan])
    assert_close(special, special, "exact")
    with pytest.raises(AssertionError):
        assert_close(np.array([np.inf]), np.array([-np.inf]), "float32")


def test_shapes_in_signatures_are_checked():
    cell = LEMCell(2, 3)
    with pytest.raises(Exception, match="time batch input"):
        cell.sequence(torch.zeros(4, 2))


def test_runs_that_differ_in_one_bit_or_leave_a_file_behind_are_caught(tmp_path):
    first, _ = run(tiny(train__epochs=1), 3, tmp_path / "first")
    second, _ = run(tiny(train__epochs=1), 3, tmp_path / "second")
    assert_same_run(second, first)
    (second.path / ".last.ckpt.1.tmp").touch()
    with pytest.raises(AssertionError, match="half-written"):
        assert_same_run(second, first)
    (second.path / ".last.ckpt.1.tmp").unlink()
    tree = load_tree(second.path / "last.ckpt")
    weight = tree["model"]["readout.weight"]
    weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(1e9))
    save_tree(second.path / "last.ckpt", tree)
    with pytest.raises(AssertionError, match="model differs"):
        assert_same_run(second, first)
    other, _ = run(tiny(train__epochs=1), 4, tmp_path / "third")
    with pytest.raises(AssertionError, match="the runs differ"):
        assert_same_run(other, first)
