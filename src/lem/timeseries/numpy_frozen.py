"""A model of frozen features in NumPy alone: it needs this file and `weights.npz` in the same folder.

model = Model("weights.npz")
answer, _ = model(series)          # (batch, time, channels) -> probabilities or targets
python model.py                    # runs the self-test
"""

import json
import sys
from pathlib import Path

import numpy as np

MOST_STEPS = 16_000
"""About this many steps, of all series together, are held in memory at once."""


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)) without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def difference(x: np.ndarray) -> np.ndarray:
    """Return the difference from the step before; zero at the first step."""
    return np.diff(x, prepend=x[..., :1])


def held(x: np.ndarray, absent: np.ndarray) -> np.ndarray:
    """Fill gaps with the value before them; with zero, the mean, at the start."""
    whole = np.concatenate([np.zeros_like(x[..., :1]), x], axis=-1)
    known = np.where(absent, 0, np.arange(1, whole.shape[-1]))
    return np.take_along_axis(whole, np.maximum.accumulate(known, axis=-1), axis=-1)


class Model:
    """Standardise, run random kernels and recurrent groups, take statistics over time, read out."""

    def __init__(self, path: str | Path) -> None:
        arrays = np.load(path, allow_pickle=False)
        self.w = {name: arrays[name] for name in arrays.files if name != "config"}
        self.config = json.loads(str(arrays["config"]))
        self.labels = self.config["labels"]  # the classes in the order of the probabilities, or None

    def __call__(self, series: np.ndarray) -> tuple[np.ndarray, None]:
        """Return the answer to each whole series; there is no state that could continue them."""
        size = max(1, MOST_STEPS // series.shape[1])
        parts = [self.finish(self.features(series[i : i + size])) for i in range(0, len(series), size)]
        return np.concatenate(parts), None

    def features(self, series: np.ndarray) -> np.ndarray:
        """Return the standardised features of each series: shares of the kernels, then statistics of the groups."""
        w = self.w
        x = ((series.astype(np.float64) - w["mean"]) / w["scale"]).astype(np.float32).transpose(0, 2, 1)
        signals = self.signals(x)
        used = {row for rows in self.config["selected"] for row in rows}
        found: list[np.ndarray] = []
        outputs: dict[int, np.ndarray] = {}
        for k, (signal, dilation, start, count) in enumerate(self.config["blocks"]):
            kernels = self.kernels(k, signals[signal])
            outputs |= {row: kernels[:, row - start] for row in used if start <= row < start + count}
            found.append(self.shares(kernels, dilation, w["kernel_threshold"][:, start : start + count]))
        found += [self.pooled(*each) for each in zip(*self.run(self.read(signals, outputs)), w["threshold"])]
        return (np.concatenate(found, axis=1) - w["feature_mean"]) / w["feature_scale"]

    def signals(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return what kernels and groups read, each (batch, channel, time)."""
        signals = {}
        if self.config["missing"] == "mask":
            absent = np.isnan(x)
            signals["absent"], x = absent.astype(np.float32), held(x, absent)
        signals |= {"value": x, "difference": difference(x)}
        if not self.config["causal"]:
            centred = x - x.mean(axis=2, keepdims=True)
            spread = np.sqrt((centred * centred).mean(axis=2, keepdims=True))
            x = centred / np.where(spread > 1e-6, spread, np.float32(1))
            signals |= {"series": x, "series difference": difference(x)}
        return signals

    def kernels(self, k: int, signal: np.ndarray) -> np.ndarray:
        """Return the outputs (batch, kernel, time) of a block of kernels; outside the series there are zeros."""
        _, dilation, start, count = self.config["blocks"][k]
        mixed = (signal[:, self.w["channel"][k]] * self.w["mixing"][k][:, :, None]).sum(axis=2)
        taps = self.w["taps"][start : start + count]
        taps = taps.reshape(mixed.shape[1], -1, taps.shape[1])
        length, before = taps.shape[2], (taps.shape[2] - 1) // (1 if self.config["causal"] else 2)
        padded = np.pad(mixed, ((0, 0), (0, 0), (before * dilation, (length - 1 - before) * dilation)))
        steps = signal.shape[2]
        shifted = np.stack([padded[..., j * dilation : j * dilation + steps] for j in range(length)], axis=2)
        return np.matmul(taps, shifted).reshape(len(signal), count, steps)

    def shares(self, kernels: np.ndarray, dilation: int, thresholds: np.ndarray) -> np.ndarray:
        """Return the share of steps above each threshold; every other kernel counts only steps it lies inside of."""
        steps, margin = kernels.shape[2], self.w["taps"].shape[1] // 2 * dilation
        inner = slice(0, steps) if self.config["causal"] or steps <= 2 * margin else slice(margin, steps - margin)
        found = []
        for limit in thresholds[:, :, None]:
            over = np.empty(kernels.shape[:2], np.float32)
            over[:, ::2] = (kernels[:, ::2] > limit[::2]).mean(axis=2)
            over[:, 1::2] = (kernels[:, 1::2, inner] > limit[1::2]).mean(axis=2)
            found.append(over)
        return np.concatenate(found, axis=1)

    def read(self, signals: dict, outputs: dict) -> list[np.ndarray]:
        """Return the input (batch, time, input) of every group: first those on the series, then those on kernels."""
        groups = []
        for g, channels in enumerate(self.w["read"]):
            own = not self.config["causal"] and g // 2 % 2 == 1
            value, change = ("series", "series difference") if own else ("value", "difference")
            parts = [signals[value][:, channels], 2 * signals[change][:, channels]]
            parts += [signals["absent"][:, channels]] if "absent" in signals else []
            groups.append(np.concatenate(parts, axis=1))
        for rows in self.config["selected"]:
            groups.append(np.stack([outputs[row] / self.w["kernel_scale"][row] for row in rows], axis=1))
        return [group.transpose(0, 2, 1) for group in groups]

    def run(self, groups: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Run equation (3) of the paper for all groups at once; return y of all steps and the last y of each."""
        w_y, w_z = (self.w[name].transpose(0, 2, 1) for name in ("weight_y", "weight_z"))
        d, dt, clip, raw = w_z.shape[1], self.config["dt"], self.config["clip"], len(self.w["read"])
        rows = np.cumsum([d] if w_y.shape[2] == d else [d, d, d])  # where the affine maps after the first begin
        backwards = [not self.config["causal"] and (g - raw * (g >= raw)) % 2 == 1 for g in range(len(groups))]
        from_u = np.stack([u @ self.w[f"weight_u.{g}"].T + self.w["bias"][g] for g, u in enumerate(groups)])
        from_u[backwards] = from_u[backwards, :, ::-1]
        y = z = np.zeros((len(groups), from_u.shape[1], d), np.float32)
        outputs = np.empty((*from_u.shape[:3], d), np.float32)
        for t in range(from_u.shape[2]):
            *gates_u, z_u, y_u = np.split(from_u[:, :, t], rows, axis=2)
            *gates_y, z_y = np.split(y @ w_y, rows[:-1], axis=2)
            dt_z, dt_y = [np.clip(dt * sigmoid(g + h), *clip) for g, h in zip(gates_u, gates_y)] or (dt, dt)
            z = (1 - dt_z) * z + dt_z * np.tanh(z_y + z_u)
            y = (1 - dt_y) * y + dt_y * np.tanh(z @ w_z + y_u)
            outputs[:, :, t] = y
        outputs[backwards] = outputs[backwards, :, ::-1]
        return outputs, y

    def pooled(self, y: np.ndarray, last: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
        """Return the statistics over time of one group's y (batch, time, unit)."""
        shares = [(y > limit).mean(axis=1) for limit in thresholds]
        rises = (y[:, 1:] > y[:, :-1]).sum(axis=1) / y.shape[1]
        parts = [*shares, rises, last, y.mean(axis=1), y.max(axis=1), y.min(axis=1)]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def finish(self, features: np.ndarray) -> np.ndarray:
        """Read out, in the user's units."""
        raw = features @ self.w["readout.weight"].T + self.w["readout.bias"]
        if self.config["kind"] != "classifier":
            return raw * self.w["target_scale"] + self.w["target_mean"]
        if self.config["several"]:  # labels of which several can hold at once
            return sigmoid(raw)
        e = np.exp(raw - raw.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)


if __name__ == "__main__":
    here, worst = Path(__file__).parent, 0.0
    test, model = np.load(here / "selftest.npz", allow_pickle=False), Model(here / "weights.npz")
    for i in range(int(test["count"])):
        error = np.abs(model(test[f"series_{i}"])[0] - test[f"answer_{i}"])
        worst = max(worst, float((error / np.maximum(1.0, np.abs(test[f"answer_{i}"]))).max()))
    print(f"largest error {worst:.2g}; allowed {float(test['allowed']):.2g}")
    sys.exit(worst > float(test["allowed"]))
