"""The options that say how a file of series is read, for all commands that read one."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lem.cli.display import Display
from lem.timeseries.layout import Reading
from lem.timeseries.schema import DUPLICATES, GAPS, ON_MISSING


def add_data(
    parser: argparse.ArgumentParser, optional: bool = False, training: bool = False, positional: bool = True
) -> None:
    """Add the arguments that describe the data file and how to read it."""
    extra: dict[str, Any] = {"nargs": "?"} if optional else {}
    if positional:
        parser.add_argument("data", type=Path, metavar="DATA", help="a file of series", **extra)
    group = parser.add_argument_group(
        "reading DATA",
        "a model file contains how its data was read; these options are for files that differ"
        if not training
        else None,
    )

    def add(flag: str, **options: Any) -> None:
        group.add_argument(flag, default=argparse.SUPPRESS, **options)

    lists: dict[str, Any] = {"metavar": "A,B,...", "type": names, "action": "extend"}
    add("--target", metavar="COLUMN", help="the column of the target")
    add("--series", metavar="COLUMN", help="the column that names the series: one step a row")
    add("--time", metavar="COLUMN", help="the column of the times of the steps")
    add("--time-format", metavar="FORMAT", help="how dates are written, such as %%d/%%m/%%Y %%H:%%M")
    add("--channels", **lists, help="the value columns (default: all that have no other role)")
    add("--static", **lists, help="columns with one value per series")
    add("--ignore", **lists, help="columns to leave out")
    add("--keep", **lists, help="columns that are channels although they look like ids or times")
    add("--layout", choices=("wide", "long"), help="one series a row, or one step a row")
    add(
        "--gaps",
        choices=GAPS,
        help="irregular times: refuse (default), use the order alone, interpolate, or let the model see them",
    )
    add("--duplicates", choices=DUPLICATES, help="repeated times: refuse (default), or the value to keep")
    if training:
        add("--missing", choices=ON_MISSING, help="missing values: refuse (default), or mark for the model")


def given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return those of the options that were given."""
    return {name: getattr(options, name) for name in names if hasattr(options, name)}


def reading(options: argparse.Namespace) -> Reading:
    """Return the options that say how to read a file."""
    found = given(options, *Reading.__dataclass_fields__)
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    return Reading(**plain)


def describer(path: Path, display: Display | None = None) -> Callable[[Any], None]:
    """Return a function that prints how a file was understood; `display` then shows that training is prepared."""

    def understood(data: Any) -> None:
        print(f"{path.name}: {data.describe()}", flush=True)
        for note in data.notes:
            print(f"  {note}", flush=True)
        if display is not None:
            display.say("preparing")

    return understood


def names(text: str) -> list[str]:
    """Split a list of names at its commas."""
    return [name.strip() for name in text.split(",") if name.strip()]
