"""A type checker for tensor shapes only: wrong plain values must reach the library's own error messages."""

import functools
import inspect
import typing
from collections.abc import Callable

from jaxtyping import AbstractArray


def check_shapes(function: Callable) -> Callable:
    """Raise TypeError where an argument or the result does not have the shape its annotation states."""
    signature = inspect.signature(function)
    stated = {name: p.annotation for name, p in signature.parameters.items() if _states_a_shape(p.annotation)}
    if not stated:
        return function

    @functools.wraps(function)
    def checked(*args, **kwargs):
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name in stated and not isinstance(value, stated[name]):
                shape = getattr(value, "shape", type(value).__name__)
                raise TypeError(f"`{name}` of {function.__qualname__} must be {stated[name]}; got {shape}.")
        return function(*args, **kwargs)

    return checked


def _states_a_shape(annotation) -> bool:
    parts = typing.get_args(annotation) or (annotation,)
    return any(inspect.isclass(part) and issubclass(part, AbstractArray) for part in parts)
