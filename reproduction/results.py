"""The results, one line of JSON a run, one file a task: recipe, seed, environment, metrics of every epoch, result.

A line keeps the run as it was, with nothing rounded. A recipe that was renamed since has today's name; `result.recipe`
is the name under which the run was started (docs/decisions lists them). Metrics are stored by column, which takes a
third of the space of one object an epoch.
"""

import json
from pathlib import Path
from typing import Any

from lem.atomic import write_atomically
from lem.experiments.recipe import check_recipe
from lem.experiments.record import RunRecord, read_run
from lem.experiments.run_folder import RunFolder

RESULTS = Path(__file__).parent / "results"


def read_results(folder: Path = RESULTS) -> list[RunRecord]:
    """Read all runs, in the order of their names."""
    runs = [parse_line(line) for file in sorted(folder.glob("*.jsonl")) for line in _lines(file)]
    return sorted(runs, key=lambda run: run.name)


def add_run(folder: RunFolder, results: Path = RESULTS) -> RunRecord:
    """Take a finished run folder in, of this version or of 0.1.0; the line of the same run is replaced."""
    run = read_run(folder)
    if run.result is None or run.result["test"] is None:
        raise ValueError(f"{folder.path} has no test score: only finished runs can be added.")
    file = results / f"{run.recipe.task['name']}.jsonl"
    lines = {_name(line): line for line in _lines(file)} | {run.name: write_line(run)}
    results.mkdir(parents=True, exist_ok=True)
    write_atomically(file, "".join(f"{lines[name]}\n" for name in sorted(lines)).encode())
    return run


def write_line(run: RunRecord) -> str:
    """Return a run as one line of JSON."""
    content = {
        "name": run.name,
        "recipe": {"name": run.recipe.name, **run.recipe.tables()},
        "seed": run.seed,
        "environment": run.environment,
        "result": run.result,
        "metrics": _columns(run.metrics),
    }
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def parse_line(line: str) -> RunRecord:
    """Return the run in a line of JSON."""
    content = json.loads(line)
    recipe = dict(content["recipe"])
    columns = content["metrics"]
    metrics = [dict(zip(columns, values)) for values in zip(*columns.values())]
    record = RunRecord(
        check_recipe(recipe.pop("name"), recipe), content["seed"], content["environment"], metrics, content["result"]
    )
    if record.name != content["name"]:
        raise ValueError(f"The line of run {content['name']} holds the recipe or seed of {record.name}.")
    return record


def _columns(records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    keys = list(records[0]) if records else []
    if any(list(record) != keys for record in records):
        raise ValueError(f"All records of a run must have the keys {', '.join(keys)}.")
    return {key: [record[key] for record in records] for key in keys}


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.is_file() else []


def _name(line: str) -> str:
    return str(json.loads(line)["name"])
