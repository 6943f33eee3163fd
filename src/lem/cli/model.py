"""`lem models` and `lem evaluate`: which models there are, and what is done with a trained one."""

import argparse
from pathlib import Path
from typing import Any

from lem.cli import predict
from lem.cli.data_options import add_data
from lem.experiments import runner
from lem.nn.cells import table
from lem.readable import format_score


def add(commands: Any) -> None:
    """Add this topic's commands."""
    models = commands.add_parser("models")
    models.set_defaults(command=_models)

    evaluate = commands.add_parser("evaluate")
    evaluate.add_argument("run", type=Path, metavar="RUN", help="a run folder, or a model file of `lem fit`")
    add_data(evaluate, optional=True)
    evaluate.add_argument("--json", action="store_true", help="print the scores as JSON")
    evaluate.set_defaults(command=_evaluate)


def _models(_: argparse.Namespace) -> int:
    for name, equation, state, parameters, reference in table.rows():
        print(f"{name:20} {equation}\n{'':20} state {state}; parameters {parameters}; {reference}")
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    if options.run.is_file():
        return predict.evaluate(options)
    if options.data is not None:
        raise ValueError(
            f"`lem evaluate` takes a data file behind a model file only; got the run folder {options.run}."
        )
    folder = runner.RunFolder(options.run)
    metric = folder.result()["metric"] if folder.finished else "metric"
    print(f"test {metric}: {format_score(runner.evaluate_run(folder))}")
    return 0
