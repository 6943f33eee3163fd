"""IndRNN: its bound on the recurrent weights, its batch normalisation and weight decay."""

import pytest
import torch

from lem.nn.recurrent import make_cell
from tests.close import assert_close

D, M = 6, 3


def test_a_unit_grows_by_at_most_the_magnitude_over_the_length():
    """After training has pushed w beyond its bound, `after_update` brings it back to magnitude^(1 / length)."""
    cell = make_cell("indrnn", M, D, length=50, magnitude=5.0, dtype=torch.float64)
    assert cell.weight_h.min() >= 0.0
    assert cell.weight_h.max() <= 5.0 ** (1 / 50)
    with torch.no_grad():
        cell.weight_h.mul_(100.0)[0].neg_()
        cell.weight_u.zero_()
    cell.after_update()
    h = torch.ones(1, D, dtype=torch.float64)
    _, final = cell.sequence(torch.zeros(50, 1, M, dtype=torch.float64), cell.state_type(h))
    expected = torch.full((1, D), 5.0)
    expected[0, 0] = 0.0  # a negative weight and ReLU
    assert_close(final.h, expected, "float64")


def test_batch_norm_normalises_the_projected_input_over_batch_and_time():
    cell = make_cell("indrnn", M, D, batch_norm=True, dtype=torch.float64)
    x = cell.project(5.0 + 3.0 * torch.randn(20, 8, M, dtype=torch.float64))
    assert_close(x.mean((0, 1)), torch.zeros(D), "float64")
    assert_close(x.var((0, 1), correction=0), torch.ones(D), "normalised variance")
    assert sum(p.numel() for p in cell.parameters()) == D * M + 2 * D + 2 * D


def test_batch_norm_is_causal_once_trained_and_refuses_padding_before():
    cell = make_cell("indrnn", M, D, batch_norm=True, dtype=torch.float64)
    u, lengths = torch.randn(7, 3, M, dtype=torch.float64), torch.tensor([7, 2, 4])
    cell.sequence(u)
    with pytest.raises(ValueError, match="would count the padding"):
        cell.sequence(u, lengths=lengths)
    cell.eval()
    outputs, _ = cell.sequence(u, lengths=lengths)
    alone, _ = cell.sequence(u[:2, 1:2])
    assert_close(outputs[:2, 1:2], alone, "float64")


def test_only_the_input_matrix_decays():
    cell = make_cell("indrnn", M, D, weight_decay=1e-4)
    decays = {id(p): group.get("weight_decay", 0.0) for group in cell.param_groups(0.1) for p in group["params"]}
    assert decays == {id(cell.weight_u): 1e-4, id(cell.weight_h): 0.0, id(cell.bias): 0.0}
