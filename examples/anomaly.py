"""Score anomalies on a stream by the error of a one-step forecast: python examples/anomaly.py

The stream carries the state of the model from sample to sample, so each sample costs the same however long it runs.
"""

import sys

import numpy as np
from forecast import two_scales

from lem.timeseries import LEMForecaster


def main(epochs: int = 40, figure: str = "") -> tuple[int, np.ndarray]:
    model = LEMForecaster(32, window=120, epochs=epochs, random_state=0).fit(two_scales(1000)[None])
    live = two_scales(600, seed=1)
    live[400:] += 1.0  # the anomaly: from here on the sensor reads too high
    stream, expected, scores = model.stream(), live[0], []
    for sample in live:
        scores.append(abs(sample - expected))
        expected = stream.push(sample)[0]
    warm = np.array(scores[50:])
    place = 50 + int(warm.argmax())
    print(f"largest error at sample {place}: {warm.max():.2f}; median error {np.median(warm):.3f}")
    if figure:
        draw(figure, live, np.array(scores))
    return place, warm


def draw(path: str, live: np.ndarray, scores: np.ndarray) -> None:
    from matplotlib import pyplot as plt

    chart, (above, below) = plt.subplots(2, 1, figsize=(7.5, 3.6), sharex=True, layout="constrained")
    above.plot(live, color="0.4", lw=1)
    above.set(ylabel="sensor")
    below.plot(np.arange(50, len(scores)), scores[50:], color="#d62728", lw=1)
    below.set(xlabel="sample", ylabel="anomaly score")
    for axis in (above, below):
        axis.axvline(400, color="0.3", ls=":", lw=1)
    chart.savefig(path, dpi=130)
    plt.close(chart)


if __name__ == "__main__":
    main(figure=sys.argv[1] if len(sys.argv) > 1 else "")
