"""`forecast_file`: from a file of dated series to a backtest, a forecast with dates and intervals, and a model file."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from lem.atomic import write_atomically
from lem.timeseries import formats
from lem.timeseries.backtest import Backtest, BacktestError
from lem.timeseries.dated import Columned, Dated, read_dated
from lem.timeseries.fitting import make_estimator
from lem.timeseries.forecasting import network_of
from lem.timeseries.intervals import coverages
from lem.timeseries.predictor import Predictor
from lem.timeseries.segments import SegmentNetwork
from lem.training.loop import Event
from lem.wording import InputError


@dataclass
class ForecastFile:
    r"""What `forecast_file` returns.

    Attributes:
        forecaster: the fitted `LEMForecaster`.
        data: the file as it was understood.
        table: the forecast as columns: the series, the time, and for each target the forecast and its intervals.
        quantiles: (series, horizon, target, quantile); without intervals, the last axis has one entry.
        ahead: the dates of the forecast, of each series in nanoseconds since 1970.
        backtest: the scores on the last part of the series, or None.
        why_no_backtest: why there is none.
        seconds: the time it took.
        stopped: whether training was interrupted.
        files: what was written: "forecast", "model", "card" and "picture".

    Examples:
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from lem.timeseries import forecast_file
        >>> days = np.datetime64("2024-01-01") + np.arange(120)
        >>> rows = [f"{day},{20 + day.astype(int) % 7}" for day in days]
        >>> _ = Path("sales.csv").write_text("\n".join(["day,sold", *rows]))
        >>> small = {"segment_options": {"hidden_size": 8, "epochs": 1, "updates": 5}}  # for this example only
        >>> answer = forecast_file("sales.csv", horizon=7, backtest=False, options=small)
        >>> answer.quantiles.shape  # (series, horizon, target, quantile)
        (1, 7, 1, 5)
    """

    forecaster: Any
    data: Dated
    table: dict[str, list[Any]]
    quantiles: np.ndarray
    ahead: list[np.ndarray]
    backtest: Backtest | None
    why_no_backtest: str
    seconds: float
    stopped: bool = False
    files: dict[str, Path] = field(default_factory=dict)


def forecast_file(
    path: str | Path,
    horizon: int | None = None,
    *,
    time: str | None = None,
    target: str | list[str] | None = None,
    series: str | None = None,
    past: list[str] | None = None,
    future: str | Path | None = None,
    static: list[str] | None = None,
    time_format: str | None = None,
    gaps: str = "error",
    duplicates: str = "error",
    missing: str = "error",
    model: str | Path | None = None,
    start: float = 0.8,
    stride: int | None = None,
    backtest: bool = True,
    out: str | Path | None = None,
    picture: bool = True,
    seed: int = 0,
    options: dict[str, Any] | None = None,
    understood: Callable[[Dated], None] | None = None,
    report: Callable[[Event], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> ForecastFile:
    r"""Forecast the series of a file of dated rows: CSV or Parquet, one step a row.

    A model is trained on the first part of the series and scored over rolling origins on the rest, next to simple
    baselines; then a model is trained on everything and forecasts what comes next.

    Args:
        path: the file.
        horizon: the number of steps to forecast; with `model`, by default as trained.
        time: the column of dates; found if there is only one.
        target: the column, or columns, to forecast; found if there is only one.
        series: the column that names the series.
        past: columns known up to the last step, used as covariates.
        future: a table of covariates known in advance, with the columns `time` and `series`.
        static: columns with one value per series.
        time_format: the format of dates (`datetime.strptime`), if they can be read in two ways.
        gaps: gaps between dates: "error", "missing" (counted as missing values) or "resample" (linear interpolation).
        duplicates: repeated dates: "error", or keep the "first", the "last" or the "mean" value.
        missing: missing values: "error", or "mask" to let the model see which are missing.
        model: a model file of an earlier forecast, which is applied instead of training one.
        start: the part of each series before the first origin of the backtest.
        stride: the steps between two origins; by default the horizon.
        backtest: whether to backtest.
        out: the CSV or Parquet file of the forecast; the model file, its card and its picture are written next to it.
            None writes nothing.
        picture: whether to draw the picture.
        seed: of weights and batches.
        options: arguments of `LEMForecaster`, such as {"quantiles": [0.05, 0.5, 0.95]}.
        understood: called with the data before training.
        report: called as training goes on.
        should_stop: asked during training; True keeps the best model so far.

    Examples:
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from lem.timeseries import forecast_file
        >>> days = np.datetime64("2024-01-01") + np.arange(120)
        >>> rows = [f"{day},{20 + day.astype(int) % 7}" for day in days]
        >>> _ = Path("sales.csv").write_text("\n".join(["day,sold", *rows]))
        >>> small = {"segment_options": {"hidden_size": 8, "epochs": 1, "updates": 5}}  # for this example only
        >>> answer = forecast_file("sales.csv", horizon=7, backtest=False, options=small)
        >>> list(answer.table)[:3], len(answer.table["day"])
        (['day', 'sold', 'sold_low80'], 7)
    """
    from lem.timeseries import load

    begun = monotonic()
    if out is not None and Path(out).suffix.lower() not in (".csv", ".parquet"):
        raise InputError(lambda option: f"{option('out')} must end in .csv or .parquet; got {Path(out).name}.")
    if horizon is not None and horizon < 1:
        raise InputError(lambda option: f"{option('horizon')} must be a positive number of steps; got {horizon}.")
    given = Columned(
        time=time,
        target=(target,) if isinstance(target, str) else tuple(target or ()),
        series=series,
        past=tuple(past or ()),
        static=tuple(static or ()),
        time_format=time_format,
        gaps=gaps,
        duplicates=duplicates,
        missing=missing,
    )
    if model is not None:
        forecaster = load(model)
        found = _applied(forecaster, path, given, future, horizon, understood, begun)
        if out is not None:
            found.files["forecast"] = formats.write(out, found.table)
        return found
    if horizon is None:
        raise InputError(lambda option: f"Say how many steps to forecast with {option('horizon')}.")
    data = read_dated(path, given, future, horizon)
    shortest = min(len(moments) for moments in data.times)
    if shortest <= horizon:
        raise InputError(
            lambda option: (
                f"{option('horizon')} must be shorter than the history; got {horizon} steps, and a series of "
                f"{shortest}. Forecast fewer steps, or leave short series out."
            )
        )
    masks = missing == "mask" or any(np.isnan(values).any() for values in data.values)
    options = {"missing": "mask" if masks else "error", "random_state": seed, **(options or {})}
    forecaster = make_estimator("forecast", options, horizon)
    forecaster._listener, forecaster._should_stop = report, should_stop
    if understood is not None:
        understood(data)
    X = _series(data)
    segments = forecaster._chosen_network(np.array([values.shape[-1] for values in data.values])) == "segments"
    known, scores, why = data.known() if segments else {}, None, ""
    if not segments and (data.past or data.future or data.static.size):
        raise InputError(
            f"The series are too short for covariates: they have up to {max(map(len, data.times))} steps, and four "
            f"horizons of {horizon} and at least 24 are needed."
        )
    try:
        if not backtest:
            why = "it was not asked for"
        elif not segments:
            why = "the series are too short for it"
        else:
            try:
                scores = forecaster.backtest(X, start=start, stride=stride, **known)
            except BacktestError as error:
                why = str(error)
        if segments:
            forecaster.fit(X, backtest=scores, **known)
        else:
            forecaster.fit(X)
    finally:
        forecaster._listener = forecaster._should_stop = None
    quantiles, ahead = _quantiles(forecaster, data, X, known, horizon), _dates(data, horizon)
    forecaster.predictor_.notes |= {
        "file": Path(path).name,
        "data": data.describe(),
        "dated": data.columns.plain(),
        "future_names": list(data.future_names),
        "dated_step": data.step.plain(),
    }
    table = _table(data, quantiles, ahead, _levels(forecaster))
    stopped = bool(getattr(forecaster, "stopped_", False))
    done = ForecastFile(forecaster, data, table, quantiles, ahead, scores, why, monotonic() - begun, stopped)
    if out is not None:
        _write(done, Path(out), picture)
    return done


def _applied(
    forecaster: Any,
    path: str | Path,
    given: Columned,
    future: str | Path | None,
    horizon: int | None,
    understood: Callable[[Dated], None] | None,
    begun: float,
) -> ForecastFile:
    """Forecast a new file with a trained model, read by the schema in the model file."""
    notes = forecaster.predictor_.notes
    if "dated" not in notes:
        raise InputError("The model file was not written by `lem forecast`; use `lem predict`.")
    from lem.timeseries.timeline import Step

    columns = Columned.from_plain(notes["dated"])
    changed = {name: value for name, value in given.__dict__.items() if value != getattr(Columned(), name)}
    columns = Columned(**{**columns.__dict__, **changed})
    step = Step(int(notes["dated_step"]["months"]), float(notes["dated_step"]["seconds"]))
    wanted = horizon or forecaster.predictor_.horizon
    if notes["future_names"] and future is None:
        raise InputError(
            lambda option: (
                f"The model needs {', '.join(notes['future_names'])} in advance: give a table with {option('future')}."
            )
        )
    data = read_dated(path, columns, future, wanted, step)
    if understood is not None:
        understood(data)
    X = _series(data)
    segments = isinstance(forecaster.predictor_.model, SegmentNetwork)
    quantiles = _quantiles(forecaster, data, X, data.known() if segments else {}, wanted)
    ahead = _dates(data, wanted)
    table = _table(data, quantiles, ahead, _levels(forecaster))
    return ForecastFile(
        forecaster, data, table, quantiles, ahead, None, "the model was not trained", monotonic() - begun
    )


def _series(data: Dated) -> list[np.ndarray]:
    return list(data.values)


def _levels(forecaster: Any) -> tuple[float, ...]:
    predictor: Predictor = forecaster.predictor_
    return network_of(predictor).quantiles if isinstance(predictor.model, SegmentNetwork) else (0.5,)


def _quantiles(forecaster: Any, data: Dated, X: Any, known: dict[str, Any], horizon: int) -> np.ndarray:
    """Return (series, horizon, target, quantile)."""
    count, targets = len(data.names), len(data.columns.target)
    if isinstance(forecaster.predictor_.model, SegmentNetwork):
        found = forecaster.predict_quantiles(X, horizon=horizon, **known)
        return np.asarray(found.reshape(count, targets, horizon, -1).transpose(0, 2, 1, 3))
    found = forecaster.predict(X, horizon=horizon)
    return np.asarray(found.reshape(count, targets, horizon).transpose(0, 2, 1)[..., None])


def _dates(data: Dated, horizon: int) -> list[np.ndarray]:
    return [data.step.after(int(moments[-1]), horizon) for moments in data.times]


def _table(
    data: Dated, quantiles: np.ndarray, ahead: list[np.ndarray], levels: tuple[float, ...]
) -> dict[str, list[Any]]:
    """Return the forecast as columns."""
    from lem.timeseries.times import Times

    horizon = quantiles.shape[1]
    columns: dict[str, list[Any]] = {}
    if data.columns.series is not None:
        columns[data.columns.series] = [name for name in data.names for _ in range(horizon)]
    assert data.columns.time is not None
    columns[data.columns.time] = [Times("datetime", m).show(moment) for m in ahead for moment in m]
    middle = len(levels) // 2
    for k, target in enumerate(data.columns.target):
        columns[target] = quantiles[:, :, k, middle].ravel().tolist()
        for place, coverage in enumerate(coverages(levels), start=1):
            label = f"{100 * coverage:g}"
            columns[f"{target}_low{label}"] = quantiles[:, :, k, middle - place].ravel().tolist()
            columns[f"{target}_high{label}"] = quantiles[:, :, k, middle + place].ravel().tolist()
    return columns


def _write(done: ForecastFile, out: Path, picture: bool) -> None:
    from lem.timeseries import forecast_card

    done.files["forecast"] = formats.write(out, done.table)
    done.files["model"] = done.forecaster.save(out.with_suffix(".safetensors"))
    write_atomically(out.with_suffix(".md"), forecast_card.card(done, out.stem).encode())
    done.files["card"] = out.with_suffix(".md")
    if picture:
        done.files["picture"] = forecast_card.picture(done, out.with_suffix(".png"))
