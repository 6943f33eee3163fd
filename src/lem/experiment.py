"""From a recipe to a finished run: the only place that knows recipes, tasks, models, training and run folders.

A recipe is a TOML file, `recipes/<task>/<model>.toml`. A run folder, `runs/<task>/<model>/<seed>-<id>/`, holds
`recipe.toml` (resolved), `env.json`, `metrics.jsonl`, the checkpoints `last.ckpt` and `previous.ckpt`,
`best.safetensors`, and `result.json`, written last: if it exists, the run finished. The id is made of the resolved
recipe, so the same command again finds the same folder and continues it.
"""

import functools
import hashlib
import inspect
import json
import os
import platform
import shutil
import subprocess
import tomllib
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import safetensors
import torch
from safetensors.torch import load_file, save
from torch import Tensor

import lem
from lem.cells import CELLS
from lem.checkpoint import load_tree, save_tree, write_atomically
from lem.model import SequenceModel
from lem.recurrent import nearest
from lem.tasks import TASKS, Task
from lem.train import Event, Progress, evaluate, fit

RECIPES = Path(__file__).parent / "recipes"
SECTIONS = ("task", "model", "train", "search", "sweep", "paper")
PAPER_KEYS = ("figure", "units", "parameters", "source", "epochs")
FROM_TASK = ("input_size", "output_size", "every_step", "symbols")
FROM_RUN = ("model", "train", "valid", "loss", "metric", "seed", "store", "report", "should_stop", "processes")


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe: what a run does, apart from its seed."""

    name: str
    task: dict[str, Any]
    model: dict[str, Any]
    train: dict[str, Any]
    search: dict[str, Any]
    sweep: dict[str, Any]
    paper: dict[str, Any]

    @property
    def digest(self) -> str:
        """Eight letters that name the recipe's content: equal recipes share a run folder."""
        content = json.dumps([self.task, self.model, self.train], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:8]

    def to_toml(self) -> str:
        """Write the recipe as TOML."""
        lines = [f"# {self.name}, resolved"]
        for section in SECTIONS:
            table = getattr(self, section)
            if table:
                lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"


# --- reading recipes ----------------------------------------------------------------------------------------------


def recipe_names() -> list[str]:
    """List the recipes that come with the library, as `task/model`."""
    return sorted(path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.toml"))


def load_recipe(name: str, overrides: dict[str, Any] | None = None) -> Recipe:
    """Read a recipe by name or path, apply overrides such as {"train.epochs": 5}, and check every key and value."""
    path = RECIPES / f"{name}.toml"
    if not path.is_file():
        path = Path(name)
        if not path.is_file():
            known = recipe_names()
            raise ValueError(
                f"`recipe` must be a TOML file or one of {', '.join(known)}; got {name!r}.{nearest(name, known)}"
            )
        name = "/".join(path.with_suffix("").parts[-2:])
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"Recipe {path} must be valid TOML; got: {error}.") from error
    for key, value in (overrides or {}).items():
        section, _, option = key.partition(".")
        if not option:
            raise ValueError(f"An override must be written section.key; got {key!r}.")
        tables.setdefault(section, {})[option] = value
    return _checked(name, tables)


def _checked(name: str, tables: dict[str, Any]) -> Recipe:
    for section, table in tables.items():
        if section not in SECTIONS:
            raise ValueError(
                f"A section of recipe {name} must be one of {', '.join(SECTIONS)}; got [{section}]."
                f"{nearest(section, SECTIONS)}"
            )
        if not isinstance(table, dict):
            raise ValueError(f"`{section}` of recipe {name} must be a section [{section}]; got {table!r}.")
    recipe = Recipe(name, **{section: tables.get(section, {}) for section in SECTIONS})
    task = _named(name, "task", "name", recipe.task, TASKS)
    cell = _named(name, "model", "cell", recipe.model, CELLS)
    _check_keys(name, "task", recipe.task, {"name": str, **_options(TASKS[task])})
    known = {**_options(CELLS[cell], skip=("bias", "device", "dtype")), **_options(SequenceModel, skip=FROM_TASK)}
    _check_keys(name, "model", recipe.model, known, required=("hidden_size",))
    fit_options = _options(fit, skip=FROM_RUN)
    _check_keys(name, "train", recipe.train, fit_options, required=("batch_size", "epochs", "learning_rate"))
    _check_keys(name, "paper", recipe.paper, dict.fromkeys(PAPER_KEYS, object))
    return recipe


def _named(recipe: str, section: str, key: str, table: dict[str, Any], known: dict[str, Any]) -> str:
    value = table.get(key)
    if value not in known:
        raise ValueError(
            f"`{key}` in [{section}] of recipe {recipe} must be one of {', '.join(sorted(known))}; got {value!r}."
            f"{nearest(str(value), known)}"
        )
    return str(value)


def _options(function: Callable[..., Any], skip: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the arguments of a function or class with their types, without those that others supply."""
    if isinstance(function, functools.partial):
        function = function.func
    hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    names = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    return {name: hints.get(name, object) for name in names if name not in (*skip, "input_size")}


def _check_keys(
    recipe: str, section: str, table: dict[str, Any], known: dict[str, Any], required: tuple[str, ...] = ()
) -> None:
    for key, value in table.items():
        if key not in known:
            raise ValueError(
                f"A key in [{section}] of recipe {recipe} must be one of {', '.join(known)}; got {key!r}."
                f"{nearest(key, known)}"
            )
        if not _fits(value, known[key]):
            wanted = getattr(known[key], "__name__", str(known[key]))
            raise ValueError(f"`{key}` in [{section}] of recipe {recipe} must be {wanted}; got {value!r}.")
    for key in required:
        if key not in table:
            raise ValueError(f"[{section}] of recipe {recipe} must set `{key}`; got {', '.join(table) or 'nothing'}.")


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, types.UnionType):
        return any(_fits(value, part) for part in kind.__args__)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    origin = typing.get_origin(kind)
    if origin in (tuple, list):
        return isinstance(value, list | tuple) and all(_fits(item, typing.get_args(kind)[0]) for item in value)
    return not isinstance(kind, type) or isinstance(value, kind)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


# --- building and running -----------------------------------------------------------------------------------------


def build_task(recipe: Recipe) -> Task:
    """Prepare the recipe's data."""
    return TASKS[recipe.task["name"]](**{key: value for key, value in recipe.task.items() if key != "name"})


def build_model(recipe: Recipe, task: Task, seed: int) -> SequenceModel:
    """Build the recipe's model for a task, with the initial weights of `seed`."""
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


class RunFolder:
    """The folder of one run: complete, append-only, and continued by the same command."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def finished(self) -> bool:
        """Whether the run ended with a result."""
        return (self.path / "result.json").is_file()

    def result(self) -> dict[str, Any]:
        """Read the result of a finished run."""
        result: dict[str, Any] = json.loads((self.path / "result.json").read_text())
        return result

    def recipe(self) -> Recipe:
        """Read the run's resolved recipe."""
        file = self.path / "recipe.toml"
        if not file.is_file():
            raise ValueError(f"`run` must be a run folder with a recipe.toml; got {self.path}.")
        tables = tomllib.loads(file.read_text())
        name = file.read_text().partition("\n")[0].removeprefix("# ").removesuffix(", resolved")
        return _checked(name, tables)

    def metrics(self) -> list[dict[str, Any]]:
        """Read the records of all evaluations."""
        file = self.path / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write a file of the folder, whole or not at all."""
        write_atomically(self.path / name, (json.dumps(content, indent=2) + "\n").encode())

    # What `fit` asks of a store.

    def save(self, state: dict[str, Any]) -> None:
        """Keep the newest checkpoint and the one before."""
        last = self.path / "last.ckpt"
        if last.is_file():
            os.replace(last, self.path / "previous.ckpt")
        save_tree(last, state)

    def save_best(self, weights: dict[str, Tensor]) -> None:
        """Keep the weights of the best validation epoch."""
        write_atomically(self.path / "best.safetensors", save({k: v.clone() for k, v in weights.items()}))

    def load(self) -> dict[str, Any] | None:
        """Return the newest readable checkpoint, and cut the records back to where it stands."""
        for name in ("last.ckpt", "previous.ckpt"):
            if not (self.path / name).is_file():
                continue
            try:
                state = load_tree(self.path / name)
            except ValueError as error:
                self.note(f"{error}; using the one before.")
                continue
            kept = [record for record in self.metrics() if record["updates"] <= state["progress"]["updates"]]
            write_atomically(self.path / "metrics.jsonl", "".join(json.dumps(r) + "\n" for r in kept).encode())
            return state
        write_atomically(self.path / "metrics.jsonl", b"")
        return None

    def record(self, record: dict[str, Any]) -> None:
        """Append one evaluation."""
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")

    def note(self, text: str) -> None:
        """Append a line to the run's notes."""
        with open(self.path / "notes.txt", "a") as file:
            file.write(text + "\n")


def run(
    recipe: Recipe,
    seed: int,
    runs: Path,
    report: Callable[[Event], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> tuple[RunFolder, Progress | None]:
    """Train a recipe, or continue it; choose the best validation epoch, then open the test split once.

    Returns the folder and where the run stands, None where it had finished before.
    """
    folder = RunFolder(runs / recipe.name / f"{seed}-{recipe.digest}")
    if folder.finished:
        return folder, None
    task = build_task(recipe)
    model = build_model(recipe, task, seed)
    folder.path.mkdir(parents=True, exist_ok=True)
    write_atomically(folder.path / "recipe.toml", recipe.to_toml().encode())
    folder.write_json("env.json", environment())

    def tell(event: Event) -> None:
        if event.record is not None:
            folder.record(event.record)
        if report:
            report(event)

    progress = fit(
        model,
        task.train,
        task.valid,
        loss=task.loss,
        metric=task.metric,
        seed=seed,
        store=folder,
        report=tell,
        should_stop=should_stop,
        **recipe.train,
    )
    ended = bool(progress.stopped) or progress.epoch >= recipe.train["epochs"]
    if ended and progress.best is not None:
        test = _test(recipe, task, model)
        folder.write_json("result.json", _result(recipe, seed, task, model, progress, test))
    return folder, progress


def _result(
    recipe: Recipe, seed: int, task: Task, model: SequenceModel, progress: Progress, test: float
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
        "notes": list(task.notes),
        "commit": environment()["commit"],
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def load_run(folder: RunFolder) -> tuple[Task, SequenceModel]:
    """Return the task of a run and its model with the weights of the best epoch."""
    recipe = folder.recipe()
    weights = folder.path / "best.safetensors"
    if not weights.is_file():
        raise ValueError(f"Run {folder.path} must have best weights to be evaluated; got none: train it first.")
    task = build_task(recipe)
    model = build_model(recipe, task, seed=0)
    model.load_state_dict(load_file(weights))
    return task, model


def evaluate_run(folder: RunFolder) -> float:
    """Evaluate the best weights of a run on the test split again."""
    return _test(folder.recipe(), *load_run(folder))


def _test(recipe: Recipe, task: Task, model: SequenceModel) -> float:
    options = {key: recipe.train[key] for key in ("batch_size", "device", "subsample") if key in recipe.train}
    return evaluate(model.to(options.get("device", "cpu")), task.test(), metric=task.metric, **options)


def publish(folder: RunFolder, results: Path) -> Path:
    """Copy what a table quotes of a finished run, without weights, to `results`."""
    if not folder.finished:
        raise ValueError(f"Run {folder.path} must have finished to be published; it has no result.json.")
    target = results / folder.recipe().name / folder.path.name
    target.mkdir(parents=True, exist_ok=True)
    for name in ("recipe.toml", "env.json", "metrics.jsonl", "result.json"):
        shutil.copyfile(folder.path / name, target / name)
    return target


def environment() -> dict[str, Any]:
    """Describe what a run ran on: commit, versions, processor, threads."""
    here = Path(__file__).parent
    git = subprocess.run(["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    return {
        "lem": lem.__version__,
        "commit": git.stdout.strip() or None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "safetensors": safetensors.__version__,
        "platform": platform.platform(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
