"""MNIST: the idx files, pixels in order, and the real images."""

import struct

import pytest
import torch

from lem.tasks.mnist import _Pixels, psmnist, read_idx, smnist
from lem.training.data import DataError
from tests.tasks.real import needs


def test_idx_by_hand(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\0\0\x08\x02" + struct.pack(">II", 2, 3) + bytes([1, 2, 3, 4, 5, 255]))
    assert read_idx(path).tolist() == [[1, 2, 3], [4, 5, 255]]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\x08",
        b"\0\0\x0d\x01" + struct.pack(">I", 1) + b"1",
        b"\0\0\x08\x01" + struct.pack(">I", 2) + b"1",
        b"\0\0\x08\x03" + struct.pack(">III", 2**31, 2**31, 2**31),
        b"\0\0\x08\xff",
    ],
)
def test_damaged_idx_is_a_data_error(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DataError):
        read_idx(tmp_path / "x")


def test_pixels_become_numbers_in_the_order_asked_for():
    images = torch.arange(8, dtype=torch.uint8).view(2, 2, 2) * 30
    labels = torch.tensor([7, 8], dtype=torch.uint8)
    batch = _Pixels(images, labels, None).batch(0, 2)
    assert batch.inputs.shape == (4, 2, 1)
    assert batch.inputs.dtype == torch.float32
    assert batch.inputs[:, 1, 0].tolist() == pytest.approx([120 / 255, 150 / 255, 180 / 255, 210 / 255])
    assert batch.targets.tolist() == [7, 8]
    order = torch.tensor([2, 0, 3, 1])
    assert torch.equal(_Pixels(images, labels, order).batch(0, 2).inputs, batch.inputs[order])


@needs("smnist")
def test_real_images():
    plain, permuted = smnist(), psmnist()
    counts = torch.zeros(10)
    for task in (plain, permuted):
        assert [len(s) for s in (task.train, task.valid, task.test())] == [57_000, 3_000, 10_000]
    test = plain.test()
    # Facts known to everyone: the first test image is a 7, and so many of each digit there are.
    assert test.targets[0] == 7
    assert test.targets.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    counts = plain.train.targets.bincount() + plain.valid.targets.bincount()
    assert counts.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    a, b = plain.train.batch(3, 16, epoch=2, seed=1), permuted.train.batch(3, 16, epoch=2, seed=1)
    assert torch.equal(a.targets, b.targets)
    assert (a.inputs.min(), a.inputs.max()) == (0.0, 1.0)
    # The authors seed the generator with 5544 and draw the permutation first.
    torch.manual_seed(5544)
    assert torch.equal(a.inputs[torch.randperm(784)], b.inputs)
    other = psmnist(data_seed=1)
    assert not torch.equal(other.test().batch(0, 8).inputs, permuted.test().batch(0, 8).inputs)
