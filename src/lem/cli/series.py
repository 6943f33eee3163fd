"""`lem fit`, `lem predict` and `lem export`: from a file of series to a trained model and out into the world."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from lem import tables
from lem.checkpoint import write_atomically
from lem.cli.display import table
from lem.predictor import Predictor


def add(commands: Any) -> None:
    """Add this topic's commands."""
    fit = commands.add_parser("fit", help="train a model on a file of series: CSV, Parquet, NPZ, .ts or .arff")
    add_data(fit)
    fit.add_argument("--task", choices=("classify", "regress"), help="what to learn (default: by the target's values)")
    fit.add_argument("--forecast", type=int, metavar="STEPS", help="learn to continue the series by so many steps")
    fit.add_argument("--test", type=Path, metavar="FILE", help="score the model on this file")
    fit.add_argument("--test-fraction", type=float, default=0.2, help="else on this part of DATA (default 0.2)")
    fit.add_argument("--out", type=Path, default=Path("model.safetensors"), help="the model file to write")
    fit.add_argument("--cell", default="lem", help="the recurrent model (see `lem models`)")
    fit.add_argument("--hidden-size", type=int, default=64, help="units (default 64)")
    fit.add_argument("--layers", type=int, default=1, help="stacked layers (default 1)")
    fit.add_argument("--dt", type=float, help="time step (default: by the length)")
    fit.add_argument("--epochs", type=int, default=150, help="most passes over the data (default 150)")
    fit.add_argument("--learning-rate", type=float, default=5e-3, help="largest learning rate (default 0.005)")
    fit.add_argument("--balanced", action="store_true", help="weight classes by their rarity")
    fit.add_argument("--mask-missing", action="store_true", help="accept missing values and mark them for the model")
    fit.add_argument("--seed", type=int, default=0, help="of weights, split and batches (default 0)")
    fit.add_argument("--no-plot", action="store_true", help="draw no picture")
    fit.set_defaults(command=_fit)

    predict = commands.add_parser("predict", help="apply a model file to a file of series")
    predict.add_argument("model", type=Path, help="a model file of `lem fit`")
    add_data(predict)
    predict.add_argument("--out", type=Path, help="write .csv or .parquet (default: CSV to standard output)")
    predict.set_defaults(command=_predict)

    export = commands.add_parser("export", help="write a model for machines without this library")
    export.add_argument("model", type=Path, help="a model file of `lem fit`")
    export.add_argument("--to", choices=("onnx", "torch", "numpy"), required=True, help="for onnxruntime, torch, NumPy")
    export.add_argument(
        "--kernel", action="store_true", help="with --to torch: run LEM's kernel, where lem is installed"
    )
    export.add_argument("--out", type=Path, help="the folder to write (default: MODEL-TO)")
    export.set_defaults(command=_export)


def add_data(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    """Add the arguments that say where series are and how to read them."""
    extra: dict[str, Any] = {"nargs": "?"} if optional else {}
    parser.add_argument("data", type=Path, metavar="DATA", help="a file of series", **extra)
    parser.add_argument("--target", metavar="COLUMN", help="the column of the target in a table")
    parser.add_argument("--series", metavar="COLUMN", help="the column that names the series: one step a row")
    parser.add_argument("--time", metavar="COLUMN", help="the column by which the steps of a series are sorted")
    parser.add_argument("--channels", metavar="A,B,...", type=lambda text: text.split(","), help="the value columns")


def read(
    options: argparse.Namespace, path: Path, forecast: bool = False, trained_on: str | None = None
) -> tables.Labelled:
    """Read a file of series as the options say; the target `trained_on` by a model is none of its inputs."""
    return tables.read(
        path,
        target=None if forecast else options.target or trained_on,
        target_may_miss=options.target is None,
        series=options.series,
        time=options.time,
        channels=options.channels,
        long=forecast and options.series is None,
    )


def evaluate(options: argparse.Namespace) -> int:
    """Score a model file on a file of series (`lem evaluate MODEL DATA`)."""
    if options.data is None:
        raise ValueError("lem evaluate needs a file of series behind a model file.")
    predictor = Predictor.load(options.run)
    X, y, _ = read(options, options.data, predictor.kind == "forecaster", _target(predictor))
    X, y = _continuation(X, predictor.horizon) if predictor.kind == "forecaster" else (X, y)
    if y is None:
        raise ValueError("lem evaluate needs the targets: name their column with --target.")
    name, score, _ = _score(predictor, X, y)
    print(f"{name}: {score:.4g}")
    return 0


def _fit(options: argparse.Namespace) -> int:
    from lem.card import card, picture
    from lem.estimators import LEMClassifier, LEMForecaster, LEMRegressor

    if options.data.suffix in (".csv", ".parquet") and options.target is None and options.forecast is None:
        raise ValueError("lem fit needs the target: name its column with --target, or give --forecast STEPS.")
    if options.forecast is not None and (options.target or options.task or options.balanced):
        raise ValueError("--forecast of lem fit needs no --target, --task or --balanced: the series itself is learned.")
    if not 0.0 <= options.test_fraction < 1.0:
        raise ValueError(f"--test-fraction of lem fit must be a number in [0, 1); got {options.test_fraction}.")
    if options.seed < 0:
        raise ValueError(f"--seed of lem fit must be a whole number of at least 0; got {options.seed}.")
    data = read(options, options.data, options.forecast is not None)
    shared: dict[str, Any] = {
        "cell": options.cell,
        "num_layers": options.layers,
        "dt": "auto" if options.dt is None else options.dt,
        "epochs": options.epochs,
        "learning_rate": options.learning_rate,
        "missing": "mask" if options.mask_missing else "error",
        "random_state": options.seed,
        "verbose": 10 if sys.stderr.isatty() else 0,
    }
    if options.forecast is not None:
        estimator: Any = LEMForecaster(options.hidden_size, horizon=options.forecast, **shared)
    else:
        if data.y is None:
            raise ValueError(f"lem fit needs targets, or --forecast STEPS; got {options.data.name} without `y`.")
        task = options.task or _task(data.y)
        data = data._replace(y=_numeric(data.y) if task == "regress" else data.y)
        if options.balanced and task == "regress":
            raise ValueError("--balanced of lem fit is for classes; the target here is a number.")
        balanced: dict[str, Any] = {"class_weight": "balanced"} if options.balanced else {}
        kind: Any = LEMClassifier if task == "classify" else LEMRegressor
        estimator = kind(options.hidden_size, **shared, **balanced)

    train, test = _parts(options, data)
    begun = time.monotonic()
    estimator.fit(*train)
    results = {"fit": f"{time.monotonic() - begun:.1f} s on {len(train[0])} series"}
    truth = answer = None
    if test is not None:
        name, score, answer = _score(estimator.predictor_, *test)
        truth = test[1]
        where = options.test.name if options.test is not None else "the part held back"
        results[f"test {name}"] = f"{score:.4g} on {len(test[0])} series of {where}"
        estimator.predictor_.notes |= {"test": {"metric": name, "score": score, "series": len(test[0])}}
    if options.target is not None:
        estimator.predictor_.notes |= {"target": options.target}
    out = estimator.save(options.out)
    rows = [*results.items(), ("model", str(out))]
    text = card(estimator.predictor_, out.stem, results)
    write_atomically(out.with_suffix(".md"), text.encode())
    rows.append(("card", str(out.with_suffix(".md"))))
    if not options.no_plot:
        held = "held-out accuracy" if estimator.predictor_.kind == "classifier" else "held-out squared error"
        drawn = picture(out.with_suffix(".png"), estimator.history_, estimator.best_epoch_, truth, answer, held)
        rows.append(("picture", str(drawn)))
    table(rows)
    return 0


def _parts(options: argparse.Namespace, data: tables.Labelled) -> tuple[Any, Any]:
    """Return what to train on and what to score on, each as (X, y); the latter None where nothing is left."""
    forecast = options.forecast
    if options.test is not None:
        other = read(options, options.test, forecast is not None)
        if forecast is not None:
            return (data.X, None), _continuation(other.X, forecast)
        y = other.y if data.y is None or data.y.dtype.kind != "f" or other.y is None else _numeric(other.y)
        return (data.X, data.y), (other.X, y)
    if forecast is not None:
        test = _continuation(data.X, forecast)
        return (test[0], None), test
    held = np.zeros(len(data.X), dtype=bool)
    random = np.random.default_rng(options.seed)
    held[random.permutation(len(held))[: round(options.test_fraction * len(held))]] = True
    assert data.y is not None
    if not held.any() or held.all():
        return (data.X, data.y), None
    return (_take(data.X, ~held), data.y[~held]), (_take(data.X, held), data.y[held])


def _take(X: Any, rows: np.ndarray) -> Any:
    return X[rows] if isinstance(X, np.ndarray) else [x for x, chosen in zip(X, rows) if chosen]


def _continuation(X: Any, horizon: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Cut the last `horizon` steps off each series: what is left, and what should follow."""
    series = [np.atleast_2d(x) for x in X]
    short = next((i for i, x in enumerate(series) if x.shape[1] <= horizon), None)
    if short is not None:
        raise ValueError(
            f"Each series must be longer than the {horizon} steps to forecast; got series {short} shorter."
        )
    return [x[:, :-horizon] for x in series], np.stack([x[:, -horizon:] for x in series])


def _task(y: np.ndarray) -> str:
    """Tell labels from numbers: numbers that are not whole, or very many different ones, are to be regressed."""
    try:
        numbers = y.astype(np.float64)
    except ValueError:
        return "classify"
    many = len(np.unique(numbers)) > max(20, len(numbers) // 10)
    return "regress" if many or (numbers != np.round(numbers)).any() else "classify"


def _numeric(y: np.ndarray) -> np.ndarray:
    for row, value in enumerate(y):
        try:
            float(value)
        except ValueError:
            raise ValueError(f"The target must be a number in every row; got {value!r} in row {row + 1}.") from None
    return y.astype(np.float64)


def _score(predictor: Predictor, X: Any, y: np.ndarray) -> tuple[str, float, np.ndarray]:
    """Return the name of the score, the score, and the answers."""
    answer = predictor.predict(X)
    if predictor.kind == "classifier":
        return "accuracy", float((answer.astype(str) == y.astype(str)).mean()), answer
    truth = _numeric(y.ravel()).reshape(answer.shape)
    return "RMSE", float(np.sqrt(((answer - truth) ** 2).mean())), answer


def _predict(options: argparse.Namespace) -> int:
    predictor = Predictor.load(options.model)
    X, _, names = read(options, options.data, predictor.kind == "forecaster", _target(predictor))
    columns: dict[str, list[Any]] = {"series": names}
    if predictor.kind == "classifier":
        assert predictor.labels is not None
        chances = predictor.predict_proba(X)
        columns["prediction"] = predictor.finish(chances).tolist()
        columns |= {f"p({label})": chances[:, k].round(6).tolist() for k, label in enumerate(predictor.labels)}
    else:
        answers = predictor.predict(X)
        flat = answers.reshape(len(answers), -1)
        shape = answers.shape[1:]
        for k, place in enumerate(np.ndindex(*shape)):
            columns["prediction" + "".join(f"_{i}" for i in place)] = flat[:, k].tolist()
    if options.out is None:
        print(tables.as_csv(columns), end="")
    else:
        print(tables.write(options.out, columns))
    return 0


def _target(predictor: Predictor) -> str | None:
    """Return the name of the column a model was trained to tell, as its file says."""
    name = predictor.notes.get("target")
    return name if isinstance(name, str) else None


def _export(options: argparse.Namespace) -> int:
    from lem.export import allowance, export

    predictor = Predictor.load(options.model)
    folder = options.out or options.model.with_name(f"{options.model.stem}-{options.to}")
    export(predictor, options.to, folder, portable=not options.kernel)
    print(f"{folder}: self-test passed (to {allowance(folder):.2g})")
    return 0
