"""`lem evaluate`: what is done with a trained model."""

import argparse
from pathlib import Path
from typing import Any

from lem import experiment, report


def add(commands: Any) -> None:
    """Add this topic's commands."""
    evaluate = commands.add_parser("evaluate", help="evaluate the best weights of a run on the test split")
    evaluate.add_argument("run", type=Path, help="a run folder")
    evaluate.set_defaults(command=_evaluate)


def _evaluate(options: argparse.Namespace) -> int:
    folder = experiment.RunFolder(options.run)
    metric = folder.result()["metric"] if folder.finished else "metric"
    print(f"test {metric}: {report.figure(experiment.evaluate_run(folder))}")
    return 0
