"""The features of one series by plain loops in float64: a second voice for `lem.timeseries.frozen`.

It reads the drawn numbers of a network (weights, thresholds, which kernels are read) and nothing else.
"""

import numpy as np

from tests import paper

SIGNALS = ("value", "difference", "series", "series difference")


def features(model, x, absent=None):
    """Return all features of one standardised series (time, channels); `absent` marks missing values."""
    x = np.array(x, dtype=np.float64)
    if absent is not None:
        for t in range(len(x)):
            for c in range(x.shape[1]):
                if absent[t, c]:
                    x[t, c] = x[t - 1, c] if t else 0.0
    signals = {"value": x, "difference": differences(x)}
    if not model.causal:
        own = np.empty_like(x)
        for c in range(x.shape[1]):
            spread = x[:, c].std()
            own[:, c] = (x[:, c] - x[:, c].mean()) / (spread if spread > 1e-6 else 1.0)
        signals["series"], signals["series difference"] = own, differences(own)
    found, outputs = [], []
    bank = model.bank
    threshold = bank.threshold.double().numpy()
    for k, block in enumerate(bank.blocks):
        rows = kernels(bank, k, signals[block.signal])
        outputs += rows
        for q in range(len(threshold)):
            for r, row in enumerate(rows):
                counted = row
                margin = 4 * block.dilation
                if not model.causal and r % 2 == 1 and len(x) > 2 * margin:
                    counted = row[margin : len(x) - margin]
                found.append(np.mean(counted > threshold[q, block.start + r]))
    for g in range(len(model.cells)):
        found += group(model, g, signals, absent, outputs)
    return np.array(found)


def differences(x):
    out = np.zeros_like(x)
    out[1:] = x[1:] - x[:-1]
    return out


def kernels(bank, k, signal):
    """Return the output of every kernel of one block."""
    block, steps, rows = bank.blocks[k], len(signal), []
    per_mixture = block.count // block.mixtures
    for r in range(block.count):
        m = r // per_mixture
        mixed = sum(float(w) * signal[:, int(c)] for c, w in zip(bank.channel[k, m], bank.mixing[k, m], strict=True))
        taps = bank.taps[block.start + r].double().numpy()
        row = np.zeros(steps)
        for t in range(steps):
            for j in range(9):
                at = t + (j - (8 if bank.causal else 4)) * block.dilation
                if 0 <= at < steps:
                    row[t] += taps[j] * mixed[at]
        rows.append(row)
    return rows


def group(model, g, signals, absent, outputs):
    """Return the statistics of one group of LEM units."""
    cell, raw = model.cells[g], g < model.groups
    place = g if raw else g - model.groups
    backwards = not model.causal and place % 2 == 1
    if raw:
        own = not model.causal and (g // 2) % 2 == 1
        value, difference = (signals[name] for name in (SIGNALS[2:] if own else SIGNALS[:2]))
        read = model.read[g].tolist()
        parts = [value[:, read], 2.0 * difference[:, read]] + ([absent[:, read]] if absent is not None else [])
        u = np.concatenate(parts, axis=1)
    else:
        read = model.selected[place]
        u = np.stack([outputs[k] / float(model.bank.scale[k]) for k in read], axis=1)
    weights = {name: p.detach().double().numpy() for name, p in cell.named_parameters()}
    y = lem(weights, u[::-1] if backwards else u)
    last = y[-1]
    y = y[::-1] if backwards else y
    steps = len(y)
    shares = [(y > limit).mean(0) for limit in model.threshold[g].double().numpy()]
    rises = (y[1:] > y[:-1]).sum(0) / steps
    return list(np.concatenate([*shares, rises, last, y.mean(0), y.max(0), y.min(0)]))


def lem(weights, u):
    """Run equation (3) of the paper over u (time, inputs) from zero, with dt = 1; return y of all steps."""
    d = weights["weight_z"].shape[0]
    y, z, ys = np.zeros(d), np.zeros(d), []
    for row in u:
        from_u = weights["weight_u"] @ row + weights["bias"]
        from_y = weights["weight_y"] @ y
        dt_z = paper.sigmoid(from_u[:d] + from_y[:d])
        dt_y = paper.sigmoid(from_u[d : 2 * d] + from_y[d : 2 * d])
        z = (1 - dt_z) * z + dt_z * np.tanh(from_u[2 * d : 3 * d] + from_y[2 * d :])
        y = (1 - dt_y) * y + dt_y * np.tanh(weights["weight_z"] @ z + from_u[3 * d :])
        ys.append(y)
    return np.array(ys)
