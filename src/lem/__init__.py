"""Long Expressive Memory (LEM), the models it is compared with, and tools for time series.

The public names are imported when they are first used, so that `import lem` alone does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lem.version import __version__

if TYPE_CHECKING:
    from lem.nn import CELLS, LEM, LEMCell, Recurrent
    from lem.timeseries import LEMClassifier, LEMFeatures, LEMForecaster, LEMRegressor
    from lem.training.data import DataError

__all__ = [
    "CELLS",
    "LEM",
    "DataError",
    "LEMCell",
    "LEMClassifier",
    "LEMFeatures",
    "LEMForecaster",
    "LEMRegressor",
    "Recurrent",
    "__version__",
]
_HOMES = {
    "CELLS": "lem.nn",
    "LEM": "lem.nn",
    "LEMCell": "lem.nn",
    "Recurrent": "lem.nn",
    "DataError": "lem.training.data",
    "LEMClassifier": "lem.timeseries",
    "LEMFeatures": "lem.timeseries",
    "LEMForecaster": "lem.timeseries",
    "LEMRegressor": "lem.timeseries",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lem' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
