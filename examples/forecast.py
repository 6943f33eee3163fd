"""Forecast a series with two time scales, and compare with repeating the last value: python examples/forecast.py"""

import numpy as np

from lem.estimators import LEMForecaster


def two_scales(steps: int, seed: int = 0) -> np.ndarray:
    """Return a fast wave that rides on a slow one, with a little noise."""
    t = np.arange(steps)
    noise = np.random.default_rng(seed).normal(0.0, 0.02, steps)
    return np.sin(2 * np.pi * t / 12) + 2.0 * np.sin(2 * np.pi * t / 90) + noise


def main(epochs: int = 60) -> tuple[float, float]:
    series, horizon = two_scales(1200), 12
    model = LEMForecaster(32, horizon=horizon, window=120, epochs=epochs, random_state=0).fit(series[None, :1000])
    starts = range(1000, 1180, horizon)
    truth = np.stack([series[s : s + horizon] for s in starts])
    forecast = np.concatenate([model.predict(series[None, :s]) for s in starts])
    last = np.stack([np.full(horizon, series[s - 1]) for s in starts])
    ours, naive = (float(np.sqrt(((guess - truth) ** 2).mean())) for guess in (forecast, last))
    print(f"RMSE over {horizon} steps: forecast {ours:.3f}, last value {naive:.3f}")
    return ours, naive


if __name__ == "__main__":
    main()
