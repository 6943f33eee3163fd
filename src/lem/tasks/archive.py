"""Unpacking archives that came from somewhere else: nothing is written outside the folder, and only so much.

Absolute paths, `..`, links, devices and encrypted members are refused; sizes are counted while writing, because what an
archive says of itself need not be true.
"""

import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from lem.data import DataError

MAX_FILES = 300_000
"""More than any data set here has (Speech Commands: 105,835)."""

_CHUNK = 1 << 20


def unpack(archive: Path, folder: Path, *, max_bytes: int, max_files: int = MAX_FILES) -> None:
    """Unpack a .zip, .tar, .tar.gz, .tgz or single-file .gz archive into `folder`, which is made.

    Args:
        archive: the file to unpack.
        folder: nothing is written outside it.
        max_bytes: the largest size of all unpacked files together.
        max_files: the largest number of files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    left, count = max_bytes, 0
    try:
        for name, stream in _members(archive):
            count += 1
            if count > max_files:
                raise DataError(f"{archive.name} must hold at most {max_files} files; it holds more.")
            target = folder.joinpath(*_safe_parts(archive, name))
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                while chunk := stream.read(_CHUNK):
                    left -= len(chunk)
                    if left < 0:
                        raise DataError(f"{archive.name} must unpack to at most {max_bytes} bytes; it is larger.")
                    out.write(chunk)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, NotImplementedError) as error:
        raise DataError(f"{archive.name} cannot be unpacked: {error}. Delete it and fetch it again.") from error


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the path and content of each regular file; refuse everything else but folders."""
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as box:
            for info in box.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise DataError(f"{archive.name} must hold plain files only; {info.filename!r} is none.")
                if info.flag_bits & 1:
                    raise DataError(f"{archive.name} must not be encrypted; {info.filename!r} is.")
                if not info.filename.endswith("/"):
                    with box.open(info) as stream:
                        yield info.filename, stream
    elif archive.name.endswith((".tar", ".tar.gz", ".tgz")):
        # Read as a stream: one pass, whatever the size.
        with tarfile.open(archive, "r|*") as tape:
            for member in tape:
                if member.isdir():
                    continue
                content = tape.extractfile(member) if member.isreg() else None
                if content is None:
                    raise DataError(f"{archive.name} must hold plain files only; {member.name!r} is none.")
                yield member.name, content
    elif archive.name.endswith(".gz"):
        with gzip.open(archive) as stream:
            yield archive.name.removesuffix(".gz"), stream  # type: ignore[misc]
    else:
        raise DataError(f"An archive must end in .zip, .tar, .tar.gz, .tgz or .gz; got {archive.name}.")


def _safe_parts(archive: Path, name: str) -> list[str]:
    path = PurePosixPath(name)
    parts = [part for part in path.parts if part != "."]
    if path.is_absolute() or not parts or any(p == ".." or set(p) & set("\\:\0") for p in parts):
        raise DataError(f"{archive.name} must hold relative paths inside its folder only; got {name!r}.")
    return parts
