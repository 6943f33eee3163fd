"""Data-parallel training: what several processes that share every batch must say to each other.

`torchrun --nproc-per-node 4 --no-python lem train RECIPE` starts four. Each computes its rows of the batch; gradients
and losses are summed, so all hold the same weights, and the result is that of one process but for the order of
additions. One process alone runs through the same calls, which then do nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed


class Processes:
    """The processes that train one model together, as seen by one of them."""

    def __init__(self, rank: int = 0, size: int = 1, device: str = "cpu") -> None:
        self.rank = rank
        self.size = size
        self.device = device

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def add(self, tensors: list[Tensor]) -> None:
        """Replace every tensor by its sum over all processes, in one exchange."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with _connected(self):
            distributed.all_reduce(flat)
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
            tensor.copy_(total.view_as(tensor))

    def total(self, *numbers: float) -> list[float]:
        """Return the sum of each number over all processes."""
        if self.size == 1:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        with _connected(self):
            distributed.all_reduce(sums)
        return [float(number) for number in sums.tolist()]

    def first(self, value: Any) -> Any:
        """Return what process 0 has."""
        if self.size == 1:
            return value
        box = [value]
        with _connected(self):
            distributed.broadcast_object_list(box, src=0)
        return box[0]

    def all_rows(self, state: tuple[Tensor, ...] | None) -> tuple[Tensor, ...] | None:
        """Return a recurrent state (layers, batch, units) with the rows of all processes; some may have none."""
        if self.size == 1:
            return state
        parts: list[Any] = [None] * self.size
        with _connected(self):
            distributed.all_gather_object(parts, None if state is None else tuple(field.cpu() for field in state))
        return tuple(torch.cat(fields, dim=1) for fields in zip(*(part for part in parts if part is not None))) or None


ALONE = Processes()


def launched() -> Processes:
    """Join the processes that torchrun started, or return the one process there is."""
    if not (distributed.is_available() and distributed.is_torchelastic_launched()):
        return ALONE
    gpu = torch.cuda.is_available()
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if gpu else "gloo")
        if gpu:
            torch.cuda.set_device(distributed.get_node_local_rank())
    return Processes(distributed.get_rank(), distributed.get_world_size(), "cuda" if gpu else "cpu")


def leave() -> None:
    """Part from the other processes."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


@contextmanager
def _connected(processes: Processes) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise ConnectionError(
            f"All {processes.size} processes of the run must stay alive; process {processes.rank} lost another one "
            f"({str(error).splitlines()[0]}). Start the same command again: it continues from the last checkpoint."
        ) from error
