"""Write files atomically, inside the folder they belong to and never through a link."""

import io
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes, keep: Path | None = None) -> None:
    """Write a file so that, whatever happens, `path` holds either its old content or all of the new.

    A link at `path` is replaced, not followed. With `keep`, the old file is moved there; for a moment it is then the
    only one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # left by a killed process with the same id, or a link placed there
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.is_file():
            os.replace(path, keep)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if hasattr(os, "O_DIRECTORY"):  # the rename itself must reach the disk too
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def append(path: Path, text: str) -> None:
    """Append a text to a file, which must not be a link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(no_link(path), flags, 0o666), "a", encoding="utf-8") as file:
        file.write(text)


def save_figure(figure: Any, path: str | Path) -> None:
    """Write a matplotlib figure atomically, in the format of the path's suffix."""
    content = io.BytesIO()
    figure.savefig(content, dpi=150, format=Path(path).suffix.removeprefix(".") or "png")
    write_atomically(Path(path), content.getvalue())


def no_link(path: Path) -> Path:
    """Return the path, or raise ValueError if it is a symbolic link."""
    if path.is_symlink():
        raise ValueError(f"{path} is a link, which is neither read nor written: replace it by the file itself.")
    return path


def inside(folder: Path, *names: str) -> Path:
    """Return `folder / names`, or raise ValueError if that lies outside the folder once links are resolved."""
    path = folder.joinpath(*names)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{path} leads out of {folder} (to {path.resolve()}): nothing is written there.")
    return path
