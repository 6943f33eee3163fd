"""Files that survive: trees come back as they were, damage is noticed, writes are whole."""

import pytest
import torch
from safetensors.torch import save

from lem.atomic import write_atomically
from lem.training.checkpoint import load_tree, save_tree


def test_a_tree_comes_back_as_it_was(tmp_path):
    tree = {
        "weights": {"a": torch.randn(3, 2), "b": torch.tensor(4)},
        "state": {0: {"step": torch.tensor(1.0)}, 7: None},
        "list": [1, 2.5, "text", True, torch.arange(3)],
        "view": torch.arange(6).view(2, 3).t(),
    }
    save_tree(tmp_path / "x.ckpt", tree)
    back = load_tree(tmp_path / "x.ckpt")
    assert torch.equal(back["weights"]["a"], tree["weights"]["a"])
    assert back["state"][7] is None
    assert back["state"][0]["step"] == 1.0
    assert back["list"][:4] == [1, 2.5, "text", True]
    assert torch.equal(back["view"], tree["view"])


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 30, 100, -1])
def test_a_truncated_file_is_refused(tmp_path, keep):
    file = tmp_path / "x.ckpt"
    save_tree(file, {"a": torch.randn(50)})
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match="not a complete checkpoint"):
        load_tree(file)


def test_only_tensors_and_plain_values(tmp_path):
    with pytest.raises(TypeError, match="plain values; got object"):
        save_tree(tmp_path / "x.ckpt", {"a": object()})
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_content(tmp_path, monkeypatch):
    file = tmp_path / "x"
    write_atomically(file, b"old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_every_flipped_bit_is_noticed_or_harmless(tmp_path):
    """Harmless: in the name of the checksum itself, which leaves a file from before there was one, content intact."""
    file = tmp_path / "x.ckpt"
    tree = {"a": torch.arange(20.0), "b": {"c": 1.5, "d": [torch.tensor(True), "text"]}}
    save_tree(file, tree)
    content, passed = file.read_bytes(), []
    for place in range(len(content)):
        broken = bytearray(content)
        broken[place] ^= 1 << (place % 8)
        file.write_bytes(bytes(broken))
        try:
            back = load_tree(file)
        except ValueError:
            continue
        passed.append(place)
        assert torch.equal(back["a"], tree["a"])
        assert back["b"]["c"] == 1.5
        assert back["b"]["d"][1] == "text"
    assert len(passed) <= len("sha256")


def test_a_checkpoint_from_before_there_was_a_checksum_is_read(tmp_path):
    file = tmp_path / "x.ckpt"
    file.write_bytes(save({"0": torch.ones(2)}, metadata={"tree": '{"a": {"__tensor__": "0"}}'}))
    assert load_tree(file)["a"].tolist() == [1.0, 1.0]
