"""A trained LEM in NumPy alone: this file and `weights.npz` beside it are all there is. Self-test: python model.py

model = Model("weights.npz")
answer, state = model(series)          # (batch, time, channels) -> probabilities, targets or forecasts
answer, state = model(more, state)     # continues the series
"""

import json
import sys
from pathlib import Path

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)) without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


class Model:
    """Standardise, run LEM over time, read out."""

    def __init__(self, path: str | Path) -> None:
        arrays = np.load(path, allow_pickle=False)
        self.w = {name: arrays[name] for name in arrays.files if name != "config"}
        self.config = json.loads(str(arrays["config"]))
        self.labels = self.config["labels"]  # the classes in the order of the probabilities, or None

    def __call__(self, series: np.ndarray, state: list | None = None) -> tuple[np.ndarray, list]:
        """Return the answer after the last step, and the state that continues the series."""
        w, config = self.w, self.config
        x = ((series - w["mean"]) / w["scale"]).astype(np.float32)
        if config["missing"] == "mask":
            absent = np.isnan(x)
            x = np.concatenate([np.where(absent, 0, x), absent.astype(np.float32)], axis=-1)
        layers, batch, steps = config["layers"], len(x), x.shape[1]
        d = w["weight_z.0"].shape[0]
        if state is None:
            state = [np.repeat(w[name], batch, axis=1) for name in ("y_0", "z_0")]
            state += [np.zeros((batch, d), np.float32), 0]
        y, z, total, count = [state[0].copy(), state[1].copy(), state[2].copy(), state[3]]
        for t in range(steps):
            u = x[:, t]
            for k in range(layers):  # equation (3) of the paper, layer by layer
                g1, g2, z_u, y_u = np.split(u @ w[f"weight_u.{k}"].T + w[f"bias.{k}"], 4, axis=1)
                h1, h2, z_y = np.split(y[k] @ w[f"weight_y.{k}"].T, 3, axis=1)
                dt_z = np.clip(config["dt"] * sigmoid(g1 + h1), *config["clip"])
                dt_y = np.clip(config["dt"] * sigmoid(g2 + h2), *config["clip"])
                z[k] = (1 - dt_z) * z[k] + dt_z * np.tanh(z_y + z_u)
                y[k] = (1 - dt_y) * y[k] + dt_y * np.tanh(z[k] @ w[f"weight_z.{k}"].T + y_u)
                u = y[k]
            total += u
        count += steps
        shown = np.concatenate([u, total / np.float32(count)], axis=1) if config["pool"] == "both" else u
        raw = shown @ w["readout.weight"].T + w["readout.bias"]
        return self.finish(raw, x[:, -1]), [y, z, total, count]

    def finish(self, raw: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Turn the readout into the user's units."""
        if self.config["kind"] == "classifier":
            e = np.exp(raw - raw.max(axis=1, keepdims=True))
            return e / e.sum(axis=1, keepdims=True)
        if self.config["kind"] == "forecaster":  # (batch, horizon, channels), told as the distance from the last value
            channels = len(self.w["mean"])
            raw = raw.reshape(len(raw), -1, channels) + last[:, None, :channels]
        return raw * self.w["target_scale"] + self.w["target_mean"]


if __name__ == "__main__":
    here, worst = Path(__file__).parent, 0.0
    test = np.load(here / "selftest.npz", allow_pickle=False)
    for i in range(int(test["count"])):
        error = np.abs(Model(here / "weights.npz")(test[f"series_{i}"])[0] - test[f"answer_{i}"])
        worst = max(worst, float((error / np.maximum(1.0, np.abs(test[f"answer_{i}"]))).max()))
    print(f"largest error {worst:.2g}; allowed {float(test['allowed']):.2g}")
    sys.exit(worst > float(test["allowed"]))
