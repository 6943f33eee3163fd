"""MNIST pixel by pixel: sMNIST in the order of the rows, psMNIST in one fixed random order.

784 steps of one pixel in [0, 1]; ten classes. Of the 60,000 training images 3,000 are drawn for validation; the 10,000
test images are the test set. The images stay bytes in memory and become numbers a batch at a time.
"""

import math
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lem.tasks.base import Task
from lem.tasks.fetch import Download, Source, fetch
from lem.training.data import ArraySplit, DataError, mix


def _download(name: str, sha256: str, size: int, unpacked: int) -> Download:
    url = f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz"
    mirror = f"https://storage.googleapis.com/cvdf-datasets/mnist/{name}.gz"
    return Download((url, mirror), {f"mnist/{name}": sha256}, size, folder="mnist", unpacked=unpacked)


SOURCE = Source(
    "smnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "CC BY-SA 3.0 as commonly cited",
    (
        _download(
            "train-images-idx3-ubyte",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            9_912_422,
            47_040_016,
        ),
        _download(
            "train-labels-idx1-ubyte",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            28_881,
            60_008,
        ),
        _download(
            "t10k-images-idx3-ubyte",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            1_648_877,
            7_840_016,
        ),
        _download(
            "t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", 4_542, 10_008
        ),
    ),
)


def read_idx(path: Path) -> Tensor:
    """Read a file of unsigned bytes in the idx format: a magic number, the sizes of the axes, the values."""
    content = path.read_bytes()
    axes = content[3] if len(content) > 3 else 0
    if content[:3] != b"\x00\x00\x08" or not 0 < axes < 5 or len(content) < 4 + 4 * axes:
        raise DataError(f"{path.name} must be an idx file of unsigned bytes; it starts with {content[:4]!r}.")
    shape = struct.unpack(f">{axes}I", content[4 : 4 + 4 * axes])
    values = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes)
    if values.size != math.prod(shape):
        raise DataError(f"{path.name} must hold {' x '.join(map(str, shape))} values; got {values.size}.")
    return torch.from_numpy(values.reshape(shape).copy())


class _Pixels(ArraySplit):
    """Images as bytes (sample, pixel); `order` is the pixel read at each step."""

    def __init__(self, images: Tensor, labels: Tensor, order: Tensor | None) -> None:
        super().__init__(images.flatten(1), labels.long())
        self.order = order

    def read(self, inputs: Tensor) -> Tensor:
        pixels = inputs if self.order is None else inputs[:, self.order]
        return pixels.t().float().div_(255.0)[:, :, None]


def _mnist(permuted: bool, data_seed: int) -> Task:
    files = fetch(SOURCE)
    # The first draw after seeding, as in the authors' code: seed 5544 gives the permutation of their runs.
    order = torch.randperm(784, generator=torch.Generator().manual_seed(data_seed)) if permuted else None

    def images(name: str) -> tuple[Tensor, Tensor]:
        return read_idx(files[f"mnist/{name}-images-idx3-ubyte"]), read_idx(files[f"mnist/{name}-labels-idx1-ubyte"])

    inputs, labels = images("train")
    chosen = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(mix(data_seed, 1)))
    train, valid = chosen[:57_000], chosen[57_000:]
    return Task(
        _Pixels(inputs[train], labels[train], order),
        _Pixels(inputs[valid], labels[valid], order),
        lambda: _Pixels(*images("t10k"), order),
        input_size=1,
        output_size=10,
        loss="cross_entropy",
        metric="accuracy",
    )


def smnist(data_seed: int = 5544) -> Task:
    """Make sequential MNIST: the pixels row by row.

    Args:
        data_seed: draws the validation images.
    """
    return _mnist(False, data_seed)


def psmnist(data_seed: int = 5544) -> Task:
    """Make permuted sequential MNIST: the pixels in one random order, the same for all images.

    Args:
        data_seed: draws the order and the validation images.
    """
    return _mnist(True, data_seed)
