"""Hostile archives: nothing leaves the folder, nothing grows without bound, every refusal is a DataError."""

import contextlib
import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lem.tasks.archive import unpack
from lem.training.data import DataError


def tar(path: Path, *members: tuple[str, bytes] | tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tape:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tape.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tape.addfile(info, io.BytesIO(member[1]))
    return path


def zipped(path: Path, *members: tuple[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as box:
        for name, content in members:
            box.writestr(name, content)
    return path


def everything(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


@pytest.mark.parametrize("make", [tar, zipped])
def test_unpacks_plain_files_and_folders(tmp_path, make):
    archive = make(tmp_path / ("a.zip" if make is zipped else "a.tar.gz"), ("./a/b.txt", b"one"), ("c", b"two"))
    unpack(archive, tmp_path / "out", max_bytes=6)
    assert everything(tmp_path / "out") == {"a", "a/b.txt", "c"}
    assert (tmp_path / "out/a/b.txt").read_bytes() == b"one"


def test_unpacks_a_single_gz(tmp_path):
    with gzip.open(tmp_path / "x-ubyte.gz", "wb") as out:
        out.write(b"abc")
    unpack(tmp_path / "x-ubyte.gz", tmp_path / "out", max_bytes=3)
    assert (tmp_path / "out/x-ubyte").read_bytes() == b"abc"


@pytest.mark.parametrize("make", [tar, zipped])
@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "a\\..\\evil", "C:/evil", "."])
def test_refuses_paths_that_leave_the_folder(tmp_path, make, name):
    archive = make(tmp_path / ("a.zip" if make is zipped else "a.tar.gz"), (name, b"x"))
    inside = tmp_path / "deep" / "out"
    with pytest.raises(DataError):
        unpack(archive, inside, max_bytes=100)
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_refuses_links_and_devices_in_tar(tmp_path, kind):
    info = tarfile.TarInfo("thing")
    info.type, info.linkname = kind, "/etc/passwd"
    with pytest.raises(DataError, match="which is not a regular file"):
        unpack(tar(tmp_path / "a.tar.gz", info), tmp_path / "out", max_bytes=100)
    assert everything(tmp_path / "out") == set()


def test_refuses_links_in_zip(tmp_path):
    info = zipfile.ZipInfo("link")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as box:
        box.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match="which is not a regular file"):
        unpack(tmp_path / "a.zip", tmp_path / "out", max_bytes=100)


@pytest.mark.parametrize("make", [tar, zipped])
def test_refuses_bombs(tmp_path, make):
    name = "a.zip" if make is zipped else "a.tar.gz"
    big = make(tmp_path / name, ("zeros", bytes(10_000_000)))
    assert big.stat().st_size < 100_000
    with pytest.raises(DataError, match="more than 1000000 bytes"):
        unpack(big, tmp_path / "out", max_bytes=1_000_000)
    many = make(tmp_path / name, *((str(i), b"") for i in range(11)))
    with pytest.raises(DataError, match="at most 10 files"):
        unpack(many, tmp_path / "out", max_bytes=100, max_files=10)


@pytest.mark.parametrize("make", [tar, zipped])
def test_folders_are_counted(tmp_path, make):
    if make is tar:
        folders = [tarfile.TarInfo(f"{i}/") for i in range(11)]
        for info in folders:
            info.type = tarfile.DIRTYPE
    else:
        folders = [(f"{i}/", b"") for i in range(11)]
    archive = make(tmp_path / ("a.zip" if make is zipped else "a.tar.gz"), *folders)
    unpack(archive, tmp_path / "out", max_bytes=100, max_files=11)
    with pytest.raises(DataError, match="at most 10 files and folders"):
        unpack(archive, tmp_path / "out", max_bytes=100, max_files=10)


def header(kind: bytes, size: int, name: str = "x") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_refuses_long_and_many_headers_in_tar(tmp_path, kind):
    """A header of 3 GB, compressed to 3 MB, must not be read into memory; here only its size says so."""
    path = tmp_path / "a.tar"
    path.write_bytes(header(kind, 3 << 30) + bytes(1 << 16))
    with pytest.raises(DataError, match=r"headers of a member of a\.tar take more than 65536 bytes"):
        unpack(path, tmp_path / "out", max_bytes=10_000_000_000)
    path.write_bytes((header(kind, 512) + bytes(512)) * 2000 + bytes(1024))
    with pytest.raises(DataError, match=r"headers of a member|cannot be unpacked"):
        unpack(path, tmp_path / "out", max_bytes=10_000_000)


def test_headers_of_long_names_are_read(tmp_path):
    name = "/".join(["folder" * 20] * 6) + "/file"
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(tmp_path / "a.tar.gz", "w:gz", format=kind) as tape:
            for number in range(200):
                info = tarfile.TarInfo(f"{name}{number}")
                info.size = 3
                tape.addfile(info, io.BytesIO(b"abc"))
        unpack(tmp_path / "a.tar.gz", tmp_path / str(kind), max_bytes=600)
        assert (tmp_path / str(kind) / f"{name}199").read_bytes() == b"abc"


def test_refuses_lzma_in_zip(tmp_path):
    """Its header may ask for 4 GB."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_LZMA) as box:
        box.writestr("a", b"abc")
    with pytest.raises(DataError, match="not compressed by deflate"):
        unpack(tmp_path / "a.zip", tmp_path / "out", max_bytes=100)


@pytest.mark.parametrize("make", [tar, zipped])
@pytest.mark.parametrize("keep", [0, 5, 40, 200])
def test_truncated_archives_are_data_errors(tmp_path, make, keep):
    archive = make(tmp_path / ("a.zip" if make is zipped else "a.tar.gz"), ("a", bytes(range(256)) * 40))
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(DataError):
        unpack(archive, tmp_path / "out", max_bytes=1_000_000)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(name=st.sampled_from(["a.zip", "a.tar.gz", "a.gz"]), start=st.booleans(), noise=st.binary(max_size=80))
def test_noise_is_a_data_error_or_harmless(tmp_path, name, start, noise):
    magic = {"a.zip": b"PK\x03\x04", "a.tar.gz": b"\x1f\x8b\x08\x00", "a.gz": b"\x1f\x8b\x08\x00"}[name]
    (tmp_path / name).write_bytes((magic if start else b"") + noise)
    with contextlib.suppress(DataError):
        unpack(tmp_path / name, tmp_path / "out", max_bytes=1000)
    assert everything(tmp_path) <= {"a.zip", "a.tar.gz", "a.gz", "out", "out/a"}


def test_unknown_kind_is_named(tmp_path):
    (tmp_path / "a.rar").write_bytes(b"")
    with pytest.raises(DataError, match=r"must end in \.zip.*got a\.rar"):
        unpack(tmp_path / "a.rar", tmp_path / "out", max_bytes=1)
