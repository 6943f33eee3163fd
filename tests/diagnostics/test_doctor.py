"""The doctor finds this machine well, and would find a broken one ill."""

import json
import tomllib
from pathlib import Path

import pytest

from lem import LEMCell
from lem.cli import main
from lem.diagnostics import doctor
from lem.extras import EXTRAS
from lem.kernels import choose, cpu
from lem.kernels.cpu import library
from lem.nn.cells import Cell, LEMState


@pytest.fixture(scope="module")
def report():
    return doctor.examine(speed=False)


def test_this_machine_is_well(report):
    assert report["ok"], [check for check in report["checks"] if not check["ok"]]
    names = [check["name"] for check in report["checks"]]
    assert {"loop, float64", "loop, float32", "streaming", "resume"} <= set(names)
    for target in cpu.targets():
        assert f"kernel {target}, float32" in names


def test_every_extra_is_looked_for():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"all", "dev", "docs"}


def test_the_report_is_plain_data(report):
    assert json.loads(json.dumps(report)) == report


@pytest.mark.parametrize("factor", [1.001, float("nan")])
def test_a_wrong_kernel_is_found_and_the_exit_status_says_so(factor, monkeypatch, capsys):
    right = LEMCell.sequence

    def wrong(self, *args, **kwargs):
        outputs, (y, z) = right(self, *args, **kwargs)
        return outputs, LEMState(y, z * factor)

    monkeypatch.setattr(LEMCell, "sequence", wrong)
    monkeypatch.setattr(doctor, "LIMITS", dict(list(doctor.LIMITS.items())[:1]))
    ill = [check["name"] for check in doctor.examine(speed=False)["checks"] if not check["ok"]]
    assert set(ill) >= {f"kernel {target}, float64" for target in cpu.targets()}
    assert main(["doctor", "--no-speed"]) == 1
    assert "please report it" in capsys.readouterr().out


def test_without_the_kernel_it_says_why_and_what_to_do(monkeypatch):
    monkeypatch.setattr(LEMCell, "backend_for", lambda self, u: ("loop", "the kernel was not built"))
    monkeypatch.setattr(doctor, "LIMITS", {})
    report = doctor.examine(speed=False)
    assert report["kernel"]["targets"] == []
    assert any("runs on the Python loop: the kernel was not built" in advice for advice in report["advice"])


def test_a_kernel_that_cannot_be_loaded_is_an_illness(monkeypatch):
    monkeypatch.setattr(library, "LIBRARY", None)
    monkeypatch.setattr(library, "MISSING", library.broken("no ELF"))
    choose.forget_warnings()
    monkeypatch.setattr(doctor, "LIMITS", {})
    report = doctor.examine(speed=False)
    assert not report["ok"]
    assert [check["name"] for check in report["checks"] if not check["ok"]] == ["kernel library"]


def test_a_wrong_loop_is_found_too(monkeypatch):
    right = Cell._steps
    monkeypatch.setattr(Cell, "_steps", lambda self, u, s, n, reverse, fields: right(self, u, s, n, False, fields))
    ill = [check["name"] for check in doctor.examine(speed=False)["checks"] if not check["ok"]]
    assert {"loop, float64", "loop, float32"} <= set(ill)


def test_speed_is_a_paired_ratio(monkeypatch):
    row = doctor._speed((20, 4, 1, 8))
    assert row["spread"][0] <= row["times_lstm"] <= row["spread"][1]
