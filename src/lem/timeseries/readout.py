"""Fit a model of frozen features: the network is drawn, and a ridge regression on its features is solved exactly.

Class scores become probabilities by one factor in the softmax, chosen on leave-one-out predictions.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from lem.timeseries.batches import Stage
from lem.timeseries.frozen import Frozen, adapt
from lem.timeseries.predictor import Predictor
from lem.timeseries.ridge import Ridge, fit_ridge, temperature
from lem.timeseries.series import Series

EFFORTS = {"quick": 3_000, "default": 10_000, "best": 30_000}
"""The number of features at each effort."""
BLENDS = {
    "all": None,
    "kernels": (1.0, 0.0, 0.0),
    "series": (0.0, 1.0, 0.0),
    "groups": (0.0, 0.0, 1.0),
    "kernels, groups": (1.0, 0.0, 1.0),
    "series, groups": (0.0, 1.0, 1.0),
    "kernels, series": (1.0, 1.0, 0.0),
    "more series": (1.0, 3.0, 1.0),
}
"""The weights of kernels, of groups on the series and of groups on kernels that `effort="best"` compares; None weighs
every feature alike."""


def fit_readout(
    predictor: Predictor,
    series: Series,
    targets: np.ndarray,
    *,
    weights: np.ndarray | None,
    compare: bool,
    random: Any,
    verbose: int,
    name: str,
    listener: Callable[[Any], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Draw the network of `predictor`, solve its readout, and return what is worth knowing of the fit.

    Args:
        predictor: with a `Frozen` network and its units set.
        series: the training series.
        targets: classes from 0 (n,), labels of 0 and 1 (n, labels), or numbers (n, targets).
        weights: of the series, or None.
        compare: choose how much kernels and groups weigh, by the leave-one-out error.
        random: a NumPy generator.
        verbose: print each stage to standard error.
        name: of the estimator, for these lines.
        listener: called with a `Stage` as the fit goes on.
        should_stop: asked from time to time; True raises KeyboardInterrupt, since half a ridge regression is useless.
    """
    begun = time.monotonic()
    model = predictor.model
    assert isinstance(model, Frozen)

    def say(text: str) -> None:
        if verbose:
            print(f"{name} {text}  {time.monotonic() - begun:.1f} s", file=sys.stderr)

    def tell(stage: str, share: float) -> None:
        if should_stop is not None and should_stop():
            raise KeyboardInterrupt(
                "frozen features are fitted in one step, so nothing is kept; run the command again, or a faster "
                "fit with effort quick"
            )
        if listener is not None:
            spent = time.monotonic() - begun
            listener(Stage(stage, share, spent / share - spent if 0.0 < share < 1.0 else None))

    model.draw(float(np.median(series.lengths)), random)
    features = adapt(model, predictor.standardise, series, random, lambda share: tell("features", share))
    say(f"{len(features)} series, {model.size} features")
    classes = predictor.kind == "classifier"
    several = classes and predictor.flat
    if several:
        wanted = 2.0 * targets - 1.0
    elif classes:
        wanted = np.where(np.arange(predictor.outputs) == targets[:, None], 1.0, -1.0)
    else:
        wanted = (targets - predictor.target_mean.numpy()) / predictor.target_scale.numpy()
    tell("readout", 1.0)
    ridge, blend = _solve(model, features, wanted, weights, compare, lambda name: tell(f"readout: {name}", 1.0))
    known = None if weights is None else weights[ridge.rows]
    factor: Any = 1.0
    if several:
        factor = _factors(ridge.left_out, targets[ridge.rows], known)
    elif classes:
        factor = temperature(ridge.left_out, targets[ridge.rows], known)
    assert isinstance(model.readout, torch.nn.Linear)
    with torch.no_grad():
        model.readout.weight.copy_(torch.from_numpy(np.reshape(factor, (-1, 1)) * ridge.weight))
        model.readout.bias.copy_(torch.from_numpy(factor * ridge.bias))
    if several:
        score = float(np.average(((ridge.left_out > 0) == targets[ridge.rows]).all(1), weights=known))
        say(f"leave-one-out accuracy of all labels together {score:.4g}")
    elif classes:
        score = float(np.average(ridge.left_out.argmax(1) == targets[ridge.rows], weights=known))
        say(f"leave-one-out accuracy {score:.4g}")
    else:
        score = float(np.average(((ridge.left_out - wanted[ridge.rows]) ** 2).mean(1), weights=known))
        say(f"leave-one-out squared error {score:.4g} of the variance")
    predictor.eval()
    return {
        "features": model.size,
        "penalty": ridge.penalty,
        "blend": blend,
        "left_out": score,
        "seconds": round(time.monotonic() - begun, 2),
    }


def _factors(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return for each label the factor by which its score enters the logistic function."""
    pairs = [np.stack([-score, score], axis=1) for score in scores.T]
    return np.array([2.0 * temperature(pair, label, weights) for pair, label in zip(pairs, labels.T.astype(int))])


def _solve(
    model: Frozen,
    features: np.ndarray,
    wanted: np.ndarray,
    weights: np.ndarray | None,
    compare: bool,
    tell: Callable[[str], None],
) -> tuple[Ridge, str]:
    """Return the ridge regression, and the name of the blend chosen by the leave-one-out error."""
    if not compare:
        return fit_ridge(features, wanted, weights), "all"
    raw = model.groups * (model.size - model.bank.features) // len(model.cells)
    counts = (model.bank.features, raw, model.size - model.bank.features - raw)
    best: tuple[float, Ridge, str] | None = None
    for name, blend in BLENDS.items():
        tell(name)
        column = np.ones(model.size, dtype=np.float32)
        if blend is not None:
            each = [np.sqrt(part / count) if part else 0.0 for part, count in zip(blend, counts)]
            column = np.repeat(np.array(each, dtype=np.float32), counts)
        used = column > 0
        found = fit_ridge(features[:, used] * column[used], wanted, weights)
        known = None if weights is None else weights[found.rows]
        error = float(np.average(((wanted[found.rows] - found.left_out) ** 2).mean(1), weights=known))
        if best is None or error < best[0]:
            weight = np.zeros((wanted.shape[1], model.size))
            weight[:, used] = found.weight * column[used]
            best = error, found._replace(weight=weight), name
    assert best is not None
    return best[1], best[2]
