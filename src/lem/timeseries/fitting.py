"""`fit_file`: from a file of series to a model file, its scores, its card and its picture."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from lem.atomic import write_atomically
from lem.nn.cells import CELLS
from lem.spelling import nearest
from lem.timeseries.answering import continuation, score
from lem.timeseries.files import SeriesFile, load
from lem.timeseries.layout import Reading
from lem.timeseries.schema import Schema
from lem.timeseries.scores import Scores
from lem.wording import InputError, check_choice

MOST_CLASSES = 20
"""Whole numbers with more different values than this, and than a tenth of the series, are regressed by default."""
FILE_OPTIONS = ("horizon", "missing", "verbose", "random_state")
"""Options of the estimators that `fit_file` has under its own names."""


@dataclass
class FittedFile:
    """What `fit_file` returns.

    Attributes:
        estimator: the fitted estimator.
        data: the training file as it was understood.
        scores: on the series that were not trained on, or None.
        scored_on: where these series come from.
        seconds: the time of training.
        stopped: whether training was interrupted; the best model so far was kept.
        files: what was written: "model", "card" and "picture".

    Examples:
        >>> from lem.timeseries import fit_file
        >>> from lem.timeseries.example import write_example
        >>> roles = {"series": "pump_id", "time": "time", "target": "fault"}
        >>> fitted = fit_file(write_example("pumps.csv"), options={"effort": "quick"}, **roles)
        >>> list(fitted.estimator.classes_)
        ['blockage', 'leak', 'ok']
    """

    estimator: Any
    data: SeriesFile
    scores: Scores | None
    scored_on: str
    seconds: float
    stopped: bool = False
    files: dict[str, Path] = field(default_factory=dict)


def fit_file(
    path: str | Path,
    *,
    task: str | None = None,
    forecast: int | None = None,
    test: str | Path | None = None,
    test_fraction: float = 0.2,
    out: str | Path | None = None,
    picture: bool = True,
    seed: int = 0,
    target: str | None = None,
    series: str | None = None,
    time: str | None = None,
    time_format: str | None = None,
    channels: list[str] | None = None,
    static: list[str] | None = None,
    ignore: list[str] | None = None,
    keep: list[str] | None = None,
    layout: str | None = None,
    gaps: str = "error",
    duplicates: str = "error",
    missing: str = "error",
    options: dict[str, Any] | None = None,
    understood: Callable[[SeriesFile], None] | None = None,
    report: Callable[[Any], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> FittedFile:
    """Train a model on a file of series: CSV, Parquet, NPZ, .ts or .arff.

    Args:
        path: the file.
        task: "classify" or "regress"; by default regression if the targets are not whole numbers, or very many.
        forecast: learn to continue the series by this many steps, instead of a target.
        test: score the model on this file.
        test_fraction: without `test`, the part of the series that is kept for scoring.
        out: the model file to write, with its card (.md) and picture (.png) next to it; None writes nothing.
        picture: whether to draw the picture.
        seed: of weights, split and batches.
        target: the column of the target.
        series: the column that names the series: one step a row.
        time: the column of the times of the steps.
        time_format: the format of dates (`datetime.strptime`), if they can be read in two ways.
        channels: the value columns; by default all that have no other role.
        static: columns with one value per series; the model sees them as constant channels.
        ignore: columns to leave out.
        keep: columns that are channels although they look like ids or times.
        layout: "wide" (one series a row) or "long" (one step a row); by default from `series` and the columns' names.
        gaps: irregular times: "error", "elapsed" (the model sees the time between steps), "ignore" (only the order
            counts) or "resample" (linear interpolation).
        duplicates: repeated times: "error", or keep the "first", the "last" or the "mean" value.
        missing: missing values: "error", or "mask" to let the model see which are missing.
        options: arguments of the estimator, such as {"hidden_size": 32}.
        understood: called with the data before training.
        report: called as training goes on: with an `Event` of the training loop, or a `Stage` of frozen features.
        should_stop: asked during training; True keeps the best model so far.

    Examples:
        >>> from lem.timeseries import fit_file
        >>> from lem.timeseries.example import write_example
        >>> roles = {"series": "pump_id", "time": "time", "target": "fault"}
        >>> fitted = fit_file(write_example("pumps.csv"), options={"effort": "quick"}, **roles)
        >>> fitted.scores.count, fitted.scores.values["accuracy"] > 0.5
        (12, True)
    """
    reading = Reading(
        target=None if forecast is not None else target,
        series=series,
        time=time,
        time_format=time_format,
        channels=None if channels is None else tuple(channels),
        static=tuple(static or ()),
        ignore=tuple(ignore or ()),
        keep=tuple(keep or ()),
        layout=layout,
        gaps=gaps,
        duplicates=duplicates,
        missing=missing,
    )
    if forecast is not None:
        _check(forecast, task, target, test_fraction, seed, table=False)
    data, task = understand(path, reading, task, forecast, test_fraction, seed)
    estimator = make_estimator(task, {**(options or {}), "missing": missing, "random_state": seed}, forecast)
    if understood is not None:
        understood(data)
    train, held, scored_on = parts(data, task, forecast, test, test_fraction, seed, reading)
    estimator._listener, estimator._should_stop = report, should_stop
    begun = monotonic()
    try:
        timed = {} if train[2] is None else {"times": train[2], "time_unit": data.schema.interval}
        estimator.fit(train[0], train[1], **timed)
    finally:
        estimator._listener = estimator._should_stop = None
    seconds = monotonic() - begun
    predictor = estimator.predictor_
    base = None if train[1] is None or task != "regress" else np.atleast_1d(np.mean(train[1], axis=0)).tolist()
    predictor.notes |= {
        "schema": data.schema.plain(),
        "data": data.describe(),
        "target_mean": base,
        "file": Path(path).name,
    }
    scores = answer = None
    if held is not None:
        scores, answer = score(predictor, *held)
        predictor.notes |= {"test": {"on": scored_on, **scores.plain()}}
    stopped = bool(getattr(estimator, "stopped_", False))
    fitted = FittedFile(estimator, data, scores, scored_on, seconds, stopped)
    if out is not None:
        _write(fitted, Path(out), picture, None if held is None else held[1], answer)
    return fitted


def understand(
    path: str | Path, reading: Reading, task: str | None, forecast: int | None, test_fraction: float, seed: int
) -> tuple[SeriesFile, str]:
    """Read a training file, and return it with its task: "classify", "regress" or "forecast"."""
    table = str(path).lower().endswith((".csv", ".tsv", ".parquet"))
    _check(forecast, task, reading.target, test_fraction, seed, table)
    data = load(path, reading, forecast=forecast is not None)
    task = "forecast" if forecast is not None else _choose_task(data, task, str(path))
    if task == "regress" and data.y is not None:
        data.y = _numeric(data.y)
    if task != "forecast":
        data.schema = replace(data.schema, target_type="number" if task == "regress" else "text")
    return data, task


def make_estimator(task: str, options: dict[str, Any], forecast: int | None = None) -> Any:
    """Return the estimator of a task; an option it does not have is an error with the closest one it has."""
    kind = estimators()[task]
    known = list(inspect.signature(kind.__init__).parameters)[1:]
    for name in options:
        if name not in known:
            raise InputError(
                lambda option, n=name: f"{option(n)} is not an option of {kind.__name__}.{nearest(n, known)}"
            )
    check_choice(None, "cell", options.get("cell", "lem"), CELLS)
    extra = {} if forecast is None else {"horizon": forecast}
    return kind(**options, **extra)


def estimators() -> dict[str, Any]:
    """Return the estimators by task."""
    from lem.timeseries import LEMClassifier, LEMForecaster, LEMRegressor

    return {"classify": LEMClassifier, "regress": LEMRegressor, "forecast": LEMForecaster}


def _check(
    forecast: int | None, task: str | None, target: str | None, test_fraction: float, seed: int, table: bool
) -> None:
    if forecast is None and target is None and table:
        raise InputError(
            lambda option: (
                f"The target is not known: name its column with {option('target')}, or give {option('forecast')}."
            )
        )
    if forecast is not None and (target or task):
        raise InputError(
            lambda option: (
                f"{option('forecast')} needs no {option('target')} or {option('task')}: the series is learned."
            )
        )
    if forecast is not None and forecast < 1:
        raise InputError(lambda option: f"{option('forecast')} must be a positive number of steps; got {forecast}.")
    if task not in (None, "classify", "regress"):
        raise InputError(lambda option: f"{option('task')} must be classify or regress; got {task!r}.")
    if not 0.0 <= test_fraction < 1.0:
        raise InputError(lambda option: f"{option('test_fraction')} must be a number in [0, 1); got {test_fraction}.")
    if seed < 0:
        raise InputError(lambda option: f"{option('seed')} must be a whole number of at least 0; got {seed}.")


def _choose_task(data: SeriesFile, task: str | None, path: str) -> str:
    if data.y is None:
        raise InputError(
            lambda option: f"{Path(path).name} has no targets; to continue the series, give {option('forecast')}."
        )
    if data.y.ndim == 1 and len(set(map(str, data.y.tolist()))) == 1:
        name = data.schema.target
        raise InputError(
            lambda option: (
                f"The target{f' {name!r}' if name else ''} is {data.y[0]} for every series: there is nothing to learn. "  # type: ignore[index]
                f"Name another column with {option('target')}."
            )
        )
    if data.y.ndim > 1 and task != "regress" and (task == "classify" or np.isin(data.y, (0, 1)).all()):
        raise InputError(
            lambda option: (
                f"{Path(path).name} has {data.y.shape[1]} labels for each series. In Python, "  # type: ignore[union-attr]
                f"LEMClassifier().fit(X, y) learns them; to learn them as numbers, give {option('task', 'regress')}."
            )
        )
    if task is not None:
        return task
    try:
        numbers = data.y.astype(np.float64)
    except ValueError:
        return "classify"
    many = len(np.unique(numbers)) > max(MOST_CLASSES, len(numbers) // 10)
    return "regress" if many or (numbers != np.round(numbers)).any() else "classify"


def _numeric(y: np.ndarray) -> np.ndarray:
    for row, value in enumerate(y.ravel()):
        try:
            float(value)
        except ValueError:
            raise InputError(
                lambda option, v=str(value), r=row: (
                    f"The target must be a number for every series; got {v!r} for series {r}. To learn labels, give "
                    f"{option('task', 'classify')}."
                )
            ) from None
    return y.astype(np.float64)


def parts(
    data: SeriesFile,
    task: str,
    forecast: int | None,
    test: str | Path | None,
    test_fraction: float,
    seed: int,
    reading: Reading,
) -> tuple[Any, Any, str]:
    """Return what to train on and what to score on, each as (X, y, times), and where the latter comes from."""
    if test is not None:
        schema: Schema | None = data.schema
        other = load(test, schema=schema, forecast=forecast is not None)
        if forecast is not None:
            ends = continuation(other.X, forecast, other.times, data.schema.interval)
            return (data.X, None, data.times), ends, Path(test).name
        if other.y is None:
            raise InputError(lambda option: f"{Path(test).name}, given as {option('test')}, has no targets.")
        y = _numeric(other.y) if task == "regress" else other.y
        return (data.X, data.y, data.times), (other.X, y, other.times), Path(test).name
    if forecast is not None:
        ends = continuation(data.X, forecast, data.times, data.schema.interval)
        return (ends[0], None, ends[2]), ends, f"the last {forecast} steps, which were not trained on"
    held = np.zeros(len(data.X), dtype=bool)
    held[np.random.default_rng(seed).permutation(len(held))[: round(test_fraction * len(held))]] = True
    assert data.y is not None
    if not held.any() or held.all() or (task == "classify" and len(set(map(str, data.y[~held].tolist()))) < 2):
        return (data.X, data.y, data.times), None, ""
    train, rest = ((take(data.X, rows), data.y[rows], take(data.times, rows)) for rows in (~held, held))
    return train, rest, "series that were not trained on"


def take(X: Any, rows: np.ndarray) -> Any:
    """Return the series for which `rows` is true; None of None."""
    if X is None:
        return None
    return X[rows] if isinstance(X, np.ndarray) else [x for x, chosen in zip(X, rows) if chosen]


def _write(fitted: FittedFile, out: Path, picture: bool, truth: Any, answer: Any) -> None:
    from lem.timeseries import card

    fitted.files["model"] = fitted.estimator.save(out)
    text = card.card(fitted.estimator.predictor_, out.stem, fitted.scores, fitted.scored_on, fitted.seconds)
    write_atomically(out.with_suffix(".md"), text.encode())
    fitted.files["card"] = out.with_suffix(".md")
    if picture:
        history, best = getattr(fitted.estimator, "history_", []), getattr(fitted.estimator, "best_epoch_", 0)
        held = "held-out accuracy" if fitted.estimator.predictor_.kind == "classifier" else "held-out squared error"
        fitted.files["picture"] = card.picture(out.with_suffix(".png"), history, best, truth, answer, held)
