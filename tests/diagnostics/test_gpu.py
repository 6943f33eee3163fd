"""The checks and measurements for a GPU, run on the CPU by Triton's interpreter at small sizes."""

import json

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install '.[gpu]'")

from lem.cli import main
from lem.diagnostics import gpu
from lem.diagnostics.gpu import Shape
from lem.kernels.triton import lem, operator
from lem.kernels.triton.paths import CARDS
from tests.kernels.triton.problems import as_on_a_gpu, twin


@pytest.fixture
def _card(monkeypatch):
    with as_on_a_gpu(monkeypatch):
        yield


@pytest.mark.usefixtures("_card")
@pytest.mark.parametrize(("mode", "width", "timed"), [("tf32x3", 5, False), ("float16", 5, False), ("tf32x3", 5, True)])
def test_a_path_that_agrees(mode, width, timed):
    assert "bit for bit" in gpu.agreement(mode, width, "cpu", steps=4, batch=3, timed=timed)


@pytest.mark.usefixtures("_card")
def test_a_path_that_is_wrong_is_reported(tmp_path, monkeypatch):
    broken = twin(lem.resident, tmp_path, "tl.dot(z_new.to(PRODUCT)", "tl.dot(z.to(PRODUCT)")
    monkeypatch.setattr(lem, "resident", broken)
    with pytest.raises(ArithmeticError, match="differs from the float64 reference"):
        gpu.agreement("tf32x3", 5, "cpu", steps=3, batch=2)


@pytest.mark.usefixtures("_card")
def test_two_runs_that_differ_are_reported(monkeypatch):
    runs = iter((0.0, 1e-7))
    whole = lem.forward

    def racing(*arguments):
        out, *rest = whole(*arguments)
        return (out + next(runs), *rest)

    monkeypatch.setattr(lem, "forward", racing)
    with pytest.raises(ArithmeticError, match="race"):
        gpu.agreement("tf32x3", 5, "cpu", steps=3, batch=2)


@pytest.mark.parametrize("card", CARDS)
def test_every_width_and_mode_of_a_card_is_checked(card, monkeypatch):
    monkeypatch.setattr(operator, "card", lambda u: CARDS[card])
    found = list(gpu.offered(torch.empty(0)))
    assert {path.kind for path, _, _ in found} == {"resident", "streamed", "alternating"}
    assert {mode for _, mode, _ in found} <= set(gpu.LIMITS)
    assert len(found) == len(gpu.WIDTHS) * (4 if card.startswith("sm_") else 3)


def test_without_a_gpu_there_is_nothing_to_check():
    assert not list(gpu.checks())


@pytest.mark.usefixtures("_card")
def test_a_row_of_the_benchmark(monkeypatch):
    monkeypatch.setattr(gpu, "LOOP_STEPS", 2)
    (row,) = gpu.speed("cpu", 1, [Shape(3, 2, 2, 5)])
    assert row["path"] == "resident"
    assert set(row["seconds"]) == {"triton", "alternating", "lstm", "loop"}
    assert row["difference_to_loop"] < 1e-5
    assert row["x_lstm_both"] > 0
    json.dumps(row)


def test_a_shape_that_does_not_fit_is_reported(monkeypatch):
    def full(*arguments):
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(gpu, "_measured", full)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    (row,) = gpu.speed("cpu", 1, [Shape(3, 2, 2, 5)])
    assert row["error"] == "out of memory"


def test_the_shapes_are_those_that_are_promised():
    assert {(s.hidden, s.batch, s.steps) for s in gpu.SHAPES} == {
        (d, b, t) for d in (32, 64, 128, 256, 1024) for b in (16, 128, 2048) for t in (100, 1000)
    }


def test_the_command_names_a_device_that_is_not_there(capsys):
    assert main(["bench", "--device", "cuda"]) == 2
    assert "cuda" in capsys.readouterr().err


def test_the_command_writes_what_it_measured(monkeypatch, tmp_path, capsys):
    row = {
        "shape": [1, 2, 3, 4], "path": "resident", "x_lstm_both": 2.0, "x_loop_both": 9.0,
        "seconds": {"triton": {"both": {"median": 1.0, "low": 0.5, "high": 2.0}}},
    }  # fmt: skip
    monkeypatch.setattr(
        gpu, "speed", lambda device, rounds, shapes: iter([row, {"shape": [9], "error": "out of memory"}])
    )
    monkeypatch.setattr(gpu, "machine", lambda device: {"gpu": "none"})
    assert main(["bench", "--device", "meta", "--json", str(tmp_path / "x.json")]) == 0
    written = json.loads((tmp_path / "x.json").read_text())
    assert written["machine"] == {"gpu": "none"}
    assert written["gpu"][0] == row
    assert written["gpu"][1]["error"] == "out of memory"
    assert "out of memory" in capsys.readouterr().out
