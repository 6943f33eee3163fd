"""Apply the analysis tools to the model of a recipe or run: certificates, time scales, ranges to search."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lem.analysis import certificate
from lem.analysis.certificate import Advice, Certificate, advise_dt, lem_cells
from lem.analysis.timescales import Scales, clip_ablation, time_scales
from lem.experiments.runner import Recipe, build_model
from lem.nn.cells import LEMCell
from lem.nn.model import SequenceModel
from lem.tasks import Task
from lem.training.data import Split
from lem.training.loop import evaluate
from lem.training.metrics import LOSSES


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
        u, elapsed = u[:steps], batch.timing.get("elapsed")
        elapsed = None if elapsed is None else elapsed[:steps]
    targets = batch.targets[steps - 1] if task.every_step else batch.targets
    return certificate.certify_model(model, u, lambda answer: LOSSES[task.loss](answer, targets), elapsed)


def default_search(recipe: Recipe, task: Task) -> dict[str, dict[str, Any]]:
    """Return what to search if a recipe has no [search]: the learning rate and, for LEM, dt as advised on its data.

    The learning rates are the paper's interval; the advice is measured on the initial weights and a training batch.
    """
    search = {"train.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}}
    model = build_model(recipe, task, seed=0).eval()
    cell = model.recurrent.cells[0]
    if isinstance(cell, LEMCell):
        batch = task.train.batch(0, 8)
        with torch.no_grad():
            u, lengths = model.encode(batch.inputs, batch.lengths)
        steps = len(u) if lengths is None else int(lengths.min())
        advice = advise_dt(steps, cell, u, batch.timing.get("elapsed"))
        search["model.dt"] = {"low": float(f"{advice.low:.2g}"), "high": float(f"{advice.high:.2g}"), "log": True}
    return search


def model_scales(model: SequenceModel, split: Split, batch_size: int, sampling_interval: float | None = None) -> Scales:
    """Count the gates of a model over a split."""

    def batches() -> Iterator[tuple[Tensor | None, ...]]:
        for step in range(split.steps(batch_size)):
            batch = split.batch(step, batch_size)
            yield *model.encode(batch.inputs, batch.lengths), batch.timing.get("elapsed")

    return time_scales(model.recurrent, batches(), sampling_interval)


def clip_scores(model: SequenceModel, task: Task, split: Split, batch_size: int) -> list[tuple[float, float]]:
    """Return (low, metric) of a trained model with its gates kept from falling below low = 1, 1/2, ... 1/128, 0."""

    def score() -> float:
        return evaluate(model, split, metric=task.judge, batch_size=batch_size)

    return clip_ablation(model.recurrent, score)
