"""The folder of a run, `runs/<task>/<model>/<seed>-<id>/`: what survives of it, whatever happens to the process.

It holds `run.json` (name, recipe, seed), `recipe.toml` (resolved), `env.json`, `metrics.jsonl`, the checkpoints
`last.ckpt` and `previous.ckpt`, `best.safetensors`, `notes.txt` where something went wrong, and `result.json`, written
last: if it exists, the run finished. The id is made of the resolved recipe, so the same command again finds the same
folder and continues it.
"""

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from lem.atomic import append, no_link, write_atomically
from lem.environment import environment
from lem.experiments import first_format
from lem.experiments.recipe import Recipe, check_recipe, describe_changes, differences, read_toml, take_name
from lem.training.checkpoint import load_tensors, load_tree, save_tensors, save_tree
from lem.version import __version__

NUMBER = (int, float)
RESULT: dict[str, Any] = {
    "recipe": str,
    "seed": int,
    "metric": str,
    "test": (*NUMBER, type(None)),
    "valid": (*NUMBER, type(None)),
    "best_epoch": int,
    "epochs": int,
    "epochs_planned": int,
    "updates": int,
    "shortened": str,
    "seconds": NUMBER,
    "parameters": dict,
    "notes": list,
}
"""The fields of result.json that others read, with their types."""

FORMAT = 1
"""The format of checkpoints; raised when an older one can no longer be continued."""


class RunFolder:
    """The folder of one run: complete, append-only, and continued by the same command.

    Examples:
        >>> from pathlib import Path
        >>> from lem.experiments.runner import load_recipe, run
        >>> small = {"task.length": 20, "task.steps_per_epoch": 2, "train.epochs": 1}
        >>> recipe = load_recipe("adding/short", small)
        >>> folder, _ = run(recipe, seed=0, runs=Path("runs"))
        >>> folder.seed, len(folder.metrics())  # one record per evaluation
        (0, 1)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._started: Recipe | None = None

    @property
    def seed(self) -> int:
        """The run's seed."""
        file = self.file("run.json")
        if not file.is_file():
            return first_format.folder_seed(self.path)
        seed = _json(file).get("seed")
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise ValueError(f"`seed` in {file} must be a whole number of at least 0; got {seed!r}.")
        return seed

    @property
    def finished(self) -> bool:
        """Whether the run ended with a result."""
        return self.file("result.json").is_file()

    def _check_present(self) -> None:
        """Raise OSError if the folder was removed while the run used it; what is left would be no run."""
        if self._started is not None and not self.file("recipe.toml").is_file():
            raise OSError("the folder, or its recipe.toml, was removed while the run used it")

    def file(self, name: str) -> Path:
        """Return the path of one of the folder's files; a link is refused, since it could lead anywhere."""
        return no_link(self.path / name)

    def result(self) -> dict[str, Any]:
        """Read the result of a finished run, and check that it has the fields of one."""
        file = self.file("result.json")
        content = _json(file)
        for key, kinds in RESULT.items():
            value = content.get(key)
            if not isinstance(value, kinds) or isinstance(value, bool):
                raise ValueError(f"{file} is not the result of a run: `{key}` is {value!r}.")
        return content if "data" in content else first_format.result(content)

    def recipe(self) -> Recipe:
        """Read the run's resolved recipe."""
        file = self.file("recipe.toml")
        if not file.is_file():
            raise ValueError(f"`run` must be a run folder with a recipe.toml; got {self.path}.")
        tables = read_toml(file)
        first = "" if "name" in tables else first_format.recipe_name(file.read_text(encoding="utf-8"))
        return check_recipe(take_name(tables, first), first_format.recipe_tables(tables))

    def environment(self) -> dict[str, Any]:
        """Read what the run was started on."""
        file = self.file("env.json")
        return _json(file) if file.is_file() else {}

    def metrics(self) -> list[dict[str, Any]]:
        """Read the records of all evaluations; a last line torn by a kill is left out."""
        file = self.file("metrics.jsonl")
        lines = file.read_bytes().splitlines(keepends=True) if file.is_file() else []
        return [_object(line, file) for line in lines if line.endswith(b"\n")]

    def notes(self) -> list[str]:
        """Read what was noted of the run."""
        file = self.file("notes.txt")
        return file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []

    # --- writing: one process at a time, see `held` ---------------------------------------------------------------

    @contextmanager
    def held(self, wait: bool = False) -> Iterator[None]:
        """Keep other processes from training in this folder; the system lets go of it when this one dies."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            import fcntl
        except ImportError:  # not on this system: nothing to hold with
            yield
            return
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            for leftover in self.path.glob(".*.tmp"):  # of a process killed while it wrote
                leftover.unlink()
            yield
        except BlockingIOError as error:
            raise ValueError(f"Run {self.path} is locked by another process. Wait until it ends.") from error
        finally:
            os.close(folder)

    def start(self, recipe: Recipe, seed: int, backend: str) -> None:
        """Write what the run is and what it runs on; if it was started before, note what has changed."""
        here, self._started = {**environment(), "backend": backend}, recipe
        if self.file("recipe.toml").is_file():
            self._refuse_changes(self.recipe(), recipe)
            before = self.environment()
            for key in ("lem", "torch", "threads"):
                if before.get(key, here[key]) != here[key]:
                    self.note(
                        f"{self.path} was started with {key} {before[key]} and is continued with {key} {here[key]}: "
                        "the numbers may differ from an uninterrupted run."
                    )
            return
        self.write_json("run.json", {"name": f"{recipe.name}/{self.path.name}", "recipe": recipe.name, "seed": seed})
        self.write_json("env.json", here)
        write_atomically(self.file("recipe.toml"), recipe.to_toml().encode())

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write a file of the folder, whole or not at all."""
        if name == "result.json":  # the others are written before recipe.toml
            self._check_present()
        write_atomically(self.file(name), (json.dumps(content, indent=2) + "\n").encode())

    def record(self, record: dict[str, Any]) -> None:
        """Append one evaluation."""
        self._check_present()
        append(self.file("metrics.jsonl"), json.dumps(record) + "\n")

    def note(self, text: str) -> None:
        """Append a text to the run's notes, and warn."""
        append(self.file("notes.txt"), text + "\n")
        warnings.warn(text, stacklevel=3)

    # --- what `fit` asks of a store -------------------------------------------------------------------------------

    def save(self, state: dict[str, Any]) -> None:
        """Keep the newest checkpoint and the one before."""
        self._check_present()
        recipe = self._started or self.recipe()
        about = {"format": FORMAT, "lem": __version__, "name": recipe.name, "recipe": recipe.tables()}
        save_tree(self.file("last.ckpt"), {"about": about, **state}, keep=self.file("previous.ckpt"))

    def save_best(self, weights: dict[str, Tensor]) -> None:
        """Keep the weights of the best validation epoch."""
        self._check_present()
        save_tensors(self.file("best.safetensors"), weights)

    def load_best(self) -> dict[str, Tensor]:
        """Read the weights of the best validation epoch."""
        file = self.file("best.safetensors")
        if not file.is_file():
            raise ValueError(f"Run {self.path} has no weights yet. Train it first.")
        return load_tensors(file)[0]

    def load(self) -> dict[str, Any] | None:
        """Return the newest readable checkpoint, and truncate the records to its epoch."""
        state, found = None, False
        for name in ("last.ckpt", "previous.ckpt"):
            if not self.file(name).is_file():
                continue
            found = True
            try:
                state = load_tree(self.path / name)
                break
            except ValueError as error:
                self.note(f"{error}; the checkpoint before it is used.")
        if state is None and found:
            self.note(f"No checkpoint of {self.path} can be read; the run starts from its beginning.")
        records = [] if state is None else self._check(state)
        write_atomically(self.file("metrics.jsonl"), "".join(json.dumps(r) + "\n" for r in records).encode())
        return state

    def _check(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        """Refuse a checkpoint of another format, or of another recipe than the folder's; return its records."""
        about, progress = state.pop("about", None), state.get("progress")
        records = progress.get("history") if isinstance(progress, dict) else None
        if not isinstance(about, dict) or not isinstance(records, list):
            raise ValueError(f"The checkpoints of {self.path} are not those of a run.")
        if about.get("format") != FORMAT:
            raise ValueError(
                f"A checkpoint of {self.path} must have format {FORMAT}, which version {__version__} reads; got "
                f"{about.get('format')} of version {about.get('lem')}. Continue with that version, or start a new run."
            )
        tables = about.get("recipe")
        tables = first_format.recipe_tables(tables) if isinstance(tables, dict) else tables
        before = check_recipe(str(about.get("name")), tables)
        self._refuse_changes(before, self._started or self.recipe())
        return records

    def _refuse_changes(self, before: Recipe, now: Recipe) -> None:
        if changed := differences(before, now):
            raise ValueError(
                f"The recipe of {self.path} has changed since the run was started: {describe_changes(changed)}. "
                "Restore its recipe.toml, or start a new run with the changed values."
            )


def _json(file: Path) -> dict[str, Any]:
    return _object(file.read_bytes(), file)


def _object(text: bytes, file: Path) -> dict[str, Any]:
    """Return a JSON object of a file; anything else is an error that names the file."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} must hold JSON; got: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object; got a {type(content).__name__}.")
    return content
