"""Read the model file of a `Predictor` and check all of it before anything is built from it."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lem.nn.cells import CELLS
from lem.spelling import nearest
from lem.timeseries.gaps import Clock
from lem.timeseries.schema import TIME_KINDS
from lem.training.checkpoint import digest
from lem.version import __version__

FORMAT, VERSION = "lem-model", 1
LABEL_TYPES = ("U", "|O", "|b1", *(f"<{kind}{size}" for kind in "iuf" for size in (2, 4, 8)), "|i1", "|u1")


def read_model_file(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors of a model file of this version or an older one, unchanged since written."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"The model file must exist; got {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"Model file {path} is damaged, or not a safetensors file: {error}.") from error
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is a safetensors file, but not a model file of `lem fit` or `save`.")
    version = metadata.get("version", "")
    if not version.isdecimal() or int(version) < 1:
        raise ValueError(f"Model file {path} must state its format version; got {version!r}.")
    if int(version) > VERSION:
        raise ValueError(
            f"Model file {path} has format {version}, written by lem {metadata.get('lem')}; lem {__version__} "
            f"reads formats up to {VERSION}: upgrade long-expressive-memory."
        )
    if metadata.get("sha256") != file_digest(metadata, tensors):
        raise ValueError(f"Model file {path} is damaged: its content does not match its checksum.")
    return metadata, tensors


def file_digest(metadata: dict[str, str], tensors: dict[str, Tensor]) -> str:
    """Return the checksum of a model file."""
    return digest({key: metadata.get(key) for key in ("format", "version", "lem", "config")}, tensors)


def checked_config(config: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Check the metadata before anything is built from it: a checksum does not prove good intentions."""
    if not isinstance(config, dict):
        raise ValueError("its metadata must be an object")
    expected: dict[str, Any] = {
        "kind": str,
        "channels": int,
        "outputs": int,
        "architecture": dict,
        "horizon": int,
        "missing": str,
    }
    expected |= {"flat": bool, "notes": dict, "labels": dict | None}
    config = {"clock": None, **config}  # files of models without times do not have it
    expected["clock"] = dict | None
    unknown, absent = config.keys() - expected.keys(), expected.keys() - config.keys()
    if unknown or absent:
        raise ValueError(f"its metadata must have {', '.join(expected)}; got {', '.join(config)}")
    for key, kind in expected.items():
        if not isinstance(config[key], kind) or (kind is int and isinstance(config[key], bool)):
            raise ValueError(f"`{key}` of its metadata must be {kind}; got {config[key]!r}")
    config["clock"] = _clock(config["clock"])
    architecture = config["architecture"]
    for key in ("device", "dtype"):
        if key in architecture:
            raise ValueError(f"its metadata must not name a {key}: move the model after it is loaded")
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise ValueError(f"its tensor {name!r} must be finite; it holds NaN or infinity")
    cell = architecture.get("cell")
    if cell not in CELLS:
        raise ValueError(f"its cell {cell!r} is not known here.{nearest(str(cell), CELLS)}")
    # No size may exceed what the file itself holds, so that no metadata can ask for memory beyond it.
    held = sum(value.numel() for value in tensors.values())
    layers = architecture.get("num_layers", 1)
    if architecture.get("network") == "frozen":
        layers = architecture.get("groups", 0) + len(architecture.get("selected", ()))
        lists = [architecture.get(key, []) for key in ("dilations", "counts", "selected")]
        if sum(len(part) for part in lists) > held or not all(
            isinstance(n, int) and n <= held for n in architecture.get("counts", [])
        ):
            raise ValueError(f"its lists of kernels must fit the {held} numbers the file holds")
    if layers > len(tensors):
        raise ValueError(f"its {len(tensors)} tensors cannot be {layers} layers")
    for key, size in {**architecture, **config}.items():
        if isinstance(size, int) and not isinstance(size, bool) and not 0 <= size <= held:
            raise ValueError(f"`{key}` of its metadata must lie in [0, {held}], the numbers the file holds; got {size}")
    return config


def with_labels(config: dict[str, Any]) -> dict[str, Any]:
    """Return checked metadata with its labels as an array."""
    if config["labels"] is not None:
        dtype, values = config["labels"].get("dtype"), config["labels"].get("values")
        if dtype not in LABEL_TYPES or not isinstance(values, list) or len(values) != config["outputs"]:
            raise ValueError(f"`labels` of its metadata must be one plain value per output; got {len(values or ())}")
        config = {**config, "labels": _labels(dtype, values)}
    if (config["labels"] is None) == (config["kind"] == "classifier"):
        raise ValueError("a classifier, and nothing else, must have labels")
    return config


def _clock(found: dict[str, Any] | None) -> Clock | None:
    if found is None:
        return None
    unit, kind = found.get("unit"), found.get("kind")
    if found.keys() != {"unit", "kind"} or not isinstance(unit, float) or not 0.0 < unit < float("inf"):
        raise ValueError(f"`clock` of its metadata must be a positive unit and a kind of times; got {found}")
    if kind not in TIME_KINDS:
        raise ValueError(f"`clock` of its metadata must have a kind among {', '.join(TIME_KINDS)}; got {kind!r}")
    return Clock(unit, kind)


def _labels(dtype: str, values: list[Any]) -> np.ndarray:
    """Return the labels of a model file; texts as objects, since an array of texts gives each the longest's room."""
    kind = str if dtype == "U" else object if dtype == "|O" else None
    if not all(
        isinstance(value, bool | int | float | str) and (kind is not str or type(value) is str) for value in values
    ):
        raise ValueError("`labels` of its metadata must be plain values of one type")
    labels = np.empty(len(values), dtype=object if kind else np.dtype(dtype))
    labels[:] = values
    return labels
