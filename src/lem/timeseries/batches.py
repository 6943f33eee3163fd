"""Run a network over many series in batches of similar length and bounded memory."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lem.timeseries.series import Series

STEPS = 16_000
"""About this many steps are held in memory at once, for all series of a batch together."""
MOST = 256
"""The most series of a batch."""
WORKERS = 8
"""The most batches that are computed at once, each on one thread."""


@dataclass
class Stage:
    """The progress of a fit of frozen features: its stage, the share done, and the time left in this stage."""

    name: str
    share: float
    seconds_left: float | None = None


class _Threads:
    """How many fits run on one thread now, and the number of threads before the first of them."""

    lock, fits, before = threading.Lock(), 0, 1


@contextmanager
def one_thread() -> Iterator[int]:
    """Let torch use one thread per operation, and yield the number it had.

    Frozen features and small networks take thousands of small operations. Threads that share each of them wait for
    each other after every one, and on a busy machine that wait is many times longer than the operation. Several
    threads of Python may be inside at once, and each of them gets the first one's number back.
    """
    with _Threads.lock:
        if _Threads.fits == 0:
            _Threads.before = torch.get_num_threads()
        _Threads.fits += 1
        before = _Threads.before
    torch.set_num_threads(1)
    try:
        yield before
    finally:
        with _Threads.lock:
            _Threads.fits -= 1
        torch.set_num_threads(before)


def in_batches(
    run: Callable[..., tuple[Tensor, Any]],
    series: Series,
    tell: Callable[[float], None] | None = None,
    apart: bool = False,
) -> np.ndarray:
    """Return `run(u, None, lengths)[0]` for all series, in batches of similar length and bounded memory.

    `tell` is called with the share of all steps that is done, after each batch. With `apart`, every thread computes
    batches of its own; otherwise all threads share the operations of one batch.
    """
    order = np.argsort(series.lengths, kind="stable")
    batches, start = [], 0
    while start < len(order):
        count = 1
        while start + count < len(order) and count < MOST:
            if (count + 1) * series.lengths[order[start + count]] > STEPS:
                break
            count += 1
        batches.append(order[start : start + count])
        start += count

    @torch.inference_mode()
    def answer(rows: np.ndarray) -> np.ndarray:
        lengths = torch.from_numpy(series.lengths[rows])
        longest = int(lengths.max())
        u = torch.from_numpy(series.values[rows, :longest]).transpose(0, 1)
        found: np.ndarray = run(u, None, None if bool((lengths == longest).all()) else lengths)[0].numpy()
        return found

    found, done, total = [], 0.0, float(series.lengths.sum())

    def collect(results: Any) -> None:
        nonlocal done
        for rows, result in zip(batches, results):
            found.append(result)
            done += float(series.lengths[rows].sum())
            if tell is not None:
                tell(done / total)

    if not apart:
        collect(map(answer, batches))
    else:
        with one_thread() as threads:
            workers = min(threads, WORKERS, len(batches))
            if workers == 1:
                collect(map(answer, batches))
            else:
                pool = ThreadPoolExecutor(workers)
                try:
                    collect(pool.map(answer, batches))
                finally:
                    pool.shutdown(cancel_futures=True)
    together = np.concatenate(found)
    answers = np.empty_like(together)
    answers[order] = together
    return answers
