"""LSTM, GRU and tanh-RNN: torch's modules as the oracle, chrono initialisation, the dt-LSTMs."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from lem import Recurrent
from lem.nn.recurrent import make_cell
from tests.close import assert_close

D, M = 5, 3
MODULES = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


@pytest.mark.parametrize("lengths", [None, [9, 2, 5]])
@pytest.mark.parametrize("name", sorted(MODULES))
def test_two_biases_give_torchs_module(name, lengths):
    """Layers, both directions, lengths and gradients equal those of torch's own module with the same weights."""
    theirs = MODULES[name](M, D, 2, bidirectional=True, dtype=torch.float64)
    ours = Recurrent(name, M, D, 2, bidirectional=True, two_biases=True, dtype=torch.float64)
    weights = dict(theirs.named_parameters())
    with torch.no_grad():
        for i, cell in enumerate(ours.cells):
            suffix = f"l{i // 2}" + ("_reverse" if i % 2 else "")
            for key, torchs in (
                ("weight_u", "weight_ih"),
                ("weight_h", "weight_hh"),
                ("bias", "bias_ih"),
                ("bias_h", "bias_hh"),
            ):
                getattr(cell, key).copy_(weights[f"{torchs}_{suffix}"])
    u = torch.randn(9, 3, M, dtype=torch.float64)
    given = None if lengths is None else torch.tensor(lengths)
    outputs, state = ours(u, lengths=given)
    if given is None:
        expected, final = theirs(u)
    else:
        packed, final = theirs(nn.utils.rnn.pack_padded_sequence(u, given, enforce_sorted=False))
        expected, _ = nn.utils.rnn.pad_packed_sequence(packed)
    assert_close(outputs, expected, "float64")
    for a, b in zip(state, final if isinstance(final, tuple) else (final,)):
        assert_close(a, b, "float64")
    outputs.square().sum().backward()
    expected.square().sum().backward()
    assert_close(ours.cells[0].weight_h.grad, weights["weight_hh_l0"].grad, "float64 gradient")


@pytest.mark.parametrize("name", sorted(MODULES))
def test_the_first_weights_are_distributed_as_torchs(name):
    cell = make_cell(name, M, 100)
    for p in cell.parameters():
        assert p.abs().max() <= 0.1
        assert_close(p.std(), torch.tensor(0.1 / math.sqrt(3)), "initial spread")


def test_chrono_time_constants_spread_over_the_memory():
    """1 / (1 - f) at zero input and state lies in [2, t_max], b_i = -b_f and all else is zero."""
    cell = make_cell("chrono-lstm", M, 500, t_max=784.0, dtype=torch.float64)
    b_i, b_f, b_g, b_o = cell.bias.detach().chunk(4)
    constants = 1 / (1 - torch.sigmoid(b_f))
    assert constants.min() >= 2.0
    assert constants.max() <= 784.0
    assert constants.max() > 760.0
    assert_close(b_i, -b_f, "exact")
    assert not b_g.any()
    assert not b_o.any()
    both = make_cell("chrono-lstm", M, 4, t_max=784.0, two_biases=True)
    assert not both.bias_h.any()


@pytest.mark.parametrize("two_biases", [False, True])
def test_forget_bias_is_the_bias_of_the_forget_gate_alone(two_biases):
    options = {"two_biases": two_biases, "dtype": torch.float64}
    torch.manual_seed(0)
    cell = make_cell("lstm", M, 500, forget_bias=1.0, **options)
    torch.manual_seed(0)
    plain = make_cell("lstm", M, 500, **options)
    bias, drawn = ((c.bias + c.bias_h if two_biases else c.bias).detach().chunk(4) for c in (cell, plain))
    assert_close(bias[1], np.ones(500), "exact")
    assert drawn[1].abs().max() < 0.1
    for gate in (0, 2, 3):
        assert_close(bias[gate], drawn[gate], "exact")
    assert_close(cell.weight_h, plain.weight_h, "exact")


@pytest.mark.parametrize(("name", "kept"), [("dt-lstm-v1", 0.1), ("dt-lstm-v2", 0.9)])
def test_dt_lstm_keeps_at_most_its_share_of_the_memory(name, kept):
    """With the forget gate wide open and the input gate shut, a step multiplies c by dt, or by 1 - dt."""
    cell = make_cell(name, M, D, dt=0.1, dtype=torch.float64)
    with torch.no_grad():
        for p in cell.parameters():
            p.zero_()
        i, f, _, _ = cell.bias.chunk(4)
        i.fill_(-800.0)
        f.fill_(800.0)
    state = cell.state_type(torch.zeros(1, D, dtype=torch.float64), torch.ones(1, D, dtype=torch.float64))
    _, after = cell.sequence(torch.zeros(10, 1, M, dtype=torch.float64), state)
    assert_close(after.c, np.full((1, D), kept**10), "float64")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("chrono-lstm", {"t_max": 2.0}, "`t_max` of LSTMCell"),
        ("chrono-lstm", {"bias": False}, "`bias` of LSTMCell"),
        ("lstm", {"bias": False, "forget_bias": 1.0}, "`bias` of LSTMCell"),
        ("lstm", {"forget_bias": math.inf}, "`forget_bias` of LSTMCell"),
        ("chrono-lstm", {"forget_bias": 1.0}, "`forget_bias` of LSTMCell must be None"),
        ("gru", {"bias": False, "two_biases": True}, "`bias` of GRUCell"),
        ("rnn", {"bias": False, "two_biases": True}, "`bias` of RNNCell"),
        ("dt-lstm-v1", {"dt": 1.5}, "`dt` of dt-lstm-v1"),
        ("dt-lstm-v2", {"dt": 1.0}, "`dt` of dt-lstm-v2"),
    ],
)
def test_wrong_options_are_refused(name, options, words):
    with pytest.raises(ValueError, match=words):
        make_cell(name, M, D, **options)
