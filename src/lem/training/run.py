"""A run of training: everything that changes while it goes on, and how it is saved and restored.

Batches, learning rates and dropout masks depend on the seed and the number of the update alone. Everything else that
must survive an interruption is in `Run`, so that a run continued from a checkpoint is the run that was interrupted, bit
for bit. That needs tensors in memory of the same layout and alignment as well, because vectorised and scalar code
round differently.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lem.training.averaging import Average
from lem.training.distributed import Processes
from lem.training.options import OPTIMIZERS, Options
from lem.training.schedule import rate
from lem.training.store import Store
from lem.training.watch import Watch


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
        best: the best validation score, None before the first.
        best_epoch: after which epoch it was found.
        stopped: why training ended early, or "".
        history: the record of every evaluation.

    Examples:
        >>> from lem.training.run import Progress
        >>> Progress().best is None  # nothing has been evaluated yet
        True
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


class Run:
    """The model, its optimiser and all else that an update or an evaluation changes.

    Args:
        model: the module to train; it is moved to the device of the options.
        options: the options of `fit`.
        steps: the number of batches in one epoch.
        processes: the processes that share every batch.
    """

    def __init__(self, model: nn.Module, options: Options, steps: int, processes: Processes) -> None:
        self.model = model.to(options.device).train()
        self.options, self.steps, self.processes = options, steps, processes
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        own = hasattr(model, "param_groups")
        groups: Any = model.param_groups(options.learning_rate) if own else self.parameters  # type: ignore[operator]
        kind: Any = OPTIMIZERS[options.optimizer]
        self.optimizer = kind(groups, lr=options.learning_rate, weight_decay=options.weight_decay)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.progress, self.average = Progress(), Average()
        clips = options.clip_norm is not None
        remedy = "go back through fewer steps with `truncate`" if clips else "set `clip_norm`"
        self.watch = Watch(options.device, remedy)
        self.best: dict[str, Tensor] = {}
        self.carried: tuple[Tensor, ...] | None = None

    def set_rate(self) -> None:
        """Set the learning rate of the next update."""
        progress, options = self.progress, self.options
        fraction = (progress.epoch * self.steps + progress.step) / (options.epochs * self.steps)
        factor = rate(options.schedule, progress.epoch, fraction, options.drop_after, options.drop_factor)
        for group, base in zip(self.optimizer.param_groups, self.rates):
            group["lr"] = base * factor

    def averages(self) -> bool:
        """Return whether the weights of this update belong to the average; once begun it goes on."""
        after, at_latest, progress = self.options.average_after, self.options.average_from, self.progress
        stale = after is not None and progress.stale >= after
        return self.average.count > 0 or stale or (at_latest is not None and progress.evaluations >= at_latest)

    def read_losses(self) -> None:
        """Read the losses that are still on the device, and check them."""
        self.progress.loss_sum += self.watch.flush()

    def save(self, store: Store | None) -> None:
        """Save a checkpoint; all processes must call this, the first one writes."""
        self.read_losses()
        carried = self.processes.all_rows(self.carried)
        if store and self.processes.leads:
            tree = {"progress": asdict(self.progress), "carried": carried, "model": self.model.state_dict()}
            tree |= {"best": self.best, "optimizer": self.optimizer.state_dict(), "average": self.average.state()}
            store.save(tree)

    def restore(self, store: Store | None) -> None:
        """Continue from the newest checkpoint, if there is one."""
        saved = self.processes.first(store.load() if store and self.processes.leads else None)
        if saved is None:
            return
        try:
            self.progress, self.best = Progress(**saved["progress"]), saved["best"]
            mine = state_rows(saved["carried"], self.processes.rank, self.processes.size)
            self.carried = None if mine is None else tuple(part.to(self.options.device, copy=True) for part in mine)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            for parameter, state in self.optimizer.state.items():
                state.update({key: _laid_out_like(parameter, value) for key, value in state.items()})
            self.average.load(saved["average"], self.model)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"The checkpoint must be one of this model and optimiser; got: {error}.") from error


def state_rows(state: Any, part: int, parts: int) -> tuple[Tensor, ...] | None:
    """Return the rows of a recurrent state (layers, batch, units) that fall to a part of the batch."""
    if state is None or parts == 1:
        return None if state is None else tuple(state)
    count = state[0].shape[1]
    return tuple(field[:, part * count // parts : (part + 1) * count // parts] for field in state)


def _laid_out_like(parameter: Tensor, value: Any) -> Any:
    """Return a tensor of the optimiser in memory laid out as the optimiser itself would have made it."""
    if not isinstance(value, Tensor):
        return value
    if value.shape != parameter.shape:  # the count of steps
        return value.clone()
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
