"""Several processes that share every batch do what one does, and a lost one ends the job so that it can go on."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from lem.experiments.runner import run
from lem.training.distributed import Processes
from tests.close import assert_close
from tests.runs import children, tiny
from tests.training.test_options import Double, Text, model, split

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["lem.experiments.runner", "torch._dynamo", "tests.training.test_options"])
SETTINGS = {"loss": "mse", "metric": "mse", "learning_rate": 0.02, "clip_norm": 1.0, "l2": 1e-3}


def curve(kind, processes):
    """Train 50 steps or so; return the losses, the validation figures and the final weights."""
    from lem.training.loop import fit

    torch.set_num_threads(1)
    if kind == "carried":
        data, options = Text(windows=5), {"batch_size": 3, "epochs": 10, "loss_over_time": "sum", "average_from": 4}
    else:  # 12 sequences of unequal length in batches of 5: the last one gives some processes nothing
        lengths = torch.tensor([9, 1, 4, 5, 9, 2, 2, 7, 8, 3, 9, 6])
        data = Double(split(lengths=lengths, every_step=True))
        options = {"batch_size": 5, "epochs": 17, "accumulate": 2}
    network, losses = model(every_step=True), []
    progress = fit(
        network,
        data,
        data,
        report=lambda event: losses.append(event.loss) if event.record is None else None,
        processes=processes,
        **SETTINGS,
        **options,
    )
    return losses, [r["valid"] for r in progress.history], [p.tolist() for p in network.parameters()]


def _one_of(rank, size, meeting, kind, answers):
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    answers.put((rank, curve(kind, Processes(rank, size))))
    distributed.destroy_process_group()


def together(size, kind, folder):
    answers = CONTEXT.Queue()
    workers = [
        CONTEXT.Process(target=_one_of, args=(rank, size, folder / f"meet{size}", kind, answers))
        for rank in range(size)
    ]
    for worker in workers:
        worker.start()
    found = dict(answers.get(timeout=300) for _ in workers)
    for worker in workers:
        worker.join(60)
    return [found[rank] for rank in range(size)]


@pytest.mark.parametrize(
    ("size", "kind"),
    [
        (2, "carried"),
        pytest.param(4, "padded", marks=pytest.mark.slow),
        pytest.param(2, "padded", marks=pytest.mark.slow),
    ],
)
def test_processes_agree_with_one_and_with_each_other(size, kind, tmp_path):
    losses, figures, weights = curve(kind, Processes())
    assert len(losses) >= 50
    ranks = together(size, kind, tmp_path)
    assert_close(ranks[0][0], losses, "processes")
    for _, theirs, end in ranks:
        assert_close(theirs, figures, "processes")
        for a, e in zip(end, weights, strict=True):
            assert_close(a, e, "processes")
        for a, e in zip(end, ranks[0][2], strict=True):
            assert_close(a, e, "exact")
    assert [len(rank[0]) for rank in ranks[1:]] == [0] * (size - 1)  # only the first one speaks


def torchrun(size, folder, **changes):
    """Start `lem train` on so many processes; without dropout, of which each process would draw its own masks."""
    recipe = tiny(model__input_dropout=0.0, **changes)
    words = [
        f"--{section}.{key}={value if isinstance(value, str) else json.dumps(value)}"
        for section in ("task", "model", "train")
        for key, value in getattr(recipe, section).items()
        if (section, key) not in (("task", "name"), ("model", "cell"))
    ]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    command += ["-m", "lem.cli", "train", "adding/short", *words, "--runs", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    return process, recipe


@pytest.mark.slow
def test_torchrun_makes_one_folder_with_the_result_of_one_process(tmp_path):
    process, recipe = torchrun(2, tmp_path / "two")
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert output.count("test mse") == 1
    one, _ = run(recipe, 0, tmp_path / "one")
    folder = tmp_path / "two" / "adding" / "short" / one.path.name
    two = json.loads((folder / "result.json").read_text())
    assert_close([two["test"], two["valid"]], [one.result()["test"], one.result()["valid"]], "processes")
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 4


@pytest.mark.slow
def test_a_killed_process_ends_the_job_and_the_run_goes_on(tmp_path):
    long = {"train__epochs": 400, "train__average_from": 999}
    process, recipe = torchrun(2, tmp_path, **long)
    folder = tmp_path / "adding" / "short" / f"0-{recipe.digest}"
    deadline = time.monotonic() + 300
    while not (folder / "last.ckpt").is_file():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    os.kill(children(process.pid)[-1], signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "lost another one" in errors or "SIGKILL" in errors or "Signal 9" in errors, errors
    assert not (folder / "result.json").exists()
    calls = []
    _, progress = run(recipe, 0, tmp_path, should_stop=lambda: calls.append(0) or len(calls) == 2)
    assert progress.updates > 5  # one process continued what two had begun
