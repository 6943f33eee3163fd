"""Quantile forecasts: their loss, and conformal corrections that give their intervals the promised coverage."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lem.training.metrics import Loss, Metric

LEVELS = (0.025, 0.1, 0.5, 0.9, 0.975)
"""The quantiles forecast by default: the median, and the ends of the intervals of 80 and 95 %."""
NARROWEST = 1e-3
"""The least distance of a quantile from the median, in standard deviations of the series."""


def check_levels(levels: Any, whose: str) -> tuple[float, ...]:
    """Return quantile levels in order; they must include the median and lie in pairs around it."""
    try:
        found = tuple(sorted(map(float, np.atleast_1d(levels))))
    except (TypeError, ValueError):
        found = ()
    paired = all(abs(low + high - 1.0) < 1e-9 for low, high in zip(found, reversed(found)))
    if not found or not all(0.0 < level < 1.0 for level in found) or len(found) % 2 == 0 or not paired:
        raise ValueError(
            f"`quantiles` of {whose} must be levels in (0, 1) that include 0.5 and lie in pairs around it, such as "
            f"(0.1, 0.5, 0.9); got {levels!r}."
        )
    return found


def coverages(levels: tuple[float, ...]) -> tuple[float, ...]:
    """Return the nominal coverage of each pair of quantiles, the narrowest first."""
    middle = len(levels) // 2
    return tuple(round(levels[-1 - k] - levels[k], 10) for k in reversed(range(middle)))


def pinball_loss(levels: tuple[float, ...]) -> Loss:
    """Return the loss of quantile forecasts (..., quantile): twice the mean pinball loss over the levels.

    The median counts as much as all other levels together, so that a point forecast loses nothing to its intervals.
    """
    weights = [1.0 if level == 0.5 else 1.0 / max(len(levels) - 1, 1) for level in levels]

    def loss(prediction: Tensor, target: Tensor) -> Tensor:
        level = prediction.new_tensor(levels)
        known = ~target.isnan()
        error = torch.where(known, target, 0.0)[..., None] - prediction
        each = torch.maximum(level * error, (level - 1.0) * error) @ prediction.new_tensor(weights)
        return 2.0 * each * known

    return loss


def absolute_error(levels: tuple[float, ...]) -> Metric:
    """Return the metric that chooses the epoch: the mean absolute error of the median."""
    middle = len(levels) // 2

    def each(prediction: Tensor, target: Tensor) -> Tensor:
        known = ~target.isnan()
        return (prediction[..., middle] - target).abs()[known]

    return Metric(each, float, higher_is_better=False)


def conformal_widths(quantiles: np.ndarray, truth: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
    """Return by which factor the distance of each quantile from the median must change for its interval to cover.

    The factor is the conformal quantile of the calibration errors, each divided by the distance that was forecast for
    its side and step: intervals keep their shape and growth, and cover as often as they promise.

    Args:
        quantiles: forecasts of the calibration span, (forecast, step, channel, quantile), standardised.
        truth: what followed, (forecast, step, channel), NaN where unknown.
        levels: of the quantiles.

    Returns:
        (channel, quantile): 1 for the median, and for all where nothing is known.
    """
    channels, middle = truth.shape[2], len(levels) // 2
    widths = np.ones((channels, len(levels)))
    error = truth - quantiles[..., middle]
    for k in range(1, middle + 1):
        below = np.maximum(quantiles[..., middle] - quantiles[..., middle - k], NARROWEST)
        above = np.maximum(quantiles[..., middle + k] - quantiles[..., middle], NARROWEST)
        scores = np.where(error < 0, -error / below, error / above)
        for channel in range(channels):
            known = np.sort(scores[..., channel][~np.isnan(scores[..., channel])])
            if len(known):
                place = int(np.ceil((len(known) + 1) * (levels[middle + k] - levels[middle - k]))) - 1
                widths[channel, [middle - k, middle + k]] = known[min(place, len(known) - 1)]
    return widths


def widened(quantiles: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Return standardised quantiles (..., channel, quantile) with their distances from the median multiplied."""
    middle = quantiles.shape[-1] // 2
    median = quantiles[..., middle : middle + 1]
    least = np.where(np.arange(quantiles.shape[-1]) < middle, -NARROWEST, NARROWEST)
    least[middle] = 0.0
    away = quantiles - median
    return in_order(median + np.where(np.abs(away) < NARROWEST, least, away) * widths)


def in_order(quantiles: np.ndarray) -> np.ndarray:
    """Return quantiles that do not cross, the median unchanged."""
    middle = quantiles.shape[-1] // 2
    median = quantiles[..., middle : middle + 1]
    low = np.minimum.accumulate(quantiles[..., : middle + 1][..., ::-1], axis=-1)[..., ::-1]
    high = np.maximum.accumulate(quantiles[..., middle:], axis=-1)
    return np.concatenate([low[..., :-1], median, high[..., 1:]], axis=-1)
