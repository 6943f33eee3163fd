"""Tables and learning curves of finished runs. Reports read records; they never train."""

import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lem.atomic import save_figure
from lem.experiments.recipe import Difference, Recipe, differences, load_recipe, standard_recipe, toml_value
from lem.experiments.record import RunRecord
from lem.extras import pyplot
from lem.readable import format_duration, format_score
from lem.training.metrics import METRICS


@dataclass(frozen=True)
class Group:
    """Finished runs of one recipe, which differ in their seeds only."""

    recipe: Recipe
    runs: list[RunRecord]

    @property
    def results(self) -> list[dict[str, Any]]:
        """The result of each run."""
        return [run.outcome for run in self.runs]

    @property
    def metric(self) -> str:
        """The task's metric."""
        return str(self.results[0]["metric"])

    @property
    def scores(self) -> list[float]:
        """The test score of each seed."""
        return [result["test"] for result in self.results]

    @cached_property
    def standard(self) -> Recipe | None:
        """The library's recipe of the same name, for the same cell, or None."""
        return standard_recipe(self.recipe)

    @cached_property
    def changes(self) -> list[Difference]:
        """The values to change in the library's recipe of the same name to repeat these runs."""
        if self.standard is None:
            return []
        first, cell = load_recipe(self.recipe.name).model["cell"], self.standard.model["cell"]
        chosen = [] if cell == first else [Difference("model", "cell", first, cell)]
        return chosen + differences(self.standard, self.recipe)

    def title(self, joint: str = " with ") -> str:
        """Write the recipe's name and the values that were changed."""
        changes = ", ".join(f"{change.place} {_assigned(change.new)}" for change in self.changes)
        return f"{self.recipe.name}{joint}{changes}" if changes else self.recipe.name

    @property
    def shortfall(self) -> str:
        """How training or data fell short of the recipe's, or ""; a reader must see it next to the score."""
        short = [result for result in self.results if result["shortened"]]
        planned = self.standard.train["epochs"] if self.standard else 0
        done = max(result["epochs"] for result in self.results)
        reasons = []
        if short:
            reasons.append(f"{done} of {short[0]['epochs_planned']} epochs: {short[0]['shortened']}")
        elif done < planned:
            reasons.append(f"{done} of {planned} epochs")
        if any(result["data"].get("subset_of") for result in self.results):
            reasons.append("a subset of the data")
        if any(result["data"].get("rebuilt") for result in self.results):
            reasons.append("rebuilt data")
        return "; ".join(reasons)

    def score(self) -> str:
        """Write the mean test score, with the spread over the seeds and whatever was cut short."""
        unit = METRICS[self.metric].unit
        text = format_score(statistics.fmean(self.scores))
        if len(self.scores) > 1:
            text += f" ± {statistics.stdev(self.scores):.2g}"
        text = f"{text} {unit}".rstrip()
        return f"{text} ({self.shortfall})" if self.shortfall else text

    def seconds(self) -> float:
        """Return the mean training time of a run."""
        return statistics.fmean(result["seconds"] for result in self.results)


def _assigned(value: Any) -> str:
    return "not set" if value is None else f"= {_written(value)}"


def _written(value: Any) -> str:
    """Write a value as TOML, a long number with four digits."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    text = toml_value(value)
    return f"{value:.4g}" if isinstance(value, float) and len(text.partition(".")[2]) > 4 else text


def group_runs(runs: list[RunRecord]) -> list[Group]:
    """Put the runs of one recipe together, in the order of names and cells."""
    groups: dict[tuple[str, str, str], list[RunRecord]] = {}
    for run in runs:
        groups.setdefault((run.recipe.name, run.recipe.model["cell"], run.recipe.digest), []).append(run)
    ordered = [sorted(groups[key], key=lambda run: run.seed) for key in sorted(groups)]
    return [Group(runs[0].recipe, runs) for runs in ordered]


def result_rows(run: RunRecord) -> list[tuple[str, str]]:
    """Return a run's result as (label, value) rows, next to the paper's score."""
    result, paper = run.outcome, run.recipe.paper
    unit = METRICS[result["metric"]].unit
    shortened = f", shortened: {result['shortened']}" if result["shortened"] else ""
    return [
        ("run", str(run.path or run.name)),
        (f"test {result['metric']}", format_score(result["test"], unit)),
        ("paper", format_score(paper["score"], unit) if "score" in paper else "missing"),
        ("valid", f"{format_score(result['valid'], unit)} at epoch {result['best_epoch']} (the best, chosen)"),
        ("epochs", f"{result['epochs']} of {result['epochs_planned']}{shortened}"),
        ("parameters", f"{result['parameters']['cell_and_readout']:,} with the readout"),
        ("time", format_duration(result["seconds"])),
    ]


def summary_rows(groups: list[Group]) -> list[dict[str, str]]:
    """Return the rows of a table with one row per group."""
    return [
        {
            "recipe": group.title(" (") + (")" if group.changes else ""),
            "metric": group.metric,
            "test": group.score(),
            "seeds": str(len(group.runs)),
            "paper": format_score(group.recipe.paper["score"]) if "score" in group.recipe.paper else "missing",
            "units": str(group.recipe.model["hidden_size"]),
            "parameters": f"{group.results[0]['parameters']['cell_and_readout']:,}",
            "time a run": format_duration(group.seconds()),
            "hardware": hardware(group.runs[0]),
        }
        for group in groups
    ]


def hardware(run: RunRecord) -> str:
    """Write what a run ran on."""
    if not run.environment:
        return "missing"
    cpu, threads, cores, torch = (run.environment.get(key, "?") for key in ("cpu", "threads", "cores", "torch"))
    return f"{cpu}, {threads} of {cores} cores, torch {torch}"


def run_notes(result: dict[str, Any]) -> list[str]:
    """Return the notes on one run in a report: sentences about its data, and the notes kept while it trained."""
    return [*data_sentences(result["data"]), *result["notes"]]


def data_sentences(facts: dict[str, Any]) -> list[str]:
    """Write the facts about a task's data (see `lem.tasks.DataFacts`) as sentences."""
    sentences = []
    if published := facts.get("subset_of"):
        sentences.append(f"a subset: {_counts(facts['sizes'])} clips of the published {_counts(published)}")
    if "cut_silence" in facts:
        sentences.append(f"silence cut from the noise recordings: {_counts(facts['cut_silence'])} clips")
    if "source" in facts:
        source = "rebuilt from the recordings" if facts["rebuilt"] else "the archive's BIDMC32HR"
        sentences.append(f"data: {source}, {facts['samples']} windows")
    if "split" in facts:
        split = f"split: {facts['split']}"
        if "fold" in facts:
            split += f", fold {facts['fold'] + 1} of {facts['folds']}"
        if "shared_recordings" in facts:
            shared = facts["shared_recordings"]
            split += "; training and test share recordings" if shared else "; no recording is in two splits"
        sentences.append(split)
    if "target_mean" in facts:
        mean, scale = facts["target_mean"], facts["target_scale"]
        sentences.append(f"targets are standardised: beats per minute = {mean:.4f} + {scale:.4f} x answer")
    if "distinct" in facts:
        sentences.append(f"{facts['samples']} series, {facts['distinct']} different")
    if "test_seen" in facts:
        seen, of = facts["test_seen"], facts["test_samples"]
        sentences.append(f"{seen} of {of} test series are also in training or validation")
    if "checksum" in facts:
        sentences.append(f"checksum of the source files {facts['checksum']} (none is published)")
    if "noise" in facts:
        shared = facts["noise"] == "shared"
        sentences.append("one noise block is shared by all samples" if shared else "fresh noise for every sample")
    return sentences


def _counts(numbers: list[int]) -> str:
    return " / ".join(map(str, numbers))


def draw_curves(group: Group, paths: list[Path]) -> list[Path]:
    """Draw training loss and validation score over the epochs: the mean over the seeds, and their range as a band."""
    plt = pyplot()
    paper, metric, results = group.recipe.paper, METRICS[group.metric], group.results
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for axis, key, color in ((left, "loss", "0.25"), (right, "valid", "tab:blue")):
        series: dict[int, list[float]] = {}
        for run in group.runs:
            for record in run.metrics:
                series.setdefault(record["epoch"], []).append(record[key])
        axis.xaxis.get_major_locator().set_params(integer=True)
        epochs = sorted(series)
        mean = [statistics.fmean(series[epoch]) for epoch in epochs]
        label = "validation" if len(group.runs) == 1 else f"validation, {len(group.runs)} seeds"
        axis.plot(epochs, mean, ".-" if len(epochs) < 20 else "-", color=color, linewidth=1, label=label)
        if len(group.runs) > 1:
            low, high = [min(series[epoch]) for epoch in epochs], [max(series[epoch]) for epoch in epochs]
            axis.fill_between(epochs, low, high, color=color, alpha=0.2, linewidth=0)
    for number, result in enumerate(results):
        legend = {"label": f"test {group.score()}"} if number == 0 else {}
        right.plot(result["best_epoch"], result["test"], "o", color="tab:orange", markersize=5, **legend)
    if "score" in paper:
        printed = f"paper {format_score(paper['score'], metric.unit)}"
        right.axhline(paper["score"], color="tab:red", linestyle="--", linewidth=1, label=printed)
    left.set(xlabel="epoch", ylabel="training loss", yscale="log")
    right.set(xlabel="epoch", ylabel=group.metric, yscale="linear" if metric.higher_is_better else "log")
    right.legend(frameon=False, fontsize=8)
    seeds = ", ".join(str(run.seed) for run in group.runs)
    figure.suptitle(f"{group.recipe.name}, seed{'s' if len(results) > 1 else ''} {seeds}", fontsize=11)
    for path in paths:
        save_figure(figure, path)
    plt.close(figure)
    return paths
