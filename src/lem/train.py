"""The only training loop: it receives a module and data, and knows neither tasks nor cells.

Batches, learning rates and dropout masks depend on the seed and the number of the update alone, and everything else
that must survive an interruption is in one tree of tensors and plain values (`save` in `fit`): a run continued from a
checkpoint is the run that was interrupted.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from numbers import Integral, Real
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lem.averaging import Average
from lem.data import Batch, Split, at_steps, even_steps, mix, random_steps, rows
from lem.metrics import LOSSES, METRICS, Loss, Metric
from lem.parallel import ALONE, Processes
from lem.schedule import rate

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}


class Store(Protocol):
    """Where a run keeps its checkpoints."""

    def save(self, state: dict[str, Any]) -> None:
        """Keep the state of the run as the newest checkpoint."""
        ...

    def save_best(self, weights: dict[str, Tensor]) -> None:
        """Keep the weights of the best validation epoch."""
        ...

    def load(self) -> dict[str, Any] | None:
        """Return the newest readable checkpoint, or None."""
        ...


@dataclass
class Progress:
    """Where a run stands; every field is saved with it.

    Attributes:
        epoch: the epochs done.
        step: the batches done in this epoch.
        updates: the optimiser steps done in all.
        seconds: the time spent, over all sittings.
        loss_sum: the sum of the losses of this epoch.
        evaluations: how often the validation split was evaluated.
        stale: the evaluations since the best one.
        best: the best validation figure, None before the first.
        best_epoch: after which epoch it was found.
        stopped: why training ended early, or "".
        history: the record of every evaluation.
    """

    epoch: int = 0
    step: int = 0
    updates: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    evaluations: int = 0
    stale: int = 0
    best: float | None = None
    best_epoch: int = 0
    stopped: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Event:
    """What a run tells while it runs: after every update, and with `record` after every evaluation."""

    progress: Progress
    epochs: int
    steps: int
    loss: float
    record: dict[str, Any] | None = None


def evaluate(
    model: nn.Module,
    split: Split,
    *,
    metric: str | Metric,
    batch_size: int,
    device: str = "cpu",
    subsample: int | None = None,
    processes: Processes = ALONE,
) -> float:
    """Return the metric of a model over a whole split; with `subsample`, on that many evenly spaced time steps."""
    if isinstance(metric, str):
        _one_of("metric", metric, METRICS, "evaluate")
    judge, total, count = METRICS[metric] if isinstance(metric, str) else metric, 0.0, 0
    training, state = model.training, None
    model.eval()
    with torch.no_grad():
        for step in range(split.steps(batch_size)):
            batch = rows(split.batch(step, batch_size), processes.rank, processes.size).to(device)
            if batch.inputs.shape[1] == 0:
                continue
            if subsample is not None:
                batch = at_steps(batch, even_steps(len(batch.inputs), subsample))
            prediction, state = model(batch.inputs, state if batch.carry else None, batch.lengths)
            values = judge.each(*_answered(prediction, batch))
            total += float(values.sum(dtype=torch.float64))
            count += values.numel()
    model.train(training)
    total, answers = processes.total(total, count)
    if not answers:
        raise ValueError("`split` of evaluate must have at least one answer; it has none.")
    return judge.finish(total / answers)


def fit(
    model: nn.Module,
    train: Split,
    valid: Split,
    *,
    loss: str | Loss,
    metric: str | Metric,
    batch_size: int,
    epochs: int,
    learning_rate: float,
    optimizer: str = "adam",
    weight_decay: float = 0.0,
    l2: float = 0.0,
    loss_over_time: str = "mean",
    schedule: str = "constant",
    drop_after: int | None = None,
    drop_factor: float = 0.1,
    clip_norm: float | None = None,
    truncate: int | None = None,
    subsample: int | None = None,
    average_after: int | None = None,
    average_from: int | None = None,
    patience: int | None = None,
    minutes: float | None = None,
    evaluate_every: int = 1,
    accumulate: int = 1,
    autocast: str | None = None,
    checkpoint_minutes: float = 2.0,
    seed: int = 0,
    device: str = "cpu",
    store: Store | None = None,
    report: Callable[[Event], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    processes: Processes = ALONE,
) -> Progress:
    """Train, evaluating on `valid` after every `evaluate_every` epochs; the model ends with the best weights seen.

    Args:
        model: called as `model(inputs, state, lengths) -> (prediction, state)`.
        train: what to learn from. Batches with `carry` start from the state in which the previous one ended.
        valid: what the best epoch is chosen on.
        loss: a name in `lem.metrics.LOSSES`, or such a function.
        metric: a name in `lem.metrics.METRICS`, or such a metric.
        batch_size: sequences per update.
        epochs: passes over the training split.
        learning_rate: the optimiser's rate, before the schedule.
        optimizer: "adam", "rmsprop" or "sgd".
        weight_decay: the optimiser's own L2 term, which clipping does not see.
        l2: adds 0.5 * l2 * |parameters|^2 to what is minimised, before clipping.
        loss_over_time: "mean" over all answers; "sum" over the steps and mean over the batch, as language models are
            trained, which is what `clip_norm` and `l2` then relate to.
        schedule: see `lem.schedule.rate`.
        drop_after: the epoch from which the "step" schedule applies `drop_factor`.
        drop_factor: the factor of the "step" schedule.
        clip_norm: the largest gradient norm; None does not clip.
        truncate: back-propagate through the last so many steps only; those before run without gradient.
        subsample: train on so many time steps, drawn for every batch; evaluate on as many, evenly spaced.
        average_after: evaluate the mean of the weights of all updates from the evaluation on that is the so many-th
            without improvement.
        average_from: the same from this evaluation on at the latest; 0 for all updates.
        patience: stop after this many evaluations without improvement.
        minutes: stop after this much training time; the result is then labelled as shortened.
        evaluate_every: epochs between evaluations.
        accumulate: compute each batch in so many parts, one after the other, to save memory.
        autocast: "bfloat16" computes what may be in that type; None everything in the model's own.
        checkpoint_minutes: the longest time between checkpoints.
        seed: of the order of the batches and of dropout.
        device: where to train.
        store: where checkpoints go; an existing one is continued. None keeps everything in memory.
        report: called after every update and evaluation.
        should_stop: asked after every update; True saves a checkpoint and returns.
        processes: those that share every batch, see `lem.parallel`.
    """
    least = {"batch_size": batch_size, "epochs": epochs, "evaluate_every": evaluate_every, "accumulate": accumulate}
    for name, number in {**least, "truncate": truncate, "subsample": subsample, "patience": patience}.items():
        if number is not None and not (isinstance(number, Integral) and number >= 1):
            raise ValueError(f"`{name}` of fit must be a positive integer; got {number!r}.")
    positive = {"clip_norm": clip_norm, "minutes": minutes, "drop_factor": drop_factor}
    for name, value in positive.items():
        if value is not None and not (isinstance(value, Real) and value > 0.0):
            raise ValueError(f"`{name}` of fit must be a positive number; got {value!r}.")
    for name, value in {"learning_rate": learning_rate, "weight_decay": weight_decay, "l2": l2}.items():
        if not (isinstance(value, Real) and value >= 0.0):
            raise ValueError(f"`{name}` of fit must be a number of at least 0; got {value!r}.")
    check_device(device, "fit")
    _one_of("optimizer", optimizer, OPTIMIZERS)
    if isinstance(loss, str):
        _one_of("loss", loss, LOSSES)
    if isinstance(metric, str):
        _one_of("metric", metric, METRICS)
    _one_of("loss_over_time", loss_over_time, ("mean", "sum"))
    _one_of("autocast", autocast, (None, "bfloat16"))
    model.to(device).train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = model.param_groups(learning_rate) if hasattr(model, "param_groups") else parameters  # type: ignore[operator]
    opt = OPTIMIZERS[optimizer](groups, lr=learning_rate, weight_decay=weight_decay)  # type: ignore[call-arg]
    rates = [group["lr"] for group in opt.param_groups]
    judge = METRICS[metric] if isinstance(metric, str) else metric
    criterion = LOSSES[loss] if isinstance(loss, str) else loss
    steps = train.steps(batch_size)
    if steps < 1:
        raise ValueError("`train` of fit must have at least one batch an epoch; it has none.")
    progress, average = Progress(), Average()
    best: dict[str, Tensor] = {}
    carried: tuple[Tensor, ...] | None = None

    saved = processes.first(store.load() if store and processes.leads else None)
    if saved is not None:
        try:
            progress, best = Progress(**saved["progress"]), saved["best"]
            carried = _state_rows(saved["carried"], processes.rank, processes.size)
            model.load_state_dict(saved["model"])
            opt.load_state_dict(saved["optimizer"])
            average.load(saved["average"], device)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"The checkpoint must be one of this model and optimiser; got: {error}.") from error

    def save() -> None:
        state = processes.all_rows(carried)  # asks all processes, so all must come here
        if store and processes.leads:
            tree = {"progress": asdict(progress), "carried": state, "model": model.state_dict(), "best": best}
            store.save({**tree, "optimizer": opt.state_dict(), "average": average.state()})

    def learn(batch: Batch, state: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Add up the gradient of the batch; return its loss and the state it ends in, both of this process's rows."""
        answers = _answers(batch, loss_over_time)
        mine, value, ends = rows(batch, processes.rank, processes.size), torch.zeros((), device=device), []
        for part in range(accumulate):
            piece, start = rows(mine, part, accumulate).to(device), _state_rows(state, part, accumulate)
            if piece.inputs.shape[1] == 0:
                continue
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=autocast is not None):
                if truncate is not None and len(piece.inputs) > truncate:
                    early = torch.arange(len(piece.inputs) - truncate)
                    with torch.no_grad():
                        start = model(at_steps(piece, early).inputs, start, None)[1]
                    piece = at_steps(piece, torch.arange(len(early), len(piece.inputs)))
                prediction, end = model(piece.inputs, start, piece.lengths)
            prediction = prediction if autocast is None else prediction.float()
            objective = criterion(*_answered(prediction, piece)).sum() / answers
            value += objective.detach()
            if part == 0 and processes.leads and (penalty := _call(model, "penalty")) is not None:
                objective = objective + penalty
            objective.backward()
            ends.append(tuple(field.detach() for field in end))
        return value, tuple(torch.cat(fields, dim=1) for fields in zip(*ends)) or None

    clock = last_save = time.monotonic()
    while progress.epoch < epochs and not progress.stopped:
        while progress.step < steps:
            done = progress.epoch * steps + progress.step
            factor = rate(schedule, progress.epoch, done / (epochs * steps), drop_after, drop_factor)
            for group, base in zip(opt.param_groups, rates):
                group["lr"] = base * factor
            torch.manual_seed(mix(seed, 1, progress.updates, processes.rank))
            batch = train.batch(progress.step, batch_size, progress.epoch, seed)
            where = f"epoch {progress.epoch + 1}, step {progress.step + 1} (update {progress.updates + 1})"
            if not _finite(batch):
                raise FloatingPointError(f"The training input must be finite; got NaN or infinity in {where}.")
            if subsample is not None:
                chosen = random_steps(len(batch.inputs), subsample, mix(seed, 2, progress.updates))
                batch = at_steps(batch, chosen)

            opt.zero_grad(set_to_none=True)
            total, carried = learn(batch, carried if batch.carry else None)
            gradients = [_gradient(parameter) for parameter in parameters]
            processes.add([total, *gradients])
            if l2:
                for parameter, gradient in zip(parameters, gradients):
                    gradient.add_(parameter.detach(), alpha=l2)
            norm, value = nn.utils.get_total_norm(gradients), total.item()
            if not (math.isfinite(value) and math.isfinite(norm.item())):
                remedy = "set `clip_norm`" if clip_norm is None else "go back through fewer steps with `truncate`"
                raise FloatingPointError(
                    f"The loss and its gradient must be finite; got loss {value:g}, gradient norm {norm.item():g} in "
                    f"{where}. The last good checkpoint is kept: lower `learning_rate` or `dt`, or {remedy}."
                )
            if clip_norm is not None:
                nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm)
            opt.step()
            _call(model, "after_update")
            if _averaging(progress, average_after, average_from, average):
                average.add(model)

            progress.step += 1
            progress.updates += 1
            progress.loss_sum += value
            now = time.monotonic()
            progress.seconds, clock = progress.seconds + now - clock, now
            if report and processes.leads:
                report(Event(progress, epochs, steps, value))
            late = minutes is not None and progress.seconds > 60.0 * minutes
            due = now - last_save > 60.0 * checkpoint_minutes
            halt, late, due = map(bool, processes.total(bool(should_stop and should_stop()), late, due))
            if halt or due:
                save()
                last_save = now
            if halt:
                return progress
            if late:
                progress.stopped = f"after {minutes:g} minutes"
                break

        trained = progress.loss_sum / max(progress.step, 1)
        progress.epoch, progress.step, progress.loss_sum = progress.epoch + 1, 0, 0.0
        if progress.epoch % evaluate_every == 0 or progress.epoch == epochs or progress.stopped:
            with average.applied(model):
                figure = evaluate(
                    model,
                    valid,
                    metric=metric,
                    batch_size=batch_size,
                    device=device,
                    subsample=subsample,
                    processes=processes,
                )
                progress.evaluations, progress.stale = progress.evaluations + 1, progress.stale + 1
                if judge.better(figure, progress.best):
                    progress.best, progress.best_epoch, progress.stale = figure, progress.epoch, 0
                    best = {name: weight.detach().cpu().clone() for name, weight in model.state_dict().items()}
                    if store and processes.leads:
                        store.save_best(best)
            if patience is not None and progress.stale >= patience and progress.epoch < epochs:
                progress.stopped = progress.stopped or f"no improvement in {patience} evaluations"
            now = time.monotonic()
            progress.seconds, clock = progress.seconds + now - clock, now
            record = {
                "epoch": progress.epoch,
                "updates": progress.updates,
                "loss": trained,
                "valid": figure,
                "best": progress.best,
                "learning_rate": opt.param_groups[0]["lr"],
                "averaged": average.count,
                "seconds": round(progress.seconds, 3),
            }
            progress.history.append(record)
            if report and processes.leads:
                report(Event(progress, epochs, steps, trained, record))
            save()
            last_save = time.monotonic()
    if progress.best is None:
        raise FloatingPointError(
            f"The validation {metric} must be a number at least once; got {progress.history[-1]['valid']} in all "
            f"{progress.evaluations} evaluations."
        )
    model.load_state_dict(best)
    return progress


def _one_of(name: str, value: object, known: Any, whose: str = "fit") -> None:
    if value not in known:
        raise ValueError(f"`{name}` of {whose} must be one of {', '.join(map(str, known))}; got {value!r}.")


def check_device(device: str, whose: str) -> None:
    """Refuse a device that torch does not have on this machine."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:  # each of them, by the kind of device
        why = str(error).partition("\n")[0].removesuffix(".")
        raise ValueError(f"`device` of {whose} must be one that torch has here; got {device!r}: {why}.") from error


def _call(model: nn.Module, hook: str) -> Any:
    """Call one of the optional hooks of a model, see `lem.cells.Cell`."""
    return getattr(model, hook)() if hasattr(model, hook) else None


def _averaging(progress: Progress, after: int | None, at_latest: int | None, average: Average) -> bool:
    """Return whether the weights of this update belong to the average; once begun it goes on."""
    stale = after is not None and progress.stale >= after
    return average.count > 0 or stale or (at_latest is not None and progress.evaluations >= at_latest)


def _answers(batch: Batch, over_time: str) -> int:
    """Return what the sum of a batch's losses is divided by: its answers, or only its rows."""
    if over_time == "mean" and batch.lengths is not None and batch.every_step:
        return int(batch.lengths.sum()) * math.prod(batch.targets.shape[2:])
    if over_time == "mean":
        return batch.targets.numel()
    if not batch.every_step:
        raise ValueError("`loss_over_time` of fit must be 'mean' where a sequence has one answer; got 'sum'.")
    return math.prod(batch.targets.shape[1:])


def _answered(prediction: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return prediction and target of all answers but those of padding."""
    shape, axis = tuple(batch.targets.shape), 1 if batch.every_step else 0
    if len(shape) <= axis or shape[axis] != batch.inputs.shape[1]:
        must = "(time, batch, ...)" if batch.every_step else "(batch, ...), or (time, batch, ...) with `every_step`"
        raise ValueError(
            f"`targets` of a Batch must be {must}; got {shape} beside inputs of shape {tuple(batch.inputs.shape)}."
        )
    if batch.lengths is None or not batch.every_step:
        return prediction, batch.targets
    inside = _inside(batch, batch.lengths)
    return prediction[inside], batch.targets[inside]


def _inside(batch: Batch, lengths: Tensor) -> Tensor:
    """Return which steps (time, batch) are no padding."""
    return torch.arange(len(batch.inputs), device=lengths.device)[:, None] < lengths


def _finite(batch: Batch) -> bool:
    """Return whether all input is a number; what stands in the padding does not matter."""
    if not batch.inputs.is_floating_point():
        return True
    inputs = batch.inputs if batch.lengths is None else batch.inputs[_inside(batch, batch.lengths)]
    # A finite sum has finite terms only, and costs a small part of looking at each.
    return bool(inputs.sum().isfinite()) or bool(inputs.isfinite().all())


def _state_rows(state: Any, part: int, parts: int) -> tuple[Tensor, ...] | None:
    """Return the rows of a recurrent state (layers, batch, units) that fall to a part of the batch."""
    if state is None or parts == 1:
        return None if state is None else tuple(state)
    count = state[0].shape[1]
    return tuple(field[:, part * count // parts : (part + 1) * count // parts] for field in state)


def _gradient(parameter: Tensor) -> Tensor:
    """Return a parameter's gradient; zeros, kept as its gradient, where this process had nothing to compute."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
