"""The Triton kernels compiled for cards that are not here: what their machine code needs, against the table of paths.

The interpreter is on in this process, so that a process of its own compiles.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed: pip install '.[gpu]'")

from lem.kernels.triton.paths import CARDS, TABLE

TOOL = Path(__file__).parents[3] / "tools/compile_kernels.py"
PINNED = Path(__file__).with_name("compiled.json")
MARGIN = 1.1


def compiled(folder, *options):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder / "cache")
    file = folder / "found.jsonl"
    done = subprocess.run(
        [sys.executable, TOOL, file, *options], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in file.read_text().splitlines()]


def assert_fits(row):
    """Hold what the table promises of a row, and what was seen of it before."""
    kind, _, direction = row["kernel"].partition(".")
    assert not row["local_accesses"], f"{row['name']} spills: {row['local_accesses']} accesses in its time loop"
    if direction in ("forward", "adjoint"):
        entry = next(e for e in TABLE[CARDS[row["card"]].vendor] if e.kind == kind and e.width == row["width"])
        stated = (entry.project if "project" in row["variant"] else entry.shared)[row["mode"]]
        assert row["shared"] <= stated <= CARDS[row["card"]].shared, f"{row['name']} takes {row['shared']} bytes"
        assert row["tensor_core"], f"{row['name']} does not use the matrix units"
    pinned = json.loads(PINNED.read_text())
    for figure, before in zip(pinned["figures"], pinned["rows"][row["name"]]):
        assert row[figure] <= MARGIN * before, f"{row['name']}: {row[figure]} {figure}, {before} before"


def table():
    """Return the table of the documentation: what the plain kernels at float32 accuracy need on each card."""
    pinned = json.loads(PINNED.read_text())
    needs = {}
    for name, figures in pinned["rows"].items():
        card, kernel, width, mode, _, variant = name.split(" ", 5)
        if variant == "plain" and mode in ("tf32x3", "ieee") and kernel.partition(".")[0] in ("resident", "streamed"):
            found = dict(zip(pinned["figures"], figures))
            row = needs.setdefault((kernel.partition(".")[0], int(width), kernel.partition(".")[2]), {})
            row[card] = f"{found['registers']}, {found['shared'] // 1024} KB"
    lines = ["| kernel | units | pass | A100 | RTX 30 | H100 | MI300 |", "|---|---|---|---|---|---|---|"]
    for (kind, width, direction), row in sorted(needs.items(), key=lambda item: (item[0][:2], item[0][2] == "adjoint")):
        cells = (row.get(card, "-") for card in ("sm_80", "sm_86", "sm_90", "gfx942"))
        lines.append(f"| {kind} | {width} | {direction} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def test_the_documentation_shows_what_was_compiled():
    assert table() in (TOOL.parents[1] / "docs/gpu.md").read_text()


def test_one_row_of_each_path_fits_an_a100(tmp_path):
    found = compiled(tmp_path, "--one", "--cards", "sm_80")
    assert {row["kernel"].partition(".")[0] for row in found} == {"resident", "streamed", "alternating", "coefficients"}
    for row in found:
        assert_fits(row)


@pytest.mark.gpu_code
@pytest.mark.parametrize("card", CARDS)
def test_every_row_fits_its_card(card, tmp_path):
    for row in compiled(tmp_path, "--cards", card):
        assert_fits(row)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("local_accesses", 3, "spills"), ("shared", 200_000, "bytes"), ("tensor_core", 0, "matrix units"),
     ("barriers", 100, "barriers")],
)  # fmt: skip
def test_a_row_that_grew_worse_is_caught(key, value, message):
    pinned = json.loads(PINNED.read_text())
    name = "sm_80 resident.forward 64 tf32x3 float32 plain"
    row = dict(zip(pinned["figures"], pinned["rows"][name])) | {"name": name, "kernel": "resident.forward"}
    row |= {"card": "sm_80", "width": 64, "mode": "tf32x3", "variant": "plain", "local_accesses": 0, "tensor_core": 9}
    assert_fits(row)
    with pytest.raises(AssertionError, match=message):
        assert_fits(row | {key: value})
