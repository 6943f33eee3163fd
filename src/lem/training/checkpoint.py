"""Files that survive: tensors and plain values in a safetensors file with a checksum, written whole or not at all."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from lem.atomic import write_atomically

TENSOR = "__tensor__"
ITEMS = "__items__"


def save_tree(path: Path, tree: dict[str, Any], keep: Path | None = None) -> None:
    """Write nested dicts and lists of tensors, numbers, strings, booleans and None.

    Examples:
        >>> import torch
        >>> from pathlib import Path
        >>> from lem.training.checkpoint import load_tree, save_tree
        >>> save_tree(Path("state.safetensors"), {"step": 7, "weights": [torch.ones(2)]})
        >>> load_tree(Path("state.safetensors"))
        {'step': 7, 'weights': [tensor([1., 1.])]}
    """
    tensors: dict[str, Tensor] = {}
    plain = json.dumps(_take_tensors(tree, tensors))
    save_tensors(path, tensors, {"tree": plain}, keep)


def load_tree(path: Path) -> dict[str, Any]:
    """Read what `save_tree` wrote; nothing in the file is executed. A damaged file is a ValueError.

    Examples:
        >>> from pathlib import Path
        >>> from lem.training.checkpoint import load_tree, save_tree
        >>> save_tree(Path("notes.safetensors"), {"name": "run 1", "best": 0.93})
        >>> load_tree(Path("notes.safetensors"))["best"]
        0.93
    """
    try:
        tensors, text = load_tensors(path)
        tree = _put_tensors(json.loads(text["tree"]), tensors)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not a complete checkpoint: {error}") from error
    if not isinstance(tree, dict):
        raise ValueError(f"{path} is not a complete checkpoint: it holds a {type(tree).__name__}")
    return tree


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], text: Mapping[str, str] | None = None, keep: Path | None = None
) -> None:
    """Write named tensors and texts, with a checksum over all of them."""
    text = text or {}
    own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(own, metadata={**text, "sha256": digest(dict(sorted(text.items())), own)}), keep)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `save_tensors` wrote; a damaged file is a ValueError. One from before there was a checksum passes."""
    try:
        with safe_open(path, framework="pt") as file:
            text = dict(file.metadata() or {})
            # Cloned: as read they keep the alignment of the file, and arithmetic that continues from them rounds
            # differently than in memory that torch allocated.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if text.pop("sha256", None) not in (None, digest(dict(sorted(text.items())), tensors)):
        raise ValueError(f"{path} is damaged: its content does not match its checksum")
    return tensors, text


def digest(text: Mapping[str, str | None], tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of texts, in their order, and of named tensors."""
    total = hashlib.sha256()
    for key, value in text.items():
        total.update(f"{key}={value};".encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        total.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _take_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value
        return {TENSOR: name}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _take_tensors(item, tensors) for key, item in value.items()}
        return {ITEMS: [[key, _take_tensors(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [_take_tensors(item, tensors) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint holds tensors and plain values; got {type(value).__name__}")


def _put_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_put_tensors(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {TENSOR}:
        return tensors[value[TENSOR]]
    if set(value) == {ITEMS}:
        return {key: _put_tensors(item, tensors) for key, item in value[ITEMS]}
    return {key: _put_tensors(item, tensors) for key, item in value.items()}
