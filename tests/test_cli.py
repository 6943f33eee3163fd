"""The command as a user types it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from lem.cells import CELLS
from lem.cli import main

TINY = ["--task.sizes", "[4, 4, 4]", "--model.hidden_size", "3", "--train.batch_size=2"]


def lem(*words, cwd):
    return subprocess.run(
        [sys.executable, "-m", "lem.cli", *words], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def test_train_evaluate_and_the_figure(tmp_path):
    done = lem("train", "fitzhugh_nagumo/lem", *TINY, "--train.epochs", "2", "--figure", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "test rmse" in done.stdout
    assert "paper            0.002" in done.stdout
    (folder,) = (tmp_path / "runs/fitzhugh_nagumo/lem").iterdir()
    assert (folder / "learning_curve.png").stat().st_size > 10_000
    again = lem("train", "fitzhugh_nagumo/lem", *TINY, "--train.epochs", "2", cwd=tmp_path)
    assert "finished before" in again.stdout
    evaluated = lem("evaluate", str(folder), cwd=tmp_path)
    assert f"{json.loads((folder / 'result.json').read_text())['test']:.3g}" in evaluated.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train"], "lem train needs a recipe"),
        (["train", "nothing"], "`recipe` must be"),
        (["train", "adding/lem", "--train.epochs"], "written --section.key VALUE"),
        (["train", "adding/lem", "--train.epochs", "1", "--train.epochs", "2"], "must be given once"),
        (["evaluate", "nowhere"], "must be a run folder"),
        (["publish", "nowhere"], "must have finished"),
    ],
)
def test_mistakes_are_one_line_without_a_traceback(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_recipes_are_listed(capsys):
    assert main(["recipes"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("fitzhugh_nagumo/lem "))
    assert "0.002" in line


def test_models_are_listed(capsys):
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(not line.startswith(" ") for line in lines) == len(CELLS)
    assert any(line.startswith("cornn ") and "gamma y" in line for line in lines)


def test_ctrl_c_leaves_a_run_that_resumes(tmp_path, capsys):
    words = ["train", "fitzhugh_nagumo/lem", *TINY, "--train.epochs", "100000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lem.cli", *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    deadline = time.monotonic() + 60
    while (
        not list(tmp_path.glob("runs/*/*/*/metrics.jsonl"))
        or not next(tmp_path.glob("runs/*/*/*/metrics.jsonl")).read_text()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Continue with: lem train --resume" in output
    (folder,) = (tmp_path / "runs/fitzhugh_nagumo/lem").iterdir()
    assert (folder / "last.ckpt").is_file()
    assert not (folder / "result.json").exists()
    assert main(["train", "--resume", str(folder), "--train.epochs", "3"]) == 2
    assert "keeps its recipe" in capsys.readouterr().err
