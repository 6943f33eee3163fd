"""`lem sweep`: every combination of a recipe's [sweep] values, one run folder each."""

import argparse
from pathlib import Path
from typing import Any

from lem.cli.jobs import as_words, run_all
from lem.experiments import runner
from lem.experiments.recipe import refuse_fixed, sweep_points
from lem.readable import format_score
from lem.training.metrics import METRICS


def add(commands: Any) -> None:
    """Add this topic's commands."""
    sweep = commands.add_parser(
        "sweep",
        epilog="Values can be overridden, and what is swept too: --sweep.model.dt '[0.1, 1.0]'.",
    )
    sweep.add_argument("recipe", help="a recipe's name (see `lem recipes`) or a TOML file")
    sweep.add_argument("--jobs", type=int, default=1, help="processes at once (default 1)")
    sweep.add_argument("--seeds", type=int, default=1, metavar="K", help="train each with seeds 0 to K - 1 (default 1)")
    sweep.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders go (default runs)")
    sweep.set_defaults(command=_sweep, takes_overrides=True, overrides={})


def _sweep(options: argparse.Namespace) -> int:
    recipe = runner.load_recipe(options.recipe, options.overrides)
    refuse_fixed(recipe, "sweep", options.overrides)
    if not recipe.sweep and options.seeds < 2:
        raise ValueError(f"Recipe {recipe.name} must have a section [sweep], or --seeds 2 or more must be given.")
    points = [(seed, point) for point in sweep_points(recipe) for seed in range(options.seeds)]
    for _, point in points:
        runner.load_recipe(options.recipe, {**options.overrides, **point})  # all mistakes before the first run
    return train_all(options.recipe, options.overrides, points, options.jobs, options.runs)


def train_all(
    recipe: str, overrides: dict[str, Any], points: list[tuple[int, dict[str, Any]]], jobs: int, runs: Path
) -> int:
    """Run `lem train` for each (seed, overrides), `jobs` at a time; print a line for each and return the status."""
    commands = [
        ["train", recipe, *as_words({**overrides, **point}), "--seed", str(seed), "--runs", str(runs), "--json"]
        for seed, point in points
    ]
    failed = 0
    for done, ended in enumerate(run_all(commands, jobs), start=1):
        seed, point = points[ended.which]
        result = next((event["result"] for event in ended.events if event["event"] == "finished"), None)
        failed += result is None
        if result is None:
            outcome = f"failed with status {ended.status}: {ended.last_words}"
        else:
            metric = result["metric"]
            outcome = f"test {metric} {format_score(result['test'], METRICS[metric].unit)}"
        values = ", ".join(f"{key} = {value}" for key, value in point.items())
        print(f"{done}/{len(points)}  {values}{', ' if values else ''}seed {seed}: {outcome}", flush=True)
    return 1 if failed else 0
