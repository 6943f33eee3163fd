"""Scores of forecasts over rolling origins, in a table, by channel and by step."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lem.timeseries.intervals import coverages

AMOUNTS = ("MAE", "RMSE", "MASE", "pinball")
"""The scores that are amounts; the others are shares, shown in percent."""


class BacktestError(ValueError):
    """The series do not allow the backtest."""


@dataclass
class Backtest:
    """What `LEMForecaster.backtest` found.

    Attributes:
        scores: of each method ("LEM" or the name of the cell, "seasonal naive", "ridge on lags") its scores: MAE, RMSE,
            MASE, sMAPE and, for quantile forecasts, pinball and coverage.
        by_channel: of each method, the mean absolute error and the root mean squared error of each channel.
        by_step: of each method, the mean absolute error of each step ahead.
        origins: the number of forecasts of all series.
        horizon: their number of steps.
        season: the season of the naive forecast and of MASE.
        spans: in words, what was trained on, calibrated on and scored.
        truth: what followed each origin, (origin, horizon, channel).
        forecasts: of each method, (origin, horizon, channel).
        quantiles: (origin, horizon, channel, quantile), or None.
        levels: of the quantiles.
        series: the series of each origin.
        steps: the step of its series at which each forecast begins.
        development: what training found.

    Examples:
        >>> import numpy as np
        >>> from lem import LEMForecaster
        >>> load = 20 + 5 * np.sin(2 * np.pi * np.arange(240) / 24)
        >>> small = {"hidden_size": 8, "epochs": 1, "updates": 5}  # for this example only
        >>> model = LEMForecaster(horizon=24, season=24, random_state=0, segment_options=small)
        >>> backtest = model.backtest(load[None])
        >>> sorted(backtest.scores), backtest.origins
        (['LEM', 'ridge on lags', 'seasonal naive'], 2)
    """

    scores: dict[str, dict[str, float | None]]
    by_channel: dict[str, dict[str, list[float]]]
    by_step: dict[str, list[float]]
    origins: int
    horizon: int
    season: int
    spans: str
    truth: np.ndarray
    forecasts: dict[str, np.ndarray]
    quantiles: np.ndarray | None
    levels: tuple[float, ...]
    series: np.ndarray
    steps: np.ndarray
    development: Any = field(default=None, repr=False)

    def plain(self) -> dict[str, Any]:
        """Return the scores as plain values."""
        return {
            "scores": self.scores,
            "by_channel": self.by_channel,
            "by_step": self.by_step,
            "origins": self.origins,
            "horizon": self.horizon,
            "season": self.season,
            "spans": self.spans,
        }

    def lines(self) -> list[str]:
        """Return the scores as lines of text."""
        names = list(dict.fromkeys(name for scores in self.scores.values() for name in scores))
        width = max(map(len, self.scores))
        rows = [f"{'':{width}}  " + "  ".join(f"{name:>9}" for name in names)]
        for method, scores in self.scores.items():
            cells = []
            for name in names:
                value = scores.get(name)
                shown = "-" if value is None else f"{value:.4g}" if name in AMOUNTS else f"{100 * value:.1f} %"
                cells.append(f"{shown:>9}")
            rows.append(f"{method:{width}}  " + "  ".join(cells))
        steps = "step" if self.horizon == 1 else "steps"
        return [*rows, "", f"{self.origins} forecasts of {self.horizon} {steps}; season {self.season}; {self.spans}"]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def point_scores(truth: np.ndarray, answer: np.ndarray, scale: np.ndarray) -> dict[str, float | None]:
    """Return MAE, RMSE, MASE and sMAPE of forecasts (origin, step, channel).

    Args:
        truth: what followed, NaN where unknown.
        answer: the forecasts.
        scale: of each origin and channel, the mean absolute error of the seasonal naive forecast on the series up to
            the first origin; NaN where that is zero.
    """
    error = np.abs(answer - truth)
    size = np.abs(answer) + np.abs(truth)
    share = np.where(size > 0, 2.0 * error / np.where(size > 0, size, 1.0), 0.0)
    scaled = error / scale[:, None, :]
    return {
        "MAE": _mean(error),
        "RMSE": float(np.sqrt(_mean(error**2) or 0.0)),
        "MASE": _mean(scaled),
        "sMAPE": _mean(np.where(np.isnan(error), np.nan, share)),
    }


def interval_scores(truth: np.ndarray, quantiles: np.ndarray, levels: tuple[float, ...]) -> dict[str, float | None]:
    """Return the mean pinball loss over the levels, and the coverage of each interval (`within 80 %`)."""
    error = truth[..., None] - quantiles
    level = np.array(levels)
    found: dict[str, float | None] = {"pinball": _mean(np.maximum(level * error, (level - 1.0) * error))}
    middle = len(levels) // 2
    for k, nominal in enumerate(coverages(levels), start=1):
        inside = (truth >= quantiles[..., middle - k]) & (truth <= quantiles[..., middle + k])
        found[f"within {100 * nominal:g} %"] = _mean(np.where(np.isnan(truth), np.nan, inside))
    return found


def naive_scale(values: np.ndarray, season: int) -> np.ndarray:
    """Return the mean absolute seasonal difference of each channel (time, channel); NaN where it is zero or unknown."""
    if len(values) <= season:
        season = 1
    steps = np.abs(values[season:] - values[:-season])
    known = ~np.isnan(steps)
    mean = np.where(known, steps, 0.0).sum(0) / np.maximum(known.sum(0), 1)
    return np.where((mean > 0) & known.any(0), mean, np.nan)


def summary(
    truth: np.ndarray,
    forecasts: dict[str, np.ndarray],
    scale: np.ndarray,
    quantiles: np.ndarray | None,
    levels: tuple[float, ...],
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the scores of each method: in all, by channel and by step. The quantiles are those of the first."""
    scores, by_channel, by_step = {}, {}, {}
    for k, (method, answer) in enumerate(forecasts.items()):
        scores[method] = point_scores(truth, answer, scale)
        if k == 0 and quantiles is not None and len(levels) > 1:
            scores[method] |= interval_scores(truth, quantiles, levels)
        error = np.abs(answer - truth)
        by_channel[method] = {
            "MAE": [_mean(error[..., c]) for c in range(truth.shape[2])],
            "RMSE": [float(np.sqrt(_mean(error[..., c] ** 2) or np.nan)) for c in range(truth.shape[2])],
        }
        by_step[method] = [_mean(error[:, h]) for h in range(truth.shape[1])]
    return scores, by_channel, by_step


def _mean(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None
