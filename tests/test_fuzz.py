"""Damaged and hostile files: every reader gives data or a ValueError, and a small file never takes much memory."""

import io
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.readers import READERS, RECIPE, read

FOUND = Path(__file__).parent / "fixtures" / "fuzz"
PIECES = (b",", b":", b"\n", b"?", b"'", b'"', b"[", b"]", b"{", b"}", b"=", b"nan", b"inf", b"1e999", b"-1", b"9" * 30)
PIECES += (b"true", b"[[", b"@data\n", b"\0", b"\xff\xff\xff\xff", b"0", b"null", b'"__tensor__"', b"\xef\xbb\xbf")


@pytest.mark.parametrize("name", READERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_gives_data_or_a_refusal(tmp_path, name, data):
    content = READERS[name][2]()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        piece = data.draw(st.binary(max_size=6) | st.sampled_from(PIECES))
        content = content[:at] + piece + content[at + data.draw(st.integers(0, 12)) :]
    read(name, content, tmp_path)


@pytest.mark.parametrize("path", sorted(FOUND.rglob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_a_fuzzer_found_stays_mended(tmp_path, path):
    read(path.parent.name, path.read_bytes(), tmp_path)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**12) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
"""Any value JSON or TOML can hold."""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(
    place=st.sampled_from(["task", "model", "train", "search", "sweep", "paper"]),
    key=st.sampled_from(["name", "cell", "hidden_size", "epochs", "dt", "length", "figure", "layer_options", "x"]),
    value=plain,
)
def test_any_value_in_a_recipe_is_taken_or_refused(place, key, value):
    import tomllib

    from lem.experiments.recipe import check_recipe

    tables = tomllib.loads(RECIPE.decode())
    tables[place][key] = value
    try:
        recipe = check_recipe("x", tables)
    except ValueError:
        return
    assert recipe.digest


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(
    key=st.sampled_from(
        ["kind", "channels", "outputs", "architecture", "labels", "horizon", "missing", "flat", "notes"]
    ),
    inner=st.sampled_from(
        [None, "cell", "hidden_size", "num_layers", "dt", "pool", "layer_options", "tied", "symbols"]
    ),
    value=plain,
)
def test_any_value_in_a_model_file_is_taken_or_refused(tmp_path, key, inner, value):
    """With a checksum that fits: a hostile author would write one."""
    from safetensors import safe_open
    from safetensors.torch import load, save

    from lem.timeseries.model_file import file_digest
    from lem.timeseries.predictor import Predictor

    path = tmp_path / "model.safetensors"
    content = READERS["model"][2]()
    path.write_bytes(content)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    config = json.loads(metadata["config"])
    if inner is not None and isinstance(config[key], dict):
        config[key][inner] = value
    else:
        config[key] = value
    metadata["config"] = json.dumps(config)
    tensors = load(content)
    metadata["sha256"] = file_digest(metadata, tensors)
    path.write_bytes(save(tensors, metadata=metadata))
    try:
        model = Predictor.load(path)
    except ValueError:
        return
    assert model.kind in ("classifier", "regressor", "forecaster")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(tree=plain)
def test_any_tree_in_a_checkpoint_is_taken_or_refused(tmp_path, tree):
    import torch

    from lem.experiments.run_folder import RunFolder
    from lem.training.checkpoint import load_tree, save_tensors

    folder = tmp_path / "3-abc"
    folder.mkdir(exist_ok=True)
    (folder / "recipe.toml").write_bytes(RECIPE)
    save_tensors(folder / "last.ckpt", {"0": torch.zeros(2)}, {"tree": json.dumps(tree)})
    for ask in (lambda: load_tree(folder / "last.ckpt"), RunFolder(folder).load):
        try:
            ask()
        except (ValueError, UserWarning):
            continue


# --- small files that claim to be large -------------------------------------------------------------------------------


def npz_with_a_claim() -> bytes:
    """An array that says it has ten billion numbers, and has three."""
    header = np.lib.format.header_data_from_array_1_0(np.zeros(3))
    array = io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {**header, "shape": (10**10,)})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as box:
        box.writestr("X.npy", array.getvalue() + bytes(24))
    return out.getvalue()


def npz_bomb() -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, X=np.zeros(10**8))
    return out.getvalue()


def parquet_bomb() -> bytes:
    import pyarrow
    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(pyarrow.table({"v": np.zeros(10**8, dtype=np.int8)}), out)
    return out.getvalue()


def safetensors_with_a_claim() -> bytes:
    header = b'{"w":{"dtype":"F32","shape":[100000,100000],"data_offsets":[0,40000000000]}}'
    return len(header).to_bytes(8, "little") + header + bytes(16)


def npz_of_nothing(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Entries without size: ten billion of them fit into no bytes at all."""
    array = io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {"descr": dtype, "fortran_order": False, "shape": shape})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as box:
        box.writestr("X.npy", array.getvalue())
    return out.getvalue()


def parquet_of(values, **options) -> bytes:
    import pyarrow
    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(pyarrow.table({"v": values(pyarrow)}), out, **options)
    return out.getvalue()


def parquet_of_text() -> bytes:
    """A text of 10 kB in 300,000 rows, written once."""
    return parquet_of(
        lambda arrow: arrow.DictionaryArray.from_arrays(arrow.array(np.zeros(300_000, dtype=np.int32)), ["x" * 10_000])
    )


def parquet_of_lists() -> bytes:
    return parquet_of(lambda arrow: arrow.array([[0] * 1000] * 100_000, type=arrow.list_(arrow.int8())))


def model_with_a_long_label() -> bytes:
    """Five thousand labels, one of them a megabyte: as an array of texts they would take 18.6 GB."""
    import torch

    from lem.timeseries.predictor import Predictor

    torch.manual_seed(0)
    labels = np.array(["x" * 1_000_000, *map(str, range(4999))], dtype=object)
    with tempfile.TemporaryDirectory() as folder:
        small = {"cell": "lem", "hidden_size": 2}
        path = Predictor("classifier", 1, 5000, small, labels=labels).save(Path(folder) / "x.safetensors")
        return path.read_bytes()


def csv_with_a_long_label() -> bytes:
    return (
        b"id,t,v,w,y\n" + b"".join(b"s%d,0,1,2,a\n" % k for k in range(30_000)) + b"z,0,1,2," + b"x" * 100_000 + b"\n"
    )


LONG_LABEL = b"x" * 1_000_000
LARGE = {
    "npz of empty texts": ("npz", lambda: npz_of_nothing("|S0", (10**10,))),
    "npz of empty records": ("npz", lambda: npz_of_nothing("|V0", (4 * 10**9, 4))),
    "npz of no steps": ("npz", lambda: npz_of_nothing("<f8", (10**9, 0))),
    "parquet of one long text": ("parquet", parquet_of_text),
    "parquet of lists": ("parquet", parquet_of_lists),
    "model with a long label": ("model", model_with_a_long_label),
    "csv with a long label": ("csv", csv_with_a_long_label),
    "csv of many columns, one twice": (
        "csv",
        lambda: ",".join([*map(str, range(60_000)), "0"]).encode() + b"\n" + b"1," * 60_000 + b"1\n",
    ),
    "csv of many columns, none asked for": (
        "csv",
        lambda: ",".join(f"column{k}" for k in range(60_000)).encode() + b"\n" + b"1," * 59_999 + b"1\n",
    ),
    "ts with a long label": (
        "ts",
        lambda: b"@classLabel true a " + LONG_LABEL + b"\n@data\n" + b"1:a\n" * 20_000 + b"1:" + LONG_LABEL + b"\n",
    ),
    "arff with a long label": (
        "arff",
        lambda: b"@attribute c {a," + LONG_LABEL + b"}\n@data\n" + b"1,a\n" * 20_000 + b"1," + LONG_LABEL + b"\n",
    ),
    "ts with many classes": (
        "ts",
        lambda: (
            b"@classLabel true "
            + b" ".join(b"c%d" % k for k in range(20_000))
            + b"\n@data\n"
            + b"".join(b"1:c%d\n" % k for k in range(20_000))
        ),
    ),
    "npz with a claim": ("npz", npz_with_a_claim),
    "npz bomb": ("npz", npz_bomb),
    "parquet bomb": ("parquet", parquet_bomb),
    "weights with a claim": ("weights", safetensors_with_a_claim),
    "weights with a long header": ("weights", lambda: (1 << 60).to_bytes(8, "little") + b"{}"),
    "model with a claim": ("model", safetensors_with_a_claim),
    "checkpoint with a claim": ("checkpoint", safetensors_with_a_claim),
    "csv with one long entry": ("csv", lambda: b"v,y\n" + b"1,2\n" * 50_000 + b"1," + b"x" * 100_000 + b"\n"),
    "ts with one long series": (
        "ts",
        lambda: b"@classLabel true a\n@data\n" + b"1:a\n" * 50_000 + b"1," * 50_000 + b"1:a",
    ),
    "ts with a long number": ("ts", lambda: b"@classLabel true a\n@data\n" + b"1," * 50_000 + b"1" * 50_000 + b":a"),
    "toml of brackets": ("recipe", lambda: b"x = " + b"[" * 100_000),
    "json of brackets": ("run", lambda: RECIPE + b"\n----\n" + b"[" * 100_000),
}


ONE_THREAD = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # Arrow's own pool reserves a gigabyte of addresses
    "ARROW_IO_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",  # Arrow's threads too
    "OPENBLAS_NUM_THREADS": "1",
}
"""Without these, the addresses that a process reserves grow with the number of processors."""


@pytest.mark.parametrize("case", LARGE)
@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS")
def test_a_small_file_takes_little_memory(case, tmp_path):
    """In a process that may take the bound of `lem.timeseries.formats` and 256 MB more, and 20 seconds of computing."""
    name, make = LARGE[case]
    (tmp_path / "content").write_bytes(make())
    code = f"""
        import pathlib, resource
        from tests.readers import READERS, read
        read({name!r}, READERS[{name!r}][2](), pathlib.Path({str(tmp_path)!r}))  # imports what a whole file needs
        size = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = (64 << 20) + 100 * pathlib.Path({str(tmp_path / "content")!r}).stat().st_size + (256 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (size + limit,) * 2)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        spent = int(usage.ru_utime + usage.ru_stime)
        resource.setrlimit(resource.RLIMIT_CPU, (spent + 20,) * 2)
        read({name!r}, pathlib.Path({str(tmp_path / "content")!r}).read_bytes(), pathlib.Path({str(tmp_path)!r}))
    """
    root = Path(__file__).parent.parent
    call = [sys.executable, "-c", textwrap.dedent(code)]
    environment = {**os.environ, **ONE_THREAD}
    done = subprocess.run(call, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
