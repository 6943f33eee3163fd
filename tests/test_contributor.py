"""The contributor's page is true: a script follows "How to add a cell" literally and the conformance suite passes."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/architecture.md").read_text()
RUN = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
sys.path.insert(0, "src")
import lem, pytest
assert lem.__file__.startswith({copy!r}), lem.__file__
sys.exit(pytest.main({words!r}))
"""
"""Run the tests of a copy: without the finder that leads an editable install to this checkout."""


def steps():
    """Return the blocks of the five steps: the file, two lines of __init__.py, one of table.py, one of models.md."""
    section = PAGE.partition("## How to add a cell")[2].partition("A cell of the paper")[0]
    return re.findall(r"```[^\n]*\n(.*?)```", section, re.DOTALL)


def insert(path, line, before):
    """Insert a line before the given text, or before what closes the dictionary that begins with it."""
    text = path.read_text()
    head, found, tail = text.partition(before)
    assert found, f"{path} has no {before!r}"
    if before.endswith("{\n"):
        body, closing, rest = tail.partition("\n}\n")
        path.write_text(head + before + body + "\n" + line.rstrip("\n") + closing + rest)
    else:
        path.write_text(head + line + before + tail)


def follow(copy):
    """Do what the page says in a copy of the repository; return the command of the last step."""
    cell, imported, registered, entry, row, command = steps()
    cells = copy / "src/lem/nn/cells"
    (cells / "leaky.py").write_text(cell)
    insert(cells / "__init__.py", imported, "from lem.nn.cells.lem import")
    insert(cells / "__init__.py", registered, "CELLS: dict[str, Callable[..., Cell]] = {\n")
    insert(cells / "table.py", entry, "TABLE: dict[str, Entry] = {\n")
    models = copy / "docs/models.md"
    last = [line for line in models.read_text().splitlines() if line.startswith("| `")][-1]
    models.write_text(models.read_text().replace(last, f"{last}\n{row.strip()}"))
    return command.split()


@pytest.fixture
def copy(tmp_path):
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "fixtures"))
    (tmp_path / "docs").mkdir()
    for name in ("docs/models.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run(copy, words):
    program = RUN.format(copy=str(copy), words=[*words, "-q", "-p", "no:cacheprovider"])
    return subprocess.run([sys.executable, "-c", program], cwd=copy, capture_output=True, text=True, check=False)


def test_the_steps_of_the_page_add_a_cell_that_conforms(copy):
    python, _, pytest_name, *words = follow(copy)
    assert (python, pytest_name) == ("python", "pytest")
    done = run(copy, words)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed > 20
    table = run(copy, ["tests/nn/cells/test_conformance.py", "-k", "table or documentation"])
    assert table.returncode == 0, table.stdout + table.stderr


@pytest.mark.slow
def test_a_wrong_step_fails(copy):
    """The conformance suite sees a cell whose last step is wrong."""
    _, _, _, *words = follow(copy)
    path = copy / "src/lem/nn/cells/leaky.py"
    path.write_text(path.read_text().replace("x + h @", "x + h.flip(0) @"))  # rows see each other
    assert run(copy, words).returncode == 1
