"""Compare runs that differ in one value of their recipe: scores and curves against that value. Nothing here trains."""

import statistics
from pathlib import Path
from typing import Any, NamedTuple

from lem.atomic import save_figure
from lem.experiments.record import RunRecord
from lem.extras import pyplot
from lem.training.metrics import METRICS


class Point(NamedTuple):
    """All finished runs with one value of the compared key."""

    value: Any
    scores: list[float]
    """The test score of every seed."""

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.scores)

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds, None for one run."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None


def compare(runs: list[RunRecord], over: str) -> list[Point]:
    """Gather the test scores of finished runs by the value of `over`, such as "model.dt", in ascending order.

    Examples:
        >>> from pathlib import Path
        >>> from lem.experiments.comparison import compare
        >>> from lem.experiments.record import find_runs
        >>> from lem.experiments.runner import load_recipe, run
        >>> for dt in (0.1, 1.0):
        ...     small = {"task.length": 20, "task.steps_per_epoch": 2, "train.epochs": 1, "model.dt": dt}
        ...     folder, _ = run(load_recipe("adding/short", small), seed=0, runs=Path("runs"))
        >>> [point.value for point in compare(find_runs([Path("runs")]), "model.dt")]
        [0.1, 1.0]
    """
    found: dict[Any, list[float]] = {}
    for run in runs:
        if run.result is not None:
            found.setdefault(_value(run, over), []).append(run.result["test"])
    if not found:
        raise ValueError(f"A comparison over {over} needs finished runs; none of the {len(runs)} runs has finished.")
    return [Point(value, found[value]) for value in sorted(found)]


def _value(run: RunRecord, over: str) -> Any:
    section, _, key = over.partition(".")
    table = getattr(run.recipe, section, {})
    if key not in table:
        raise ValueError(f"`over` must be a key the recipe of every run sets; {run.path or run.name} has no {over!r}.")
    value = table[key]
    return value[0] if isinstance(value, list) else value  # of a clipping interval, its lower end


def draw_scores(runs: list[RunRecord], over: str, path: Path) -> Path:
    """Draw the test score, mean and spread over the seeds, against the value of `over`."""
    points, metric = compare(runs, over), _metric(runs)
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(5.6, 3.6), layout="constrained")
    values = [point.value for point in points]
    axes.errorbar(values, [p.mean for p in points], [p.spread or 0.0 for p in points], fmt="o-", capsize=3, color="C0")
    for point in points:
        axes.plot([point.value] * len(point.scores), point.scores, ".", color="C0", alpha=0.4)
    if len(values) > 1 and min(values) > 0 and max(values) / min(values) > 20:
        axes.set_xscale("log")
        axes.set_xticks(values, [f"{value:.4g}" for value in values])  # the decade's own would overlap
        axes.set_xticks([], minor=True)
    axes.set(xlabel=over, ylabel=f"test {metric}", yscale="linear" if METRICS[metric].higher_is_better else "log")
    counts = sorted({len(point.scores) for point in points})
    each = "1 run" if counts == [1] else f"{'-'.join(map(str, counts))} runs"
    axes.set_title(f"{runs[0].recipe.name}, {each} each", fontsize=10)
    save_figure(figure, path)
    plt.close(figure)
    return path


def draw_curves(runs: list[RunRecord], over: str, path: Path) -> Path:
    """Draw the validation score over the training steps, one mean curve for every value of `over`.

    Unfinished runs are drawn as far as they are; a mean is taken where all runs of a value have a record.
    """
    metric = _metric(runs)
    groups: dict[Any, list[dict[int, float]]] = {}
    for run in runs:
        records = {record["updates"]: record["valid"] for record in run.metrics}
        groups.setdefault(_value(run, over), []).append(records)
    plt = pyplot()
    many = len(groups) > 10
    figure, axes = plt.subplots(figsize=(8.0, 4.8) if many else (5.6, 3.6), layout="constrained")
    styles = ("-", "--", ":")  # ten colours each
    for value in sorted(groups):
        curves = groups[value]
        steps = sorted(set.intersection(*(set(curve) for curve in curves)))
        means = [statistics.fmean(curve[step] for curve in curves) for step in steps]
        name = value if isinstance(value, str) else f"{over.partition('.')[2]} = {value:g}"
        style, width = styles[len(axes.lines) // 10 % 3], 2.5 if value == "lem" else 1.5
        (line,) = axes.plot(steps, means, style, lw=width, label=f"{name} ({len(curves)})")
        if len(curves) > 1:
            low, high = ([pick(curve[step] for curve in curves) for step in steps] for pick in (min, max))
            axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, lw=0)
    axes.set(xlabel="training steps", ylabel=f"validation {metric}")
    axes.set_yscale("linear" if METRICS[metric].higher_is_better else "log")
    if many:
        figure.legend(frameon=False, fontsize=7, loc="outside right center")
    else:
        axes.legend(frameon=False, fontsize=8)
    names = {run.recipe.name for run in runs}
    axes.set_title(names.pop() if len(names) == 1 else runs[0].recipe.task["name"], fontsize=10)
    save_figure(figure, path)
    plt.close(figure)
    return path


def _metric(runs: list[RunRecord]) -> str:
    """Return the metric that all finished runs share."""
    metrics = {run.result["metric"] for run in runs if run.result is not None}
    if len(metrics) != 1:
        raise ValueError(
            f"A comparison needs runs with one metric, at least one of them finished; got {sorted(metrics) or 'none'}."
        )
    return str(metrics.pop())
