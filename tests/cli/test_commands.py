"""The table of commands: quick to list, whole, and helpful when mistyped."""

import importlib
import resource
import subprocess
import sys

import pytest

from lem.cli import COMMANDS, _Commands, _Parser, main

LONGEST = 0.4
"""Seconds that `lem --help` may take."""


def processor_seconds(*words):
    """Return the processor time of a command: on a busy machine the clock says nothing."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "lem.cli", *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("words", [["--version"], ["--help"], []])
def test_what_needs_no_torch_is_instant(words):
    assert min(processor_seconds(*words) for _ in range(3)) < LONGEST
    code = f"import sys\nfrom lem.cli import main\ntry:\n    main({words})\nexcept SystemExit:\n    pass\n"
    code += "assert not {'torch', 'numpy', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_table_has_every_command_of_every_module():
    for module in {module for module, _ in COMMANDS.values()}:
        commands = _Commands(_Parser(prog="lem").add_subparsers())
        importlib.import_module(f"lem.cli.{module}").add(commands)
        assert set(commands.parsers) == {name for name, (home, _) in COMMANDS.items() if home == module}


def test_lem_alone_shows_help(capsys):
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert all(f" {name} " in shown for name in COMMANDS)


def test_a_mistyped_command_or_option_gets_a_suggestion(capsys):
    assert main(["trian", "adding/lem"]) == 2
    assert (
        capsys.readouterr().err == "lem: There is no command 'trian'. Did you mean 'train'? `lem --help` lists them.\n"
    )
    for words, hint in (
        (["fit", "x.csv", "--tarqet", "y"], "Did you mean '--target'?"),
        (["fit", "x.csv", "--target"], "expected one argument"),
        (["fit", "x.csv", "--train.epochs", "3"], "lem fit: unknown: --train.epochs"),
        (["fit"], "required: DATA"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 2
        error = capsys.readouterr().err
        assert hint in error
        assert len(error.splitlines()) == 1
