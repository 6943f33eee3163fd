"""Errors that name options in the words of the interface they are reached through."""

import shlex
from collections.abc import Callable, Iterable
from typing import Any

from lem.spelling import nearest

Option = Callable[..., str]
"""Writes an option: `option("series")` names it, `option("series", "pump")` sets it."""


class InputError(ValueError):
    """Something is wrong with what the user gave, and an option can change it.

    Python names the option as an argument (`series='pump'`), the command line as a flag (`--series pump`). The message
    is a function that is given the interface's way to write an option.

    Attributes:
        command_line: the message in the words of the command line.
    """

    def __init__(self, message: str | Callable[..., str], command_line: str | None = None) -> None:
        super().__init__(message if isinstance(message, str) else message(as_argument))
        self.command_line = command_line or (str(self) if isinstance(message, str) else message(as_flag))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.command_line)


def check_choice(owner: str | None, name: str, value: Any, known: Iterable[str | None]) -> None:
    """Raise if the argument `name` of `owner` is not one of the known values; suggest the closest one."""
    known = tuple(known)
    if not isinstance(value, str | None) or value not in known:
        whose = f" of {owner}" if owner else ""
        rest = f"must be one of {', '.join(map(repr, known))}; got {value!r}.{nearest(str(value), filter(None, known))}"
        raise InputError(lambda option: f"{option(name)}{whose} {rest}")


def as_argument(name: str, value: Any = None) -> str:
    """Write an option as a Python argument."""
    return f"`{name}`" if value is None else f"{name}={value!r}"


def as_flag(name: str, value: Any = None) -> str:
    """Write an option as a flag of the command line."""
    flag = f"--{name.replace('_', '-')}"
    if value is None or value is True:
        return flag
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f"{flag} {shlex.quote(text)}"
