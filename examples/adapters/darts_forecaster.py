"""LEMForecaster as a model of Darts: future covariates, sampled forecasts, new series, backtests.

Runs with Darts 0.41. `python darts_forecaster.py` backtests a small model.
"""

from typing import Any

import numpy as np
import pandas as pd
from darts import TimeSeries
from darts.models.forecasting.forecasting_model import TransferableFutureCovariatesLocalForecastingModel

from lem import LEMForecaster


class DartsLEM(TransferableFutureCovariatesLocalForecastingModel):
    """Forecast with `LEMForecaster`, whose parameters are given as `options`.

    With `num_samples` above one, samples are drawn step by step from the quantiles of the forecast, so that intervals
    of single steps are right; the steps of one sample are not a path.

    Args:
        horizon: the steps for which the model is trained; `predict` takes any number.
        options: the other arguments of `LEMForecaster`.
        add_encoders: Darts' encoders of covariates.
    """

    def __init__(
        self, horizon: int, options: dict[str, Any] | None = None, add_encoders: dict[str, Any] | None = None
    ) -> None:
        super().__init__(add_encoders=add_encoders)
        self.horizon = horizon
        self.options = options

    def _fit(
        self, series: TimeSeries, future_covariates: TimeSeries | None = None, verbose: bool | None = None
    ) -> "DartsLEM":
        known = {} if future_covariates is None else {"future": [future_covariates.values().T]}
        model = LEMForecaster(horizon=self.horizon, **(self.options or {}))
        self.model = model.fit([series.values().T], times=_times(series), **known)
        return self

    def _predict(
        self,
        n: int,
        series: TimeSeries | None = None,
        historic_future_covariates: TimeSeries | None = None,
        future_covariates: TimeSeries | None = None,
        num_samples: int = 1,
        predict_likelihood_parameters: bool = False,
        verbose: bool | None = None,
        random_state: int | None = None,
    ) -> TimeSeries:
        known = {}
        if future_covariates is not None:
            whole = [covariates.values() for covariates in (historic_future_covariates, future_covariates)]
            known["future"] = [np.concatenate(whole).T]
        series = self.training_series if series is None else series
        found = self.model.predict_quantiles([series.values().T], horizon=n, times=_times(series), **known)[0]
        levels = np.array(self.model.quantiles)
        if num_samples == 1:
            values = found[..., len(levels) // 2].T
        else:
            draws = np.random.default_rng(random_state).uniform(levels[0], levels[-1], (num_samples, *found.shape[:2]))
            sampled = [
                [np.interp(draws[:, c, t], levels, found[c, t]) for c in range(found.shape[0])] for t in range(n)
            ]
            values = np.array(sampled)  # (step, component, sample)
        return self._build_forecast_series(values, input_series=series)

    @property
    def min_train_series_length(self) -> int:
        """The shortest series that can be fitted."""
        return max(24, 4 * self.horizon)

    @property
    def supports_multivariate(self) -> bool:
        """Several components are forecast at once."""
        return True

    @property
    def supports_probabilistic_prediction(self) -> bool:
        """Samples can be drawn."""
        return True


def _times(series: TimeSeries) -> Any:
    """Return the dates of a series; None if it counts steps."""
    return [series.time_index.to_numpy()] if series.has_datetime_index else None


def main(**training: Any) -> tuple[TimeSeries, list[TimeSeries]]:
    """Forecast a day of an hourly load, and what would have been forecast on each of the two days before."""
    hours = pd.date_range("2024-01-01", periods=480, freq="h")
    load = 20 + 5 * np.sin(2 * np.pi * hours.hour / 24) + np.random.default_rng(0).normal(0, 0.5, 480)
    series = TimeSeries.from_times_and_values(hours, load)
    model = DartsLEM(24, {"random_state": 0, "segment_options": training})
    model.fit(series[:-48])
    past = model.historical_forecasts(
        series, start=series.time_index[-48], forecast_horizon=24, stride=24, retrain=False, last_points_only=False
    )
    return model.predict(24, series=series, num_samples=200), past


if __name__ == "__main__":
    forecast, past = main()
    print(forecast.quantile((0.1, 0.5, 0.9)).to_dataframe().head())
    print(len(past), "forecasts of the past")
