"""Run a network over many series in batches of similar length and bounded memory."""

from collections.abc import Callable
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


@dataclass
class Stage:
    """The progress of a fit of frozen features: its stage, the share done, and the time left in this stage."""

    name: str
    share: float
    seconds_left: float | None = None


@torch.inference_mode()
def in_batches(
    run: Callable[..., tuple[Tensor, Any]], series: Series, tell: Callable[[float], None] | None = None
) -> np.ndarray:
    """Return `run(u, None, lengths)[0]` for all series, in batches of similar length and bounded memory.

    `tell` is called with the share of all steps that is done, after each batch.
    """
    order, found = np.argsort(series.lengths, kind="stable"), []
    start, total, done = 0, float(series.lengths.sum()), 0.0
    while start < len(order):
        count = 1
        while start + count < len(order) and count < MOST:
            if (count + 1) * series.lengths[order[start + count]] > STEPS:
                break
            count += 1
        rows = order[start : start + count]
        lengths = torch.from_numpy(series.lengths[rows])
        longest = int(lengths.max())
        u = torch.from_numpy(series.values[rows, :longest]).transpose(0, 1)
        found.append(run(u, None, None if bool((lengths == longest).all()) else lengths)[0].numpy())
        start += count
        done += float(lengths.sum())
        if tell is not None:
            tell(done / total)
    together = np.concatenate(found)
    answers = np.empty_like(together)
    answers[order] = together
    return answers
