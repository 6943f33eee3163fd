"""What every task must do: to register is to be tested. Tasks that need files run where LEM_DATA has them."""

import json
import os

import pytest
import torch

from lem.tasks import METRIC_BY_TASK, SOURCES, TASKS
from lem.training.data import IGNORE
from lem.training.metrics import LOSSES, METRICS

SMALL: dict[str, dict] = {"adding": {"length": 50}, "fitzhugh_nagumo": {"sizes": (8, 8, 8)}}
"""Smaller data where the task can make it."""

NEEDED = {
    **dict.fromkeys(TASKS),
    **{name: name for name in SOURCES if name in TASKS},
    "heart_rate": "heart_rate_recordings",
}
"""Which source each task reads here; None for data made on the fly."""

SIZES = {
    "smnist": (57_000, 3_000, 10_000),
    "psmnist": (57_000, 3_000, 10_000),
    "ncifar10": (48_000, 2_000, 10_000),
    "eigenworms": (181, 39, 39),
    "heart_rate": (5_565, 1_192, 1_192),
    "ptb_char": (5_017_482, 393_042, 442_423),
    "ptb_word": (929_589, 73_760, 82_430),
    "long_pulse": (1_150, 246, 247),
    "physionet2012": (2_800, 400, 800),
}
"""The published sizes. Google12 is left out: its facts say where the clips are fewer."""

HIGHER_IS_BETTER = {"smnist", "psmnist", "ncifar10", "eigenworms", "google12", "long_pulse"}


def param(name):
    source = NEEDED[name]
    if source is None:
        return name
    missing = not os.environ.get("LEM_DATA") or not SOURCES[source].present()
    skip = pytest.mark.skipif(missing, reason=f"LEM_DATA does not hold the data of {source}")
    return pytest.param(name, marks=[pytest.mark.data, skip])


@pytest.fixture(scope="module", params=[param(name) for name in TASKS])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def task(name):
    return TASKS[name](**SMALL.get(name, {}))


def opened(task):
    return {"train": task.train, "valid": task.valid, "test": task.test()}


def test_names_of_loss_and_metric_are_known_and_point_the_right_way(name, task):
    assert task.loss in LOSSES
    assert METRICS[task.metric].higher_is_better == (name in HIGHER_IS_BETTER)
    assert task.metric == METRIC_BY_TASK[name]


def test_the_metric_of_every_task_is_known_before_its_data_is():
    assert set(METRIC_BY_TASK) == set(TASKS)
    assert {name for name, metric in METRIC_BY_TASK.items() if METRICS[metric].higher_is_better} == HIGHER_IS_BETTER


def test_the_facts_are_plain_values_for_json(task):
    assert json.loads(json.dumps(task.facts.known())) == task.facts.known()
    assert None not in task.facts.known().values()


def test_splits_have_the_published_sizes(name, task):
    if name in SIZES:
        assert tuple(len(split) for split in opened(task).values()) == SIZES[name]


@pytest.mark.parametrize("which", ["train", "valid", "test"])
def test_shapes_and_values(task, which):
    batch = opened(task)[which].batch(0, 4)
    steps, rows = batch.inputs.shape[:2]
    assert rows == 4
    if task.symbols:
        assert batch.inputs.shape == batch.targets.shape == (steps, 4)
        assert 0 <= int(batch.inputs.min()) <= int(batch.inputs.max()) < task.input_size
    else:
        assert batch.inputs.shape == (steps, 4, task.input_size)
        assert batch.inputs.dtype == torch.float32
        assert batch.inputs.isfinite().all()
    before = (steps, 4) if task.every_step else (4,)
    if task.loss == "cross_entropy":
        assert batch.targets.shape == before
        assert batch.targets.dtype == torch.int64
        kept = batch.targets[batch.targets != IGNORE]
        assert 0 <= int(kept.min()) <= int(kept.max()) < task.output_size
    else:
        assert batch.targets.shape == (*before, task.output_size)
        assert batch.targets.isfinite().all()


def test_labels_are_numbered_without_gaps(task):
    if task.loss == "cross_entropy" and not task.symbols:
        for split in opened(task).values():
            assert split.targets.unique().tolist() == list(range(task.output_size))


def test_the_same_seed_gives_the_same_data(name, task):
    again = TASKS[name](**SMALL.get(name, {}))
    for split, other in zip(opened(task).values(), opened(again).values()):
        assert torch.equal(split.batch(0, 8).inputs, other.batch(0, 8).inputs)
        assert torch.equal(split.batch(0, 8).targets, other.batch(0, 8).targets)


@pytest.mark.parametrize("name", ["adding", "fitzhugh_nagumo", param("smnist"), param("psmnist"), param("ncifar10")])
def test_another_data_seed_gives_other_data(name):
    one, other = (TASKS[name](**SMALL.get(name, {}), data_seed=seed) for seed in (1, 99))
    assert not torch.equal(one.valid.batch(0, 8).inputs, other.valid.batch(0, 8).inputs)


def test_training_order_is_fixed_by_seed_and_epoch(task):
    first = task.train.batch(1, 4, epoch=3, seed=5).inputs
    assert torch.equal(first, task.train.batch(1, 4, epoch=3, seed=5).inputs)
    assert not torch.equal(first, task.train.batch(1, 4, epoch=4, seed=5).inputs)
    if not task.symbols:  # a text is read in its order
        assert not torch.equal(first, task.train.batch(1, 4, epoch=3, seed=6).inputs)


def test_an_epoch_is_whole(task):
    """Every held-out answer is asked for once, whatever the batch size."""
    for split in (task.valid, task.test()):
        for size in (7, 1000):
            steps = split.steps(size)
            last = split.batch(steps - 1, size)
            if task.symbols:
                counted = sum(int((split.batch(s, size).targets != IGNORE).sum()) for s in range(steps))
                assert counted == len(split)
            else:
                assert (steps - 1) * size + last.inputs.shape[1] == len(split)


def test_splits_share_no_sequence(name, task):
    if task.symbols or name == "eigenworms":
        pytest.skip("texts repeat phrases; EigenWorms has known duplicates, which it counts and notes")
    seen: dict[bytes, str] = {}
    for which, split in opened(task).items():
        rows = split.batch(0, 500, epoch=0).inputs.transpose(0, 1)
        # The first steps tell sequences apart, but for the black border and the padding of images.
        for row in rows.reshape(len(rows), -1)[:, :784].numpy():
            assert seen.setdefault(row.tobytes(), which) == which
