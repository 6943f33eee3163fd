"""Forecasting: the continuation of a series."""

from typing import Any

import numpy as np
import torch
from sklearn.metrics import r2_score

from lem.data import ArraySplit
from lem.estimators.base import FEWEST, Part, SeriesEstimator, is_table
from lem.predictor import Predictor
from lem.series import Series


class LEMForecaster(SeriesEstimator):
    """Continue each time series by `horizon` steps.

    It learns, at every step of every series, the distance of the next `horizon` values from the last one seen; `y` is
    not used. `predict` returns (n, horizon) for (n, length) and (n, channels, horizon) otherwise.

    Args:
        horizon: how many steps to look ahead.
        window: the longest piece of history trained on; longer series are cut into overlapping pieces.

    The other arguments and attributes are those all estimators here share: see `LEMRegressor`.
    """

    _kind = "forecaster"
    _fewest = 8  # one series gives few pieces, each with an answer at every step

    def __init__(
        self,
        hidden_size: int = 64,
        *,
        cell: str = "lem",
        num_layers: int = 1,
        bidirectional: bool = False,
        dt: float | str = "auto",
        cell_options: dict[str, Any] | None = None,
        dropout: float = 0.0,
        epochs: int = 150,
        batch_size: int | str = "auto",
        learning_rate: float = 5e-3,
        weight_decay: float = 0.0,
        validation_fraction: float = 0.2,
        patience: int | None = 100,
        horizon: int = 1,
        window: int = 200,
        missing: str = "error",
        random_state: Any = None,
        device: str = "cpu",
        verbose: int = 0,
    ) -> None:
        super().__init__(
            hidden_size,
            cell=cell,
            num_layers=num_layers,
            bidirectional=bidirectional,
            dt=dt,
            cell_options=cell_options,
            dropout=dropout,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            validation_fraction=validation_fraction,
            patience=patience,
            missing=missing,
            random_state=random_state,
            device=device,
            verbose=verbose,
        )
        self.horizon = horizon
        self.window = window

    def score(self, X: Any, y: Any) -> float:
        """Return R^2 of the forecast of X against its true continuation y, shaped as `predict` returns it."""
        forecast = self.predict(X)
        return float(r2_score(np.reshape(y, (len(forecast), -1)), forecast.reshape(len(forecast), -1)))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        for name in ("horizon", "window"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"`{name}` of {self._name} must be a positive integer; got {value!r}.")

    def _series(self, X: Any, first: bool) -> Series:
        if first:
            self._flat = is_table(X)
        return super()._series(X, first)

    def _read(self, X: Any, y: Any, first: bool) -> tuple[Series, np.ndarray]:
        series, _ = super()._read(X, None, first)
        short = np.flatnonzero(series.lengths <= self.horizon)
        if len(short):
            raise ValueError(
                f"Each series of `X` of {self._name} must be longer than the horizon, {self.horizon}; got "
                f"n_features={series.lengths[short[0]]} time steps in sample {short[0]}."
            )
        return series, np.zeros(len(series.lengths))

    def _span(self, series: Series) -> float:
        return min(float(series.lengths.mean()), float(self.window))

    def _targets(self, y: Any, first: bool) -> np.ndarray:
        return np.empty(0)

    def _new_predictor(self, series: Series, targets: np.ndarray, architecture: dict[str, Any]) -> Predictor:
        channels = self.n_channels_in_
        predictor = Predictor(
            "forecaster",
            channels,
            channels,
            architecture,
            horizon=int(self.horizon),
            missing=self.missing,
            flat=self._flat,
        )
        predictor.set_units(series)
        return predictor

    def _hold_out(self, series: Series, targets: np.ndarray, random: Any) -> tuple[Part, Part | None]:
        """Hold out whole series where there are enough, else the end of each."""
        if len(series.lengths) >= FEWEST or self.validation_fraction == 0.0:
            return super()._hold_out(series, targets, random)
        cuts = np.round((1.0 - self.validation_fraction) * series.lengths).astype(int)
        if (np.minimum(cuts, series.lengths - cuts) <= self.horizon).any():
            return (series, targets), None
        rest = series.lengths - cuts
        ends = np.zeros((len(rest), int(rest.max()), series.values.shape[2]))
        for row, values, cut, count in zip(ends, series.values, cuts, rest):
            row[:count] = values[cut : cut + count]
        return (Series(series.values, cuts), targets), (Series(ends, rest), targets)

    def _split(self, series: Series, targets: np.ndarray) -> ArraySplit:
        """Cut the series into pieces of at most `window` steps, each step with the `horizon` values after it."""
        predictor, h, k = self.predictor_, self.horizon, self.n_channels_in_
        pieces = [
            values[start : min(start + self.window + h, length)]
            for values, length in zip(series.values, series.lengths)
            for start in range(0, max(length - h - self.window // 2, 1), max(self.window // 8, 1))
        ]
        longest = max(len(piece) for piece in pieces) - h
        values = np.zeros((len(pieces), longest, k))
        wanted = np.full((len(pieces), longest, h * k), np.nan)
        mean, scale = predictor.mean.numpy(), predictor.scale.numpy()
        for i, piece in enumerate(pieces):
            steps = len(piece) - h
            standard = (piece - mean) / scale
            ahead = np.lib.stride_tricks.sliding_window_view(standard, h, axis=0)[1:]
            values[i, :steps] = piece[:steps]
            wanted[i, :steps] = (ahead.transpose(0, 2, 1) - np.nan_to_num(standard[:steps, None])).reshape(steps, -1)
        lengths = torch.tensor([len(piece) - h for piece in pieces])
        inputs = predictor.standardise(torch.from_numpy(values))
        targets_ahead = torch.from_numpy(wanted).to(inputs.dtype)
        unequal = bool((lengths != longest).any())
        return ArraySplit(inputs, targets_ahead, lengths if unequal else None, every_step=True)
