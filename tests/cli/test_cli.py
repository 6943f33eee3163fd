"""The command as a user types it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from lem.cli import main
from lem.nn.cells import CELLS

TINY = ["--task.sizes", "[4, 4, 4]", "--model.hidden_size", "3", "--train.batch_size=2"]


def lem(*words, cwd):
    return subprocess.run(
        [sys.executable, "-m", "lem.cli", *words], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
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
        (["train", "adding/lem", "--seed", "-3"], "`seed` of a run must be a whole number of at least 0; got -3"),
        (["train", "adding/lem", "--model.dt", "'x'"], "`dt` in [model] of recipe adding/lem must be a number; got"),
        (["train", "fitzhugh_nagumo/lem", "--task.sizes", "[4, 4]"], "must be a list of 3 numbers; got [4, 4]"),
        (["train", "fitzhugh_nagumo/lem", "--task.sizes", "[0, 4, 4]"], "must be positive numbers of sequences"),
        (["train", "adding/lem", "--task.steps_per_epoch", "0"], "`steps_per_epoch` of adding must be"),
        (["train", "adding/lem", "--model.two_biases", "3"], "must be true or false; got 3"),
    ],
)
def test_mistakes_are_one_line_without_a_traceback(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_machine_that_cannot_is_told_so_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    short = [*TINY, "--train.epochs", "1"]
    assert main(["train", "fitzhugh_nagumo/lem", *short, "--train.device", "gpu"]) == 2
    assert "`device` of fit must be one that torch has here; got 'gpu'" in capsys.readouterr().err
    assert main(["train", "fitzhugh_nagumo/lem", *short, "--model.backend", "triton"]) == 2
    assert capsys.readouterr().err.startswith("lem: backend='triton' cannot run this call: the Triton kernel runs on")


def test_a_reader_who_has_seen_enough_is_no_error(tmp_path):
    command = f"{sys.executable} -m lem.cli recipes | head -1"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("recipe")
    assert done.stderr == ""


def test_a_run_reports_in_lines_of_json(tmp_path):
    words = ["train", "fitzhugh_nagumo/lem", *TINY, "--train.epochs", "2", "--json"]
    for evaluations in ([1, 2], []):  # the second time it has finished before
        done = lem(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        *events, last = [json.loads(line) for line in done.stdout.splitlines()]
        assert [event["event"] for event in events] == ["evaluation"] * len(evaluations)
        assert [event["epoch"] for event in events] == evaluations
        assert last["event"] == "finished"
        assert last["result"] == json.loads((tmp_path / last["path"] / "result.json").read_text())
        assert last["path"] == f"runs/{last['name']}"


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
    deadline = time.monotonic() + 300
    while (
        not list(tmp_path.glob("runs/*/*/*/metrics.jsonl"))
        or not next(tmp_path.glob("runs/*/*/*/metrics.jsonl")).read_text()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Continue with: lem train --resume" in output
    (folder,) = (tmp_path / "runs/fitzhugh_nagumo/lem").iterdir()
    assert (folder / "last.ckpt").is_file()
    assert not (folder / "result.json").exists()
    assert main(["train", "--resume", str(folder), "--train.epochs", "3"]) == 2
    assert "keep its recipe" in capsys.readouterr().err
