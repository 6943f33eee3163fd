"""The command `lem`. Only this package prints.

`COMMANDS` names the module of each command. A module is imported when one of its commands is used, so that
`lem --help` and `lem --version` need not wait for torch.
"""

import argparse
import importlib
import os
import sys
import tomllib
import warnings
from typing import Any, NoReturn

from lem.spelling import nearest
from lem.version import __version__

COMMANDS = {
    "example": ("example", "write a small synthetic data set for the first steps"),
    "fit": ("fit", "train a model on a file of series: CSV, Parquet, NPZ, .ts or .arff"),
    "forecast": ("forecast", "forecast a file of dated series: backtest, intervals, dates and a picture"),
    "predict": ("predict", "predict with a model file on a file of series"),
    "evaluate": ("model", "evaluate a model file on a data file, or a run on its test split"),
    "export": ("predict", "export a model to ONNX, torch.export or plain NumPy"),
    "train": ("train", "train a recipe, or resume an interrupted run"),
    "recipes": ("train", "list the recipes, with the paper's scores"),
    "models": ("model", "list the models: equation, state, parameters, reference"),
    "fetch": ("fetch", "download and check the data of tasks"),
    "sweep": ("sweep", "train every combination of a recipe's [sweep] values; rerun the command to resume"),
    "tune": ("tune", "search the options for a file of series, or a recipe's [search] ranges"),
    "report": ("report", "show finished runs as a table or a page"),
    "compare": ("analysis", "plot the scores of many runs against one recipe value"),
    "certify": (
        "analysis",
        "check whether a LEM's gradient explodes, vanishes or reaches the first step, and recommend dt",
    ),
    "scales": ("analysis", "show the time scales of a trained LEM as a figure and a table"),
    "doctor": ("doctor", "check this machine: versions, kernel, correctness, speed"),
    "bench": ("bench", "compare the kernel's speed with nn.LSTM, nn.GRU and the loop"),
}
"""The module of each command, and its line in `lem --help`.

A module has a function `add(commands)`, which adds its commands with `commands.add_parser(NAME, ...)`. A command is a
function of the parsed options that returns the exit status, set by `set_defaults(command=...)`; with
`takes_overrides=True, overrides={}` it also takes `--section.key VALUE` as `options.overrides`.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with a suggestion for a mistyped option."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Print the message and end with status 2."""
        self.exit(2, f"{self.prog}: {message.rstrip('.')}. See `{self.prog} --help`.\n")

    def refuse(self, words: list[str]) -> NoReturn:
        """End with an error that names options the command does not have."""
        known = [flag for action in self._actions for flag in action.option_strings]
        hint = next((found for word in words if (found := nearest(word.partition("=")[0], known))), "")
        self.exit(2, f"{self.prog}: unknown: {' '.join(words)}.{hint} See `{self.prog} --help`.\n")


class _Commands:
    """The subparsers as the modules of commands see them: their help comes from `COMMANDS`."""

    def __init__(self, subparsers: Any) -> None:
        self.subparsers = subparsers
        self.parsers: dict[str, _Parser] = {}

    def add_parser(self, name: str, **options: Any) -> _Parser:
        """Add a command's parser."""
        summary = COMMANDS[name][1]
        self.parsers[name] = self.subparsers.add_parser(name, help=summary, description=f"{summary}.", **options)
        return self.parsers[name]


def parse(words: list[str]) -> argparse.Namespace:
    """Return the options of one command, its overrides among them."""
    parser = _Parser(prog="lem", description="Long Expressive Memory: your own series, and the paper's experiments.")
    parser.add_argument("--version", action="version", version=f"long-expressive-memory {__version__}")
    commands = _Commands(parser.add_subparsers(required=True, metavar="COMMAND"))
    words, overrides = _take_overrides(words)
    name = next((word for word in words if not word.startswith("-")), None)
    if name is not None and name not in COMMANDS:
        raise ValueError(f"There is no command {name!r}.{nearest(name, COMMANDS)} `lem --help` lists them.")
    wanted = None if name is None else COMMANDS[name][0]
    for known, (module, _) in COMMANDS.items():
        if module != wanted:
            commands.add_parser(known)
    if wanted is not None:
        importlib.import_module(f"lem.cli.{wanted}").add(commands)
    if not words:
        parser.print_help()
        parser.exit(0)
    options, unknown = parser.parse_known_args(words)
    assert name is not None
    if unknown:
        commands.parsers[name].refuse(unknown)
    if overrides:
        if not getattr(options, "takes_overrides", False):
            commands.parsers[name].refuse([f"--{key}" for key in overrides])
        options.overrides = overrides
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run one command; errors of the user's making are one line, without a traceback."""
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return int(options.command(options))
    except BrokenPipeError:  # `lem recipes | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt as error:
        print(f"lem: interrupted{f': {error}' if str(error) else ''}", file=sys.stderr)
        return 130
    except MemoryError as error:
        print(f"lem: out of memory: {error or 'use a smaller batch or model'}", file=sys.stderr)
        return 2
    except (ValueError, TypeError, ImportError, OSError, ArithmeticError, RuntimeError) as error:
        print(f"lem: {getattr(error, 'command_line', error)}", file=sys.stderr)
        return 2


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print the text of a warning without its place in the source."""
    print(f"lem: warning: {message}", file=sys.stderr)


def _take_overrides(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Take `--train.epochs 5` or `--train.epochs=5` out of the words as {"train.epochs": 5}.

    Values are TOML, or else strings. This comes before argparse, which would take a value for a positional argument.
    """
    left: list[str] = []
    found: dict[str, Any] = {}
    words = list(words)
    while words:
        key, equals, text = words.pop(0).partition("=")
        if not key.startswith("--") or "." not in key:
            left.append(key + equals + text)
            continue
        if not equals:
            if not words:
                raise ValueError(f"An override must be written --section.key VALUE; got {key!r}.")
            text = words.pop(0)
        key = key[2:]
        if key in found:
            raise ValueError(f"Override --{key} must be given once; got {found[key]!r} and {text!r}.")
        try:
            found[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = text
    return left, found
