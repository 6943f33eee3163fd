"""Child processes run the installed code only, and end with their parent."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from lem.cli.jobs import run_all
from tests.runs import children

SMALL = ["--task.length=8", "--task.steps_per_epoch=5", "--model.hidden_size=4", "--train.batch_size=100"]
LONG = [*SMALL, "--train.epochs=1000000"]


def test_code_in_the_current_folder_does_not_run(tmp_path, monkeypatch):
    """Files named like a module that `lem` imports: each would leave a mark."""
    monkeypatch.chdir(tmp_path)
    for name in ("optuna", "numpy", "torch", "lem", "csv", "safetensors"):
        Path(f"{name}.py").write_text(f"open({name + '.ran'!r}, 'w').close()\n")
    words = ["train", "adding/short", *SMALL, "--train.epochs=1", "--runs", str(tmp_path / "runs")]
    (ended,) = run_all([words], jobs=1)
    assert ended.status == 0, ended.last_words
    assert not list(tmp_path.glob("*.ran"))


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def within(seconds: float, what) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(0.05)
    return False


def ended_with(number: int, parent: subprocess.Popen, workers: list[int]) -> None:
    """Signal the parent; it and all its children must be gone soon."""
    try:
        parent.send_signal(number)
        assert within(300, lambda: parent.poll() is not None), "the parent goes on"
        assert within(300, lambda: not any(map(alive, workers))), "children outlive their parent"
    finally:
        for process in workers:
            if alive(process):
                os.kill(process, signal.SIGKILL)
        parent.kill()
        parent.wait()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        signal.SIGKILL,
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_children_end_with_their_parent(number, tmp_path):
    code = f"""
        from lem.cli.jobs import run_all
        words = ["train", "adding/short", *{LONG!r}, "--runs"]
        print(list(run_all([[*words, {str(tmp_path / "a")!r}], [*words, {str(tmp_path / "b")!r}]], jobs=2)))
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], env=environment, stderr=subprocess.DEVNULL)
    assert within(300, lambda: len(list(tmp_path.glob("*/adding/short/*/last.ckpt"))) == 2)
    workers = children(parent.pid)
    assert len(workers) == 2
    before = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/adding/short/*/last.ckpt"))]
    ended_with(number, parent, workers)
    after = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/adding/short/*/last.ckpt"))]
    assert all(a >= b for a, b in zip(after, before)), "each ends with a checkpoint"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_workers_of_lem_tune_end_with_it(number, tmp_path):
    lem = Path(sys.executable).with_name("lem")
    words = ["tune", "adding/lem", *LONG, "--trials", "4", "--jobs", "2", "--runs", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    parent = subprocess.Popen([lem, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert within(300, lambda: len(list(tmp_path.rglob("last.ckpt"))) == 2)
    workers = children(parent.pid)
    assert len(workers) == 2
    ended_with(number, parent, workers)
