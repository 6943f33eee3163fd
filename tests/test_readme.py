"""The README is true: its example runs, its commands and files exist."""

import re
from pathlib import Path

from lem.cli import main
from tests.test_docs import blocks

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_six_lines_run():
    code, _ = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line and not line.startswith(("import", "from"))]) <= 6
    names: dict = {}
    exec(code, names)
    assert names["y_n"].shape == (2, 8, 32)
    assert names["more"].shape == (8, 10, 32)
    assert names["outputs"].shape == (3, 50, 32)
    assert not names["outputs"][1, 7:].any()


def test_the_estimator_runs(tmp_path, monkeypatch, capsys):
    _, code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert float(capsys.readouterr().out) > 0.8


def test_every_command_runs_in_an_empty_folder(tmp_path, monkeypatch):
    """The commands for your own series, as typed; `make` and `pip` are tried by tools/try_package.py."""
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in blocks(README) if block.kind == "" and "lem example" in block.text]
    for line in block.text.splitlines():
        words = line.partition("#")[0].split()
        assert main(words[1:]) == 0, line
    assert (tmp_path / "pumps.safetensors").exists()


def test_links_lead_to_files():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_named_files_and_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile
    for path in re.findall(r"`((?:src|docs)/[\w./]+)`", README):
        assert (ROOT / path).exists(), path


def test_equation_3_reads_the_same_in_readme_and_code():
    from lem import LEMCell

    lines = re.findall(r"^((?:dt_z|dt_y|z   |y   ) = [^\n]*?\))(?:  |$)", README, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        assert line in LEMCell.__doc__
