"""`lem certify`, `lem scales` and `lem study`: what the paper's mathematics says of a recipe or a run."""

import argparse
from pathlib import Path
from typing import Any

from lem import experiment, report, studies


def add(commands: Any) -> None:
    """Add this topic's commands."""
    certify = commands.add_parser(
        "certify",
        help="say whether a LEM's gradient will explode, go flat or arrive, and which dt to take",
        epilog="Any value of a recipe can be overridden, e.g. --model.dt 0.01 --task.length 500.",
    )
    certify.add_argument("target", help="a run folder, or a recipe (before training)")
    certify.add_argument("--rows", type=int, default=4, help="validation sequences to measure on (default 4)")
    certify.add_argument("--seed", type=int, default=0, help="of a recipe's initial weights (default 0)")
    certify.add_argument("--figure", type=Path, help="where the figure goes (default: into the run folder, or here)")
    certify.set_defaults(command=_certify, takes_overrides=True, overrides={})

    scales = commands.add_parser("scales", help="show the time scales a trained LEM uses: figure and table")
    scales.add_argument("run", type=Path, help="a run folder")
    scales.add_argument("--split", choices=("train", "valid", "test"), default="valid", help="(default valid)")
    scales.add_argument("--interval", type=float, help="seconds between two steps, for time constants in seconds")
    scales.add_argument(
        "--clip", action="store_true", help="also evaluate with the gates kept from falling below 1/2^i"
    )
    scales.add_argument("--figure", type=Path, help="where the figure goes (default: the run folder)")
    scales.set_defaults(command=_scales)

    study = commands.add_parser("study", help="draw many runs against one value of their recipes")
    study.add_argument("run", type=Path, nargs="+", help="run folders, or folders of them")
    study.add_argument("--over", required=True, metavar="SECTION.KEY", help="such as model.dt, model.clip, task.length")
    study.add_argument("--curves", action="store_true", help="validation curves instead of final test scores")
    study.add_argument("--figure", type=Path, default=Path("study.png"), help="where it goes (default study.png)")
    study.set_defaults(command=_study)


def _certify(options: argparse.Namespace) -> int:
    if options.rows < 1:
        raise ValueError(f"--rows of lem certify must be a positive integer; got {options.rows}.")
    if (Path(options.target) / "recipe.toml").is_file():
        if options.overrides:
            raise ValueError("A run keeps its recipe; certify the recipe to change a value.")
        task, model = experiment.load_run(experiment.RunFolder(Path(options.target)))
        path = options.figure or Path(options.target) / "certificate.png"
    else:
        recipe = experiment.load_recipe(options.target, options.overrides)
        task = experiment.build_task(recipe)
        model = experiment.build_model(recipe, task, options.seed)
        path = options.figure or Path("certificate.png")
    certificates, advice = studies.certify_model(model, task, options.rows)
    for number, certificate in enumerate(certificates):
        print(certificate)
        place = path if len(certificates) == 1 else path.with_stem(f"{path.stem}-{number}")
        certificate.plot(place)
        print(f"  figure: {place}")
    print(f"advice: {advice}.")
    return 0


def _scales(options: argparse.Namespace) -> int:
    folder = experiment.RunFolder(options.run)
    task, model = experiment.load_run(folder)
    split = task.test() if options.split == "test" else getattr(task, options.split)
    batch_size = folder.recipe().train["batch_size"]
    scales = studies.model_scales(model, split, batch_size, options.interval)
    print(scales)
    path = options.figure or options.run / "scales.png"
    scales.plot(path)
    print(f"figure: {path}")
    if options.clip:
        print(f"{options.split} {task.metric} with no gate below low:")
        for low, score in studies.clip_scores(model, task, split, batch_size):
            print(f"  low = {low:8.4g}  {report.figure(score)}")
    return 0


def _study(options: argparse.Namespace) -> int:
    paths = sorted({file.parent for root in options.run for file in root.rglob("recipe.toml")})
    if not paths:
        raise ValueError(f"`run` of lem study must name run folders; found none in {', '.join(map(str, options.run))}.")
    folders = [experiment.RunFolder(path) for path in paths]
    if options.curves:
        print(studies.draw_curves(folders, options.over, options.figure))
        return 0
    for point in studies.sweep(folders, options.over):
        spread = "" if point.spread is None else f" +- {report.figure(point.spread)}"
        runs = "1 run" if len(point.scores) == 1 else f"{len(point.scores)} runs"
        print(f"{options.over} = {point.value!s:<10} {report.figure(point.mean)}{spread}  ({runs})")
    print(studies.draw_sweep(folders, options.over, options.figure))
    return 0
