"""The options of `fit`, checked before anything starts."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

import torch

from lem.training.metrics import LOSSES, METRICS, Loss, Metric
from lem.training.schedule import SCHEDULES
from lem.wording import check_choice

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}


@dataclass(frozen=True)
class Options:
    """The options of `fit`, which documents them; wrong ones raise ValueError."""

    loss: str | Loss
    metric: str | Metric
    batch_size: int
    epochs: int
    learning_rate: float
    optimizer: str
    weight_decay: float
    l2: float
    loss_over_time: str
    schedule: str
    drop_after: int | None
    drop_factor: float
    clip_norm: float | None
    truncate: int | None
    subsample: int | None
    average_after: int | None
    average_from: int | None
    patience: int | None
    minutes: float | None
    evaluate_every: int
    accumulate: int
    autocast: str | None
    checkpoint_minutes: float
    seed: int
    device: str

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> "Options":
        """Take the options out of all arguments of `fit`."""
        return cls(**{field.name: arguments[field.name] for field in fields(cls)})

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "evaluate_every", "accumulate", "truncate", "subsample", "patience"):
            number: Any = getattr(self, name)
            if number is not None and not (isinstance(number, Integral) and int(number) >= 1):
                raise ValueError(f"`{name}` of fit must be a positive integer; got {number!r}.")
        for name in ("clip_norm", "minutes", "drop_factor"):
            value: Any = getattr(self, name)
            if value is not None and not (isinstance(value, Real) and float(value) > 0.0):
                raise ValueError(f"`{name}` of fit must be a positive number; got {value!r}.")
        for name in ("learning_rate", "weight_decay", "l2", "checkpoint_minutes"):
            value = getattr(self, name)
            if not (isinstance(value, Real) and float(value) >= 0.0):
                raise ValueError(f"`{name}` of fit must be a number of at least 0; got {value!r}.")
        object.__setattr__(self, "device", check_device(self.device, "fit"))  # the one behind "auto"
        check_choice("fit", "optimizer", self.optimizer, OPTIMIZERS)
        check_choice("fit", "schedule", self.schedule, SCHEDULES)
        if isinstance(self.loss, str):
            check_choice("fit", "loss", self.loss, LOSSES)
        if isinstance(self.metric, str):
            check_choice("fit", "metric", self.metric, METRICS)
        check_choice("fit", "loss_over_time", self.loss_over_time, ("mean", "sum"))
        check_choice("fit", "autocast", self.autocast, (None, "bfloat16"))

    @property
    def judge(self) -> Metric:
        """The metric itself."""
        return METRICS[self.metric] if isinstance(self.metric, str) else self.metric

    @property
    def criterion(self) -> Loss:
        """The loss itself."""
        return LOSSES[self.loss] if isinstance(self.loss, str) else self.loss


def check_device(device: str, whose: str) -> str:
    """Return the device, "auto" being a GPU if there is one; refuse a device that torch does not have here."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:  # each of them, by the kind of device
        why = str(error).partition("\n")[0].removesuffix(".")
        raise ValueError(f"`device` of {whose} must be one that torch has here; got {device!r}: {why}.") from error
    return device
