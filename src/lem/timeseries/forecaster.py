"""Forecasting: the continuation of a series."""

from typing import Any, Self

import numpy as np
import torch
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from lem.timeseries.backtest import Backtest
from lem.timeseries.estimator import FEWEST, Part, is_table
from lem.timeseries.forecasting import network_of
from lem.timeseries.gaps import values_ahead
from lem.timeseries.intervals import LEVELS
from lem.timeseries.predictor import Predictor
from lem.timeseries.rolling import RollingForecasting
from lem.timeseries.segment_forecaster import STEPS_ONLY
from lem.timeseries.segment_training import Spans
from lem.timeseries.segments import SegmentNetwork
from lem.timeseries.series import Series
from lem.timeseries.timeline import as_nanoseconds
from lem.training.data import ArraySplit


class LEMForecaster(RollingForecasting):
    """Continue each time series by `horizon` steps.

    The default network cuts the series into segments and forecasts quantiles of all future steps at once
    (`lem.timeseries.segments.SegmentNetwork`); it takes dates, covariates and several series of unequal lengths, and
    its intervals are corrected on a part of the series that was not trained on. Short series, and an estimator with a
    parameter that only the other network has, are forecast sample by sample: the network learns, at every step of
    every series, the distance of the next `horizon` values from the last one seen.

    `predict` returns (n, horizon) for (n, length) and (n, channels, horizon) otherwise. `y` is not used. Times other
    than regular dates also select the sample-by-sample network, which then forecasts the values 1, 2, ..., `horizon`
    times `time_unit_` after the last observation.

    Args:
        horizon: how many steps to look ahead.
        window: the longest piece of history that the sample-by-sample network is trained on.
        network: "segments", "steps" (sample by sample), or "auto": "steps" if one of its parameters is set, such as
            `epochs`, or if the series are shorter than four horizons or 24 steps.
        season: the number of steps of a season; "auto" takes it from `times`, or else from the autocorrelation.
        look_back: the steps of history that a forecast reads; "auto" takes up to 30 seasons.
        segment: the length of a segment; "auto" takes a season, or an equal part of it where the history is short.
        mixing: whether each channel is forecast from all channels, instead of from itself.
        decoder: "parallel" decodes all future segments at once, "recursive" one after the other.
        quantiles: the levels forecast: 0.5 and pairs around it.
        calendar: whether times of day, week and year are features if `times` are given.
        log: whether the logarithm of the series is forecast, which must be positive.
        segment_options: further options of the segment network and its training: "hidden_size" (128), "num_layers"
            (1), "dropout" (0.5), "scaled", "linear", "period", "epochs" (6), "updates" of an epoch (120),
            "learning_rate" (1e-3) and "batch_size".

    Attributes:
        season_: the season used.
        calibrated_: the number of forecasts that corrected the intervals; 0 if the series were too short.

    The other arguments and attributes are those all estimators here share: see `LEMRegressor`. Of them, segments use
    `cell`, `cell_options`, `missing`, `random_state`, `device` and `verbose`.

    Examples:
        >>> import numpy as np
        >>> from lem import LEMForecaster
        >>> load = 20 + 5 * np.sin(2 * np.pi * np.arange(240) / 24)
        >>> small = {"hidden_size": 8, "epochs": 1, "updates": 5}  # for this example only
        >>> model = LEMForecaster(horizon=24, season=24, random_state=0, segment_options=small).fit(load[None])
        >>> low, high = model.predict_interval(coverage=0.8)
        >>> model.predict().shape, low.shape
        ((1, 24), (1, 24))
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
        network: str = "auto",
        season: int | str = "auto",
        look_back: int | str = "auto",
        segment: int | str = "auto",
        mixing: bool = False,
        decoder: str = "parallel",
        quantiles: tuple[float, ...] = LEVELS,
        calendar: bool = True,
        log: bool = False,
        segment_options: dict[str, Any] | None = None,
    ) -> None:
        self._keep(locals())
        self.horizon = horizon
        self.window = window
        self.network = network
        self.season = season
        self.look_back = look_back
        self.segment = segment
        self.mixing = mixing
        self.decoder = decoder
        self.quantiles = quantiles
        self.calendar = calendar
        self.log = log
        self.segment_options = segment_options

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        times: Any = None,
        time_unit: float | None = None,
        past: Any = None,
        future: Any = None,
        static: Any = None,
        validation: Any = None,
        refit: bool = True,
        backtest: Backtest | None = None,
    ) -> Self:
        """Fit series X; everything but X, `times` and `time_unit` is for segments.

        A part of each series chooses the epoch, a later one corrects the intervals; then the network is trained on
        everything for as many epochs.

        Args:
            X: the series.
            y: not used.
            times: the times of the observations: a list with one array for each series, or one array of dates for
                all. Segments need regular dates.
            time_unit: for times that are not regular, the time that counts as one step, in seconds for dates; the
                median gap by default.
            past: covariates known up to each step: (covariates, length) for each series.
            future: covariates known in advance: (covariates, length or more) for each series.
            static: features of each series: (n, features).
            validation: the number of last steps on which the epoch is chosen; intervals are then not corrected.
            refit: whether to train on everything in the end.
            backtest: a backtest of the same series, whose epoch and calibration are used.
        """
        self._check_parameters()
        series = self._series(X, first=True)
        self._check_lengths(series)
        network = self._chosen_network(series.lengths, times, time_unit)
        extra = {"past": past, "future": future, "static": static}
        if network == "steps":
            given = next((name for name, value in extra.items() if value is not None), None)
            if given is not None:
                raise ValueError(
                    f"`{given}` of {self._name} needs the network of segments, but the series are forecast sample by "
                    f"sample: {self._why_steps(series)}."
                )
            return super().fit(X, times=times, time_unit=time_unit)
        if time_unit is not None:
            raise ValueError(f"`time_unit` of {self._name} is for network='steps'; segments take it from `times`.")
        panel = self._panel(X, times, **extra, first=True)
        self._starts = [] if self.step_ is None else self._first_times(times, panel.lengths)
        spans = None
        if validation is not None:
            cut = panel.lengths - int(validation)
            spans = Spans(cut, panel.lengths, panel.lengths)
        self._fit_segments(panel, backtest, spans, refit)
        return self

    def partial_fit(self, X: Any, y: Any = None, *, times: Any = None) -> Self:
        """Train for one more epoch on further series, sample by sample; needs network="steps", or "auto"."""
        if self.network == "segments":
            raise ValueError(f"partial_fit of {self._name} needs network='steps'.")
        if hasattr(self, "predictor_") and isinstance(self.predictor_.model, SegmentNetwork):
            del self.predictor_
        return super().partial_fit(X, y, times=times)

    def predict(
        self,
        X: Any = None,
        *,
        horizon: int | None = None,
        times: Any = None,
        past: Any = None,
        future: Any = None,
        static: Any = None,
    ) -> np.ndarray:
        """Return the forecast of each series: for segments the median.

        Args:
            X: the series; None continues those of `fit`.
            horizon: the number of steps, fewer or more than trained.
            times: the dates of the steps, as in `fit`.
            past: covariates known up to the last step.
            future: covariates known in advance: of the history and of the steps ahead.
            static: features of each series.
        """
        check_is_fitted(self)
        if isinstance(self.predictor_.model, SegmentNetwork):
            found = self.predict_quantiles(X, horizon=horizon, times=times, past=past, future=future, static=static)
            return found[..., len(network_of(self.predictor_).quantiles) // 2]
        if X is None or any(part is not None for part in (past, future, static)):
            raise ValueError("A forecaster that predicts sample by sample takes `X` and `times`, and nothing else.")
        forecast = super().predict(X, times=times)
        wanted, parts = self.horizon if horizon is None else int(horizon), [forecast]
        if times is not None:
            if wanted > self.horizon:
                raise ValueError(f"With `times`, a forecaster sample by sample has at most {self.horizon} steps.")
            return forecast[..., :wanted]
        series = self._series(X, first=False)
        histories = [values[:length].T for values, length in zip(series.values, series.lengths)]
        while sum(part.shape[-1] for part in parts) < wanted:
            more = parts[-1][:, None] if self.predictor_.flat else parts[-1]
            histories = [np.concatenate([history, ahead], axis=1) for history, ahead in zip(histories, more)]
            parts.append(super().predict(histories))
        return np.concatenate(parts, axis=-1)[..., :wanted]

    def _why_steps(self, series: Series) -> str:
        given = self._changed(STEPS_ONLY)
        if self.network == "steps" or given:
            return f"`{'network' if self.network == 'steps' else given[0]}` selects that"
        if int(np.median(series.lengths)) >= max(4 * self.horizon, 24):
            return "their times are not regular dates"
        return f"the typical series has {int(np.median(series.lengths))} steps, fewer than four horizons or 24"

    def _first_times(self, times: Any, lengths: np.ndarray) -> list[int]:
        return [int(moments[0]) for moments in as_nanoseconds(times, lengths, self._name)]

    def score(self, X: Any, y: Any, *, times: Any = None) -> float:
        """Return R^2 of the forecast of X against its true continuation y, shaped as `predict` returns it."""
        forecast = self.predict(X, times=times)
        return float(r2_score(np.reshape(y, (len(forecast), -1)), forecast.reshape(len(forecast), -1)))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        for name in ("horizon", "window"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"`{name}` of {self._name} must be a positive integer; got {value!r}.")
        self._check_segment_parameters()

    def _series(self, X: Any, first: bool) -> Series:
        if first:
            self._flat = is_table(X)
        return super()._series(X, first)

    def _read(
        self, X: Any, y: Any, first: bool, times: Any = None, time_unit: float | None = None
    ) -> tuple[Series, np.ndarray]:
        series, _ = super()._read(X, None, first, times, time_unit)
        self._check_lengths(series)
        return series, np.zeros(len(series.lengths))

    def _check_lengths(self, series: Series) -> None:
        short = np.flatnonzero(series.lengths <= self.horizon)
        if len(short):
            raise ValueError(
                f"Each series of `X` of {self._name} must be longer than the horizon, {self.horizon}; got "
                f"n_features={series.lengths[short[0]]} time steps in sample {short[0]}."
            )

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

    def _hold_out(self, series: Series, targets: np.ndarray, random: Any) -> tuple[Part, Part | None, np.ndarray]:
        """Hold out whole series if there are enough, else the end of each."""
        if len(series.lengths) >= FEWEST or self.validation_fraction == 0.0:
            return super()._hold_out(series, targets, random)
        cuts = np.round((1.0 - self.validation_fraction) * series.lengths).astype(int)
        if (np.minimum(cuts, series.lengths - cuts) <= self.horizon).any():
            return (series, targets), None, np.arange(len(series.lengths))
        rest = series.lengths - cuts
        ends = np.zeros((len(rest), int(rest.max()), series.values.shape[2]))
        for row, values, cut, count in zip(ends, series.values, cuts, rest):
            row[:count] = values[cut : cut + count]
        every = np.arange(len(series.lengths))
        gaps = None
        if series.elapsed is not None:
            gaps = np.ones(ends.shape[:2])
            for row, elapsed, cut, count in zip(gaps, series.elapsed, cuts, rest):
                row[1:count] = elapsed[cut + 1 : cut + count]
        return (Series(series.values, cuts, series.elapsed), targets), (Series(ends, rest, gaps), targets), every

    def _split(self, series: Series, targets: np.ndarray) -> ArraySplit:
        """Cut the series into pieces of at most `window` steps, each step with the `horizon` values after it."""
        predictor, h, k = self.predictor_, self.horizon, self.n_channels_in_
        places = [
            (row, slice(start, min(start + self.window + h, length)))
            for row, length in enumerate(series.lengths)
            for start in range(0, max(length - h - self.window // 2, 1), max(self.window // 8, 1))
        ]
        pieces = [series.values[place] for place in places]
        longest = max(len(piece) for piece in pieces) - h
        values = np.zeros((len(pieces), longest, k))
        wanted = np.full((len(pieces), longest, h * k), np.nan)
        gaps = None if series.elapsed is None else np.ones((len(pieces), longest))
        mean, scale = predictor.mean.numpy(), predictor.scale.numpy()
        for i, piece in enumerate(pieces):
            steps = len(piece) - h
            standard = (piece - mean) / scale
            if series.elapsed is None or gaps is None:
                ahead = np.lib.stride_tricks.sliding_window_view(standard, h, axis=0)[1:].transpose(0, 2, 1)
            else:
                elapsed = series.elapsed[places[i]]
                ahead, gaps[i, 1:steps] = values_ahead(standard, elapsed, h)[:steps], elapsed[1:steps]
            values[i, :steps] = piece[:steps]
            wanted[i, :steps] = (ahead - np.nan_to_num(standard[:steps, None])).reshape(steps, -1)
        lengths = torch.tensor([len(piece) - h for piece in pieces])
        inputs = predictor.standardise(torch.from_numpy(values))
        targets_ahead = torch.from_numpy(wanted).to(inputs.dtype)
        unequal = bool((lengths != longest).any())
        timed = None if gaps is None else torch.from_numpy(gaps).to(inputs.dtype)
        return ArraySplit(inputs, targets_ahead, lengths if unequal else None, every_step=True, elapsed=timed)
