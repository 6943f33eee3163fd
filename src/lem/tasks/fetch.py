"""The data folder, and how the original files of a data set get there: the only code that uses the network.

Files lie in the folder named by the environment variable LEM_DATA (default: `lem` in the user's cache folder), in the
layout of the original archives. A file that is there is used and never overwritten; so is an archive put there by hand.
What is missing is downloaded from the first mirror that answers, continued where an earlier attempt stopped, checked
and moved into place. LEM_OFFLINE=1 forbids the network.
"""

import hashlib
import http.client
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from lem.tasks.archive import unpack
from lem.training.data import DataError

TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as dead."""

ATTEMPTS = 3
"""How often in a row a mirror may break off without sending anything new."""


@dataclass(frozen=True)
class Download:
    """A file to download, and the files it contains.

    Attributes:
        urls: mirrors of the same file, tried in order.
        files: what must be in the data folder afterwards: path -> sha256, or None where no checksum is known.
        size: bytes to download, or None where the publisher does not say.
        folder: the folder an archive is unpacked in, relative to the data folder; None for a plain file.
        unpacked: the largest size an archive may unpack to.
        sha256: of the download itself, where it is known to be fixed.
        pattern: which files of an archive to keep.
    """

    urls: tuple[str, ...]
    files: dict[str, str | None]
    size: int | None
    folder: str | None = None
    unpacked: int = 0
    sha256: str | None = None
    pattern: str = "*"

    @property
    def name(self) -> str:
        """The name of the downloaded file."""
        return self.urls[0].split("?")[0].rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Source:
    """A data set as its publisher offers it.

    Attributes:
        name: what `lem fetch` calls it: the task that uses it.
        page: where a human reads about it.
        licence: under what terms, as its publisher states them.
        downloads: the files.
    """

    name: str
    page: str
    licence: str
    downloads: tuple[Download, ...] = field(repr=False)

    @property
    def size(self) -> int | None:
        """Bytes to download, or None if that is not known."""
        sizes = [download.size for download in self.downloads]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def present(self) -> bool:
        """Return whether all files are in the data folder."""
        return all(_find(path) for download in self.downloads for path in download.files)


def data_folder() -> Path:
    """Return the folder of the data sets: LEM_DATA, or `lem` in the user's cache folder."""
    if given := os.environ.get("LEM_DATA"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lem"


def fetch(source: Source, *, offline: bool | None = None) -> dict[str, Path]:
    """Make sure that all files of a data set are present and correct; return their paths.

    Args:
        source: the data set.
        offline: never use the network; by default the value of LEM_OFFLINE.
    """
    if offline is None:
        offline = os.environ.get("LEM_OFFLINE", "") not in ("", "0")
    found: dict[str, Path] = {}
    for download in source.downloads:
        for path, place in _provide(source, download, offline).items():
            if problem := _wrong(place, download.files[path]):
                raise DataError(f"{place}: {problem}. Delete it and run: lem fetch {source.name}")
            found[path] = place
    return found


def sha256(path: Path) -> str:
    """Return the checksum of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _wrong(path: Path, wanted: str | None) -> str:
    if wanted is None or (got := sha256(path)) == wanted:
        return ""
    return f"the sha256 must be {wanted}, that of the published file; got {got}"


def _find(path: str) -> Path | None:
    """Find a file in the data folder: at its path, or at the end of it (mnist/x, or x alone)."""
    root, parts = data_folder(), Path(path).parts
    return next((place for i in range(len(parts)) if (place := root.joinpath(*parts[i:])).is_file()), None)


def _provide(source: Source, download: Download, offline: bool) -> dict[str, Path]:
    places = {path: place for path in download.files if (place := _find(path))}
    if len(places) == len(download.files):
        return places
    root = data_folder()
    keep = root / "downloads"
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"The data folder {root} must be writable: {error}. Set LEM_DATA to another folder.") from error
    with FileLock(keep / f"{download.name}.lock"):
        if not all(_find(path) for path in download.files):
            local = next((p for p in (keep / download.name, root / download.name) if p.is_file()), None)
            if local is None and offline:
                raise DataError(_how(source, download, "it is not in the data folder and the network is switched off"))
            if local is not None:
                _place(download, local, root)
            else:
                _download(source, download, root)
    places = {path: place for path in download.files if (place := _find(path))}
    missing = [path for path in download.files if path not in places]
    if missing:
        raise DataError(f"{download.name} of {source.name} does not contain {', '.join(missing)}.")
    return places


def _how(source: Source, download: Download, why: str) -> str:
    return (
        f"{download.name} of {source.name} could not be downloaded: {why}. Run `lem fetch {source.name}` on a "
        f"machine with a network, or put {download.name} from {source.page} into {data_folder()}."
    )


def _place(download: Download, given: Path, root: Path) -> None:
    """Check a download and move it, or what it holds, to where it belongs; the files it is known by come last."""
    if problem := _wrong(given, download.sha256):
        raise DataError(f"{given.name}: {problem}")
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=root) as temporary:
        if download.folder is None:
            (path,) = download.files
            moves = [(given, root / path)]
        else:
            unpack(given, Path(temporary), max_bytes=download.unpacked)
            files = [file for file in Path(temporary).rglob(download.pattern) if file.is_file()]
            moves = [(file, root / download.folder / file.relative_to(temporary)) for file in files]
        known = {root / path: wanted for path, wanted in download.files.items()}
        for file, place in moves:
            if problem := _wrong(file, known.get(place)):
                raise DataError(f"{place.name} of {given.name}: {problem}")
        for file, place in sorted(moves, key=lambda move: move[1] in known):
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)


def _download(source: Source, download: Download, root: Path) -> None:
    """Download from the first mirror that gives the right file."""
    done = root / "downloads" / download.name
    partial, tag = done.with_name(f"{done.name}.part"), done.with_name(f"{done.name}.tag")
    reasons = []
    for url in download.urls:
        try:
            _transfer(url, partial, tag)
        except (http.client.HTTPException, OSError) as error:
            reasons.append(f"{url}: {error}")
            continue
        os.replace(partial, done)
        try:
            _place(download, done, root)
            return
        except DataError as error:
            reasons.append(f"{url}: {error}")
        finally:
            for leftover in (done, tag):
                leftover.unlink(missing_ok=True)
    raise DataError(_how(source, download, "no mirror gave it (" + "; ".join(reasons) + ")"))


def _transfer(url: str, partial: Path, tag: Path) -> None:
    """Download into `partial`, going on after its last byte; a connection that breaks is taken up again."""
    failures = 0
    while True:
        have = partial.stat().st_size if partial.exists() else 0
        problem: Exception = http.client.HTTPException("the connection breaks off")
        try:
            if _receive(url, partial, tag, have):
                return
        except urllib.error.HTTPError as error:
            if error.code != 416:
                raise
            # Nothing lies behind the last byte: either all is there, or the file is another one by now.
            if error.headers.get("Content-Range") == f"bytes */{have}":
                return
            partial.unlink(missing_ok=True)
        except (http.client.HTTPException, OSError) as error:
            problem = error
        grown = partial.exists() and partial.stat().st_size > have
        failures = 0 if grown else failures + 1
        if failures >= ATTEMPTS:
            raise problem


def _receive(url: str, partial: Path, tag: Path, have: int) -> bool:
    """Receive what is missing of a file; return whether it is complete."""
    request = urllib.request.Request(url, headers={"User-Agent": "long-expressive-memory"})
    if have:
        request.add_header("Range", f"bytes={have}-")
        if tag.exists():
            # The rest is only of use if the file is still the same one.
            request.add_header("If-Range", tag.read_text())
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        if answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            if answer.status == 206:
                partial.unlink()
                raise http.client.HTTPException("the server sent another part of the file than requested")
            have = 0
        if mark := answer.headers.get("ETag"):
            tag.write_text(mark)
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with partial.open("ab" if have else "wb") as out, Bar(f"fetching {url}", total, "MB", 1e6) as bar:
            while chunk := answer.read(1 << 18):
                out.write(chunk)
                have += len(chunk)
                bar.show(have)
    return total is None or have >= total


class Bar:
    """Progress on standard error: a bar on a terminal, one line elsewhere."""

    def __init__(self, title: str, total: int | None, unit: str, scale: float = 1.0) -> None:
        self.title, self.total, self.unit, self.scale = title, total, unit, scale
        self.live = sys.stderr.isatty()
        self.last = 0.0

    def __enter__(self) -> "Bar":
        size = f" ({self.total / self.scale:.0f} {self.unit})" if self.total else ""
        print(f"{self.title}{size}", file=sys.stderr)
        return self

    def show(self, done: int) -> None:
        """Draw how much is done, at most ten times a second."""
        if self.live and time.monotonic() - self.last > 0.1:
            self.last = time.monotonic()
            marks = "#" * int(40 * done / self.total) if self.total else ""
            print(f"\r  [{marks:<40}] {done / self.scale:.0f} {self.unit}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self.live:
            print(file=sys.stderr)
