"""Random local kernels: dilated convolutions of length nine, and the share of steps on which each exceeds a threshold.

The weights are those of MiniRocket (Dempster, Schmidt and Webb, KDD 2021): six of -1 and three of 2, in all 84
arrangements. A kernel reads a random mixture of channels of one signal. Its outputs are features by themselves and the
input of the recurrent groups in `frozen.py`.
"""

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from lem.shapes import Float, Int

LENGTH = 9
ARRANGEMENTS = 84
MOST_CHANNELS = 9
"""The most channels one kernel reads."""
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
SAMPLED = 2000
"""How many values of a kernel or a unit are drawn to estimate its quantiles."""


class Workspace:
    """Memory for intermediate results, used again and again: fresh pages would cost more than the arithmetic."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
        """Return an uninitialised tensor of this shape; None while torch traces a program."""
        if torch.compiler.is_compiling():
            return None
        size, held = math.prod(shape), self._held.get(name)
        if held is None or held.numel() < size or held.dtype != like.dtype:
            held = self._held[name] = torch.empty(size, dtype=like.dtype, device=like.device)
        return held[:size].view(shape)


class Block:
    """The kernels that share a signal and a dilation: rows `start` to `start + count` of the bank."""

    def __init__(self, signal: str, dilation: int, start: int, count: int, mixtures: int) -> None:
        self.signal = signal
        self.dilation = dilation
        self.start = start
        self.count = count
        self.mixtures = mixtures
        self.rows = slice(start, start + count)


class KernelBank(nn.Module):
    """All random kernels of a model.

    Args:
        channels: the channels of every signal.
        signals: the names of the signals the kernels read.
        dilations: the distances between the steps a kernel reads; each is used on every signal.
        counts: the number of kernels for each signal and dilation, one entry per signal.
        thresholds: the number of thresholds per kernel.
        causal: read the past only (the output at a step does not depend on later steps).
    """

    taps: Tensor
    channel: Tensor
    mixing: Tensor
    threshold: Tensor
    scale: Tensor

    def __init__(
        self,
        channels: int,
        signals: tuple[str, ...],
        dilations: list[int],
        counts: list[int],
        thresholds: int,
        causal: bool,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.dilations = list(dilations)
        mixtures = 1 if channels == 1 else 4
        self.blocks: list[Block] = []
        total = 0
        for dilation in dilations:
            for signal, count in zip(signals, counts):
                self.blocks.append(Block(signal, dilation, total, count, mixtures))
                total += count
        self.total = total
        width = min(channels, MOST_CHANNELS)
        self.register_buffer("taps", torch.zeros(total, LENGTH))
        self.register_buffer("channel", torch.zeros(len(self.blocks), mixtures, width, dtype=torch.int64))
        self.register_buffer("mixing", torch.zeros(len(self.blocks), mixtures, width))
        self.register_buffer("threshold", torch.zeros(thresholds, total))
        self.register_buffer("scale", torch.ones(total))

    def draw(self, channels: int, random: Any) -> None:
        """Draw which arrangement each kernel has and which channels it reads."""
        weights = torch.full((ARRANGEMENTS, LENGTH), -1.0 / 3.0)
        for row, places in enumerate(itertools.combinations(range(LENGTH), 3)):
            weights[row, list(places)] = 2.0 / 3.0
        width = self.channel.shape[2]
        for k, block in enumerate(self.blocks):
            order = torch.as_tensor(random.permutation(ARRANGEMENTS)[torch.arange(block.count) % ARRANGEMENTS])
            self.taps[block.rows] = weights[order]
            for m in range(block.mixtures):
                used = min(width, int(2.0 ** random.uniform(0.0, math.log2(width + 1))))
                self.channel[k, m] = torch.as_tensor(random.permutation(channels)[:width])
                self.mixing[k, m] = (torch.arange(width) < used).to(self.mixing.dtype)

    def run(
        self,
        k: int,
        signal: Float[Tensor, "batch channel time"],
        past: Float[Tensor, "batch channel before"] | None = None,
        space: Workspace | None = None,
    ) -> Float[Tensor, "batch kernel time"]:
        """Return the outputs of block `k`; the series is zero before its first and after its last step.

        `past` holds the last `reach` steps before the signal, for causal kernels that continue a series.
        """
        block = self.blocks[k]
        mixed = self._mixed(k, signal)
        if past is None:
            shifted = [_shift(mixed, (j - self._past) * block.dilation) for j in range(LENGTH)]
        else:
            steps = signal.shape[2]
            whole = torch.cat([self._mixed(k, past), mixed], dim=2)
            shifted = [whole.narrow(2, self.reach + (j - self._past) * block.dilation, steps) for j in range(LENGTH)]
        taps = self.taps[block.rows].unflatten(0, (block.mixtures, -1))
        shape = (signal.shape[0], block.mixtures, block.count // block.mixtures, signal.shape[2])
        out = None if space is None else space.take("kernels", shape, signal)
        return torch.matmul(taps, torch.stack(shifted, dim=2), out=out).flatten(1, 2)

    def _mixed(self, k: int, signal: Tensor) -> Tensor:
        return (signal[:, self.channel[k]] * self.mixing[k][:, :, None]).sum(2)

    @property
    def _past(self) -> int:
        """The number of taps before the step whose output a kernel computes."""
        return LENGTH - 1 if self.causal else LENGTH // 2

    @property
    def reach(self) -> int:
        """The number of past steps a causal kernel reads."""
        return (LENGTH - 1) * max(self.dilations, default=0)

    def shares(
        self,
        k: int,
        outputs: Float[Tensor, "batch kernel time"],
        lengths: Int[Tensor, "batch"],
        space: Workspace,
    ) -> Float[Tensor, "batch feature"]:
        """Return the share of steps on which each kernel of block `k` exceeds each of its thresholds.

        Every other kernel counts only the steps at which it lies inside the series, if there are any. `outputs` are
        overwritten.
        """
        block, steps = self.blocks[k], outputs.shape[2]
        t = torch.arange(steps, device=outputs.device)[None]
        inside = t < lengths[:, None]
        inner = inside
        if not self.causal:
            margin = (LENGTH // 2) * block.dilation
            inner = (t >= margin) & (t < lengths[:, None] - margin)
            inner = inner | (inside & (lengths <= 2 * margin)[:, None])
        counted = torch.stack([inside, inner], dim=1)
        # What is not counted exceeds no threshold.
        values = outputs.unflatten(1, (-1, 2)).masked_fill_(~counted[:, None], -math.inf)
        count = counted.sum(2).to(outputs.dtype)[:, None]
        buffer = space.take("shares", tuple(values.shape), values)
        found = []
        for q in range(len(self.threshold)):
            limit = self.threshold[q, block.rows].view(-1, 2, 1)
            found.append((above(values, limit, buffer).sum(3) / count).flatten(1))
        return torch.cat(found, dim=1)

    def adapt(self, k: int, outputs: Float[Tensor, "batch kernel time"], lengths: Int[Tensor, "batch"]) -> None:
        """Set the thresholds of block `k` to quantiles, and its scale to the spread, of outputs on training series."""
        block = self.blocks[k]
        inside = torch.arange(outputs.shape[2])[None] < lengths[:, None]
        values = outputs.transpose(1, 2)[inside]
        count = len(self.threshold)
        self.threshold[:, block.rows] = quantiles(values, count, block.start * count)
        spread = (values - values.mean(0)).square().mean(0).sqrt()
        self.scale[block.rows] = torch.where(spread > 1e-6, spread, torch.ones_like(spread))

    @property
    def features(self) -> int:
        """The number of features of all kernels."""
        return self.threshold.numel()


def _shift(series: Float[Tensor, "*axes time"], steps: int) -> Float[Tensor, "*axes time"]:
    """Return the series `steps` later: entry t is entry t + steps of the argument, zero outside."""
    if steps == 0:
        return series
    length = series.shape[-1]
    if torch.compiler.is_compiling():
        # The length is symbolic, so that no branch may depend on it.
        both = nn.functional.pad(series, (abs(steps), abs(steps)))
        return both.narrow(-1, abs(steps) + steps, length)
    if abs(steps) >= length:
        return torch.zeros_like(series)
    missing = series.new_zeros(*series.shape[:-1], abs(steps))
    return torch.cat([series[..., steps:], missing] if steps > 0 else [missing, series[..., :steps]], dim=-1)


def above(values: Tensor, limit: Tensor, buffer: Tensor | None = None) -> Tensor:
    """Return 1 where `values` exceed `limit` and 0 elsewhere, in the type of `values`; in `buffer` if possible."""
    if buffer is None or torch.compiler.is_compiling():
        return (values > limit).to(values.dtype)
    # Written into a buffer that is used again, this is ten times faster than a comparison and a conversion.
    return torch.gt(values, limit, out=buffer)


def quantiles(values: Float[Tensor, "value column"], count: int, first: int) -> Float[Tensor, "count column"]:
    """Return `count` quantiles of each column, at levels spread over (0, 1) by multiples of the golden ratio.

    Different columns get different levels; `first` is the number of levels used before.
    """
    thinned = values[:: max(1, len(values) // SAMPLED)].sort(0).values
    columns = values.shape[1]
    order = first + torch.arange(columns)[:, None] * count + torch.arange(count)
    level = (order.to(torch.float64) * GOLDEN) % 1.0
    place = (level * len(thinned)).long().clamp(max=len(thinned) - 1)
    lower = thinned.gather(0, place.t())
    # Between two values, so that rounding decides nothing where many are equal; not halfway, since sensors with a few
    # levels make the middle of two values a value too.
    gap = 1e-3 * (thinned[-1] - thinned[0]).clamp(min=1e-3)
    larger = [torch.where(thinned > row + gap, thinned, math.inf).amin(0) for row in lower]
    return lower + (GOLDEN * (torch.stack(larger) - lower)).clamp(max=0.5)
