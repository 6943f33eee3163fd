"""`lem sweep`: every combination of a recipe's [sweep] values, one run folder each."""

import argparse
from pathlib import Path
from typing import Any

from lem import experiment
from lem.cli.jobs import as_words, run_all
from lem.recipe import refuse_fixed, sweep_points, with_values


def add(commands: Any) -> None:
    """Add this topic's commands."""
    sweep = commands.add_parser(
        "sweep",
        help="train every combination of a recipe's [sweep] values; the same command again continues",
        epilog="Values can be overridden, and what is swept too: --sweep.model.dt '[0.1, 1.0]'.",
    )
    sweep.add_argument("recipe", help="a recipe's name (see `lem recipes`) or a TOML file")
    sweep.add_argument("--jobs", type=int, default=1, help="processes at once (default 1)")
    sweep.add_argument("--seeds", type=int, default=1, metavar="K", help="train each with seeds 0 to K - 1 (default 1)")
    sweep.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders go (default runs)")
    sweep.set_defaults(command=_sweep, takes_overrides=True, overrides={})


def _sweep(options: argparse.Namespace) -> int:
    recipe = experiment.load_recipe(options.recipe, options.overrides)
    refuse_fixed(recipe, "sweep", options.overrides)
    if not recipe.sweep and options.seeds < 2:
        raise ValueError(f"Recipe {recipe.name} must have a section [sweep], or --seeds 2 or more must be given.")
    points = [(seed, point) for point in sweep_points(recipe) for seed in range(options.seeds)]
    for _, point in points:
        with_values(recipe, point)  # all mistakes before the first run
    return train_all(options.recipe, options.overrides, points, options.jobs, options.runs)


def train_all(
    recipe: str, overrides: dict[str, Any], points: list[tuple[int, dict[str, Any]]], jobs: int, runs: Path
) -> int:
    """Run `lem train` for each (seed, overrides), so many at a time; print a line for each and return the status."""
    commands = [
        ["train", recipe, *as_words({**overrides, **point}), "--seed", str(seed), "--runs", str(runs)]
        for seed, point in points
    ]
    failed = 0
    for done, (which, status, output) in enumerate(run_all(commands, jobs), start=1):
        seed, point = points[which]
        lines = output.strip().splitlines() or ["no output"]
        test = next((line for line in lines if line.startswith("test ")), None)
        outcome = " ".join(test.split()) if status == 0 and test else f"failed with status {status}: {lines[-1]}"
        failed += status != 0
        values = ", ".join(f"{key} = {value}" for key, value in point.items())
        print(f"{done}/{len(points)}  {values}{', ' if values else ''}seed {seed}: {outcome}", flush=True)
    return 1 if failed else 0
