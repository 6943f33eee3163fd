"""`lem train` and `lem recipes`."""

import argparse
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from lem import experiment, parallel, report
from lem.cli.display import Display, table
from lem.extras import pyplot
from lem.recipe import with_values
from lem.track import tensorboard
from lem.train import Event


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
    train.add_argument("--tensorboard", type=Path, metavar="DIR", help="also write the curves for TensorBoard there")
    train.add_argument("--figure", action="store_true", help="draw the learning curve into the run folder")
    train.add_argument("--offline", action="store_true", help="never download data")
    train.set_defaults(command=_train, takes_overrides=True, overrides={})

    recipes = commands.add_parser("recipes", help="list the recipes, with the paper's figures")
    recipes.set_defaults(command=_recipes)


def _train(options: argparse.Namespace) -> int:
    if options.recipe is None and options.resume is None:
        raise ValueError("lem train needs a recipe, or --resume with a run folder; see `lem recipes`.")
    processes = parallel.launched()
    folder = None if options.resume is None else experiment.RunFolder(options.resume)
    if options.recipe is not None:
        recipe = experiment.load_recipe(options.recipe, options.overrides)
    else:
        assert folder is not None
        recipe = with_values(folder.recipe(), options.overrides)

    if options.figure:
        pyplot()  # not to be missed after hours of training
    if options.offline:
        os.environ["LEM_OFFLINE"] = "1"
    display = Display(recipe.name)
    listeners: list[Callable[[Event], None]] = [display]
    if options.tensorboard and processes.leads:
        listeners.append(tensorboard(options.tensorboard))

    def tell(event: Event) -> None:
        for listener in listeners:
            listener(event)

    try:
        if processes.leads:
            display.say(f"{recipe.name}: preparing the data")
        with interruptible() as interrupted:
            if folder is not None:
                folder, progress = experiment.resume(folder, tell, interrupted, processes, expected=recipe)
            else:
                folder, progress = experiment.run(recipe, options.seed, options.runs, tell, interrupted, processes)
    finally:
        display.end()
        parallel.leave()
    if not processes.leads:
        return 0
    if progress is None:
        print(f"{recipe.name}, seed {folder.seed}: finished before; its result:")
    elif not folder.finished:
        print(f"Stopped after {progress.updates} updates. Continue with: lem train --resume {folder.path}")
        return 130
    table(report.result_rows([folder]))
    if options.figure:
        print(f"{'figure':16} {report.learning_curve(folder, folder.path / 'learning_curve.png')}")
    return 0


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a wish to stop, to be asked for; the second Ctrl-C stops at once."""
    wishes: list[int] = []

    def wish(number: int, _: FrameType | None) -> None:
        if wishes:
            raise KeyboardInterrupt
        wishes.append(number)

    before = {number: signal.signal(number, wish) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(wishes)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _recipes(_: argparse.Namespace) -> int:
    print(f"{'recipe':34} {'cell':20} {'units':>6}  paper")
    for name in experiment.recipe_names():
        recipe = experiment.load_recipe(name)
        paper = recipe.paper.get("figure", "-")
        print(f"{name:34} {recipe.model['cell']:20} {recipe.model['hidden_size']:6}  {paper}")
    return 0
