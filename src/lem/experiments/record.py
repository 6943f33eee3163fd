"""A run as one value: what reports and comparisons read, whatever it was stored in."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lem.experiments.recipe import Recipe
from lem.experiments.run_folder import RunFolder


@dataclass(frozen=True)
class RunRecord:
    """The facts of one run, without its weights.

    Attributes:
        recipe: the resolved recipe.
        seed: the run's seed.
        environment: the machine and versions it was started with.
        metrics: one dict per evaluation.
        result: the content of result.json, or None while the run has not finished.
        path: the run folder, if the record was read from one.
    """

    recipe: Recipe
    seed: int
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    result: dict[str, Any] | None
    path: Path | None = None

    @property
    def name(self) -> str:
        """The run's name, which is also its path below `runs`."""
        return f"{self.recipe.name}/{self.seed}-{self.recipe.digest}"

    @property
    def outcome(self) -> dict[str, Any]:
        """The result of a finished run."""
        if self.result is None:
            raise ValueError(f"Run {self.path or self.name} has not finished: it has no result.json.")
        return self.result


def read_run(folder: RunFolder) -> RunRecord:
    """Read the record of a run folder."""
    result = folder.result() if folder.finished else None
    return RunRecord(folder.recipe(), folder.seed, folder.environment(), folder.metrics(), result, folder.path)


def find_runs(paths: list[Path]) -> list[RunRecord]:
    """Return the runs in the given folders, or below them, in the order of their paths."""
    files = [file for path in paths for file in sorted(path.rglob("recipe.toml"))]
    return [read_run(RunFolder(file.parent)) for file in files]


def with_test_score(records: list[RunRecord]) -> list[RunRecord]:
    """Return the finished runs with a test score; the trials of a search have none."""
    return [record for record in records if record.result is not None and record.result["test"] is not None]
