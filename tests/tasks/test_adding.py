"""The adding problem as the paper describes it."""

import pytest
import torch

from lem.tasks.adding import adding, sequences


@pytest.mark.parametrize("length", [2, 7, 100])
def test_one_mark_in_each_half_and_their_sum(length):
    inputs, targets = sequences(length, 500, torch.Generator().manual_seed(0))
    values, marks = inputs.unbind(-1)
    assert marks[:, : length // 2].sum(1).eq(1).all()
    assert marks[:, length // 2 :].sum(1).eq(1).all()
    assert torch.allclose((values * marks).sum(1, keepdim=True), targets, rtol=0, atol=0)
    assert 0.0 <= values.min() <= values.max() <= 1.0


def test_marks_reach_every_place():
    inputs, _ = sequences(6, 2000, torch.Generator().manual_seed(0))
    assert (inputs[:, :, 1].sum(0) > 500).all()


def test_always_answering_one_gives_a_sixth():
    _, targets = sequences(50, 20000, torch.Generator().manual_seed(0))
    assert abs(float(((targets - 1.0) ** 2).mean()) - 1 / 6) < 0.005


def test_training_sequences_never_repeat():
    task = adding(length=20)
    batches = [task.train.batch(step, 5, epoch, 1).inputs for epoch in range(3) for step in range(3)]
    assert len({tuple(b.flatten().tolist()) for b in batches}) == 9


def test_too_short():
    with pytest.raises(ValueError, match="`length` of adding must be at least 2"):
        adding(length=1)
