"""`lem train` and `lem recipes`."""

import argparse
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any

from lem import experiment, report
from lem.cli.display import Display, table


def add(commands: Any) -> None:
    """Add this topic's commands."""
    train = commands.add_parser(
        "train",
        help="train a recipe, or continue it",
        epilog="Any value of the recipe can be overridden, e.g. --train.epochs 5 --model.dt 0.5 --task.length 500.",
    )
    train.add_argument("recipe", nargs="?", help="a recipe's name (see `lem recipes`) or a TOML file")
    train.add_argument("--resume", type=Path, metavar="RUN", help="continue the run in this folder")
    train.add_argument("--seed", type=int, default=0, help="of the weights, the batches and dropout (default 0)")
    train.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders go (default runs)")
    train.add_argument("--figure", action="store_true", help="draw the learning curve into the run folder")
    train.add_argument("--offline", action="store_true", help="never download data")
    train.set_defaults(command=_train, takes_overrides=True, overrides={})

    recipes = commands.add_parser("recipes", help="list the recipes, with the paper's figures")
    recipes.set_defaults(command=_recipes)


def _train(options: argparse.Namespace) -> int:
    if (options.recipe is None) == (options.resume is None):
        raise ValueError("lem train needs a recipe, or --resume with a run folder; see `lem recipes`.")
    if options.resume is not None:
        if options.overrides:
            raise ValueError("A resumed run keeps its recipe; start a new run to change it.")
        folder = experiment.RunFolder(options.resume)
        recipe, seed = folder.recipe(), int(options.resume.name.partition("-")[0])
        runs = options.resume.parents[len(Path(recipe.name).parts)]
    else:
        recipe, seed, runs = experiment.load_recipe(options.recipe, options.overrides), options.seed, options.runs

    if options.offline:
        os.environ["LEM_OFFLINE"] = "1"
    interrupted: list[bool] = []

    def interrupt(*_: int | FrameType | None) -> None:
        if interrupted:
            raise KeyboardInterrupt
        interrupted.append(True)

    before = signal.signal(signal.SIGINT, interrupt)
    display = Display(recipe.name)
    try:
        display.say(f"{recipe.name}: preparing the data")
        folder, progress = experiment.run(recipe, seed, runs, display, lambda: bool(interrupted))
    finally:
        display.end()
        signal.signal(signal.SIGINT, before)
    if progress is None:
        print(f"{recipe.name}, seed {seed}: finished before; its result:")
    elif not folder.finished:
        print(f"Stopped after {progress.updates} updates. Continue with: lem train --resume {folder.path}")
        return 130
    table(report.result_rows([folder]))
    if options.figure:
        print(f"{'figure':16} {report.learning_curve(folder, folder.path / 'learning_curve.png')}")
    return 0


def _recipes(_: argparse.Namespace) -> int:
    print(f"{'recipe':34} {'cell':18} {'units':>6}  paper")
    for name in experiment.recipe_names():
        recipe = experiment.load_recipe(name)
        paper = recipe.paper.get("figure", "-")
        print(f"{name:34} {recipe.model['cell']:18} {recipe.model['hidden_size']:6}  {paper}")
    return 0
