"""Show the time scales that a trained LEM uses: python examples/time_scales.py

The data has two: a fast wave of 12 steps and a slow one of 90. The gates of the model are its time steps.
"""

import sys

import torch
from forecast import two_scales

from lem.analysis.timescales import time_scales
from lem.timeseries import LEMForecaster


def main(epochs: int = 60, figure: str = "") -> tuple[float, float]:
    model = LEMForecaster(32, horizon=12, window=120, epochs=epochs, random_state=0).fit(two_scales(1000)[None])
    predictor = model.predictor_
    new = torch.as_tensor(two_scales(600, seed=1), dtype=torch.float32).reshape(1, 600, 1)
    series = predictor.standardise(new).transpose(0, 1)  # (time, batch, channel)
    scales = time_scales(predictor.model.recurrent, [series])
    rankings = [scales.ranking(gate) for gate in range(2)]  # (unit, steps) of dt_z and of dt_y, the slowest first
    slow, fast = max(ranking[0][1] for ranking in rankings), min(ranking[-1][1] for ranking in rankings)
    print(f"slowest unit {slow:.0f} steps, fastest {fast:.1f} steps")
    if figure:
        scales.plot(figure)
    return slow, fast


if __name__ == "__main__":
    main(figure=sys.argv[1] if len(sys.argv) > 1 else "")
