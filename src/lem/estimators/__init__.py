"""scikit-learn estimators for people with their own series: classify, regress, forecast.

    from lem.estimators import LEMClassifier
    model = LEMClassifier().fit(X_train, y_train)
    model.predict(X_test)

X is (n, length), (n, channels, length) or a list of (channels, length) arrays of unequal lengths. Without tuning: each
channel is standardised, the time step follows from the length (`time_step`), a part of the series is held out, and the
epoch that does best on it is kept.
"""

from pathlib import Path
from typing import Any

from lem.estimators.base import Memory, time_step
from lem.estimators.classifier import LEMClassifier
from lem.estimators.forecaster import LEMForecaster
from lem.estimators.regressor import LEMRegressor
from lem.predictor import Predictor

__all__ = ["LEMClassifier", "LEMForecaster", "LEMRegressor", "load", "time_step"]


def load(path: str | Path) -> LEMClassifier | LEMRegressor | LEMForecaster:
    """Read a model file and return it as a fitted estimator."""
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
    else:
        estimator._flat = predictor.flat
        estimator.n_outputs_ = predictor.outputs
    return estimator
