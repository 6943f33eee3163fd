"""The model: what the readout reads, embeddings, tied weights and counts."""

import pytest
import torch

from lem.nn.model import SequenceModel
from tests.close import assert_close


def test_the_last_answer_is_read_at_each_rows_end():
    model = SequenceModel("lem", 3, 5, 2).double()
    u, lengths = torch.randn(7, 3, 3, dtype=torch.float64), torch.tensor([7, 2, 4])
    prediction, _ = model(u, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, _ = model(u[:length, row : row + 1])
        assert_close(prediction[row : row + 1], alone, "float64")


def test_both_directions_are_read_at_their_ends():
    model = SequenceModel("lem", 3, 5, 2, bidirectional=True).double()
    u = torch.randn(6, 2, 3, dtype=torch.float64)
    outputs, _ = model.recurrent(u)
    expected = model.readout(torch.cat([outputs[-1, :, :5], outputs[0, :, 5:]], dim=-1))
    assert_close(model(u)[0], expected, "float64")


def test_answers_at_every_step_and_carried_state():
    model = SequenceModel("lem", 3, 5, 2, every_step=True, num_layers=2).double()
    u = torch.randn(6, 2, 3, dtype=torch.float64)
    whole, _ = model(u)
    first, state = model(u[:4])
    second, _ = model(u[4:], state)
    assert whole.shape == (6, 2, 2)
    assert_close(torch.cat([first, second]), whole, "float64")


def test_symbols_are_embedded_and_the_readout_can_share_the_matrix():
    model = SequenceModel("lem", 11, 5, 11, every_step=True, symbols=True, tied=True)
    assert model.readout.weight is model.embedding.weight
    prediction, _ = model(torch.randint(11, (4, 2)))
    assert prediction.shape == (4, 2, 11)
    names = [name for name, _ in model.named_parameters()]
    assert len(names) == len(set(names)) == 6
    with pytest.raises(ValueError, match="`tied` of SequenceModel"):
        SequenceModel("lem", 11, 5, 11, symbols=True, tied=True, embedding_size=4)


def test_dropout_acts_in_training_only():
    model = SequenceModel("lem", 3, 5, 2, input_dropout=0.5, output_dropout=0.5)
    u = torch.randn(6, 2, 3)
    assert not torch.equal(model(u)[0], model(u)[0])
    model.eval()
    assert torch.equal(model(u)[0], model(u)[0])


def test_kaiming_readout_has_the_authors_spread():
    weight = SequenceModel("lem", 1, 512, 300).readout.weight.detach()
    assert abs(float(weight.std(correction=0)) / (2 / 512) ** 0.5 - 1) < 0.02


def test_counts_as_the_papers_tables():
    counts = SequenceModel("lem", 6, 32, 5).count_parameters()
    assert counts == {"cell": 4992, "cell_and_readout": 5157, "all": 5157}
    counts = SequenceModel("lem", 1, 128, 10).count_parameters()
    assert counts["cell_and_readout"] == 67850


def test_every_parameter_is_in_one_group():
    model = SequenceModel("lem", 3, 5, 2, num_layers=2)
    grouped = [id(p) for group in model.param_groups(0.1) for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())


def test_a_convolution_sees_no_padding():
    """BiLSTM + 1-d convolution: each row is what it is alone, and NaN in the padding reaches nothing."""
    options = {"bidirectional": True, "conv_channels": 4, "conv_kernel": 3, "conv_stride": 2}
    model = SequenceModel("lstm", 3, 5, 2, **options).double()
    u, lengths = torch.randn(9, 3, 3, dtype=torch.float64), torch.tensor([9, 3, 6])
    u[6:, 2] = u[3:, 1] = float("nan")
    prediction, _ = model(u, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, _ = model(u[:length, row : row + 1])
        assert_close(prediction[row : row + 1], alone, "float64")
    prediction.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    with pytest.raises(ValueError, match="`state` of a SequenceModel with a convolution"):
        model(u, model(u[:, :1])[1])
    with pytest.raises(ValueError, match="`conv_channels` of SequenceModel"):
        SequenceModel("lstm", 3, 5, 2, conv_channels=4, every_step=True)


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match="`dtt` is not an option of cell 'lem'"):
        SequenceModel("lem", 3, 5, 2, dtt=1.0)
    with pytest.raises(ValueError, match="`readout_init` of SequenceModel"):
        SequenceModel("lem", 3, 5, 2, readout_init="zeros")


def test_sizes_that_make_no_model_are_refused():
    with pytest.raises(ValueError, match="`output_size` of SequenceModel must be a positive integer; got 0"):
        SequenceModel("lem", 3, 5, 0)
    with pytest.raises(ValueError, match="`embedding_size` of SequenceModel must be None if `symbols` is False"):
        SequenceModel("lem", 3, 5, 2, embedding_size=4)
    with pytest.raises(ValueError, match="convolution over 8 steps must be as long; got 7"):
        SequenceModel("lem", 3, 5, 2, conv_channels=4)(torch.zeros(9, 2, 3), None, torch.tensor([9, 7]))
