"""FastRNN and FastGRNN: where they start, and the fixed points of their sums."""

import torch

from lem.nn.recurrent import make_cell
from tests.close import assert_close

D, M = 4, 2


def test_the_first_sums_are_the_authors():
    """sigmoid(-3), sigmoid(3) for FastRNN; sigmoid(1), sigmoid(-4) for FastGRNN."""
    _, new, old = make_cell("fastrnn", M, D, dtype=torch.float64).prepare(1)
    assert_close(torch.stack([new, old]), [0.04742587317756678, 0.9525741268224334], "float64")
    _, zeta, nu, *_ = make_cell("fastgrnn", M, D, dtype=torch.float64).prepare(1)
    assert_close(torch.stack([zeta, nu]), [0.7310585786300049, 0.01798620996209156], "float64")
    assert make_cell("fastgrnn", M, D).bias.eq(1.0).all()


def test_fastgrnn_is_not_bounded_by_one():
    """With a saturated candidate and a gate g, the state tends to zeta + nu / (1 - g)."""
    cell = make_cell("fastgrnn", M, D, dtype=torch.float64)
    with torch.no_grad():
        cell.weight_u.zero_()
        cell.weight_h.zero_()
        cell.bias[:D], cell.bias[D:] = 3.0, 1000.0
    outputs, _ = cell.sequence(torch.zeros(2000, 1, M, dtype=torch.float64))
    g = torch.sigmoid(torch.tensor(3.0, dtype=torch.float64))
    _, zeta, nu, *_ = cell.prepare(1)
    assert_close(outputs[-1, 0], (zeta + nu / (1 - g)).expand(D), "float64")
    assert outputs[-1].min() > 1.0
