"""Prepared tensors: made once, kept by key, remade when damaged."""

import pytest
import torch

from lem.tasks.cache import checksum, prepared


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LEM_DATA", str(tmp_path))
    return tmp_path


def test_made_once_per_key(folder):
    calls = []

    def make():
        calls.append(1)
        return {"x": torch.arange(6.0).view(2, 3).t()}

    first = prepared("toy", {"source": "a"}, make)
    again = prepared("toy", {"source": "a"}, make)
    assert len(calls) == 1
    assert torch.equal(first["x"], torch.arange(6.0).view(2, 3).t())
    assert torch.equal(first["x"], again["x"])
    prepared("toy", {"source": "b"}, make)
    assert len(calls) == 2
    assert len(list((folder / "prepared").glob("*.safetensors"))) == 2


def test_a_damaged_file_is_made_anew(folder):
    prepared("toy", 1, lambda: {"x": torch.ones(3)})
    (path,) = (folder / "prepared").glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:10])
    assert torch.equal(prepared("toy", 1, lambda: {"x": torch.ones(3)})["x"], torch.ones(3))


def test_a_failure_leaves_nothing_behind(folder):
    def fail():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        prepared("toy", 1, fail)
    assert not [p for p in (folder / "prepared").iterdir() if not p.name.endswith(".lock")]


def test_a_folder_that_cannot_be_written_is_told_and_survived(folder, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("read-only")

    monkeypatch.setattr("lem.tasks.cache.save_file", refuse)
    with pytest.warns(UserWarning, match="computed again on each run"):
        assert torch.equal(prepared("toy", 1, lambda: {"x": torch.ones(3)})["x"], torch.ones(3))


def test_checksum_depends_on_content_and_order(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("1")
    b.write_text("2")
    assert checksum([a, b]) != checksum([b, a])
    before = checksum([a, b])
    b.write_text("3")
    assert checksum([a, b]) != before
