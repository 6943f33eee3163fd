"""What the columns of a table mean: one series a row or one step a row, and which column has which role.

Nothing is guessed in silence. A column that looks like a series id or like time is taken as a channel only if the user
is refused; the error names the options to choose from.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lem.spelling import nearest
from lem.timeseries.formats import MISSING, Columns
from lem.timeseries.schema import DUPLICATES, GAPS, ON_MISSING, Schema, families
from lem.timeseries.times import looks_like_dates
from lem.wording import InputError, check_choice

ID_WORDS = ("id", "ids", "uid", "uuid", "guid", "key", "idx", "index", "rowid", "identifier", "serial", "unnamed")
TIME_WORDS = ("time", "timestamp", "datetime", "date", "ds", "epoch")
CLOCK_WORDS = ("t", "step", "tick", "frame", "sample", "hour", "day", "minute", "second", "seconds", "month", "year")
"""Names that mean time only if the values go up."""
LARGEST_EXACT = 2**53


@dataclass(frozen=True)
class Reading:
    """How a table is read; see `lem.timeseries.fit_file`."""

    target: str | None = None
    series: str | None = None
    time: str | None = None
    time_format: str | None = None
    channels: tuple[str, ...] | None = None
    static: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    layout: str | None = None
    gaps: str = "error"
    duplicates: str = "error"
    missing: str = "error"

    def __post_init__(self) -> None:
        check_choice(None, "gaps", self.gaps, GAPS)
        check_choice(None, "duplicates", self.duplicates, DUPLICATES)
        check_choice(None, "missing", self.missing, ON_MISSING)
        if self.layout is not None:
            check_choice(None, "layout", self.layout, ("wide", "long"))


class Suspect(NamedTuple):
    """A column that looks as if it were no channel."""

    name: str
    role: str
    why: str


def decide(columns: Columns, reading: Reading, file: str, forecast: bool = False) -> Schema:
    """Return the schema of a table as the user reads it, or raise an error that names the options to choose from."""
    _check_names(columns, reading, file)
    taken = {reading.target, reading.series, reading.time, *reading.static, *reading.ignore}
    values = list(reading.channels or [name for name in columns if name not in taken])
    long = reading.layout == "long" or (reading.layout is None and (reading.series is not None or forecast))
    if reading.time is not None and not long:
        raise InputError(
            lambda option: (
                f"{option('time')} needs {option('series')}: without it, {file} is read as one series per row, and a "
                "row has no time of its own."
            )
        )
    if reading.series is not None and not long:
        raise InputError(
            lambda option: f"{option('series')} is for tables with one step per row; remove the wide layout."
        )
    if reading.channels is None:
        found = suspects(
            {name: columns[name] for name in values if name not in reading.keep}, reading.series is not None
        )
        if found:
            raise _ask(found, reading, file)
    if not values:
        raise InputError(f"{file} must have at least one value column; it has only {', '.join(columns)}.")
    if reading.gaps == "elapsed" and reading.time is None:
        raise InputError(
            lambda option: f"{option('gaps', 'elapsed')} needs a column of times; name it with {option('time')}."
        )
    used = {*values, *reading.static, *_roles(reading)}
    ignored = tuple(name for name in columns if name not in used)
    common = {"series": reading.series, "time": reading.time, "target": reading.target, "static": tuple(reading.static)}
    rules = {"gaps": reading.gaps, "duplicates": reading.duplicates, "missing": reading.missing}
    form = reading.time_format
    if long:
        named = tuple(values)
        return Schema("long", named, named, ignored=ignored, time_format=form, **common, **rules)  # type: ignore[arg-type]
    channels, steps = _steps(values, reading, file)
    return Schema("wide", channels, steps, ignored=ignored, **common, **rules)  # type: ignore[arg-type]


def _roles(reading: Reading) -> list[str]:
    return [name for name in (reading.target, reading.series, reading.time) if name is not None]


def _check_names(columns: Columns, reading: Reading, file: str) -> None:
    """Check that every column the user names is there, and that none has two roles."""
    given: dict[str, Iterable[str]] = {
        role: [name] for role in ("target", "series", "time") if (name := getattr(reading, role)) is not None
    }
    given |= {
        "channels": reading.channels or (),
        "static": reading.static,
        "ignore": reading.ignore,
        "keep": reading.keep,
    }
    role_of: dict[str, str] = {}
    for role, names in given.items():
        for name in names:
            if name not in columns:
                listed = ", ".join(list(columns)[:12]) + (", ..." if len(columns) > 12 else "")
                raise InputError(
                    lambda option, r=role, n=name, k=listed: (
                        f"{option(r)} must name columns of {file}, which are {k}; got {n!r}.{nearest(n, columns)}"
                    )
                )
            if role != "keep" and name in role_of:
                raise InputError(
                    lambda option, r=role, n=name: f"Column {n!r} cannot be both {option(role_of[n])} and {option(r)}."
                )
            if role != "keep":
                role_of[name] = role


def _steps(values: list[str], reading: Reading, file: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the channels and the step columns of a wide table."""
    if reading.channels is not None:
        return ("value",), tuple(values)
    found = families(values)
    numbered = [name for names in found.values() for name in names]
    in_family = set(numbered)
    others = [name for name in values if name not in in_family]
    if others and numbered:
        raise InputError(
            lambda option: (
                f"{file} has numbered steps ({numbered[0]} to {numbered[-1]}) and other columns "
                f"({', '.join(others[:5])}). Give "
                f"{option('static', others[:5])} if they are one value per series, or {option('ignore', others[:5])}."
            )
        )
    if others:
        if reading.layout == "wide":
            return ("value",), tuple(values)
        raise InputError(
            lambda option: (
                f"The columns of {file} ({', '.join(others[:5])}) are not numbered as the steps of a series are (t0, "
                f"t1, ...). If each row is one step, give {option('series')} with the column that names the series; if "
                f"each row is a whole series, give {option('layout', 'wide')}."
            )
        )
    counts = {stem: [_number(stem, name) for name in names] for stem, names in found.items()}
    first = next(iter(counts.values()))
    for stem, count in counts.items():
        if count != first:
            raise InputError(
                lambda option, s=stem: (
                    f"The channels of {file} must have the same steps; {next(iter(found))!r} has {len(first)} and "
                    f"{s!r} has {len(counts[s])}. To leave a channel out, give {option('ignore')} with its columns."
                )
            )
    channels = tuple(found) if len(found) > 1 else ("value",)
    return channels, tuple(numbered)


def _number(stem: str, name: str) -> int:
    return int(re.sub(r"\D", "", name[len(stem) :]))


# --- what looks like an id or like time ---------------------------------------------------------------------------


def suspects(columns: Columns, grouped: bool) -> list[Suspect]:
    """Return the columns that look like ids or times; `grouped` if the series are named already."""
    numbered = {name for names in families(columns).values() for name in names}
    found = [_suspect(name, column, grouped) for name, column in columns.items() if name not in numbered]
    return [suspect for suspect in found if suspect is not None]


def _suspect(name: str, column: np.ndarray, grouped: bool) -> Suspect | None:
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
    last, whole = (words[-1] if words else ""), "".join(words)
    if looks_like_dates(column):
        return Suspect(name, "time", "it holds timestamps")
    values = _numeric(column)
    if last in ID_WORDS:
        return Suspect(name, "id", "it is called so")
    if last in TIME_WORDS:
        return Suspect(name, "time", "it is called so")
    if values is None and _share_of_numbers(column) > 0.5:  # a channel with a wrong entry, which is named later
        return None
    if values is None:
        return Suspect(name, "id", "it holds text") if not grouped and len(set(map(str, column.tolist()))) > 1 else None
    known = values[np.isfinite(values)]
    is_whole = len(known) > 0 and bool((known == np.round(known)).all())
    if is_whole and bool((np.abs(known) > LARGEST_EXACT).any()):
        return Suspect(name, "id", "it holds integers too large to be measured values")
    if len(known) < 5 or len(known) < len(values):
        return None
    if _counts_up(values):
        return Suspect(name, "time", "it counts up")
    if whole in CLOCK_WORDS and _goes_up(values):
        return Suspect(name, "time", "it is called so, and its values increase")
    if is_whole and bool((known > 4e8).all()) and _goes_up(values):
        return Suspect(name, "time", "it holds increasing numbers of the size of Unix times")
    if is_whole and not grouped and _in_blocks(values):
        return Suspect(name, "id", "equal values follow each other in blocks")
    return None


def _numeric(column: np.ndarray) -> np.ndarray | None:
    if column.dtype.kind in "iufb":
        return column.astype(np.float64)
    try:
        return np.array(
            [np.nan if entry is None or str(entry).strip().lower() in MISSING else float(entry) for entry in column]
        )
    except (TypeError, ValueError):
        return None


def _share_of_numbers(column: np.ndarray) -> float:
    return float(np.mean([_numeric(column[row : row + 1]) is not None for row in range(min(len(column), 200))]))


def _restarts(steps: np.ndarray) -> bool:
    """Return whether values only go up but for a few restarts, as times of several series do."""
    return int((steps <= 0).sum()) <= len(steps) // 8


def _goes_up(values: np.ndarray) -> bool:
    return _restarts(np.diff(values))


def _counts_up(values: np.ndarray) -> bool:
    steps = np.diff(values)
    up = steps[steps > 0]
    if not len(up) or not _restarts(steps):
        return False
    usual = float(np.median(up))
    return bool((np.abs(up - usual) <= 1e-6 * usual).mean() >= 0.9)


def _in_blocks(values: np.ndarray) -> bool:
    blocks, different = 1 + int((np.diff(values) != 0).sum()), len(np.unique(values))
    return blocks == different and 1 < different <= len(values) // 4


def _ask(found: list[Suspect], reading: Reading, file: str) -> InputError:
    """Return the error that lists the columns with an unclear role and the options to choose from."""
    ids = [suspect.name for suspect in found if suspect.role == "id"]
    times = [suspect.name for suspect in found if suspect.role == "time"]
    said = "; ".join(
        f"column {s.name!r} looks like {'a series id' if s.role == 'id' else 'time'} ({s.why})" for s in found[:4]
    )
    more = f"; and {len(found) - 4} more" if len(found) > 4 else ""

    def message(option: object) -> str:
        assert callable(option)
        ways = []
        if ids and reading.series is None:
            both = option("series", ids[0]) + (f" {option('time', times[0])}" if times and reading.time is None else "")
            ways.append(f"{both} to read one step per row")
        elif times and reading.time is None and (reading.series is not None or not ids):
            ways.append(f"{option('time', times[0])} to sort the steps by it")
        names = [suspect.name for suspect in found[:4]]
        ways.append(f"{option('ignore', names)} to leave {'it' if len(names) == 1 else 'them'} out")
        ways.append(f"{option('keep', names)} to use {'it as a channel' if len(names) == 1 else 'them as channels'}")
        return f"In {file}, {said}{more}. Give {', '.join(ways[:-1])}, or {ways[-1]}."

    return InputError(message)
