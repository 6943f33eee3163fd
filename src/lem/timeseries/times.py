"""Times of a table: timestamps, durations and plain numbers, and what is irregular about them."""

import datetime
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from lem.wording import InputError

TOLERANCE = 0.05
"""A step counts as regular if it differs from the usual one by at most this part of it."""

NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
_UNITS = {
    "ns": "ns nanosecond nanoseconds",
    "us": "us µs microsecond microseconds",
    "ms": "ms millisecond milliseconds",
    "s": "s sec secs second seconds",
    "min": "m min mins minute minutes",
    "h": "h hr hrs hour hours",
    "d": "d day days",
}
_UNIT_OF = {word: unit for unit, words in _UNITS.items() for word in words.split()}
_CLOCK = re.compile(r"(?:(-?\d+) days?,? *)?(\d+):([0-5]\d)(?::([0-5]\d)(?:[.,](\d{1,9}))?)?")
_AMOUNT = re.compile(r"(-?\d+(?:\.\d+)?) *([a-zµ]+)")
_SLASHES = re.compile(r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4})(?:[ T,]+(\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?))?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d")
_MONTH = re.compile(r"(\d{4})[-/](\d{1,2})")
_YEAR_FIRST = re.compile(r"(\d{4})/(\d{1,2})/(\d{1,2})(?:[ T]+(\d{1,2})(:\d{2}.*))?")
_LATEST = 2**63 - 1


@dataclass(frozen=True)
class Times:
    """The times of the rows of a table.

    Attributes:
        kind: "datetime", "duration" or "number".
        values: nanoseconds (since 1970 for "datetime"), or the numbers themselves.
    """

    kind: str
    values: np.ndarray

    @property
    def unit(self) -> float:
        """What one second, or the number one, is in `values`."""
        return 1.0 if self.kind == "number" else 1e9

    def native(self, values: np.ndarray) -> np.ndarray:
        """Return some of the values as datetime64, timedelta64 or numbers."""
        return values if self.kind == "number" else values.astype("M8[ns]" if self.kind == "datetime" else "m8[ns]")

    def show(self, value: Any) -> str:
        """Write one of the values as people do."""
        if self.kind == "datetime":
            return show_date(value)
        return show_span(float(value) / self.unit, self.kind)


def show_date(moment: int) -> str:
    """Write a time in nanoseconds since 1970 as a date, down to the digits that are not zero."""
    text = str(np.datetime64(int(moment), "ns")).replace("T", " ")
    return text.rstrip("0").rstrip(".") if "." in text else text


def show_span(span: float, kind: str) -> str:
    """Write a span of time: seconds, or for "number" the number."""
    if kind == "number":
        return f"{span:.6g}"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if span >= size and abs(span / size - round(span / size)) < 1e-9:
            return f"{round(span / size)} {unit}"
    return f"{span:.6g} s" if span >= 1.0 or span == 0.0 else f"{1e3 * span:.6g} ms"


def parse_times(column: np.ndarray, name: str, form: str | None = None) -> Times:
    """Read the times of a column.

    Args:
        column: numbers, text, datetime64 or timedelta64, or objects of `datetime`.
        name: of the column, for messages.
        form: a format of `datetime.strptime`, for dates that can be read in two ways.
    """
    column = np.asarray(column)
    if column.dtype.kind in "Mm":
        missing = np.flatnonzero(np.isnat(column))
        if len(missing):
            raise _missing(name, int(missing[0]))
        kind = "datetime" if column.dtype.kind == "M" else "duration"
        return Times(kind, column.astype(f"{column.dtype.kind}8[ns]").astype(np.int64))
    if column.dtype.kind in "iuf":
        bad = np.flatnonzero(~np.isfinite(column))
        if len(bad):
            raise _missing(name, int(bad[0]))
        return Times("number", column)
    entries = [_text(entry) for entry in column]
    for row, entry in enumerate(entries):
        if entry == "":
            raise _missing(name, row)
    if form is not None:
        return Times("datetime", _formatted(entries, name, form))
    numbers = _as_numbers(entries)
    if numbers is not None:
        return Times("number", numbers)
    if _CLOCK.fullmatch(entries[0]) or _AMOUNT.fullmatch(entries[0].lower()):
        return Times("duration", np.array([_duration(e, name, i) for i, e in enumerate(entries)], dtype=np.int64))
    if _SLASHES.fullmatch(entries[0]):
        return Times("datetime", _slashed(entries, name))
    return Times("datetime", _iso(entries, name))


def looks_like_dates(column: np.ndarray) -> bool:
    """Return whether the first entries of a column are timestamps or clock times."""
    column = np.asarray(column)
    if column.dtype.kind in "Mm":
        return True
    if column.dtype.kind in "iufb":
        return False
    first = [text for text in map(_text, column[:20]) if text]
    if not first or _as_numbers(first) is not None:
        return False
    try:
        parse_times(np.array(first, dtype=object), "")
    except ValueError:
        return all(_SLASHES.fullmatch(text) or _DATE.match(text) for text in first)
    return True


def _text(entry: Any) -> str:
    if entry is None or (isinstance(entry, float) and entry != entry):
        return ""
    return entry.isoformat() if isinstance(entry, datetime.date) else str(entry).strip()


def _missing(name: str, row: int) -> InputError:
    return InputError(f"Column {name!r} must have a time in every row; row {row + 1} has none. Remove or fill the row.")


def _as_numbers(entries: list[str]) -> np.ndarray | None:
    try:
        return np.array([int(entry) for entry in entries], dtype=np.int64)
    except (ValueError, OverflowError):
        pass
    try:
        values = np.array([float(entry) for entry in entries])
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def _duration(text: str, name: str, row: int) -> int:
    clock, amount = _CLOCK.fullmatch(text), _AMOUNT.fullmatch(text.lower())
    if clock:
        days, hours, minutes, seconds, part = clock.groups()
        whole = 86400 * int(days or 0) + 3600 * int(hours) + 60 * int(minutes) + int(seconds or 0)
        return _held(whole * 10**9 + int((part or "0").ljust(9, "0")), name, row)
    if amount and amount[2] in _UNIT_OF:
        return _held(round(float(amount[1]) * NANOSECONDS[_UNIT_OF[amount[2]]]), name, row)
    raise InputError(f"Column {name!r} must hold durations such as 00:01:30 or 90 s; got {text!r} in row {row + 1}.")


def _iso(entries: list[str], name: str) -> np.ndarray:
    values, zoned = np.empty(len(entries), dtype=np.int64), None
    for row, text in enumerate(entries):
        try:
            moment = datetime.datetime.fromisoformat(_completed(text))
        except ValueError:
            raise InputError(
                lambda option, row=row, text=text: (
                    f"Column {name!r} must hold times: numbers, timestamps such as 2024-01-31 12:00:05, or durations "
                    f"such as 00:01:30; got {text!r} in row {row + 1}. For another form of dates give "
                    f"{option('time_format', '%d.%m.%Y')}."
                )
            ) from None
        if zoned is None:
            zoned = moment.tzinfo is not None
        elif zoned != (moment.tzinfo is not None):
            raise InputError(
                f"Column {name!r} must have a time zone in every row or in none; row 1 and row {row + 1} differ. Add "
                "the missing zones, or remove them all."
            )
        values[row] = _nanoseconds(moment, name, row)
        fraction = re.search(r"\.\d{6}(\d{1,3})", text)  # `fromisoformat` drops what is below a microsecond
        if fraction:
            values[row] += int(fraction[1].ljust(3, "0"))
    return values


def _completed(text: str) -> str:
    """Return 2024-01 as 2024-01-01, and 2024/1/2 3:00 as 2024-01-02 03:00; any other text as it is."""
    month, day = _MONTH.fullmatch(text), _YEAR_FIRST.fullmatch(text)
    if month:
        return f"{month[1]}-{int(month[2]):02}-01"
    if day:
        clock = f"T{int(day[4]):02}{day[5]}" if day[4] else ""
        return f"{day[1]}-{int(day[2]):02}-{int(day[3]):02}{clock}"
    return text


def _slashed(entries: list[str], name: str) -> np.ndarray:
    """Read dates such as 31/01/2024: the order of day and month must follow from the column itself."""
    found = [_SLASHES.fullmatch(text) for text in entries]
    for row, match in enumerate(found):
        if match is None:
            raise InputError(f"Column {name!r} must hold dates of one form; got {entries[row]!r} in row {row + 1}.")
    parts = np.array([[int(match[1]), int(match[3]), int(match[4])] for match in found if match])
    separator = found[0][2] if found[0] else ""
    day_first = bool((parts[:, 0] > 12).any()) or separator == "."
    month_first = bool((parts[:, 1] > 12).any())
    if day_first == month_first:
        raise InputError(
            lambda option: (
                f"Column {name!r} holds dates such as {entries[0]!r} in which day and month cannot be told apart. Give "
                f"{option('time_format', '%d/%m/%Y')} or {option('time_format', '%m/%d/%Y')} (with %H:%M:%S for "
                "clock times)."
            )
        )
    values = np.empty(len(entries), dtype=np.int64)
    for row, (match, (a, b, year)) in enumerate(zip(found, parts.tolist())):
        assert match is not None
        day, month = (a, b) if day_first else (b, a)
        hours, _, rest = (match[5] or "0:00").partition(":")
        try:
            moment = datetime.datetime.fromisoformat(f"{year:04}-{month:02}-{day:02}T{int(hours):02}:{rest}")
        except ValueError as error:
            raise InputError(
                f"Column {name!r} must hold dates; got {entries[row]!r} in row {row + 1}: {error}."
            ) from error
        values[row] = _nanoseconds(moment, name, row)
    return values


def _formatted(entries: list[str], name: str, form: str) -> np.ndarray:
    values = np.empty(len(entries), dtype=np.int64)
    for row, text in enumerate(entries):
        try:
            moment = datetime.datetime.strptime(text, form)
        except (ValueError, re.error) as error:
            raise InputError(
                lambda option, row=row, text=text: (
                    f"Column {name!r} must have the form of {option('time_format')} ({form}); got {text!r} in row "
                    f"{row + 1}."
                )
            ) from error
        values[row] = _nanoseconds(moment, name, row)
    return values


_EPOCH = datetime.datetime(1970, 1, 1)


def _nanoseconds(moment: datetime.datetime, name: str, row: int) -> int:
    if moment.tzinfo is not None:
        moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
    since = moment - _EPOCH
    return _held((since.days * 86400 + since.seconds) * 10**9 + since.microseconds * 1000, name, row)


def _held(value: int, name: str, row: int) -> int:
    if abs(value) > _LATEST:
        raise InputError(f"Column {name!r} must hold times between the years 1678 and 2261; row {row + 1} does not.")
    return value
