"""LEMForecaster as a forecaster of sktime: one or several columns, exogenous variables, quantiles and intervals.

Runs with sktime 1.2. `python sktime_forecaster.py` fits a small model and prints its forecast with an interval.
"""

from typing import Any

import numpy as np
import pandas as pd
from sktime.forecasting.base import BaseForecaster

from lem import LEMForecaster


class SktimeLEM(BaseForecaster):
    """Forecast with `LEMForecaster`, whose parameters are given as `options`.

    Args:
        options: the arguments of `LEMForecaster` but `horizon`, which is the furthest step of the forecasting horizon.
    """

    _tags = {
        "y_inner_mtype": "pd.DataFrame",
        "X_inner_mtype": "pd.DataFrame",
        "scitype:y": "both",
        "ignores-exogeneous-X": False,
        "requires-fh-in-fit": True,
        "capability:insample": False,
        "capability:pred_int": True,
        "capability:pred_int:insample": False,
        "handles-missing-data": False,
    }

    _config = {"remember_data": True}  # `update` fits again to all data

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        self.options = options
        super().__init__()

    def _fit(self, y: pd.DataFrame, X: pd.DataFrame | None, fh: Any) -> "SktimeLEM":
        horizon = int(fh.to_relative(self.cutoff).to_numpy().max())
        known = {} if X is None else {"future": [X.to_numpy(float).T]}
        model = LEMForecaster(horizon=horizon, **(self.options or {}))
        self.model_ = model.fit([y.to_numpy(float).T], times=_times(y.index), **known)
        self.columns_, self.known_ = y.columns, X
        return self

    def _quantiles(self, fh: Any, X: pd.DataFrame | None) -> tuple[np.ndarray, Any]:
        """Return the quantiles (step, column, level) of the steps in `fh`, and their index."""
        steps = fh.to_relative(self.cutoff).to_numpy().astype(int)
        known = {}
        if X is not None:
            ahead = X.loc[X.index > self.known_.index[-1]]
            known["future"] = [pd.concat([self.known_, ahead]).to_numpy(float).T]
        found = self.model_.predict_quantiles(horizon=int(steps.max()), **known)[0]  # (column, step, level)
        return found.transpose(1, 0, 2)[steps - 1], fh.to_absolute_index(self.cutoff)

    def _predict(self, fh: Any, X: pd.DataFrame | None) -> pd.DataFrame:
        found, index = self._quantiles(fh, X)
        return pd.DataFrame(found[:, :, found.shape[2] // 2], index=index, columns=self.columns_)

    def _predict_quantiles(self, fh: Any, X: pd.DataFrame | None, alpha: list[float]) -> pd.DataFrame:
        found, index = self._quantiles(fh, X)
        levels, names = np.array(self.model_.quantiles), self._get_varnames()
        if min(alpha) < levels[0] or max(alpha) > levels[-1]:
            raise ValueError(f"The model forecasts quantiles from {levels[0]} to {levels[-1]}; got {alpha}.")
        columns = pd.MultiIndex.from_product([names, alpha])
        # Between the levels that are forecast, quantiles are interpolated.
        values = [[np.interp(a, levels, row) for row in found[:, k]] for k in range(found.shape[1]) for a in alpha]
        return pd.DataFrame(np.array(values).T, index=index, columns=columns)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        """Return parameters with which sktime's own checks are quick."""
        small = {"hidden_size": 4, "epochs": 1, "updates": 2}
        return {"options": {"network": "segments", "season": 2, "segment_options": small, "random_state": 0}}


def _times(index: pd.Index) -> Any:
    """Return the dates of an index; None if it counts steps."""
    if isinstance(index, pd.PeriodIndex):
        index = index.to_timestamp()
    return [index.to_numpy()] if isinstance(index, pd.DatetimeIndex) else None


def main(**training: Any) -> pd.DataFrame:
    """Forecast a day of an hourly load."""
    hours = pd.date_range("2024-01-01", periods=480, freq="h")
    load = 20 + 5 * np.sin(2 * np.pi * hours.hour / 24) + np.random.default_rng(0).normal(0, 0.5, 480)
    model = SktimeLEM({"random_state": 0, "segment_options": training})
    model.fit(pd.Series(load, hours, name="load"), fh=np.arange(1, 25))
    return pd.concat([model.predict().rename("forecast"), model.predict_interval(coverage=0.8)["load"][0.8]], axis=1)


if __name__ == "__main__":
    print(main().head())
