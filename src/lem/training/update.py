"""One update: the gradient of a batch, in parts and over several processes if asked for, and the optimiser's step."""

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lem.training.data import Batch, at_steps, mix, random_steps, rows
from lem.training.run import Run, state_rows


def update(run: Run, batch: Batch) -> None:
    """Do one update on a batch."""
    options, progress, processes = run.options, run.progress, run.processes
    run.set_rate()
    torch.manual_seed(mix(options.seed, 1, progress.updates, processes.rank))
    where = f"epoch {progress.epoch + 1}, step {progress.step + 1} (update {progress.updates + 1})"
    if not is_finite(batch):
        raise FloatingPointError(f"The training input must be finite; got NaN or infinity in {where}.")
    if options.subsample is not None:
        chosen = random_steps(len(batch.inputs), options.subsample, mix(options.seed, 2, progress.updates))
        batch = at_steps(batch, chosen)

    run.optimizer.zero_grad(set_to_none=True)
    total, run.carried = _add_gradient(run, batch, run.carried if batch.carry else None)
    gradients = [_gradient(parameter) for parameter in run.parameters]
    processes.add([total, *gradients])
    if options.l2:
        for parameter, gradient in zip(run.parameters, gradients):
            gradient.add_(parameter.detach(), alpha=options.l2)
    norm = nn.utils.get_total_norm(gradients)
    progress.loss_sum += run.watch.add(total, norm, where)
    if options.clip_norm is not None:
        nn.utils.clip_grads_with_norm_(run.parameters, options.clip_norm, norm)
    run.optimizer.step()
    _call(run.model, "after_update")
    if run.averages():
        run.average.add(run.model)
    progress.step += 1
    progress.updates += 1


def _add_gradient(run: Run, batch: Batch, state: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...] | None]:
    """Add up the gradient of the batch; return its loss and the state it ends in, both of this process's rows."""
    options, processes, model = run.options, run.processes, run.model
    answers = _answers(batch, options.loss_over_time)
    mine, value, ends = rows(batch, processes.rank, processes.size), torch.zeros((), device=options.device), []
    for part in range(options.accumulate):
        piece = rows(mine, part, options.accumulate).to(options.device)
        start = state_rows(state, part, options.accumulate)
        if piece.inputs.shape[1] == 0:
            continue
        narrow = (
            torch.autocast(torch.device(options.device).type, torch.bfloat16) if options.autocast else nullcontext()
        )
        with narrow:
            if options.truncate is not None and len(piece.inputs) > options.truncate:
                early = torch.arange(len(piece.inputs) - options.truncate)
                with torch.no_grad():
                    before = at_steps(piece, early)
                    start = model(before.inputs, start, None, **before.timing)[1]
                piece = at_steps(piece, torch.arange(len(early), len(piece.inputs)))
            prediction, end = model(piece.inputs, start, piece.lengths, **piece.timing)
        prediction = prediction if options.autocast is None else prediction.float()
        objective = options.criterion(*answered(prediction, piece)).sum() / answers
        value += objective.detach()
        if part == 0 and processes.leads and (penalty := _call(model, "penalty")) is not None:
            objective = objective + penalty
        objective.backward()
        ends.append(tuple(field.detach() for field in end))
    return value, tuple(torch.cat(fields, dim=1) for fields in zip(*ends)) or None


def _call(model: nn.Module, hook: str) -> Any:
    """Call one of the optional hooks of a model, see `lem.nn.cells.Cell`."""
    return getattr(model, hook)() if hasattr(model, hook) else None


def _answers(batch: Batch, over_time: str) -> int:
    """Return what the sum of a batch's losses is divided by: its answers, or only its rows."""
    if over_time == "mean" and batch.lengths is not None and batch.every_step:
        return int(batch.lengths.sum()) * math.prod(batch.targets.shape[2:])
    if over_time == "mean":
        return batch.targets.numel()
    if not batch.every_step:
        raise ValueError("`loss_over_time` of fit must be 'mean' if a sequence has one answer; got 'sum'.")
    return math.prod(batch.targets.shape[1:])


def answered(prediction: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return prediction and target of all answers but those of padding."""
    shape, axis = tuple(batch.targets.shape), 1 if batch.every_step else 0
    if len(shape) <= axis or shape[axis] != batch.inputs.shape[1]:
        must = "(time, batch, ...)" if batch.every_step else "(batch, ...), or (time, batch, ...) with `every_step`"
        raise ValueError(
            f"`targets` of a Batch must be {must}; got {shape} for inputs of shape {tuple(batch.inputs.shape)}."
        )
    if batch.lengths is None or not batch.every_step:
        return prediction, batch.targets
    # As numbers of rows and steps, found on the host, where the lengths are: a mask on a GPU would have to be counted.
    inside = tuple(index.to(prediction.device) for index in _inside(batch, batch.lengths).nonzero(as_tuple=True))
    return prediction[inside], batch.targets[inside]


def _inside(batch: Batch, lengths: Tensor) -> Tensor:
    """Return which steps (time, batch) are not padding."""
    return torch.arange(len(batch.inputs), device=lengths.device)[:, None] < lengths


def is_finite(batch: Batch) -> bool:
    """Return whether all input is finite; what stands in the padding does not matter."""
    if not batch.inputs.is_floating_point():
        return True
    inputs = batch.inputs if batch.lengths is None else batch.inputs[_inside(batch, batch.lengths)]
    # A finite sum has finite terms only, and costs a small part of looking at each.
    return bool(inputs.sum().isfinite()) or bool(inputs.isfinite().all())


def _gradient(parameter: Tensor) -> Tensor:
    """Return a parameter's gradient; zeros, kept as its gradient, if this process had nothing to compute."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
