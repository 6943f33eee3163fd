"""The part of `LEMForecaster` that forecasts by segments: covariates, intervals, backtests."""

from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from lem.spelling import nearest
from lem.timeseries.backtest import Backtest
from lem.timeseries.estimator import Memory, SeriesEstimator
from lem.timeseries.forecasting import forecast, network_of, set_units, transformed
from lem.timeseries.intervals import check_levels, coverages
from lem.timeseries.predictor import Predictor
from lem.timeseries.seasons import calendar_cycles, calendar_features, calendar_width, plan, season_from_values
from lem.timeseries.segment_training import (
    RECIPE,
    SMALL,
    Development,
    Spans,
    calibrate,
    first_origins,
    train,
)
from lem.timeseries.series import unpacked
from lem.timeseries.timeline import Step, are_regular_dates, as_nanoseconds, check_regular, find_step
from lem.timeseries.windows import Panel, Units
from lem.wording import check_choice

NETWORKS = ("auto", "segments", "steps")
STEPS_ONLY = (
    "hidden_size",
    "num_layers",
    "bidirectional",
    "dt",
    "dropout",
    "epochs",
    "batch_size",
    "learning_rate",
    "weight_decay",
    "validation_fraction",
    "patience",
    "window",
)
"""The parameters that only the sample-by-sample network has; those of segments are in `segment_options`."""
SEGMENT_OPTIONS = ("hidden_size", "num_layers", "dropout", "scaled", "linear", "period", *RECIPE)
MOST_SEASONS = 8
"""Forecasts of more seasons come from a smaller network, which is trained for fewer epochs: others overfit."""
FEWEST_STEPS = 4
"""Series shorter than this many horizons, and two seasons, are forecast sample by sample."""


class SegmentForecasting(SeriesEstimator):
    """What `LEMForecaster` does with network="segments"; its arguments are documented there."""

    horizon: int
    network: str
    season: int | str
    look_back: int | str
    segment: int | str
    mixing: bool
    decoder: str
    quantiles: tuple[float, ...]
    calendar: bool
    log: bool
    segment_options: dict[str, Any] | None
    _flat: bool

    # --- what is used -----------------------------------------------------------------------------------------------

    def _check_segment_parameters(self) -> None:
        check_choice(self._name, "network", self.network, NETWORKS)
        if self.network == "segments" and (given := self._changed(STEPS_ONLY)):
            raise ValueError(
                f"`{given[0]}` of {self._name} applies to network='steps' only; for segments, set it in "
                "`segment_options`."
            )
        for name in ("season", "look_back", "segment"):
            value = getattr(self, name)
            if value != "auto" and not (isinstance(value, int | np.integer) and value >= 1):
                raise ValueError(f"`{name}` of {self._name} must be 'auto' or a positive integer; got {value!r}.")
        for name in self.segment_options or {}:
            if name not in SEGMENT_OPTIONS:
                raise ValueError(
                    f"`segment_options` of {self._name} may have {', '.join(SEGMENT_OPTIONS)}; got {name!r}."
                    f"{nearest(name, SEGMENT_OPTIONS)}"
                )
        check_levels(self.quantiles, self._name)

    @property
    def _transform(self) -> str | None:
        return "log" if self.log else None

    def _chosen_network(self, lengths: np.ndarray, times: Any = None, time_unit: float | None = None) -> str:
        if self.network != "auto":
            return self.network
        if self._changed(STEPS_ONLY) or int(np.median(lengths)) < FEWEST_STEPS * self.horizon or lengths.max() < 24:
            return "steps"
        if time_unit is not None or (times is not None and not are_regular_dates(times, lengths)):
            return "steps"
        return "segments"

    # --- reading ----------------------------------------------------------------------------------------------------

    def _panel(
        self, X: Any, times: Any, past: Any, future: Any, static: Any, *, first: bool, ahead: int | None = None
    ) -> Panel:
        """Return the series as the network sees them; on the `first` call learn season, step and covariates."""
        series = self._series(X, first)
        rows, lengths = range(len(series.lengths)), series.lengths
        values = [transformed(series.values[i, : lengths[i]], self._transform, self._name) for i in rows]
        for i in rows:
            if np.isnan(values[i]).all():
                raise ValueError(f"Series {i} of `X` of {self._name} has no known value.")
        known_past = self._covariates(past, lengths, "past", 0)
        ahead = int(self.horizon) if ahead is None else ahead
        known_future = self._covariates(future, lengths, "future", 0 if first else ahead)
        moments = None if times is None else as_nanoseconds(times, lengths, self._name)
        if first:
            self._learn_times(values, moments)
        elif self.cycles_ and moments is None:
            raise ValueError(f"{self._name} was trained with `times`; give them here too.")
        if self.cycles_:
            assert moments is not None
            assert self.step_ is not None
            check_regular(moments, self.step_, [str(i) for i in rows], "times")
            calendars = [
                calendar_features(self.step_.series(int(m[0]), len(m) + ahead) / 1e9, self.cycles_) for m in moments
            ]
            if known_future:
                joined = []
                for given, calendar in zip(known_future, calendars):
                    shorter = min(len(given), len(calendar))
                    joined.append(np.concatenate([given[:shorter], calendar[:shorter]], axis=1))
                known_future = joined
            else:
                known_future = calendars
        features = np.zeros((len(lengths), 0)) if static is None else np.asarray(static, dtype=np.float64)
        if features.ndim != 2 or len(features) != len(lengths) or not np.isfinite(features).all():
            raise ValueError(
                f"`static` of {self._name} must be finite numbers of shape (n_series, features); got {features.shape}."
            )
        panel = Panel(values, known_past, known_future, features)
        widths = [part[0].shape[1] if part else 0 for part in (panel.past, panel.future)] + [features.shape[1]]
        if first:
            self._widths = widths
        elif widths != self._widths:
            names = ("past", "future", "static")
            wrong = next(k for k in range(3) if widths[k] != self._widths[k])
            raise ValueError(
                f"`{names[wrong]}` of {self._name} must have {self._widths[wrong]} columns (calendar features "
                f"included), as in fit; got {widths[wrong]}."
            )
        return panel

    def _covariates(self, given: Any, lengths: np.ndarray, name: str, ahead: int) -> list[np.ndarray]:
        if given is None:
            return []
        if isinstance(given, np.ndarray) and given.ndim == 2 and len(lengths) == 1:
            given = [given]
        items = [np.asarray(each, dtype=np.float64) for each in unpacked(given)]
        items = [each[None] if each.ndim == 1 else each for each in items]
        if len(items) != len(lengths):
            raise ValueError(f"`{name}` of {self._name} must have one entry per series; got {len(items)}.")
        for i, (each, length) in enumerate(zip(items, lengths)):
            if each.ndim != 2 or each.shape[1] < length + ahead:
                need = f"{length} steps of history" + (f" and {ahead} steps ahead" if ahead else "")
                raise ValueError(
                    f"`{name}` of {self._name} must be (covariates, time) and cover {need} for series {i}; it ends "
                    f"after {each.shape[-1]} steps. Give its later values, or forecast fewer steps."
                )
            if not np.isfinite(each).all():
                raise ValueError(f"`{name}` of {self._name} must be finite; it is not in series {i}. Fill it first.")
        return [each[:, :length].T if name == "past" else each.T for each, length in zip(items, lengths)]

    def _learn_times(self, values: list[np.ndarray], moments: list[np.ndarray] | None) -> None:
        self.step_: Step | None = None if moments is None else find_step(moments)
        self.cycles_: tuple[str, ...] = ()
        if moments is not None and self.step_ is not None:
            check_regular(moments, self.step_, [str(i) for i in range(len(moments))], "times")
            span = max(int(m[-1] - m[0]) for m in moments) / 1e9
            if self.calendar:
                self.cycles_ = calendar_cycles(self.step_.seconds, 0.7 * span)
        if self.season != "auto":
            self.season_ = int(self.season)
        else:
            self.season_ = self.step_.season if self.step_ is not None else season_from_values(values)

    # --- fitting ----------------------------------------------------------------------------------------------------

    def _new_segments(self, panel: Panel, spans: Spans) -> tuple[Predictor, Units]:
        """Return an untrained model for the first span of a panel."""
        options = dict(self.segment_options or {})
        horizon = int(self.horizon)
        look_back, segment = plan(self.season_, spans.train, horizon)
        if self.segment != "auto":
            segment = int(self.segment)
        if self.look_back != "auto":
            look_back = int(self.look_back)
            segment = segment if self.segment != "auto" else min(segment, look_back)
        look_back = max(look_back - look_back % segment, segment)
        seen = panel.until(spans.train)
        short = first_origins(spans.train, look_back, horizon).min() < look_back
        gaps = any(np.isnan(values).any() for values in panel.values)
        architecture: dict[str, Any] = {
            "network": "segments",
            "look_back": look_back,
            "segment": segment,
            "past": self._widths[0],
            "future": self._widths[1],
            "static": self._widths[2],
            "quantiles": list(check_levels(self.quantiles, self._name)),
            "masked": bool(gaps or short or self.missing == "mask"),
            "mixing": bool(self.mixing),
            "decoder": self.decoder,
            "cell": self.cell,
            # The trend of one short series would set the spread of its windows.
            "scaled": len(panel) > 1 or int(panel.lengths.sum()) > SMALL,
            **(
                {"period": self.season_, "hidden_size": 64}
                if self._is_long(panel) and look_back >= self.season_
                else {}
            ),
            "own_units": len(panel) > 1,
            "calendar": list(self.cycles_),
            "transform": self._transform,
            **({"cell_options": dict(self.cell_options)} if self.cell_options else {}),
            **{name: value for name, value in options.items() if name not in RECIPE},
        }
        predictor = Predictor(
            "forecaster",
            self.n_channels_in_,
            self.n_channels_in_,
            architecture,
            horizon=horizon,
            missing=self.missing,
            flat=self._flat,
        )
        units = Units.of(seen)
        set_units(predictor, units)
        return predictor, units

    def _is_long(self, panel: Panel) -> bool:
        """Return whether forecasts span so many seasons that few windows are independent."""
        return self.season_ > 1 and int(self.horizon) > MOST_SEASONS * self.season_ and int(panel.lengths.sum()) > SMALL

    def _train_segments(
        self, panel: Panel, spans: Spans, seed: int, until: int | None = None
    ) -> tuple[Predictor, Units, Development]:
        long = {"epochs": 3} if self._is_long(panel) else {}
        recipe = {**RECIPE, **long, **{k: v for k, v in (self.segment_options or {}).items() if k in RECIPE}}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            predictor, units = self._new_segments(panel, spans)
            network = network_of(predictor)
            levels = network.quantiles
            found = train(
                network,
                panel,
                units,
                levels,
                spans,
                recipe=recipe,
                until=until,
                seed=seed,
                device=self._place,
                report=self._report,
                should_stop=self._should_stop,
            )
        predictor.to(self._place).eval()
        found.predictor = predictor
        return predictor, units, found

    def _fit_segments(self, panel: Panel, backtest: Backtest | None, spans: Spans | None, refit: bool) -> None:
        """Choose the epoch and calibrate on parts of the series, then train on all of them."""
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        self.history_: list[dict[str, Any]] = []
        self._memory = Memory()
        self.dt_: float | None = None
        lengths = panel.lengths
        if backtest is not None and backtest.development is not None:
            found: Development = backtest.development
            self.predictor_ = found.predictor
        else:
            spans = spans or Spans.of(lengths, int(self.horizon))
            self.predictor_, units, found = self._train_segments(panel, spans, seed)
            found.widths, found.calibrated = calibrate(
                network_of(self.predictor_), panel, units, network_of(self.predictor_).quantiles, spans
            )
        refit = refit and not found.stopped and (backtest is not None or bool((spans.train < lengths).any()))  # type: ignore[union-attr]
        if refit:
            everything = Spans(lengths, lengths, lengths)
            self.predictor_, _, last = self._train_segments(panel, everything, seed, until=found.best_epoch)
            found.stopped = found.stopped or last.stopped
        network = network_of(self.predictor_)
        if found.widths is not None:
            network.widths.copy_(torch.from_numpy(found.widths))
        self.best_epoch_, self.stopped_ = found.best_epoch, found.stopped
        self.calibrated_ = found.calibrated
        self._tail = panel
        self.predictor_.notes = self._segment_notes(panel, found, refit)

    def _segment_notes(self, panel: Panel, found: Development, refitted: bool) -> dict[str, Any]:
        network = network_of(self.predictor_)
        return {
            "series": len(panel),
            "channels": self.n_channels_in_,
            "lengths": [int(panel.lengths.min()), int(panel.lengths.max())],
            "estimator": {
                k: list(v) if isinstance(v, tuple) else v
                for k, v in self.get_params().items()
                if v is None or isinstance(v, int | float | str | tuple)
            },
            "season": self.season_,
            "step": None if self.step_ is None else self.step_.plain(),
            "best_epoch": found.best_epoch,
            "epochs": found.epochs,
            "refitted": refitted,
            "calibrated": found.calibrated,
            "seconds": round(sum(record["seconds"] for record in found.history[-1:]), 3),
            "parameters": network.count_parameters(),
        }

    def _restore_segments(self) -> None:
        """Take from a loaded model file what `predict` needs."""
        network, notes = network_of(self.predictor_), self.predictor_.notes
        self.season_ = int(notes.get("season", 1))
        step = notes.get("step")
        self.step_ = None if step is None else Step(int(step["months"]), float(step["seconds"]))
        self.cycles_ = tuple(network.calendar)
        self._widths = [network.past, network.future, network.static]
        self.log = network.transform == "log"
        self.calibrated_ = int(notes.get("calibrated", 0))
        self.quantiles = network.quantiles

    # --- forecasts --------------------------------------------------------------------------------------------------

    def predict_quantiles(
        self,
        X: Any = None,
        *,
        horizon: int | None = None,
        times: Any = None,
        past: Any = None,
        future: Any = None,
        static: Any = None,
    ) -> np.ndarray:
        """Return the quantiles of the forecast of each series, with a last axis for the levels in `quantiles`.

        Args:
            X: the series; None continues those of `fit`.
            horizon: the number of steps; beyond the trained one the median is fed back.
            times: the dates of the steps, as in `fit`.
            past: covariates known up to the last step.
            future: covariates known in advance: of the history and of the steps ahead.
            static: features of each series.
        """
        check_is_fitted(self)
        network = network_of(self.predictor_)
        wanted = network.horizon if horizon is None else horizon
        if not isinstance(wanted, int | np.integer) or wanted < 1:
            raise ValueError(f"`horizon` of predict must be a positive integer; got {wanted!r}.")
        if X is None:
            panel = self._continued(future, int(wanted))
        else:
            panel = self._panel(X, times, past, future, static, first=False, ahead=int(wanted))
        found = forecast(self.predictor_, panel, int(wanted))  # (series, horizon, channel, quantile)
        found = found.transpose(0, 2, 1, 3)
        return found[:, 0] if self.predictor_.flat else found

    def _continued(self, future: Any, ahead: int) -> Panel:
        if not hasattr(self, "_tail"):
            raise ValueError("`X` must be given: the series of fit are not kept in a model file.")
        panel, own = self._tail, self._widths[1] - calendar_width(self.cycles_)
        if not self._widths[1]:
            return panel
        given = self._covariates(future, panel.lengths, "future", ahead) if own and future is not None else None
        if own and given is None:
            held = [each[:, :own] for each in panel.future]
            if any(len(each) < length + ahead for each, length in zip(held, panel.lengths)):
                raise ValueError(f"`future` must cover the history and the {ahead} steps ahead.")
            given = held
        parts = []
        for i, length in enumerate(panel.lengths):
            own_part = [] if given is None else [given[i][: length + ahead]]
            calendar = []
            if self.cycles_:
                assert self.step_ is not None
                calendar = [calendar_features(self.step_.series(self._starts[i], length + ahead) / 1e9, self.cycles_)]
            parts.append(np.concatenate([*own_part, *calendar], axis=1))
        return Panel(panel.values, panel.past, parts, panel.static)

    def predict_interval(self, X: Any = None, *, coverage: float = 0.8, **known: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and upper end of the interval with this nominal coverage, each shaped as a forecast.

        Args:
            X: the series; None continues those of `fit`.
            coverage: one of those that `quantiles` give, by default 0.8 or 0.95.
            known: horizon, times, past, future and static, as for `predict_quantiles`.
        """
        check_is_fitted(self)
        levels = network_of(self.predictor_).quantiles
        offered = coverages(levels)
        if not any(abs(coverage - each) < 1e-9 for each in offered):
            raise ValueError(
                f"`coverage` must be one of {', '.join(map(str, offered))}, which `quantiles` give; got {coverage}."
            )
        place = next(k for k, each in enumerate(offered, start=1) if abs(coverage - each) < 1e-9)
        found, middle = self.predict_quantiles(X, **known), len(levels) // 2
        return found[..., middle - place], found[..., middle + place]
