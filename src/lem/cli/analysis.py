"""`lem certify`, `lem scales` and `lem compare`: the paper's mathematics for a recipe, a run or a model file."""

import argparse
from pathlib import Path
from typing import Any

from lem.analysis.certificate import Advice, Certificate
from lem.experiments import comparison, inspection, runner
from lem.experiments.record import find_runs
from lem.readable import format_score


def add(commands: Any) -> None:
    """Add this topic's commands."""
    certify = commands.add_parser(
        "certify",
        epilog="Any value of a recipe can be overridden, e.g. --model.dt 0.01 --task.length 500.",
    )
    certify.add_argument("target", help="a run folder, a recipe (before training), or a model file with DATA")
    certify.add_argument("data", type=Path, nargs="?", metavar="DATA", help="a file of series, for a model file")
    certify.add_argument("--rows", type=int, default=4, help="validation sequences to measure on (default 4)")
    certify.add_argument("--seed", type=int, default=0, help="the seed of a recipe's initial weights (default 0)")
    certify.add_argument("--figure", type=Path, help="where the figure goes (default: into the run folder, or here)")
    certify.set_defaults(command=_certify, takes_overrides=True, overrides={})

    scales = commands.add_parser("scales")
    scales.add_argument("run", type=Path, help="a run folder, or a model file with DATA")
    scales.add_argument("data", type=Path, nargs="?", metavar="DATA", help="a file of series, for a model file")
    scales.add_argument("--split", choices=("train", "valid", "test"), default="valid", help="(default valid)")
    scales.add_argument("--interval", type=float, help="seconds between two steps, for time constants in seconds")
    scales.add_argument(
        "--clip", action="store_true", help="also evaluate with the gates kept from falling below 1/2^i"
    )
    scales.add_argument("--figure", type=Path, help="where the figure goes (default: the run folder)")
    scales.set_defaults(command=_scales)

    compare = commands.add_parser("compare")
    compare.add_argument("run", type=Path, nargs="+", help="run folders, or folders of them")
    compare.add_argument(
        "--over", required=True, metavar="SECTION.KEY", help="such as model.dt, model.clip, task.length"
    )
    compare.add_argument("--curves", action="store_true", help="validation curves instead of final test scores")
    compare.add_argument(
        "--figure", type=Path, default=Path("comparison.png"), help="where it goes (default comparison.png)"
    )
    compare.set_defaults(command=_compare)


def _certify(options: argparse.Namespace) -> int:
    if options.rows < 1:
        raise ValueError(f"--rows of lem certify must be a positive integer; got {options.rows}.")
    if Path(options.target).suffix == ".safetensors":
        from lem.timeseries.inspection import certify_predictor

        predictor, data = _model_and_series("certify", Path(options.target), options.data)
        path = options.figure or Path(options.target).with_suffix(".certificate.png")
        return _show_certificates(*certify_predictor(predictor, data.X, options.rows, data.times), path)
    if options.data is not None:
        raise ValueError(f"lem certify takes DATA after a model file only; got {options.target}.")
    if (Path(options.target) / "recipe.toml").is_file():
        if options.overrides:
            raise ValueError("A run keeps its recipe; certify the recipe to change a value.")
        task, model = runner.load_run(runner.RunFolder(Path(options.target)))
        path = options.figure or Path(options.target) / "certificate.png"
    else:
        recipe = runner.load_recipe(options.target, options.overrides)
        task = runner.build_task(recipe)
        model = runner.build_model(recipe, task, options.seed)
        path = options.figure or Path("certificate.png")
    return _show_certificates(*inspection.certify_model(model, task, options.rows), path)


def _show_certificates(certificates: list[Certificate], advice: Advice, path: Path) -> int:
    for number, certificate in enumerate(certificates):
        print(certificate)
        place = path if len(certificates) == 1 else path.with_stem(f"{path.stem}-{number}")
        certificate.plot(place)
        print(f"  figure: {place}")
    print(f"advice: {advice}.")
    return 0


def _model_and_series(command: str, model: Path, data: Path | None) -> tuple[Any, Any]:
    """Load a model file and a file of series as the model reads it."""
    from lem.cli.predict import say
    from lem.timeseries.answering import read_for
    from lem.timeseries.predictor import Predictor

    if data is None:
        raise ValueError(f"lem {command} MODEL DATA needs a file of series after the model file.")
    predictor = Predictor.load(model)
    return predictor, read_for(predictor, data, say=say)


def _scales(options: argparse.Namespace) -> int:
    if options.run.suffix == ".safetensors":
        if options.clip:
            raise ValueError("--clip of lem scales is for run folders.")
        from lem.timeseries.inspection import predictor_scales

        predictor, data = _model_and_series("scales", options.run, options.data)
        scales = predictor_scales(predictor, data.X, options.interval, data.times)
        print(scales)
        path = options.figure or options.run.with_suffix(".scales.png")
        scales.plot(path)
        print(f"figure: {path}")
        return 0
    if options.data is not None:
        raise ValueError(f"lem scales takes DATA after a model file only; got {options.run}.")
    folder = runner.RunFolder(options.run)
    task, model = runner.load_run(folder)
    split = task.test() if options.split == "test" else getattr(task, options.split)
    batch_size = folder.recipe().train["batch_size"]
    scales = inspection.model_scales(model, split, batch_size, options.interval)
    print(scales)
    path = options.figure or options.run / "scales.png"
    scales.plot(path)
    print(f"figure: {path}")
    if options.clip:
        print(f"{options.split} {task.metric} with no gate below low:")
        for low, score in inspection.clip_scores(model, task, split, batch_size):
            print(f"  low = {low:8.4g}  {format_score(score)}")
    return 0


def _compare(options: argparse.Namespace) -> int:
    runs = find_runs(options.run)
    if not runs:
        raise ValueError(f"RUN must name run folders; found none in {', '.join(map(str, options.run))}.")
    if options.curves:
        print(comparison.draw_curves(runs, options.over, options.figure))
        return 0
    for point in comparison.compare(runs, options.over):
        spread = "" if point.spread is None else f" +- {format_score(point.spread)}"
        count = "1 run" if len(point.scores) == 1 else f"{len(point.scores)} runs"
        print(f"{options.over} = {point.value!s:<10} {format_score(point.mean)}{spread}  ({count})")
    print(comparison.draw_scores(runs, options.over, options.figure))
    return 0
