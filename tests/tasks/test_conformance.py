"""What every task must do: to register is to be tested."""

import pytest
import torch

from lem.metrics import LOSSES, METRICS
from lem.tasks import TASKS

# Smaller data where the task can make it; tasks that need files are tested where LEM_DATA has them.
SMALL: dict[str, dict] = {"adding": {"length": 50}, "fitzhugh_nagumo": {"sizes": (8, 8, 8)}}
MADE_ON_THE_FLY = ("adding", "fitzhugh_nagumo")


@pytest.fixture(scope="module", params=MADE_ON_THE_FLY)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def task(name):
    return TASKS[name](**SMALL.get(name, {}))


def test_names_of_loss_and_metric_are_known(task):
    assert task.loss in LOSSES
    assert task.metric in METRICS


@pytest.mark.parametrize("which", ["train", "valid", "test"])
def test_shapes(task, which):
    split = getattr(task, which)
    batch = (split() if which == "test" else split).batch(0, 4)
    steps, rows, channels = batch.inputs.shape
    assert (rows, channels) == (4, task.input_size)
    assert batch.targets.shape == ((steps, 4, task.output_size) if task.every_step else (4, task.output_size))
    assert batch.inputs.isfinite().all()


def test_the_same_seed_gives_the_same_data(name, task):
    again = TASKS[name](**SMALL.get(name, {}))
    assert torch.equal(task.valid.batch(0, 8).inputs, again.valid.batch(0, 8).inputs)
    other = TASKS[name](**SMALL.get(name, {}), data_seed=99)
    assert not torch.equal(task.valid.batch(0, 8).inputs, other.valid.batch(0, 8).inputs)


def test_training_order_is_fixed_by_seed_and_epoch(task):
    first = task.train.batch(1, 4, epoch=3, seed=5).inputs
    assert torch.equal(first, task.train.batch(1, 4, epoch=3, seed=5).inputs)
    assert not torch.equal(first, task.train.batch(1, 4, epoch=4, seed=5).inputs)
    assert not torch.equal(first, task.train.batch(1, 4, epoch=3, seed=6).inputs)


def test_splits_share_no_sequence(task):
    rows = [tuple(row.flatten()[:20].tolist()) for row in task.train.batch(0, 100, epoch=0).inputs.transpose(0, 1)]
    held_out = [tuple(row.flatten()[:20].tolist()) for row in task.valid.batch(0, 100).inputs.transpose(0, 1)]
    assert not set(rows) & set(held_out)
