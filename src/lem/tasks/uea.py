"""Reading the time series of the UEA & UCR archives: `.ts` and `.arff` files.

A `.ts` file has one series a line, its channels separated by colons, its values by commas, the label last. An `.arff`
file has one series a line as well; with several channels they stand in quotes, separated by a written `\\n`.
Missing values (`?`) become NaN. Anything else that is not as it should be is a DataError with the line's number.
"""

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from lem.training.data import DataError, check_padding


class Series(NamedTuple):
    """The series of one file.

    Attributes:
        values: for each series its (time, channel) values, in single precision.
        labels: the label of each series as written.
        classes: the labels the header declares, in its order; empty where the labels are numbers to predict.
    """

    values: list[np.ndarray]
    labels: list[str]
    classes: tuple[str, ...]


def read_series(path: Path) -> Series:
    """Read a `.ts` or `.arff` file."""
    if path.suffix not in (".ts", ".arff"):
        raise DataError(f"A file of time series must end in .ts or .arff; got {path.name}.")
    try:
        with path.open(encoding="utf-8", errors="strict") as lines:
            return (_read_ts if path.suffix == ".ts" else _read_arff)(_Lines(path, lines))
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} must be UTF-8 text: {error}.") from error


def padded(values: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Stack series to (sample, time, channel), zeros behind the shorter ones; return their lengths if unequal."""
    lengths = [len(v) for v in values]
    check_padding(lengths, values[0].shape[1])
    stacked = np.zeros((len(values), max(lengths), values[0].shape[1]), dtype=np.float32)
    for row, v in zip(stacked, values):
        row[: len(v)] = v
    return torch.from_numpy(stacked), torch.tensor(lengths) if len(set(lengths)) > 1 else None


def class_numbers(labels: list[str]) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Number the labels 0, 1, ... in their sorted order; return the numbers and the labels they stand for."""
    names = tuple(sorted(set(labels)))
    numbers = {name: number for number, name in enumerate(names)}
    return torch.tensor([numbers[label] for label in labels]), names


class _Lines:
    """The lines of a file that hold something, with the place for messages."""

    def __init__(self, path: Path, lines: Iterable[str]) -> None:
        self.name, self.number, self._lines = path.name, 0, lines

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.number += 1
            if (line := line.strip()) and not line.startswith(("#", "%")):
                yield line

    def error(self, message: str) -> DataError:
        return DataError(f"{self.name}, line {self.number}: {message}")


def _read_ts(lines: _Lines) -> Series:
    header: dict[str, str] = {}
    rows: list[np.ndarray] = []
    labels: list[str] = []
    classes: dict[str, str] = {}
    data = False
    for line in lines:
        if not data:
            if not line.startswith("@"):
                raise lines.error("a header line must start with '@' until '@data'.")
            key, _, value = line[1:].partition(" ")
            header[key.lower()] = value.strip()
            if key.lower() == "data":
                data = True
                classes = {name: name for name in _check_ts_header(lines, header)}
            continue
        *channels, label = line.split(":")
        if not channels:
            raise lines.error("a series must have values and a label, separated by ':'.")
        labels.append(_checked_label(lines, label.strip(), classes))
        rows.append(_channels(lines, channels, rows))
    return _finish(lines, data, rows, labels, classes)


def _check_ts_header(lines: _Lines, header: dict[str, str]) -> tuple[str, ...]:
    if header.get("timestamps", "false").lower() != "false":
        raise lines.error("time stamps are not supported: the models read equally spaced samples.")
    flag, *classes = (header.get("classlabel") or "false").split()
    if flag.lower() == "true":
        if not classes:
            raise lines.error("'@classLabel true' must be followed by the labels.")
        return tuple(classes)
    if header.get("targetlabel", "false").lower().split()[:1] != ["true"]:
        raise lines.error("the header must have '@classLabel true' with the labels, or '@targetLabel true'.")
    return ()


def _read_arff(lines: _Lines) -> Series:
    rows: list[np.ndarray] = []
    labels: list[str] = []
    classes: dict[str, str] = {}
    data = relational = False
    for line in lines:
        lower = line.lower()
        if not data:
            if lower.startswith("@data"):
                data = True
            elif re.match(r"@attribute\s+\S+\s+relational", lower):
                relational = True
            elif found := re.match(r"@attribute\s+\S+\s+\{(.*)\}$", line, re.IGNORECASE):
                parts = (part.strip().strip("'\"") for part in found[1].split(","))
                classes = {name: name for name in parts}
            elif not lower.startswith(("@relation", "@attribute", "@end")):
                raise lines.error("a header line must start with @relation, @attribute or @end until '@data'.")
            continue
        text, comma, label = line.rpartition(",")
        if not comma:
            raise lines.error("a series must have values and a label, separated by ','.")
        if relational:
            if len(text) < 2 or text[0] not in "'\"" or text[-1] != text[0]:
                raise lines.error("the channels of a series must stand in quotes.")
            channels = text[1:-1].split("\\n")
        else:
            channels = [text]
        labels.append(_checked_label(lines, label.strip().strip("'\""), classes))
        rows.append(_channels(lines, channels, rows))
    return _finish(lines, data, rows, labels, classes)


def _checked_label(lines: _Lines, label: str, classes: dict[str, str]) -> str:
    """Return the label as the header has it: one object for all series of a class."""
    if classes and label not in classes:
        some = ", ".join(list(classes)[:20]) + (f" and {len(classes) - 20} more" if len(classes) > 20 else "")
        raise lines.error(f"the label must be one of {some}; got {label!r}.")
    if not classes:
        try:
            number = float(label)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise lines.error(f"the target must be a finite number; got {label!r}.")
    return classes.get(label, label)


def _channels(lines: _Lines, channels: list[str], before: list[np.ndarray]) -> np.ndarray:
    values = [_numbers(lines, channel) for channel in channels]
    if len({len(v) for v in values}) > 1:
        raise lines.error(f"the channels of a series must be equally long; got {[len(v) for v in values]}.")
    if before and before[0].shape[1] != len(values):
        raise lines.error(f"a series must have {before[0].shape[1]} channels as those before; got {len(values)}.")
    return np.stack(values, axis=1)


def _numbers(lines: _Lines, text: str) -> np.ndarray:
    parts = text.split(",")
    try:
        if "?" in text:
            parts = [part if part.strip() != "?" else "nan" for part in parts]
        with np.errstate(over="ignore"):
            numbers = np.array(parts, dtype=np.float64).astype(np.float32)
    except ValueError as error:
        raise lines.error(f"a value must be a number or '?': {error}.") from error
    if np.isinf(numbers).any():
        raise lines.error("a value must be finite in single precision; got an infinite one.")
    return numbers


def _finish(lines: _Lines, data: bool, rows: list[np.ndarray], labels: list[str], classes: dict[str, str]) -> Series:
    if not data:
        raise lines.error("the file must have a line '@data'.")
    if not rows:
        raise lines.error("the file must hold at least one series.")
    return Series(rows, labels, tuple(classes))
