"""From a recipe to a finished run: the only module that uses recipes, tasks, models, training and run folders."""

from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from lem.atomic import inside
from lem.environment import environment
from lem.experiments.recipe import RECIPES, Recipe, describe_changes, differences, load_recipe, recipe_names
from lem.experiments.run_folder import RunFolder
from lem.nn.model import SequenceModel
from lem.tasks import TASKS, Task
from lem.training.distributed import ALONE, Processes
from lem.training.loop import Event, Progress, evaluate, fit

__all__ = [
    "RECIPES",
    "Recipe",
    "RunFolder",
    "build_model",
    "build_task",
    "evaluate_run",
    "load_recipe",
    "load_run",
    "recipe_names",
    "resume",
    "run",
]


def build_task(recipe: Recipe) -> Task:
    """Prepare the recipe's data.

    Examples:
        >>> from lem.experiments.runner import build_task, load_recipe
        >>> build_task(load_recipe("adding/short", {"task.length": 20})).metric
        'mse'
    """
    return TASKS[recipe.task["name"]](**{key: value for key, value in recipe.task.items() if key != "name"})


def build_model(recipe: Recipe, task: Task, seed: int) -> SequenceModel:
    """Build the recipe's model for a task, with the initial weights of `seed`.

    Examples:
        >>> from lem.experiments.runner import build_model, build_task, load_recipe
        >>> recipe = load_recipe("adding/short", {"task.length": 20, "model.hidden_size": 8})
        >>> model = build_model(recipe, build_task(recipe), seed=0)
        >>> type(model).__name__
        'SequenceModel'
    """
    options: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in recipe.model.items()
    }
    torch.manual_seed(seed)
    return SequenceModel(
        options.pop("cell"),
        task.input_size,
        options.pop("hidden_size"),
        task.output_size,
        every_step=task.every_step,
        symbols=task.symbols,
        **options,
    )


def run(
    recipe: Recipe,
    seed: int,
    runs: Path,
    report: Callable[[Event], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    processes: Processes = ALONE,
    open_test: bool = True,
    wait: bool = False,
    task: Task | None = None,
) -> tuple[RunFolder, Progress | None]:
    """Train a recipe, or continue it; choose the best validation epoch, then open the test split once.

    Returns the folder and the progress of the run, None if it had finished before.

    Args:
        recipe: what to train.
        seed: of the weights, the batches and dropout.
        runs: where run folders go.
        report: called after every update and evaluation.
        should_stop: asked after every update; True leaves a run that the same call continues.
        processes: those that train it together, see `lem.training.distributed`.
        open_test: False ends with the validation score, as the trials of a search must.
        wait: wait for another process that trains in the same folder, instead of refusing.
        task: the recipe's task where it is built already.

    Examples:
        >>> from pathlib import Path
        >>> from lem.experiments.runner import load_recipe, run
        >>> small = {"task.length": 20, "task.steps_per_epoch": 2, "train.epochs": 1}
        >>> recipe = load_recipe("adding/short", small)
        >>> folder, progress = run(recipe, seed=0, runs=Path("runs"))
        >>> progress.epoch, "test" in folder.result()
        (1, True)
    """
    if seed < 0:
        raise ValueError(f"`seed` of a run must be a whole number of at least 0; got {seed}.")
    folder = RunFolder(inside(runs, recipe.name, f"{seed}-{recipe.digest}"))
    return _train(folder, recipe, seed, report, should_stop, processes, open_test, wait, task)


def resume(
    folder: RunFolder,
    report: Callable[[Event], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    processes: Processes = ALONE,
    expected: Recipe | None = None,
) -> tuple[RunFolder, Progress | None]:
    """Continue the run in a folder; if `expected` is given, its recipe must be equivalent.

    Examples:
        >>> from pathlib import Path
        >>> from lem.experiments.runner import load_recipe, resume, run
        >>> small = {"task.length": 20, "task.steps_per_epoch": 2, "train.epochs": 1}
        >>> recipe = load_recipe("adding/short", small)
        >>> folder, _ = run(recipe, seed=0, runs=Path("runs"), should_stop=lambda: True)  # interrupted
        >>> folder.finished
        False
        >>> folder, _ = resume(folder)
        >>> folder.finished
        True
    """
    recipe = folder.recipe()
    if expected is not None and (changed := differences(recipe, expected)):
        raise ValueError(
            f"A resumed run must keep its recipe, but these values differ: {describe_changes(changed)}. "
            "Start a new run with the changed values."
        )
    return _train(folder, recipe, folder.seed, report, should_stop, processes, open_test=True, wait=False, task=None)


def _train(
    folder: RunFolder,
    recipe: Recipe,
    seed: int,
    report: Callable[[Event], None] | None,
    should_stop: Callable[[], bool] | None,
    processes: Processes,
    open_test: bool,
    wait: bool,
    task: Task | None,
) -> tuple[RunFolder, Progress | None]:
    if processes.first(folder.finished):
        return folder, None
    task = task or build_task(recipe)
    model = build_model(recipe, task, seed)

    try:
        with folder.held(wait) if processes.leads else nullcontext():
            if processes.leads:
                folder.start(recipe, seed, _backend(model))
            progress = fit(
                model,
                task.train,
                task.valid,
                loss=task.loss,
                metric=task.judge,
                seed=seed,
                store=folder,
                report=report,
                should_stop=should_stop,
                processes=processes,
                **recipe.train,
            )
            if progress.stopped or progress.epoch >= recipe.train["epochs"]:
                test = _test(recipe, task, model, processes) if open_test else None
                if processes.leads:
                    folder.write_json("result.json", _result(folder, recipe, seed, task, model, progress, test))
    except ConnectionError:
        raise
    except OSError as error:
        raise OSError(
            f"Run {folder.path} could not write its files: {error.strerror or error}. The last checkpoint is kept. "
            "Free space or make the folder writable, and rerun the same command."
        ) from error
    return folder, progress


def _backend(model: SequenceModel) -> str:
    """Say what the model's layers run on, and why."""
    cell = model.cells[0]
    weight = next(cell.parameters())
    return ": ".join(cell.backend_for(weight.new_zeros(1, 1, cell.input_size)))


def _result(
    folder: RunFolder,
    recipe: Recipe,
    seed: int,
    task: Task,
    model: SequenceModel,
    progress: Progress,
    test: float | None,
) -> dict[str, Any]:
    return {
        "recipe": recipe.name,
        "seed": seed,
        "metric": task.metric,
        "test": test,
        "valid": progress.best,
        "best_epoch": progress.best_epoch,
        "epochs": progress.epoch,
        "epochs_planned": recipe.train["epochs"],
        "updates": progress.updates,
        "shortened": progress.stopped,
        "seconds": round(progress.seconds, 1),
        "parameters": model.count_parameters(),
        "data": task.facts.known(),
        "notes": folder.notes(),
        "commit": environment()["commit"],
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def load_run(folder: RunFolder) -> tuple[Task, SequenceModel]:
    """Return the task of a run and its model with the weights of the best epoch.

    Examples:
        >>> from pathlib import Path
        >>> from lem.experiments.runner import load_recipe, load_run, run
        >>> small = {"task.length": 20, "task.steps_per_epoch": 2, "train.epochs": 1}
        >>> recipe = load_recipe("adding/short", small)
        >>> folder, _ = run(recipe, seed=0, runs=Path("runs"))
        >>> task, model = load_run(folder)
        >>> task.metric, type(model).__name__
        ('mse', 'SequenceModel')
    """
    recipe = folder.recipe()
    weights = folder.load_best()
    task = build_task(recipe)
    model = build_model(recipe, task, seed=0)
    model.load_state_dict(weights)
    return task, model


def evaluate_run(folder: RunFolder) -> float:
    """Evaluate the best weights of a run on the test split again.

    Examples:
        >>> from pathlib import Path
        >>> from lem.experiments.runner import evaluate_run, load_recipe, run
        >>> small = {"task.length": 20, "task.steps_per_epoch": 2, "train.epochs": 1}
        >>> recipe = load_recipe("adding/short", small)
        >>> folder, _ = run(recipe, seed=0, runs=Path("runs"))
        >>> abs(evaluate_run(folder) - folder.result()["test"]) < 1e-6
        True
    """
    return _test(folder.recipe(), *load_run(folder))


def _test(recipe: Recipe, task: Task, model: SequenceModel, processes: Processes = ALONE) -> float:
    options = {key: recipe.train[key] for key in ("batch_size", "device", "subsample") if key in recipe.train}
    model.to(options.get("device", "cpu"))
    return evaluate(model, task.test(), metric=task.judge, processes=processes, **options)
