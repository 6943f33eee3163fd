"""Regression: numbers for a series."""

from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_array

from lem.timeseries.predictor import Predictor
from lem.timeseries.series import Series
from lem.timeseries.supervised import SupervisedEstimator
from lem.training.data import ArraySplit


class LEMRegressor(RegressorMixin, SupervisedEstimator):
    """Predict one number, or several, for each time series: y is (n,) or (n, targets).

    The arguments and attributes are those of `SupervisedEstimator` and `SeriesEstimator`.

    Examples:
        >>> import numpy as np
        >>> from lem import LEMRegressor
        >>> random = np.random.default_rng(0)
        >>> y = random.uniform(0.2, 1.0, 40)  # the frequency of each series
        >>> X = np.sin(y[:, None] * np.arange(60)) + random.normal(0, 0.1, (40, 60))
        >>> model = LEMRegressor(effort="quick", random_state=0).fit(X[:30], y[:30])
        >>> model.predict(X[30:]).shape
        (10,)
    """

    _kind = "regressor"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, times: Any = None) -> float:
        """Return R^2; `times` as in `fit`."""
        return float(r2_score(y, self.predict(X, times=times), sample_weight=sample_weight))

    def _targets(self, y: Any, first: bool) -> np.ndarray:
        targets = _numeric_targets(y, self._name)
        if first:
            self._flat = targets.ndim == 1
            self.n_outputs_ = 1 if self._flat else targets.shape[1]
        targets = targets[:, None] if targets.ndim == 1 else targets
        if targets.shape[1] != self.n_outputs_:
            raise ValueError(
                f"`y` of {self._name} must have {self.n_outputs_} columns, as in fit; got {targets.shape[1]}."
            )
        return targets

    def _new_predictor(self, series: Series, targets: np.ndarray, architecture: dict[str, Any]) -> Predictor:
        predictor = Predictor(
            "regressor", self.n_channels_in_, self.n_outputs_, architecture, missing=self.missing, flat=self._flat
        )
        predictor.set_units(series, targets)
        return predictor

    def _eval_score(self, series: Series, targets: np.ndarray) -> float:
        """Return the root of the mean squared error."""
        return float(np.sqrt(((self.predictor_.answers(series) - targets) ** 2).mean()))

    def _split(self, series: Series, targets: np.ndarray) -> ArraySplit:
        predictor, (inputs, lengths, elapsed) = self.predictor_, self._standard(series)
        wanted = (torch.from_numpy(targets) - predictor.target_mean) / predictor.target_scale
        return ArraySplit(inputs, wanted.to(inputs.dtype), lengths, elapsed=elapsed)


def _numeric_targets(y: Any, whose: str) -> np.ndarray:
    if y is None:
        raise ValueError(f"`y` of {whose} must be given: it requires y to be passed, but the target y is None.")
    targets = check_array(y, ensure_2d=False, dtype=np.float64, ensure_all_finite=False, input_name="y")
    bad = np.argwhere(~np.isfinite(targets))
    if len(bad):
        what = "NaN" if np.isnan(targets[tuple(bad[0])]) else "infinity"
        raise ValueError(f"Input y contains {what}: `y` of {whose} must be finite; see sample {bad[0][0]}.")
    return targets
