"""Every parser and loader of the library, as a function of bytes: what the tests and the fuzzer feed with damage.

A reader gives something or raises one of `REFUSALS`; any other exception is a bug. `SEEDS` are small right files to
start from. `tools/fuzz.py` runs the same readers under coverage-guided fuzzing.
"""

import io
import json
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from lem.experiments.recipe import load_recipe
from lem.experiments.run_folder import RunFolder
from lem.tasks.archive import unpack
from lem.tasks.uea import padded, read_series
from lem.timeseries import files
from lem.timeseries.predictor import Predictor
from lem.training.checkpoint import load_tensors, load_tree, save_tree

REFUSALS = (ValueError, FileNotFoundError)

TS = b"@problemName x\n@timeStamps false\n@univariate false\n@classLabel true a b\n@data\n1,2:3,?:a\n4,5,6:7,8,9:b\n"
ARFF = b"@relation x\n@attribute r relational\n@attribute t0 numeric\n@end r\n@attribute c {a,b}\n@data\n"
ARFF += rb"'1,2\n3,?',a" + b"\n" + rb"'4,5\n6,7',b" + b"\n"
CSV = b"id,t,v,w,y\np,0,1,4,a\np,1,2,5,a\nq,0,,6,b\n"
RECIPE = b"""# x, resolved
[task]
name = "adding"
length = 8
[model]
cell = "lem"
hidden_size = 4
[train]
batch_size = 5
epochs = 1
learning_rate = 0.01
[search]
"model.dt" = { low = 0.1, high = 1.0, log = true }
[sweep]
"train.batch_size" = [1, 2]
[paper]
figure = 0.002
"""
RESULT = {"recipe": "x", "seed": 3, "metric": "mse", "test": 0.1, "valid": 0.2, "best_epoch": 1, "epochs": 1}


def _ts(path: Path) -> None:
    padded(read_series(path).values)
    files.read(path)


def _csv(path: Path) -> None:
    for options in ({}, {"series": "id", "time": "t", "target": "y"}, {"forecast": True, "channels": ["v", "w"]}):
        try:
            files.read(path, **options)
        except REFUSALS:
            continue


def _run_folder(path: Path) -> None:
    """Four files in one: the parts are separated by a line of dashes."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "3-abc"
        folder.mkdir()
        names = ("recipe.toml", "result.json", "env.json", "metrics.jsonl")
        for name, content in zip(names, path.read_bytes().split(b"\n----\n")):
            (folder / name).write_bytes(content)
        run = RunFolder(folder)
        for ask in (run.recipe, run.result, run.environment, run.metrics, run.notes):
            try:
                ask()
            except REFUSALS:
                continue


def _unpack(path: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        unpack(path, Path(temporary) / "out", max_bytes=1 << 20, max_files=100)


def _tree() -> bytes:
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "x.ckpt"
        save_tree(path, {"about": {"format": 1}, "weights": {"a": torch.arange(4.0)}, "list": [1, {2: None}]})
        return path.read_bytes()


def _model() -> bytes:
    with tempfile.TemporaryDirectory() as temporary:
        torch.manual_seed(0)
        labels, small = np.array(["a", "b"]), {"cell": "lem", "hidden_size": 2, "dt": 0.5}
        path = Path(temporary) / "x.safetensors"
        return Predictor("classifier", 1, 2, small, labels=labels).save(path).read_bytes()


def _npz() -> bytes:
    out = io.BytesIO()
    np.savez(out, X=np.arange(6.0).reshape(2, 1, 3), y=np.array(["a", "b"]), lengths=np.array([3, 2]))
    return out.getvalue()


def _zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as box:
        box.writestr("a/b.txt", "text" * 9)
    return out.getvalue()


def _parquet() -> bytes:
    import pyarrow
    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(pyarrow.table({"v": [1.0, 2.0], "y": ["a", None]}), out)
    return out.getvalue()


RUN = b"\n----\n".join([RECIPE, json.dumps(RESULT).encode(), b'{"lem": "0.1.0"}', b'{"epoch": 1, "loss": 0.5}\n'])
READERS: dict[str, tuple[str, Callable[[Path], object], Callable[[], bytes]]] = {
    "ts": (".ts", _ts, lambda: TS),
    "arff": (".arff", _ts, lambda: ARFF),
    "csv": (".csv", _csv, lambda: CSV),
    "npz": (".npz", files.read, _npz),
    "parquet": (".parquet", files.read, _parquet),
    "recipe": (".toml", lambda path: load_recipe(str(path)), lambda: RECIPE),
    "checkpoint": (".ckpt", load_tree, _tree),
    "weights": (".safetensors", load_tensors, lambda: save({"w": torch.zeros(2)})),
    "model": (".safetensors", Predictor.load, _model),
    "run": (".run", _run_folder, lambda: RUN),
    "zip": (".zip", _unpack, _zip),
}


def read(name: str, content: bytes, folder: Path) -> object:
    """Let a reader read some bytes; what it may refuse, it refuses."""
    suffix, reader, _ = READERS[name]
    path = folder / f"file{suffix}"
    path.write_bytes(content)
    try:
        return reader(path)
    except REFUSALS:
        return None
