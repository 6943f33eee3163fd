"""Windows of series: histories of fixed length with what follows them, drawn for training and evaluation."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from lem.training.data import Batch, mix

FEWEST_KNOWN = 2
"""The fewest steps of history that a window has; the steps before the start of a series count as missing."""


@dataclass
class Panel:
    """Series with what is known of them.

    Attributes:
        values: of each series, (time, channel), NaN where missing.
        past: of each series, covariates known up to its last step, (time, covariate).
        future: of each series, covariates known in advance, (time + steps ahead, covariate).
        static: features of each series, (series, feature).
    """

    values: list[np.ndarray]
    past: list[np.ndarray] = field(default_factory=list)
    future: list[np.ndarray] = field(default_factory=list)
    static: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def lengths(self) -> np.ndarray:
        """The number of steps of each series."""
        return np.array([len(values) for values in self.values])

    def until(self, ends: np.ndarray) -> "Panel":
        """Return the series up to some steps; what is known in advance stays."""
        return Panel(
            [values[:end] for values, end in zip(self.values, ends)],
            [past[:end] for past, end in zip(self.past, ends)],
            self.future,
            self.static,
        )

    def take(self, rows: list[int]) -> "Panel":
        """Return some of the series."""
        return Panel(
            [self.values[i] for i in rows],
            [self.past[i] for i in rows] if self.past else [],
            [self.future[i] for i in rows] if self.future else [],
            self.static[rows] if self.static.size else self.static,
        )


@dataclass
class Units:
    """The units in which a network sees its input.

    Attributes:
        mean: of each channel.
        scale: of each channel.
        own: whether each series is standardised by its own history.
        covariate_mean: of the past, the future and the static features, in this order.
        covariate_scale: the same.
    """

    mean: np.ndarray
    scale: np.ndarray
    own: bool
    covariate_mean: np.ndarray
    covariate_scale: np.ndarray

    @classmethod
    def of(cls, panel: Panel) -> "Units":
        """Take the units from training data."""
        mean, scale = _moments(np.concatenate(panel.values))
        kinds = [np.concatenate(part) for part in (panel.past, panel.future) if part]
        kinds += [panel.static] if panel.static.size else []
        found = [_moments(part) for part in kinds]
        return cls(
            mean,
            scale,
            len(panel) > 1,
            np.concatenate([mean for mean, _ in found]) if found else np.zeros(0),
            np.concatenate([scale for _, scale in found]) if found else np.ones(0),
        )

    def of_series(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and scale of the channels of one series."""
        return _moments(values) if self.own else (self.mean, self.scale)


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of the known values of each column; 1 where there is no spread."""
    known = ~np.isnan(values)
    count = np.maximum(known.sum(0), 1)
    mean = np.where(known, values, 0.0).sum(0) / count
    spread = np.sqrt((np.where(known, values - mean, 0.0) ** 2).sum(0) / count)
    return mean, np.where(spread > 1e-12 * np.maximum(np.abs(mean), 1e-300), spread, 1.0)


class WindowSplit:
    """Windows of a panel as the training loop reads them.

    All series lie in one array, each after `look_back` missing steps, so that a window may begin before its series.

    Args:
        panel: the series.
        units: in which they are given to the network.
        look_back: the steps of history of a window.
        horizon: the steps after it.
        origins: of each series, the steps at which forecasts begin.
        updates: the number of batches that count as an epoch in training; by default one pass.
        scales: of each series, mean and scale of its channels; by default from its values.
    """

    def __init__(
        self,
        panel: Panel,
        units: Units,
        look_back: int,
        horizon: int,
        origins: list[np.ndarray],
        updates: int | None = None,
        scales: list[tuple[np.ndarray, np.ndarray]] | None = None,
    ) -> None:
        self.look_back, self.horizon, self.updates = look_back, horizon, updates
        self.scales = scales or [units.of_series(values) for values in panel.values]
        self.channels = panel.values[0].shape[1]
        rows, starts, begin = [], [], 0
        for i, (values, (mean, scale)) in enumerate(zip(panel.values, self.scales)):
            block = self._block(panel, units, i, values, mean, scale)
            rows.append(block)
            starts.append(begin + np.asarray(origins[i], dtype=np.int64))
            begin += len(block)
        self.rows = torch.from_numpy(np.concatenate(rows))
        self.origins = torch.from_numpy(np.concatenate(starts))
        self.series = np.repeat(np.arange(len(panel)), [len(part) for part in origins])
        self.steps_of = np.concatenate([np.asarray(part, dtype=np.int64) for part in origins])
        self._order: tuple[tuple[int, int], Tensor] | None = None

    def _block(
        self, panel: Panel, units: Units, i: int, values: np.ndarray, mean: np.ndarray, scale: np.ndarray
    ) -> np.ndarray:
        """Return one series as the network sees it: look_back missing steps, the series, horizon missing steps."""
        k, before, after = values.shape[1], self.look_back, self.horizon
        covariates = [part[i] for part in (panel.past, panel.future) if part]
        extra = sum(part.shape[1] for part in covariates) + panel.static.shape[1]
        block = np.zeros((before + len(values) + after, 2 * k + extra), dtype=np.float32)
        known = ~np.isnan(values)
        block[before : before + len(values), :k] = np.where(known, (values - mean) / scale, 0.0)
        block[before : before + len(values), k : 2 * k] = known
        column, at = 2 * k, 0
        for part in covariates:
            width = part.shape[1]
            normal = (part - units.covariate_mean[at : at + width]) / units.covariate_scale[at : at + width]
            normal = np.nan_to_num(normal)[: len(values) + after]
            block[before : before + len(normal), column : column + width] = normal
            block[before + len(normal) :, column : column + width] = normal[-1] if len(normal) else 0.0
            column, at = column + width, at + width
        if panel.static.size:
            block[:, column:] = (panel.static[i] - units.covariate_mean[at:]) / units.covariate_scale[at:]
        return block

    def __len__(self) -> int:
        return len(self.origins)

    def steps(self, batch_size: int) -> int:
        """Return the number of batches in one epoch."""
        return self.updates or -(-len(self) // batch_size)

    def batch(self, step: int, batch_size: int, epoch: int | None = None, seed: int = 0) -> Batch:
        """Return batch number `step` of an epoch: in training, of an endless stream of shuffled passes."""
        if epoch is None:
            return self.read(self.origins[step * batch_size : (step + 1) * batch_size])
        size = min(batch_size, len(self))
        first = (epoch * self.steps(batch_size) + step) * size
        parts, begin = [], first
        while begin < first + size:
            turn, place = divmod(begin, len(self))
            parts.append(self._shuffled(turn, seed)[place : place + first + size - begin])
            begin += len(parts[-1])
        return self.read(self.origins[torch.cat(parts)])

    def read(self, origins: Tensor) -> Batch:
        """Return the windows that end at some origins, and what follows them: NaN where unknown."""
        steps = torch.arange(self.look_back + self.horizon)[:, None]
        window = self.rows[origins + steps]
        k = self.channels
        ahead = window[self.look_back :]
        targets = ahead[..., :k].masked_fill(ahead[..., k : 2 * k] == 0, torch.nan).transpose(0, 1).contiguous()
        window[self.look_back :, :, : 2 * k] = 0.0
        return Batch(window, targets)

    def _shuffled(self, turn: int, seed: int) -> Tensor:
        if self._order is None or self._order[0] != (turn, seed):
            generator = torch.Generator().manual_seed(mix(seed, 7, turn))
            self._order = (turn, seed), torch.randperm(len(self), generator=generator)
        return self._order[1]
