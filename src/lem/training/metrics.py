"""Losses and metrics by name: what a run minimises, and what its table shows."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lem.training.data import IGNORE


def _cross_entropy(prediction: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy per answer that counts; the classes stand on the last axis of the prediction."""
    target, classes = target.flatten(), prediction.shape[-1]
    if target.is_floating_point():
        raise ValueError(f"`targets` of cross_entropy must be classes, whole numbers from 0; got {target.dtype}.")
    try:
        losses = functional.cross_entropy(prediction.flatten(0, -2), target, reduction="none", ignore_index=IGNORE)
    except IndexError as error:
        raise ValueError(
            f"`targets` of cross_entropy must be classes from 0 to {classes - 1}, one for each output; got "
            f"{int(target.min())} to {int(target.max())}."
        ) from error
    return losses[target != IGNORE]


def _squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    if prediction.shape != target.shape:
        raise ValueError(
            f"`prediction` of mse must have the target's shape {tuple(target.shape)}; got {tuple(prediction.shape)}."
        )
    return (prediction - target) ** 2


Loss = Callable[[Tensor, Tensor], Tensor]

LOSSES: dict[str, Loss] = {
    "cross_entropy": _cross_entropy,
    "mse": _squared_error,
}
"""Each loss gives one number per answer; training minimises their mean."""


@dataclass(frozen=True)
class Metric:
    """A score over a whole split: the mean of `each` over all answers, then `finish`.

    Examples:
        >>> import torch
        >>> from lem.training.metrics import METRICS, Metric
        >>> sorted(METRICS)
        ['accuracy', 'bpc', 'log_loss', 'mse', 'perplexity', 'rmse']
        >>> mae = Metric(lambda answer, target: (answer - target).abs().mean(1), float, higher_is_better=False)
        >>> mae.better(0.1, 0.2)
        True
    """

    each: Callable[[Tensor, Tensor], Tensor]
    finish: Callable[[float], float]
    higher_is_better: bool
    unit: str = ""

    def better(self, new: float, old: float | None) -> bool:
        """Return whether `new` improves on `old`; a NaN never does."""
        if math.isnan(new):
            return False
        return old is None or (new > old if self.higher_is_better else new < old)


def _correct(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction.argmax(-1) == target).to(torch.float64)


METRICS: dict[str, Metric] = {
    "accuracy": Metric(_correct, lambda mean: 100.0 * mean, higher_is_better=True, unit="%"),
    "mse": Metric(_squared_error, float, higher_is_better=False),
    "rmse": Metric(_squared_error, math.sqrt, higher_is_better=False),
    "bpc": Metric(_cross_entropy, lambda mean: mean / math.log(2.0), higher_is_better=False, unit="bits"),
    "log_loss": Metric(_cross_entropy, float, higher_is_better=False, unit="nats"),
    "perplexity": Metric(_cross_entropy, lambda mean: math.exp(min(mean, 700.0)), higher_is_better=False),
}
