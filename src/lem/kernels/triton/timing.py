"""What each step sees of elapsed times and restarts, and the way back of their gradients.

In reverse, step t follows step t + 1: it takes the values at t + 1, and a time of 1 at the end of a row or piece.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lem.kernels.triton.lem import Problem


def seen(
    elapsed: Tensor | None, resets: Tensor | None, lengths: Tensor | None, reverse: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return what the kernels read, (T, B): times in float32, and restarts as 8-bit integers. Padding is harmless."""
    outside = _outside(elapsed if resets is None else resets, lengths)
    if resets is not None:
        resets = resets if outside is None else resets & ~outside
        if reverse:
            resets = torch.cat([resets[1:], torch.zeros_like(resets[:1])])
    if elapsed is not None:
        elapsed = elapsed.float() if outside is None else elapsed.float().masked_fill(outside, 1.0)
        if reverse:
            elapsed = torch.cat([elapsed[1:], torch.ones_like(elapsed[:1])])
            elapsed = elapsed if resets is None else elapsed.masked_fill(resets, 1.0)
        elapsed = elapsed.contiguous()
    return elapsed, None if resets is None else resets.contiguous().view(torch.int8)


def unseen(grad: Tensor, resets: Tensor | None, lengths: Tensor | None, reverse: bool) -> Tensor:
    """Return the gradient of the elapsed times as they were given, from that of what the steps saw."""
    if reverse:
        grad = grad if resets is None else grad.masked_fill(resets != 0, 0.0)
        grad = torch.cat([torch.zeros_like(grad[:1]), grad[:-1]])
    outside = _outside(grad, lengths)
    return grad if outside is None else grad.masked_fill(outside, 0.0)


def _outside(like: Tensor | None, lengths: Tensor | None) -> Tensor | None:
    if like is None or lengths is None:
        return None
    return torch.arange(len(like), device=like.device)[:, None] >= lengths


def stretch(dt: float, elapsed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the fixed time step 1 - (1 - dt)^elapsed of every row and step, and its derivative by the time."""
    if dt >= 1.0:
        return torch.ones_like(elapsed), torch.zeros_like(elapsed)
    rest = torch.log1p(torch.tensor(-dt, dtype=torch.float64)).float().item()
    h = -torch.expm1(elapsed * rest)
    return torch.where(elapsed == 1.0, dt, h), (h - 1.0) * rest


class Timing:
    """Elapsed times and restarts of a backward pass, and the sums of their gradients."""

    def __init__(self, p: "Problem", batch: int, d: int, wanted: bool) -> None:
        self.p, self.step, self.slope = p, p.elapsed, None
        if p.elapsed is not None and p.single:
            self.step, self.slope = stretch(p.dt, p.elapsed)
        self.sum = torch.zeros_like(p.elapsed) if wanted and p.elapsed is not None else None
        starts = (0, 0) if p.resets is None else (batch, d)
        self.starts = [p.u.new_zeros(starts, dtype=torch.float32) for _ in "yz"]

    def of(self, start: int, length: int) -> tuple[Tensor | None, Tensor | None]:
        """Return the times and the restarts of a chunk."""
        elapsed, resets = (None if t is None else t[start : start + length] for t in (self.step, self.p.resets))
        return elapsed, resets

    def learn(self, start: int, g: Tensor, by_time: Tensor) -> None:
        """Take the adjoints of a chunk and what its states gain by time, both (T, B, d, 2)."""
        assert self.sum is not None
        found = (g * by_time).sum((2, 3))
        self.sum[start : start + len(g)] = found if self.slope is None else found * self.slope[start : start + len(g)]

    def gradients(self, given: "Problem") -> tuple[Tensor | None, ...]:
        """Return the gradients of the times and of the states that a restart puts in place, where they were given."""
        elapsed = None if self.sum is None else unseen(self.sum, self.p.resets, given.lengths, given.reverse)
        found = []
        for rows, start in zip(self.starts, (given.y_start, given.z_start)):
            found.append(None if start is None else rows.sum(0)[: len(start)] if len(rows) else torch.zeros_like(start))
        return elapsed, *found
