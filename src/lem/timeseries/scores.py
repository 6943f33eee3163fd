"""Scores of a model on series with known targets, for people and as JSON."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

NORMAL_95 = 1.959963984540054
"""The 97.5 % point of the normal distribution."""


@dataclass
class Scores:
    """Scores of predictions.

    Attributes:
        kind: "classifier", "regressor" or "forecaster".
        count: the number of series.
        values: the scores by name. Classification: accuracy, its 95 % interval `accuracy_low` and `accuracy_high`,
            `balanced_accuracy`, and of the probabilities `log_loss` and `calibration_error`.
            Otherwise: mae, rmse, r2 (None if the truth is constant), and those of the baseline.
        baseline: what the baseline predicts, in words; "" for classification.
        classes: per class precision, recall, f1 and support.
        confusion: the number of series by true class (rows) and predicted class (columns).

    Examples:
        >>> import numpy as np
        >>> from lem.timeseries.scores import score_classes
        >>> scores = score_classes(np.array(["a", "b", "b", "a"]), np.array(["a", "b", "a", "a"]), np.array(["a", "b"]))
        >>> scores.values["accuracy"]
        0.75
    """

    kind: str
    count: int
    values: dict[str, float | None]
    baseline: str = ""
    classes: dict[str, dict[str, float]] = field(default_factory=dict)
    confusion: list[list[int]] = field(default_factory=list)

    @property
    def main(self) -> tuple[str, float]:
        """The name and value of the score that a one-line summary shows."""
        name = "accuracy" if self.kind == "classifier" else "rmse"
        value = self.values[name]
        assert value is not None
        return ("accuracy" if name == "accuracy" else "RMSE"), value

    def plain(self) -> dict[str, Any]:
        """Return everything as plain values."""
        found: dict[str, Any] = {"kind": self.kind, "series": self.count, **self.values}
        if self.kind == "classifier":
            return {**found, "classes": self.classes, "confusion": self.confusion}
        return {**found, "baseline": self.baseline}

    def lines(self) -> list[str]:
        """Return the scores as lines of text."""
        v = self.values
        if self.kind != "classifier":
            rows = [f"series             {self.count}"]
            for name, label in (("mae", "MAE"), ("rmse", "RMSE"), ("r2", "R2")):
                ours, base = v[name], v[f"baseline_{name}"]
                shown = "undefined (constant truth)" if ours is None else f"{ours:.4g}"
                rows.append(f"{label:18} {shown}" + ("" if base is None else f"  (baseline {base:.4g})"))
            return [*rows, f"baseline           {self.baseline}"]
        rows = [
            f"series             {self.count}",
            f"accuracy           {v['accuracy']:.4g}  (95 % interval {v['accuracy_low']:.3f} to "
            f"{v['accuracy_high']:.3f})",
            f"balanced accuracy  {v['balanced_accuracy']:.4g}",
        ]
        if v.get("log_loss") is not None:
            rows.append(f"log-loss           {v['log_loss']:.4g}")
            rows.append(f"calibration error  {v['calibration_error']:.4g}")
        rows.append("")
        width = max(len("class"), *(len(name) for name in self.classes))
        rows.append(f"{'class':{width}}  precision  recall     F1  series")
        for name, each in self.classes.items():
            numbers = f"{each['precision']:9.3f}  {each['recall']:6.3f}  {each['f1']:5.3f}  {each['support']:6d}"
            rows.append(f"{name:{width}}  {numbers}")
        if len(self.classes) <= 12:
            cell = max(5, *(len(name) for name in self.classes))
            rows += [
                "",
                f"{'true / predicted':{max(width, 16)}}  " + "  ".join(f"{name:>{cell}}" for name in self.classes),
            ]
            for name, counts in zip(self.classes, self.confusion):
                rows.append(f"{name:{max(width, 16)}}  " + "  ".join(f"{count:{cell}d}" for count in counts))
        return rows


def wilson(right: int, count: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share (Wilson's score interval)."""
    if count == 0:
        return 0.0, 1.0
    z, share = NORMAL_95, right / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    # Rounding must not push an end past what is possible.
    return max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share))


def log_loss(place: np.ndarray, chances: np.ndarray) -> float:
    """Return the mean negative log-probability of the true class, in column `place`; -1 is a class without a column."""
    right = np.where(place >= 0, chances[np.arange(len(place)), place], 0.0)
    return float(-np.log(np.clip(right, 1e-12, 1.0)).mean())


def calibration_error(right: np.ndarray, chances: np.ndarray, bins: int = 10) -> float:
    """Return the expected calibration error: how far the share of right answers is from the probability given.

    Answers are sorted into bins by the probability of the predicted class; the error is the mean over all answers.
    """
    sure = chances.max(1)
    which = np.minimum((sure * bins).astype(int), bins - 1)
    gaps = [abs(right[which == b].sum() - sure[which == b].sum()) for b in np.unique(which)]
    return float(sum(gaps) / len(right))


def score_classes(
    truth: np.ndarray, answer: np.ndarray, chances: np.ndarray | None = None, names: np.ndarray | None = None
) -> Scores:
    """Score predicted labels, compared as text, and their probabilities, whose columns are the classes `names`."""
    # As objects: an array of texts would give every label the room of the longest.
    truth, answer = (np.array(list(map(str, given.tolist())), dtype=object) for given in (truth, answer))
    labels = np.unique(np.concatenate([truth, answer]))
    rows, columns = np.searchsorted(labels, truth), np.searchsorted(labels, answer)
    table = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(table, (rows, columns), 1)
    right, support, predicted = table.diagonal(), table.sum(1), table.sum(0)
    classes = {}
    for k, label in enumerate(labels.tolist()):
        precision = float(right[k] / predicted[k]) if predicted[k] else 0.0
        recall = float(right[k] / support[k]) if support[k] else 0.0
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        classes[label] = {"precision": precision, "recall": recall, "f1": f1, "support": int(support[k])}
    present = support > 0
    low, high = wilson(int(right.sum()), len(truth))
    values: dict[str, float | None] = {
        "accuracy": float(right.sum() / len(truth)),
        "accuracy_low": low,
        "accuracy_high": high,
        "balanced_accuracy": float((right[present] / support[present]).mean()),
    }
    if chances is not None and names is not None:
        column = {str(name): k for k, name in enumerate(names.tolist())}
        values["log_loss"] = log_loss(np.array([column.get(label, -1) for label in truth.tolist()]), chances)
        values["calibration_error"] = calibration_error(truth == answer, chances)
    return Scores("classifier", len(truth), values, classes=classes, confusion=table.tolist())


def score_numbers(kind: str, truth: np.ndarray, answer: np.ndarray, base: np.ndarray, baseline: str) -> Scores:
    """Score predicted numbers and those of a baseline."""
    truth, answer = np.asarray(truth, dtype=np.float64), np.asarray(answer, dtype=np.float64)
    base = np.broadcast_to(base, truth.shape)
    values = {**_errors(truth, answer), **{f"baseline_{name}": value for name, value in _errors(truth, base).items()}}
    return Scores(kind, len(truth), values, baseline)


def _errors(truth: np.ndarray, answer: np.ndarray) -> dict[str, float | None]:
    known = ~np.isnan(truth)
    error = (answer - truth)[known]
    spread = float(((truth[known] - truth[known].mean()) ** 2).sum())
    return {
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt((error**2).mean())),
        "r2": 1.0 - float((error**2).sum()) / spread if spread > 0 else None,
    }


def one_score(metric: str, estimator: Any, X: Any, y: np.ndarray, **times: Any) -> float:
    """Return one score of a fitted estimator: accuracy, balanced_accuracy, log_loss, rmse or mae."""
    if metric == "log_loss":
        chances = estimator.predict_proba(X, **times)
        place = {str(label): k for k, label in enumerate(estimator.classes_.tolist())}
        return log_loss(np.array([place.get(str(label), -1) for label in y.tolist()]), chances)
    answer = estimator.predict(X, **times)
    if metric in ("rmse", "mae"):
        error = np.asarray(answer, dtype=np.float64).reshape(y.shape) - y
        return float(np.abs(error).mean() if metric == "mae" else math.sqrt((error**2).mean()))
    right = np.array([str(a) == str(b) for a, b in zip(answer.tolist(), y.tolist())])
    if metric == "accuracy":
        return float(right.mean())
    return float(np.mean([right[y == label].mean() for label in np.unique(y)]))
