"""Time between observations and restarts inside a sequence: what each step sees of them, and what is refused."""

from typing import Any

import torch
from torch import Tensor

from lem.shapes import Bool, Float, Int


def stretch(gate: Tensor, elapsed: Tensor) -> Tensor:
    """Return 1 - (1 - gate)^elapsed: the share of the way to a held target that `elapsed` steps go, for gates up to 1.

    Exact where `elapsed` is 1 (the gate itself), where the gate is 1, and in the limits of tiny and huge times.
    """
    open_gate = gate < 1.0
    rest = torch.log1p(-torch.where(open_gate, gate, 0.0))
    # Around 1 the increment over the gate itself, which vanishes there; elsewhere the power, exact for tiny times.
    near = gate - (1.0 - gate) * torch.expm1((elapsed - 1.0) * rest)
    far = -torch.expm1(elapsed * rest)
    return torch.where(open_gate, torch.where((elapsed - 1.0).abs() < 0.5, near, far), gate)


def seen_by_steps(
    elapsed: Float[Tensor, "time batch"] | None,
    resets: Bool[Tensor, "time batch"] | None,
    lengths: Int[Tensor, "batch"] | None,
    reverse: bool,
) -> tuple[Float[Tensor, "time batch 1"] | None, Bool[Tensor, "time batch 1"] | None]:
    """Return for each step the time since the step before it, and whether the state restarts between the two.

    In reverse, step t follows step t + 1: it takes the values at t + 1, and a time of 1 at the end of a row or piece.
    """
    given = resets if elapsed is None else elapsed
    if given is None:
        return None, None
    if lengths is not None:
        outside = torch.arange(given.shape[0], device=given.device)[:, None] >= lengths.to(given.device)
        resets = None if resets is None else resets & ~outside
        elapsed = None if elapsed is None else elapsed.masked_fill(outside, 1.0)
    if reverse:
        resets = None if resets is None else torch.cat([resets[1:], torch.zeros_like(resets[:1])])
        if elapsed is not None:
            elapsed = torch.cat([elapsed[1:], torch.ones_like(elapsed[:1])])
            elapsed = elapsed if resets is None else elapsed.masked_fill(resets, 1.0)
    return (*(None if x is None else x[:, :, None] for x in (elapsed, resets)),)  # type: ignore[return-value]


def check_elapsed(owner: str, elapsed: Any, steps: int, batch: int, lengths: Tensor | None) -> None:
    """Raise if `elapsed`, (time, batch), is not a positive finite number, naming the place.

    Values that are on a GPU are not read.
    """
    _check_shape(owner, "elapsed", elapsed, steps, batch, "positive numbers")
    if not elapsed.is_floating_point():
        raise TypeError(f"`elapsed` of {owner} must be a floating-point tensor; got {elapsed.dtype}.")
    if torch.compiler.is_compiling() or not _readable(elapsed, lengths):
        return
    wrong = ~((elapsed > 0.0) & torch.isfinite(elapsed)) & _inside(steps, lengths, elapsed)
    if bool(wrong.any()):
        step, row = (int(i) for i in wrong.nonzero()[0])
        raise ValueError(
            f"`elapsed` of {owner} must be positive and finite; got {float(elapsed[step, row])} at step {step} of row "
            f"{row}. The first observation, which has none before it, takes 1."
        )


def check_resets(owner: str, resets: Any, steps: int, batch: int, lengths: Tensor | None) -> None:
    """Raise if `resets`, (time, batch), is not boolean or lies past the end of a row, naming the place.

    Values that are on a GPU are not read.
    """
    _check_shape(owner, "resets", resets, steps, batch, "booleans")
    if resets.dtype != torch.bool:
        raise TypeError(f"`resets` of {owner} must be a boolean tensor; got {resets.dtype}. Write `resets != 0`.")
    if lengths is None or torch.compiler.is_compiling() or not _readable(resets, lengths):
        return
    wrong = resets & ~_inside(steps, lengths, resets)
    if bool(wrong.any()):
        step, row = (int(i) for i in wrong.nonzero()[0])
        raise ValueError(
            f"`resets` of {owner} must lie inside the rows; got one at step {step} of row {row}, "
            f"which has {int(lengths[row])} steps."
        )


def _check_shape(owner: str, name: str, given: Any, steps: int, batch: int, kind: str) -> None:
    if not isinstance(given, Tensor):
        raise TypeError(f"`{name}` of {owner} must be a tensor of {kind}; got {type(given).__name__}.")
    if tuple(given.shape) != (steps, batch):
        raise ValueError(
            f"`{name}` of {owner} must have one value for each of {steps} steps and {batch} rows; "
            f"got {tuple(given.shape)} (time, batch)."
        )


def _readable(*given: Tensor | None) -> bool:
    """Return whether all values are on the host: nobody waits for a GPU to check an input."""
    return all(t is None or t.device.type == "cpu" for t in given)


def _inside(steps: int, lengths: Tensor | None, like: Tensor) -> Tensor:
    if lengths is None:
        return torch.ones_like(like, dtype=torch.bool)
    return torch.arange(steps, device=like.device)[:, None] < lengths.to(like.device)
