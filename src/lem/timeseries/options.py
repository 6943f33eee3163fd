"""The options of the estimators, for the command line and for files of options."""

import inspect
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lem.spelling import nearest
from lem.timeseries.fitting import FILE_OPTIONS, estimators
from lem.wording import InputError


@dataclass(frozen=True)
class EstimatorOption:
    """One argument of the estimators.

    Attributes:
        name: of the argument.
        default: its default.
        switch: whether it is true or false.
        helps: for each task whose estimator has it, its description, from the docstring.
    """

    name: str
    default: Any
    switch: bool
    helps: dict[str, str]


def estimator_options() -> list[EstimatorOption]:
    """Return every option of every estimator but those that `fit_file` has under its own names."""
    found: dict[str, EstimatorOption] = {}
    for task, kind in estimators().items():
        helps = _documented(kind)
        for name, parameter in inspect.signature(kind.__init__).parameters.items():
            if name in ("self", *FILE_OPTIONS) or parameter.kind is parameter.VAR_KEYWORD:
                continue
            switch = isinstance(parameter.default, bool)
            option = found.setdefault(name, EstimatorOption(name, parameter.default, switch, {}))
            option.helps[task] = helps.get(name, "")
    return list(found.values())


def _documented(kind: Any) -> dict[str, str]:
    """Return the first sentence that the docstrings of a class and its bases say of each argument."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        arguments = re.search(r"^ *Args:\n((?:^(?: {4,}.*)?\n?)*)", inspect.getdoc(base) or "", re.MULTILINE)
        if base.__module__.startswith("lem.") and arguments:
            for name, text in re.findall(r"^ {4}(\w+): ((?:.*\n?)(?: {5,}.*\n?)*)", arguments[1], re.MULTILINE):
                found[name] = re.split(r"[;.](?:\s|$)", " ".join(text.split()))[0]
    return found


def read_options(path: str | Path, known: list[str]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Read a TOML file of options and its section [search], or None; names are those of the flags, with - or _."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except FileNotFoundError:
        raise FileNotFoundError(f"The file of options must exist; got {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise InputError(f"{path} must be a TOML file of options; got: {error}.") from error
    search = found.pop("search", None)
    if not isinstance(search, dict | None):
        raise InputError(f"`search` of {path} must be a section, [search].")
    options, ranges = (
        None if part is None else {name.replace("-", "_"): value for name, value in part.items()}
        for part in (found, search)
    )
    for name in [*(options or ()), *(ranges or ())]:
        if name not in known:
            raise InputError(f"{path} has an unknown option {name!r}.{nearest(name, known)}")
    return options or {}, ranges
