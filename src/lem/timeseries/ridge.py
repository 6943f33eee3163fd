"""Ridge regression with its penalty chosen by the exact leave-one-out error, for more features than samples.

The penalty is relative: 1 stands for the mean squared length of the centred samples. With at most `EXACT` samples or
features one eigendecomposition answers for all penalties at once; beyond that, part of the samples is held out.
"""

from typing import NamedTuple

import numpy as np

PENALTIES = np.logspace(-4.0, 5.0, 28)
EXACT = 4000
"""The largest eigenproblem solved: it takes about a minute on one core."""


class Ridge(NamedTuple):
    """A fitted ridge regression: predictions are `features @ weight.T + bias`."""

    weight: np.ndarray
    bias: np.ndarray
    penalty: float
    rows: np.ndarray
    """The samples for which there is a prediction of a model that has not seen them."""
    left_out: np.ndarray
    """These predictions, (len(rows), outputs)."""


def fit_ridge(features: np.ndarray, targets: np.ndarray, sample_weight: np.ndarray | None = None) -> Ridge:
    """Fit targets (n, outputs) to features (n, size), with an intercept that is not penalised."""
    n = len(features)
    weights = np.ones(n) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    weights = weights / weights.mean()
    centre = (weights.astype(features.dtype) @ features) / n
    mean = (weights @ targets) / n
    root = np.sqrt(weights)[:, None]
    x = (features - centre) * root.astype(features.dtype)
    y = (targets - mean) * root
    if min(x.shape) > EXACT:
        return _held_out(x, y, features, targets, centre, mean, weights)
    wide = x.shape[1] >= n
    gram = _product(x, x.T) if wide else _product(x.T, x)
    unit = max(np.trace(gram) / n, np.finfo(np.float64).tiny)
    values, vectors = np.linalg.eigh(gram)
    values = values.clip(min=0.0)
    if wide:
        left, inner = vectors, vectors.T @ y
    else:
        keep = values > 1e-12 * values.max(initial=0.0)
        values, vectors = values[keep], vectors[:, keep]
        left = _product(x, vectors) / np.sqrt(values)
        inner = left.T @ y
    squares = left**2
    best, chosen, missed = np.inf, PENALTIES[0], y
    for penalty in PENALTIES:
        shrink = values / (values + penalty * unit)
        # The intercept has its own leverage: weight / n.
        rest = 1.0 - squares @ shrink - weights / n
        error = (y - left @ (shrink[:, None] * inner)) / np.maximum(rest, 1e-12)[:, None]
        loss = float((error**2).mean())
        if loss < best:
            best, chosen, missed = loss, penalty, error
    solved = inner / (values + chosen * unit)[:, None]
    weight = _product(x.T, vectors @ solved) if wide else vectors @ (np.sqrt(values)[:, None] * solved)
    positive = weights > 0
    left_out = targets - missed / np.where(positive, root[:, 0], 1.0)[:, None]
    return Ridge(weight.T, mean - weight.T @ centre, float(chosen), np.flatnonzero(positive), left_out[positive])


def _held_out(
    x: np.ndarray,
    y: np.ndarray,
    features: np.ndarray,
    targets: np.ndarray,
    centre: np.ndarray,
    mean: np.ndarray,
    weights: np.ndarray,
) -> Ridge:
    """Choose the penalty on every fifth sample, by Cholesky factorisations; then fit all samples."""
    held = np.arange(len(x)) % 5 == 4
    wide = x.shape[1] >= len(x)
    gram = _product(x, x.T) if wide else _product(x.T, x)
    part = gram[np.ix_(~held, ~held)] if wide else gram - _product(x[held].T, x[held])
    best, chosen, shown = np.inf, PENALTIES[0], np.empty(0)
    for penalty in np.logspace(-3.0, 3.0, 7):
        weight = _solve(part, x[~held], y[~held], penalty, wide)
        guess = (features[held] - centre) @ weight + mean
        loss = float((weights[held, None] * (targets[held] - guess) ** 2).mean())
        if loss < best:
            best, chosen, shown = loss, penalty, guess
    weight = _solve(gram, x, y, chosen, wide)
    return Ridge(weight.T, mean - weight.T @ centre, float(chosen), np.flatnonzero(held), shown)


def _solve(gram: np.ndarray, x: np.ndarray, y: np.ndarray, penalty: float, wide: bool) -> np.ndarray:
    from scipy import linalg  # here, so that model files load without scipy

    gram = gram.copy()
    gram[np.diag_indices_from(gram)] += penalty * max(np.trace(gram) / len(x), np.finfo(np.float64).tiny)
    solved = linalg.solve(gram, y if wide else _product(x.T, y), assume_a="pos", overwrite_a=True)
    return _product(x.T, solved) if wide else solved


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply in float64, in slices, so that no float64 copy of all features is made."""
    out = np.zeros((a.shape[0], b.shape[1]))
    step = max(1, (1 << 24) // max(a.shape[0] + b.shape[1], 1))
    for start in range(0, a.shape[1], step):
        part = slice(start, start + step)
        out += a[:, part].astype(np.float64) @ b[part].astype(np.float64)
    return out


def temperature(scores: np.ndarray, classes: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return the factor by which scores enter the softmax that minimises the log-loss of these predictions.

    As in Platt's calibration, one sample in n + 2 counts as of another class: few right answers prove nothing.
    """
    n, count = scores.shape
    wanted = np.full((n, count), 1.0 / (n + 2) / max(count - 1, 1))
    wanted[np.arange(n), classes] = 1.0 - 1.0 / (n + 2)
    best, chosen = np.inf, 1.0
    for factor in np.geomspace(0.1, 100.0, 61):
        z = factor * scores
        z = z - z.max(1, keepdims=True)
        losses = np.log(np.exp(z).sum(1)) - (wanted * z).sum(1)
        loss = float(np.average(losses, weights=weights))
        if loss < best:
            best, chosen = loss, float(factor)
    return chosen
