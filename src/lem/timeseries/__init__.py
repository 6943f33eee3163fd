"""scikit-learn estimators for people with their own series: classify, regress, forecast.

    from lem.timeseries import LEMClassifier
    model = LEMClassifier().fit(X_train, y_train)
    model.predict(X_test)

X is (n, length), (n, channels, length) or a list of (channels, length) arrays of unequal lengths. Without tuning: each
channel is standardised, the time step follows from the length (`time_step`), a part of the series is held out, and the
epoch that does best on it is kept.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lem.timeseries.answering import evaluate_file, predict_file
    from lem.timeseries.classifier import LEMClassifier
    from lem.timeseries.dated_forecast import forecast_file
    from lem.timeseries.estimator import time_step
    from lem.timeseries.features import LEMFeatures
    from lem.timeseries.fitting import fit_file
    from lem.timeseries.forecaster import LEMForecaster
    from lem.timeseries.regressor import LEMRegressor

_HOMES = {
    "LEMClassifier": "classifier",
    "LEMFeatures": "features",
    "LEMForecaster": "forecaster",
    "LEMRegressor": "regressor",
    "Predictor": "predictor",
    "evaluate_file": "answering",
    "fit_file": "fitting",
    "forecast_file": "dated_forecast",
    "predict_file": "answering",
    "time_step": "estimator",
}
"""The module of each public name. They are imported when first used: reading files needs no scikit-learn."""

__all__ = [
    "LEMClassifier",
    "LEMFeatures",
    "LEMForecaster",
    "LEMRegressor",
    "evaluate_file",
    "fit_file",
    "forecast_file",
    "load",
    "predict_file",
    "time_step",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("sklearn", "scipy"):
            raise
        raise ImportError(
            "The estimators need scikit-learn. In a checkout of lem, run: pip install '.[sklearn]'"
        ) from error
    return getattr(home, name)


def load(path: str | Path) -> "LEMClassifier | LEMRegressor | LEMForecaster":
    """Read a model file and return it as a fitted estimator.

    Examples:
        >>> import numpy as np
        >>> from lem.timeseries import LEMRegressor, load
        >>> X, y = np.random.default_rng(0).normal(size=(20, 40)), np.arange(20.0)
        >>> _ = LEMRegressor(effort="quick", random_state=0).fit(X, y).predictor_.save("model.safetensors")
        >>> load("model.safetensors").predict(X[:3]).shape
        (3,)
    """
    from lem.timeseries.classifier import LEMClassifier
    from lem.timeseries.forecaster import LEMForecaster
    from lem.timeseries.predictor import Predictor
    from lem.timeseries.regressor import LEMRegressor
    from lem.timeseries.segments import SegmentNetwork
    from lem.training.store import Memory

    predictor = Predictor.load(path)
    kinds: dict[str, type[Any]] = {cls._kind: cls for cls in (LEMClassifier, LEMRegressor, LEMForecaster)}
    cls = kinds[predictor.kind]
    known = cls._get_param_names()
    given = predictor.notes.get("estimator")
    estimator = cls(**{k: v for k, v in given.items() if k in known} if isinstance(given, dict) else {})
    estimator.predictor_ = predictor
    estimator.n_channels_in_ = predictor.channels
    estimator.missing = predictor.missing
    estimator.dt_ = predictor.architecture.get("dt")
    estimator.history_ = []
    estimator._memory = Memory()
    if predictor.kind == "classifier":
        estimator.classes_ = predictor.labels
        estimator._several = predictor.flat
    else:
        estimator._flat = predictor.flat
        estimator.n_outputs_ = predictor.outputs
        if isinstance(predictor.model, SegmentNetwork):
            estimator.horizon = predictor.horizon
            estimator._restore_segments()
    return estimator
