"""The only training loop: it receives a module and data, and knows neither tasks nor cells.

Everything that must survive an interruption is in one tree of tensors and plain values (`_Trainer.state`); batches and
learning rates depend on the step number alone, so a run continued from a checkpoint is the run that was interrupted.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lem.data import Batch, Split, mix
from lem.metrics import LOSSES, METRICS, Metric

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
    """Where a run stands; every field is saved with it."""

    epoch: int = 0
    step: int = 0
    updates: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    best: float | None = None
    best_epoch: int = 0
    stopped: str = ""


@dataclass(frozen=True)
class Event:
    """What a run tells while it runs: after every update, and with `record` after every evaluation."""

    progress: Progress
    epochs: int
    steps: int
    loss: float
    record: dict[str, Any] | None = None


def rate(schedule: str, epoch: int, fraction: float, drop_after: int | None, drop_factor: float) -> float:
    """Return the factor on the learning rate in `epoch`, when `fraction` of all updates are done.

    "constant"; "step": `drop_factor` from epoch `drop_after` on, as the paper's; "cosine": down to zero;
    "one-cycle": up over the first 30 %, then down to zero, both along a cosine.
    """
    if schedule == "constant":
        return 1.0
    if schedule == "step":
        return drop_factor if drop_after is not None and epoch >= drop_after else 1.0
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * fraction))
    if schedule == "one-cycle":
        if fraction < 0.3:
            return 0.04 + 0.96 * 0.5 * (1.0 - math.cos(math.pi * fraction / 0.3))
        return 0.5 * (1.0 + math.cos(math.pi * (fraction - 0.3) / 0.7))
    raise ValueError(f"`schedule` of fit must be 'constant', 'step', 'cosine' or 'one-cycle'; got {schedule!r}.")


def evaluate(model: nn.Module, split: Split, *, metric: str, batch_size: int, device: str = "cpu") -> float:
    """Return the metric of a model over a whole split."""
    judge, total, count = METRICS[metric], 0.0, 0
    training = model.training
    model.eval()
    state = None
    with torch.no_grad():
        for step in range(split.steps(batch_size)):
            batch = _to(split.batch(step, batch_size), device)
            prediction, state = model(batch.inputs, state if batch.carry else None, batch.lengths)
            values = judge.each(prediction, batch.targets)
            total += float(values.sum(dtype=torch.float64))
            count += values.numel()
    model.train(training)
    return judge.finish(total / count)


def fit(
    model: nn.Module,
    train: Split,
    valid: Split,
    *,
    loss: str,
    metric: str,
    batch_size: int,
    epochs: int,
    learning_rate: float,
    optimizer: str = "adam",
    weight_decay: float = 0.0,
    schedule: str = "constant",
    drop_after: int | None = None,
    drop_factor: float = 0.1,
    clip_norm: float | None = None,
    patience: int | None = None,
    minutes: float | None = None,
    evaluate_every: int = 1,
    checkpoint_minutes: float = 2.0,
    seed: int = 0,
    device: str = "cpu",
    store: Store | None = None,
    report: Callable[[Event], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Progress:
    """Train, evaluating on `valid` after every `evaluate_every` epochs; keep the best weights and a way back.

    Args:
        model: called as `model(inputs, state, lengths) -> (prediction, state)`.
        train: what to learn from.
        valid: what the best epoch is chosen on.
        loss: a name in `lem.metrics.LOSSES`.
        metric: a name in `lem.metrics.METRICS`.
        batch_size: sequences per update.
        epochs: passes over the training split.
        learning_rate: the optimiser's rate, before the schedule.
        optimizer: "adam", "rmsprop" or "sgd".
        weight_decay: the optimiser's L2 term.
        schedule: see `rate`.
        drop_after: the epoch from which the "step" schedule applies `drop_factor`.
        drop_factor: the factor of the "step" schedule.
        clip_norm: the largest gradient norm; None does not clip.
        patience: stop after this many evaluations without improvement.
        minutes: stop after this much training time; the result is then labelled as shortened.
        evaluate_every: epochs between evaluations.
        checkpoint_minutes: the longest time between checkpoints.
        seed: of the order of the batches and of dropout.
        device: where to train.
        store: where checkpoints go; an existing one is continued.
        report: called after every update and evaluation.
        should_stop: asked after every update; True saves a checkpoint and returns.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"`optimizer` of fit must be one of {', '.join(OPTIMIZERS)}; got {optimizer!r}.")
    model.to(device).train()
    groups = model.param_groups(learning_rate) if hasattr(model, "param_groups") else model.parameters()  # type: ignore[operator]
    steps = train.steps(batch_size)
    opt = OPTIMIZERS[optimizer](groups, lr=learning_rate, weight_decay=weight_decay)  # type: ignore[call-arg]
    rates = [group["lr"] for group in opt.param_groups]
    judge, criterion = METRICS[metric], LOSSES[loss]
    progress, carried = Progress(), None
    torch.manual_seed(mix(seed, 1))

    saved = store.load() if store else None
    if saved is not None:
        progress = Progress(**saved["progress"])
        carried = tuple(saved["carried"]) if saved["carried"] else None
        model.load_state_dict(saved["model"])
        opt.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"])

    def save() -> None:
        if store:
            state = {"progress": asdict(progress), "carried": carried, "model": model.state_dict()}
            store.save({**state, "optimizer": opt.state_dict(), "random": torch.get_rng_state()})

    clock = last_save = time.monotonic()
    while progress.epoch < epochs and not progress.stopped:
        while progress.step < steps:
            done = progress.epoch * steps + progress.step
            factor = rate(schedule, progress.epoch, done / (epochs * steps), drop_after, drop_factor)
            for group, base in zip(opt.param_groups, rates):
                group["lr"] = base * factor
            batch = _to(train.batch(progress.step, batch_size, progress.epoch, seed), device)
            where = f"epoch {progress.epoch + 1}, step {progress.step + 1} (update {progress.updates + 1})"
            if batch.inputs.is_floating_point() and not batch.inputs.isfinite().all():
                raise FloatingPointError(f"The training input must be finite; got NaN or infinity in {where}.")
            prediction, carried = model(batch.inputs, carried if batch.carry else None, batch.lengths)
            carried = tuple(s.detach() for s in carried)
            objective = value = criterion(prediction, batch.targets).mean()
            penalty = model.penalty() if hasattr(model, "penalty") else None  # type: ignore[operator]
            if penalty is not None:
                objective = objective + penalty
            opt.zero_grad(set_to_none=True)
            objective.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), clip_norm if clip_norm is not None else math.inf)
            if not (math.isfinite(value.item()) and math.isfinite(norm.item())):
                raise FloatingPointError(
                    f"The loss and its gradient must be finite; got loss {value.item():g}, gradient norm "
                    f"{norm.item():g} in {where}. The last good checkpoint is kept: lower `learning_rate` or `dt`, "
                    "or set `clip_norm`."
                )
            opt.step()
            if hasattr(model, "after_update"):
                model.after_update()  # type: ignore[operator]

            progress.step += 1
            progress.updates += 1
            progress.loss_sum += value.item()
            now = time.monotonic()
            progress.seconds, clock = progress.seconds + now - clock, now
            if report:
                report(Event(progress, epochs, steps, value.item()))
            if should_stop and should_stop():
                save()
                return progress
            if minutes is not None and progress.seconds > 60.0 * minutes:
                progress.stopped = f"after {minutes:g} minutes"
                break
            if now - last_save > 60.0 * checkpoint_minutes:
                save()
                last_save = now

        trained, carried = progress.loss_sum / max(progress.step, 1), None
        progress.epoch, progress.step, progress.loss_sum = progress.epoch + 1, 0, 0.0
        if progress.epoch % evaluate_every == 0 or progress.epoch == epochs or progress.stopped:
            figure = evaluate(model, valid, metric=metric, batch_size=batch_size, device=device)
            _judge(progress, judge, figure, patience, evaluate_every)
            if progress.best_epoch == progress.epoch and store:
                store.save_best({name: value.detach().cpu() for name, value in model.state_dict().items()})
            now = time.monotonic()
            progress.seconds, clock = progress.seconds + now - clock, now
            record = {
                "epoch": progress.epoch,
                "updates": progress.updates,
                "loss": trained,
                "valid": figure,
                "best": progress.best,
                "learning_rate": opt.param_groups[0]["lr"],
                "seconds": round(progress.seconds, 3),
            }
            if report:
                report(Event(progress, epochs, steps, trained, record))
            save()
            last_save = time.monotonic()
    return progress


def _judge(progress: Progress, metric: Metric, figure: float, patience: int | None, evaluate_every: int) -> None:
    if metric.better(figure, progress.best):
        progress.best, progress.best_epoch = figure, progress.epoch
    elif patience is not None and progress.epoch - progress.best_epoch >= patience * evaluate_every:
        progress.stopped = progress.stopped or f"no improvement in {patience} evaluations"


def _to(batch: Batch, device: str) -> Batch:
    if device == "cpu":
        return batch
    return batch._replace(
        inputs=batch.inputs.to(device),
        targets=batch.targets.to(device),
        lengths=None if batch.lengths is None else batch.lengths.to(device),
    )
