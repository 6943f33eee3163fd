"""Answers while series arrive: one stream, or a table of many that are pushed together.

A stream carries the state of the model from push to push, so each step costs the same however long the stream has run.
What it answers after each step is what `predict` would answer if the series ended there, for any cutting into chunks.
A chunk runs as any sequence does; a single step of LEM is taken in the table of states itself, by the kernel's stepper.
"""

from collections.abc import Hashable, Iterable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lem.kernels.cpu import Stepper, target, targets
from lem.nn.cells import LEMCell, State
from lem.nn.model import SequenceModel
from lem.timeseries.frozen import Frozen


class Streamable(Protocol):
    """What a stream asks of a `lem.timeseries.predictor.Predictor`."""

    channels: int
    missing: str

    @property
    def model(self) -> SequenceModel | Frozen:
        """The network."""
        ...

    def __call__(
        self, u: Tensor, state: State | None = None, lengths: Tensor | None = None, every_step: bool = False
    ) -> tuple[Tensor, State]:
        """Run over a chunk."""
        ...

    def standardise(self, u: Tensor) -> Tensor:
        """Turn raw series into model input."""
        ...

    def answer(self, features: Tensor, last: Tensor) -> Tensor:
        """Read out."""
        ...

    def shape(self, answers: np.ndarray) -> np.ndarray:
        """Shape answers as the user gave the targets."""
        ...


class Streams:
    """Many streams with one model: a table of states, one row per stream.

    `push(ids, samples)` advances the named streams by one step, (k, channels), or by a chunk, (k, channels, steps).
    With `elapsed`, each sample comes that long after the one before, in units of the usual step.

    Examples:
        >>> import numpy as np
        >>> from lem.timeseries import LEMClassifier
        >>> X, y = np.random.default_rng(0).normal(size=(20, 2, 40)), np.arange(20) % 2
        >>> streams = LEMClassifier(8, epochs=1, random_state=0).fit(X, y).streams()
        >>> streams.add("pump 1", "pump 2", "pump 3")
        >>> streams.push(["pump 3", "pump 1"], X[:2, :, 0]).shape  # one row per named stream
        (2, 2)
    """

    def __init__(self, predictor: Streamable) -> None:
        model = predictor.model
        if isinstance(model, Frozen):
            if not model.causal:
                raise ValueError("A stream needs features that do not look ahead: fit with causal=True.")
        elif model.recurrent.bidirectional:
            raise ValueError("A stream needs a model that runs forwards only; got bidirectional=True.")
        self.predictor = predictor
        predictor.model.eval()
        self._rows: dict[Hashable, int] = {}
        self._free: list[int] = []
        # Single steps of stacked layers run in the table of states; frozen groups run as chunks of one step.
        self._weights = [] if isinstance(model, Frozen) else list(model.recurrent.parameters())
        self._packed: list[tuple[Any, int]] = []  # the target and the weights that the steppers were packed for
        self._steppers: list[Stepper] = []
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
        seen = set(self._rows)
        for stream in ids:
            if stream in seen:
                raise ValueError(f"A stream is added once; got {stream!r} again.")
            seen.add(stream)
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
            field[:, torch.tensor(rows, dtype=torch.int64)] = fresh
        self._free += rows
        for stream in ids:
            del self._rows[stream]

    @torch.inference_mode()
    def push(self, ids: Iterable[Hashable], samples: Any, elapsed: Any = None) -> np.ndarray:
        """Advance streams and return what the model answers: (k, ...) after one step, (k, steps, ...) after each.

        `elapsed` is one number for all, or (k,) for one step and (k, steps) for a chunk.
        """
        rows = self._find(ids)
        given = np.asarray(samples, dtype=np.float64, order="C")
        k, channels = len(rows), self.predictor.channels
        if given.shape[:2] != (k, channels) or given.ndim > 3 or given.size == 0:
            raise ValueError(
                f"`samples` of push must be ({k}, {channels}) or ({k}, {channels}, steps), one row per stream; "
                f"got {given.shape}."
            )
        _check_finite(given, self.predictor.missing)
        gaps = None if elapsed is None else self._gaps(elapsed, (k, *given.shape[2:]))
        u = torch.from_numpy(given)
        # Rows that lie together, as those of one stream or of all, are stepped where they are; others as a copy.
        together = slice(rows[0], rows[0] + k) if rows == list(range(rows[0], rows[0] + k)) else None
        place = torch.tensor(rows) if together is None else None
        state: State = tuple(
            field[:, together] if place is None else field.index_select(1, place) for field in self._table
        )
        if given.ndim == 2 and (steppers := self._ready()):
            x = self.predictor.standardise(u)
            answers, new = self.predictor.answer(self._step(steppers, x, state, gaps), x), state
        else:
            u = u[:, :, None] if given.ndim == 2 else u
            timed: dict[str, Any] = {} if gaps is None else {"elapsed": gaps.reshape(k, -1).T}
            answers, new = self.predictor(u.permute(2, 0, 1), state, None, True, **timed)
            answers = answers[-1] if given.ndim == 2 else answers.transpose(0, 1)
        if place is not None:
            for field, after in zip(self._table, new):
                field.index_copy_(1, place, after)
        elif new is not state:
            for field, after in zip(self._table, new):
                field[:, together] = after
        return self.predictor.shape(answers.numpy())

    def _gaps(self, elapsed: Any, shape: tuple[int, ...]) -> Tensor:
        model = self.predictor.model
        reason = "its features are of equal steps" if isinstance(model, Frozen) else model.cells[0].refuse_elapsed()
        if reason is not None:
            raise ValueError(f"`elapsed` of push must be None: {reason}.")
        gaps = np.asarray(elapsed, dtype=np.float64)
        if gaps.ndim and gaps.shape != shape:
            raise ValueError(f"`elapsed` of push must be a number or have shape {shape}; got {gaps.shape}.")
        gaps = np.broadcast_to(gaps, shape)
        if not ((gaps > 0.0) & np.isfinite(gaps)).all():
            row, step = (*(int(i) for i in np.argwhere(~((gaps > 0.0) & np.isfinite(gaps)))[0]), 0)[:2]
            value = gaps[row, step] if gaps.ndim == 2 else gaps[row]
            raise ValueError(f"`elapsed` of push must be positive and finite; got {value} in row {row}, step {step}.")
        return torch.tensor(gaps, dtype=self._fresh[0].dtype)

    def _ready(self) -> list[Stepper]:
        """Return one stepper per layer, with the weights as they are now; none if the kernel cannot run the model."""
        model = self.predictor.model
        if isinstance(model, Frozen):
            return []
        weights = [(target() if targets() else "", 0), *((p._version, p.data_ptr()) for p in self._weights)]
        if weights != self._packed:
            cells = model.cells
            fits = all(
                isinstance(cell, LEMCell)  # other cells have kernels too, but no stepper
                and cell.backend_for(self._weights[0].new_zeros(1, 1, cell.input_size))[0] == "native"
                for cell in cells
            )
            self._steppers = [Stepper(cell) for cell in cells] if fits else []
            self._packed = weights
        return self._steppers

    def _step(self, steppers: list[Stepper], x: Tensor, state: State, gaps: Tensor | None) -> Tensor:
        """Advance the state in place by one step; return what the readout reads."""
        y, z, *pooled = state
        for stepper, y_layer, z_layer in zip(steppers, y.unbind(0), z.unbind(0)):
            stepper.advance(x, y_layer, z_layer, gaps)
            x = y_layer
        if not pooled:
            return x
        total, count = pooled
        total += x
        count += 1
        return torch.cat([x, total[0] / count[0]], dim=-1)

    def snapshot(self) -> dict[str, Any]:
        """Return the state of all streams: {"ids": [...], "state": [tensors (layers, streams, size)]}."""
        rows = torch.tensor(self._find(self._rows), dtype=torch.int64)
        return {"ids": self.ids, "state": [field.index_select(1, rows).clone() for field in self._table]}

    @torch.inference_mode()
    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace all streams by those of a snapshot."""
        if not {"ids", "state"} <= set(snapshot):
            raise ValueError(f"`snapshot` must be what `snapshot()` gave, with ids and state; got {sorted(snapshot)}.")
        ids, state = snapshot["ids"], snapshot["state"]
        expected = [(f.shape[0], len(ids), f.shape[2]) for f in self._fresh]
        got = [tuple(field.shape) for field in state]
        if got != expected:
            raise ValueError(f"`snapshot` of this model must hold states of shapes {expected}; got {got}.")
        self._rows = {stream: row for row, stream in enumerate(ids)}
        self._free = []
        self._table = tuple(field.clone() for field in state)

    def _find(self, ids: Iterable[Hashable]) -> list[int]:
        try:
            rows = [self._rows[stream] for stream in ids]
        except KeyError as error:
            raise ValueError(f"A stream must have been added before it is used; got {error.args[0]!r}.") from None
        if len(set(rows)) != len(rows):
            raise ValueError("Each stream must be named once in one call; got one twice.")
        return rows


class Stream:
    """One series as it arrives: `push(sample)` with (channels,), or `push(chunk)` with (channels, steps).

    Examples:
        >>> import numpy as np
        >>> from lem.timeseries import LEMClassifier
        >>> X, y = np.random.default_rng(0).normal(size=(20, 2, 40)), np.arange(20) % 2
        >>> stream = LEMClassifier(8, epochs=1, random_state=0).fit(X, y).stream()
        >>> stream.push(X[0, :, 0]).shape, stream.push(X[0, :, 1:]).shape  # a sample, then a chunk
        ((2,), (39, 2))
    """

    def __init__(self, predictor: Streamable) -> None:
        self._streams = Streams(predictor)
        self._streams.add(0)

    def push(self, samples: Any, elapsed: Any = None) -> np.ndarray:
        """Return the answer after one sample, or the answers after each step of a chunk, steps first.

        With one channel, a number is a sample and a (steps,) array a chunk. `elapsed` is the time since the previous
        sample, in units of the usual step: a number, or one for each step of a chunk.
        """
        u = np.asarray(samples, dtype=np.float64)
        if self._streams.predictor.channels == 1 and u.ndim < 2:
            u = u[None]
        gaps = None if elapsed is None else np.asarray(elapsed, dtype=np.float64)
        if gaps is not None and gaps.ndim:
            gaps = gaps[None]
        answers: np.ndarray = self._streams.push((0,), u[None], gaps)[0]
        return answers

    def reset(self) -> None:
        """Reset to the initial state."""
        self._streams.drop(0)
        self._streams.add(0)

    def snapshot(self) -> dict[str, Any]:
        """Return the state, for `restore`."""
        return self._streams.snapshot()

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self._streams.restore(snapshot)


def _check_finite(given: np.ndarray, missing: str) -> None:
    bad = np.isinf(given) if missing == "mask" else ~np.isfinite(given)
    if bad.any():
        row, channel, step = (*(int(i) for i in np.argwhere(bad)[0]), 0)[:3]
        value = given[tuple(np.argwhere(bad)[0])]
        raise ValueError(f"`samples` of push must be finite; got {value} in row {row}, channel {channel}, step {step}.")
