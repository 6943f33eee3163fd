"""The adapters of examples/adapters forecast as `LEMForecaster` does, where their libraries are installed."""

import importlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lem import LEMForecaster
from tests.close import assert_close

HOURS = pd.date_range("2024-01-01", periods=200, freq="h")
OPTIONS = {
    "season": 12,
    "network": "segments",
    "random_state": 0,
    "segment_options": {"hidden_size": 4, "epochs": 1, "updates": 3},
}


@pytest.fixture
def series():
    random = np.random.default_rng(0)
    return np.sin(np.arange(200)[:, None] * [0.5, 0.3]) + 0.1 * random.normal(size=(200, 2))


@pytest.fixture
def weather():
    return np.cos(np.arange(212.0))[:, None]


@pytest.fixture
def adapter(request, monkeypatch):
    library, name = request.param
    pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples/adapters"))
    return importlib.import_module(name)


def directly(series, weather=None, steps=12):
    known = {} if weather is None else {"future": [weather.T]}
    fitted = {} if weather is None else {"future": [weather[: len(series)].T]}
    model = LEMForecaster(horizon=12, **OPTIONS).fit([series.T], times=[HOURS.to_numpy()[: len(series)]], **fitted)
    return model, model.predict_quantiles(horizon=steps, **known)[0].transpose(1, 0, 2)  # (step, column, level)


@pytest.mark.parametrize("adapter", [("sktime", "sktime_forecaster")], indirect=True)
@pytest.mark.parametrize("index", [HOURS, HOURS.to_period("h")], ids=["dates", "periods"])
@pytest.mark.parametrize("known", [False, True])
def test_sktime(adapter, series, weather, index, known):
    whole = pd.date_range("2024-01-01", periods=212, freq="h")
    if isinstance(index, pd.PeriodIndex):
        whole = whole.to_period("h")
    y, X = pd.DataFrame(series, index, columns=["a", "b"]), pd.DataFrame(weather, whole, columns=["w"])
    model = adapter.SktimeLEM(OPTIONS).fit(y, X=X.loc[index] if known else None, fh=[1, 5, 12])
    _, expected = directly(series, weather if known else None)
    ahead = X.iloc[200:] if known else None
    assert_close(model.predict(X=ahead).to_numpy(), expected[[0, 4, 11], :, 2], "float32")
    interval = model.predict_interval(X=ahead, coverage=0.8)
    assert_close(interval["b"][0.8]["upper"].to_numpy(), expected[[0, 4, 11], 1, 3], "float32")
    assert interval.index.equals(whole[[200, 204, 211]])


@pytest.mark.parametrize("adapter", [("sktime", "sktime_forecaster")], indirect=True)
def test_sktimes_own_checks(adapter):
    from sktime.utils.estimator_checks import check_estimator

    check_estimator(adapter.SktimeLEM, raise_exceptions=True, verbose=False)


@pytest.mark.parametrize("adapter", [("darts", "darts_forecaster")], indirect=True)
@pytest.mark.parametrize("known", [False, True])
def test_darts(adapter, series, weather, known):
    from darts import TimeSeries

    whole = pd.date_range("2024-01-01", periods=212, freq="h")
    y = TimeSeries.from_times_and_values(HOURS, series)
    covariates = TimeSeries.from_times_and_values(whole, weather) if known else None
    model = adapter.DartsLEM(12, OPTIONS)
    model.fit(y, future_covariates=covariates)
    direct, expected = directly(series, weather if known else None)
    assert_close(model.predict(12, future_covariates=covariates).values(), expected[:, :, 2], "float32")
    samples = model.predict(12, num_samples=4000, random_state=0, future_covariates=covariates)
    share = (samples.all_values() <= expected[:, :, 3, None]).mean()
    assert abs(share - (0.9 - 0.025) / 0.95) < 0.01
    if not known:
        earlier = y[:-20]
        found = model.predict(12, series=earlier).values()
        times = [HOURS.to_numpy()[:180]]
        assert_close(found, direct.predict([series[:180].T], times=times)[0].T, "float32")
        assert not np.allclose(found, expected[:, :, 2])
