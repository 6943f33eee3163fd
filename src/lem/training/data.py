"""What a batch is, and how a split of a data set gives its batches by number.

Batches are addressed, not iterated: `split.batch(step, ...)` depends on its arguments alone, so an interrupted run
continues at any step with the batches it would have seen.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from lem.shapes import Float, Int

IGNORE = -100
"""The class of an answer that does not count, such as the padding behind a text."""


class DataError(ValueError):
    """Data that is missing, corrupt or not what its publisher offers; the message names the way out.

    Examples:
        >>> from pathlib import Path
        >>> from lem.tasks.uea import read_series
        >>> read_series(Path("pumps.csv"))
        Traceback (most recent call last):
            ...
        lem.training.data.DataError: A file of time series must end in .ts or .arff; got pumps.csv.
    """


class Batch(NamedTuple):
    """What the model sees at once, time-major.

    Attributes:
        inputs: (time, batch, channels), or (time, batch) of integers where the model embeds symbols.
        targets: (batch, ...) for one answer per sequence, (time, batch, ...) for one per step.
        lengths: the number of real steps of each row, or None where all rows are full.
        carry: whether the rows continue those of the previous batch, so that the state is carried over.
        every_step: whether the targets have the input's time axis. Said, not seen from the shapes: with as many steps
            as rows and as many targets they would not tell.
        elapsed: (time, batch), the time from the previous observation to each one in units of the usual step, or None
            where all steps are equal.

    Examples:
        >>> import torch
        >>> from lem.training.data import Batch
        >>> batch = Batch(torch.randn(30, 8, 3), torch.arange(8) % 2)  # (time, batch, channels), one label per row
        >>> batch.lengths is None
        True
    """

    inputs: Tensor
    targets: Tensor
    lengths: Tensor | None = None
    carry: bool = False
    every_step: bool = False
    elapsed: Tensor | None = None

    def to(self, device: str) -> "Batch":
        """Return the batch on a device. The lengths stay on the host, so that checking them does not wait."""
        if device == "cpu":
            return self
        inputs, targets = (_move(tensor, torch.device(device)) for tensor in (self.inputs, self.targets))
        elapsed = None if self.elapsed is None else _move(self.elapsed, torch.device(device))
        return self._replace(inputs=inputs, targets=targets, elapsed=elapsed)

    @property
    def timing(self) -> dict[str, Tensor]:
        """The arguments of a model's call that only series with times have."""
        return {} if self.elapsed is None else {"elapsed": self.elapsed}


def _move(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()  # from other memory the copy is not asynchronous
    return tensor.to(device, non_blocking=True)


class Split(Protocol):
    """A part of a data set: training, validation or test.

    Examples:
        >>> import torch
        >>> from lem.training.data import Batch
        >>> class Waves:  # any object with these two methods is a split
        ...     def steps(self, batch_size):
        ...         return 10
        ...     def batch(self, step, batch_size, epoch=None, seed=0):
        ...         series = torch.sin(torch.rand(batch_size) * torch.arange(50)[:, None])[..., None]
        ...         return Batch(series[:-1], series[-1])
        >>> Waves().batch(0, 8).inputs.shape
        torch.Size([49, 8, 1])
    """

    def steps(self, batch_size: int) -> int:
        """Return the number of batches in one epoch."""
        ...

    def batch(self, step: int, batch_size: int, epoch: int | None = None, seed: int = 0) -> Batch:
        """Return batch number `step`; in the shuffled order of `epoch`, or in the natural order for None."""
        ...


class ArraySplit:
    """Sequences held in memory: (sample, time, channel), with one target per sequence or one per step.

    Args:
        inputs: the sequences (sample, time, channel), padded at the end where `lengths` is given; in any other form
            where `read` is overridden.
        targets: (sample, ...), or (sample, time, ...) with `every_step`.
        lengths: the number of real steps of each sequence.
        every_step: whether the targets have a time axis.
        elapsed: (sample, time), the time since the previous observation in units of the usual step; 1 in the padding.

    Examples:
        >>> import torch
        >>> from lem.training.data import ArraySplit
        >>> split = ArraySplit(torch.randn(40, 30, 3), torch.arange(40) % 2)  # (sample, time, channel) and labels
        >>> split.steps(batch_size=10), split.batch(0, batch_size=10).inputs.shape  # batches are time-major
        (4, torch.Size([30, 10, 3]))
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        lengths: Int[Tensor, "sample"] | None = None,
        every_step: bool = False,
        elapsed: Float[Tensor, "sample time"] | None = None,
    ) -> None:
        if len(inputs) != len(targets) or (lengths is not None and len(lengths) != len(inputs)):
            raise ValueError(
                "`inputs`, `targets` and `lengths` of ArraySplit must have one entry per sample; "
                f"got {len(inputs)}, {len(targets)} and {'None' if lengths is None else len(lengths)}."
            )
        if elapsed is not None and elapsed.shape != inputs.shape[:2]:
            raise ValueError(
                f"`elapsed` of ArraySplit must be (sample, time), {tuple(inputs.shape[:2])}; "
                f"got {tuple(elapsed.shape)}."
            )
        self.inputs = inputs
        self.targets = targets
        self.lengths = lengths
        self.every_step = every_step
        self.elapsed = elapsed
        self._order: tuple[tuple[int, int], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def steps(self, batch_size: int) -> int:
        """Return the number of batches in one epoch, the last of which may be smaller."""
        return -(-len(self) // batch_size)

    def batch(self, step: int, batch_size: int, epoch: int | None = None, seed: int = 0) -> Batch:
        """Return batch number `step` of an epoch."""
        rows = slice(step * batch_size, (step + 1) * batch_size)
        chosen = rows if epoch is None else self._shuffled(epoch, seed)[rows]
        targets = self.targets[chosen]
        lengths = None if self.lengths is None else self.lengths[chosen]
        targets = targets.transpose(0, 1) if self.every_step else targets
        elapsed = None if self.elapsed is None else self.elapsed[chosen].transpose(0, 1)
        return Batch(self.read(self.inputs[chosen]), targets, lengths, every_step=self.every_step, elapsed=elapsed)

    def read(self, inputs: Tensor) -> Tensor:
        """Turn the stored rows of a batch into model input: here only time-major; tasks may convert or extend."""
        return inputs.transpose(0, 1)

    def _shuffled(self, epoch: int, seed: int) -> Tensor:
        if self._order is None or self._order[0] != (epoch, seed):
            generator = torch.Generator().manual_seed(mix(seed, epoch))
            self._order = (epoch, seed), torch.randperm(len(self), generator=generator)
        return self._order[1]


def check_padding(lengths: list[int], channels: int) -> None:
    """Refuse to pad many short series to one long one if that takes a gigabyte and fifty times the data."""
    padded, held = len(lengths) * max(lengths) * channels, sum(lengths) * channels
    if padded > max(1 << 27, 50 * held):
        raise DataError(
            f"Series must be of comparable lengths, since all are padded to the longest; got {len(lengths)} series of "
            f"up to {max(lengths)} steps and {sum(lengths) / len(lengths):.0f} on average. Cut the longest into parts."
        )


def rows(batch: Batch, part: int, parts: int) -> Batch:
    """Return the rows of a batch that fall to one of several equal parts, which may be empty."""
    if parts == 1:
        return batch
    count = batch.inputs.shape[1]
    chosen = slice(part * count // parts, (part + 1) * count // parts)
    targets = batch.targets[:, chosen] if batch.every_step else batch.targets[chosen]
    return batch._replace(
        inputs=batch.inputs[:, chosen],
        targets=targets,
        lengths=None if batch.lengths is None else batch.lengths[chosen],
        elapsed=None if batch.elapsed is None else batch.elapsed[:, chosen],
    )


def at_steps(batch: Batch, steps: Int[Tensor, "count"]) -> Batch:
    """Return a batch of full rows at some of its time steps only, in order; the times between these are added up."""
    if batch.lengths is not None:
        raise ValueError("`subsample` and `truncate` need sequences of one length; this batch has `lengths`.")
    elapsed = batch.elapsed
    if elapsed is not None:
        moments = elapsed.double().cumsum(0)
        first = moments[steps[:1]] - elapsed[steps[:1]]
        elapsed = moments[steps].diff(dim=0, prepend=first).to(elapsed.dtype)
    return batch._replace(
        inputs=batch.inputs[steps],
        targets=batch.targets[steps] if batch.every_step else batch.targets,
        elapsed=elapsed,
    )


def random_steps(length: int, count: int, seed: int) -> Int[Tensor, "count"]:
    """Draw `count` distinct time steps, in order; all of them if there are no more."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(length, generator=generator)[:count].sort().values


def even_steps(length: int, count: int) -> Int[Tensor, "count"]:
    """Return `count` time steps from the first to the last, as even as whole numbers allow."""
    return torch.linspace(0, length - 1, min(count, length), dtype=torch.float64).round().long()


def mix(*numbers: int) -> int:
    """Return one 63-bit seed for a tuple of numbers, so that nearby tuples give unrelated streams."""
    value = 0x9E3779B97F4A7C15
    for number in numbers:
        # The finaliser of SplitMix64, once per number.
        value = (value ^ number) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
        value = (value ^ value >> 27) * 0x94D049BB133111EB & (2**64 - 1)
        value ^= value >> 31
    return value >> 1
