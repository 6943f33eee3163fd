"""Files of series: CSV, Parquet, NPZ, .ts and .arff in; predictions as CSV or Parquet out.

A table (CSV, Parquet) is wide, one series a row and one step a column, or, with a column that names the series, long:
one step a row and one channel a column. An NPZ file holds `X` and `y` as the estimators take them, and `lengths` where
the rows of X are padded.
"""

import csv
import io
import math
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lem.checkpoint import write_atomically
from lem.extras import extra
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
    target_may_miss: bool = False,
) -> Labelled:
    """Read a file of series.

    Args:
        path: the file; its suffix says what it is.
        target: the column of the target.
        series: the column that names the series: the table is long.
        time: the column by which the steps of a long table are sorted.
        channels: the value columns of a long table; by default all others.
        long: whether a table without `series` is one long series instead of one series a row.
        target_may_miss: whether a table without the target's column is read all the same, without targets.
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
    if target_may_miss and target not in columns:
        target = None
    if series is not None or long:
        X, y = from_table(columns, series, time=time, channels=channels, target=target)
        names = list(dict.fromkeys(map(str, columns[series]))) if series is not None else _numbers(1)
        return Labelled(X, y, names)
    if time is not None:
        raise ValueError(f"`time` needs `series`: {path.name} is read as one series a row; got {time!r}.")
    for name in (target, *(channels or ())):
        if name is not None and name not in columns:
            what = "`target`" if name == target else "Each of `channels`"
            raise ValueError(
                f"{what} must be a column of {path.name}, one of {', '.join(columns)}; got {name!r}."
                f"{nearest(name, columns)}"
            )
    steps = channels or [name for name in columns if name != target]
    wide = from_table({name: columns[name] for name in steps}, None)[0][0].T
    return Labelled(wide, None if target is None else columns[target], _numbers(len(wide)))


def _numbers(count: int) -> list[str]:
    return [str(i) for i in range(count)]


def _from_csv(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} must be comma-separated UTF-8 text; got: {error}.") from error
    if len(rows) < 2:
        raise ValueError(f"{path.name} must have a header and at least one row; got {len(rows)} lines.")
    header, *rows = rows
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ValueError(f"Row {number} of {path.name} must have {len(header)} entries; got {len(row)}.")
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise ValueError(f"The columns of {path.name} must have names of their own; got {twice!r} twice.")
    # As objects: an array of texts would give every entry the room of the longest.
    return {name: np.array(column, dtype=object) for name, column in zip(header, zip(*rows))}


def _from_parquet(path: Path) -> dict[str, np.ndarray]:
    library = _parquet()
    try:
        about = library.read_metadata(path)
        _bounded(path, 8 * about.num_rows * about.num_columns)
        table = library.read_table(path)
        return {name: np.asarray(table.column(name).to_numpy(zero_copy_only=False)) for name in table.column_names}
    except (OSError, KeyError, extra("pyarrow", "Parquet files need").ArrowException) as error:
        raise ValueError(f"{path.name} must be a readable Parquet file; got: {error}.") from error


def _from_npz(path: Path) -> Labelled:
    try:
        with zipfile.ZipFile(path) as box:
            found = {name: _array(path, box, f"{name}.npy") for name in ("X", "y", "lengths") if _has(box, name)}
        X = found["X"]
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise ValueError(
            f"{path.name} must hold the arrays X and, for training, y, no objects; got: {error}."
        ) from error
    y, lengths = found.get("y"), found.get("lengths")
    for name, array in found.items():
        if array.ndim == 0 or len(array) != len(X):
            raise ValueError(f"`{name}` of {path.name} must have one entry per series; got shape {array.shape}.")
    if lengths is not None:
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or not ((lengths > 0) & (lengths <= X.shape[-1])).all():
            raise ValueError(f"`lengths` of {path.name} must be whole numbers from 1 to {X.shape[-1]}.")
        return Labelled([x[..., :length] for x, length in zip(X, lengths)], y, _numbers(len(X)))
    return Labelled(X, y, _numbers(len(X)))


def _has(box: zipfile.ZipFile, name: str) -> bool:
    return f"{name}.npy" in box.namelist()


def _array(path: Path, box: zipfile.ZipFile, name: str) -> np.ndarray:
    """Read one array; what its header says is checked against what is there before memory is taken for it."""
    held = box.getinfo(name).file_size
    _bounded(path, held)
    with box.open(name) as stream:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(stream)
    if math.prod(shape) * dtype.itemsize > held:
        raise ValueError(f"{name} says it has shape {shape}, more than it holds")
    with box.open(name) as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def _bounded(path: Path, size: int) -> None:
    """Refuse a small file that would unpack to a large one."""
    limit = (64 << 20) + 100 * path.stat().st_size
    if size > limit:
        raise ValueError(f"{path.name} must unpack to at most {limit >> 20} MB, a hundred times its size; it is larger")


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
    return extra("pyarrow.parquet", "Parquet files need")
