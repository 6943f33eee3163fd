"""The benchmark at tiny sizes: it verifies before it times, and its rows hold what the tables quote."""

import json

import pytest
import torch

from lem import bench, native
from lem.cli import main
from tests.close import assert_close

TINY = bench.Shape(20, 3, 2, 8)


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_row_of_speed():
    (row,) = bench.speed([TINY], threads=1, rounds=2, last_step=True, flush=False)
    assert set(row["seconds"]) == {"lem", "lstm", "gru", "loop"}
    assert set(row["x_both"]) == {"lstm", "gru", "loop"}
    assert row["peak_gflops"] > 0 < row["gflops_both"]


def test_a_wrong_kernel_is_not_timed(monkeypatch):
    """A twin whose outputs are a thousandth off must stop the benchmark."""
    true = bench.contestants

    def wrong(shape, lengths=None):
        runs = true(shape, lengths)
        loop = runs["loop"]
        return runs | {"loop": lambda: loop() * 1.01}

    bench.verify(TINY)
    monkeypatch.setattr(bench, "contestants", wrong)
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
    assert native.target() != "scalar"
    assert_close(row["bytes"][memory], row["forecast"][memory], "memory forecast")
