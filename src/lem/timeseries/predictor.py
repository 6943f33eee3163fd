"""A trained model with all that surrounds it, and its file.

A `Predictor` takes series in the user's units and answers in the user's units: it standardises, marks what is missing,
runs a `SequenceModel` and turns the readout into labels, values or a forecast. Its file is one safetensors file whose
JSON metadata describes how to build it; loading executes nothing from the file and checks everything it reads.
"""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from lem.atomic import write_atomically
from lem.nn.cells import State
from lem.nn.model import SequenceModel
from lem.shapes import Float, Int
from lem.timeseries.batches import in_batches
from lem.timeseries.forecasting import segment_answers
from lem.timeseries.frozen import Frozen
from lem.timeseries.gaps import Clock, with_times
from lem.timeseries.model_file import (
    FORMAT,
    LABEL_TYPES,
    VERSION,
    checked_config,
    file_digest,
    read_model_file,
    with_labels,
)
from lem.timeseries.schema import ON_MISSING
from lem.timeseries.segment_stream import SegmentStream
from lem.timeseries.segments import SegmentNetwork
from lem.timeseries.series import Series, as_series
from lem.timeseries.stream import Stream, Streams
from lem.version import __version__
from lem.wording import check_choice

KINDS = ("classifier", "regressor", "forecaster")
BATCH = 256


class Predictor(nn.Module):
    """A model in the user's units.

    Called with raw series, time-major; returns `(answer, state)`, where the state continues the series. The answer is
    the class probabilities (batch, classes), the targets (batch, targets), or the forecast
    (batch, horizon, channels), each after the last step or, with `every_step`, after every one (time first).

    Args:
        kind: "classifier", "regressor" or "forecaster".
        channels: the channels of the series.
        outputs: the number of classes or targets; for a forecaster the channels.
        architecture: the arguments of `SequenceModel` but for the sizes of input and output; with
            `network="frozen"` those of `lem.timeseries.frozen.Frozen`, and with `network="segments"` those of
            `lem.timeseries.segments.SegmentNetwork`.
        labels: the classes in the order of the outputs.
        horizon: how many steps a forecaster looks ahead.
        missing: "error" refuses NaN; "mask" feeds zeros and a second set of channels that marks them.
        flat: whether the user's targets had no axis for targets, or a forecaster's series none for channels; for a
            classifier, whether a series can have several labels at once.
        notes: the content of the model card, plain values only.
        clock: for a model that takes the times of observations, what it counts as one step.

    Examples:
        >>> import numpy as np
        >>> from lem.timeseries import LEMRegressor
        >>> from lem.timeseries.predictor import Predictor
        >>> X, y = np.random.default_rng(0).normal(size=(20, 40)), np.arange(20.0)
        >>> _ = LEMRegressor(effort="quick", random_state=0).fit(X, y).predictor_.save("model.safetensors")
        >>> predictor = Predictor.load("model.safetensors")  # needs no scikit-learn
        >>> predictor.kind, predictor.predict(X[:3]).shape
        ('regressor', (3,))
    """

    mean: Tensor
    scale: Tensor
    target_mean: Tensor
    target_scale: Tensor

    def __init__(
        self,
        kind: str,
        channels: int,
        outputs: int,
        architecture: dict[str, Any],
        *,
        labels: np.ndarray | None = None,
        horizon: int = 1,
        missing: str = "error",
        flat: bool = False,
        notes: dict[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        check_choice("Predictor", "kind", kind, KINDS)
        check_choice("Predictor", "missing", missing, ON_MISSING)
        self.kind = kind
        self.channels = channels
        self.outputs = outputs
        self.architecture = dict(architecture)
        self.labels = labels
        self.horizon = horizon
        self.missing = missing
        self.flat = flat
        self.notes = dict(notes or {})
        self.clock = clock
        inputs = channels * (2 if missing == "mask" else 1)
        self.model: SequenceModel | Frozen
        rest = {key: value for key, value in architecture.items() if key != "network"}
        if architecture.get("network") == "frozen":
            self.model = Frozen(inputs, outputs, **rest)
        elif architecture.get("network") == "segments":
            self.model = cast(Any, SegmentNetwork(channels, horizon, **rest))
        else:
            self.model = SequenceModel(
                input_size=inputs, output_size=outputs * horizon, every_step=kind == "forecaster", **architecture
            )
        # In float64: a large offset, such as that of a time stamp, would swallow the signal in float32.
        for name, size in (("mean", channels), ("scale", channels)):
            self.register_buffer(name, torch.zeros(size, dtype=torch.float64) + (name == "scale"))
            self.register_buffer(f"target_{name}", torch.zeros(outputs, dtype=torch.float64) + (name == "scale"))

    def set_units(self, series: Series, targets: np.ndarray | None = None) -> None:
        """Take mean and spread of each channel, and of each target, from training data."""
        mean, scale = channel_units(series)
        self.mean.copy_(torch.from_numpy(mean))
        self.scale.copy_(torch.from_numpy(scale))
        if self.kind == "forecaster":
            self.target_mean.copy_(self.mean)
            self.target_scale.copy_(self.scale)
        elif targets is not None:
            self.target_mean.copy_(torch.from_numpy(_mean(targets)))
            self.target_scale.copy_(torch.from_numpy(_spread(targets)))

    def standardise(self, u: Float[Tensor, "*axes channel"]) -> Float[Tensor, "*axes input"]:
        """Turn raw series into model input: per channel mean 0 and spread 1, missing values 0 and marked."""
        return standardise(u, self.mean, self.scale, self.missing, self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.model.readout.parameters()).dtype

    def forward(
        self,
        u: Float[Tensor, "time batch channel"],
        state: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        every_step: bool = False,
        elapsed: Float[Tensor, "time batch"] | None = None,
    ) -> tuple[Tensor, State]:
        """Return the answer after the last step, or after every step, and the state that continues the series."""
        if isinstance(self.model, SegmentNetwork):
            raise ValueError("A forecaster with network='segments' reads whole windows: use `predict`, or `stream`.")
        x = self.standardise(u)
        timed = {} if elapsed is None else {"elapsed": elapsed.to(x.dtype)}
        features, state = self.model.features(x, state, lengths, every_step, **timed)
        last = x if every_step else x[-1] if lengths is None else x[lengths - 1, torch.arange(len(lengths))]
        return self.answer(features, last), state

    def answer(self, features: Float[Tensor, "*axes feature"], last: Float[Tensor, "*axes input"]) -> Tensor:
        """Read out: from what the model shows and the last input seen to the answer in the user's units."""
        raw = self.model.readout(features)
        if self.kind == "classifier":
            return torch.sigmoid(raw) if self.flat else torch.softmax(raw, dim=-1)
        if self.kind == "forecaster":  # as the difference from the last value seen
            raw = last[..., None, : self.channels] + raw.unflatten(-1, (self.horizon, self.outputs))
        return raw.to(torch.float64) * self.target_scale + self.target_mean

    # --- with arrays ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def answers(self, series: Series) -> np.ndarray:
        """Answer a set of series, in batches: probabilities, targets or forecasts, sample first."""
        self.check(series)
        if isinstance(self.model, Frozen):
            return in_batches(self, series, apart=True)
        if isinstance(self.model, SegmentNetwork):
            return segment_answers(self, series)
        training, parts = self.training, []
        self.eval()
        for start in range(0, len(series.lengths), BATCH):
            rows = slice(start, start + BATCH)
            lengths = torch.from_numpy(series.lengths[rows])
            longest = int(lengths.max())
            u = torch.from_numpy(series.values[rows, :longest]).transpose(0, 1).to(self.mean.device)
            timed: dict[str, Any] = {}
            if series.elapsed is not None:
                gaps = torch.from_numpy(series.elapsed[rows, :longest]).transpose(0, 1)
                timed["elapsed"] = gaps.to(self.mean.device)
            parts.append(self(u, None, None if bool((lengths == longest).all()) else lengths, **timed)[0].cpu())
        self.train(training)
        return torch.cat(parts).numpy()

    def read(self, X: Any, times: Any = None) -> Series:
        """Read series, and the times of their observations for a model fitted with times."""
        series = as_series(X, type(self).__name__, self.missing)
        return series if times is None else with_times(series, times, type(self).__name__, self.clock)[0]

    def check(self, series: Series) -> None:
        """Raise if series lack the channels or the times that the model was fitted with."""
        if series.values.shape[2] != self.channels:
            raise ValueError(
                f"`X` of the {self.kind} must have {self.channels} channels, as in fit; got {series.values.shape[2]}."
            )
        if (series.elapsed is None) != (self.clock is None):
            must = "must be given: the model was fitted with times" if self.clock else "must be None, as in fit"
            raise ValueError(f"`times` of the {self.kind} {must}.")

    def predict(self, X: Any, times: Any = None) -> np.ndarray:
        """Return the label, the targets or the forecast of each series."""
        return self.finish(self.answers(self.read(X, times)))

    def predict_proba(self, X: Any, times: Any = None) -> np.ndarray:
        """Return the class probabilities of each series, in the order of `labels`."""
        if self.kind != "classifier":
            raise AttributeError(f"A {self.kind} has no class probabilities.")
        return self.answers(self.read(X, times))

    def finish(self, answers: np.ndarray) -> np.ndarray:
        """Turn answers into what the user gave: labels, targets or series."""
        if self.kind != "classifier":
            return self.shape(answers)
        if self.flat:
            return (answers > 0.5).astype(np.int64)
        assert self.labels is not None
        return np.asarray(self.labels[answers.argmax(-1)])

    def shape(self, answers: np.ndarray) -> np.ndarray:
        """Drop axes the user does not have: targets (n,) or (n, targets), forecasts (n, [channels,] horizon)."""
        if self.kind == "forecaster":
            answers = answers.swapaxes(-1, -2)
            return answers[..., 0, :] if self.flat else answers
        return answers[..., 0] if self.kind == "regressor" and self.flat else answers

    def stream(self) -> Stream | SegmentStream:
        """Return a stream: answers while a series arrives."""
        return SegmentStream(self) if isinstance(self.model, SegmentNetwork) else Stream(self)

    def streams(self) -> Streams:
        """Return a table of many streams that are pushed together."""
        if isinstance(self.model, SegmentNetwork):
            raise ValueError("A forecaster with network='segments' has no table of streams: use one `stream()` each.")
        return Streams(self)

    # --- the file ---------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the model file: one safetensors file, whole or not at all."""
        labels = None
        if self.labels is not None:
            kind = "U" if self.labels.dtype.kind == "U" else self.labels.dtype.str
            if kind not in LABEL_TYPES:
                raise ValueError(f"Labels in a model file must be strings or numbers; got {self.labels.dtype}.")
            labels = {"dtype": kind, "values": self.labels.tolist()}
        config = {
            "kind": self.kind,
            "channels": self.channels,
            "outputs": self.outputs,
            "architecture": self.architecture,
            "labels": labels,
            "horizon": self.horizon,
            "missing": self.missing,
            "flat": self.flat,
            "notes": self.notes,
        }
        if self.clock is not None:
            config["clock"] = self.clock._asdict()
        text = json.dumps(config)
        tensors = {name: value.detach().cpu().clone().contiguous() for name, value in self.state_dict().items()}
        metadata = {"format": FORMAT, "version": str(VERSION), "lem": __version__, "config": text}
        metadata["sha256"] = file_digest(metadata, tensors)
        write_atomically(Path(path), save(tensors, metadata=metadata))
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> "Predictor":
        """Read a model file; raise ValueError if it is damaged, not safe to read or from a newer version."""
        metadata, tensors = read_model_file(path)
        try:
            config = checked_config(json.loads(metadata["config"]), tensors)
            _check_shapes(config, tensors)
            predictor = cls(**with_labels(config))
            predictor.load_state_dict(tensors)
        except (KeyError, TypeError, ValueError, ArithmeticError, RuntimeError, RecursionError) as error:
            raise ValueError(f"Model file {path} cannot be used: {error}") from error
        return predictor.eval()


def standardise(
    u: Float[Tensor, "*axes channel"], mean: Tensor, scale: Tensor, missing: str, dtype: torch.dtype
) -> Float[Tensor, "*axes input"]:
    """Turn raw series into network input: (u - mean) / scale; with missing="mask", NaN becomes 0 and is marked."""
    x = ((u.to(torch.float64) - mean) / scale).to(dtype)
    if missing == "error":
        return x
    absent = torch.isnan(x)
    return torch.cat([x.masked_fill(absent, 0.0), absent.to(dtype)], dim=-1)


def channel_units(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and spread of each channel over all series."""
    inside = np.arange(series.values.shape[1]) < series.lengths[:, None]
    return _mean(series.values[inside]), _spread(series.values[inside])


def _mean(values: np.ndarray) -> np.ndarray:
    known = ~np.isnan(values)
    return np.where(known, values, 0.0).sum(0) / np.maximum(known.sum(0), 1)


def _spread(values: np.ndarray) -> np.ndarray:
    """Return the standard deviation over samples; 1 for a constant, which has no unit."""
    known = ~np.isnan(values)
    centred = np.where(known, values - _mean(values), 0.0)
    # Divided by its largest entry first, so that squares of extreme values neither overflow nor vanish.
    largest = np.abs(centred).max(0, initial=0.0)
    unit = np.where(largest > 0, largest, 1.0)
    spread = unit * np.sqrt(((centred / unit) ** 2).sum(0) / np.maximum(known.sum(0), 1))
    return np.where(spread > 1e-14 * np.abs(_mean(values)), spread, 1.0)


def _check_shapes(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Build the model without memory and compare all names and shapes with what the file holds."""
    with torch.device("meta"):
        skeleton = Predictor(**{**config, "labels": None})
    expected = {name: tuple(value.shape) for name, value in skeleton.state_dict().items()}
    got = {name: tuple(value.shape) for name, value in tensors.items()}
    if expected != got:
        wrong = sorted(name for name in expected.keys() | got.keys() if expected.get(name) != got.get(name))
        raise ValueError(f"its tensor {wrong[0]!r} must be {expected.get(wrong[0])}; got {got.get(wrong[0])}")
