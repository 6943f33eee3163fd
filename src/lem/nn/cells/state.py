"""Register the states of cells with torch, so that they can be saved and exported."""

from typing import Any

import torch
from torch.utils import _pytree

_registered: set[type[Any]] = set()


def register_state(state_type: type[Any]) -> None:
    """Let torch save, load and export a NamedTuple of tensors.

    `torch.load` with `weights_only=True` accepts it, and `torch.export.save` can write a program that takes or returns
    it. Registering a type twice does nothing.
    """
    if state_type in _registered:
        return
    _registered.add(state_type)
    torch.serialization.add_safe_globals([state_type])
    # torch has no public function for this; without it only `torch.export.save` is lost.
    register = getattr(_pytree, "_register_namedtuple", None)
    if register is not None:
        register(state_type, serialized_type_name=f"{state_type.__module__}.{state_type.__qualname__}")
