"""TARNN: a step width for each time step, shared after the last."""

import torch

from lem.nn.recurrent import make_cell
from tests.close import assert_close

D, M = 4, 2


def test_each_of_the_first_steps_has_its_own_alpha_and_later_ones_share_the_last():
    cell = make_cell("tarnn", M, D, length=4, dtype=torch.float64)
    u = torch.randn(7, 1, M, dtype=torch.float64)
    before, _ = cell.sequence(u)
    for changed, first_difference in ((0, 0), (2, 2), (3, 3)):
        kept = cell.alpha.detach().clone()
        with torch.no_grad():
            cell.alpha[0, changed] += 0.5
        after, _ = cell.sequence(u)
        with torch.no_grad():
            cell.alpha.copy_(kept)
        assert_close(after[:first_difference], before[:first_difference], "exact")
        assert not torch.equal(after[first_difference], before[first_difference])
    outputs, _ = cell.sequence(u)
    outputs[-1].sum().backward()
    assert cell.alpha.grad[0, 3] != 0.0


def test_no_iteration_moves_the_state_where_alpha_is_zero():
    cell = make_cell("tarnn", M, D, iterations=3, dtype=torch.float64)
    with torch.no_grad():
        cell.alpha.zero_()
    h = torch.randn(1, D, dtype=torch.float64)
    state = cell.state_type(h, torch.zeros(1, D, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))
    outputs, _ = cell.sequence(torch.randn(5, 1, M, dtype=torch.float64), state)
    assert_close(outputs, h.expand(5, 1, D), "float64")


def test_the_gate_starts_nearly_shut():
    assert make_cell("tarnn", M, D).bias[:D].eq(-3.0).all()
    assert not make_cell("tarnn", M, D, gate_outside=False).bias.any()
