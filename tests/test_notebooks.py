"""The notebooks run from top to bottom in an empty folder, and are kept without outputs."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells(path, kind="code"):
    found = json.loads(path.read_text())["cells"]
    return [cell for cell in found if cell["cell_type"] == kind]


def run(path):
    names: dict = {"__name__": "__main__"}
    for k, cell in enumerate(cells(path)):
        exec(compile("".join(cell["source"]), f"{path.name}, cell {k}", "exec"), names)
    return names


def test_there_are_notebooks():
    assert {path.stem for path in NOTEBOOKS} == {"classify", "forecast"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path):
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in cells(path):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
    assert cells(path, "markdown")[0]["source"][0].startswith("# ")


def test_the_notebook_on_classification_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    names = run(FOLDER / "classify.ipynb")
    assert names["fitted"].scores.values["accuracy"] > 0.8
    assert names["scores"].min() > 0.8
    assert "60 series of 60 to 90 steps" in capsys.readouterr().out


def test_the_notebook_on_forecasting_runs(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    names = run(FOLDER / "forecast.ipynb")
    assert names["rmse"](names["forecast"]) < names["load"].std()
    names["plt"].close("all")
