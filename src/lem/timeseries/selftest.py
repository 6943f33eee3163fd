"""The self-test of an exported model: series, and the answers that the exported model must give to them."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lem.timeseries.frozen import Frozen
from lem.timeseries.predictor import Predictor

ALLOWED = 1e-5
"""The largest error of an export, relative to answers larger than one: float32 rounding over a thousand steps.

A model that amplifies rounding is allowed ten times its own distance from float64, where that is more.
"""
TEST_LENGTHS = (1, 7, 1000)
CANDIDATES = 32
"""From how many series of each length the two are chosen whose comparisons with thresholds hang least on rounding."""
NUDGES, NUDGE = 3, 5e-7
"""How often, and how far relatively, values and weights are moved to see that."""

Run = Callable[[np.ndarray, np.ndarray | None], np.ndarray]
"""An exported model as a function of the series and, where it takes them, the elapsed times."""


def allowance(folder: str | Path) -> float:
    """Return the largest error that the self-test of an exported model allows."""
    return float(np.load(Path(folder) / "selftest.npz", allow_pickle=False)["allowed"])


def distance(answer: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest error, relative to answers larger than one."""
    return float((np.abs(answer - expected) / np.maximum(1.0, np.abs(expected))).max())


def write_selftest(predictor: Predictor, folder: Path, elapsed: bool) -> None:
    """Write `selftest.npz`: series of several lengths, the answers to them and the tolerance."""
    random = np.random.default_rng(0)
    lengths = TEST_LENGTHS
    if isinstance(predictor.model, Frozen):  # the kernels reach over about one series of the training set
        lengths = (*TEST_LENGTHS[:2], min(predictor.model.bank.reach + 1, TEST_LENGTHS[2]))
    tests: dict[str, Any] = {"count": len(lengths), "allowed": ALLOWED}
    exact = copy.deepcopy(predictor).double()
    for i, length in enumerate(lengths):
        timed: dict[str, Any] = {}
        series = _test_series(predictor, length, random)
        if elapsed:
            gaps = np.exp(random.standard_normal((2, length))).astype(np.float32)
            tests[f"elapsed_{i}"], timed = gaps, {"elapsed": torch.from_numpy(gaps).T}
        answer, truth = (_answer(each, series, **timed) for each in (predictor, exact))
        error = distance(answer, truth)
        if isinstance(predictor.model, Frozen):
            series, answer, error = _far_from_thresholds(predictor, exact, length, random)
            tests["allowed"] = max(tests["allowed"], _jump(predictor, predictor.model, length))
        tests |= {f"series_{i}": series, f"answer_{i}": answer}
        tests["allowed"] = max(tests["allowed"], 10.0 * error)
    np.savez(folder / "selftest.npz", **tests)


def _test_series(predictor: Predictor, length: int, random: np.random.Generator) -> np.ndarray:
    mean, scale = predictor.mean.numpy(), predictor.scale.numpy()
    series = (mean + scale * random.standard_normal((2, length, len(mean)))).astype(np.float32)
    if predictor.missing == "mask" and length > 1:
        series[0, 1] = np.nan
    return series


def _answer(predictor: Predictor, series: np.ndarray, **timed: Tensor) -> np.ndarray:
    with torch.inference_mode():
        answer: Tensor = predictor(torch.from_numpy(series).transpose(0, 1), **timed)[0]
    return answer.numpy()


def _far_from_thresholds(
    predictor: Predictor, exact: Predictor, length: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return two series, their answers, and how much rounding moves these.

    A feature that counts the steps above a threshold jumps where rounding decides a comparison. So of many series
    those are taken whose answers move least in float64, and when input and weights move by a few roundings.
    """
    series = np.concatenate([_test_series(predictor, length, random) for _ in range(CANDIDATES // 2)])
    if predictor.missing == "mask" and length > 1:
        series[:, 1] = np.nan
    answer = _answer(predictor, series)
    error = np.zeros(len(series))
    for k in range(1 + NUDGES):
        other, moved = exact, series
        if k > 0:
            other = copy.deepcopy(predictor)
            moved = series * (1.0 + NUDGE * random.uniform(-1.0, 1.0, series.shape)).astype(np.float32)
            with torch.no_grad():
                for weight in (weight for cell in other.model.cells for weight in cell.parameters()):
                    noise = torch.from_numpy(random.uniform(-1.0, 1.0, tuple(weight.shape))).float()
                    weight.mul_(1.0 + NUDGE * noise)
        difference = np.abs(_answer(other, moved) - answer) / np.maximum(1.0, np.abs(answer))
        error = np.maximum(error, difference.reshape(len(series), -1).max(axis=1))
    best = np.argsort(error, kind="stable")[:2]
    return series[best], _answer(predictor, series[best]), float(error[best].max())


def _jump(predictor: Predictor, model: Frozen, length: int) -> float:
    """Return how far an answer can move if rounding decides whether one saturated unit rises at one step.

    No choice of series avoids that, but the short ones are over before units saturate.
    """
    if length <= TEST_LENGTHS[1]:
        return 0.0
    rises = [statistic == "rise" for _, statistic in model.origins()]
    slope = (model.get_parameter("readout.weight").abs() / model.feature_scale)[:, rises].amax().item() / length
    # A probability moves by at most a quarter of what its score moves by, relative to another score.
    return slope * (0.5 if predictor.kind == "classifier" else float(predictor.target_scale.max()))
