"""`lem publish`: what is shown of finished runs."""

import argparse
from pathlib import Path
from typing import Any

from lem import experiment


def add(commands: Any) -> None:
    """Add this topic's commands."""
    publish = commands.add_parser("publish", help="copy finished runs, without weights, to a results folder")
    publish.add_argument("run", type=Path, nargs="+", help="run folders")
    publish.add_argument("--results", type=Path, default=Path("results"), help="where to (default results)")
    publish.set_defaults(command=_publish)


def _publish(options: argparse.Namespace) -> int:
    for run in options.run:
        print(experiment.publish(experiment.RunFolder(run), options.results))
    return 0
