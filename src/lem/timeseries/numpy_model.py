"""A trained LEM in NumPy alone: it needs this file and `weights.npz` in the same folder. Self-test: python model.py

model = Model("weights.npz")
answer, state = model(series)          # (batch, time, channels) -> probabilities, targets or forecasts
answer, state = model(more, state)     # continues the series
answer, state = model(more, state, elapsed)  # (batch, time), the time since the previous sample; 1 is the usual step
"""

import json
import sys
from pathlib import Path

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)) without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


@np.errstate(divide="ignore")
def stretch(gate: np.ndarray, elapsed: np.ndarray | None) -> np.ndarray:
    """Return 1 - (1 - gate)^elapsed: the gate of a step of that length."""
    return gate if elapsed is None else -np.expm1(elapsed * np.log1p(-np.asarray(gate, np.float32)))


class Model:
    """Standardise, run LEM over time (with both gates, or with a single scale and none), read out."""

    def __init__(self, path: str | Path) -> None:
        arrays = np.load(path, allow_pickle=False)
        self.w = {name: arrays[name] for name in arrays.files if name != "config"}
        self.config = json.loads(str(arrays["config"]))
        self.labels = self.config["labels"]  # the classes in the order of the probabilities, or None

    def __call__(self, series: np.ndarray, state: list | None = None, elapsed: np.ndarray | None = None) -> tuple:
        """Return the answer after the last step, and the state that continues the series."""
        w, config, cells = self.w, self.config, []
        if elapsed is not None and max(config["dt"]) > 1:
            raise ValueError(f"`elapsed` needs a model with dt <= 1; got {config['dt']}.")
        x = ((series - w["mean"]) / w["scale"]).astype(np.float32)
        if config["missing"] == "mask":
            absent = np.isnan(x)
            x = np.concatenate([np.where(absent, 0, x), absent.astype(np.float32)], axis=-1)
        gaps = (
            [None] * (x.shape[1] + 1) if elapsed is None else [*elapsed.T[..., None].astype(np.float32), np.float32(1)]
        )
        y, z, total, count = state or [np.repeat(w[name], len(x), axis=1) for name in ("y_0", "z_0")] + [0.0, 0]
        last, directions, count = x[:, -1], config["directions"], count + x.shape[1]
        for first in range(0, len(y), directions):  # layer by layer, each forwards and perhaps backwards too
            runs = [self.run(k, x, y[k], z[k], k > first, gaps) for k in range(first, first + directions)]
            cells += runs
            x = np.concatenate([run[0] for run in runs], axis=-1)
        total = total + x.sum(axis=1)
        shown = [run[1] for run in runs] + [total / np.float32(count)] * (config["pool"] == "both")
        raw = np.concatenate(shown, axis=-1) @ w["readout.weight"].T + w["readout.bias"]
        return self.finish(raw, last), [*(np.stack([run[i] for run in cells]) for i in (1, 2)), total, count]

    def run(self, k: int, x: np.ndarray, y: np.ndarray, z: np.ndarray, backwards: bool, gaps: list) -> tuple:
        """Run equation (3) of the paper with the weights of cell k; return y of all steps, the last y, the last z."""
        w_u, w_y, w_z, bias = (self.w[f"{name}.{k}"] for name in ("weight_u", "weight_y", "weight_z", "bias"))
        dt, clip, steps, (d_y, d_z) = self.config["dt"][k], self.config["clip"][k], x.shape[1], w_z.shape
        rows = np.cumsum([d_z] if len(w_y) == d_z else [d_z, d_y, d_z])  # where the affine maps after the first begin
        from_u, outputs = x @ w_u.T + bias, np.empty((*x.shape[:2], d_y), np.float32)
        for t in reversed(range(steps)) if backwards else range(steps):
            *gates_u, z_u, y_u = np.split(from_u[:, t], rows, axis=1)
            *gates_y, z_y = np.split(y @ w_y.T, rows[:-1], axis=1)
            dt_z, dt_y = [np.clip(dt * sigmoid(g + h), *clip) for g, h in zip(gates_u, gates_y)] or (dt, dt)
            # A step backwards in time takes the gap to the sample after it.
            dt_z, dt_y = (stretch(gate, gaps[t + backwards]) for gate in (dt_z, dt_y))
            z = (1 - dt_z) * z + dt_z * np.tanh(z_y + z_u)
            y = (1 - dt_y) * y + dt_y * np.tanh(z @ w_z.T + y_u)
            outputs[:, t] = y
        return outputs, y, z

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
        gaps = test.get(f"elapsed_{i}")
        error = np.abs(Model(here / "weights.npz")(test[f"series_{i}"], None, gaps)[0] - test[f"answer_{i}"])
        worst = max(worst, float((error / np.maximum(1.0, np.abs(test[f"answer_{i}"]))).max()))
    print(f"largest error {worst:.2g}; allowed {float(test['allowed']):.2g}")
    sys.exit(worst > float(test["allowed"]))
