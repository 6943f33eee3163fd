"""Short runs and their comparison: two folders hold the same run, bit for bit. And the processes that run them."""

import json
from contextlib import suppress
from pathlib import Path

from safetensors.torch import load_file

from lem.experiments.runner import load_recipe
from lem.training.checkpoint import load_tree

TINY = {
    "task.length": 8,
    "task.steps_per_epoch": 5,
    "model.hidden_size": 4,
    "model.input_dropout": 0.2,
    "train.batch_size": 100,
    "train.epochs": 4,
    "train.schedule": "cosine",
    "train.average_from": 2,
}
TIMES = ("seconds", "finished")


def tiny(**changes):
    """A recipe that trains in a second: dropout, a schedule and averaging, so that all of them must survive."""
    return load_recipe("adding/short", {**TINY, **{key.replace("__", "."): value for key, value in changes.items()}})


def assert_same_run(actual, expected):
    """Compare result, records, weights and the last checkpoint; only times may differ."""
    for a, e in zip(_plain(actual), _plain(expected), strict=True):
        assert a == e, f"the runs differ: {a} and {e}"
    assert _weights(load_file(actual.path / "best.safetensors")) == _weights(
        load_file(expected.path / "best.safetensors")
    )
    a, e = (load_tree(folder.path / "last.ckpt") for folder in (actual, expected))
    for part in ("model", "best"):
        assert _weights(a[part]) == _weights(e[part]), f"{part} differs"
    assert _weights(a["average"]["mean"]) == _weights(e["average"]["mean"])
    assert [_weights(v) for v in a["optimizer"]["state"].values()] == [
        _weights(v) for v in e["optimizer"]["state"].values()
    ]
    left = [path.name for path in actual.path.iterdir() if path.suffix == ".tmp"]
    assert not left, f"half-written files are left: {left}"


def _plain(folder):
    lines = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    result = {key: value for key, value in folder.result().items() if key != "notes"}
    return [{key: value for key, value in record.items() if key not in TIMES} for record in [result, *lines]]


def _weights(tensors):
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def children(parent):
    """Return the child processes of a process, in the order in which they were started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # a process that has just ended
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return sorted(found)
