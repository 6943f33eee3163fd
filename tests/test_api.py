"""The API reference: every object of docs/api.md is importable and has an example, and all examples run."""

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lem
import lem.kernels
import lem.nn
import lem.nn.cells
import lem.timeseries

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "api.md").read_text()
NAMES = [line.strip() for block in re.findall(r":nosignatures:\n\n(.*?)```", PAGE, re.DOTALL) for line in block.split()]
APART = ("kernels.portable",)
"""Run in a process of its own, without the tests' check of shapes, which torch.export cannot follow."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def find(name):
    module, _, attribute = f"lem.{name}".rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def run(source, name):
    """Run an example in an empty namespace; return what failed, in words."""
    test = doctest.DocTestParser().get_doctest(source, {}, name, None, 0)
    failures: list[str] = []
    doctest.DocTestRunner(verbose=False, optionflags=FLAGS).run(test, out=failures.append)
    assert test.examples, f"{name} has no example"
    return "".join(failures)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in APART)) for n in NAMES])
def test_every_object_of_the_reference_has_an_example_that_runs(name, tmp_path, monkeypatch):
    if name in APART:
        code = f"import sys; from tests.test_api import find, run; sys.exit(run(find({name!r}).__doc__, {name!r}) or 0)"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return
    monkeypatch.chdir(tmp_path)
    failures = run(find(name).__doc__, name)
    assert not failures, failures


def test_every_exported_name_is_in_the_reference():
    objects = [find(name) for name in NAMES]
    assert len(objects) == len(set(map(id, objects))) > 100
    modules = (lem, lem.nn, lem.nn.cells, lem.kernels, lem.timeseries)
    exported = {(module.__name__, name) for module in modules for name in module.__all__}
    states = {name for _, name in exported if name == "State" or name.endswith("State") or name == "Hidden"}
    missing = [
        f"{module}.{name}"
        for module, name in sorted(exported)
        if name not in ("CELLS", "__version__", *states)
        and not any(getattr(importlib.import_module(module), name) is o for o in objects)
    ]
    assert not missing


@pytest.mark.parametrize("source", [">>> 1 + 1\n3\n", ">>> undefined\n"])
def test_a_false_example_is_found(source):
    assert run(source, "false")
