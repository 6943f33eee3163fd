"""Forecast a series with two time scales and compare with repeating the last value: python examples/forecast.py"""

import sys

import numpy as np

from lem.timeseries import LEMForecaster


def two_scales(steps: int, seed: int = 0) -> np.ndarray:
    """Return a fast wave that rides on a slow one, with a little noise."""
    t = np.arange(steps)
    noise = np.random.default_rng(seed).normal(0.0, 0.02, steps)
    return np.sin(2 * np.pi * t / 12) + 2.0 * np.sin(2 * np.pi * t / 90) + noise


def main(epochs: int = 60, figure: str = "") -> tuple[float, float]:
    series, horizon = two_scales(1200), 12
    model = LEMForecaster(32, horizon=horizon, window=120, epochs=epochs, random_state=0).fit(series[None, :1000])
    starts = range(1000, 1180, horizon)
    truth = np.stack([series[s : s + horizon] for s in starts])
    forecast = np.concatenate([model.predict(series[None, :s]) for s in starts])
    last = np.stack([np.full(horizon, series[s - 1]) for s in starts])
    ours, naive = (float(np.sqrt(((guess - truth) ** 2).mean())) for guess in (forecast, last))
    print(f"RMSE over {horizon} steps: forecast {ours:.3f}, last value {naive:.3f}")
    if figure:
        draw(figure, series, list(starts), forecast)
    return ours, naive


def draw(path: str, series: np.ndarray, starts: list[int], forecast: np.ndarray) -> None:
    from matplotlib import pyplot as plt

    chart, axis = plt.subplots(figsize=(7.5, 3.0), layout="constrained")
    axis.plot(np.arange(940, 1180), series[940:1180], color="0.6", label="series")
    for start, values in zip(starts, forecast):
        axis.plot(np.arange(start, start + len(values)), values, color="#1f77b4", lw=2)
    axis.plot([], [], color="#1f77b4", lw=2, label=f"forecast, {len(forecast[0])} steps ahead")
    axis.axvline(1000, color="0.3", ls=":", lw=1)
    axis.text(999, axis.get_ylim()[1], "end of the training data ", ha="right", va="top", fontsize=8, color="0.3")
    axis.set(xlabel="step", ylabel="value", ylim=(-4.4, 3.4))
    axis.legend(frameon=False, fontsize=8, loc="lower left", ncols=2)
    chart.savefig(path, dpi=130)
    plt.close(chart)


if __name__ == "__main__":
    main(figure=sys.argv[1] if len(sys.argv) > 1 else "")
