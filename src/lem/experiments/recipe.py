"""Recipes: what a run does, as TOML, with every key and value checked before anything starts.

The sections: [task], [model] and [train] are arguments of the task, of `SequenceModel` and its cell, and of `fit`;
[search] and [sweep] say what `lem tune` and `lem sweep` vary; [paper] is what the paper reports. A recipe for several
models has a section [cells.NAME] for each, with the values that hold when `model.cell` is NAME.
"""

import dataclasses
import functools
import hashlib
import inspect
import itertools
import json
import re
import tomllib
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lem.experiments import first_format
from lem.nn.cells import CELLS
from lem.nn.model import SequenceModel
from lem.spelling import nearest
from lem.tasks import TASKS
from lem.training.loop import fit

RECIPES = Path(__file__).parent / "recipes"
SECTIONS = ("task", "model", "train", "search", "sweep", "paper")
PAPER_KEYS = ("score", "units", "parameters", "source", "epochs")
FROM_TASK = ("input_size", "output_size", "every_step", "symbols")
FROM_RUN = ("model", "train", "valid", "loss", "metric", "seed", "store", "report", "should_stop", "processes")


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe: what a run does, apart from its seed.

    Examples:
        >>> from lem.experiments.recipe import load_recipe
        >>> recipe = load_recipe("fitzhugh_nagumo/lem")
        >>> recipe.model["cell"], recipe.model["hidden_size"]
        ('lem', 16)
    """

    name: str
    task: dict[str, Any]
    model: dict[str, Any]
    train: dict[str, Any]
    search: dict[str, Any]
    sweep: dict[str, Any]
    paper: dict[str, Any]

    @property
    def digest(self) -> str:
        """Eight letters that name the recipe's content: equal recipes share a run folder."""
        content = json.dumps([self.task, self.model, self.train], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:8]

    def tables(self) -> dict[str, Any]:
        """Return the sections that are not empty."""
        return {section: getattr(self, section) for section in SECTIONS if getattr(self, section)}

    def to_toml(self) -> str:
        """Write the recipe as TOML."""
        lines = [f"name = {toml_value(self.name)}"]
        for section in SECTIONS:
            table = getattr(self, section)
            if table:
                lines += [
                    "",
                    f"[{section}]",
                    *(f"{_toml_key(key)} = {toml_value(value)}" for key, value in table.items()),
                ]
        return "\n".join(lines) + "\n"


# --- reading recipes ----------------------------------------------------------------------------------------------


def recipe_names() -> list[str]:
    """List the recipes that come with the library, as `task/model`.

    Examples:
        >>> from lem.experiments.recipe import recipe_names
        >>> "smnist/lem" in recipe_names()
        True
    """
    return sorted(path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.toml"))


def load_recipe(name: str, overrides: dict[str, Any] | None = None) -> Recipe:
    """Read a recipe by name or path, apply overrides such as {"train.epochs": 5}, and check every key and value.

    Examples:
        >>> from lem.experiments.recipe import load_recipe
        >>> recipe = load_recipe("adding/lem", {"train.epochs": 5})
        >>> recipe.task["name"], recipe.train["epochs"]
        ('adding', 5)
    """
    path = RECIPES / f"{name}.toml"
    if not path.is_file():
        path = Path(name)
        if not path.is_file():
            known = recipe_names()
            if cell := first_format.RENAMED.get(name):
                raise ValueError(f"Recipe {name!r} is now {cell.recipe!r} with model.cell = {cell.cell!r}.")
            raise ValueError(
                f"`recipe` must be a TOML file or a name that `lem recipes` lists; got {name!r}.{nearest(name, known)}"
            )
        name = _name_of(path)
    tables = read_toml(path)
    name = take_name(tables, name)
    return check_recipe(name, _overridden(_for_cell(name, tables, overrides or {}), overrides or {}))


def standard_recipe(recipe: Recipe) -> Recipe | None:
    """Return the library's recipe of the same name, for the same cell if it has several, or None."""
    file = RECIPES / f"{recipe.name}.toml"
    if not file.is_file():
        return None
    return load_recipe(recipe.name, {"model.cell": recipe.model["cell"]} if "cells" in read_toml(file) else {})


def _for_cell(name: str, tables: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the tables with the values that [cells] has for the chosen cell, and without [cells]."""
    cells = tables.pop("cells", {})
    if not isinstance(cells, dict):
        raise ValueError(f"`cells` of recipe {name} must be sections [cells.NAME]; got {cells!r}.")
    for cell, values in cells.items():
        if cell not in CELLS:
            raise ValueError(
                f"A section [cells.NAME] of recipe {name} must name a model; got {cell!r}.{nearest(cell, CELLS)}"
            )
        sections = isinstance(values, dict) and set(values) <= {"model", "train"}
        if not sections or not all(isinstance(table, dict) for table in values.values()):
            raise ValueError(f"[cells.{cell}] of recipe {name} must set model.KEY and train.KEY; got {values!r}.")
    model = tables.get("model")
    chosen = overrides.get("model.cell", model.get("cell") if isinstance(model, dict) else None)
    own = cells.get(chosen, {}) if isinstance(chosen, str) else {}
    return _overridden(tables, {f"{section}.{key}": value for section in own for key, value in own[section].items()})


def take_name(tables: dict[str, Any], default: str) -> str:
    """Remove the key `name` from the tables of a recipe and return its value, or `default` without one."""
    name = tables.pop("name", default)
    if not isinstance(name, str) or not name:
        raise ValueError(f"`name` of recipe {default} must be a text in quotes; got {name!r}.")
    return name


def _name_of(path: Path) -> str:
    """Return the name of a recipe in a file: that of its folder, if the path has one, and its own."""
    plain = path if ".." not in path.parts else path.resolve()
    return "/".join(part for part in plain.with_suffix("").parts[-2:] if part != plain.anchor)


def read_toml(path: Path) -> dict[str, Any]:
    """Read the tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Recipe {path} must be valid TOML; got: {error}.") from error


def with_values(recipe: Recipe, overrides: dict[str, Any]) -> Recipe:
    """Return the recipe with some values changed, such as {"train.epochs": 5}."""
    return check_recipe(recipe.name, _overridden(recipe.tables(), overrides))


def _overridden(tables: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    tables = {section: dict(table) if isinstance(table, dict) else table for section, table in tables.items()}
    for key, value in overrides.items():
        section, _, option = key.partition(".")
        if not option:
            raise ValueError(f"An override must be written section.key; got {key!r}.")
        tables.setdefault(section, {})[option] = value
    return tables


def check_recipe(name: str, tables: Any) -> Recipe:
    """Return the tables of a TOML file as a recipe, or say what is wrong with them."""
    _check_name(name)
    if not isinstance(tables, dict):
        raise ValueError(f"Recipe {name} must be made of sections; got {tables!r}.")
    for section, table in tables.items():
        if section not in SECTIONS:
            raise ValueError(
                f"A section of recipe {name} must be one of {', '.join(SECTIONS)}; got [{section}]."
                f"{nearest(section, SECTIONS)}"
            )
        if not isinstance(table, dict):
            raise ValueError(f"`{section}` of recipe {name} must be a section [{section}]; got {table!r}.")
    recipe = Recipe(name, **{section: _plain(name, section, tables.get(section, {})) for section in SECTIONS})
    task = _named(name, "task", "name", recipe.task, TASKS)
    cell = _named(name, "model", "cell", recipe.model, CELLS)
    _check_keys(name, "task", recipe.task, {"name": str, **_options(TASKS[task])})
    known = {**_options(CELLS[cell], skip=("bias", "device", "dtype")), **_options(SequenceModel, skip=FROM_TASK)}
    _check_keys(name, "model", recipe.model, known, required=("hidden_size",))
    fit_options = _options(fit, skip=FROM_RUN)
    _check_keys(name, "train", recipe.train, fit_options, required=("batch_size", "epochs", "learning_rate"))
    _check_keys(name, "paper", recipe.paper, dict.fromkeys(PAPER_KEYS, object))
    varied = {"task": _options(TASKS[task]), "model": known, "train": fit_options}
    search = _by_place(name, "search", recipe.search, varied)
    sweep = _by_place(name, "sweep", recipe.sweep, varied)
    for place, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"`{place}` in [sweep] of recipe {name} must be a list of values; got {values!r}.")
    for place, values in search.items():
        _check_range(name, place, values)
    return dataclasses.replace(recipe, search=search, sweep=sweep)


def _check_name(name: str) -> None:
    """Refuse a name that is not the path of a folder below `runs`."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or set(part) & set("\\:") or not part.isprintable() for part in parts):
        raise ValueError(
            "A recipe's name becomes a folder, so it must be a relative path without '..', ':', backslashes and "
            f"control characters; got {name!r}."
        )


def _plain(name: str, place: str, value: Any) -> Any:
    """Return a value as it reads back from TOML and JSON, in which a run keeps it; refuse one that would not."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {_plain(name, place, key): _plain(name, f"{place}.{key}", item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, place, item) for item in value]
    if _is_text(value):
        return str(value)
    if isinstance(value, float) and value == value:
        return float(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    raise ValueError(
        f"`{place}` of recipe {name} must be text, a 64-bit whole number, a number other than NaN, true, false, or a "
        f"list or table of these; got {value!r}."
    )


def _is_text(value: Any) -> bool:
    """Return whether a value is text that can be written: command lines may contain bytes that are not characters."""
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def _by_place(name: str, section: str, table: dict[str, Any], varied: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return what [search] or [sweep] varies by section.key; `dt`, "model.dt" and model.dt all mean the same."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if key in varied and isinstance(value, dict):
            flat |= {f"{key}.{option}": values for option, values in value.items()}
        elif "." in key:
            flat[key] = value
        else:
            owners = [owner for owner, options in varied.items() if key in options]
            if len(owners) > 1:
                wanted = " or ".join(f'"{owner}.{key}"' for owner in owners)
                raise ValueError(f"`{key}` in [{section}] of recipe {name} must be written {wanted}.")
            flat[f"{owners[0] if owners else 'train'}.{key}"] = value
    for place in flat:
        owner, _, option = place.partition(".")
        known = varied.get(owner, {})
        if option not in known:
            every = [f"{o}.{k}" for o, options in varied.items() for k in options]
            raise ValueError(
                f"A key in [{section}] of recipe {name} must be of its task, model or train; got {place!r}."
                f"{nearest(place, every)}"
            )
    return flat


def _check_range(name: str, place: str, values: Any) -> None:
    if isinstance(values, list) and values:
        return
    form = "a list of choices or { low = ..., high = ..., log = true }"
    if not isinstance(values, dict) or not {"low", "high"} <= set(values) <= {"low", "high", "log"}:
        raise ValueError(f"`{place}` in [search] of recipe {name} must be {form}; got {values!r}.")
    low, high = values["low"], values["high"]
    if not (_fits(low, float) and _fits(high, float) and low < high and (low > 0 or not values.get("log"))):
        raise ValueError(
            f"`{place}` in [search] of recipe {name} must have low < high, and low > 0 with log; got {values!r}."
        )


class Difference(NamedTuple):
    """A value that two recipes do not share; None if a recipe does not set it."""

    section: str
    key: str
    old: Any
    new: Any

    @property
    def place(self) -> str:
        """The key with its section, as it is written on the command line."""
        return f"{self.section}.{self.key}"


def differences(old: Recipe, new: Recipe) -> list[Difference]:
    """Return the values of [task], [model] and [train] that differ between two recipes."""
    return [
        Difference(section, key, before.get(key), after.get(key))
        for section in ("task", "model", "train")
        for before, after in [(getattr(old, section), getattr(new, section))]
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]


def describe_changes(changed: list[Difference]) -> str:
    """Write differences as a clause of an error message."""

    def written(value: Any) -> str:
        return "not set" if value is None else toml_value(value)

    return "; ".join(f"{one.place} was {written(one.old)}, is {written(one.new)}" for one in changed)


def sweep_points(recipe: Recipe) -> list[dict[str, Any]]:
    """Return the overrides of every combination of the values in [sweep]; one empty set if there are none."""
    return [dict(zip(recipe.sweep, values)) for values in itertools.product(*recipe.sweep.values())]


def refuse_fixed(recipe: Recipe, section: str, overrides: dict[str, Any]) -> None:
    """Refuse overrides of what [search] or [sweep] is to vary."""
    for place in getattr(recipe, section):
        if place in overrides:
            raise ValueError(
                f"--{place} conflicts with [{section}] of recipe {recipe.name}, which varies it; "
                f"drop it, or change what is varied by --{section}.{place} VALUES."
            )


def _named(recipe: str, section: str, key: str, table: dict[str, Any], known: dict[str, Any]) -> str:
    value = table.get(key)
    if not isinstance(value, str) or value not in known:
        raise ValueError(
            f"`{key}` in [{section}] of recipe {recipe} must be one of {', '.join(sorted(known))}; got {value!r}."
            f"{nearest(str(value), known)}"
        )
    return value


def _options(function: Callable[..., Any], skip: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the arguments of a function or class with their types, without those that others supply."""
    if isinstance(function, functools.partial):
        function = function.func
    hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    names = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    return {name: hints.get(name, object) for name in names if name not in (*skip, "input_size")}


def _check_keys(
    recipe: str, section: str, table: dict[str, Any], known: dict[str, Any], required: tuple[str, ...] = ()
) -> None:
    for key, value in table.items():
        if key not in known:
            raise ValueError(
                f"A key in [{section}] of recipe {recipe} must be one of {', '.join(known)}; got {key!r}."
                f"{nearest(key, known)}"
            )
        if not _fits(value, known[key]):
            wanted = _in_words(known[key])
            raise ValueError(f"`{key}` in [{section}] of recipe {recipe} must be {wanted}; got {value!r}.")
    for key in required:
        if key not in table:
            raise ValueError(f"[{section}] of recipe {recipe} must set `{key}`; got {', '.join(table) or 'nothing'}.")


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, types.UnionType):
        return any(_fits(value, part) for part in kind.__args__)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    origin = typing.get_origin(kind)
    if origin in (tuple, list):
        parts = typing.get_args(kind)
        fixed = origin is tuple and ... not in parts
        if not isinstance(value, list | tuple) or (fixed and len(value) != len(parts)):
            return False
        return all(_fits(item, parts[0]) for item in value)
    return not isinstance(kind, type) or isinstance(value, kind)


def _in_words(kind: Any) -> str:
    """Say what `_fits` takes, as a writer of TOML would."""
    if isinstance(kind, types.UnionType):
        return " or ".join(_in_words(part) for part in kind.__args__ if part is not type(None))
    if typing.get_origin(kind) is tuple and ... not in typing.get_args(kind):
        return f"a list of {len(typing.get_args(kind))} numbers"
    names = {float: "a number", int: "a whole number", str: "a text in quotes", bool: "true or false"}
    return names.get(kind, "a list" if typing.get_origin(kind) else str(kind))


def _toml_key(key: str) -> str:
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else _toml_text(key)


def _toml_text(text: str) -> str:
    """Write a string; TOML takes the escapes of JSON, but not a bare DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_value(value: Any) -> str:
    """Write a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_key(key)} = {toml_value(item)}" for key, item in value.items()) + " }"
    return _toml_text(value) if isinstance(value, str) else repr(value)
