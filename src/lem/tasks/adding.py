"""The adding problem: remember two marked numbers over N steps and add them.

The first channel is uniform noise in [0, 1]; the second is zero but for two ones, one at a random place of each half;
the target is the sum of the two marked values. Always answering 1 gives a mean squared error of 0.167.
Sequences are made on the fly and never repeat; validation and test are fixed sets of 1000.
"""

import torch

from lem.tasks.base import Task
from lem.training.data import ArraySplit, Batch, mix


def sequences(length: int, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Make `count` sequences (count, length, 2) and their targets (count, 1)."""
    values = torch.rand(count, length, generator=generator)
    half = length // 2
    first = torch.randint(half, (count,), generator=generator)
    second = torch.randint(half, length, (count,), generator=generator)
    rows = torch.arange(count)
    marks = torch.zeros(count, length)
    marks[rows, first] = 1.0
    marks[rows, second] = 1.0
    return torch.stack([values, marks], dim=-1), (values[rows, first] + values[rows, second])[:, None]


class _Endless:
    """Fresh sequences for every step; an epoch is a fixed number of steps, so that it can be counted."""

    def __init__(self, length: int, steps_per_epoch: int) -> None:
        self.length = length
        self.steps_per_epoch = steps_per_epoch

    def steps(self, batch_size: int) -> int:
        return self.steps_per_epoch

    def batch(self, step: int, batch_size: int, epoch: int | None = None, seed: int = 0) -> Batch:
        generator = torch.Generator().manual_seed(mix(seed, epoch or 0, step))
        inputs, targets = sequences(self.length, batch_size, generator)
        return Batch(inputs.transpose(0, 1), targets)


def adding(length: int = 2000, data_seed: int = 1234, steps_per_epoch: int = 100) -> Task:
    """Make the adding problem.

    Args:
        length: the number of steps N.
        data_seed: the seed of the validation and test sets.
        steps_per_epoch: how many training steps count as an epoch, after which the model is evaluated.
    """
    if length < 2:
        raise ValueError(f"`length` of adding must be at least 2, one mark for each half; got {length}.")

    if steps_per_epoch < 1:
        raise ValueError(f"`steps_per_epoch` of adding must be a positive integer; got {steps_per_epoch}.")

    def held_out(which: int) -> ArraySplit:
        return ArraySplit(*sequences(length, 1000, torch.Generator().manual_seed(mix(data_seed, which))))

    return Task(
        _Endless(length, steps_per_epoch),
        held_out(1),
        lambda: held_out(2),
        input_size=2,
        output_size=1,
        loss="mse",
        metric="mse",
    )
