"""Batches by number: complete, shuffled by the seed, and the same whenever they are asked for."""

import pytest
import torch

from lem.training.data import ArraySplit, mix


def split(count=10, steps=4, every_step=False):
    inputs = torch.arange(count * steps * 2, dtype=torch.float32).view(count, steps, 2)
    targets = torch.arange(count) if not every_step else torch.arange(count * steps).view(count, steps)
    return ArraySplit(inputs, targets, every_step=every_step)


def test_an_epoch_visits_every_sample_once():
    data = split()
    assert data.steps(4) == 3
    seen = torch.cat([data.batch(step, 4, epoch=2, seed=7).targets for step in range(3)])
    assert sorted(seen.tolist()) == list(range(10))
    assert seen.tolist() != list(range(10))


def test_the_natural_order_without_an_epoch():
    data = split()
    assert torch.cat([data.batch(step, 4).targets for step in range(3)]).tolist() == list(range(10))


def test_inputs_follow_their_targets_and_are_time_major():
    batch = split().batch(1, 4, epoch=0, seed=1)
    assert batch.inputs.shape == (4, 4, 2)
    assert torch.equal(batch.inputs[0, :, 0], 8.0 * batch.targets)
    every = split(every_step=True).batch(0, 3)
    assert every.targets.shape == (4, 3)


def test_batches_depend_on_their_number_alone():
    first, second = split(), split()
    first.batch(0, 4, epoch=5, seed=3)
    for step in (2, 0, 1):
        a, b = first.batch(step, 4, epoch=1, seed=3), second.batch(step, 4, epoch=1, seed=3)
        assert torch.equal(a.inputs, b.inputs)
    other = second.batch(0, 4, epoch=2, seed=3)
    assert not torch.equal(other.targets, first.batch(0, 4, epoch=1, seed=3).targets)


def test_unequal_counts_are_refused():
    with pytest.raises(ValueError, match="one entry per sample; got 3, 2 and None"):
        ArraySplit(torch.zeros(3, 4, 1), torch.zeros(2))


def test_nearby_seeds_are_unrelated():
    values = [mix(a, b) for a in range(30) for b in range(30)]
    assert len(set(values)) == 900
    assert all(0 <= value < 2**63 for value in values)
    bits = torch.tensor([[value >> k & 1 for k in range(63)] for value in values], dtype=torch.float64)
    assert (bits.mean(0) - 0.5).abs().max() < 0.1
