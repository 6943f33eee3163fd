"""The schema in a model file: the columns it was trained on by name, their roles, time and missing values."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lem.spelling import nearest
from lem.wording import InputError

LAYOUTS = ("wide", "long", "array")
GAPS = ("error", "ignore", "resample", "elapsed")
DUPLICATES = ("error", "first", "last", "mean")
ON_MISSING = ("error", "mask")
TIME_KINDS = ("datetime", "duration", "number")


@dataclass(frozen=True)
class Schema:
    """How a file of series was read.

    Attributes:
        layout: "long" (one step a row), "wide" (one series a row) or "array" (a file without column names).
        channels: the names of the model's channels, without the static ones.
        columns: the value columns in the order in which they are read: the channels of a long table; the steps of a
            wide one, channel by channel.
        static: the columns with one value per series, which the model sees as constant channels.
        series: the column that names the series.
        time: the column of the times.
        target: the column of the target.
        ignored: the columns that were left out.
        target_type: "text" or "number".
        time_kind: "datetime", "duration" or "number".
        time_format: the format in which dates are written, if it was given.
        interval: the usual time between two steps, in seconds or, for "number", in the column's own unit.
        gaps: what is done with irregular times: "error", "ignore", "resample" or "elapsed".
        duplicates: what is done with repeated times: "error", "first", "last" or "mean".
        missing: "error" or "mask": whether missing values are accepted.
    """

    layout: str
    channels: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    series: str | None = None
    time: str | None = None
    target: str | None = None
    ignored: tuple[str, ...] = ()
    target_type: str | None = None
    time_kind: str | None = None
    time_format: str | None = None
    interval: float | None = None
    gaps: str = "error"
    duplicates: str = "error"
    missing: str = "error"

    def plain(self) -> dict[str, Any]:
        """Return the schema as plain values, for the metadata of a model file."""
        found = dataclasses.asdict(self)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}

    @classmethod
    def from_plain(cls, found: Any, inputs: int) -> "Schema":
        """Read a schema from the metadata of a model file; `inputs` is the number of the model's channels."""
        if not isinstance(found, dict):
            raise ValueError("its schema must be an object")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for name, value in found.items():
            if name not in fields:  # of a later version
                continue
            if fields[name].type == "tuple[str, ...]" or isinstance(fields[name].default, tuple):
                if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
                    raise ValueError(f"`{name}` of its schema must be a list of names; got {value!r}")
                value = tuple(value)
            elif name == "interval":
                if value is not None and (not isinstance(value, int | float) or not 0 < value < float("inf")):
                    raise ValueError(f"`interval` of its schema must be a positive number; got {value!r}")
            elif value is not None and not isinstance(value, str):
                raise ValueError(f"`{name}` of its schema must be text; got {value!r}")
            values[name] = value
        try:
            schema = cls(**values)
        except TypeError as error:
            raise ValueError(f"its schema is not complete: {error}") from error
        choices = {"layout": LAYOUTS, "gaps": GAPS, "duplicates": DUPLICATES, "missing": ON_MISSING}
        for name, known in {
            **choices,
            "time_kind": (None, *TIME_KINDS),
            "target_type": (None, "text", "number"),
        }.items():
            if getattr(schema, name) not in known:
                raise ValueError(f"`{name}` of its schema must be one of {known}; got {getattr(schema, name)!r}")
        if schema.layout != "array" and len(schema.channels) + len(schema.static) != inputs:
            raise ValueError(f"its schema must name {inputs} channels; it names {len(schema.channels)}")
        if schema.layout == "long" and schema.columns != schema.channels:
            raise ValueError("the columns of its schema must be its channels")
        if schema.layout == "wide" and len(schema.columns) % len(schema.channels):
            raise ValueError("its schema must have as many steps for every channel")
        return schema

    def needed(self) -> list[str]:
        """Return the columns that a file must have, the target apart."""
        return [*(name for name in (self.series, self.time) if name is not None), *self.columns, *self.static]

    def match(self, columns: Iterable[str], file: str) -> list[str]:
        """Check that a file has the columns of this schema; return those that are not used.

        Raises an `InputError` that names each missing column, and the closest one that the file has instead.
        """
        present, needed = list(columns), self.needed()
        known = {*needed, self.target, *self.ignored}
        extra = [name for name in present if name not in known]
        there = set(present)
        missing = [name for name in needed if name not in there]
        if missing:
            hints = "".join(dict.fromkeys(_closest(name, extra) for name in missing[:3]))
            listed = ", ".join(map(repr, missing[:5])) + (", ..." if len(missing) > 5 else "")
            plural = "columns" if len(missing) > 1 else "column"
            raise InputError(
                f"{file} has no {plural} {listed}, which the model was trained on.{hints} The model reads "
                f"{_listed(needed)}. Rename the columns of the file to match."
            )
        if self.layout == "wide":
            steps = families(self.columns)
            longer = [name for name in extra if family(name) is not None and family(name) in steps]
            if longer:
                raise InputError(
                    lambda option: (
                        f"{file} has more steps than the model was trained on: {_listed(longer)}. To leave them out, "
                        f"give {option('ignore', longer[:5])}."
                    )
                )
        return extra


def family(name: str) -> str | None:
    """Return what a numbered column is called without its number ("flow" of "flow_12"), or None."""
    stem = name.rstrip("0123456789")
    return None if stem == name else stem.rstrip("_-. ")


def number(name: str) -> int:
    """Return the number at the end of a column's name."""
    return int(name[len(name.rstrip("0123456789")) :])


def families(columns: Iterable[str]) -> dict[str, list[str]]:
    """Return the numbered columns by what they are called without their number, each in the order of the numbers."""
    found: dict[str, list[str]] = {}
    for name in columns:
        stem = family(name)
        if stem is not None:
            found.setdefault(stem, []).append(name)
    return {stem: sorted(names, key=number) for stem, names in found.items() if len(names) > 2}


def _closest(name: str, present: list[str]) -> str:
    same = [other for other in present if other.strip().casefold() == name.strip().casefold()]
    return f" Did you mean {same[0]!r}?" if same else nearest(name, present)


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f", ... ({len(names)} in all)" if len(names) > most else "")
