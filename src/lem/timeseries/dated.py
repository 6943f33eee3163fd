"""Tables of dated series for forecasting: what is forecast, covariates, and regular times."""

import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lem.spelling import nearest
from lem.timeseries.files import grouped
from lem.timeseries.formats import Columns, as_numbers, check_file, read_table
from lem.timeseries.sampling import distinct
from lem.timeseries.schema import DUPLICATES
from lem.timeseries.timeline import Step, check_regular, find_step
from lem.timeseries.times import looks_like_dates, parse_times, show_date
from lem.wording import InputError, check_choice

GAPS = ("error", "missing", "resample")
LARGEST = 50
"""A series may become this many times longer by the steps put into its gaps."""


@dataclass(frozen=True)
class Columned:
    """Which columns of a table are what; see `forecast_file`."""

    time: str | None = None
    target: tuple[str, ...] = ()
    series: str | None = None
    past: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    time_format: str | None = None
    gaps: str = "error"
    duplicates: str = "error"
    missing: str = "error"

    def plain(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_plain(cls, found: dict[str, Any]) -> "Columned":
        """Read it from plain values."""
        plain: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in found.items()
        }
        return cls(**plain)


@dataclass
class Dated:
    """Dated series as a file was understood.

    Attributes:
        names: of the series.
        values: of each series, (channel, time).
        times: of each series, nanoseconds since 1970.
        past: of each series, covariates known up to its last step.
        future: of each series, covariates known in advance, of the history and the steps ahead.
        static: (series, features).
        step: the time between two steps.
        columns: which columns are what.
        future_names: the columns known in advance.
        notes: sentences about what was done with the data.
    """

    names: list[str]
    values: list[np.ndarray]
    times: list[np.ndarray]
    past: list[np.ndarray]
    future: list[np.ndarray]
    static: np.ndarray
    step: Step
    columns: Columned
    future_names: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """Say in one sentence how the file was understood."""
        lengths = [len(times) for times in self.times]
        span = str(lengths[0]) if len(set(lengths)) == 1 else f"{min(lengths)} to {max(lengths)}"
        count = f"{len(self.names)} series" if len(self.names) > 1 else "one series"
        shown = [show_date(moment) for moment in (min(t[0] for t in self.times), max(t[-1] for t in self.times))]
        parts = [f"{count} of {span} steps", f"target {', '.join(self.columns.target)}"]
        parts.append(f"time {self.columns.time} ({self.step.show()}, {shown[0]} to {shown[1]})")
        for label, names in (
            ("past covariates", self.columns.past),
            ("known in advance", self.future_names),
            ("static", self.columns.static),
        ):
            if names:
                parts.append(f"{label} {', '.join(names)}")
        absent = sum(int(np.isnan(values).sum()) for values in self.values)
        return ", ".join(parts) + (f"; {absent} missing values" if absent else "")

    def known(self) -> dict[str, Any]:
        """Return the keywords that `LEMForecaster` takes besides the series."""
        found: dict[str, Any] = {"times": [moments.astype("datetime64[ns]") for moments in self.times]}
        if self.past:
            found["past"] = self.past
        if self.future:
            found["future"] = self.future
        if self.static.size:
            found["static"] = self.static
        return found


def read_dated(
    path: str | Path, columns: Columned, future: str | Path | None = None, horizon: int = 1, step: Step | None = None
) -> Dated:
    """Read a table of dated series.

    Args:
        path: CSV or Parquet, one step a row.
        columns: which columns are what; time and target are found where only one column can be meant.
        future: a table of covariates known in advance, for the steps ahead and, unless `path` has them, the history.
        horizon: the steps that `future` must cover.
        step: the step a model was trained on.
    """
    path = check_file(path)
    table = read_table(path)
    columns = _decided(table, columns, path.name)
    assert columns.time is not None
    notes: list[str] = []
    ahead = None if future is None else read_table(check_file(future))
    advance = _future_names(ahead, columns, Path(future).name if future is not None else "")
    used = {columns.time, columns.series, *columns.target, *columns.past, *columns.static, *advance}
    if unused := [name for name in table if name not in used]:
        notes.append(f"columns not used: {', '.join(unused)}")
    inside = [name for name in advance if name in table]
    rows = [*columns.target, *columns.past, *inside]
    moments = _moments(table, columns, path.name)
    if zones := _zones(table[columns.time]):
        notes.append(f"times with time zones ({', '.join(zones)}) were converted to UTC, in which forecasts are dated")
    values = np.stack([_numbers(table, name) for name in rows])
    groups, names = grouped(table, columns.series)
    series, times, ordered = [], [], True
    for group, name in zip(groups, names):
        own = moments[group]
        order = np.argsort(own, kind="stable")
        ordered = ordered and bool((order == np.arange(len(order))).all())
        block, own = values[:, group[order]], own[order]
        repeated = int((np.diff(own) == 0).sum())
        if repeated and columns.duplicates != "error":
            block, own = distinct(block, own, columns.duplicates)
            notes.append(f"series {name}: {repeated} repeated times, kept {columns.duplicates}")
        series.append(block)
        times.append(own)
    if not ordered:
        notes.append("rows were not in the order of time and were sorted")
    found = find_step(times)
    if found is None:
        raise InputError(f"{path.name} has no series of two or more steps.")
    if step is not None and (step.months != found.months or abs(step.seconds - found.seconds) > 0.01 * step.seconds):
        raise InputError(f"The steps of {path.name} are {found.show()}; the model was trained on {step.show()}.")
    if columns.gaps != "error":
        series, times = _without_gaps(series, times, names, found, columns, notes)
    check_regular(times, found, names, columns.time)
    k, p = len(columns.target), len(columns.past)
    filled = _complete(series, times, names, columns, rows, notes)
    later = _future(ahead, columns, advance, inside, filled, times, names, found, horizon, k + p) if advance else []
    static = _static(table, columns, groups, names)
    past = [block[k : k + p] for block in filled] if p else []
    plain = [block[:k] for block in filled]
    for column, *of_series in zip(columns.target, *plain):
        constant = [name for name, row in zip(names, of_series) if np.nanmax(row) == np.nanmin(row)]
        if constant:
            listed = ", ".join(constant[:5]) + (f" and {len(constant) - 5} more" if len(constant) > 5 else "")
            where = "" if len(names) == 1 else f" in series {listed}"
            notes.append(f"{column} is constant{where}: there is nothing to forecast but this value")
    return Dated(names, plain, times, past, later, static, found, columns, tuple(advance), notes)


def _decided(table: Columns, columns: Columned, file: str) -> Columned:
    """Complete the roles of columns: the only column of dates is the time, the only other one the target."""
    check_choice(None, "gaps", columns.gaps, GAPS)
    check_choice(None, "duplicates", columns.duplicates, DUPLICATES)
    for role in ("time", "target", "series", "past", "static"):
        given = getattr(columns, role)
        for name in (given,) if isinstance(given, str) else given or ():
            if name not in table:
                raise InputError(
                    lambda option, r=role, n=name: (
                        f"{option(r)} must name columns of {file}, which are {', '.join(list(table)[:12])}; got {n!r}."
                        f"{nearest(n, table)}"
                    )
                )
    if columns.time is None:
        dates = [name for name in table if looks_like_dates(table[name]) and name != columns.series]
        if len(dates) != 1:
            raise InputError(
                lambda option: (
                    f"{file} has {'no column' if not dates else 'several columns'} of dates"
                    f"{': ' + ', '.join(dates) if dates else ''}. Name it with {option('time')}."
                )
            )
        columns = replace(columns, time=dates[0])
    if not columns.target:
        taken = {columns.time, columns.series, *columns.past, *columns.static}
        left = [name for name in table if name not in taken]
        if len(left) != 1:
            raise InputError(
                lambda option: (
                    f"Name what is forecast with {option('target')}: {file} has the columns {', '.join(left[:12])}."
                )
            )
        columns = replace(columns, target=(left[0],))
    return columns


def _moments(table: Columns, columns: Columned, file: str) -> np.ndarray:
    assert columns.time is not None
    times = parse_times(table[columns.time], columns.time, columns.time_format)
    if times.kind != "datetime":
        raise InputError(
            lambda option: (
                f"Column {columns.time!r} of {file} must hold dates, such as 2024-01-31 12:00; it holds "
                f"{'durations' if times.kind == 'duration' else 'numbers'}. For dates in another form give "
                f"{option('time_format', '%d.%m.%Y')}."
            )
        )
    return times.values


def _zones(column: np.ndarray) -> list[str]:
    """Return the time zones that the entries of a column of times name."""
    found = (re.search(r":\d\d(?:\.\d+)?\s*(Z|[+-]\d\d:?\d\d)$", str(entry)) for entry in column)
    return sorted({match[1] for match in found if match})


def _numbers(table: Columns, name: str) -> np.ndarray:
    try:
        return as_numbers(table[name], name)
    except InputError as error:  # whose advice is for tables of which all columns are used
        raise InputError(str(error).partition(" To leave")[0]) from None


def _without_gaps(
    series: list[np.ndarray],
    times: list[np.ndarray],
    names: list[str],
    step: Step,
    columns: Columned,
    notes: list[str],
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Put the steps into the gaps: as missing values, or interpolated."""
    done, grids = [], []
    for block, moments, name in zip(series, times, names):
        if step.months:
            index = moments.astype("datetime64[ns]").astype("datetime64[M]").astype(np.int64)
            place = (index - index[0]) / step.months
        else:
            place = (moments - moments[0]) / (step.seconds * 1e9)
        nearest_place = np.round(place).astype(np.int64)
        count = int(nearest_place[-1]) + 1
        if count > LARGEST * len(moments) + 1000:
            raise InputError(
                f"Series {name} would grow from {len(moments)} to {count} steps: its gaps are too long. Split it."
            )
        grid = step.series(int(moments[0]), count)
        if columns.gaps == "resample":
            filled = np.stack([np.interp(np.arange(count), place, row) for row in block])
        else:
            if len(np.unique(nearest_place)) < len(nearest_place):
                raise InputError(
                    lambda option, n=name: (
                        f"Series {n} has several times within one step of {step.show()}. Give "
                        f"{option('gaps', 'resample')} to interpolate."
                    )
                )
            filled = np.full((len(block), count), np.nan)
            filled[:, nearest_place] = block
        if count > len(moments):
            what = "interpolated" if columns.gaps == "resample" else "counted as missing"
            notes.append(f"series {name}: {count - len(moments)} steps in gaps were {what}")
        done.append(filled)
        grids.append(grid)
    return done, grids


def _complete(
    series: list[np.ndarray],
    times: list[np.ndarray],
    names: list[str],
    columns: Columned,
    rows: list[str],
    notes: list[str],
) -> list[np.ndarray]:
    """Refuse missing values unless they may be masked; those of covariates are filled with the value before."""
    done, filled, targets = [], dict.fromkeys(rows, 0), len(columns.target)
    for block, moments, name in zip(series, times, names):
        absent = np.isnan(block)
        for column, empty in zip(rows, absent.all(axis=1)):
            if empty:
                raise InputError(f"Column {column!r} of series {name} has no value; leave the series or it out.")
        if absent.any() and columns.missing == "error" and columns.gaps != "missing":
            row, at = np.argwhere(absent)[0]
            moment = show_date(moments[at])
            raise InputError(
                lambda option, c=rows[row], n=name, m=moment, a=absent: (
                    f"Column {c!r} of series {n} has missing values ({int(a.sum())} in all, first at {m}). Give "
                    f"{option('missing', 'mask')} to let the model see which values are missing, or fill them."
                )
            )
        block = block.copy()
        for row in range(targets, len(block)):
            known = np.flatnonzero(~absent[row])
            filled[rows[row]] += int(absent[row].sum())
            place = np.searchsorted(known, np.arange(block.shape[1]), side="right") - 1
            block[row] = block[row][known[np.maximum(place, 0)]]
        done.append(block)
    for column, count in filled.items():
        if count:
            notes.append(f"covariate {column}: {count} missing values were filled with the value before")
    return done


def _future_names(ahead: Columns | None, columns: Columned, file: str) -> list[str]:
    if ahead is None:
        return []
    for name in (columns.time, columns.series):
        if name is not None and name not in ahead:
            raise InputError(f"{file} must have the column {name!r}, as the history has.{nearest(name, ahead)}")
    taken = {columns.time, columns.series, *columns.target, *columns.past, *columns.static}
    return [name for name in ahead if name not in taken]


def _future(
    ahead: Columns | None,
    columns: Columned,
    advance: list[str],
    inside: list[str],
    series: list[np.ndarray],
    times: list[np.ndarray],
    names: list[str],
    step: Step,
    horizon: int,
    first: int,
) -> list[np.ndarray]:
    """Return the covariates known in advance, over the history and the steps ahead."""
    assert ahead is not None
    moments = _moments(ahead, columns, "the table of covariates known in advance")
    values = np.stack([_numbers(ahead, name) for name in advance])
    groups, known_names = grouped(ahead, columns.series)
    by_name = dict(zip(known_names, groups))
    done = []
    for block, own, name in zip(series, times, names):
        if name not in by_name:
            raise InputError(f"The table of covariates known in advance has no rows of series {name}.")
        rows = by_name[name]
        place = {int(moment): row for moment, row in zip(moments[rows], rows)}
        if len(place) < len(rows):
            raise InputError(f"The table of covariates known in advance repeats times of series {name}. Keep one row.")
        grid = step.series(int(own[0]), len(own) + horizon)
        found = np.full((len(advance), len(grid)), np.nan)
        for at, moment in enumerate(grid):
            row = place.get(int(moment))
            if row is not None:
                found[:, at] = values[:, row]
        for k, column in enumerate(inside):
            here = block[first + k]
            found[advance.index(column), : len(own)] = here
        absent = np.isnan(found)
        if absent.any():
            row, at = np.argwhere(absent)[0]
            moment = show_date(grid[at])
            if at >= len(own):
                raise InputError(
                    lambda option, a=advance[row], n=name, m=moment: (
                        f"Covariate {a!r} of series {n} ends early: it has no value at {m}, and {horizon} steps after "
                        f"the history are needed. Give later values, or forecast fewer steps with {option('horizon')}."
                    )
                )
            raise InputError(
                f"Covariate {advance[row]!r} of series {name} has no value at {moment}, within the history. Add the "
                "column to the history, or earlier rows to the table of covariates."
            )
        done.append(found)
    return done


def _static(table: Columns, columns: Columned, groups: list[np.ndarray], names: list[str]) -> np.ndarray:
    found = np.zeros((len(groups), len(columns.static)))
    for k, column in enumerate(columns.static):
        values = _numbers(table, column)
        for i, (rows, name) in enumerate(zip(groups, names)):
            if np.isnan(values[rows]).any() or len(np.unique(values[rows])) != 1:
                raise InputError(f"Static column {column!r} must have one value per series; series {name} has more.")
            found[i, k] = values[rows[0]]
    return found
