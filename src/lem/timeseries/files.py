"""Files of series: CSV, Parquet, NPZ, .ts and .arff.

A table (CSV, Parquet) is long, one step a row, or wide, one series a row; `lem.timeseries.layout` decides what its
columns mean, and the `Schema` records it. An NPZ file holds `X` and `y` as the estimators take them, and `lengths` if
the rows of X are padded.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lem.tasks.uea import read_series
from lem.timeseries.formats import MISSING, Columns, as_numbers, check_file, read_arrays, read_table
from lem.timeseries.layout import Reading, decide
from lem.timeseries.sampling import Sampling, regularise
from lem.timeseries.schema import Schema
from lem.timeseries.times import parse_times, show_span
from lem.wording import InputError

MOST_LISTED = 6


class Labelled(NamedTuple):
    """The series of a file: X as the estimators take it, their targets or None, and what each series is called."""

    X: Any
    y: np.ndarray | None
    names: list[str]


@dataclass
class SeriesFile:
    """A file of series as it was understood.

    Attributes:
        X: the series, as the estimators take them.
        y: their targets, or None.
        names: what each series is called.
        schema: how the file was read.
        sampling: what was found of the times, or None.
        notes: sentences about what was done with the data and what was left out.
    """

    X: Any
    y: np.ndarray | None
    names: list[str]
    schema: Schema
    sampling: Sampling | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def times(self) -> list[np.ndarray] | None:
        """The times of the steps of each series, as the estimators take them; None unless the model is to see them."""
        return None if self.sampling is None else self.sampling.moments

    @property
    def missing(self) -> int:
        """The number of missing values."""
        return int(sum(np.isnan(np.asarray(x, dtype=np.float64)).sum() for x in self.X))

    def describe(self) -> str:
        """Say in one sentence how the file was understood."""
        lengths = np.array([np.shape(x)[-1] for x in self.X])
        span = (
            f"{lengths[0]} steps"
            if len(set(lengths.tolist())) == 1
            else (f"{lengths.min()} to {lengths.max()} steps (median {int(np.median(lengths))})")
        )
        schema, count = self.schema, len(lengths)
        parts = [f"{count} series of {span}" if count > 1 else f"one series of {span}", self._channels()]
        if schema.static:
            parts.append(f"static {_some(schema.static)}")
        if schema.series is not None:
            parts.append(f"id {schema.series}")
        if schema.time is not None and schema.interval is not None:
            parts.append(f"time {schema.time} ({show_span(schema.interval, schema.time_kind or 'number')})")
        if self.y is not None:
            parts.append(self._target())
        text = ", ".join(parts)
        return f"{text}; {self.missing} missing values" if self.missing else text

    def _channels(self) -> str:
        schema = self.schema
        if schema.layout == "array" or (schema.layout == "wide" and len(schema.channels) == 1):
            count = 1 if np.ndim(self.X[0]) < 2 else np.shape(self.X[0])[0] - len(schema.static)
            steps = f" (columns {schema.columns[0]} to {schema.columns[-1]})" if schema.columns else ""
            return f"{count} channel{'s' if count != 1 else ''}{steps}"
        return f"{len(schema.channels)} channel{'s' if len(schema.channels) != 1 else ''} ({_some(schema.channels)})"

    def _target(self) -> str:
        assert self.y is not None
        name = f"target {self.schema.target}" if self.schema.target else "target"
        if self.schema.target_type == "number" or self.y.ndim > 1:
            values = self.y.astype(np.float64)
            return f"{name}: {values.min():.4g} to {values.max():.4g} (mean {values.mean():.4g})"
        counts = Counter(map(str, self.y.tolist())).most_common()
        listed = ", ".join(f"{label} {count}" for label, count in counts[:MOST_LISTED])
        return f"{name}: {listed}" + (
            f" and {len(counts) - MOST_LISTED} more classes" if len(counts) > MOST_LISTED else ""
        )


def read(path: str | Path, *, forecast: bool = False, **reading: Any) -> Labelled:
    """Read a file of series; the keywords are those of `Reading`.

    Args:
        path: the file; its format follows from its suffix.
        forecast: whether a table without `series` is one long series.
        reading: target, series, time, time_format, channels, static, ignore, keep, layout, gaps, duplicates, missing.

    Examples:
        >>> from lem.timeseries.example import write_example
        >>> from lem.timeseries.files import read
        >>> data = read(write_example("pumps.csv"), series="pump_id", time="time", target="fault")
        >>> len(data.y), sorted(set(data.y))
        (60, ['blockage', 'leak', 'ok'])
    """
    found = load(path, Reading(**{"missing": "mask", **reading}), forecast=forecast)
    return Labelled(found.X, found.y, found.names)


def load(
    path: str | Path,
    reading: Reading | None = None,
    schema: Schema | None = None,
    *,
    forecast: bool = False,
    targets: bool = True,
) -> SeriesFile:
    """Read a file as `reading` describes, or by the schema of a model.

    Args:
        path: the file.
        reading: how to read it; with a schema, only what differs from it.
        schema: how the training file was read; None for a new file.
        forecast: whether a table without `series` is one long series.
        targets: whether the targets are needed; otherwise a file without them, or with empty ones, is read too.
    """
    path = check_file(path)
    reading = reading or Reading()
    if path.suffix.lower() not in (".csv", ".tsv", ".parquet"):
        return _arrays(path, reading, schema)
    columns = read_table(path)
    notes: list[str] = []
    if schema is not None and schema.layout != "array":
        wanted = _with_changes(schema, reading)
        extra = wanted.match(columns, path.name)
        if extra:
            notes.append(f"columns not used: {_some(extra)}")
        if wanted.target is not None and wanted.target not in columns:
            if targets:
                raise InputError(
                    lambda option: (
                        f"{path.name} has no column {wanted.target!r}, the target of the model. Give "
                        f"{option('target')} with the column that holds it."
                    )
                )
            wanted = dataclasses.replace(wanted, target=None)
    else:
        if reading.target is not None and reading.target not in columns and not targets:
            reading = dataclasses.replace(reading, target=None)
        wanted = decide(columns, reading, path.name, forecast)
    if wanted.target is not None and not targets and _empty(columns[wanted.target]).any():
        wanted = dataclasses.replace(wanted, target=None)
    found = (
        _long(columns, wanted, path.name, trained=schema)
        if wanted.layout == "long"
        else _wide(columns, wanted, path.name)
    )
    found.notes = [*notes, *found.notes]
    if found.schema.ignored and schema is None:
        found.notes.append(f"columns left out: {_some(found.schema.ignored)}")
    _check_missing(found, path.name, schema is not None)
    return found


def _with_changes(schema: Schema, reading: Reading) -> Schema:
    """Return the schema with the differences that the user gave: names of columns, and how times are treated."""
    same = {"channels": schema.columns, "static": schema.static, "layout": schema.layout}
    for name in ("channels", "static", "keep", "layout"):
        if getattr(reading, name) and getattr(reading, name) != same.get(name):
            raise InputError(
                lambda option, n=name: (
                    f"{option(n)} cannot be changed: the model file determines which columns are read."
                )
            )
    plain = Reading()
    changed = {
        name: getattr(reading, name)
        for name in ("target", "series", "time", "time_format", "gaps", "duplicates")
        if getattr(reading, name) != getattr(plain, name)
    }
    return dataclasses.replace(schema, **changed, ignored=(*schema.ignored, *reading.ignore))


# --- tables -------------------------------------------------------------------------------------------------------


def _long(columns: Columns, schema: Schema, file: str, trained: Schema | None) -> SeriesFile:
    values = np.stack([as_numbers(columns[name], name) for name in (*schema.columns, *schema.static)])
    groups, names = grouped(columns, schema.series)
    notes: list[str] = []
    sampling = None
    if schema.time is None:
        X = [values[:, rows] for rows in groups]
    else:
        times = parse_times(columns[schema.time], schema.time, schema.time_format)
        if trained is not None and trained.time_kind is not None and times.kind != trained.time_kind:
            raise InputError(
                f"Column {schema.time!r} of {file} must hold times of the kind the model was trained on, "
                f"{trained.time_kind}; got {times.kind}."
            )
        X, sampling = regularise(
            values,
            times,
            groups,
            names,
            column=schema.time,
            gaps=schema.gaps,
            duplicates=schema.duplicates,
            interval=None if trained is None else trained.interval,
        )
        notes += sampling.notes
        schema = dataclasses.replace(schema, time_kind=times.kind, interval=sampling.interval)
    _check_static(columns, schema, groups, names)
    y = None
    if schema.target is not None:
        y, kind = _targets(columns[schema.target], schema.target, groups, names)
        schema = dataclasses.replace(schema, target_type=kind)
    return SeriesFile(X, y, names, schema, sampling, notes)


def _wide(columns: Columns, schema: Schema, file: str) -> SeriesFile:
    values = np.stack([as_numbers(columns[name], name) for name in schema.columns])
    count = values.shape[1]
    X = values.reshape(len(schema.channels), -1, count).transpose(2, 0, 1)
    if schema.static:
        constant = np.stack([as_numbers(columns[name], name) for name in schema.static]).T[:, :, None]
        X = np.concatenate([X, np.broadcast_to(constant, (*constant.shape[:2], X.shape[2]))], axis=1)
    X = X[:, 0] if X.shape[1] == 1 else X
    names, y = _numbers(count), None
    if schema.target is not None:
        y, kind = _targets(columns[schema.target], schema.target, [np.array([row]) for row in range(count)], None)
        schema = dataclasses.replace(schema, target_type=kind)
    return SeriesFile(np.ascontiguousarray(X), y, names, schema)


def grouped(columns: Columns, name: str | None) -> tuple[list[np.ndarray], list[str]]:
    """Return the rows of each series and the names of the series, in the order of their first rows."""
    if name is None:
        return [np.arange(len(next(iter(columns.values()))))], ["0"]
    column = columns[name]
    _refuse_empty(column, f"Column {name!r} must name the series of every row")
    keys = np.array([_plain(entry) for entry in column], dtype=object)
    unique, first, which = np.unique(keys, return_index=True, return_inverse=True)
    parts = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])
    order = np.argsort(first)
    return [parts[k] for k in order], [str(unique[k]) for k in order]


def _refuse_empty(column: np.ndarray, must: str) -> None:
    empty = np.flatnonzero(_empty(column))
    if len(empty):
        raise InputError(f"{must}; row {empty[0] + 1} has none ({len(empty)} rows in all). Remove or fill these rows.")


def _targets(
    column: np.ndarray, name: str, groups: list[np.ndarray], names: list[str] | None
) -> tuple[np.ndarray, str]:
    """Return the target of each series, and "number" if all are numbers."""
    _refuse_empty(column, f"The target {name!r} must have a value in every row")
    texts = np.array([_plain(entry) for entry in column], dtype=object)
    for rows, series in zip(groups, names or []):
        other = np.flatnonzero(texts[rows] != texts[rows[0]])
        if len(other):
            row = rows[other[0]]
            raise InputError(
                f"The target {name!r} must not change within a series; series {series} has {texts[rows[0]]} in row "
                f"{rows[0] + 1} and {texts[row]} in row {row + 1}."
            )
    found = texts[[rows[0] for rows in groups]]
    try:
        np.array(found, dtype=np.float64)
    except ValueError:
        return found, "text"
    return found, "number"


def _check_static(columns: Columns, schema: Schema, groups: list[np.ndarray], names: list[str]) -> None:
    for name in schema.static:
        values = as_numbers(columns[name], name)
        for rows, series in zip(groups, names):
            known = values[rows][~np.isnan(values[rows])]
            if len(known) and (known != known[0]).any():
                raise InputError(
                    lambda option, n=name, s=series: (
                        f"{option('static')} must not change within a series; column {n!r} does in series {s}. Leave "
                        f"it out of {option('static')} to use it as a channel."
                    )
                )


def _check_missing(found: SeriesFile, file: str, fitted: bool) -> None:
    if found.schema.missing != "error" or not found.missing:
        return
    names = [*found.schema.channels, *found.schema.static]
    absent = [np.argwhere(np.isnan(np.atleast_2d(np.asarray(x, dtype=np.float64)))) for x in found.X]
    series, (channel, step) = next((name, where[0]) for name, where in zip(found.names, absent) if len(where))
    column = f"channel {names[channel]!r}" if names else f"channel {channel}"
    what = f"{file} has {found.missing} missing values (first: series {series}, {column}, step {step + 1})."
    raise InputError(
        lambda option: (
            f"{what} The model was fitted on series without any: fill them, or fit a model with "
            f"{option('missing', 'mask')}."
            if fitted
            else f"{what} Give {option('missing', 'mask')} to let the model see which values are missing, or fill them."
        )
    )


def _empty(column: np.ndarray) -> np.ndarray:
    column = np.asarray(column)
    if column.dtype.kind == "f":
        return np.isnan(column)
    if column.dtype.kind in "Mm":
        return np.isnat(column)
    if column.dtype.kind in "iub":
        return np.zeros(len(column), dtype=bool)
    return np.array(
        [
            entry is None or entry != entry or (isinstance(entry, str) and entry.strip().lower() in MISSING)
            for entry in column
        ]
    )


def _plain(entry: Any) -> str:
    """Return an id or label as text, the same for 3, 3.0 and "3.0"."""
    text = str(entry).strip()
    if isinstance(entry, bool | np.bool_):
        return text
    try:
        value = float(text)
    except ValueError:
        return text
    if "." in text and value == round(value) and abs(value) < 2**53 and "e" not in text.lower():
        return str(round(value))
    return text


def _numbers(count: int) -> list[str]:
    return [str(i) for i in range(count)]


def _some(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(names[:MOST_LISTED]) + more


# --- files without column names -----------------------------------------------------------------------------------


def _arrays(path: Path, reading: Reading, schema: Schema | None) -> SeriesFile:
    for name in ("series", "time", "channels", "static", "ignore", "keep", "layout"):
        if getattr(reading, name):
            raise InputError(
                lambda option, n=name: f"{option(n)} is for tables (CSV, Parquet); {path.name} has no columns."
            )
    X: Any
    if path.suffix.lower() == ".npz":
        arrays = read_arrays(path)
        padded, lengths, y = arrays["X"], arrays.get("lengths"), arrays.get("y")
        X = padded if lengths is None else [x[..., :length] for x, length in zip(padded, lengths)]
        kind = None if y is None else "text" if y.dtype.kind not in "iufb" else "number"
    else:
        series = read_series(path)
        y = np.array(series.labels, dtype=object if series.classes else np.float64)
        X, kind = [values.T for values in series.values], "text" if series.classes else "number"
    missing = reading.missing if schema is None else schema.missing
    found = SeriesFile(X, y, _numbers(len(X)), Schema("array", target_type=kind, missing=missing))
    if schema is not None and schema.layout != "array":
        channels = _some((*schema.channels, *schema.static))
        found.notes.append(f"{path.name} has no column names: its channels are taken to be {channels}, in this order")
    if X.dtype.kind in "iufb" if isinstance(X, np.ndarray) else True:
        _check_missing(found, path.name, schema is not None)
    return found
