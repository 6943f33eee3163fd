"""Times of observation for series that are not sampled regularly: from time stamps to elapsed times."""

from typing import Any, NamedTuple

import numpy as np

from lem.timeseries.series import Series
from lem.timeseries.times import parse_times
from lem.wording import InputError


class Clock(NamedTuple):
    """The unit of time of a model that is given the time between its steps.

    Attributes:
        unit: the time that counts as one step; in seconds for "datetime" and "duration".
        kind: "datetime", "duration" or "number": what the times were.
    """

    unit: float
    kind: str


def with_times(
    series: Series, times: Any, whose: str, clock: Clock | None = None, unit: float | None = None
) -> tuple[Series, Clock]:
    """Return the series with the time since the previous observation at every step, and the clock that measured it.

    Args:
        series: the series.
        times: for each series the times of its observations: numbers, datetime64, or anything a column of times holds.
        whose: the name of the caller, for messages.
        clock: that of a fitted model; None takes it from these times.
        unit: without a clock, the time that counts as one step; the median gap by default.
    """
    if unit is not None and not (isinstance(unit, int | float | np.number) and 0.0 < float(unit) < float("inf")):
        raise ValueError(f"`time_unit` of {whose} must be a positive number; got {unit!r}.")
    rows = _rows(times, series, whose)
    gaps, kinds = [], set()
    for i, (row, length) in enumerate(zip(rows, series.lengths)):
        row = np.asarray(row)
        if row.shape != (length,):
            raise ValueError(
                f"`times` of {whose} must have one time for each step; sample {i} has {length} steps and times of "
                f"shape {row.shape}."
            )
        try:
            found = parse_times(row, f"times[{i}]")
        except InputError as error:
            raise ValueError(f"`times` of {whose} must be times: {error}") from error
        gap = np.diff(found.values).astype(np.float64) / found.unit
        wrong = np.flatnonzero(~(gap > 0.0))
        if len(wrong):
            step = int(wrong[0]) + 1
            raise ValueError(
                f"`times` of {whose} must increase within each series; in sample {i}, "
                f"{found.show(found.values[step])} at position {step} follows {found.show(found.values[step - 1])}."
            )
        gaps.append(gap)
        kinds.add(found.kind)
    if len(kinds) > 1:
        raise ValueError(f"`times` of {whose} must be of one kind for all series; got {' and '.join(sorted(kinds))}.")
    (kind,) = kinds
    if clock is None:
        every = np.concatenate(gaps)
        clock = Clock(float(unit if unit is not None else np.median(every) if len(every) else 1.0), kind)
    elif clock.kind != kind:
        raise ValueError(f"`times` of {whose} must be {clock.kind}s, as in fit; got {kind}s.")
    elapsed = np.ones(series.values.shape[:2])
    for row, gap in zip(elapsed, gaps):
        row[1 : len(gap) + 1] = gap / clock.unit
    return series._replace(elapsed=elapsed), clock


def seconds(spans: np.ndarray) -> np.ndarray:
    """Return spans of time as numbers: timedelta64 in seconds."""
    return spans / np.timedelta64(1, "s") if spans.dtype.kind == "m" else spans.astype(np.float64)


def _rows(times: Any, series: Series, whose: str) -> list[Any]:
    try:
        rows = list(times)
    except TypeError:
        raise TypeError(
            f"`times` of {whose} must be (n, length), or a list of one array per series; got {type(times).__name__}."
        ) from None
    if len(rows) != len(series.lengths):
        raise ValueError(
            f"`times` of {whose} must have one entry for each of {len(series.lengths)} series; got {len(rows)}."
        )
    return rows


def values_ahead(values: np.ndarray, elapsed: np.ndarray, horizon: int) -> np.ndarray:
    """Return what a series is 1, 2, ..., `horizon` usual steps after each observation: (time, horizon, channel).

    Between observations the series is interpolated linearly; NaN beyond the last one.
    """
    moments = np.cumsum(elapsed)
    wanted = moments[:, None] + np.arange(1, horizon + 1)
    return np.stack([np.interp(wanted, moments, channel, right=np.nan) for channel in values.T], axis=2)
