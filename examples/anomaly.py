"""Score anomalies on a stream: how far is each sample from what was forecast one step before?

Run: python examples/anomaly.py. The state is carried from sample to sample; each costs the same, however long it runs.
"""

import numpy as np
from forecast import two_scales

from lem.estimators import LEMForecaster


def main(epochs: int = 40) -> tuple[int, np.ndarray]:
    model = LEMForecaster(32, window=120, epochs=epochs, random_state=0).fit(two_scales(1000)[None])
    live = two_scales(600, seed=1)
    live[400:] += 1.0  # the anomaly: from here on the sensor reads too much
    stream, expected, scores = model.stream(), live[0], []
    for sample in live:
        scores.append(abs(sample - expected))
        expected = stream.push(sample)[0]
    warm = np.array(scores[50:])
    place = 50 + int(warm.argmax())
    print(f"largest surprise at sample {place}: {warm.max():.2f}, usually {np.median(warm):.3f}")
    return place, warm


if __name__ == "__main__":
    main()
