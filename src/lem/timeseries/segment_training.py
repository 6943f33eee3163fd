"""Train a segment network: choose its epoch on one span, correct its intervals on a later one, refit on everything."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from lem.timeseries.intervals import absolute_error, conformal_widths, in_order, pinball_loss
from lem.timeseries.ridge import fit_ridge
from lem.timeseries.segments import SegmentNetwork, window_units
from lem.timeseries.windows import FEWEST_KNOWN, Panel, Units, WindowSplit
from lem.training.loop import Event, evaluate, fit
from lem.training.metrics import Metric
from lem.training.store import Memory

ROWS = 448
"""About this many segments are read at once in training: windows times channels."""
MOST_ORIGINS = 1500
"""The most windows on which an epoch is judged."""
SHARE = 0.15
"""The part of each series on which the epoch is chosen, and that on which intervals are corrected."""
RIDGE_NUMBERS, MOST_RIDGE_ROWS = 3_000_000, 20_000
"""The size of the ridge regression that a network starts with, and its most rows."""
SMALL = 5000
"""With at most this many steps in all, training begins with ridge regression, and a backtest trains once more."""
MANY = 20
"""With at least this many series, spans too short for two parts are shared out among the series."""
RECIPE: dict[str, Any] = {"epochs": 6, "updates": 120, "learning_rate": 1e-3, "batch_size": "auto"}
"""How a network is trained; `updates` are those of an epoch, so that long and short series cost the same."""


@dataclass
class Spans:
    """Where each series is divided: steps up to `train` are learned, up to `valid` judge, up to `end` calibrate.

    Attributes:
        train: of each series, the end of what is trained on.
        valid: of each series, the end of what the epoch is chosen on.
        end: of each series, the end of what intervals are corrected on.
    """

    train: np.ndarray
    valid: np.ndarray
    end: np.ndarray

    @classmethod
    def of(cls, lengths: np.ndarray, horizon: int) -> "Spans":
        """Divide series by default: 70 % to train, 15 % to choose, 15 % to calibrate, each at least a horizon."""
        part = np.maximum(np.round(SHARE * lengths).astype(int), horizon)
        least = horizon + FEWEST_KNOWN
        three, two = lengths - 2 * part >= least, lengths - part >= least
        train = np.where(three, lengths - 2 * part, np.where(two, lengths - part, lengths))
        valid = np.where(three, lengths - part, lengths)
        if not three.any() and int(two.sum()) >= MANY:  # some series choose, the others calibrate
            valid = np.where(np.arange(len(lengths)) % 2 == 0, valid, train)
        return cls(train, valid, lengths.copy())


@dataclass
class Development:
    """What training on a part of the series found.

    Attributes:
        best_epoch: the epoch chosen.
        epochs: the most epochs.
        history: one record per epoch.
        widths: the corrections of the quantiles, (channel, quantile).
        calibrated: the number of forecasts they come from.
        stopped: whether training was interrupted.
        predictor: the model.
    """

    best_epoch: int
    epochs: int
    history: list[dict[str, Any]] = field(default_factory=list)
    widths: np.ndarray | None = None
    calibrated: int = 0
    stopped: bool = False
    predictor: Any = field(default=None, repr=False)


def origins_within(begins: np.ndarray, ends: np.ndarray, horizon: int, most: int | None = None) -> list[np.ndarray]:
    """Return the steps of each series at which a forecast lies in a span; with `most`, about that many, evenly."""
    found = [np.arange(max(int(a), FEWEST_KNOWN), int(b) - horizon + 1) for a, b in zip(begins, ends)]
    total = sum(map(len, found))
    if most is not None and total > most:
        stride = -(-total // most)
        # Where there are more series than forecasts wanted, some series have none.
        found = [part[(i % stride) :: stride] for i, part in enumerate(found)]
    return found


def first_origins(ends: np.ndarray, look_back: int, horizon: int) -> np.ndarray:
    """Return the first step of each series that is forecast in training: after half of it where it is short."""
    return np.minimum(look_back, np.maximum((ends - horizon) // 2, FEWEST_KNOWN))


class _Last(Metric):
    """A metric by which the last epoch is the best."""

    def better(self, new: float, old: float | None) -> bool:
        """Return True."""
        return True


def train(
    network: SegmentNetwork,
    panel: Panel,
    units: Units,
    levels: tuple[float, ...],
    spans: Spans,
    *,
    recipe: dict[str, Any],
    until: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    report: Callable[[Event], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Development:
    """Train on the first span of a panel and keep the epoch that is best on the second.

    Args:
        network: it ends with the best weights.
        panel: the series.
        units: in which the network sees them.
        levels: the quantiles of its forecasts.
        spans: what is trained on and what the epoch is chosen on; without the latter the last epoch is kept.
        recipe: as `RECIPE`.
        until: stop after this epoch, which is kept, of the same schedule.
        seed: of the order of the windows.
        device: where to train.
        report: called as training goes on.
        should_stop: asked after every update; the best epoch so far is kept.
    """
    horizon, look_back = network.horizon, network.look_back
    scales = [units.of_series(values[: int(end)]) for values, end in zip(panel.values, spans.train)]
    learned = origins_within(first_origins(spans.train, look_back, horizon), spans.train, horizon)
    if not sum(map(len, learned)):
        raise ValueError(
            f"No series is long enough to learn forecasts of {horizon} steps from: the longest has "
            f"{int(spans.end.max())} steps. Forecast fewer steps, or give longer series."
        )
    judged = origins_within(spans.train, spans.valid, horizon, MOST_ORIGINS)
    size = recipe["batch_size"]
    size = max(16, min(256, ROWS // network.groups)) if size == "auto" else int(size)
    shared = (panel, units, look_back, horizon)
    learn = WindowSplit(*shared, learned, int(recipe["updates"]), scales)
    judge = WindowSplit(*shared, judged if sum(map(len, judged)) else [part[-1:] for part in learned], None, scales)
    metric = absolute_error(levels)
    kept, epochs = Memory(), int(recipe["epochs"])
    keeps_last = until is not None or not sum(map(len, judged))

    def halt() -> bool:
        return bool(should_stop and should_stop())

    history: list[dict[str, Any]] = []

    def listen(event: Event) -> None:
        if event.record is not None:
            history.append({k: event.record[k] for k in ("epoch", "loss", "valid", "learning_rate", "seconds")})
        if report is not None:
            report(event)

    if int(spans.train.sum()) <= SMALL:
        start_with_ridge(network, learn)
    at_start = {name: value.detach().clone() for name, value in network.state_dict().items()}
    before = None if keeps_last else evaluate(network, judge, metric=metric, batch_size=size)
    if until == 0:
        network.to(device).eval()
        return Development(0, epochs)
    network.train()
    try:
        progress = fit(
            network,
            learn,
            judge,
            loss=pinball_loss(levels),
            metric=_Last(metric.each, float, True) if keeps_last else metric,
            batch_size=size,
            epochs=epochs,
            learning_rate=float(recipe["learning_rate"]),
            schedule="one-cycle",
            clip_norm=1.0,
            seed=seed,
            device=device,
            store=kept,
            report=listen,
            should_stop=(lambda: halt() or len(history) >= until) if until is not None else halt,
        )
        best, stopped = progress.best_epoch, halt()
    except KeyboardInterrupt:
        best, stopped = 0, True
    if stopped:
        if not kept.best:
            raise KeyboardInterrupt("training was stopped before the end of its first epoch")
        network.load_state_dict(kept.best)
        best = best or min(history, key=lambda record: record["valid"])["epoch"]
    elif until is not None and kept.best:
        network.load_state_dict(kept.best)
    if before is not None and history and before < history[best - 1]["valid"]:  # ridge regression alone is better
        network.load_state_dict(at_start)
        best = 0
    network.to(device).eval()
    return Development(best, epochs, history, stopped=stopped)


@torch.inference_mode()
def run(network: SegmentNetwork, split: WindowSplit, batch_size: int = 256) -> tuple[np.ndarray, np.ndarray]:
    """Return the forecasts of all windows, (window, step, channel, quantile), and what followed, both standardised."""
    network.eval()
    place = next(network.parameters()).device
    size = max(batch_size // network.groups, 1)
    found, truth = [], []
    for step in range(-(-len(split) // size)):
        batch = split.batch(step, size)
        found.append(network(batch.inputs.to(place))[0].cpu().double().numpy())
        truth.append(batch.targets.double().numpy())
    return in_order(np.concatenate(found)), np.concatenate(truth)


@torch.no_grad()
def start_with_ridge(network: SegmentNetwork, split: WindowSplit) -> None:
    """Let a network begin as ridge regression with normal quantiles: short series teach it no better linear map.

    On long series this start is worse: the regression follows its training span too closely (see docs/log.md).
    """
    if network.linear is None or network.period is not None:
        return
    k = network.channels
    rows = int(np.clip(RIDGE_NUMBERS // network.look_back, 1000, MOST_RIDGE_ROWS))
    chosen = torch.linspace(0, len(split) - 1, min(max(rows // k, 50), len(split))).round().long()
    features, targets = [], []
    for part in chosen.split(256):
        batch = split.read(split.origins[part])
        values, known = batch.inputs[: network.look_back, :, :k], batch.inputs[: network.look_back, :, k : 2 * k]
        centre, scale = window_units(values, known, network.scaled)
        features.append(((values - centre) / scale * known).permute(1, 2, 0).flatten(0, 1).numpy())
        targets.append(((batch.targets - centre[:, None]) / scale[:, None]).transpose(1, 2).flatten(0, 1).numpy())
    x, y = np.concatenate(features).astype(np.float64), np.concatenate(targets).astype(np.float64)
    complete = ~np.isnan(y).any(axis=1)
    if complete.sum() < 8:
        return
    ridge = fit_ridge(x[complete], y[complete])
    network.linear.weight.copy_(torch.from_numpy(ridge.weight))
    network.linear.bias.copy_(torch.from_numpy(ridge.bias))
    error = float(np.sqrt(((ridge.left_out - y[complete][ridge.rows]) ** 2).mean()))
    network.out.weight.zero_()
    levels = torch.tensor([NormalDist().inv_cdf(q) for q in network.quantiles], dtype=torch.float64) * error
    together = network.out.bias.view(-1, network.levels)
    together.copy_(levels.expand_as(together))


def calibrate(
    network: SegmentNetwork, panel: Panel, units: Units, levels: tuple[float, ...], spans: Spans
) -> tuple[np.ndarray | None, int]:
    """Return the corrections of the quantiles from the last span, and from how many forecasts they come."""
    origins = origins_within(spans.valid, spans.end, network.horizon, MOST_ORIGINS)
    if not sum(map(len, origins)) or len(levels) < 3:
        return None, 0
    scales = [units.of_series(values[: int(end)]) for values, end in zip(panel.values, spans.train)]
    split = WindowSplit(panel, units, network.look_back, network.horizon, origins, scales=scales)
    quantiles, truth = run(network, split)
    return conformal_widths(quantiles, truth, levels), len(split)
