"""What mattered for an answer: occlude parts of a series and see how far the answer moves."""

from pathlib import Path
from typing import Any

import numpy as np

from lem.extras import extra, pyplot
from lem.timeseries.predictor import Predictor
from lem.timeseries.series import Series


class Explanation:
    """The effect of each part of each channel of each series.

    Attributes:
        effect: one array (channels, windows) per series: the loss of probability of the predicted class, or the change
            of the (first) prediction in units of its spread over the training series.
        edges: one array (windows + 1,) per series: where the windows begin and end, in steps.
        values: the series, one array (channels, length) each.

    Examples:
        >>> import numpy as np
        >>> from lem.timeseries import LEMClassifier
        >>> X, y = np.random.default_rng(0).normal(size=(20, 2, 40)), np.arange(20) % 2
        >>> explanation = LEMClassifier(effort="quick", random_state=0).fit(X, y).explain(X[:3], windows=5)
        >>> len(explanation.effect), explanation.effect[0].shape  # (channels, windows) of each series
        (3, (2, 5))
    """

    def __init__(self, effect: list[np.ndarray], edges: list[np.ndarray], values: list[np.ndarray]) -> None:
        self.effect = effect
        self.edges = edges
        self.values = values

    def plot(self, path: str | Path, series: int = 0) -> Path:
        """Draw one series, each channel over the colours of its effect, into a file; needs matplotlib."""
        plt = pyplot()
        effect, edges, values = self.effect[series], self.edges[series], self.values[series]
        shown = min(len(values), 12)
        chart, axes = plt.subplots(
            shown, 1, figsize=(8, 1.2 + 1.1 * shown), sharex=True, squeeze=False, layout="constrained"
        )
        largest = max(float(np.abs(effect).max()), 1e-9)
        norm = extra("matplotlib.colors", "Figures need").Normalize(-largest, largest)
        for axis, row, line in zip(axes[:, 0], effect, values):
            known = line[np.isfinite(line)]
            low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
            image = axis.imshow(
                row[None], extent=(edges[0], edges[-1], low, high), aspect="auto", cmap="RdBu_r", norm=norm, alpha=0.6
            )
            axis.plot(np.arange(len(line)) + 0.5, line, color="0.15", linewidth=1)
        axes[-1, 0].set(xlabel="step")
        chart.colorbar(image, ax=axes[:, 0].tolist(), label="effect on the answer")
        chart.savefig(path, dpi=150)
        plt.close(chart)
        return Path(path)


def occlusion(predictor: Predictor, series: Series, windows: int) -> Explanation:
    """Replace each window of each channel by the channel's training mean, and measure how far the answer moves.

    Examples:
        >>> import numpy as np
        >>> from lem.timeseries import LEMRegressor
        >>> from lem.timeseries.explain import occlusion
        >>> from lem.timeseries.series import as_series
        >>> X, y = np.random.default_rng(0).normal(size=(20, 40)), np.arange(20.0)
        >>> model = LEMRegressor(effort="quick", random_state=0).fit(X, y)
        >>> explanation = occlusion(model.predictor_, as_series(X[:2], "example"), windows=4)  # as model.explain(X[:2])
        >>> explanation.effect[0].shape
        (1, 4)
    """
    if not isinstance(windows, int | np.integer) or windows < 1:
        raise ValueError(f"`windows` of explain must be a positive integer; got {windows!r}.")
    answers = predictor.answers(series)
    mean = predictor.mean.numpy()
    effects, all_edges, values = [], [], []
    for i, (row, length) in enumerate(zip(series.values, series.lengths)):
        edges = np.unique(np.linspace(0, length, min(windows, int(length)) + 1).round().astype(int))
        parts = [(c, w) for c in range(row.shape[1]) for w in range(len(edges) - 1)]
        changed = np.repeat(row[None, :length], len(parts), axis=0)
        for copy, (c, w) in zip(changed, parts):
            copy[edges[w] : edges[w + 1], c] = mean[c]
        gaps = series.elapsed
        elapsed = None if gaps is None else np.repeat(gaps[i][None, :length], len(parts), axis=0)
        moved = predictor.answers(Series(changed, np.full(len(parts), length), elapsed))
        effects.append(_distance(predictor, answers[i], moved).reshape(row.shape[1], -1))
        all_edges.append(edges)
        values.append(row[:length].T.copy())
    return Explanation(effects, all_edges, values)


def _distance(predictor: Predictor, answer: np.ndarray, moved: np.ndarray) -> Any:
    if predictor.kind == "classifier":
        chosen = int(answer.argmax())
        return answer[chosen] - moved[:, chosen]
    return (moved[:, 0] - answer[0]) / predictor.target_scale.numpy()[0]
