"""Libraries that come with an extra: imported where they are used, and named by their extra where missing."""

import importlib
from typing import Any

EXTRAS = {
    "data": ("scipy", "pyarrow"),
    "plot": ("matplotlib",),
    "sklearn": ("sklearn",),
    "tune": ("optuna", "grpc"),
    "audio": ("librosa",),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "track": ("tensorboard",),
}
"""The modules each extra brings."""


def extra(module: str, whose: str) -> Any:
    """Import a module of an extra; where it is missing, say what needs it ("Figures need") and how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        name = next(name for name, modules in EXTRAS.items() if library in modules)
        raise ImportError(f"{whose} {library}: pip install 'long-expressive-memory[{name}]'.") from error


def pyplot() -> Any:
    """Return matplotlib's pyplot, drawing to files."""
    extra("matplotlib", "Figures need").use("Agg")
    return extra("matplotlib.pyplot", "Figures need")
