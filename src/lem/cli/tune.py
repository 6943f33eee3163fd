"""`lem tune`: search a recipe's [search] ranges on validation; for a file of series see `tune_data`."""

import argparse
import dataclasses
import re
import sys
import time
from pathlib import Path
from typing import Any

from lem.cli import jobs as processes
from lem.cli import tune_data
from lem.cli.sweep import train_all
from lem.cli.train import interruptible
from lem.experiments import inspection, runner, tune
from lem.experiments.recipe import refuse_fixed
from lem.experiments.storage import open_storage
from lem.timeseries.formats import SUFFIXES

REPLACEMENTS = 10
"""How many workers that died are replaced before something must be wrong."""


def add(commands: Any) -> None:
    """Add this topic's commands."""
    parser = commands.add_parser(
        "tune",
        epilog="The same command again continues the study; for a recipe, also on a machine with the same storage.",
    )
    parser.add_argument(
        "recipe", metavar="RECIPE|DATA", help="a recipe's name (see `lem recipes`), a TOML file, or a file of series"
    )
    parser.add_argument("--trials", type=int, default=20, help="how many (default 20)")
    parser.add_argument("--jobs", type=int, default=1, help="workers on this machine (default 1)")
    parser.add_argument(
        "--storage", help="a journal file (default: in the study's folder), grpc://host:port, or an RDB URL"
    )
    parser.add_argument(
        "--study", default="study", metavar="NAME", help="several studies of one recipe (default study)"
    )
    parser.add_argument("--sampler", help="random (default for recipes: the paper's) or tpe (default for DATA)")
    parser.add_argument("--prune", action="store_true", help="stop trials that fall behind the median")
    parser.add_argument(
        "--seeds", type=int, default=1, metavar="K", help="train the winner with K seeds (default 1; 0: not)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="the seed of the values drawn and the trials' weights (default 0)"
    )
    parser.add_argument("--grace", type=float, default=60.0, help="seconds until a silent worker counts as dead")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders go (default runs)")
    parser.add_argument(
        "--serve", metavar="HOST:PORT", help="offer the storage to other machines by gRPC, and do nothing else"
    )
    parser.add_argument("--worker", action="store_true", help="only do trials: no table, no winner")
    tune_data.add_options(parser)
    parser.set_defaults(command=_tune, takes_overrides=True, overrides={})


def _tune(options: argparse.Namespace) -> int:
    if Path(options.recipe).suffix.lower() in SUFFIXES or "://" in options.recipe:
        return tune_data.tune(options)
    if given := tune_data.given_for_data(options):
        raise ValueError(f"--{given} is for a file of series; {options.recipe} is a recipe.")
    options.sampler = options.sampler or "random"
    recipe = runner.load_recipe(options.recipe, options.overrides)
    if not recipe.search:
        advised = inspection.default_search(recipe, runner.build_task(recipe))
        search = {place: values for place, values in advised.items() if place not in options.overrides}
        recipe = dataclasses.replace(recipe, search=search)
        print(f"{recipe.name} has no [search]; advised: {', '.join(f'{k} {v}' for k, v in search.items())}", flush=True)
    refuse_fixed(recipe, "search", options.overrides)
    folder = tune.study_folder(options.runs, recipe, options.study)
    url = options.storage or str(folder / "study.journal")
    storage = open_storage(url)
    if options.serve:
        return _serve(storage, options.serve)
    study = tune.Study(
        recipe,
        storage,
        f"{recipe.name}:{options.study}",
        trials=options.trials,
        higher_is_better=tune.study_direction(recipe),
        sampler=options.sampler,
        prune=options.prune,
        seed=options.seed,
        grace=options.grace,
    )
    if options.worker:
        with interruptible() as interrupted:
            study.work(folder / "trials", interrupted, lambda text: processes.print_event("trial", text=text))
            return 130 if interrupted() else 0
    status = _workers(options, study)
    if status:
        return status
    best, _ = study.winner()
    written = study.export(folder)
    try:
        written += tune.study_figure(study, folder / "study")
    except ImportError as error:
        print(f"lem: warning: no figure of the study: {error}", file=sys.stderr)
    for path in written:
        print(f"{'written':16} {path}")
    print(f"{'winner':16} trial {best.number}, validation {best.value:.4g}: {best.params}")
    if options.seeds < 1:
        return 0
    points = [(seed, dict(best.params)) for seed in range(options.seeds)]
    return train_all(options.recipe, options.overrides, points, options.jobs, options.runs)


@processes.ending_with_signals()
def _workers(options: argparse.Namespace, study: tune.Study) -> int:
    """Keep the workers of this machine going until the study is done; print a line for every trial that ends."""
    environment = processes.share_cores(options.jobs)
    words = ["tune", options.recipe, *processes.as_words(options.overrides), "--worker"]
    for name in ("trials", "study", "sampler", "seed", "grace", "runs", *(["storage"] if options.storage else [])):
        words += [f"--{name}", str(getattr(options, name))]
    words += ["--prune"] if options.prune else []
    study.fill()  # before there are several that could do it at once
    seen = {trial.number for trial in study.done()}
    if seen:
        print(f"{len(seen)} of {options.trials} trials were done before", flush=True)
    workers = [processes.Job(words, environment) for _ in range(options.jobs)]
    replaced = 0
    try:
        while True:
            over = all(worker.status == 0 for worker in workers)
            for trial in study.done():
                if trial.number not in seen:
                    seen.add(trial.number)
                    score = "no score" if trial.value is None else f"validation {trial.value:.4g}"
                    state = trial.state.name.lower()
                    print(
                        f"{len(seen)}/{options.trials}  trial {trial.number}: {state}, {score}, {trial.params}",
                        flush=True,
                    )
            if over:
                return 0
            for place, worker in enumerate(workers):
                if worker.status not in (None, 0):
                    replaced += 1
                    if worker.status == 2 or replaced > REPLACEMENTS:  # an error of the user's making, or no end
                        print(
                            f"lem: a worker ended with status {worker.status}: {worker.last_words()}", file=sys.stderr
                        )
                        return 2
                    print(f"lem: warning: a worker died ({worker.status}); another takes its place", file=sys.stderr)
                    worker.close()
                    workers[place] = processes.Job(words, environment)
            time.sleep(0.2)
    finally:
        processes.stop(workers)


def _serve(storage: Any, address: str) -> int:
    match = re.fullmatch(r"(.*):(\d+)", address)
    if match is None:
        raise ValueError(f"--serve must be HOST:PORT; got {address!r}.")
    print(f"serving the storage at grpc://{address}", flush=True)
    tune.serve(storage, match[1], int(match[2]))
    return 0
