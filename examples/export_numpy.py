"""Train a model, export it, and run it with NumPy alone: python examples/export_numpy.py

The exported folder holds a readable Python file and the weights; neither torch nor this library is needed to use it.
"""

import runpy
import sys
import tempfile
from pathlib import Path

import numpy as np
from forecast import two_scales

from lem.timeseries import LEMForecaster
from lem.timeseries.export import export


def main(epochs: int = 20) -> float:
    series = two_scales(1000)
    model = LEMForecaster(16, horizon=5, window=120, epochs=epochs, random_state=0).fit(series[None])
    with tempfile.TemporaryDirectory() as parent:
        folder = export(model.predictor_, "numpy", Path(parent, "forecaster"))
        lines = len((folder / "model.py").read_text().splitlines())
        size = (folder / "weights.npz").stat().st_size
        alone = runpy.run_path(str(folder / "model.py"))["Model"](folder / "weights.npz")
        answer, _ = alone(series[None, :, None])  # (batch, time, channels)
    difference = float(np.abs(np.ravel(answer) - np.ravel(model.predict(series[None]))).max())
    print(f"model.py: {lines} lines; weights.npz: {size / 1000:.0f} kB; largest difference: {difference:.0e}")
    return difference


if __name__ == "__main__":
    sys.exit(main() > 1e-4)
