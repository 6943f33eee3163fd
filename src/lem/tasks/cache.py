"""Prepared tensors on disk, so that a data set is parsed once and opened in an instant afterwards."""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lem.tasks.fetch import data_folder


def prepared(name: str, key: object, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of `make`, from disk if they were made before.

    Args:
        name: what the file is called.
        key: all that the result depends on, JSON-serialisable: checksums of the sources, options, a version of the
            preparation. Another key is another file.
        make: makes the tensors. They are read back lazily, by the operating system, from the file.
    """
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    path = data_folder() / "prepared" / f"{name}-{digest}.safetensors"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if path.exists():
                try:
                    return load_file(path)
                except SafetensorError:
                    path.unlink()
            partial = path.with_suffix(f".{os.getpid()}.part")
            try:
                save_file({name: tensor.contiguous() for name, tensor in make().items()}, partial)
                partial.chmod(0o644)
                os.replace(partial, path)
            finally:
                partial.unlink(missing_ok=True)
            return load_file(path)
    except PermissionError as error:
        warnings.warn(f"Prepared data could not be stored, so it is computed again on each run: {error}.", stacklevel=2)
        return make()


def checksum(files: Iterable[Path]) -> str:
    """Return one sha256 over the contents of files, in their order."""
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()
