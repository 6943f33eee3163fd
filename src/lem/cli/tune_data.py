"""`lem tune DATA`: search the options for a file of series by cross-validation, then train the best."""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lem.cli.data_options import add_data, describer, given, reading
from lem.cli.display import Display, table
from lem.cli.fit import add_estimator_options, all_given, estimator_given, show_fitted
from lem.cli.train import interruptible
from lem.readable import format_duration
from lem.timeseries.fitting import fit_file
from lem.timeseries.layout import Reading
from lem.timeseries.tuning import METRICS, Step, tune_file

OWN = ("task", "folds", "metric", "test", "test_fraction", "out", "options")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that a file of series has."""
    group = parser.add_argument_group("tuning on DATA")

    def own(flag: str, **options: Any) -> None:
        group.add_argument(flag, default=argparse.SUPPRESS, **options)

    own("--folds", type=int, metavar="K", help="the number of folds of the cross-validation (default 5)")
    own("--metric", help=f"what is compared: {', '.join(name for known in METRICS.values() for name in known)}")
    own("--task", choices=("classify", "regress"), help="what to learn (default: by the target's values)")
    own("--test", type=Path, metavar="FILE", help="score the best model on this file")
    own("--test-fraction", type=float, metavar="PART", help="or keep this part of DATA for scoring (default 0.2)")
    own("--out", type=Path, metavar="FILE", help="the model file of the best (default model.safetensors)")
    own("--options", type=Path, metavar="FILE", help="a TOML file of fixed options, and of ranges in [search]")
    add_data(parser, training=True, positional=False)
    if find_spec("sklearn") is not None:  # recipes are tuned without it
        add_estimator_options(parser)


def given_for_data(options: argparse.Namespace) -> str:
    """Return the first option given that only a file of series has, or ""."""
    known = estimator_given(vars(options)) if find_spec("sklearn") is not None else {}
    names = [*OWN, *Reading.__dataclass_fields__, *known]
    return next((name.replace("_", "-") for name in names if hasattr(options, name)), "")


def tune(options: argparse.Namespace) -> int:
    """Run the command."""
    data = Path(options.recipe)
    for name, plain in (("jobs", 1), ("storage", None), ("serve", None), ("worker", False), ("seeds", 1)):
        if getattr(options, name) != plain:
            raise ValueError(f"--{name} is for recipes; {data.name} is a file of series.")
    if options.overrides:
        raise ValueError(f"--{next(iter(options.overrides))} is for recipes; {data.name} is a file of series.")
    found, search = all_given(options)
    own: dict[str, Any] = {name: found[name] for name in ("task", "test", "test_fraction") if name in found}
    how = reading(argparse.Namespace(**{name: v for name, v in found.items() if name in Reading.__dataclass_fields__}))
    folder = options.runs / data.stem / f"tune-{options.study}"
    display = Display("lem tune")

    def report(step: Step) -> None:
        if step.ended is None:
            display.parts(*_progress(step))
            return
        display.end()
        ended = step.ended
        drawn = ", ".join(f"{name} {_short(value)}" for name, value in ended.options.items())
        text = f"{ended.number}/{step.trials}  {step.metric} {ended.score:.4g}"
        state = "  (given up early)" if ended.state == "pruned" else ""
        print(f"{text}{state}  {drawn}  {format_duration(ended.seconds)}", flush=True)

    try:
        with interruptible() as interrupted:
            tuned = tune_file(
                data,
                folder,
                how,
                **own,
                **given(options, "folds", "metric"),
                trials=options.trials,
                sampler=options.sampler or "tpe",
                prune=options.prune,
                seed=options.seed,
                search=search,
                options=estimator_given(found),
                understood=describer(data),
                report=report,
                should_stop=interrupted,
            )
    finally:
        display.end()
    best = tuned.best
    table([("best", f"trial {best.number}: {tuned.metric} {best.score:.4g}"), *_paths(tuned.files)])
    if tuned.stopped:
        print(
            f"Stopped after {len(tuned.trials)} of {options.trials} trials. Run the same command again to continue.",
            file=sys.stderr,
        )
        return 130
    display.say("lem tune  training the best")
    read_as: dict[str, Any] = {name: list(v) if isinstance(v, tuple) else v for name, v in how.__dict__.items()}
    try:
        fitted = fit_file(
            data,
            **own,
            **read_as,
            options=tuned.options,
            out=Path(found.get("out", "model.safetensors")),
            seed=options.seed,
            report=display,
        )
    finally:
        display.end()
    show_fitted(fitted)
    return 0


def _progress(step: Step) -> tuple[float, list[str]]:
    done = (step.trial + step.fold / step.folds) / step.trials
    left = "" if step.seconds_left is None else f"{format_duration(step.seconds_left)} left"
    best = "" if step.best is None else f"best {step.metric} {step.best:.4g}"
    return done, [f"trial {step.trial + 1}/{step.trials}", left, best, f"fold {step.fold + 1}/{step.folds}"]


def _paths(files: dict[str, Path]) -> list[tuple[str, str]]:
    return [(what, str(path)) for what, path in files.items()]


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
