"""The only training loop: it receives a module and data, and does not depend on tasks or cells.

One update is in `lem.training.update`; what changes while a run goes on, and how it is saved and restored, is in
`lem.training.run`; the options are checked in `lem.training.options`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lem.training.data import Split, at_steps, even_steps, rows
from lem.training.distributed import ALONE, Processes
from lem.training.metrics import METRICS, Loss, Metric
from lem.training.options import Options, check_device
from lem.training.run import Progress, Run
from lem.training.store import Memory, Store
from lem.training.update import answered, update
from lem.training.watch import read
from lem.wording import check_choice

__all__ = ["Event", "Memory", "Progress", "Store", "check_device", "evaluate", "fit"]


@dataclass(frozen=True)
class Event:
    """What a run tells while it runs: after every update, and with `record` after every evaluation.

    Examples:
        >>> import torch
        >>> from lem.nn import SequenceModel
        >>> from lem.training.data import ArraySplit
        >>> from lem.training.loop import fit
        >>> split = ArraySplit(torch.randn(40, 30, 3), torch.arange(40) % 2)
        >>> model = SequenceModel("lem", input_size=3, hidden_size=8, output_size=2)
        >>> def report(event):
        ...     if event.record is not None:
        ...         print(event.progress.epoch, "of", event.epochs)
        >>> goal = {"loss": "cross_entropy", "metric": "accuracy", "report": report}
        >>> _ = fit(model, split, split, **goal, batch_size=10, epochs=2, learning_rate=0.01)
        1 of 2
        2 of 2
    """

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
    """Return the metric of a model over a whole split; with `subsample`, on that many evenly spaced time steps.

    Examples:
        >>> import torch
        >>> from lem.nn import SequenceModel
        >>> from lem.training.data import ArraySplit
        >>> from lem.training.loop import evaluate
        >>> split = ArraySplit(torch.randn(40, 30, 3), torch.arange(40) % 2)
        >>> model = SequenceModel("lem", input_size=3, hidden_size=8, output_size=2)
        >>> 0 <= evaluate(model, split, metric="accuracy", batch_size=10) <= 100
        True
    """
    if isinstance(metric, str):
        check_choice("evaluate", "metric", metric, METRICS)
    judge, sums, count = METRICS[metric] if isinstance(metric, str) else metric, [], 0
    training, state = model.training, None
    model.eval()
    with torch.no_grad():
        for step in range(split.steps(batch_size)):
            batch = rows(split.batch(step, batch_size), processes.rank, processes.size).to(device)
            if batch.inputs.shape[1] == 0:
                continue
            if subsample is not None:
                batch = at_steps(batch, even_steps(len(batch.inputs), subsample))
            start: Any = state if batch.carry else None
            prediction, state = model(batch.inputs, start, batch.lengths, **batch.timing)
            values = judge.each(*answered(prediction, batch))
            sums.append(values.sum(dtype=torch.float64))
            count += values.numel()
    model.train(training)
    # Read once, at the end: each reading waits for the device.
    total, answers = processes.total(sum(read(sums)) if sums else 0.0, count)
    if not answers:
        raise ValueError("`split` of evaluate is empty: it has no targets.")
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
        model: called as `model(inputs, state, lengths) -> (prediction, state)`; with `elapsed=...` for batches that
            have it.
        train: what to learn from. Batches with `carry` start from the state in which the previous one ended.
        valid: what the best epoch is chosen on.
        loss: a name in `lem.training.metrics.LOSSES`, or such a function.
        metric: a name in `lem.training.metrics.METRICS`, or such a metric.
        batch_size: sequences per update.
        epochs: passes over the training split.
        learning_rate: the optimiser's rate, before the schedule.
        optimizer: "adam", "rmsprop" or "sgd".
        weight_decay: the optimiser's own L2 term, which clipping does not see.
        l2: adds 0.5 * l2 * |parameters|^2 to what is minimised, before clipping.
        loss_over_time: "mean" over all answers; "sum" over the steps and mean over the batch, as language models are
            trained, which is what `clip_norm` and `l2` then relate to.
        schedule: see `lem.training.schedule.rate`.
        drop_after: the epoch from which the "step" schedule applies `drop_factor`.
        drop_factor: the factor of the "step" schedule.
        clip_norm: the largest gradient norm; None does not clip.
        truncate: back-propagate through this many last steps only; those before run without gradient.
        subsample: train on this many time steps, drawn for every batch; evaluate on as many, evenly spaced.
        average_after: after this many evaluations without improvement, evaluate the mean of the weights of all updates
            from then on.
        average_from: the same from this evaluation on at the latest; 0 for all updates.
        patience: stop after this many evaluations without improvement.
        minutes: stop after this much training time; the result is then labelled as shortened.
        evaluate_every: epochs between evaluations.
        accumulate: compute each batch in this many parts, one after the other, to save memory.
        autocast: "bfloat16" computes what may be in that type; None everything in the model's own.
        checkpoint_minutes: the longest time between checkpoints.
        seed: of the order of the batches and of dropout.
        device: where to train; "auto" takes a GPU if there is one.
        store: where checkpoints go; an existing one is continued. None keeps everything in memory.
        report: called after every update and evaluation.
        should_stop: asked after every update; True saves a checkpoint and returns.
        processes: those that share every batch, see `lem.training.distributed`.

    Examples:
        >>> import torch
        >>> from lem.nn import SequenceModel
        >>> from lem.training.data import ArraySplit
        >>> from lem.training.loop import fit
        >>> x, label = torch.randn(40, 30, 3), torch.arange(40) % 2  # (sample, time, channel)
        >>> train, valid = ArraySplit(x[:30], label[:30]), ArraySplit(x[30:], label[30:])
        >>> model = SequenceModel("lem", input_size=3, hidden_size=8, output_size=2)
        >>> goal = {"loss": "cross_entropy", "metric": "accuracy"}
        >>> progress = fit(model, train, valid, **goal, batch_size=10, epochs=2, learning_rate=0.01)
        >>> progress.epoch, len(progress.history)
        (2, 2)
    """
    options = Options.of(locals())  # first, while there is nothing but the arguments
    steps = train.steps(batch_size)
    if steps < 1:
        raise ValueError("`train` of fit is empty: it has no batch.")
    run = Run(model, options, steps, processes)
    run.restore(store)
    progress, tell = run.progress, report if processes.leads else None
    clock = last_save = time.monotonic()
    while progress.epoch < epochs and not progress.stopped:
        while progress.step < steps:
            update(run, train.batch(progress.step, batch_size, progress.epoch, seed))
            now = time.monotonic()
            progress.seconds, clock = progress.seconds + now - clock, now
            if tell:
                tell(Event(progress, epochs, steps, run.watch.latest))
            late = minutes is not None and progress.seconds > 60.0 * minutes
            due = now - last_save > 60.0 * checkpoint_minutes
            halt, late, due = map(bool, processes.total(bool(should_stop and should_stop()), late, due))
            if halt or due:
                run.save(store)
                last_save = now
            if halt:
                return progress
            if late:
                progress.stopped = f"after {minutes:g} minutes"
                break
        run.read_losses()
        trained = progress.loss_sum / max(progress.step, 1)
        progress.epoch, progress.step, progress.loss_sum = progress.epoch + 1, 0, 0.0
        if progress.epoch % evaluate_every == 0 or progress.epoch == epochs or progress.stopped:
            score = _evaluate(run, valid, store)
            now = time.monotonic()
            progress.seconds, clock = progress.seconds + now - clock, now
            record = _record(run, trained, score, store)
            if tell:
                tell(Event(progress, epochs, steps, trained, record))
            run.save(store)
            last_save = time.monotonic()
    if progress.best is None:
        raise FloatingPointError(
            f"The validation {metric} was NaN or infinite; got {progress.history[-1]['valid']} in all "
            f"{progress.evaluations} evaluations."
        )
    model.load_state_dict(run.best)
    return progress


def _evaluate(run: Run, valid: Split, store: Store | None) -> float:
    """Evaluate on the validation split; keep the weights if they are the best so far; decide whether to go on."""
    options, progress = run.options, run.progress
    with run.average.applied(run.model):
        score = evaluate(
            run.model,
            valid,
            metric=options.metric,
            batch_size=options.batch_size,
            device=options.device,
            subsample=options.subsample,
            processes=run.processes,
        )
        progress.evaluations, progress.stale = progress.evaluations + 1, progress.stale + 1
        if options.judge.better(score, progress.best):
            progress.best, progress.best_epoch, progress.stale = score, progress.epoch, 0
            run.best = {name: weight.detach().cpu().clone() for name, weight in run.model.state_dict().items()}
            if store and run.processes.leads:
                store.save_best(run.best)
    if options.patience is not None and progress.stale >= options.patience and progress.epoch < options.epochs:
        progress.stopped = progress.stopped or f"no improvement in {options.patience} evaluations"
    return score


def _record(run: Run, loss: float, score: float, store: Store | None) -> dict[str, Any]:
    """Record an evaluation: in the history, which the next checkpoint holds, and in the store."""
    progress = run.progress
    record = {
        "epoch": progress.epoch,
        "updates": progress.updates,
        "loss": loss,
        "valid": score,
        "best": progress.best,
        "learning_rate": run.optimizer.param_groups[0]["lr"],
        "averaged": run.average.count,
        "seconds": round(progress.seconds, 3),
    }
    progress.history.append(record)
    if store and run.processes.leads:
        store.record(record)
    return record
