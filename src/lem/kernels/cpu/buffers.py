"""Memory that is kept and reused by the kernel's calls.

A fresh page costs more than writing it: handing large buffers back to the system after every call would take a third
of a training step. Blocks are kept when their tensor dies, up to a limit.
"""

import math
import os
import threading
from collections import deque

import torch
from torch import Tensor

from lem.kernels.cpu.library import library

_SMALL = 1 << 18


class _Block:
    """Pages behind one tensor; they go back to the cache with the last reference."""

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size

    def __del__(self) -> None:
        _cache.give_back(self.address, self.size)


class _Cache:
    def __init__(self) -> None:
        self.limit = 1 << 30
        self.free: list[tuple[int, int]] = []
        self.returned: deque[tuple[int, int]] = deque()
        self.lock = threading.Lock()

    def give_back(self, address: int, size: int) -> None:
        self.returned.append((size, address))  # atomic: this may run inside the garbage collector, even in `take`
        if self.lock.acquire(blocking=False):
            try:
                self._settle(self.limit)
            finally:
                self.lock.release()

    def _settle(self, limit: int) -> None:
        while self.returned:
            self.free.append(self.returned.popleft())
        held = sum(size for size, _ in self.free)
        while self.free and held > limit:  # the oldest goes first
            size, address = self.free.pop(0)
            held -= size
            library().lem_pages_free(address, size)

    def take(self, size: int) -> _Block:
        size = -(-size // (1 << 21)) * (1 << 21) if size >= 1 << 21 else -(-size // 4096) * 4096
        with self.lock:
            self._settle(self.limit)
            fitting = [block for block in self.free if size <= block[0] <= 2 * size]
            if fitting:
                best = min(fitting)
                self.free.remove(best)
                return _Block(best[1], best[0])
        address = library().lem_pages(size)
        if not address:
            self.release()
            address = library().lem_pages(size)
        if not address:
            raise MemoryError(
                f"the LEM kernel could not allocate {size:,} bytes; use memory='bounded' or a smaller batch."
            )
        return _Block(address, size)

    def release(self) -> None:
        with self.lock:
            self._settle(0)

    def renew_lock(self) -> None:
        """Replace the lock in a forked child: another thread of the parent may hold it, and is not there to release."""
        self.lock = threading.Lock()


_cache = _Cache()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_cache.renew_lock)


def release_memory() -> None:
    """Give the buffers that are kept for reuse back to the system.

    Examples:
        >>> from lem.kernels import release_memory
        >>> release_memory()
    """
    _cache.release()


class _Array:
    """A block seen as an array, for torch.from_numpy; the view keeps it alive."""

    def __init__(self, block: _Block, shape: tuple[int, ...], kind: str) -> None:
        self.block = block
        self.__array_interface__ = {"version": 3, "data": (block.address, False), "shape": shape, "typestr": kind}


_KIND = {torch.float32: "<f4", torch.float64: "<f8", torch.uint8: "|u1", torch.float16: "<f2", torch.bfloat16: "<i2"}


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor of undefined values, on kept pages if it is large."""
    count = math.prod(shape)
    if count * dtype.itemsize < _SMALL:
        return torch.empty(shape, dtype=dtype)
    import numpy

    # NumPy has no bfloat16: its items are integers until torch sees them.
    return torch.from_numpy(numpy.asarray(_Array(_cache.take(count * dtype.itemsize), shape, _KIND[dtype]))).view(dtype)
