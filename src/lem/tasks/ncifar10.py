"""Noisy CIFAR-10: 32 rows of an image, then 968 rows of noise before the class is asked for.

A row is 96 numbers: its 32 red, 32 green and 32 blue values in [0, 1]. Of the 50,000 training images 2,000 are drawn
for validation. The authors draw ONE block of standard normal noise and append it to every image of every batch; that is
the default here, and `noise="fresh"` draws other noise for every image.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lem.tasks.base import DataFacts, Task
from lem.tasks.fetch import Download, Source, fetch
from lem.training.data import ArraySplit, Batch, DataError, mix

LENGTH, ROWS, WIDTH = 1000, 32, 96

SOURCE = Source(
    "ncifar10",
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    "none stated by its authors",
    (
        Download(
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            {
                f"cifar-10-batches-bin/{name}.bin": sha256
                for name, sha256 in {
                    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
                }.items()
            },
            170_052_171,
            folder=".",
            unpacked=190_000_000,
        ),
    ),
)


def read_images(paths: list[Path]) -> tuple[Tensor, Tensor]:
    """Read CIFAR-10's binary files: the images as bytes (sample, row, 3 x 32) and their labels."""
    records = []
    for path in paths:
        content = np.fromfile(path, dtype=np.uint8)
        if content.size == 0 or content.size % 3073:
            raise DataError(f"{path.name} must hold records of 3073 bytes; got {content.size} bytes.")
        records.append(content.reshape(-1, 3073))
    joined = torch.from_numpy(np.concatenate(records))
    rows = joined[:, 1:].view(-1, 3, ROWS, 32).transpose(1, 2)
    return rows.reshape(-1, ROWS, WIDTH), joined[:, 0].long()


class _Memory:
    """Memory for batches, reused when it is no longer referenced: fresh pages of 38 MB cost more than filling them."""

    def __init__(self) -> None:
        self.pool: list[tuple[Tensor, int]] = []

    def empty(self, *shape: int) -> Tensor:
        """Return a tensor of arbitrary content."""
        for tensor, alone in self.pool:
            if tensor.shape == shape and self._holders(tensor) == alone:
                return tensor.view(shape)
        tensor = torch.empty(shape)
        # Two take turns in a loop that asks for the next batch before it drops the last.
        self.pool = [*self.pool[-1:], (tensor, self._holders(tensor))]
        return tensor.view(shape)

    @staticmethod
    def _holders(tensor: Tensor) -> int:
        return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


class _Noisy(ArraySplit):
    """Images as bytes; a batch is made of their rows and the noise behind them."""

    def __init__(self, images: Tensor, labels: Tensor, noise: Tensor | None, data_seed: int) -> None:
        super().__init__(images, labels)
        self.noise = noise
        self.data_seed = data_seed
        self.memory = _Memory()

    def batch(self, step: int, batch_size: int, epoch: int | None = None, seed: int = 0) -> Batch:
        batch = super().batch(step, batch_size, epoch, seed)
        inputs = self.memory.empty(LENGTH, batch.inputs.shape[1], WIDTH)
        torch.div(batch.inputs, 255.0, out=inputs[:ROWS])
        if self.noise is not None:
            inputs[ROWS:] = self.noise
        else:
            numbers = (self.data_seed, step) if epoch is None else (self.data_seed, step, epoch, seed)
            inputs[ROWS:].normal_(generator=torch.Generator().manual_seed(mix(*numbers)))
        return batch._replace(inputs=inputs)


def ncifar10(noise: str = "shared", data_seed: int = 5544) -> Task:
    """Make noisy CIFAR-10.

    Args:
        noise: "shared", one block for all images, as the authors do; or "fresh", another for every image.
        data_seed: draws the validation images and the noise.
    """
    if noise not in ("shared", "fresh"):
        raise ValueError(f"`noise` of ncifar10 must be 'shared' or 'fresh'; got {noise!r}.")
    files = fetch(SOURCE)
    generator = torch.Generator().manual_seed(mix(data_seed, 2))
    block = torch.randn(LENGTH - ROWS, 1, WIDTH, generator=generator) if noise == "shared" else None

    def split(images: Tensor, labels: Tensor, which: int) -> ArraySplit:
        return _Noisy(images, labels, block, mix(data_seed, 3, which))

    names = sorted(name for name in files if "data_batch" in name)
    images, labels = read_images([files[name] for name in names])
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(mix(data_seed, 1)))
    train, valid = chosen[:48_000], chosen[48_000:]
    return Task(
        split(images[train], labels[train], 0),
        split(images[valid], labels[valid], 1),
        lambda: split(*read_images([files["cifar-10-batches-bin/test_batch.bin"]]), 2),
        input_size=WIDTH,
        output_size=10,
        loss="cross_entropy",
        metric="accuracy",
        facts=DataFacts(noise=noise),
    )
