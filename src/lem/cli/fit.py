"""`lem fit`: train a model on a file of series."""

import argparse
import sys
import tomllib
from pathlib import Path
from typing import Any

from lem.cli.data_options import add_data, describer, given
from lem.cli.display import Display, table
from lem.cli.train import interruptible
from lem.timeseries.files import SeriesFile
from lem.timeseries.fitting import FittedFile, fit_file
from lem.timeseries.layout import Reading
from lem.timeseries.options import estimator_options, read_options
from lem.wording import as_flag

OWN = ("task", "forecast", "test", "test_fraction", "out", "seed")
LABELS = {"classify": "classification", "regress": "regression", "forecast": "forecasting"}


def add(commands: Any) -> None:
    """Add this topic's commands."""
    fit = commands.add_parser(
        "fit", epilog="Any of these options can stand in a TOML file: --options FILE. Flags win over the file."
    )
    add_data(fit, training=True)

    def own(flag: str, **options: Any) -> None:
        fit.add_argument(flag, default=argparse.SUPPRESS, **options)

    own("--task", choices=("classify", "regress"), help="what to learn (default: by the target's values)")
    own("--forecast", type=int, metavar="STEPS", help="learn to continue the series by this many steps")
    own("--test", type=Path, metavar="FILE", help="score the model on this file")
    own("--test-fraction", type=float, metavar="PART", help="or keep this part of DATA for scoring (default 0.2)")
    own("--out", type=Path, metavar="FILE", help="the model file to write (default model.safetensors)")
    own("--seed", type=int, help="the seed of weights, split and batches (default 0)")
    own("--no-plot", action="store_true", help="draw no picture")
    own("--options", type=Path, metavar="FILE", help="a TOML file of options")
    add_estimator_options(fit)
    fit.set_defaults(command=_fit)


def add_estimator_options(parser: argparse.ArgumentParser, task: str | None = None, skip: tuple[str, ...] = ()) -> None:
    """Add one flag for each argument of the estimators, or of those for one task."""
    group = parser.add_argument_group("the model and its training")
    options = estimator_options()
    flags = {f"`{option.name}`": as_flag(option.name) for option in options} | {
        "in `lem.CELLS`": "that `lem models` lists"
    }
    for option in options:
        helps = {key: text for key, text in option.helps.items() if task in (None, key)}
        if option.name in skip or not helps:
            continue
        texts = {text: [LABELS[key] for key in helps if helps[key] == text] for text in helps.values()}
        text = "; ".join(f"for {' and '.join(tasks)}: {text}" for text, tasks in texts.items())
        if len(texts) == 1:
            text, (tasks,) = next(iter(texts)), texts.values()
            text += "" if task or len(tasks) == len(LABELS) else f" ({' and '.join(tasks)} only)"
        for name, flag in flags.items():
            text = text.replace(name, flag)
        text = (text if option.default is None else f"{text} (default {option.default})").replace("%", "%%")
        if option.switch:
            kind: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
        else:
            kind = {"type": parse_value, "metavar": "VALUE"}
        group.add_argument(as_flag(option.name), default=argparse.SUPPRESS, help=text, **kind)


def estimator_given(found: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the estimators among all that were given."""
    return {option.name: found[option.name] for option in estimator_options() if option.name in found}


def all_given(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the options of the file of options and those of the command line, which win; and its [search], or None."""
    known = [*OWN, *Reading.__dataclass_fields__, "no_plot", *(o.name for o in estimator_options())]
    found = given(options, *known)
    if not hasattr(options, "options"):
        return found, None
    read, search = read_options(options.options, known)
    return {**read, **found}, search


def _fit(options: argparse.Namespace) -> int:
    found, search = all_given(options)
    if search is not None:
        raise ValueError(f"[search] of {options.options} is for `lem tune {options.data}`; remove it, or tune.")
    display = Display("lem fit")
    describe = describer(options.data, display)

    def understood(data: SeriesFile) -> None:
        display.metric = {"text": "accuracy", "number": "squared error"}.get(data.schema.target_type or "", "valid")
        describe(data)

    own = {name: found[name] for name in (*OWN, *Reading.__dataclass_fields__) if name in found}
    own["out"] = Path(own.get("out", "model.safetensors"))
    try:
        with interruptible() as interrupted:
            fitted = fit_file(
                options.data,
                **own,
                picture=not found.get("no_plot", False),
                options=estimator_given(found),
                understood=understood,
                report=display,
                should_stop=interrupted,
            )
    finally:
        display.end()
    show_fitted(fitted)
    return 130 if fitted.stopped else 0


def show_fitted(fitted: FittedFile) -> None:
    """Print what a fit gave."""
    rows = [("fit", f"{fitted.seconds:.1f} s on {len(fitted.data.X)} series")]
    if fitted.scores is not None:
        name, value = fitted.scores.main
        v = fitted.scores.values
        beside = ""
        if name == "accuracy":
            beside = f" ({v['accuracy_low']:.3f} to {v['accuracy_high']:.3f} with 95 % confidence)"
        elif v["baseline_rmse"] is not None:
            beside = f" (baseline {v['baseline_rmse']:.4g}: {fitted.scores.baseline})"
        rows.append((f"test {name}", f"{value:.4g}{beside} on {fitted.scores.count} series: {fitted.scored_on}"))
    table([*rows, *((what, str(path)) for what, path in fitted.files.items())])
    if fitted.stopped:
        estimator = fitted.estimator
        print(
            f"Stopped after {len(estimator.history_)} of {estimator.epochs} epochs; the model of epoch "
            f"{estimator.best_epoch_}, the best so far, was kept. Run the same command again for the full training, "
            f"or with --epochs {len(estimator.history_)} for a whole schedule of this length.",
            file=sys.stderr,
        )


def parse_value(text: str) -> Any:
    """Read a value as TOML, a list also without brackets, or else as text."""
    for form in (text, f"[{text}]") if "," in text else (text,):
        try:
            return tomllib.loads(f"value = {form}")["value"]
        except tomllib.TOMLDecodeError:
            continue
    return text
