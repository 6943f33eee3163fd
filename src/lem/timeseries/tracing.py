"""What all exports by torch's tracers need: the libraries of ONNX, and silence."""

import contextlib
import io
import logging
import warnings
from typing import Any

from lem.extras import extra


def need_onnx() -> None:
    """Raise if a library for ONNX is missing, naming it and its extra."""
    for library in ("onnx", "onnxruntime", "onnxscript"):
        extra(library, "The export to ONNX needs")


@contextlib.contextmanager
def quiet() -> Any:
    """Suppress what torch's tracers print (a graph, missing torchvision, deprecations)."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
