"""The benchmark at tiny sizes: it verifies before it times, and its rows hold what the tables quote."""

import json
import subprocess
import sys
import time

import pytest
import torch

from lem.cli import main
from lem.diagnostics import bench, load
from lem.kernels import cpu
from lem.kernels.cpu.lem import LEMKernel
from tests.close import assert_close

TINY = bench.Shape(20, 3, 2, 8)


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_row_of_speed():
    (row,) = bench.speed([TINY], threads=1, rounds=2, last_step=True, flush=False)
    assert set(row["seconds"]) == {"lem", "lem bfloat16", "lstm", "lstm bfloat16", "gru", "loop"}
    assert set(row["x_both"]) == {"lem bfloat16", "lstm", "lstm bfloat16", "gru", "loop"}
    assert set(row["x_bfloat16_both"]) == {"lem", "lstm bfloat16"}
    assert row["peak_gflops"] > 0 < row["gflops_both"]


def test_a_kernel_that_is_wrong_in_bfloat16_is_not_timed(monkeypatch):
    true = bench._autocast
    monkeypatch.setattr(bench, "_autocast", lambda layer, u: 1.5 * true(layer, u))
    with pytest.raises(RuntimeError, match="nothing is timed"):
        bench.verify(TINY)


@pytest.mark.parametrize(("others", "status"), [(0.0, 0), (1.2, 1)])
def test_rows_beside_other_programs_are_marked_and_not_published(others, status, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(load.Watch, "others", lambda self: others)
    monkeypatch.setattr(bench, "SHAPES", [TINY])
    command = ["bench", "--threads", "1", "--rounds", "1"]
    assert main([*command, "--json", str(tmp_path / "a.json")]) == 0
    assert main([*command, "--publish", str(tmp_path / "b.json")]) == status
    text = capsys.readouterr().out
    assert ("other programs used the processors" in text) == bool(status)
    assert "geometric mean" in text
    assert json.loads((tmp_path / "b.json").read_text())["speed"][0]["loaded"] == bool(status)


def test_another_program_is_noticed():
    """A child process that keeps a processor busy counts; this process does not."""
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    found: list[float] = []
    try:
        # On a slow or busy machine the child gets a whole processor late.
        while not found or (not load.is_loaded(found[-1]) and len(found) < 60):
            watch = load.Watch()
            time.sleep(0.7)
            found.append(watch.others())
        assert load.is_loaded(found[-1]), found
    finally:
        child.kill()
        child.wait()


def test_a_wrong_kernel_is_not_timed(monkeypatch):
    right = LEMKernel.run

    def wrong(self, call):
        outputs, state = right(self, call)
        return outputs * 1.01, state

    bench.verify(TINY)
    monkeypatch.setattr(LEMKernel, "run", wrong)
    with pytest.raises(RuntimeError, match="nothing is timed"):
        bench.verify(TINY)


def test_unequal_lengths_streaming_and_the_command(tmp_path, monkeypatch, capsys):
    (row,) = bench.unequal([TINY], threads=1, rounds=1)
    assert 0.1 < row["share"] < 1.0
    assert all(r["stepper"] > 0 for r in bench.streaming((8,), times=50))
    monkeypatch.setattr(bench, "SHAPES", [TINY])
    file = tmp_path / "bench.json"
    assert main(["bench", "--threads", "1", "--rounds", "1", "--json", str(file)]) == 0
    assert json.loads(file.read_text())["speed"][0]["shape"] == list(TINY)
    assert "x LSTM" in capsys.readouterr().out
    assert main(["bench", "--only", "7"]) == 2
    assert main(["bench", "--clock", "processor"]) == 2
    assert main(["bench", "--rounds", "0"]) == 2
    assert "must be at least 1; got 0 and " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["store", "recompute", "bounded"])
def test_the_forecast_of_memory_is_within_a_tenth(memory):
    shape = bench.Shape(6000, 16, 4, 64)
    (row,) = bench.memory([shape], (memory,))
    assert cpu.target() != "scalar"
    assert_close(row["bytes"][memory], row["forecast"][memory], "memory forecast")
