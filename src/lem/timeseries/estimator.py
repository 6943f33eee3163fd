"""What all estimators share: reading X, holding out, training, keeping."""

import inspect
import sys
from collections.abc import Callable
from contextlib import nullcontext
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from lem.analysis.certificate import advise_dt
from lem.nn.cells import CELLS
from lem.timeseries.batches import one_thread
from lem.timeseries.gaps import Clock, with_times
from lem.timeseries.predictor import Predictor
from lem.timeseries.schema import ON_MISSING
from lem.timeseries.segment_stream import SegmentStream
from lem.timeseries.series import Series, as_series, question_axes, unpacked
from lem.timeseries.stream import Stream, Streams
from lem.training.data import ArraySplit
from lem.training.loop import Event, fit
from lem.training.metrics import Loss, Metric
from lem.training.options import check_device
from lem.training.store import Memory
from lem.wording import InputError, check_choice

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils import check_array, check_random_state
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "The estimators need scikit-learn. In a checkout of lem, run: pip install '.[sklearn]'"
    ) from error

FEWEST = 10
"""Below this many series none are held out: a validation set of one series is useless."""
SMALL_STEP = 400_000
"""A network with fewer products per gate and time step is trained on one thread (see `one_thread`)."""


def time_step(length: float) -> float:
    """Return the time step for series of this length: that of `advise_dt`, held in the paper's 1/sqrt(N) <= dt <= 1.

    The adviser takes the largest dt with which the first step of an untrained LEM still moves a float32 gradient: 1 up
    to some 60 steps, then falling as 1/N. The paper's remark on the choice of dt gives the lower end: with 1/sqrt(N)
    gradients grow at most linearly with the length.

    Examples:
        >>> from lem.timeseries import time_step
        >>> [round(time_step(length), 3) for length in (30, 300, 3000)]
        [1.0, 0.215, 0.021]
    """
    steps = max(round(length), 1)
    return min(1.0, max(advise_dt(steps).dt, steps**-0.5))


Part = tuple[Series, np.ndarray]
"""Some series and their targets."""


class _Last(Metric):
    """A metric by which the last epoch is the best, for use if nothing is held out."""

    def better(self, new: float, old: float | None) -> bool:
        """Return True."""
        return True


class SeriesEstimator(BaseEstimator):
    """What all three share: reading X, holding out, training, keeping.

    Args:
        hidden_size: the number of units of each layer.
        cell: the recurrent model, a name in `lem.CELLS`.
        num_layers: how many layers are stacked.
        bidirectional: whether each layer also runs backwards; such a model cannot stream.
        dt: the time step of cells that have one; "auto" takes `time_step` of the mean length.
        cell_options: further options of the cell.
        dropout: the probability of dropping what the readout reads, and of dropping between layers.
        epochs: the most passes over the data.
        batch_size: series per update; "auto" takes a twentieth of the series, between 16 and 128.
        learning_rate: the largest rate of the one-cycle schedule.
        weight_decay: the L2 term of Adam.
        validation_fraction: the part of the series held out to choose the best epoch; 0 keeps the last one.
        patience: stop after this many epochs without improvement on the held-out part; None runs all epochs and still
            keeps the best.
        missing: "error" refuses NaN and names the place; "mask" feeds zeros and a channel that marks them.
        random_state: of the weights, the split and the order of the batches.
        device: where to train and predict; "auto" takes a GPU if there is one.
        verbose: print the learning curve to standard error after every this many epochs.

    Attributes:
        predictor_: the trained `lem.timeseries.predictor.Predictor`; its file is written by `save`.
        history_: one record per epoch: epoch, loss, valid, learning_rate, seconds.
        best_epoch_: the epoch whose weights were kept.
        dt_: the time step used, None for cells that have none.
        n_channels_in_: the channels of the series.
        time_unit_: the time that counts as one step, for a model fitted with times, else None; in seconds for dates
            and durations.
    """

    _kind: ClassVar[str]
    _listener: Callable[[Any], None] | None = None
    """Told how training goes on; set by `fit_file`, which also sets what asks training to stop."""
    _should_stop: Callable[[], bool] | None = None
    best_epoch_: int
    _score_name: ClassVar[str] = "held-out squared error"
    """What the held-out part is judged by, as `verbose` prints it."""
    _fewest: ClassVar[int] = 16
    """The smallest batch size that "auto" takes."""

    def __init__(
        self,
        hidden_size: int = 64,
        *,
        cell: str = "lem",
        num_layers: int = 1,
        bidirectional: bool = False,
        dt: float | str = "auto",
        cell_options: dict[str, Any] | None = None,
        dropout: float = 0.0,
        epochs: int = 150,
        batch_size: int | str = "auto",
        learning_rate: float = 5e-3,
        weight_decay: float = 0.0,
        validation_fraction: float = 0.2,
        patience: int | None = 100,
        missing: str = "error",
        random_state: Any = None,
        device: str = "cpu",
        verbose: int = 0,
    ) -> None:
        self.hidden_size = hidden_size
        self.cell = cell
        self.num_layers = num_layers
        self.bidirectional = bidirectional
        self.dt = dt
        self.cell_options = cell_options
        self.dropout = dropout
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.missing = missing
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _keep(self, arguments: dict[str, Any]) -> None:
        """Keep what a constructor got, its `locals()`, under the same names, as scikit-learn expects."""
        for name, value in arguments.items():
            if name != "self":
                setattr(self, name, value)

    def _changed(self, names: tuple[str, ...]) -> list[str]:
        """Return which of these parameters differ from their defaults."""
        defaults = inspect.signature(type(self).__init__).parameters
        return [name for name in names if getattr(self, name) != defaults[name].default]

    # --- what a kind of estimator defines ---------------------------------------------------------------------------

    def _targets(self, y: Any, first: bool) -> np.ndarray:
        """Check y and return it as the model's targets; on the `first` call take the classes or sizes from it."""
        raise NotImplementedError

    def _new_predictor(self, series: Series, targets: np.ndarray, architecture: dict[str, Any]) -> Predictor:
        raise NotImplementedError

    def _split(self, series: Series, targets: np.ndarray) -> ArraySplit:
        """Return standardised series with their targets, as the training loop reads them."""
        raise NotImplementedError

    def _span(self, series: Series) -> float:
        """Return the length over which the model must remember, in usual steps: it sets dt."""
        if series.elapsed is None:
            return float(series.lengths.mean())
        inside = np.arange(series.elapsed.shape[1]) < series.lengths[:, None]
        return float((series.elapsed * inside).sum(1).mean())

    def _loss(self, targets: np.ndarray) -> Loss:
        return squared_error

    def _metric(self, targets: np.ndarray) -> Metric:
        """Return what the best epoch is chosen by."""
        return Metric(squared_error, float, higher_is_better=False)

    # --- scikit-learn's interface -----------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, *, times: Any = None, time_unit: float | None = None) -> Self:
        """Train on series X and their targets y.

        Args:
            X: the series.
            y: their targets.
            times: for series that are not sampled regularly, the times of their observations: one array per series.
            time_unit: the time that counts as one step, in seconds for dates; the median gap by default.
        """
        series, targets = self._read(X, y, True, times, time_unit)
        self._fit_trained(series, targets, None, None)
        return self

    def _fit_trained(self, series: Series, targets: np.ndarray, weights: np.ndarray | None, held: Part | None) -> None:
        """Train a network; `held` is what the epoch is chosen on, by default a part of the series."""
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._build(series, targets)
            train: Part = (series, targets)
            valid, rows = held, np.arange(len(targets))
            if held is None:
                train, valid, rows = self._hold_out(series, targets, np.random.RandomState(seed))
            split = self._split(*train)
            if weights is not None:
                split = _weighted(split, weights[rows])
            self._train(split, None if valid is None else self._split(*valid), train[1], seed)
        self.predictor_.notes = self._notes(series, 0 if valid is None else len(valid[1]))

    def partial_fit(self, X: Any, y: Any = None, *, times: Any = None) -> Self:
        """Train for one more epoch on further series; the units are those of the first call."""
        first = not hasattr(self, "predictor_")
        series, targets = self._read(X, y, first, times)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if first:
                self._build(series, targets)
            self._train(self._split(series, targets), None, targets, seed, one_more=True)
        self.predictor_.notes = self._notes(series, 0)
        return self

    def predict(self, X: Any, *, times: Any = None) -> np.ndarray:
        """Return the label, the targets or the forecast of each series; `times` as in `fit`."""
        check_is_fitted(self)
        return self.predictor_.finish(self.predictor_.answers(self._timed(X, times)))

    def save(self, path: str | Path) -> Path:
        """Write the trained model, its preprocessing and its labels to one safetensors file."""
        check_is_fitted(self)
        return self.predictor_.save(path)

    def stream(self) -> Stream | SegmentStream:
        """Return a `Stream`: answers while the series arrives, sample by sample or in chunks."""
        check_is_fitted(self)
        return self.predictor_.stream()

    def streams(self) -> Streams:
        """Return a table of many streams that are pushed together."""
        check_is_fitted(self)
        return self.predictor_.streams()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "mask"
        tags.input_tags.three_d_array = True
        return tags

    # --- reading ----------------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def _place(self) -> str:
        """The device that `device` names."""
        return check_device(self.device, self._name)

    @property
    def time_unit_(self) -> float | None:
        """The time that counts as one step, for a model fitted with times."""
        return self.predictor_.clock.unit if self.predictor_.clock is not None else None

    def _read(
        self, X: Any, y: Any, first: bool, times: Any = None, time_unit: float | None = None
    ) -> tuple[Series, np.ndarray]:
        self._check_parameters()
        if times is None and time_unit is not None:
            raise ValueError(f"`time_unit` of {self._name} must be None without `times`; got {time_unit!r}.")
        series = self._series(X, first) if first else self._timed(X, times)
        if first:
            self._clock: Clock | None = None
            if times is not None:
                series, self._clock = with_times(series, times, self._name, None, time_unit)
        if y is not None:
            check_consistent_length(series.lengths, y)
        return series, self._targets(y, first)

    def _timed(self, X: Any, times: Any) -> Series:
        """Read series of a fitted model, with the times of their observations if it was fitted with times."""
        series, clock = self._series(X, first=False), self.predictor_.clock
        if (times is None) != (clock is None):
            must = "None, as in fit" if clock is None else "given, as in fit"
            raise ValueError(f"`times` of {self._name} must be {must}.")
        return series if times is None else with_times(series, times, self._name, clock)[0]

    def _series(self, X: Any, first: bool) -> Series:
        X = unpacked(X)
        if isinstance(X, np.ndarray) and X.ndim == 1 and X.dtype != object:
            as_series(
                X, self._name, self.missing
            )  # raises, with advice for series instead of scikit-learn's for features
        if is_table(X) and (first or self._kind != "forecaster"):
            X = validate_data(self, X, reset=first, ensure_all_finite=False, dtype="numeric")
        elif is_table(X):  # a history may be of any length
            X = check_array(X, ensure_all_finite=False, dtype="numeric", estimator=self)
        elif first and hasattr(self, "n_features_in_"):
            del self.n_features_in_
        series = as_series(X, self._name, self.missing)
        channels = series.values.shape[2]
        if first:
            question_axes(series, self._name)
            self.n_channels_in_ = channels
        elif channels != self.n_channels_in_:
            raise ValueError(
                f"`X` of {self._name} must have {self.n_channels_in_} channels, as in fit; got {channels}."
            )
        return series

    def _check_parameters(self) -> None:
        def check(name: str, good: bool, must: str) -> None:
            if not good:
                got = getattr(self, name)
                raise InputError(lambda option: f"{option(name)} of {self._name} must be {must}; got {got!r}.")

        whole = (int, np.integer)
        check("hidden_size", isinstance(self.hidden_size, whole) and self.hidden_size > 0, "a positive integer")
        check("num_layers", isinstance(self.num_layers, whole) and self.num_layers > 0, "a positive integer")
        check("epochs", isinstance(self.epochs, whole) and self.epochs > 0, "a positive integer")
        sized = isinstance(self.batch_size, whole) and self.batch_size > 0
        check("batch_size", self.batch_size == "auto" or sized, "'auto' or a positive integer")
        check("dt", self.dt == "auto" or isinstance(self.dt, Real), "'auto' or a number")
        for name in ("validation_fraction", "dropout"):
            value = getattr(self, name)
            check(name, isinstance(value, Real) and 0.0 <= float(value) < 1.0, "a number in [0, 1)")
        check("cell_options", isinstance(self.cell_options, dict | None), "a dict or None")
        check_device(self.device, self._name)
        check_choice(self._name, "missing", self.missing, ON_MISSING)

    # --- building and training --------------------------------------------------------------------------------------

    def _build(self, series: Series, targets: np.ndarray) -> None:
        options = dict(self.cell_options or {})
        self.dt_: float | None = None
        if self.cell in CELLS and "dt" in inspect.signature(CELLS[self.cell]).parameters:
            self.dt_ = time_step(self._span(series)) if self.dt == "auto" else float(self.dt)
            options["dt"] = self.dt_
        elif self.dt != "auto":
            raise ValueError(
                f"`dt` of {self._name} must be 'auto' for cell {self.cell!r}, which has none; got {self.dt}."
            )
        architecture = {
            "cell": self.cell,
            "hidden_size": int(self.hidden_size),
            "num_layers": int(self.num_layers),
            "bidirectional": bool(self.bidirectional),
            "dropout": float(self.dropout) if self.num_layers > 1 else 0.0,
            "output_dropout": float(self.dropout),
            "pool": "both" if self._kind != "forecaster" else "last",
            **options,
        }
        predictor = self._new_predictor(series, targets, architecture)
        if series.elapsed is not None and (reason := predictor.model.cells[0].refuse_elapsed()) is not None:
            raise ValueError(f"`times` of {self._name} must be None: {reason}.")
        predictor.clock = self._clock
        self.predictor_ = predictor
        self.history_: list[dict[str, Any]] = []
        self._memory = Memory()

    def _hold_out(self, series: Series, targets: np.ndarray, random: Any) -> tuple[Part, Part | None, np.ndarray]:
        """Split the samples into training and validation, the classes in equal parts; None holds nothing out.

        Also return which samples are trained on.
        """
        n = len(series.lengths)
        if self.validation_fraction == 0.0 or n < FEWEST:
            return (series, targets), None, np.arange(n)
        groups = targets if self._kind == "classifier" else np.zeros(n, dtype=int)
        held = np.zeros(n, dtype=bool)
        for group in np.unique(groups):
            rows = random.permutation(np.flatnonzero(groups == group))
            held[rows[: round(self.validation_fraction * len(rows))]] = True
        if not held.any():
            held[random.randint(n)] = True
        return (series.take(~held), targets[~held]), (series.take(held), targets[held]), np.flatnonzero(~held)

    def _train(
        self, train: ArraySplit, valid: ArraySplit | None, targets: np.ndarray, seed: int, one_more: bool = False
    ) -> None:
        kept = Memory()
        memory = self._memory if one_more else kept
        done = self._memory.state["progress"]["epoch"] if one_more and self._memory.state is not None else 0
        metric = self._metric(targets)
        weighted = isinstance(train, _WeightedSplit)
        batch_size = int(self.batch_size) if self.batch_size != "auto" else 0
        batch_size = batch_size or min(128, max(self._fewest, len(train) // 20))
        small = self._place == "cpu" and batch_size * int(self.hidden_size) ** 2 < SMALL_STEP
        try:
            with one_thread() if small else nullcontext():
                progress = fit(
                    self.predictor_.model,
                    train,
                    train if valid is None else valid,
                    loss=_each_weighted(self._loss(targets)) if weighted else self._loss(targets),
                    metric=_Last(metric.each, float, True) if valid is None else metric,
                    batch_size=batch_size,
                    epochs=done + 1 if one_more else int(self.epochs),
                    learning_rate=self.learning_rate,
                    weight_decay=self.weight_decay,
                    schedule="constant" if one_more else "one-cycle",
                    clip_norm=1.0,
                    patience=None if valid is None else self.patience,
                    seed=seed,
                    device=self._place,
                    store=memory,
                    report=self._report,
                    should_stop=self._should_stop,
                )
        except KeyboardInterrupt:
            if not kept.best:
                raise
            self.predictor_.model.load_state_dict(kept.best)
            self.stopped_ = True
            self._say(f"interrupted: the weights of epoch {self.best_epoch_}, the best so far, are kept")
            self.predictor_.to(self._place).eval()
            return
        self.stopped_ = not one_more and progress.epoch < int(self.epochs) and not progress.stopped
        if self.stopped_:
            if not kept.best:
                raise KeyboardInterrupt("training was stopped before the end of its first epoch")
            self.predictor_.model.load_state_dict(kept.best)
        self.best_epoch_ = progress.best_epoch
        self.predictor_.to(self._place).eval()

    def _say(self, text: str) -> None:
        print(f"{self._name} {text}", file=sys.stderr)

    def _report(self, event: Event) -> None:
        if self._listener is not None:
            self._listener(event)
        if event.record is None:
            return
        record = {key: event.record[key] for key in ("epoch", "loss", "valid", "learning_rate", "seconds")}
        self.history_.append(record)
        self.best_epoch_ = event.progress.best_epoch
        if self.verbose and (record["epoch"] % self.verbose == 0 or record["epoch"] == event.epochs):
            left = record["seconds"] * (event.epochs / record["epoch"] - 1.0)
            text = f"epoch {record['epoch']}/{event.epochs}  loss {record['loss']:.4g}"
            text += f"  {self._score_name} {record['valid']:.4g}"
            self._say(f"{text}  {record['seconds']:.1f} s, at most {left:.1f} s left")

    def _data_notes(self, series: Series) -> dict[str, Any]:
        return {
            "series": len(series.lengths),
            "channels": series.values.shape[2],
            "lengths": [int(series.lengths.min()), int(series.lengths.max())],
            "estimator": {k: v for k, v in self.get_params().items() if v is None or isinstance(v, int | float | str)},
        }

    def _notes(self, series: Series, held_out: int) -> dict[str, Any]:
        """Say for the model card what was trained on, and how it went."""
        return {
            **self._data_notes(series),
            "held_out": held_out,
            "best_epoch": self.best_epoch_,
            "epochs": len(self.history_),
            "valid": self.history_[self.best_epoch_ - 1]["valid"],
            "seconds": self.history_[-1]["seconds"],
            "dt": self.dt_,
            "parameters": self.predictor_.model.count_parameters()["cell_and_readout"],
        }

    def _standard(self, series: Series) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return inputs, lengths and elapsed times as training reads them."""
        inputs = self.predictor_.standardise(torch.from_numpy(series.values))
        full = bool((series.lengths == series.values.shape[1]).all())
        elapsed = None if series.elapsed is None else torch.from_numpy(series.elapsed).to(inputs.dtype)
        return inputs, None if full else torch.from_numpy(series.lengths), elapsed


class _WeightedSplit(ArraySplit):
    """A split whose targets carry the weight of their sample as a last column."""


def _weighted(split: ArraySplit, weights: np.ndarray) -> ArraySplit:
    targets = split.targets if split.targets.dim() == 2 else split.targets[:, None]
    # The loop divides by all columns of the targets, the added one too.
    columns = targets.shape[1]
    column = torch.from_numpy(weights / weights.mean() * (columns + 1) / columns)[:, None]
    wanted = torch.cat([targets.to(torch.float64), column], dim=1)
    return _WeightedSplit(split.inputs, wanted, split.lengths, elapsed=split.elapsed)


def _each_weighted(loss: Loss) -> Loss:
    def weighted(prediction: Tensor, target: Tensor) -> Tensor:
        wanted, weight = target[:, :-1], target[:, -1]
        if wanted.shape[1] == 1 and prediction.shape[1] > 1:  # classes
            return loss(prediction, wanted[:, 0].long()) * weight
        return (loss(prediction, wanted).view(len(weight), -1) * weight[:, None]).to(prediction.dtype)

    return weighted


def is_table(X: Any) -> bool:
    """Return whether X is a table of numbers, which scikit-learn checks by its own rules, rather than series."""
    if isinstance(X, list | tuple):
        return (
            all(isinstance(row, list | tuple) or np.ndim(row) < 2 for row in X)
            and len({np.size(row) for row in X}) <= 1
        )
    if isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1 and len(X) and np.ndim(X[0]) > 0:
        return False
    return len(getattr(X, "shape", (0, 0))) != 3


def squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the squared error of every known target; NaN marks those that are not known."""
    known = ~torch.isnan(target)
    return (prediction[known] - target[known]) ** 2
