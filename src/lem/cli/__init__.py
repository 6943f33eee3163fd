"""The command `lem`. Each topic's commands are one module here, named in `TOPICS`; only this package prints."""

import argparse
import os
import sys
import tomllib
import warnings
from typing import Any

import lem
from lem.cli import analysis, bench, doctor, fetch, model, report, series, sweep, train, tune

TOPICS = (train, sweep, tune, fetch, model, report, analysis, doctor, series, bench)
"""Each has a function `add(commands)`, which adds its commands with `commands.add_parser`.

A command is a function of the parsed options that returns the exit status, set by `set_defaults(command=...)`; with
`takes_overrides=True, overrides={}` it also takes `--section.key VALUE` as `options.overrides`.
"""


def parse(words: list[str]) -> argparse.Namespace:
    """Return the options of one command, its overrides among them."""
    parser = argparse.ArgumentParser(prog="lem", description="Long Expressive Memory: train, evaluate, report.")
    parser.add_argument("--version", action="version", version=f"long-expressive-memory {lem.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for topic in TOPICS:
        topic.add(commands)
    words, overrides = _take_overrides(words)
    options = parser.parse_args(words)
    if overrides:
        if not getattr(options, "takes_overrides", False):
            parser.error(f"unrecognized arguments: {' '.join(f'--{key}' for key in overrides)}")
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
    except KeyboardInterrupt:
        print("lem: interrupted", file=sys.stderr)
        return 130
    except MemoryError as error:
        print(f"lem: there is not enough memory: {error or 'take a smaller batch or model'}", file=sys.stderr)
        return 2
    except (ValueError, TypeError, ImportError, OSError, ArithmeticError, RuntimeError) as error:
        print(f"lem: {error}", file=sys.stderr)
        return 2


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Show a warning as what it says, not where in the program it was said."""
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
