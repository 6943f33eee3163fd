"""The times of regular series: their step, which may be whole months, and the times that follow."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lem.timeseries.seasons import YEAR, season_of
from lem.timeseries.times import TOLERANCE, Times, show_span
from lem.wording import InputError


@dataclass(frozen=True)
class Step:
    """The time between two steps: a number of months, or of seconds.

    Attributes:
        months: the number of months, 0 if the step is not of whole months.
        seconds: the number of seconds; for months, their mean.
    """

    months: int
    seconds: float

    @property
    def season(self) -> int:
        """The number of steps of the usual season."""
        if self.months:
            return max(12 // self.months, 1) if 12 % self.months == 0 else 1
        return season_of(self.seconds)

    def show(self) -> str:
        """Write the step as people do."""
        if self.months:
            years, months = divmod(self.months, 12)
            return f"{years} y" if not months else f"{self.months} months" if self.months > 1 else "1 month"
        return show_span(self.seconds, "duration")

    def plain(self) -> dict[str, float]:
        """Return the step as plain values."""
        return {"months": self.months, "seconds": self.seconds}

    def after(self, start: int, count: int) -> np.ndarray:
        """Return the `count` times after `start`, in nanoseconds since 1970."""
        return self.series(start, count + 1)[1:]

    def series(self, start: int, count: int) -> np.ndarray:
        """Return `count` times from `start` on, in nanoseconds since 1970."""
        if not self.months:
            return start + np.round(np.arange(count) * self.seconds * 1e9).astype(np.int64)
        moment = np.datetime64(start, "ns")
        month = moment.astype("datetime64[M]")
        within = moment - month.astype("datetime64[ns]")
        starts = (month + self.months * np.arange(count)).astype("datetime64[ns]")
        lengths = (month + self.months * np.arange(count) + 1).astype("datetime64[ns]") - starts
        at_end = within + np.timedelta64(1, "D") >= (month + 1).astype("datetime64[ns]") - month.astype(
            "datetime64[ns]"
        )
        inside = lengths - np.timedelta64(1, "D") if at_end else np.minimum(within, lengths - np.timedelta64(1, "D"))
        return (starts + inside).astype(np.int64)


def find_step(times: list[np.ndarray]) -> Step | None:
    """Return the usual step of series of times, in nanoseconds since 1970; None if all have a single time."""
    steps = np.concatenate([np.diff(moments) for moments in times]) if times else np.zeros(0)
    if not len(steps):
        return None
    usual = float(np.median(steps)) / 1e9
    if usual >= 27.5 * 86400:
        months = np.concatenate(
            [np.diff(moments.astype("datetime64[ns]").astype("datetime64[M]")) for moments in times]
        )
        count = int(np.median(months.astype(int)))
        if count and abs(usual - count * YEAR / 12) < 0.1 * usual:
            return Step(count, count * YEAR / 12)
    return Step(0, usual)


def check_regular(times: list[np.ndarray], step: Step, names: list[str], column: str) -> None:
    """Raise InputError for times that are out of order, repeated or have gaps, naming the first of each kind."""
    for moments, name in zip(times, names):
        steps = np.diff(moments)
        places = Times("datetime", moments)
        back = np.flatnonzero(steps < 0)
        if len(back):
            where = f"{places.show(moments[back[0]])} is followed by {places.show(moments[back[0] + 1])}"
            raise InputError(f"The times {column!r} of series {name} are out of order ({where}). Sort them.")
        same = np.flatnonzero(steps == 0)
        if len(same):
            raise InputError(
                lambda option, n=name, s=same, m=moments, p=places: (
                    f"The times {column!r} of series {n} repeat {len(s)} times (first: {p.show(m[s[0]])}). Give "
                    f"{option('duplicates', 'first')}, {option('duplicates', 'last')} or "
                    f"{option('duplicates', 'mean')} to keep one value for each time."
                )
            )
        if step.months:
            found = np.diff(moments.astype("datetime64[ns]").astype("datetime64[M]").astype(np.int64))
            odd = np.flatnonzero(found != step.months)
        else:
            odd = np.flatnonzero(np.abs(steps / 1e9 - step.seconds) > TOLERANCE * step.seconds)
        if len(odd):
            listed = ", ".join(f"{places.show(moments[i])} to {places.show(moments[i + 1])}" for i in odd[:3])
            more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
            raise InputError(
                lambda option, n=name, o=odd, w=listed + more: (
                    f"The times {column!r} of series {n} are not regular: {len(o)} of its steps are not "
                    f"{step.show()} ({w}). Give {option('gaps', 'missing')} to treat the times in between as missing, "
                    f"or {option('gaps', 'resample')} to interpolate."
                )
            )


def as_nanoseconds(times: Any, lengths: np.ndarray, whose: str) -> list[np.ndarray]:
    """Return the times of each series in nanoseconds since 1970.

    Args:
        times: one array of dates for all series, which then end together, or a list with one array for each.
        lengths: of the series.
        whose: the name of the caller, for messages.
    """
    single = not isinstance(times, list | tuple) or (len(times) > 0 and np.ndim(times[0]) == 0)
    given = [times] * len(lengths) if single else list(times)
    if len(given) != len(lengths):
        raise ValueError(f"`times` of {whose} must have one entry per series, {len(lengths)}; got {len(given)}.")
    found = []
    for each, length in zip(given, lengths):
        moments = np.asarray(each).astype("datetime64[ns]")
        if single:
            moments = moments[len(moments) - length :] if len(moments) >= length else moments
        if moments.shape != (length,) or np.isnat(moments).any():
            raise ValueError(
                f"`times` of {whose} must have a date for each of {length} steps of a series; got {moments.shape}."
            )
        found.append(moments.astype(np.int64))
    return found


def are_regular_dates(times: Any, lengths: np.ndarray) -> bool:
    """Return whether times are dates, in order and without repetitions or gaps."""
    first = times[0] if isinstance(times, list | tuple) and len(times) else times
    if np.asarray(first).dtype.kind != "M":
        return False
    try:
        moments = as_nanoseconds(times, lengths, "the forecaster")
        step = find_step(moments)
        if step is not None:
            check_regular(moments, step, [str(i) for i in range(len(moments))], "times")
    except ValueError:
        return False
    return step is not None
