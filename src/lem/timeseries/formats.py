"""File formats: tables from CSV and Parquet, arrays from NPZ; tables written as CSV or Parquet.

The readers here do not deal with series: `lem.timeseries.files` decides what the columns of a table mean.
"""

import csv
import io
import math
import re
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from lem.atomic import write_atomically
from lem.extras import extra
from lem.spelling import nearest
from lem.wording import InputError

Columns = dict[str, np.ndarray]
"""A table: the entries of each column by its name, in the order of the file."""

ROW = 64
"""Bytes that a series takes besides its values, such as its name."""


MISSING = frozenset({"", "na", "nan", "n/a", "null", "none", "?", "-"})
"""Entries of a text column that mean that there is no value, in any case."""
DELIMITERS = (",", ";", "\t", "|")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
_DECIMAL_POINT = re.compile(r"[+-]?\d*\.\d+(?:[eE][+-]?\d+)?")
_SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")
_ARCHIVES = (".gz", ".zip", ".bz2", ".xz", ".zst", ".7z", ".tar")
SUFFIXES = (".csv", ".tsv", ".parquet", ".npz", ".ts", ".arff")


def check_file(path: str | Path) -> Path:
    """Return the path of a data file that exists and has a format known here."""
    text = str(path)
    if re.match(r"[a-z][a-z0-9+.-]+:/", text, re.IGNORECASE) and not Path(text).exists():
        text = re.sub(r":/+", "://", text, count=1)  # a path has lost one of its slashes
        raise InputError(f"{text} is a URL. Download the file first, then give its path.")
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in _SPREADSHEETS:
        raise InputError(f"{path.name} is a spreadsheet. Save the sheet as CSV (UTF-8), then give that file.")
    if suffix in _ARCHIVES:
        raise InputError(f"{path.name} is a compressed file. Unpack it first.")
    if path.is_dir():
        raise InputError(f"{path} is a folder. Give one of the files in it.")
    if suffix not in SUFFIXES:
        raise InputError(f"A file of series must end in {', '.join(SUFFIXES)}; got {path.name}.")
    if not path.is_file():
        near = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FileNotFoundError(f"The file of series must exist; got {path}.{nearest(path.name, near)}")
    if path.stat().st_size == 0:
        raise InputError(f"{path.name} is empty: it has 0 bytes. Save the data again.")
    return path


def read_table(path: Path) -> Columns:
    """Read a table: CSV, or Parquet by its suffix. The entries of a CSV file are text.

    Examples:
        >>> from lem.timeseries.example import write_example
        >>> from lem.timeseries.formats import read_table
        >>> list(read_table(write_example("pumps.csv")))
        ['pump_id', 'time', 'flow', 'pressure', 'temperature', 'fault']
    """
    columns = _from_parquet(path) if path.suffix.lower() == ".parquet" else _from_csv(path)
    if not columns or len(next(iter(columns.values()))) == 0:
        raise InputError(f"{path.name} must have a header and at least one row; it has only a header.")
    return columns


def as_numbers(column: np.ndarray, name: str) -> np.ndarray:
    """Return a column as float64, with NaN for missing values; the first entry that is not a number is named by its "
    "row."""
    column = np.asarray(column)
    if column.dtype.kind in "iufb":
        return _finite(column.astype(np.float64), name)
    if column.dtype.kind in "Mm":
        raise InputError(
            lambda option: (
                f"Column {name!r} must hold numbers; it holds times. Give {option('time', name)} or "
                f"{option('ignore', [name])}."
            )
        )
    values = np.empty(len(column))
    for row, entry in enumerate(column):
        if entry is None or (isinstance(entry, str) and entry.strip().lower() in MISSING):
            values[row] = np.nan
            continue
        try:
            if isinstance(entry, str) and "_" in entry:  # which Python takes for 1000 in 1_000
                raise ValueError
            values[row] = float(entry)
        except (TypeError, ValueError):
            raise _not_a_number(name, entry, row) from None
    return _finite(values, name)


def _finite(values: np.ndarray, name: str) -> np.ndarray:
    rows = np.flatnonzero(np.isinf(values))
    if len(rows):
        raise InputError(
            f"Column {name!r} must hold finite numbers; got {values[rows[0]]} in row {rows[0] + 1} ({len(rows)} rows "
            "in all). Correct these entries, or leave them empty as missing values."
        )
    return values


def _not_a_number(name: str, entry: Any, row: int) -> InputError:
    comma = " Write decimals with a point." if isinstance(entry, str) and _DECIMAL_COMMA.fullmatch(entry) else ""
    return InputError(
        lambda option: (
            f"Column {name!r} must hold numbers; got {str(entry)[:40]!r} in row {row + 1}.{comma} To leave the column "
            f"out, give {option('ignore', [name])}."
        )
    )


def _from_csv(path: Path) -> Columns:
    text = _decode(path)
    try:
        start = next((line for line in text.splitlines() if line.strip()), "")
        delimiter = max(DELIMITERS, key=re.sub(r'"[^"]*"', "", start).count)
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row]
    except csv.Error as error:
        raise InputError(f"{path.name} must be comma-separated text; got: {error}.") from error
    if len(rows) < 2:
        raise InputError(
            f"{path.name} must have a header and at least one row; it has {len(rows)} lines. Save it with its rows."
        )
    header, *rows = rows
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise InputError(
                f"Row {number} of {path.name} must have {len(header)} entries, as the header has; got {len(row)}. "
                f"Correct the row; an entry with {delimiter!r} in it must stand in double quotes."
            )
    columns = {
        name: np.array([entry.strip() for entry in column], dtype=object)
        for name, column in zip(_names(header, path), zip(*rows))
    }
    return _with_points(columns, path) if delimiter != "," else columns


def _decode(path: Path) -> str:
    """Return the text of a file: UTF-8, UTF-16 with a mark, or Latin-1."""
    data = path.read_bytes()
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return _decoded(data, "utf-16", path)
    if data.startswith(b"PK\x03\x04"):
        raise InputError(f"{path.name} is a spreadsheet or an archive with a false name. Save the sheet as CSV.")
    if b"\x00" in data:
        raise InputError(f"{path.name} must be text; it holds zero bytes, as binary files do.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wrong = error
    if re.search(rb"[\xc3\xc2][\x80-\xbf]", data):
        line = data[: wrong.start].count(b"\n") + 1
        raise InputError(
            f"{path.name} mixes UTF-8 with another encoding (line {line} is not UTF-8). Save the file as UTF-8."
        )
    return data.decode("latin-1")


def _decoded(data: bytes, encoding: str, path: Path) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path.name} must be {encoding.upper()} text, as its first bytes say; got: {error}."
        ) from error


def _names(header: list[str], path: Path) -> list[str]:
    names = [name.strip() or "unnamed" for name in header]
    _check_names(path, names)
    try:
        values = [float(name) for name in names]
    except ValueError:
        return names
    if values not in ([float(i) for i in range(len(values))], [float(i + 1) for i in range(len(values))]):
        raise InputError(
            f"The first row of {path.name} must name the columns; it holds numbers ({', '.join(names[:3])}). Add a "
            "header."
        )
    return names


def _with_points(columns: Columns, path: Path) -> Columns:
    """Turn decimal commas into points, if the file has them; a file that has both is refused."""
    commas = {name for name, column in columns.items() if any(_DECIMAL_COMMA.fullmatch(entry) for entry in column)}
    if not commas:
        return columns
    for name, column in columns.items():
        point = next((row for row, entry in enumerate(column) if _DECIMAL_POINT.fullmatch(entry)), None)
        if point is not None:
            raise InputError(
                f"{path.name} mixes decimal commas (column {min(commas)!r}) with decimal points (column {name!r}, row "
                f"{point + 1}: {column[point]!r}). Write all decimals with a point."
            )
    changed = {name: np.array([entry.replace(",", ".") for entry in columns[name]], dtype=object) for name in commas}
    return {name: changed.get(name, column) for name, column in columns.items()}


def _check_names(path: Path, names: list[str]) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"The columns of {path.name} must have different names; got {twice!r} twice.")


def _from_parquet(path: Path) -> Columns:
    library, arrow = _parquet(), extra("pyarrow", "Parquet files need")
    try:
        about = library.read_metadata(path)
        schema = about.schema.to_arrow_schema()
        _check_names(path, schema.names)
        texts = [field.name for field in schema if _is_text(path, field, arrow)]
        stored = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
        _bounded(path, 8 * about.num_rows * about.num_columns + stored)
        # Texts stay numbers into a list of the different ones: written out, a small file could fill the memory.
        table = library.read_table(path, read_dictionary=texts)
        return {name: _parquet_column(table.column(name), arrow) for name in table.column_names}
    except (OSError, KeyError, arrow.ArrowException) as error:
        raise InputError(f"{path.name} must be a readable Parquet file; got: {error}.") from error


def _is_text(path: Path, field: Any, arrow: Any) -> bool:
    """Return whether a column holds text; refuse columns of lists and the like."""
    types = arrow.types
    kind = field.type.value_type if types.is_dictionary(field.type) else field.type
    if types.is_nested(kind):
        raise InputError(
            f"Column {field.name!r} of {path.name} is nested ({kind}). Write one number per cell: one row per step."
        )
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind))


def _parquet_column(column: Any, arrow: Any) -> np.ndarray:
    """Return a column as an array; equal texts of a chunk share one object."""
    kind = column.type
    if arrow.types.is_dictionary(kind):
        parts = [np.empty(0, dtype=object)]
        for chunk in column.chunks:
            words = np.array([*chunk.dictionary.to_pylist(), None], dtype=object)
            parts.append(words[chunk.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)])
        return np.concatenate(parts)
    # Whole numbers with gaps would become floats, in which two large ids can be the same.
    if arrow.types.is_decimal(kind) or (column.null_count and arrow.types.is_integer(kind)):
        return np.array(column.to_pylist(), dtype=object)
    return np.asarray(column.to_numpy())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays X and, if present, y and lengths of an NPZ file, and check that they fit each other."""
    try:
        with zipfile.ZipFile(path) as box:
            present = set(box.namelist())
            names = [name for name in ("X", "y", "lengths") if f"{name}.npy" in present]
            found = {name: _array(path, box, f"{name}.npy") for name in names}
        X = found["X"]
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise ValueError(
            f"{path.name} must hold the arrays X and, for training, y, no objects; got: {error}."
        ) from error
    for name, array in found.items():
        if array.ndim == 0 or len(array) != len(X):
            raise ValueError(f"`{name}` of {path.name} must have one entry per series; got shape {array.shape}.")
    if (lengths := found.get("lengths")) is not None:
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or not ((lengths > 0) & (lengths <= X.shape[-1])).all():
            raise ValueError(f"`lengths` of {path.name} must be whole numbers from 1 to {X.shape[-1]}.")
        found["lengths"] = lengths.astype(np.int64)
    return found


def _array(path: Path, box: zipfile.ZipFile, name: str) -> np.ndarray:
    """Read one array; its header is checked against its size before memory is allocated."""
    member = box.getinfo(name)
    if member.flag_bits & 1:
        raise ValueError(f"{name} is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is compressed in a way that numpy.savez_compressed does not use")
    held = member.file_size
    _bounded(path, held)
    with box.open(name) as stream:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(stream)
    if dtype.kind not in ("biufSU" if name == "y.npy" else "biuf") or dtype.itemsize == 0:
        raise ValueError(f"{name} must hold numbers{' or text' if name == 'y.npy' else ''}; its type is {dtype}")
    if math.prod(shape) == 0:
        raise ValueError(f"{name} must not be empty; its shape is {shape}")
    if math.prod(shape) * dtype.itemsize > held:
        raise ValueError(f"{name} declares the shape {shape}, but contains fewer values")
    _bounded(path, 8 * math.prod(shape) + ROW * (shape[0] if shape else 1))
    with box.open(name) as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def _bounded(path: Path, size: int) -> None:
    """Refuse a small file that would take much memory."""
    limit = (64 << 20) + 100 * path.stat().st_size
    if size > limit:
        raise ValueError(
            f"{path.name} must unpack to at most {limit >> 20} MB, a hundred times its size and 64 MB; it is larger"
        )


def write(path: str | Path, columns: dict[str, list[Any]], spreadsheet: bool = False) -> Path:
    """Write a table as CSV or, by its suffix, as Parquet; `spreadsheet` as in `as_csv`."""
    path = Path(path)
    if path.suffix == ".parquet":
        import pyarrow

        sink = io.BytesIO()
        _parquet().write_table(pyarrow.table(columns), sink)
        write_atomically(path, sink.getvalue())
    else:
        write_atomically(path, as_csv(columns, spreadsheet).encode())
    return path


def as_csv(columns: dict[str, list[Any]], spreadsheet: bool = False) -> str:
    """Return a table as CSV text.

    With `spreadsheet`, texts that a spreadsheet would take for a formula get a single quote in front: labels and names
    of series come from data, and `=HYPERLINK(...)` in one would be executed by the program that opens the table.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = [list(columns), *zip(*columns.values())]
    writer.writerows([[_no_formula(cell) for cell in row] for row in rows] if spreadsheet else rows)
    return text.getvalue()


def _no_formula(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)  # a negative number is not a formula
    except ValueError:
        return f"'{cell}"
    return cell


def _parquet() -> Any:
    return extra("pyarrow.parquet", "Parquet files need")
