"""`predict_file` and `evaluate_file`: apply a model file to a file of series, read by the schema in the model file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lem.timeseries.files import SeriesFile, load
from lem.timeseries.gaps import seconds
from lem.timeseries.layout import Reading
from lem.timeseries.predictor import Predictor
from lem.timeseries.schema import Schema
from lem.timeseries.scores import Scores, score_classes, score_numbers
from lem.wording import InputError

POSITIONAL = (
    "this model file does not name its columns (it was written by lem 0.1.0, or trained on arrays): columns are taken "
    "by position"
)


def schema_of(predictor: Predictor) -> Schema | None:
    """Return how the training data of a model was read; None for a model file without it."""
    found = predictor.notes.get("schema")
    return None if found is None else Schema.from_plain(found, predictor.channels)


def read_for(
    predictor: Predictor,
    path: str | Path,
    reading: Reading | None = None,
    *,
    targets: bool = False,
    say: Callable[[str], None] | None = None,
) -> SeriesFile:
    """Read a file for a model by its schema; by position if the model file has none.

    Args:
        predictor: the model.
        path: the file.
        reading: what differs from the model's schema.
        targets: whether the targets are needed.
        say: called with each note about what was done with the data.
    """
    schema = schema_of(predictor)
    reading = reading or Reading()
    table = str(path).lower().endswith((".csv", ".tsv", ".parquet"))
    if schema is None or (schema.layout == "array" and table):
        if say is not None and table:
            say(POSITIONAL)
        target = predictor.notes.get("target")
        target = reading.target or (target if isinstance(target, str) else None)
        layout = reading.layout or (
            "wide" if table and reading.series is None and predictor.kind != "forecaster" else None
        )
        changed = {**reading.__dict__, "target": target, "layout": layout, "missing": predictor.missing}
        found = load(path, Reading(**changed), forecast=predictor.kind == "forecaster", targets=targets)
    else:
        found = load(path, reading, schema, forecast=predictor.kind == "forecaster", targets=targets)
    channels = 1 if np.ndim(found.X[0]) < 2 else np.shape(found.X[0])[0]
    if channels != predictor.channels:
        raise InputError(
            f"{Path(path).name} must have {predictor.channels} channels, as the model has; it has {channels}."
        )
    if say is not None:
        for note in found.notes:
            say(note)
    return found


def predict_file(
    model: str | Path, path: str | Path, reading: Reading | None = None, say: Callable[[str], None] | None = None
) -> dict[str, list[Any]]:
    """Return the answers of a model file to a file of series, as a table of columns.

    One row per series: the prediction, and for classes their probabilities. A forecast has one row per series and step.

    Examples:
        >>> from lem.timeseries import fit_file, predict_file
        >>> from lem.timeseries.example import write_example
        >>> roles = {"series": "pump_id", "time": "time", "target": "fault", "picture": False}
        >>> _ = fit_file(write_example("pumps.csv"), out="pumps.safetensors", options={"effort": "quick"}, **roles)
        >>> table = predict_file("pumps.safetensors", "pumps.csv")  # the model file contains the names of its columns
        >>> list(table)
        ['pump_id', 'prediction', 'p(blockage)', 'p(leak)', 'p(ok)']
    """
    predictor = Predictor.load(model)
    data = read_for(predictor, path, reading, say=say)
    first = data.schema.series or "series"
    if predictor.kind == "classifier":
        assert predictor.labels is not None
        chances = predictor.predict_proba(data.X, data.times)
        if predictor.flat:
            labels: dict[str, list[Any]] = {f"label_{k}": c.tolist() for k, c in enumerate(predictor.finish(chances).T)}
            return {first: data.names, **labels} | {f"p(label_{k})": c.tolist() for k, c in enumerate(chances.T)}
        columns: dict[str, list[Any]] = {first: data.names, "prediction": predictor.finish(chances).tolist()}
        return columns | {f"p({label})": chances[:, k].tolist() for k, label in enumerate(predictor.labels)}
    answers = predictor.predict(data.X, data.times)
    if predictor.kind == "forecaster":
        return _forecast(predictor, data, answers, first)
    if answers.ndim == 1:
        return {first: data.names, "prediction": answers.tolist()}
    return {first: data.names} | {f"prediction_{k}": answers[:, k].tolist() for k in range(answers.shape[1])}


def _forecast(predictor: Predictor, data: SeriesFile, answers: np.ndarray, first: str) -> dict[str, list[Any]]:
    """Return a forecast as a long table: the series, the step or time, and each channel."""
    values = answers[:, None] if answers.ndim == 2 else answers
    horizon, count = values.shape[2], len(values)
    columns: dict[str, list[Any]] = {first: [name for name in data.names for _ in range(horizon)]}
    sampling = data.sampling
    if sampling is not None and sampling.interval is not None and sampling.ends and data.schema.time is not None:
        columns[data.schema.time] = [sampling.after(k, step) for k in range(count) for step in range(1, horizon + 1)]
    else:
        columns["step"] = [step for _ in range(count) for step in range(1, horizon + 1)]
    schema = schema_of(predictor)
    names = schema.channels if schema is not None and len(schema.channels) == values.shape[1] else None
    for k in range(values.shape[1]):
        columns[names[k] if names else f"prediction_{k}"] = values[:, k].ravel().tolist()
    return columns


def evaluate_file(
    model: str | Path, path: str | Path, reading: Reading | None = None, say: Callable[[str], None] | None = None
) -> Scores:
    """Return the scores of a model file on a file of series with their targets.

    Examples:
        >>> from lem.timeseries import evaluate_file, fit_file
        >>> from lem.timeseries.example import write_example
        >>> roles = {"series": "pump_id", "time": "time", "target": "fault", "picture": False}
        >>> _ = fit_file(write_example("pumps.csv"), out="pumps.safetensors", options={"effort": "quick"}, **roles)
        >>> scores = evaluate_file("pumps.safetensors", write_example("others.csv", seed=1))
        >>> scores.count, scores.values["accuracy"] > 0.5
        (60, True)
    """
    predictor = Predictor.load(model)
    data = read_for(predictor, path, reading, targets=predictor.kind != "forecaster", say=say)
    if predictor.kind == "forecaster":
        return score(predictor, *continuation(data.X, predictor.horizon, data.times, data.schema.interval))[0]
    if data.y is None:
        raise InputError(lambda option: f"{Path(path).name} has no targets; name their column with {option('target')}.")
    return score(predictor, data.X, data.y, data.times)[0]


def continuation(
    X: Any, horizon: int, times: list[np.ndarray] | None = None, unit: float | None = None
) -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray] | None]:
    """Cut the last `horizon` steps off each series: what is left, what should follow, and the times of what is left.

    With times, a step is `unit`, and the values that should follow are interpolated between observations.
    """
    series = [np.atleast_2d(x) for x in X]
    short = next((i for i, x in enumerate(series) if x.shape[1] <= horizon), None)
    if short is not None:
        raise InputError(
            lambda option: (
                f"Each series must be longer than the {horizon} steps of {option('forecast')}; series {short} has "
                f"{series[short].shape[1]}."
            )
        )
    if times is None or unit is None:
        return [x[:, :-horizon] for x in series], np.stack([x[:, -horizon:] for x in series]), None
    kept, ahead = [], []
    for x, row in zip(series, times):
        moments = seconds(row - row[0]) / unit
        count = int(np.searchsorted(moments, moments[-1] - horizon, side="right"))
        if count == 0:
            raise InputError(
                lambda option, span=moments[-1]: (
                    f"Each series must span more than the {horizon} usual steps of {option('forecast')}; one spans "
                    f"{span:.3g}."
                )
            )
        wanted = moments[count - 1] + np.arange(1, horizon + 1)
        ahead.append(np.stack([np.interp(wanted, moments, channel) for channel in x]))
        kept.append(count)
    return [x[:, :n] for x, n in zip(series, kept)], np.stack(ahead), [t[:n] for t, n in zip(times, kept)]


def score(predictor: Predictor, X: Any, y: np.ndarray, times: Any = None) -> tuple[Scores, np.ndarray]:
    """Return the scores of a model on series with known targets, and its answers."""
    if predictor.kind == "classifier":
        if predictor.flat:
            raise InputError("A model of several labels a series is scored in Python: load it and call `score`.")
        chances = predictor.predict_proba(X, times)
        answer = predictor.finish(chances)
        return score_classes(_labels_like(predictor.labels, y), answer, chances, predictor.labels), answer
    answer = predictor.predict(X, times)
    try:
        truth = np.asarray(y, dtype=np.float64).reshape(answer.shape)
    except ValueError as error:
        raise InputError(
            f"The targets must be numbers, {answer.shape[1:] or 1} for each series; got: {error}."
        ) from error
    if predictor.kind == "forecaster":
        last = np.stack([np.atleast_2d(x)[:, -1:] for x in X])
        base = np.broadcast_to(last, (*last.shape[:2], predictor.horizon)).reshape(truth.shape)
        return score_numbers("forecaster", truth, answer, base, "the last value of each series, repeated"), answer
    mean = predictor.notes.get("target_mean") or predictor.target_mean.tolist()
    base = np.broadcast_to(np.array(mean), (len(truth), len(mean))).reshape(truth.shape)
    return score_numbers("regressor", truth, answer, base, "the mean target of the training data"), answer


def _labels_like(labels: np.ndarray | None, y: np.ndarray) -> np.ndarray:
    """Return the true labels in the form of the model's: 1 and 1.0 are the same label."""
    if labels is not None and labels.dtype.kind in "iufb" and np.asarray(y).dtype.kind not in "iufb":
        try:
            return np.asarray(y).astype(np.float64).astype(labels.dtype)
        except ValueError:
            return y
    return y
