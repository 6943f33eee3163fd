"""Run folders to tables and figures. Reports read; they never train."""

import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lem.extras import pyplot
from lem.metrics import METRICS
from lem.recipe import Recipe, differences, load_recipe, recipe_names
from lem.run_folder import RunFolder

OTHER_DATA = {"a subset:": "a subset of the data", "rebuilt from the recordings": "rebuilt data"}
"""What the notes of a task say of other data than the paper's, and how a table says it."""

LONG_NUMBER = re.compile(r"\d+\.\d{5,}(e-?\d+)?")


@dataclass(frozen=True)
class Group:
    """Finished runs of one recipe, which differ in their seeds only."""

    recipe: Recipe
    folders: list[RunFolder]

    @property
    def results(self) -> list[dict[str, Any]]:
        """What each run ended with."""
        return [folder.result() for folder in self.folders]

    @property
    def metric(self) -> str:
        """The task's metric."""
        return str(self.results[0]["metric"])

    @property
    def tests(self) -> list[float]:
        """The test figure of each seed."""
        return [result["test"] for result in self.results]

    @property
    def changes(self) -> str:
        """What differs from the recipe of that name that comes with the library, or ""."""
        if self.recipe.name not in recipe_names():
            return ""
        lines = differences(load_recipe(self.recipe.name), self.recipe)
        pairs = [(line.partition(" was ")[0], line.rpartition(", is ")[2]) for line in lines]
        return ", ".join(f"{key} = {re.sub(LONG_NUMBER, _rounded, value)}" for key, value in pairs)

    @property
    def shortened(self) -> str:
        """How the runs fell short of the recipe's training or data, or ""; a reader must see it beside the figure."""
        short = [result for result in self.results if result["shortened"]]
        planned = load_recipe(self.recipe.name).train["epochs"] if self.recipe.name in recipe_names() else 0
        done = max(result["epochs"] for result in self.results)
        said = []
        if short:
            said.append(f"{done} of {short[0]['epochs_planned']} epochs: {short[0]['shortened']}")
        elif done < planned:
            said.append(f"{done} of {planned} epochs")
        notes = " ".join(note for result in self.results for note in result["notes"])
        said += [label for words, label in OTHER_DATA.items() if words in notes]
        return "; ".join(said)

    def score(self) -> str:
        """Write the mean test figure, with the spread over the seeds and whatever was cut short."""
        unit = METRICS[self.metric].unit
        text = figure(statistics.fmean(self.tests))
        if len(self.tests) > 1:
            text += f" ± {statistics.stdev(self.tests):.2g}"
        text = f"{text} {unit}".rstrip()
        return f"{text} ({self.shortened})" if self.shortened else text


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.4g}"


def find_runs(paths: list[Path]) -> list[RunFolder]:
    """Return the finished runs with a test figure in the given folders, or below them."""
    files = [file for path in paths for file in sorted(path.rglob("recipe.toml"))]
    found = [RunFolder(file.parent) for file in files]
    return [run for run in found if run.finished and run.result()["test"] is not None]


def group_runs(folders: list[RunFolder]) -> list[Group]:
    """Put the runs of one recipe together, in the order of their names."""
    groups: dict[tuple[str, str], list[RunFolder]] = {}
    recipes: dict[tuple[str, str], Recipe] = {}
    for folder in folders:
        recipe = folder.recipe()
        groups.setdefault((recipe.name, recipe.digest), []).append(folder)
        recipes[recipe.name, recipe.digest] = recipe
    return [Group(recipes[key], sorted(groups[key], key=lambda folder: folder.seed)) for key in sorted(groups)]


def result_rows(folders: list[RunFolder]) -> list[tuple[str, str]]:
    """Return a run's result as (what, value) rows, beside what the paper says of it."""
    rows: list[tuple[str, str]] = []
    for folder in folders:
        result, paper = folder.result(), folder.recipe().paper
        unit = METRICS[result["metric"]].unit
        shortened = f", shortened: {result['shortened']}" if result["shortened"] else ""
        rows += [
            ("run", str(folder.path)),
            (f"test {result['metric']}", figure(result["test"], unit)),
            ("paper", figure(paper["figure"], unit) if "figure" in paper else "missing"),
            ("valid", f"{figure(result['valid'], unit)} at epoch {result['best_epoch']} (the best, chosen)"),
            ("epochs", f"{result['epochs']} of {result['epochs_planned']}{shortened}"),
            ("parameters", f"{result['parameters']['cell_and_readout']:,} with the readout"),
            ("time", duration(result["seconds"])),
        ]
    return rows


def summary_rows(groups: list[Group]) -> list[dict[str, str]]:
    """Return one row a group, as a table shows it."""
    return [
        {
            "recipe": group.recipe.name + (f" ({group.changes})" if group.changes else ""),
            "metric": group.metric,
            "test": group.score(),
            "seeds": str(len(group.folders)),
            "paper": figure(group.recipe.paper["figure"]) if "figure" in group.recipe.paper else "missing",
            "units": str(group.recipe.model["hidden_size"]),
            "parameters": f"{group.results[0]['parameters']['cell_and_readout']:,}",
            "time a run": duration(statistics.fmean(result["seconds"] for result in group.results)),
            "hardware": hardware(group.folders[0]),
        }
        for group in groups
    ]


def hardware(folder: RunFolder) -> str:
    """Write what a run ran on."""
    environment = folder.environment()
    if not environment:
        return "missing"
    return (
        f"{environment['cpu']}, {environment['threads']} of {environment['cores']} cores, torch {environment['torch']}"
    )


def figure(value: float, unit: str = "") -> str:
    """Write a figure of merit with three significant digits; percentages and the like with four."""
    text = f"{value:.4g}" if unit == "%" or abs(value) >= 10 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def duration(seconds: float) -> str:
    """Write a time span in the unit a reader would use."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"


def learning_curve(folder: RunFolder, path: Path) -> Path:
    """Draw a run's training loss and validation metric over its epochs, with the paper's figure as a line."""
    return draw_curves(Group(folder.recipe(), [folder]), [path])[0]


def draw_curves(group: Group, paths: list[Path]) -> list[Path]:
    """Draw training loss and validation metric over the epochs: the mean over the seeds, and all between as a band."""
    plt = pyplot()
    paper, judge, results = group.recipe.paper, METRICS[group.metric], group.results
    chart, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for axis, key, color in ((left, "loss", "0.25"), (right, "valid", "tab:blue")):
        series: dict[int, list[float]] = {}
        for folder in group.folders:
            for record in folder.metrics():
                series.setdefault(record["epoch"], []).append(record[key])
        axis.xaxis.get_major_locator().set_params(integer=True)
        epochs = sorted(series)
        mean = [statistics.fmean(series[epoch]) for epoch in epochs]
        label = "validation" if len(group.folders) == 1 else f"validation, {len(group.folders)} seeds"
        axis.plot(epochs, mean, ".-" if len(epochs) < 20 else "-", color=color, linewidth=1, label=label)
        if len(group.folders) > 1:
            low, high = [min(series[epoch]) for epoch in epochs], [max(series[epoch]) for epoch in epochs]
            axis.fill_between(epochs, low, high, color=color, alpha=0.2, linewidth=0)
    for number, result in enumerate(results):
        said = {"label": f"test {group.score()}"} if number == 0 else {}
        right.plot(result["best_epoch"], result["test"], "o", color="tab:orange", markersize=5, **said)
    if "figure" in paper:
        label = f"paper {figure(paper['figure'], judge.unit)}"
        right.axhline(paper["figure"], color="tab:red", linestyle="--", linewidth=1, label=label)
    left.set(xlabel="epoch", ylabel="training loss", yscale="log")
    right.set(xlabel="epoch", ylabel=group.metric, yscale="linear" if judge.higher_is_better else "log")
    right.legend(frameon=False, fontsize=8)
    seeds = ", ".join(str(result["seed"]) for result in results)
    chart.suptitle(f"{group.recipe.name}, seed{'s' if len(results) > 1 else ''} {seeds}", fontsize=11)
    for path in paths:
        chart.savefig(path, dpi=150)
    plt.close(chart)
    return paths
