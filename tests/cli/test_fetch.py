"""`lem fetch`: what there is, what is missing, and how to get it."""

import hashlib
import os

from lem.cli import main
from lem.tasks import SOURCES, TASKS
from lem.tasks.fetch import Download, Source
from tests.tasks.server import serve


def test_every_task_has_a_source_or_makes_its_data():
    assert set(TASKS) - set(SOURCES) == {"adding", "fitzhugh_nagumo"}
    for name, source in SOURCES.items():
        assert source.name in SOURCES
        assert SOURCES[source.name] is source, name
        assert all(url.startswith("http") for download in source.downloads for url in download.urls)


def test_list_shows_size_licence_source_and_presence(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LEM_DATA", str(tmp_path))
    (tmp_path / "ptb").mkdir()
    for part in ("train", "valid", "test"):
        (tmp_path / f"ptb/ptb.{part}.txt").write_text("")
    assert main(["fetch", "--list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[3:]}
    assert set(lines) == set(SOURCES)
    assert lines["smnist"].split()[1:3] == ["11.6", "no"]
    assert "CC BY-SA" in lines["smnist"]
    assert lines["ptb_word"].split()[2] == "yes"
    assert lines["eigenworms"].split()[1] == "?"
    assert "https://" in lines["eigenworms"]


def test_what_is_missing_is_told_with_the_way_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LEM_DATA", str(tmp_path))
    monkeypatch.setenv("LEM_OFFLINE", "1")
    for words in (["fetch", "eigenworms"], ["train", "eigenworms/lem", "--runs", str(tmp_path)]):
        assert main(words) == 2
        told = capsys.readouterr().err
        assert "EigenWorms.zip of eigenworms could not be downloaded" in told
        assert "lem fetch eigenworms" in told
        assert len(told.strip().splitlines()) == 1
    assert main(["fetch", "eigenworm"]) == 2
    assert "did you mean 'eigenworms'" in capsys.readouterr().err.lower()
    assert main(["fetch"]) == 2
    assert main(["fetch", "adding"]) == 0


def test_offline_of_train_reaches_the_loaders(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LEM_DATA", str(tmp_path))
    monkeypatch.setenv("LEM_OFFLINE", "")
    assert main(["train", "smnist/lem", "--offline", "--runs", str(tmp_path)]) == 2
    assert "network is switched off" in capsys.readouterr().err
    assert os.environ["LEM_OFFLINE"] == "1"


def test_fetching(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LEM_DATA", str(tmp_path))
    monkeypatch.delenv("LEM_OFFLINE", raising=False)
    with serve() as server:
        server.files["x"] = b"content"
        download = Download((server.url("x"),), {"toy/x": hashlib.sha256(b"content").hexdigest()}, 7)
        monkeypatch.setitem(SOURCES, "toy", Source("toy", "", "", (download,)))
        assert main(["fetch", "toy"]) == 0
    assert "toy: 1 files are there" in capsys.readouterr().out
    assert (tmp_path / "toy/x").read_bytes() == b"content"
    assert main(["fetch", "toy", "--offline"]) == 0
