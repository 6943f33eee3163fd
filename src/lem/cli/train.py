"""`lem train` and `lem recipes`."""

import argparse
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from lem.cli.display import Display, table
from lem.cli.jobs import print_event
from lem.experiments import report, runner
from lem.experiments.recipe import with_values
from lem.experiments.record import read_run
from lem.extras import pyplot
from lem.training import distributed
from lem.training.loop import Event
from lem.training.track import tensorboard


def add(commands: Any) -> None:
    """Add this topic's commands."""
    train = commands.add_parser(
        "train",
        epilog="Any value of the recipe can be overridden, e.g. --train.epochs 5 --model.dt 0.5 --task.length 500.",
    )
    train.add_argument("recipe", nargs="?", help="a recipe's name (see `lem recipes`) or a TOML file")
    train.add_argument("--resume", type=Path, metavar="RUN", help="continue the run in this folder")
    train.add_argument(
        "--seed", type=int, default=0, help="the seed of the weights, the batches and dropout (default 0)"
    )
    train.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders go (default runs)")
    train.add_argument("--tensorboard", type=Path, metavar="DIR", help="also write the curves for TensorBoard there")
    train.add_argument("--figure", action="store_true", help="draw the learning curve into the run folder")
    train.add_argument("--offline", action="store_true", help="never download data")
    train.add_argument(
        "--json", action="store_true", help="print each evaluation and the result as a line of JSON, for other programs"
    )
    train.set_defaults(command=_train, takes_overrides=True, overrides={})

    recipes = commands.add_parser("recipes")
    recipes.set_defaults(command=_recipes)


def _train(options: argparse.Namespace) -> int:
    if options.recipe is None and options.resume is None:
        raise ValueError("lem train needs a recipe, or --resume with a run folder; see `lem recipes`.")
    processes = distributed.launched()
    folder = None if options.resume is None else runner.RunFolder(options.resume)
    if options.recipe is not None:
        recipe = runner.load_recipe(options.recipe, options.overrides)
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
    if options.json and processes.leads:
        listeners.append(_print_evaluation)

    def tell(event: Event) -> None:
        for listener in listeners:
            listener(event)

    try:
        if processes.leads:
            display.say(f"{recipe.name}: preparing the data")
        with interruptible() as interrupted:
            if folder is not None:
                folder, progress = runner.resume(folder, tell, interrupted, processes, expected=recipe)
            else:
                folder, progress = runner.run(recipe, options.seed, options.runs, tell, interrupted, processes)
    finally:
        display.end()
        distributed.leave()
    if not processes.leads:
        return 0
    run = read_run(folder)
    if options.json:
        print_event(
            "finished" if folder.finished else "stopped", name=run.name, path=str(folder.path), result=run.result
        )
        return 0 if folder.finished else 130
    if progress is None:
        print(f"{recipe.name}, seed {folder.seed}: finished before; its result:")
    elif not folder.finished:
        print(f"Stopped after {progress.updates} updates. Continue with: lem train --resume {folder.path}")
        return 130
    table(report.result_rows(run))
    if options.figure:
        paths = report.draw_curves(report.Group(run.recipe, [run]), [folder.file("learning_curve.png")])
        print(f"{'figure':16} {paths[0]}")
    return 0


def _print_evaluation(event: Event) -> None:
    if event.record is not None:
        print_event("evaluation", **event.record)


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
    for name in runner.recipe_names():
        recipe = runner.load_recipe(name)
        paper = recipe.paper.get("score", "-")
        print(f"{name:34} {recipe.model['cell']:20} {recipe.model['hidden_size']:6}  {paper}")
    return 0
