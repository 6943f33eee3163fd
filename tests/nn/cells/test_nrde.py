"""NRDE: log-signatures against their definition, windows, and holding between them."""

import numpy as np
import pytest
import torch

from lem.nn.cells.nrde import lyndon_words
from lem.nn.recurrent import make_cell
from tests import paper
from tests.close import assert_close

D, M = 4, 2


@pytest.mark.parametrize("channels", [2, 3, 7])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_logsignature_is_that_of_the_definition(channels, depth):
    """Chen's rule, increment by increment, against the sums that define the iterated integrals."""
    cell = make_cell("nrde", channels - 1, D, depth=depth, inner_size=2, dtype=torch.float64)
    increments = torch.randn(6, channels, dtype=torch.float64)
    signature = torch.zeros(1, cell.state_sizes[2], dtype=torch.float64)
    for increment in increments:
        signature = cell._extend(signature, increment[None])
    assert_close(cell._log(signature)[0], paper.logsignature(increments.numpy(), depth), "float64")


def test_the_logsignature_of_a_straight_line_has_one_level():
    cell = make_cell("nrde", M, D, depth=3, inner_size=2, dtype=torch.float64)
    signature = torch.zeros(1, cell.state_sizes[2], dtype=torch.float64)
    for _ in range(5):
        signature = cell._extend(signature, torch.tensor([[0.1, 0.2, -0.3]], dtype=torch.float64))
    expected = np.zeros(cell.entries)
    expected[:3] = [0.5, 1.0, -1.5]
    assert_close(cell._log(signature)[0], expected, "float64")


@pytest.mark.parametrize(("depth", "entries"), [(1, 7), (2, 28), (3, 140)])
def test_the_number_of_entries_for_eigenworms(depth, entries):
    assert make_cell("nrde", 6, D, depth=depth, inner_size=2).entries == entries


def test_lyndon_words():
    assert lyndon_words(2, 3) == [(0, 0, 1), (0, 1, 1)]
    assert len(lyndon_words(5, 3)) == (5**3 - 5) // 3


def test_the_output_is_held_between_the_ends_of_windows():
    cell = make_cell("nrde", M, D, window=3, dtype=torch.float64)
    outputs, _ = cell.sequence(torch.randn(11, 2, M, dtype=torch.float64))
    changes = [t for t in range(1, 11) if not torch.equal(outputs[t], outputs[t - 1])]
    assert changes == [3, 6, 9]


def test_one_straight_window_does_not_depend_on_how_it_is_cut():
    """At depth 2 a window of a straight path has the log-signature of its increment, however many samples it has."""
    torch.manual_seed(1)
    fine = make_cell("nrde", M, D, window=6, length=7, dtype=torch.float64)
    torch.manual_seed(1)
    coarse = make_cell("nrde", M, D, window=1, length=2, dtype=torch.float64)
    line = torch.linspace(0, 1, 7, dtype=torch.float64)[:, None, None] * torch.tensor([[[1.0, -2.0]]])
    assert_close(fine.sequence(line)[0][-1], coarse.sequence(line[[0, -1]])[0][-1], "float64")


def test_the_last_map_learns_faster():
    groups = make_cell("nrde", M, D, final_rate=10.0).param_groups(0.01)
    assert [group["lr"] for group in groups] == [0.01, 0.1]
    assert [len(group["params"]) for group in groups] == [6, 2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"depth": 4}, "`depth`"),
        ({"solver": "euler"}, "`solver`"),
        ({"window": 0}, "`window`"),
        ({"length": 1}, "`length`"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        make_cell("nrde", M, D, **options)
