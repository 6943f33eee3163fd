"""The documentation is true: its Python runs and prints what it shows, its commands parse, its links lead somewhere.

Every fenced block of every page is of one of these kinds, and a page with another kind fails. Python runs, page by
page, in an empty folder. A `text` block behind it is what it printed. A block without a name, or named `console`, is
commands: each is parsed by the command's own parser, with its recipe and overrides. A `toml` block is a file of options
of `lem fit` and `lem tune`, read as these do. `{...}` is for Sphinx, `make docs`.
"""

import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

from lem.cli import parse
from lem.experiments.recipe import load_recipe
from lem.extras import EXTRAS
from lem.timeseries.options import estimator_options, read_options

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + [
    page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts
]
FENCE = re.compile(r"^ *(?P<fence>`{3,}|~{3,}|:{3,}) *(?P<kind>[^\n`]*)\n(?P<text>.*?)^ *(?P=fence) *$", re.M | re.S)
APART = ("export.md",)
"""Pages that run in a process of their own, without the tests' check of shapes, which `torch.export` cannot follow."""
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


class Block(NamedTuple):
    kind: str
    text: str


def blocks(text):
    return [Block(match["kind"].strip(), match["text"]) for match in FENCE.finditer(text)]


def commands(page):
    """Return the commands of a page: those of its blocks, and those in its prose, without their comments."""
    text = page.read_text()
    found = [
        line.partition(" #")[0].removeprefix("$ ").strip()
        for block in blocks(text)
        if block.kind in ("", "console")
        for line in block.text.splitlines()
    ]
    found += re.findall(r"`((?:lem|make|pip|torchrun|python) [^`]+)`", FENCE.sub("", text))
    return [command for command in found if command]


def check(command):
    """Refuse a command that a reader could not type; of a bare `lem scales`, or with `...`, only the name is read."""
    words = shlex.split(command)
    while "=" in words[0]:  # a variable of the environment
        words = words[1:]
    match words:
        case ["lem", _, _, *_] if "..." not in command:
            options = parse(words[1:])
            recipe = getattr(options, "recipe", None)
            if recipe and recipe not in ("RECIPE", "TASK/lem", "mine.toml", "DATA", "pumps.csv"):
                load_recipe(recipe, options.overrides)
        case ["lem", *name]:
            with pytest.raises(SystemExit) as stopped, redirect_stdout(StringIO()):
                parse([*name[:1], "--help"])
            assert stopped.value.code == 0, command
        case ["torchrun", *rest]:
            program = next(place for place, word in enumerate(rest) if word in ("lem", "lem.cli"))
            check(shlex.join(["lem", *rest[program + 1 :]]))
        case ["make", *targets]:
            assert {target for target in targets if "=" not in target} <= TARGETS, command
        case ["pip", "install", *what]:
            for extra in re.findall(r"\[([\w,]+)\]", " ".join(what)):
                assert set(extra.split(",")) <= {*EXTRAS, "docs", "dev", "all"}, command
        case ["python", "-m", "lem.cli", *rest]:
            check(shlex.join(["lem", *rest]))
        case ["python" | "tools/compare.sh", *_]:
            path = next(word for word in words if "/" in word)
            assert (ROOT / path).exists() or path == "classifier-numpy/model.py", command
        case _:
            raise AssertionError(f"not a command this test knows: {command}")


def name(page):
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_of_a_kind_that_is_tested(page):
    text = page.read_text()
    for block in blocks(text):
        assert block.kind in ("", "console", "python", "text", "toml") or block.kind.startswith("{"), block
    assert len(re.findall(r"^ *(?:```|~~~|:::)", text, re.MULTILINE)) == 2 * len(blocks(text)), "a fence is not closed"
    assert not re.search(r"\n\n {4}\S", FENCE.sub("", text)), "an indented block escapes the tests: fence it"


@pytest.mark.parametrize("page", [page for page in PAGES if "```toml" in page.read_text()], ids=name)
def test_the_options_files_of_a_page_are_valid(page, tmp_path):
    known = [option.name for option in estimator_options()]
    for block in blocks(page.read_text()):
        if block.kind == "toml":
            (tmp_path / "options.toml").write_text(block.text)
            options, search = read_options(tmp_path / "options.toml", known)
            assert options
            assert search


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * (page.name in APART))
        for page in PAGES
        if any(block.kind == "python" for block in blocks(page.read_text()))
    ],
    ids=name,
)
def test_the_python_of_a_page_runs_and_prints_what_is_shown(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if page.name in APART:
        code = "\n".join(block.text for block in blocks(page.read_text()) if block.kind == "python")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert not any(block.kind == "text" for block in blocks(page.read_text()))
        return
    names: dict = {"__name__": page.stem}
    printed = None
    for block in blocks(page.read_text()):
        if block.kind == "python":
            with redirect_stdout(StringIO()) as out:
                exec(compile(block.text, str(page), "exec"), names)
            printed = out.getvalue()
        elif block.kind == "text" and "equation (3)" not in block.text:  # which tests/test_readme.py compares
            assert printed is not None
            assert block.text.split() == printed.split()


# The log tells what was typed on its day.
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page) and page.name != "log.md"], ids=name)
def test_the_commands_of_a_page_can_be_typed(page):
    for command in commands(page):
        try:
            check(command)
        except SystemExit:
            raise AssertionError(f"the parser refuses: {command}") from None


@pytest.mark.parametrize(
    "command",
    [
        "lem trian adding/lem",
        "lem train adding/lemm",
        "lem train adding/lem --task.lenght 5",
        "lem report --htm runs out",
        "torchrun --nproc-per-node 4 -m lem.cli train smnist/lemm",
        "make demos",
        "pip install 'long-expressive-memory[dta]'",
        "python docs/make_analyses.py",
        "rm -rf runs",
    ],
)
def test_a_false_command_is_found(command):
    with pytest.raises((AssertionError, ValueError, SystemExit)):
        check(command)


def test_links_between_pages_lead_somewhere():
    links = [(page, target) for page in PAGES for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())]
    assert len(links) > 20
    for page, target in links:
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_named_files_exist():
    """What stands in backquotes and looks like a file of this repository is one."""
    named = re.compile(r"`((?:src|docs|tests|tools|native|benchmarks|examples|reproduction)/[\w./-]*)`")
    found = [(page, path) for page in PAGES for path in named.findall(page.read_text())]
    assert len(found) > 20
    for page, path in found:
        assert (ROOT / path).exists(), f"{page.name} names {path}"
