"""Fetching, against a real HTTP server that misbehaves in every way a mirror can."""

import gzip
import hashlib
import io
import multiprocessing
import os
import zipfile

import pytest

from lem.tasks import fetch as fetching
from lem.tasks.fetch import Download, Source, data_folder, fetch
from lem.training.data import DataError
from tests.tasks.server import serve

CONTENT = bytes(range(256)) * 4000
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server():
    with serve() as running:
        running.files["plain.bin"] = CONTENT
        yield running


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LEM_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("LEM_OFFLINE", raising=False)
    monkeypatch.setattr(fetching, "TIMEOUT", 0.5)
    return tmp_path / "data"


def plain(*urls: str, sha: str | None = SHA) -> Source:
    return Source("toy", "https://example.org", "none", (Download(urls, {"toy/plain.bin": sha}, len(CONTENT)),))


def zipped(url: str, sha: str | None = SHA) -> tuple[bytes, Source]:
    box = io.BytesIO()
    with zipfile.ZipFile(box, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("plain.bin", CONTENT)
        out.writestr("extra.txt", "more")
    download = Download((url,), {"toy/plain.bin": sha}, len(box.getvalue()), folder="toy", unpacked=2 * len(CONTENT))
    return box.getvalue(), Source("toy", "https://example.org", "none", (download,))


def leftovers(folder) -> set[str]:
    return {p.name for p in folder.rglob("*") if p.is_file() and not p.name.endswith(".lock")}


@pytest.mark.parametrize("how", ["", "once", "disconnect", "slow", "hang", "no length", "no range"])
def test_download_survives(server, folder, how):
    server.behave["plain.bin"] = how
    source = plain(server.url("plain.bin"))
    assert not source.present()
    assert fetch(source)["toy/plain.bin"].read_bytes() == CONTENT
    assert source.present()
    assert leftovers(folder) == {"plain.bin"}


def test_an_interrupted_download_is_continued(server, folder):
    (folder / "downloads").mkdir(parents=True)
    (folder / "downloads" / "plain.bin.part").write_bytes(CONTENT[:1000])
    fetch(plain(server.url("plain.bin")))
    assert server.requests == [("plain.bin", "bytes=1000-", 206)]


def test_a_complete_partial_file_is_taken_as_it_is(server, folder):
    (folder / "downloads").mkdir(parents=True)
    (folder / "downloads" / "plain.bin.part").write_bytes(CONTENT)
    fetch(plain(server.url("plain.bin")))
    assert [status for _, _, status in server.requests] == [416]


def test_a_changed_file_is_started_over(server, folder):
    (folder / "downloads").mkdir(parents=True)
    (folder / "downloads" / "plain.bin.part").write_bytes(b"old" * 100)
    (folder / "downloads" / "plain.bin.tag").write_text('"old"')
    fetch(plain(server.url("plain.bin")))
    assert [status for _, _, status in server.requests] == [200]


def test_a_partial_file_longer_than_the_original_is_started_over(server, folder):
    (folder / "downloads").mkdir(parents=True)
    (folder / "downloads" / "plain.bin.part").write_bytes(CONTENT + b"more")
    fetch(plain(server.url("plain.bin")))
    assert [status for _, _, status in server.requests] == [416, 200]


def test_a_wrong_part_is_refused_and_started_over(server, folder):
    server.behave["plain.bin"] = "wrong part"
    (folder / "downloads").mkdir(parents=True)
    (folder / "downloads" / "plain.bin.part").write_bytes(CONTENT[:1000])
    assert fetch(plain(server.url("plain.bin")))["toy/plain.bin"].read_bytes() == CONTENT
    assert [status for _, _, status in server.requests] == [206, 200]


def test_the_next_mirror_is_tried(server, folder):
    server.files["wrong.bin"] = b"something else"
    server.files["dead.bin"] = CONTENT
    server.behave["dead.bin"] = "dead"
    urls = [server.url(name) for name in ("missing.bin", "wrong.bin", "dead.bin", "plain.bin")]
    assert fetch(plain(*urls))["toy/plain.bin"].read_bytes() == CONTENT
    assert leftovers(folder) == {"plain.bin"}


def test_all_mirrors_fail_with_reasons_and_a_way_out(server, folder):
    server.files["wrong.bin"] = b"something else"
    with pytest.raises(DataError) as caught:
        fetch(plain(server.url("missing.bin"), server.url("wrong.bin"), "http://127.0.0.1:1/plain.bin"))
    message = str(caught.value)
    assert "404" in message
    assert hashlib.sha256(b"something else").hexdigest() in message
    assert "refused" in message
    assert "lem fetch toy" in message
    assert str(folder) in message
    assert leftovers(folder) == set()


def test_what_is_there_is_used_without_network(folder):
    (folder / "toy").mkdir(parents=True)
    (folder / "toy" / "plain.bin").write_bytes(CONTENT)
    assert fetch(plain("http://127.0.0.1:1/plain.bin"), offline=True)["toy/plain.bin"].read_bytes() == CONTENT


def test_a_file_without_its_folder_is_found(folder):
    folder.mkdir()
    (folder / "plain.bin").write_bytes(CONTENT)
    assert fetch(plain("http://127.0.0.1:1/plain.bin"), offline=True)["toy/plain.bin"] == folder / "plain.bin"


def test_a_damaged_file_is_named_and_kept(server, folder):
    (folder / "toy").mkdir(parents=True)
    (folder / "toy" / "plain.bin").write_bytes(b"mine")
    with pytest.raises(DataError, match=r"plain\.bin: the sha256 must be .*Delete it and run: lem fetch toy"):
        fetch(plain(server.url("plain.bin")))
    assert (folder / "toy" / "plain.bin").read_bytes() == b"mine"
    assert server.requests == []


def test_offline_says_what_is_missing(server, monkeypatch):
    monkeypatch.setenv("LEM_OFFLINE", "1")
    with pytest.raises(DataError, match="network is switched off"):
        fetch(plain(server.url("plain.bin")))
    assert server.requests == []


def test_archives_are_unpacked_where_they_belong(server, folder):
    server.files["toy.zip"], source = zipped(server.url("toy.zip"))
    assert fetch(source)["toy/plain.bin"].read_bytes() == CONTENT
    assert leftovers(folder) == {"plain.bin", "extra.txt"}


def test_an_archive_put_there_by_hand_is_used_and_kept(folder):
    archive, source = zipped("http://127.0.0.1:1/toy.zip")
    folder.mkdir()
    (folder / "toy.zip").write_bytes(archive)
    assert fetch(source, offline=True)["toy/plain.bin"].read_bytes() == CONTENT
    assert (folder / "toy.zip").exists()


def test_an_archive_with_the_wrong_content_is_not_placed(server, folder):
    server.files["toy.zip"], source = zipped(server.url("toy.zip"), sha="0" * 64)
    with pytest.raises(DataError, match=r"plain\.bin of toy\.zip: the sha256 must be 0000"):
        fetch(source)
    assert leftovers(folder) == set()


def test_an_archive_without_the_file_is_an_error(server):
    archive, _ = zipped("")
    server.files["toy.zip"] = archive
    download = Download((server.url("toy.zip"),), {"toy/other.bin": None}, 1, folder="toy", unpacked=2 * len(CONTENT))
    with pytest.raises(DataError, match=r"does not contain toy/other\.bin"):
        fetch(Source("toy", "", "", (download,)))


def test_a_single_gz_is_unpacked(server):
    server.files["plain.bin.gz"] = gzip.compress(CONTENT)
    download = Download((server.url("plain.bin.gz"),), {"toy/plain.bin": SHA}, 1, folder="toy", unpacked=len(CONTENT))
    assert fetch(Source("toy", "", "", (download,)))["toy/plain.bin"].read_bytes() == CONTENT


def _fetch_in_a_process(url: str, folder: str) -> None:
    os.environ["LEM_DATA"] = folder
    fetch(plain(url))


def test_two_processes_download_once(server, folder):
    server.behave["plain.bin"] = "slow"
    context = multiprocessing.get_context("spawn")
    url = server.url("plain.bin")
    workers = [context.Process(target=_fetch_in_a_process, args=(url, str(folder))) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(server.requests) == 1


def test_a_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LEM_DATA", str(tmp_path / "file" / "data"))
    with pytest.raises(DataError, match="Set LEM_DATA to another folder"):
        fetch(plain("http://127.0.0.1:1/plain.bin"))


def test_the_default_folder_is_in_the_user_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("LEM_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "lem"
