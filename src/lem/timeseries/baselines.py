"""Forecasts to compare with: the value one season before, and ridge regression on lags."""

from collections.abc import Callable

import numpy as np

from lem.timeseries.ridge import fit_ridge

MOST_ROWS = 20_000
"""The most windows a ridge regression is fitted to."""
MOST_LAGS = 336

Baseline = Callable[[list[np.ndarray]], np.ndarray]
"""Forecasts what follows histories (time, channel): (history, horizon, channel)."""


def filled(values: np.ndarray) -> np.ndarray:
    """Return values (time, channel) with the last known value in place of missing ones, the first one before it."""
    known = ~np.isnan(values)
    place = np.maximum.accumulate(np.where(known, np.arange(len(values))[:, None], -1), axis=0)
    first = known.argmax(0)
    found = np.take_along_axis(values, np.maximum(place, first), axis=0)
    return np.nan_to_num(found)


def seasonal_naive(history: np.ndarray, horizon: int, season: int) -> np.ndarray:
    """Repeat the last season of a history (time, channel): (horizon, channel)."""
    season = min(season, len(history))
    last = filled(history[-2 * season - 1 :])[-season:]
    return last[np.arange(horizon) % season]


def ridge_on_lags(series: list[np.ndarray], horizon: int, season: int) -> Baseline | None:
    """Fit ridge regression from the last values to the next `horizon`; None if the series are too short.

    Windows are centred on their last value. The channels of a single series have their own regression each; several
    series share one, with each window divided by its spread.
    """
    lengths = np.array([len(values) for values in series])
    room = int(np.median(lengths)) - horizon
    lags = min(8 * season if season > 1 else 24, MOST_LAGS, room // 2)
    if lags < 1 or int(np.maximum(lengths - lags - horizon + 1, 0).sum()) < 10:
        return None
    shared = len(series) > 1
    windows = [
        np.lib.stride_tricks.sliding_window_view(filled(values), lags + horizon, axis=0)
        for values in series
        if len(values) >= lags + horizon
    ]
    together = np.concatenate(windows)
    together = together[:: -(-len(together) // MOST_ROWS)]
    channels = together.shape[1]

    def units(history: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        last = history[..., -1:]
        spread = history.std(axis=-1, keepdims=True) if shared else np.ones_like(last)
        return last, np.where(spread > 0, spread, 1.0)

    last, spread = units(together[..., :lags])
    normal = (together - last) / spread
    if shared:
        normal = np.broadcast_to(normal.reshape(-1, 1, lags + horizon), (normal.shape[0] * channels, 1, lags + horizon))
    fitted = [fit_ridge(np.ascontiguousarray(normal[:, c, :lags]), normal[:, c, lags:]) for c in range(normal.shape[1])]

    def predict(histories: list[np.ndarray]) -> np.ndarray:
        answers = []
        for history in histories:
            x = filled(history)[-lags:].T
            x = np.concatenate([np.repeat(x[:, :1], lags - x.shape[1], axis=1), x], axis=1)
            last, spread = units(x)
            rows = [
                ((x[c] - last[c]) / spread[c]) @ fitted[0 if shared else c].weight.T + fitted[0 if shared else c].bias
                for c in range(channels)
            ]
            answers.append((np.stack(rows) * spread + last).T)
        return np.stack(answers)

    return predict
