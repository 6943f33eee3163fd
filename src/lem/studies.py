"""The paper's studies of LEM, from recipes and run folders: certificates, time scales, and sweeps over one value.

Nothing here trains. A study of the appendix is a set of run folders that differ in one value of the recipe (the dt
sensitivity, the clipped gates, dt = 1/sqrt(N)); `sweep` and `curves` gather them, `draw_*` make the figures.
"""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lem.analysis.certificate import Advice, Certificate, advise_dt, certify_layers, lem_cells
from lem.analysis.timescales import Scales, clip_ablation, time_scales
from lem.cells import LEMCell
from lem.data import Split
from lem.experiment import Recipe, RunFolder, build_model
from lem.extras import pyplot
from lem.metrics import LOSSES, METRICS
from lem.model import SequenceModel
from lem.tasks import Task
from lem.train import evaluate


def certify_model(model: SequenceModel, task: Task, rows: int = 4) -> tuple[list[Certificate], Advice]:
    """Certify every LEM cell of a model on `rows` validation sequences, with the gradient of the task's own loss.

    Rows of unequal length are cut to the shortest; a loss at every step counts at the last one. The advice is for the
    first layer.
    """
    lem_cells(model.recurrent)
    batch = task.valid.batch(0, rows)
    model.eval()
    with torch.no_grad():
        u, lengths = model.encode(batch.inputs, batch.lengths)
        steps = len(u) if lengths is None else int(lengths.min())
        u = u[:steps]
        final = model.recurrent(u)[1][0]
    last = torch.cat(final[-2 if model.recurrent.bidirectional else -1 :].unbind(0), dim=-1).requires_grad_()
    targets = batch.targets[steps - 1] if task.every_step else batch.targets
    LOSSES[task.loss](model.readout(last), targets).sum().backward()
    certificates = certify_layers(model.recurrent, u, last.grad)
    return certificates, advise_dt(steps, lem_cells(model.recurrent)[0], u)


def default_search(recipe: Recipe, task: Task) -> dict[str, dict[str, Any]]:
    """Return what to search where a recipe has no [search]: the learning rate and, for LEM, dt as advised on its data.

    The learning rates are the paper's interval; the advice is measured on the initial weights and a training batch.
    """
    search = {"train.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}}
    model = build_model(recipe, task, seed=0).eval()
    cell = model.recurrent.cells[0]
    if isinstance(cell, LEMCell):
        batch = task.train.batch(0, 8)
        with torch.no_grad():
            u, lengths = model.encode(batch.inputs, batch.lengths)
        advice = advise_dt(len(u) if lengths is None else int(lengths.min()), cell, u)
        search["model.dt"] = {"low": float(f"{advice.low:.2g}"), "high": float(f"{advice.high:.2g}"), "log": True}
    return search


def model_scales(model: SequenceModel, split: Split, batch_size: int, sampling_interval: float | None = None) -> Scales:
    """Count the gates of a model over a split."""

    def batches() -> Iterator[tuple[Tensor, Tensor | None]]:
        for step in range(split.steps(batch_size)):
            batch = split.batch(step, batch_size)
            yield model.encode(batch.inputs, batch.lengths)

    return time_scales(model.recurrent, batches(), sampling_interval)


def clip_scores(model: SequenceModel, task: Task, split: Split, batch_size: int) -> list[tuple[float, float]]:
    """Return (low, metric) of a trained model with its gates kept from falling below low = 1, 1/2, ... 1/128, 0."""

    def score() -> float:
        return evaluate(model, split, metric=task.judge, batch_size=batch_size)

    return clip_ablation(model.recurrent, score)


# --- sweeps over run folders -----------------------------------------------------------------------------------------


class Point(NamedTuple):
    """All finished runs with one value of the swept key."""

    value: Any
    scores: list[float]
    """The test metric of every seed."""

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.scores)

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds, None for one run."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None


def sweep(folders: list[RunFolder], over: str) -> list[Point]:
    """Gather the test metrics of finished runs by the value of `over`, such as "model.dt", in ascending order."""
    found: dict[Any, list[float]] = {}
    for folder in folders:
        if folder.finished:
            found.setdefault(_value(folder, over), []).append(folder.result()["test"])
    if not found:
        raise ValueError(
            f"`folders` of a study over {over} must hold finished runs; got {len(folders)}, none finished."
        )
    return [Point(value, found[value]) for value in sorted(found)]


def _value(folder: RunFolder, over: str) -> Any:
    section, _, key = over.partition(".")
    table = getattr(folder.recipe(), section, {})
    if key not in table:
        raise ValueError(f"`over` must be a key the recipe of every run sets; got {over!r}, not in {folder.path}.")
    value = table[key]
    return value[0] if isinstance(value, list) else value  # of a clipping interval, its lower end


def draw_sweep(folders: list[RunFolder], over: str, path: Path) -> Path:
    """Draw the test metric, mean and spread over the seeds, against the value of `over`."""
    points, metric = sweep(folders, over), _metric(folders)
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
    runs = "1 run" if counts == [1] else f"{'-'.join(map(str, counts))} runs"
    axes.set_title(f"{folders[0].recipe().name}, {runs} each", fontsize=10)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def draw_curves(folders: list[RunFolder], over: str, path: Path) -> Path:
    """Draw the validation metric over the training steps, one mean curve for every value of `over`.

    Runs still going are drawn as far as they are; a mean is taken where all runs of a value have a record.
    """
    metric = _metric(folders)
    groups: dict[Any, list[dict[int, float]]] = {}
    for folder in folders:
        records = {record["updates"]: record["valid"] for record in folder.metrics()}
        groups.setdefault(_value(folder, over), []).append(records)
    plt = pyplot()
    many = len(groups) > 10
    figure, axes = plt.subplots(figsize=(8.0, 4.8) if many else (5.6, 3.6), layout="constrained")
    styles = ("-", "--", ":")  # ten colours each
    for value in sorted(groups):
        runs = groups[value]
        steps = sorted(set.intersection(*(set(run) for run in runs)))
        means = [statistics.fmean(run[step] for run in runs) for step in steps]
        label = value if isinstance(value, str) else f"{over.partition('.')[2]} = {value:g}"
        width = 2.5 if value == "lem" else 1.5
        (line,) = axes.plot(steps, means, styles[len(axes.lines) // 10 % 3], lw=width, label=f"{label} ({len(runs)})")
        if len(runs) > 1:
            low, high = ([pick(run[step] for run in runs) for step in steps] for pick in (min, max))
            axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, lw=0)
    axes.set(xlabel="training steps", ylabel=f"validation {metric}")
    axes.set_yscale("linear" if METRICS[metric].higher_is_better else "log")
    if many:
        figure.legend(frameon=False, fontsize=7, loc="outside right center")
    else:
        axes.legend(frameon=False, fontsize=8)
    names = {folder.recipe().name for folder in folders}
    axes.set_title(names.pop() if len(names) == 1 else folders[0].recipe().task["name"], fontsize=10)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def _metric(folders: list[RunFolder]) -> str:
    """Return the metric all finished runs share; an unfinished study is named after its task's folder."""
    metrics = {folder.result()["metric"] for folder in folders if folder.finished}
    if len(metrics) != 1:
        raise ValueError(
            f"`folders` of a study must share one metric, of at least one finished run; got {metrics or '-'}."
        )
    return str(metrics.pop())
