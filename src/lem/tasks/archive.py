"""Unpack archives from untrusted sources: nothing is written outside the folder, and memory and disk are bounded.

Absolute paths, `..`, links, devices and encrypted members are refused. Sizes are counted while writing, because what an
archive declares need not be true. Folders count as files do, and the headers of a tar archive are bounded.
"""

import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from lem.training.data import DataError

MAX_FILES = 300_000
"""More than any data set here has (Speech Commands: 105,835)."""

HEADERS = 1 << 16
"""The most bytes of headers that a member of a tar archive may have: tarfile reads them into memory."""

_CHUNK = 1 << 20


def unpack(archive: Path, folder: Path, *, max_bytes: int, max_files: int = MAX_FILES) -> None:
    """Unpack a .zip, .tar, .tar.gz, .tgz or single-file .gz archive into `folder`, which is made.

    Args:
        archive: the file to unpack.
        folder: nothing is written outside it.
        max_bytes: the largest size of all unpacked files together.
        max_files: the largest number of files and folders.
    """
    folder.mkdir(parents=True, exist_ok=True)
    left = max_bytes
    try:
        for count, (name, stream) in enumerate(_members(archive, max_bytes + 4096 * max_files), start=1):
            if count > max_files:
                raise DataError(f"{archive.name} has more entries than allowed: at most {max_files} files and folders.")
            if stream is None:  # a folder: made when a file is in it
                continue
            target = folder.joinpath(*_safe_parts(archive, name))
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                while chunk := stream.read(_CHUNK):
                    left -= len(chunk)
                    if left < 0:
                        raise DataError(f"{archive.name} unpacks to more than {max_bytes} bytes.")
                    out.write(chunk)
    except DataError:
        raise
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise DataError(f"{archive.name} cannot be unpacked: {error}. Delete it and fetch it again.") from error


def _members(archive: Path, longest: int) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Yield the path and content of each file, and None for the content of a folder; refuse everything else.

    A tar archive may be `longest` bytes long before compression.
    """
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as box:
            for info in box.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise DataError(f"{archive.name} contains {info.filename!r}, which is not a regular file.")
                if info.flag_bits & 1:
                    raise DataError(f"{archive.name} contains {info.filename!r}, which is encrypted.")
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2):
                    raise DataError(f"{archive.name} contains {info.filename!r}, which is not compressed by deflate.")
                if info.filename.endswith("/"):
                    yield info.filename, None
                else:
                    with box.open(info) as stream:
                        yield info.filename, stream
    elif archive.name.endswith((".tar", ".tar.gz", ".tgz")):
        # In one pass, whatever the size.
        with _plain(archive) as stream:
            tape = _Tape(archive, stream, longest)
            with tarfile.open(fileobj=tape, mode="r:") as box:  # type: ignore[call-overload]
                while (member := box.next()) is not None:
                    box.members, box.pax_headers = [], {}  # tarfile would keep those of all members
                    content = box.extractfile(member) if member.isreg() else None
                    if content is None and not member.isdir():
                        raise DataError(f"{archive.name} contains {member.name!r}, which is not a regular file.")
                    tape.headers_left = longest
                    yield member.name, content
                    tape.headers_left = HEADERS
    elif archive.name.endswith(".gz"):
        with gzip.open(archive) as stream:
            yield archive.name.removesuffix(".gz"), stream  # type: ignore[misc]
    else:
        raise DataError(f"An archive must end in .zip, .tar, .tar.gz, .tgz or .gz; got {archive.name}.")


def _plain(archive: Path) -> IO[bytes]:
    """Open a tar archive, uncompressed if it is compressed by gzip."""
    with archive.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return gzip.open(archive) if compressed else archive.open("rb")  # type: ignore[return-value]


class _Tape:
    """What tarfile reads from: it refuses to read headers of more than `HEADERS` bytes, or beyond the longest end."""

    def __init__(self, archive: Path, stream: IO[bytes], longest: int) -> None:
        self.name, self._stream, self._longest = archive.name, stream, longest
        self.headers_left = HEADERS

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, place: int) -> int:
        self._check_end(place)
        return self._stream.seek(place)

    def read(self, size: int) -> bytes:
        self.headers_left -= size
        if self.headers_left < 0:
            raise DataError(f"The headers of a member of {self.name} take more than {HEADERS} bytes.")
        self._check_end(self._stream.tell() + size)
        return self._stream.read(size)

    def _check_end(self, place: int) -> None:
        if place > self._longest:
            raise DataError(f"{self.name} unpacks to more than {self._longest} bytes.")


def _safe_parts(archive: Path, name: str) -> list[str]:
    path = PurePosixPath(name)
    parts = [part for part in path.parts if part != "."]
    if path.is_absolute() or not parts or any(p == ".." or set(p) & set("\\:\0") for p in parts):
        raise DataError(f"{archive.name} must hold relative paths inside its folder only; got {name!r}.")
    return parts
