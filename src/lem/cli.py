"""The command `lem`: train, evaluate and list recipes. The only module that prints."""

import argparse
import signal
import sys
import time
import tomllib
from pathlib import Path
from types import FrameType
from typing import Any

import lem
from lem import experiment, report
from lem.train import Event

BAR = 24


def main(arguments: list[str] | None = None) -> int:
    """Run one command; errors of the user's making are one line, without a traceback."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not getattr(options, "takes_overrides", False):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        if rest:
            options.overrides = _overrides(rest)
        return int(options.command(options))
    except (ValueError, TypeError, ImportError, OSError, FloatingPointError) as error:
        print(f"lem: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lem", description="Long Expressive Memory: train, evaluate, report.")
    parser.add_argument("--version", action="version", version=f"long-expressive-memory {lem.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

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
    train.set_defaults(command=_train, takes_overrides=True, overrides={})

    evaluate = commands.add_parser("evaluate", help="evaluate the best weights of a run on the test split")
    evaluate.add_argument("run", type=Path, help="a run folder")
    evaluate.set_defaults(command=_evaluate)

    recipes = commands.add_parser("recipes", help="list the recipes, with the paper's figures")
    recipes.set_defaults(command=_recipes)

    publish = commands.add_parser("publish", help="copy finished runs, without weights, to a results folder")
    publish.add_argument("run", type=Path, nargs="+", help="run folders")
    publish.add_argument("--results", type=Path, default=Path("results"), help="where to (default results)")
    publish.set_defaults(command=_publish)
    return parser


def _overrides(words: list[str]) -> dict[str, Any]:
    """Turn `--train.epochs 5` or `--train.epochs=5` into {"train.epochs": 5}; values are TOML, or else strings."""
    found: dict[str, Any] = {}
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    while words:
        key = words.pop(0)
        if not key.startswith("--") or "." not in key or not words:
            raise ValueError(f"An override must be written --section.key VALUE; got {key!r}.")
        key, text = key[2:], words.pop(0)
        if key in found:
            raise ValueError(f"Override --{key} must be given once; got {found[key]!r} and {text!r}.")
        try:
            found[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = text
    return found


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

    interrupted: list[bool] = []

    def interrupt(*_: int | FrameType | None) -> None:
        if interrupted:
            raise KeyboardInterrupt
        interrupted.append(True)

    before = signal.signal(signal.SIGINT, interrupt)
    display = _Display(recipe)
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
    _table(report.result_rows([folder]))
    if options.figure:
        print(f"{'figure':16} {report.learning_curve(folder, folder.path / 'learning_curve.png')}")
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    folder = experiment.RunFolder(options.run)
    metric = folder.result()["metric"] if folder.finished else "metric"
    print(f"test {metric}: {report.figure(experiment.evaluate_run(folder))}")
    return 0


def _recipes(_: argparse.Namespace) -> int:
    print(f"{'recipe':34} {'cell':18} {'units':>6}  paper")
    for name in experiment.recipe_names():
        recipe = experiment.load_recipe(name)
        paper = recipe.paper.get("figure", "-")
        print(f"{name:34} {recipe.model['cell']:18} {recipe.model['hidden_size']:6}  {paper}")
    return 0


def _publish(options: argparse.Namespace) -> int:
    for run in options.run:
        print(experiment.publish(experiment.RunFolder(run), options.results))
    return 0


def _table(rows: list[tuple[str, str]]) -> None:
    for what, value in rows:
        print(f"{what:16} {value}")


class _Display:
    """A line that moves on a terminal; elsewhere one line per evaluation, at most every ten seconds."""

    def __init__(self, recipe: experiment.Recipe) -> None:
        self.recipe = recipe
        self.live = sys.stderr.isatty()
        self.shown = 0.0
        self.valid = ""
        self.loss: float | None = None
        self.first: tuple[float, int] | None = None

    def say(self, text: str) -> None:
        if self.live:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __call__(self, event: Event) -> None:
        now, progress = time.monotonic(), event.progress
        self.first = self.first or (now, progress.updates)
        self.loss = event.loss if self.loss is None else 0.95 * self.loss + 0.05 * event.loss
        if event.record is not None and progress.best is not None:
            best = report.figure(progress.best)
            self.valid = f"valid {report.figure(event.record['valid'])} (best {best} at {progress.best_epoch})"
        pause = 0.1 if self.live else 10.0
        if now - self.shown < pause or (not self.live and event.record is None):
            return
        self.shown = now
        total, done = event.epochs * event.steps, progress.updates
        speed = (done - self.first[1]) / max(now - self.first[0], 1e-9)
        left = report.duration((total - done) / speed) + " left" if speed > 0 else ""
        text = f"epoch {min(progress.epoch + 1, event.epochs)}/{event.epochs}  loss {self.loss:.3g}  {self.valid}"
        pace = f"{speed:.3g} steps/s  {left}"
        if self.live:
            filled = round(BAR * done / total)
            self.say(f"{self.recipe.name} [{'=' * filled}{' ' * (BAR - filled)}] {text}  {pace}")
        else:
            print(f"{text}  {pace}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
