"""The folder of a run, `runs/<task>/<model>/<seed>-<id>/`: what survives of it, whatever happens to the process.

It holds `recipe.toml` (resolved), `env.json`, `metrics.jsonl`, the checkpoints `last.ckpt` and `previous.ckpt`,
`best.safetensors`, `notes.txt` where something went wrong, and `result.json`, written last: if it exists, the run
finished. The id is made of the resolved recipe, so the same command again finds the same folder and continues it.
"""

import json
import os
import platform
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import safetensors
import torch
from torch import Tensor

import lem
from lem.checkpoint import load_tensors, load_tree, save_tensors, save_tree, write_atomically
from lem.recipe import Recipe, check_recipe, differences, read_toml

FORMAT = 1
"""The format of checkpoints; raised when an older one can no longer be continued."""


class RunFolder:
    """The folder of one run: complete, append-only, and continued by the same command."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._started: Recipe | None = None

    @property
    def seed(self) -> int:
        """The run's seed, from the folder's name."""
        seed = self.path.name.partition("-")[0]
        if not seed.isdigit():
            raise ValueError(f"A run folder must be named <seed>-<id>; got {self.path}.")
        return int(seed)

    @property
    def finished(self) -> bool:
        """Whether the run ended with a result."""
        return (self.path / "result.json").is_file()

    def result(self) -> dict[str, Any]:
        """Read the result of a finished run."""
        return _json(self.path / "result.json")

    def recipe(self) -> Recipe:
        """Read the run's resolved recipe."""
        file = self.path / "recipe.toml"
        if not file.is_file():
            raise ValueError(f"`run` must be a run folder with a recipe.toml; got {self.path}.")
        tables = read_toml(file)
        name = file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").removesuffix(", resolved")
        return check_recipe(name, tables)

    def environment(self) -> dict[str, Any]:
        """Read what the run was started on."""
        file = self.path / "env.json"
        return _json(file) if file.is_file() else {}

    def metrics(self) -> list[dict[str, Any]]:
        """Read the records of all evaluations; a last line torn by a kill is left out."""
        file = self.path / "metrics.jsonl"
        lines = file.read_bytes().splitlines(keepends=True) if file.is_file() else []
        return [_object(line, file) for line in lines if line.endswith(b"\n")]

    def notes(self) -> list[str]:
        """Read what was noted of the run."""
        file = self.path / "notes.txt"
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
            raise ValueError(f"Run {self.path} must not be trained twice at once; another process is at it.") from error
        finally:
            os.close(folder)

    def start(self, recipe: Recipe, backend: str) -> None:
        """Write what the run is and what it runs on; where it was started before, note what changed since."""
        here, self._started = {**environment(), "backend": backend}, recipe
        if (self.path / "recipe.toml").is_file():
            self._refuse_changes(self.recipe(), recipe)
            before = self.environment()
            for key in ("lem", "torch", "threads"):
                if before.get(key, here[key]) != here[key]:
                    self.note(
                        f"{self.path} was started with {key} {before[key]} and is continued with {key} {here[key]}: "
                        "the numbers may differ from an uninterrupted run."
                    )
            return
        self.write_json("env.json", here)
        write_atomically(self.path / "recipe.toml", recipe.to_toml().encode())

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write a file of the folder, whole or not at all."""
        write_atomically(self.path / name, (json.dumps(content, indent=2) + "\n").encode())

    def record(self, record: dict[str, Any]) -> None:
        """Append one evaluation."""
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")

    def note(self, text: str) -> None:
        """Append a text to the run's notes, and warn."""
        with open(self.path / "notes.txt", "a") as file:
            file.write(text + "\n")
        warnings.warn(text, stacklevel=3)

    # --- what `fit` asks of a store -------------------------------------------------------------------------------

    def save(self, state: dict[str, Any]) -> None:
        """Keep the newest checkpoint and the one before."""
        recipe = self._started or self.recipe()
        about = {"format": FORMAT, "lem": lem.__version__, "name": recipe.name, "recipe": recipe.tables()}
        save_tree(self.path / "last.ckpt", {"about": about, **state}, keep=self.path / "previous.ckpt")

    def save_best(self, weights: dict[str, Tensor]) -> None:
        """Keep the weights of the best validation epoch."""
        save_tensors(self.path / "best.safetensors", weights)

    def load_best(self) -> dict[str, Tensor]:
        """Read the weights of the best validation epoch."""
        file = self.path / "best.safetensors"
        if not file.is_file():
            raise ValueError(f"Run {self.path} must have best weights to be evaluated; got none: train it first.")
        return load_tensors(file)[0]

    def load(self) -> dict[str, Any] | None:
        """Return the newest readable checkpoint, and bring the records back to where it stands."""
        state, found = None, False
        for name in ("last.ckpt", "previous.ckpt"):
            if not (self.path / name).is_file():
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
        write_atomically(self.path / "metrics.jsonl", "".join(json.dumps(r) + "\n" for r in records).encode())
        return state

    def _check(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        """Refuse a checkpoint of another format, or of another recipe than the folder's; return its records."""
        about, progress = state.pop("about", None), state.get("progress")
        records = progress.get("history") if isinstance(progress, dict) else None
        if not isinstance(about, dict) or not isinstance(records, list):
            raise ValueError(f"The checkpoints of {self.path} must be those of a run; they hold something else.")
        if about.get("format") != FORMAT:
            raise ValueError(
                f"A checkpoint of {self.path} must have format {FORMAT}, which version {lem.__version__} reads; got "
                f"{about.get('format')} of version {about.get('lem')}. Continue with that version, or start a new run."
            )
        before = check_recipe(str(about.get("name")), about.get("recipe"))
        self._refuse_changes(before, self._started or self.recipe())
        return records

    def _refuse_changes(self, before: Recipe, now: Recipe) -> None:
        if changed := differences(before, now):
            raise ValueError(
                f"The recipe of {self.path} must be the one it was started with; got: {'; '.join(changed)}. "
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


def _commit() -> str | None:
    call = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(call, capture_output=True, text=True, check=False).stdout.strip() or None
    except OSError:  # no git here
        return None


def environment() -> dict[str, Any]:
    """Describe what a run ran on: commit, versions, processor, threads."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    return {
        "lem": lem.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "safetensors": safetensors.__version__,
        "platform": platform.platform(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
