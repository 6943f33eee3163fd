"""SkipLSTM: its skip patterns, its straight-through gradient and the price of an update."""

import copy
import pickle

import numpy as np
import pytest
import torch

from lem.nn.recurrent import make_cell
from tests import paper
from tests.close import assert_close
from tests.nn.cells.test_transcriptions import gates, plain

D, M = 4, 2


def with_increment(value, **options):
    """Return a cell whose increment is `value` whatever it sees."""
    cell = make_cell("skiplstm", M, D, dtype=torch.float64, **options)
    with torch.no_grad():
        cell.weight_gate.zero_()
        cell.bias_gate.copy_(torch.logit(torch.tensor(value, dtype=torch.float64)))
    return cell


@pytest.mark.parametrize(
    ("increment", "pattern"),
    [
        (0.9, "11111111"),
        (0.51, "11111111"),
        (0.5, "10101010"),  # round(0.5) = 0
        (0.26, "10101010"),
        (0.24, "10010010"),
        (0.11, "10000100"),
    ],
)
def test_a_constant_increment_gives_a_regular_pattern(increment, pattern):
    cell = with_increment(increment)
    states, final = cell.trajectory(torch.randn(8, 1, M, dtype=torch.float64))
    updates = states.updates[:, 0, 0].diff(prepend=torch.zeros(1)).round().int()
    assert "".join(map(str, updates.tolist())) == pattern
    assert final.updates.item() == pattern.count("1")
    held = [not torch.equal(states.h[t], states.h[t - 1]) for t in range(1, 8)]
    assert held == [step == "1" for step in pattern[1:]]


def test_each_sample_skips_for_itself():
    """A gate that reads the cell state opens at different steps for different rows, and rows do not mix."""
    cell = make_cell("skiplstm", M, D, dtype=torch.float64)
    with torch.no_grad():
        cell.bias_gate.fill_(-0.5)
        cell.weight_gate.mul_(8.0)
    u = 3.0 * torch.randn(30, 6, M, dtype=torch.float64)
    outputs, final = cell.sequence(u)
    assert len(set(final.updates[:, 0].round().tolist())) > 1
    for row in range(6):
        alone, _ = cell.sequence(u[:, row : row + 1])
        assert_close(outputs[:, row : row + 1], alone, "float64")


def test_the_gradient_is_that_of_the_gate_with_slope_one():
    """Straight-through: the derivative of round is 1, so the gradient is that of g = pending + a constant.

    The constants are those of the run itself; then finite differences of the transcription must agree.
    """
    cell = with_increment(0.3)
    with torch.no_grad():
        for p in cell.parameters():
            p += 0.2 * torch.randn_like(p)
    u = torch.randn(8, 1, M, dtype=torch.float64)
    arrays = {key: value.numpy().copy() for key, value in cell.state_dict().items()}
    start = (np.zeros(D), np.zeros(D), 1.0, 0.0, 0.0)
    offsets = []

    def record(pending):
        offsets.append(np.round(pending) - pending)
        return np.round(pending)

    def names(a):
        return gates(a, "ifgo") | plain(a, wp="weight_gate", bp="bias_gate")

    paper.run(paper.skiplstm_step, names(arrays), u[:, 0].numpy(), start, gate=record)
    assert any(offset < -0.2 for offset in offsets)  # some steps are skipped

    def total(changed):
        constants = iter(offsets)
        h, *_ = paper.run(
            paper.skiplstm_step, names(changed), u[:, 0].numpy(), start, gate=lambda pending: pending + next(constants)
        )
        return float((h * np.arange(1, 9)[:, None]).sum())

    outputs, _ = cell.sequence(u)
    (outputs[:, 0] * torch.arange(1, 9)[:, None]).sum().backward()
    for key, parameter in cell.named_parameters():
        flat = arrays[key].reshape(-1)
        numeric = np.zeros(flat.size)
        for k in range(flat.size):
            ends = []
            for step in (1e-5, -1e-5):
                moved = flat.copy()
                moved[k] += step
                ends.append(total({**arrays, key: moved.reshape(arrays[key].shape)}))
            numeric[k] = (ends[0] - ends[1]) / 2e-5
        assert_close(parameter.grad.reshape(-1), numeric, "finite differences")


def test_an_update_has_its_price():
    """The penalty is the cost times the mean number of updates of the last training sequence, once."""
    cell = with_increment(0.5, cost_per_update=0.25)
    u = torch.randn(8, 3, M, dtype=torch.float64)
    assert cell.penalty() is None
    cell.sequence(u)
    price = cell.penalty()
    assert_close(price, torch.tensor(0.25 * 4.0), "float64")
    assert cell.penalty() is None
    price.backward()
    assert cell.bias_gate.grad != 0.0
    cell.eval()
    cell.sequence(u)
    assert cell.penalty() is None


def test_a_cell_that_has_just_run_can_be_copied():
    cell = with_increment(0.5, cost_per_update=0.25)
    cell.sequence(torch.randn(8, 3, M, dtype=torch.float64))
    for other in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell))):
        assert other.penalty() is None
    assert cell.penalty() is not None
