"""Elapsed times on their way from a split through batches to the model."""

import pytest
import torch

from lem.nn.model import SequenceModel
from lem.training.data import ArraySplit, Batch, at_steps, rows
from lem.training.loop import evaluate, fit
from tests.close import assert_close


def split(samples=6, steps=5, lengths=None):
    generator = torch.Generator().manual_seed(0)
    elapsed = torch.rand(samples, steps, generator=generator) + 0.5
    inputs = torch.randn(samples, steps, 2, generator=generator)
    return ArraySplit(inputs, torch.randn(samples, 1, generator=generator), lengths, elapsed=elapsed)


def test_batches_hold_the_elapsed_times_of_their_rows():
    data = split()
    order = data._shuffled(3, 7)
    batch = data.batch(1, 4, epoch=3, seed=7)
    assert torch.equal(batch.elapsed, data.elapsed[order[4:]].T)
    assert torch.equal(rows(data.batch(0, 6), 1, 3).elapsed, data.elapsed[2:4].T)
    assert batch.timing.keys() == {"elapsed"}
    assert Batch(batch.inputs, batch.targets).timing == {}
    with pytest.raises(ValueError, match=r"`elapsed` of ArraySplit must be \(sample, time\), \(6, 5\); got \(5, 6\)"):
        ArraySplit(data.inputs, data.targets, elapsed=data.elapsed.T)


def test_the_times_between_chosen_steps_are_added_up():
    elapsed = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]).T
    batch = Batch(torch.zeros(5, 1, 2), torch.zeros(1, 1), elapsed=elapsed)
    assert at_steps(batch, torch.tensor([0, 2, 4])).elapsed[:, 0].tolist() == [1.0, 5.0, 9.0]
    assert at_steps(batch, torch.tensor([2, 3])).elapsed[:, 0].tolist() == [3.0, 4.0]


@pytest.mark.parametrize("options", [{}, {"truncate": 2}, {"accumulate": 2}, {"autocast": "bfloat16"}], ids=str)
def test_training_and_evaluation_call_the_model_with_them(options):
    """One update, against the same update by hand; without the times it is another one."""
    data, found = split(), []
    for given in (data, ArraySplit(data.inputs, data.targets)):
        torch.manual_seed(0)
        model = SequenceModel("lem", 2, 4, 1, dt=0.9)
        before = evaluate(model, given, metric="mse", batch_size=6)
        with torch.no_grad():
            expected = model(given.inputs.transpose(0, 1), **given.batch(0, 6).timing)[0]
        assert_close(before, float(((expected - given.targets) ** 2).mean()), "float32")
        fit(model, given, given, loss="mse", metric="mse", batch_size=6, epochs=1, learning_rate=0.1, **options)
        found.append([p.detach().clone() for p in model.parameters()])
    assert any((a - b).abs().max() > 1e-4 for a, b in zip(*found))


def test_padding_does_not_matter():
    data = split(lengths=torch.tensor([5, 3, 4, 1, 2, 5]))
    model = SequenceModel("lem", 2, 4, 1, dt=0.9)
    before = evaluate(model, data, metric="mse", batch_size=6)
    data.elapsed[1, 3:] = 7.0
    assert evaluate(model, data, metric="mse", batch_size=6) == before
