"""Noisy CIFAR-10: rows, noise, and the real images."""

import numpy as np
import pytest
import torch

from lem.tasks.ncifar10 import _Noisy, ncifar10, read_images
from lem.training.data import DataError
from tests.close import assert_close
from tests.tasks.real import needs


def test_a_row_is_red_then_green_then_blue(tmp_path):
    image = np.arange(3 * 32 * 32).reshape(3, 32, 32) % 251
    (tmp_path / "x.bin").write_bytes(bytes([4]) + image.astype(np.uint8).tobytes())
    rows, labels = read_images([tmp_path / "x.bin"])
    assert labels.tolist() == [4]
    assert rows.shape == (1, 32, 96)
    for row in (0, 5, 31):
        assert rows[0, row].tolist() == [*image[0, row], *image[1, row], *image[2, row]]


def test_a_damaged_file_is_a_data_error(tmp_path):
    (tmp_path / "x.bin").write_bytes(bytes(3072))
    with pytest.raises(DataError, match="records of 3073 bytes; got 3072"):
        read_images([tmp_path / "x.bin"])


def images(count):
    return torch.randint(256, (count, 32, 96), dtype=torch.uint8), torch.arange(count)


def test_shared_noise_is_the_same_for_all():
    noise = torch.randn(968, 1, 96)
    pictures, labels = images(5)
    split = _Noisy(pictures, labels, noise, 1)
    batch = split.batch(1, 2)
    assert batch.inputs.shape == (1000, 2, 96)
    assert torch.equal(batch.inputs[:32], pictures[2:4].transpose(0, 1) / 255.0)
    assert torch.equal(batch.inputs[32:], noise.expand(-1, 2, -1))
    assert split.batch(2, 2).inputs.shape == (1000, 1, 96)


def test_fresh_noise_differs_but_is_fixed_by_its_place():
    split = _Noisy(*images(6), None, 1)
    first, again, other = split.batch(0, 3, 0, 7), split.batch(0, 3, 0, 7), split.batch(0, 3, 1, 7)
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs[32:], other.inputs[32:])
    assert not torch.equal(first.inputs[32:, 0], first.inputs[32:, 1])
    assert torch.equal(split.batch(1, 3).inputs, split.batch(1, 3, None, 99).inputs)
    assert abs(float(first.inputs[32:].std()) - 1.0) < 0.01


def test_memory_is_used_again_but_never_while_someone_holds_it():
    split = _Noisy(*images(40), torch.randn(968, 1, 96), 1)
    held = [split.batch(step, 4).inputs for step in range(5)]
    expected = [_Noisy(split.inputs, split.targets, split.noise, 1).batch(step, 4).inputs for step in range(5)]
    for mine, fresh in zip(held, expected):
        assert torch.equal(mine, fresh)
    kept = split.batch(9, 4).inputs[:3]  # a view holds the memory too
    places = set()
    for step in range(6):
        batch = split.batch(step, 4)
        places.add(batch.inputs.data_ptr())
    assert len(places) == 2
    assert torch.equal(kept, _Noisy(split.inputs, split.targets, split.noise, 1).batch(9, 4).inputs[:3])


def test_memory_is_not_taken_from_a_backward_pass():
    split = _Noisy(*images(8), torch.randn(968, 1, 96), 1)
    weight = torch.zeros(96, requires_grad=True)
    inputs = split.batch(0, 4).inputs
    expected = inputs.sum((0, 1))
    answer = (inputs * weight).sum()  # keeps `inputs` for its gradient
    del inputs
    for step in (1, 0, 1, 0):
        split.batch(step, 4)
    answer.backward()
    assert_close(weight.grad / 4000, expected / 4000, "float32")


def test_an_unknown_noise_is_refused():
    with pytest.raises(ValueError, match="must be 'shared' or 'fresh'; got 'loud'"):
        ncifar10(noise="loud")


@needs("ncifar10")
def test_real_images():
    task = ncifar10()
    test = task.test()
    assert [len(s) for s in (task.train, task.valid, test)] == [48_000, 2_000, 10_000]
    assert test.targets.bincount().tolist() == [1000] * 10
    assert (task.train.targets.bincount() + task.valid.targets.bincount()).tolist() == [5000] * 10
    a, b = task.train.batch(0, 4, 0, 0), test.batch(0, 4)
    assert torch.equal(a.inputs[32:, 0], b.inputs[32:, 3])
    assert 0.0 <= b.inputs[:32].min() < b.inputs[:32].max() <= 1.0
    assert task.facts.known() == {"noise": "shared"}
