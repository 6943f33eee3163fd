"""A forecaster by segments in NumPy alone: it needs this file and `weights.npz` only.

model = Model("weights.npz")
quantiles, _ = model(series)  # (batch, look_back, channel), NaN where missing -> (batch, horizon, channel, quantile)

Self-test: python model.py
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)) without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


class Model:
    """Standardise a window, run LEM over its segments, decode all future segments at once."""

    def __init__(self, path: str | Path) -> None:
        arrays = np.load(path, allow_pickle=False)
        self.w = {name: arrays[name] for name in arrays.files if name != "config"}
        self.config: dict[str, Any] = json.loads(str(arrays["config"]))
        self.quantiles = self.config["quantiles"]

    def __call__(self, series: np.ndarray) -> tuple[np.ndarray, None]:
        """Return the quantiles of what follows each window."""
        w, config = self.w, self.config
        batch, k, segment, levels = len(series), config["channels"], config["segment"], config["levels"]
        known = ~np.isnan(series)
        filled = np.where(known, series, 1.0 if config["transform"] == "log" else 0.0).astype(np.float64)
        filled = np.log(filled) if config["transform"] == "log" else filled
        mean, scale = w["mean"], w["scale"]
        if config["own_units"]:
            mean, scale = moments(filled, known)
            scale = np.where(scale > 1e-12 * np.abs(mean), scale, 1.0)
        x = ((filled - mean) / scale * known).astype(np.float32)
        steps = np.arange(1, x.shape[1] + 1)[:, None]
        last = (known * steps).argmax(1)[:, None]
        centre = np.take_along_axis(x, last, axis=1)
        spread = np.sqrt(moments(x, known)[1] ** 2 + 0.05**2) if config["scaled"] else np.ones_like(centre)
        normal = (x - centre) / spread * known
        parts = [self.cut(part) for part in ((normal, known) if config["masked"] else (normal,))]
        read = np.concatenate(parts, axis=-1)
        embedded = np.maximum(read @ w["embed.weight"].T + w["embed.bias"], 0.0)
        y = z = np.zeros((batch * k, embedded.shape[2]))
        for u in embedded:
            y, z = self.step(u, y, z)
        out = []
        for position in w["position"]:
            query = np.concatenate([w["channel"], np.repeat(position[None], k, axis=0)], axis=1)
            ahead, _ = self.step(np.tile(query, (batch, 1)), y, z)
            out.append((ahead @ w["out.weight"].T + w["out.bias"]).reshape(batch, k, segment, levels))
        found = np.concatenate(out, axis=2)[:, :, : config["horizon"]].transpose(0, 2, 1, 3)
        if "linear.weight" in w:
            period = config["period"] or 1
            rows = normal[:, -(normal.shape[1] // period * period) :].reshape(batch, -1, period, k)
            linear = np.einsum("an,bnpk->bapk", w["linear.weight"], rows) + w["linear.bias"][:, None, None]
            found = found + linear.reshape(batch, -1, k)[:, : config["horizon"], :, None]
        found = self.widened(found * spread[..., None] + centre[..., None])
        units = (scale[..., None], mean[..., None]) if config["own_units"] else (scale[:, None], mean[:, None])
        found = found * units[0] + units[1]
        return np.exp(found) if config["transform"] == "log" else found, None

    def cut(self, values: np.ndarray) -> np.ndarray:
        """Cut (batch, time, channel) into (segments, batch * channel, segment)."""
        batch, time, k = values.shape
        segment = self.config["segment"]
        parts = values.reshape(batch, time // segment, segment, k).transpose(1, 0, 3, 2)
        return parts.reshape(len(parts), batch * k, segment)

    def step(self, u: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Do one step of equation (3) of the paper."""
        weight_u, weight_y, weight_z, bias = (
            self.w[f"recurrent.cells.0.{name}"] for name in ("weight_u", "weight_y", "weight_z", "bias")
        )
        u_z_gate, u_y_gate, u_z, u_y = np.split(u @ weight_u.T + bias, 4, axis=1)
        y_z_gate, y_y_gate, y_z = np.split(y @ weight_y.T, 3, axis=1)
        dt = self.config["dt"]
        dt_z, dt_y = dt * sigmoid(u_z_gate + y_z_gate), dt * sigmoid(u_y_gate + y_y_gate)
        z = (1 - dt_z) * z + dt_z * np.tanh(y_z + u_z)
        y = (1 - dt_y) * y + dt_y * np.tanh(z @ weight_z.T + u_y)
        return y, z

    def widened(self, quantiles: np.ndarray) -> np.ndarray:
        """Put quantiles in order and multiply their distances from the median by the factors of the calibration."""
        middle, factors = quantiles.shape[-1] // 2, self.w["widths"]
        median = quantiles[..., middle : middle + 1]
        for widen in (False, True):
            low, high = quantiles[..., :middle] - median, quantiles[..., middle + 1 :] - median
            if widen:
                low = np.minimum(low, -1e-3) * factors[:, :middle]
                high = np.maximum(high, 1e-3) * factors[:, middle + 1 :]
            low = np.minimum.accumulate(np.minimum(low, 0.0)[..., ::-1], axis=-1)[..., ::-1]
            high = np.maximum.accumulate(np.maximum(high, 0.0), axis=-1)
            quantiles = np.concatenate([median + low, median, median + high], axis=-1)
        return quantiles


def moments(values: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and spread of the known values over time."""
    count = np.maximum(known.sum(1, keepdims=True), 1)
    mean = (values * known).sum(1, keepdims=True) / count
    return mean, np.sqrt((((values - mean) * known) ** 2).sum(1, keepdims=True) / count)


if __name__ == "__main__":
    here = Path(__file__).parent
    test = np.load(here / "selftest.npz", allow_pickle=False)
    error = np.abs(Model(here / "weights.npz")(test["series_0"])[0] - test["answer_0"])
    worst = float((error / np.maximum(1.0, np.abs(test["answer_0"]))).max())
    print(f"largest error {worst:.2g}; allowed {float(test['allowed']):.2g}")
    sys.exit(worst > float(test["allowed"]))
