"""`lem example`: a small synthetic data set for the first steps."""

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add this topic's commands."""
    example = commands.add_parser("example")
    example.add_argument("file", type=Path, metavar="FILE", help="the file to write, .csv or .parquet")
    example.add_argument("--seed", type=int, default=0, help="the seed of the random numbers (default 0)")
    example.set_defaults(command=_example)


def _example(options: argparse.Namespace) -> int:
    from lem.timeseries.example import write_example

    if options.file.suffix.lower() not in (".csv", ".parquet"):
        raise ValueError(f"FILE of lem example must end in .csv or .parquet; got {options.file.name}.")
    if options.file.exists():
        raise ValueError(f"{options.file} exists already; give another name.")
    path = write_example(options.file, options.seed)
    print(f"{path}: synthetic measurements of 60 pumps, one row a minute; a third leaks, a third is blocked.")
    print(f"Next: lem fit {path} --series pump_id --time time --target fault")
    return 0
