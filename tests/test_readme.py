"""The README is true: its example runs, its commands and files exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_ten_lines_run():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(code.strip().splitlines()) <= 11
    names: dict = {}
    exec(code, names)
    assert names["outputs"].shape == (8, 1000, 32)
    assert names["y_n"].shape == (2, 8, 32)
    assert names["more"].shape == (8, 10, 32)


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
