"""Read losses and gradient norms from a device without making the host wait for it at every update."""

import math

import torch
from torch import Tensor

EVERY = 50
"""The number of updates after which the numbers of a GPU are read."""


def read(numbers: list[Tensor]) -> list[float]:
    """Return scalars of one device as Python numbers. This waits until the device has computed them."""
    return torch.stack([number.detach().to(torch.float64) for number in numbers]).tolist()


class Watch:
    """Check that the loss and the gradient norm of every update are finite.

    On the CPU each update is checked at once. Reading a number from another device makes the host wait for it, so the
    numbers stay there and are read together every `EVERY` updates; `flush` reads those that remain. A loss that is not
    finite is therefore reported late there, but before anything is saved or evaluated.

    Args:
        device: where the model is trained.
        remedy: what else to do about a loss that is not finite, as the end of a sentence.
    """

    def __init__(self, device: str, remedy: str) -> None:
        self.every = 1 if torch.device(device).type == "cpu" else EVERY
        self.remedy = remedy
        self.latest = math.nan
        self._waiting: list[tuple[Tensor, Tensor, str]] = []

    def add(self, loss: Tensor, norm: Tensor, where: str) -> float:
        """Take the numbers of an update; return the sum of the losses that were read now."""
        self._waiting.append((loss, norm, where))
        return self.flush() if len(self._waiting) >= self.every else 0.0

    def flush(self) -> float:
        """Read and check what has not been read yet; return the sum of these losses."""
        if not self._waiting:
            return 0.0
        waiting, self._waiting = self._waiting, []
        numbers = read([number for loss, norm, _ in waiting for number in (loss, norm)])
        total = 0.0
        for loss, norm, (_, _, where) in zip(numbers[::2], numbers[1::2], waiting):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise FloatingPointError(
                    f"The loss and its gradient must be finite; got loss {loss:g}, gradient norm {norm:g} in {where}. "
                    f"The last good checkpoint is kept: lower `learning_rate` or `dt`, or {self.remedy}."
                )
            total += loss
            self.latest = loss
        return total
