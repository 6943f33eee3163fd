"""Sort series by time, and treat duplicates and gaps as the user chose."""

from dataclasses import dataclass, field

import numpy as np

from lem.timeseries.times import TOLERANCE, Times, show_span
from lem.wording import InputError

MOST_GROWTH = 20
"""A series may become this many times longer by resampling."""


@dataclass
class Sampling:
    """What was found of the times of a file.

    Attributes:
        interval: the usual time between two steps, in seconds or in the unit of the column; None for single steps.
        duplicates: the number of repeated times.
        gaps: the number of steps longer or shorter than usual.
        notes: sentences about what was done.
        times: the times of the file.
        ends: the time of the last step of each series.
        moments: the times of the steps of each series, if the model is to see them; None otherwise.
    """

    interval: float | None
    duplicates: int = 0
    gaps: int = 0
    notes: list[str] = field(default_factory=list)
    times: Times | None = None
    ends: list[int | float] = field(default_factory=list)
    moments: list[np.ndarray] | None = None

    def after(self, series: int, steps: int) -> str:
        """Return the time that follows the last step of a series by a number of steps."""
        assert self.times is not None
        assert self.interval is not None
        return self.times.show(self.ends[series] + steps * self.interval * self.times.unit)


def regularise(
    values: np.ndarray,
    times: Times,
    groups: list[np.ndarray],
    names: list[str],
    *,
    column: str,
    gaps: str = "error",
    duplicates: str = "error",
    interval: float | None = None,
) -> tuple[list[np.ndarray], Sampling]:
    """Return the series (channels, length) in the order of their times.

    Args:
        values: (channels, rows) of the whole table.
        times: of the rows.
        groups: the rows of each series.
        names: of the series, for messages.
        column: the name of the column of times, for messages.
        gaps: "error" refuses irregular times, "ignore" uses their order alone, "resample" interpolates linearly,
            "elapsed" keeps the times for the model.
        duplicates: "error" refuses repeated times; "first", "last" and "mean" say which value is kept.
        interval: the time between two steps that the model was trained on; by default the usual one of this file.
    """
    ordered = [rows[np.argsort(times.values[rows], kind="stable")] for rows in groups]
    found = Sampling(None, sum(int((np.diff(times.values[rows]) == 0).sum()) for rows in ordered))
    if found.duplicates and duplicates == "error":
        raise _repeated(times, ordered, names, column, found.duplicates)
    series = [distinct(values[:, rows], times.values[rows], duplicates) for rows in ordered]
    if found.duplicates:
        kept = "their mean" if duplicates == "mean" else f"the {duplicates} value"
        found.notes.append(f"{found.duplicates} repeated times: {kept} was kept")
    found.times, found.ends = times, [moments[-1].item() for _, moments in series]
    if gaps == "elapsed":
        found.moments = [times.native(moments) for _, moments in series]
    steps = np.concatenate([np.diff(moments).astype(np.float64) for _, moments in series]) / times.unit
    if not len(steps):
        found.interval = interval
        return [x for x, _ in series], found
    usual = float(np.median(steps))
    if interval is not None and abs(usual - interval) > TOLERANCE * interval and gaps == "error":
        raise InputError(
            lambda option: (
                f"The steps of {column!r} are {show_span(usual, times.kind)}; the model was trained on steps of "
                f"{show_span(interval, times.kind)}. Give {option('gaps', 'resample')} to interpolate, or "
                f"{option('gaps', 'ignore')} to use the order alone."
            )
        )
    found.interval = usual if interval is None else interval
    irregular = np.abs(steps - found.interval) > TOLERANCE * found.interval
    found.gaps = int(irregular.sum())
    if not found.gaps:
        return [x for x, _ in series], found
    if gaps == "error":
        raise _irregular(times, series, names, column, found)
    if gaps == "elapsed":
        unit = show_span(found.interval, times.kind)
        found.notes.append(f"{found.gaps} irregular steps of time: the model sees them, in units of {unit}")
        return [x for x, _ in series], found
    if gaps == "ignore":
        found.notes.append(f"{found.gaps} irregular steps of time: only the order was used")
        return [x for x, _ in series], found
    sampled = [_resampled(x, moments / times.unit, found.interval, name) for (x, moments), name in zip(series, names)]
    found.notes.append(
        f"{found.gaps} irregular steps of time: interpolated at every {show_span(found.interval, times.kind)}"
    )
    return sampled, found


def distinct(values: np.ndarray, moments: np.ndarray, which: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the values and times with one step for each time."""
    starts = np.flatnonzero(np.concatenate([[True], np.diff(moments) != 0]))
    if len(starts) == len(moments):
        return values, moments
    ends = np.concatenate([starts[1:], [len(moments)]])
    if which == "mean":
        kept = np.stack([values[:, a:b].mean(axis=1) for a, b in zip(starts, ends)], axis=1)
    else:
        kept = values[:, starts if which == "first" else ends - 1]
    return kept, moments[starts]


def _resampled(values: np.ndarray, moments: np.ndarray, interval: float, name: str) -> np.ndarray:
    since = (moments - moments[0]).astype(np.float64)
    count = int(np.floor(since[-1] / interval + TOLERANCE)) + 1
    if count > MOST_GROWTH * len(moments) + 1000:
        raise InputError(
            lambda option: (
                f"Series {name} would grow from {len(moments)} to {count} steps by resampling: its gaps are too long. "
                f"Split it at the gaps, or give {option('gaps', 'ignore')}."
            )
        )
    grid = interval * np.arange(count)
    return np.stack([np.interp(grid, since, channel) for channel in values])


def _repeated(times: Times, ordered: list[np.ndarray], names: list[str], column: str, count: int) -> InputError:
    places = [np.flatnonzero(np.diff(times.values[rows]) == 0) for rows in ordered]
    name, rows, same = next((name, rows, same) for name, rows, same in zip(names, ordered, places) if len(same))
    moment, first, second = times.show(times.values[rows[same[0]]]), rows[same[0]], rows[same[0] + 1]
    return InputError(
        lambda option: (
            f"{column!r} repeats {count} times (first: {moment} in rows {first + 1} and {second + 1}, series {name}). "
            f"Give {option('duplicates', 'first')}, {option('duplicates', 'last')} or {option('duplicates', 'mean')} "
            "to keep one value for each time."
        )
    )


def _irregular(
    times: Times, series: list[tuple[np.ndarray, np.ndarray]], names: list[str], column: str, found: Sampling
) -> InputError:
    assert found.interval is not None
    bound = TOLERANCE * found.interval
    places = [np.flatnonzero(np.abs(np.diff(moments) / times.unit - found.interval) > bound) for _, moments in series]
    name, moments, where = next((n, m, where) for n, (_, m), where in zip(names, series, places) if len(where))
    before, after = times.show(moments[where[0]]), times.show(moments[where[0] + 1])
    usual, count = show_span(found.interval, times.kind), found.gaps
    return InputError(
        lambda option: (
            f"{column!r} is irregular: {count} steps differ from the usual {usual} (first: from {before} to {after} in "
            f"series {name}). Give {option('gaps', 'elapsed')} to let the model see the time between steps, "
            f"{option('gaps', 'resample')} to interpolate at every {usual}, or {option('gaps', 'ignore')} to use the "
            "order alone."
        )
    )
