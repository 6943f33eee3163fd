"""The model file: what was saved is loaded; anything damaged, newer or hostile is refused in one sentence."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, save, save_file

from lem.nn.cells import CELLS
from lem.timeseries.model_file import VERSION, file_digest
from lem.timeseries.predictor import Predictor
from tests.close import assert_close

SMALL = {"cell": "lem", "hidden_size": 4, "num_layers": 1, "pool": "both", "dt": 0.5}


@pytest.fixture
def model_file(tmp_path):
    predictor = Predictor("classifier", 2, 3, SMALL, labels=np.array(["a", "b", "c"]), notes={"words": "é"})
    predictor.mean.fill_(5.0)
    return predictor.save(tmp_path / "model.safetensors")


def rewrite(path, change, resign=True, tensors=None):
    """Change the metadata of a model file, with a checksum that fits: what a hostile author would do."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load(path.read_bytes()) if tensors is None else tensors
    change(metadata)
    if resign:
        metadata["sha256"] = file_digest(metadata, tensors)
    path.write_bytes(save(tensors, metadata=metadata))


def in_config(**changes):
    def change(metadata):
        metadata["config"] = json.dumps({**json.loads(metadata["config"]), **changes})

    return change


def test_a_model_file_gives_the_same_answers(model_file):
    first, second = Predictor.load(model_file), Predictor.load(model_file)
    X = np.random.default_rng(0).normal(5.0, 1.0, (3, 2, 6))
    assert_close(first.predict_proba(X), second.predict_proba(X), "exact")
    assert first.labels.tolist() == ["a", "b", "c"]
    assert first.notes == {"words": "é"}
    assert float(first.mean[0]) == 5.0


@pytest.mark.parametrize("cell", sorted(CELLS))
def test_every_cell_of_the_zoo_can_be_saved_and_loaded(cell, tmp_path):
    predictor = Predictor("regressor", 2, 1, {"cell": cell, "hidden_size": 4}).eval()
    X = np.random.default_rng(0).normal(size=(2, 2, 9))
    copy = Predictor.load(predictor.save(tmp_path / "model.safetensors"))
    assert_close(copy.predict(X), predictor.predict(X), "exact")


def test_every_flipped_byte_is_noticed(model_file):
    content = model_file.read_bytes()
    random = np.random.default_rng(0)
    for place in (0, 8, *random.integers(9, len(content), 60).tolist()):
        broken = bytearray(content)
        broken[place] ^= 1 << int(random.integers(8))
        model_file.write_bytes(bytes(broken))
        with pytest.raises(ValueError, match=r"damaged|not a model file|format|cannot be used"):
            Predictor.load(model_file)


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_a_truncated_file_is_refused(model_file, kept):
    model_file.write_bytes(model_file.read_bytes()[:kept])
    with pytest.raises(ValueError, match="damaged, or not a safetensors file"):
        Predictor.load(model_file)


def test_a_newer_version_says_so(model_file):
    rewrite(model_file, lambda metadata: metadata.update(version=str(VERSION + 1), lem="9.9"))
    with pytest.raises(ValueError, match=r"format 2, written by lem 9.9; .* upgrade"):
        Predictor.load(model_file)


def test_other_safetensors_files_and_missing_ones_are_told_apart(model_file, tmp_path):
    model_file.write_bytes(save({"x": torch.zeros(2)}))
    with pytest.raises(ValueError, match="not a model file"):
        Predictor.load(model_file)
    with pytest.raises(FileNotFoundError, match="must exist"):
        Predictor.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (in_config(kind="shell"), "`kind` of Predictor must be one of"),
        (in_config(channels=10**12), "`channels` of its metadata must lie in"),
        (in_config(channels=True), "`channels` of its metadata must be"),
        (in_config(channels=1), "its tensor 'mean' must be"),
        (in_config(architecture={**SMALL, "hidden_size": 10**9}), "`hidden_size` of its metadata must lie in"),
        (in_config(architecture={**SMALL, "hidden_size": 50}), "its tensor"),
        (in_config(architecture={**SMALL, "num_layers": 60}), "cannot be 60 layers"),
        (in_config(architecture={**SMALL, "cell": "os.system"}), "'os.system' is not known here"),
        (in_config(architecture={**SMALL, "__class__": "x"}), "is not an option of cell"),
        (in_config(architecture=[1]), "`architecture` of its metadata must be"),
        (in_config(labels=None), "must have labels"),
        (in_config(labels={"dtype": "<U999999999", "values": ["a", "b", "c"]}), "one plain value per output"),
        (in_config(labels={"dtype": "U", "values": ["a"]}), "one plain value per output"),
        (in_config(extra=1), "its metadata must have kind"),
        (lambda metadata: metadata.update(config="[" * 100_000), "cannot be used"),
        (lambda metadata: metadata.update(config="7"), "must be an object"),
        (lambda metadata: metadata.update(version="one"), "must state its format version"),
    ],
)
def test_hostile_metadata_is_refused_before_anything_is_built(model_file, change, words):
    rewrite(model_file, change)
    with pytest.raises(ValueError, match=words):
        Predictor.load(model_file)


def test_labels_that_are_no_plain_values_are_refused_when_saving(tmp_path):
    predictor = Predictor("classifier", 1, 2, SMALL, labels=np.array(["2020-01-01", "2021-01-01"], "datetime64[D]"))
    with pytest.raises(ValueError, match="must be strings or numbers; got datetime64"):
        predictor.save(tmp_path / "model.safetensors")


def rewritten(path, change, tensors=None):
    """Change the configuration of a model file, or its tensors, and give it the checksum that fits."""
    content = load_file(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    config = json.loads(metadata["config"])
    change(config)
    if tensors:
        tensors(content)
    metadata["config"] = json.dumps(config)
    metadata["sha256"] = file_digest(metadata, content)
    save_file(content, path, metadata=metadata)
    return path


@pytest.fixture
def small_file(tmp_path):
    model = Predictor("classifier", 1, 2, {"cell": "lem", "hidden_size": 2}, labels=np.array([1, 2]))
    return model.save(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda config: config["architecture"].update(device="cuda"), "must not name a device"),
        (lambda config: config["architecture"].update(dtype="float64"), "must not name a dtype"),
        (lambda config: config["labels"].update(values=[1, 10**30]), "cannot be used"),
        (lambda config: config["labels"].update(values=[-1, 2], dtype="|u1"), "cannot be used"),
        (lambda config: config["labels"].update(values=[[1], [2]], dtype="|O"), "plain values"),
        (lambda config: config["labels"].update(values=[1, 2], dtype="U"), "plain values"),
    ],
)
def test_hostile_metadata_is_refused_in_a_sentence(change, said, small_file):
    with pytest.raises(ValueError, match=said):
        Predictor.load(rewritten(small_file, change))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(value, small_file):
    def damage(tensors):
        next(iter(tensors.values())).view(-1)[0] = value

    with pytest.raises(ValueError, match="must be finite; it holds NaN or infinity"):
        Predictor.load(rewritten(small_file, lambda config: None, damage))


def test_labels_of_text_are_read_as_objects(tmp_path):
    labels = np.array(["a", "b" * 1000])
    model = Predictor("classifier", 1, 2, {"cell": "lem", "hidden_size": 2}, labels=labels)
    loaded = Predictor.load(model.save(tmp_path / "x.safetensors"))
    assert loaded.labels.dtype == object
    assert loaded.labels.tolist() == labels.tolist()
