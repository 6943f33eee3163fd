"""Libraries that come with an extra: imported when they are used, and named by their extra if missing."""

import importlib
from typing import Any

EXTRAS = {
    "data": ("scipy", "pyarrow"),
    "plot": ("matplotlib",),
    "sklearn": ("sklearn",),
    "tune": ("optuna", "grpc"),
    "postgres": ("psycopg",),
    "audio": ("librosa",),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "track": ("tensorboard",),
    "gpu": ("triton",),
}
"""The modules each extra brings."""


def extra(module: str, whose: str) -> Any:
    """Import a module of an extra; if it is missing, name what needs it ("Figures need") and how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        name = next(name for name, modules in EXTRAS.items() if library in modules)
        raise ImportError(f"{whose} {library}. In a checkout of lem, run: pip install '.[{name}]'") from error


def pyplot() -> Any:
    """Return matplotlib's pyplot, drawing to files."""
    extra("matplotlib", "Figures need").use("Agg")
    return extra("matplotlib.pyplot", "Figures need")
