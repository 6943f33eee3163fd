"""Answers while series arrive: one stream, or a table of many that are pushed together.

A stream carries the state of the model from push to push, so each step costs the same however long the stream has run.
What it answers after each step is what `predict` would answer if the series ended there, for any cutting into chunks.
"""

from collections.abc import Hashable, Iterable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lem.cells import State
from lem.model import SequenceModel


class Streamable(Protocol):
    """What a stream asks of a `lem.predictor.Predictor`."""

    channels: int
    missing: str
    model: SequenceModel

    def __call__(
        self, u: Tensor, state: State | None = None, lengths: Tensor | None = None, every_step: bool = False
    ) -> tuple[Tensor, State]:
        """Run over a chunk."""
        ...

    def shape(self, answers: np.ndarray) -> np.ndarray:
        """Shape answers as the user gave the targets."""
        ...


class Streams:
    """Many streams with one model: a table of states, one row per stream.

    `push(ids, samples)` advances the named streams by one step, (k, channels), or by a chunk, (k, channels, steps).
    """

    def __init__(self, predictor: Streamable) -> None:
        if predictor.model.recurrent.bidirectional:
            raise ValueError("A stream needs a model that runs forwards only; got bidirectional=True.")
        self.predictor = predictor
        predictor.model.eval()
        self._rows: dict[Hashable, int] = {}
        self._free: list[int] = []
        with torch.inference_mode():
            self._fresh = predictor.model.init_state(1)
            self._table = tuple(field[:, :0] for field in self._fresh)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, stream: Hashable) -> bool:
        return stream in self._rows

    @property
    def ids(self) -> list[Hashable]:
        """The streams there are, oldest first."""
        return list(self._rows)

    @torch.inference_mode()
    def add(self, *ids: Hashable) -> None:
        """Begin new streams."""
        for stream in ids:
            if stream in self._rows:
                raise ValueError(f"A stream is added once; got {stream!r} again.")
        short = len(ids) - len(self._free)
        if short > 0:
            rows = self._table[0].shape[1]
            grown = max(short, rows)  # doubling keeps the cost of growth constant per stream
            self._table = tuple(
                torch.cat([old, new.expand(-1, grown, -1)], dim=1) for old, new in zip(self._table, self._fresh)
            )
            self._free += range(rows + grown - 1, rows - 1, -1)
        for stream in ids:
            self._rows[stream] = self._free.pop()

    @torch.inference_mode()
    def drop(self, *ids: Hashable) -> None:
        """End streams; their rows are reset and used again."""
        rows = self._find(ids)
        for field, fresh in zip(self._table, self._fresh):
            field[:, rows] = fresh
        self._free += rows.tolist()
        for stream in ids:
            del self._rows[stream]

    @torch.inference_mode()
    def push(self, ids: Iterable[Hashable], samples: Any) -> np.ndarray:
        """Advance streams and return what the model answers: (k, ...) after one step, (k, steps, ...) after each."""
        ids = list(ids)
        rows = self._find(ids)
        u = torch.as_tensor(np.asarray(samples, dtype=np.float64))
        single = u.dim() == 2
        u = u[:, :, None] if single else u
        if u.dim() != 3 or u.shape[0] != len(ids) or u.shape[1] != self.predictor.channels or u.shape[2] == 0:
            k, channels = len(ids), self.predictor.channels
            raise ValueError(
                f"`samples` of push must be ({k}, {channels}) or ({k}, {channels}, steps), one row per stream; "
                f"got {tuple(np.shape(samples))}."
            )
        _check_finite(u, self.predictor.missing)
        state = tuple(field.index_select(1, rows) for field in self._table)
        answers, state = self.predictor(u.permute(2, 0, 1), state, None, True)
        for field, new in zip(self._table, state):
            field.index_copy_(1, rows, new)
        shaped = self.predictor.shape(answers.numpy())
        return shaped[-1] if single else shaped.swapaxes(0, 1)

    def snapshot(self) -> dict[str, Any]:
        """Return the state of all streams: {"ids": [...], "state": [tensors (layers, streams, size)]}."""
        rows = self._find(self._rows)
        return {"ids": self.ids, "state": [field.index_select(1, rows).clone() for field in self._table]}

    @torch.inference_mode()
    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace all streams by those of a snapshot."""
        ids, state = snapshot["ids"], snapshot["state"]
        expected = [(f.shape[0], len(ids), f.shape[2]) for f in self._fresh]
        got = [tuple(field.shape) for field in state]
        if got != expected:
            raise ValueError(f"`snapshot` of this model must hold states of shapes {expected}; got {got}.")
        self._rows = {stream: row for row, stream in enumerate(ids)}
        self._free = []
        self._table = tuple(field.clone() for field in state)

    def _find(self, ids: Iterable[Hashable]) -> Tensor:
        try:
            rows = [self._rows[stream] for stream in ids]
        except KeyError as error:
            raise ValueError(f"A stream must have been added before it is used; got {error.args[0]!r}.") from None
        if len(set(rows)) != len(rows):
            raise ValueError("Each stream must be named once in one call; got one twice.")
        return torch.tensor(rows, dtype=torch.int64)


class Stream:
    """One series as it arrives: `push(sample)` with (channels,), or `push(chunk)` with (channels, steps)."""

    def __init__(self, predictor: Streamable) -> None:
        self._streams = Streams(predictor)
        self._streams.add(0)

    def push(self, samples: Any) -> np.ndarray:
        """Return the answer after one sample, or the answers after each step of a chunk, steps first.

        With one channel, a number is a sample and a (steps,) array a chunk.
        """
        u = np.asarray(samples, dtype=np.float64)
        if self._streams.predictor.channels == 1 and u.ndim < 2:
            u = u[None]
        answers: np.ndarray = self._streams.push((0,), u[None])[0]
        return answers

    def reset(self) -> None:
        """Begin anew."""
        self._streams.drop(0)
        self._streams.add(0)

    def snapshot(self) -> dict[str, Any]:
        """Return the state, for `restore`."""
        return self._streams.snapshot()

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self._streams.restore(snapshot)


def _check_finite(u: Tensor, missing: str) -> None:
    bad = torch.isinf(u) if missing == "mask" else ~torch.isfinite(u)
    if bool(bad.any()):
        row, channel, step = (int(i) for i in bad.nonzero()[0])
        raise ValueError(
            f"`samples` of push must be finite; got {u[row, channel, step].item()} in row {row}, channel {channel}, "
            f"step {step}."
        )
