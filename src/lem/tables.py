"""Files of series: CSV, Parquet, NPZ, .ts and .arff in; predictions as CSV or Parquet out.

A table (CSV, Parquet) is wide, one series a row and one step a column, or, with a column that names the series, long:
one step a row and one channel a column. An NPZ file holds `X` and `y` as the estimators take them, and `lengths` where
the rows of X are padded.
"""

import csv
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lem.checkpoint import write_atomically
from lem.recurrent import nearest
from lem.series import from_table
from lem.tasks.uea import read_series

SUFFIXES = (".csv", ".parquet", ".npz", ".ts", ".arff")


class Labelled(NamedTuple):
    """The series of a file: X as the estimators take it, their targets or None, and what each series is called."""

    X: Any
    y: np.ndarray | None
    names: list[str]


def read(
    path: str | Path,
    *,
    target: str | None = None,
    series: str | None = None,
    time: str | None = None,
    channels: list[str] | None = None,
    long: bool = False,
) -> Labelled:
    """Read a file of series.

    Args:
        path: the file; its suffix says what it is.
        target: the column of the target.
        series: the column that names the series: the table is long.
        time: the column by which the steps of a long table are sorted.
        channels: the value columns of a long table; by default all others.
        long: whether a table without `series` is one long series instead of one series a row.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"A file of series must end in {', '.join(SUFFIXES)}; got {path.name}.")
    if not path.is_file():
        raise FileNotFoundError(f"The file of series must exist; got {path}.")
    if path.suffix in (".ts", ".arff"):
        found = read_series(path)
        labels = np.array(found.labels) if found.classes else np.array(found.labels, dtype=np.float64)
        return Labelled([values.T for values in found.values], labels, _numbers(len(labels)))
    if path.suffix == ".npz":
        return _from_npz(path)
    columns = _from_csv(path) if path.suffix == ".csv" else _from_parquet(path)
    if series is not None or long:
        X, y = from_table(columns, series, time=time, channels=channels, target=target)
        names = list(dict.fromkeys(map(str, columns[series]))) if series is not None else _numbers(1)
        return Labelled(X, y, names)
    if target is not None and target not in columns:
        raise ValueError(
            f"`target` must be a column of {path.name}, one of {', '.join(columns)}; got {target!r}."
            f"{nearest(target, columns)}"
        )
    steps = channels or [name for name in columns if name != target]
    wide = from_table({name: columns[name] for name in steps}, None)[0][0].T
    return Labelled(wide, None if target is None else columns[target], _numbers(len(wide)))


def _numbers(count: int) -> list[str]:
    return [str(i) for i in range(count)]


def _from_csv(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.reader(file))
    if len(rows) < 2:
        raise ValueError(f"{path.name} must have a header and at least one row; got {len(rows)} lines.")
    header, *rows = rows
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ValueError(f"Row {number} of {path.name} must have {len(header)} entries; got {len(row)}.")
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise ValueError(f"The columns of {path.name} must have names of their own; got {twice!r} twice.")
    return {name: np.array(column) for name, column in zip(header, zip(*rows))}


def _from_parquet(path: Path) -> dict[str, np.ndarray]:
    table = _parquet().read_table(path)
    return {name: np.asarray(table.column(name).to_numpy(zero_copy_only=False)) for name in table.column_names}


def _from_npz(path: Path) -> Labelled:
    try:
        arrays = np.load(path, allow_pickle=False)
        X, y = arrays["X"], arrays["y"] if "y" in arrays.files else None
        lengths = arrays["lengths"] if "lengths" in arrays.files else None
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{path.name} must hold the arrays X and, for training, y, no objects; got: {error}."
        ) from error
    if lengths is not None:
        if len(lengths) != len(X):
            raise ValueError(f"`lengths` of {path.name} must have one entry per series; got {len(lengths)}.")
        X = [x[..., :length] for x, length in zip(X, lengths)]
    return Labelled(X, y, _numbers(len(X)))


def write(path: str | Path, columns: dict[str, list[Any]]) -> Path:
    """Write a table as CSV or, by its suffix, as Parquet."""
    path = Path(path)
    if path.suffix == ".parquet":
        import pyarrow

        sink = io.BytesIO()
        _parquet().write_table(pyarrow.table(columns), sink)
        write_atomically(path, sink.getvalue())
    else:
        write_atomically(path, as_csv(columns).encode())
    return path


def as_csv(columns: dict[str, list[Any]]) -> str:
    """Return a table as CSV text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values()))
    return text.getvalue()


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'long-expressive-memory[data]'.") from error
    return parquet
