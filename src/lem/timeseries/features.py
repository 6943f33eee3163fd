"""`LEMFeatures`: a scikit-learn transformer from time series to features, without training.

make_pipeline(LEMFeatures(), RidgeClassifierCV()).fit(X_train, y_train)
"""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from lem.nn.cells import CELLS, State
from lem.shapes import Float, Int
from lem.timeseries.batches import in_batches
from lem.timeseries.estimator import is_table
from lem.timeseries.frozen import Frozen, adapt, plan
from lem.timeseries.predictor import channel_units, standardise
from lem.timeseries.schema import ON_MISSING
from lem.timeseries.series import Series, as_series, question_axes, unpacked
from lem.timeseries.stream import Stream, Streams
from lem.wording import check_choice


class FeatureMap(nn.Module):
    """From raw series to standardised features: the part of `LEMFeatures` that runs on tensors and on streams."""

    mean: Tensor
    scale: Tensor

    def __init__(self, model: Frozen, channels: int, missing: str) -> None:
        super().__init__()
        self.model = model
        self.channels = channels
        self.missing = missing
        self.register_buffer("mean", torch.zeros(channels, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(channels, dtype=torch.float64))

    def standardise(self, u: Tensor) -> Tensor:
        """Turn raw series into the network's input."""
        return standardise(u, self.mean, self.scale, self.missing, torch.float32)

    def forward(
        self,
        u: Float[Tensor, "time batch channel"],
        state: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        every_step: bool = False,
    ) -> tuple[Tensor, State]:
        """Return the features after the last step, or after every step, and the state that continues the series."""
        return self.model.features(self.standardise(u), state, lengths, every_step)

    def answer(self, features: Tensor, last: Tensor) -> Tensor:
        """Return the features as they are."""
        return features

    def shape(self, answers: np.ndarray) -> np.ndarray:
        """Return the features as they are."""
        return answers


class LEMFeatures(TransformerMixin, BaseEstimator):
    """Turn time series into features by frozen recurrent networks over many time scales.

    Random LEM layers, some on the series and some on random local kernels, run over every series; the features are
    statistics of their states over time, and the shares of steps on which the kernels exceed thresholds. Nothing is
    trained: `fit` draws the weights, estimates thresholds, and standardises every feature on the training series.
    A linear model on the features is fast and accurate: `make_pipeline(LEMFeatures(), RidgeClassifierCV())`.

    Series of unequal length are exact: no feature depends on padding or on the other series of a call to `transform`.

    Args:
        n_features: the approximate number of features; see `n_features_out_`.
        cell: the recurrent model of the groups, a name in `lem.CELLS`.
        causal: run forwards in time only, so that `stream` can follow a series as it arrives.
        missing: "error" refuses NaN and names the place; "mask" holds the value before a gap and marks the gap.
        random_state: the seed of the weights.

    Attributes:
        map_: the fitted `FeatureMap`, a torch module.
        n_channels_in_: the channels of the series.
        n_features_out_: the number of features.

    Examples:
        >>> import numpy as np
        >>> from sklearn.linear_model import RidgeClassifierCV
        >>> from sklearn.pipeline import make_pipeline
        >>> from lem import LEMFeatures
        >>> X, y = np.random.default_rng(0).normal(size=(30, 2, 50)), np.arange(30) % 2
        >>> model = make_pipeline(LEMFeatures(1000, random_state=0), RidgeClassifierCV()).fit(X, y)
        >>> model.predict(X[:3]).shape
        (3,)
    """

    def __init__(
        self,
        n_features: int = 10_000,
        *,
        cell: str = "lem",
        causal: bool = False,
        missing: str = "error",
        random_state: Any = None,
    ) -> None:
        self.n_features = n_features
        self.cell = cell
        self.causal = causal
        self.missing = missing
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw the networks for series like X; `y` is ignored."""
        self.fit_transform(X)
        return self

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> np.ndarray:
        """Fit, and return the features of X."""
        self._check_parameters()
        series = self._series(X, first=True)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        random = np.random.default_rng(seed)
        length = float(np.median(series.lengths))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = Frozen(
                self.n_channels_in_ * (2 if self.missing == "mask" else 1),
                None,
                **plan(
                    self.n_channels_in_,
                    length,
                    n_features=int(self.n_features),
                    cell=self.cell,
                    causal=bool(self.causal),
                    masked=self.missing == "mask",
                    random=random,
                ),
            )
            model.draw(length, random)
        self.map_ = FeatureMap(model, self.n_channels_in_, self.missing).eval()
        mean, scale = channel_units(series)
        self.map_.mean.copy_(torch.from_numpy(mean))
        self.map_.scale.copy_(torch.from_numpy(scale))
        self.n_features_out_ = model.size
        return adapt(model, self.map_.standardise, series, random)

    def transform(self, X: Any) -> np.ndarray:
        """Return the features of each series as float32, one row per series."""
        check_is_fitted(self)
        return in_batches(self.map_, self._series(X, first=False), apart=True)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return a name for each feature; `input_features` is ignored."""
        check_is_fitted(self)
        return np.array(["_".join(origin) for origin in self.map_.model.origins()], dtype=object)

    def stream(self) -> Stream:
        """Return a `Stream` whose `push` returns the features of the series so far; needs `causal=True`."""
        check_is_fitted(self)
        return Stream(self.map_)

    def streams(self) -> Streams:
        """Return a table of many streams that are pushed together."""
        check_is_fitted(self)
        return Streams(self.map_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "mask"
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def _check_parameters(self) -> None:
        whole = isinstance(self.n_features, int | np.integer) and not isinstance(self.n_features, bool)
        if not whole or self.n_features < 1:
            raise ValueError(f"`n_features` of LEMFeatures must be a positive integer; got {self.n_features!r}.")
        check_choice("LEMFeatures", "missing", self.missing, ON_MISSING)
        check_choice("LEMFeatures", "cell", self.cell, sorted(CELLS))

    def _series(self, X: Any, first: bool) -> Series:
        X = unpacked(X)
        if is_table(X):
            X = validate_data(self, X, reset=first, ensure_all_finite=False, dtype="numeric")
        elif first and hasattr(self, "n_features_in_"):
            del self.n_features_in_
        series = as_series(X, "LEMFeatures", self.missing)
        channels = series.values.shape[2]
        if first:
            question_axes(series, "LEMFeatures")
            self.n_channels_in_ = channels
        elif channels != self.n_channels_in_:
            raise ValueError(f"`X` of LEMFeatures must have {self.n_channels_in_} channels, as in fit; got {channels}.")
        return series
