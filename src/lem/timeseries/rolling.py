"""Backtests of `LEMForecaster`: forecasts over rolling origins that training has not seen."""

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from lem.timeseries import backtest as scoring
from lem.timeseries.backtest import Backtest, BacktestError
from lem.timeseries.baselines import ridge_on_lags, seasonal_naive
from lem.timeseries.estimator import Memory
from lem.timeseries.forecasting import network_of, restored
from lem.timeseries.intervals import check_levels, conformal_widths, widened
from lem.timeseries.segment_forecaster import SegmentForecasting
from lem.timeseries.segment_training import MOST_ORIGINS, SMALL, Development, Spans, calibrate, origins_within, run
from lem.timeseries.windows import Panel, Units, WindowSplit
from lem.wording import InputError


class RollingForecasting(SegmentForecasting):
    """What `LEMForecaster` does to score itself."""

    def backtest(
        self,
        X: Any,
        *,
        start: float | int = 0.8,
        stride: int | None = None,
        refit: bool = False,
        times: Any = None,
        past: Any = None,
        future: Any = None,
        static: Any = None,
    ) -> Backtest:
        """Score forecasts over rolling origins that training has not seen, next to simple baselines.

        The model is trained on the steps before `start`, of which the last parts choose the epoch and calibrate the
        intervals (with at most 5,000 steps, it is then trained on all of them). It then forecasts at every `stride`
        steps from `start` on; intervals are corrected by the errors of the forecasts whose truth is known by then. The
        estimator itself is left as it is.

        Args:
            X: the series.
            start: the first origin: a step, or the part of each series before it.
            stride: the steps between two origins; by default the horizon.
            refit: train again at ten origins, instead of once before the first.
            times: the dates of the steps, as in `fit`.
            past: covariates known up to each step.
            future: covariates known in advance.
            static: features of each series.
        """
        self._check_parameters()
        worker = self.__class__(**self.get_params())
        worker._listener, worker._should_stop = self._listener, self._should_stop
        panel = worker._panel(X, times, past, future, static, first=True)
        return worker._backtest(panel, start, stride, refit)

    def _backtest(self, panel: Panel, start: float | int, stride: int | None, refit: bool) -> Backtest:
        horizon, lengths = int(self.horizon), panel.lengths
        stride = horizon if stride is None else int(stride)
        if stride < 1 or not (start > 0 and (isinstance(start, int | np.integer) or start < 1)):
            raise InputError(
                lambda option: (
                    f"{option('start')} must be a part between 0 and 1, and {option('stride')} at least 1; got "
                    f"{start!r} and {stride}."
                )
            )
        first = np.array([int(start) if isinstance(start, int | np.integer) else round(start * n) for n in lengths])
        first = np.minimum(first, lengths - horizon)
        if (first < horizon + 2).all():
            raise BacktestError(
                f"A backtest of {horizon} steps needs longer series, or a smaller `start`: got series of up to "
                f"{lengths.max()} steps, `start` {start!r} and `stride` {stride}."
            )
        first = np.where(first < horizon + 2, lengths, first)  # too short to be scored
        self.history_, self._memory = [], Memory()
        origins = [np.arange(a, n - horizon + 1, stride) for a, n in zip(first, lengths)]
        segments = self._chosen_network(first) == "segments"
        if not segments:
            raise BacktestError(
                f"A backtest needs network='segments', and series long enough for it: four times the horizon of "
                f"{horizon} and 24 steps before `start`. Forecast fewer steps, or set network='segments'."
            )
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        turns = np.array_split(np.arange(max(map(len, origins))), 10 if refit else 1)
        standard: list[np.ndarray] = []
        truths: list[np.ndarray] = []
        which: list[np.ndarray] = []
        steps: list[np.ndarray] = []
        development = None
        for turn in turns:
            now = [part[turn[turn < len(part)]] if len(turn) else part[:0] for part in origins]
            ends = first if not truths else np.array([part[0] if len(part) else n for part, n in zip(now, first)])
            if not any(map(len, now)):
                continue
            known = panel.until(ends)
            spans = Spans.of(known.lengths, horizon)
            predictor, units, found = self._train_segments(known, spans, seed)
            network = network_of(predictor)
            found.widths, found.calibrated = calibrate(network, known, units, network.quantiles, spans)
            development = development or found
            if int(known.lengths.sum()) <= SMALL and not found.stopped:
                # So little data is needed whole; the corrections come from the model that had not seen their span.
                everything = Spans(known.lengths, known.lengths, known.lengths)
                predictor, units, _ = self._train_segments(known, everything, seed, until=found.best_epoch)
                network = network_of(predictor)
                found.predictor = predictor
            scales = [units.of_series(values[: int(end)]) for values, end in zip(panel.values, spans.train)]
            split = WindowSplit(panel, units, network.look_back, horizon, now, scales=scales)
            raw, truth = run(network, split)
            raw, widths = self._rolled(network, known, units, spans, split, raw, truth, found.widths, stride)
            mean, scale = (np.stack([scales[i][part] for i in split.series])[:, None] for part in (0, 1))
            standard.append(restored(raw * scale[..., None] + mean[..., None], self._transform))
            truths.append(restored(truth * scale + mean, self._transform))
            which.append(split.series)
            steps.append(split.steps_of)
            if widths is not None and not refit:
                found.widths = widths
                found.calibrated += len(split)
        assert development is not None
        quantiles, truth = np.concatenate(standard), np.concatenate(truths)
        series, step = np.concatenate(which), np.concatenate(steps)
        return self._scored(panel, first, quantiles, truth, series, step, development)

    def _rolled(
        self,
        network: Any,
        known: Panel,
        units: Units,
        spans: Spans,
        split: WindowSplit,
        raw: np.ndarray,
        truth: np.ndarray,
        widths: np.ndarray | None,
        stride: int,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Correct the quantiles at each origin by the errors of those forecasts whose truth is known by then."""
        levels, horizon = network.quantiles, network.horizon
        if widths is None:
            return raw, None
        before = origins_within(spans.valid, spans.end, horizon, MOST_ORIGINS)
        scales = [units.of_series(values[: int(end)]) for values, end in zip(known.values, spans.train)]
        earlier = WindowSplit(known, units, network.look_back, horizon, before, scales=scales)
        seen, happened = run(network, earlier)
        # Of the first origin on: the clock of each series begins with its own.
        starts = spans.end[split.series]
        clock = split.steps_of - starts
        order, done = np.argsort(clock, kind="stable"), np.empty_like(raw)
        memory = max(len(seen), 100)
        # Each new forecast stands for as much time as those it follows, which lie closer together.
        gaps = [np.diff(part) for part in before if len(part) > 1]
        apart = float(np.median(np.concatenate(gaps))) if gaps else horizon
        often = max(1, round(stride / apart))
        for part in np.array_split(order, min(50, len(np.unique(clock)))):
            now = clock[part].min()
            past = order[clock[order] + horizon <= now]
            quantiles = np.concatenate([seen, raw[past].repeat(often, 0)])[-memory:]
            truths = np.concatenate([happened, truth[past].repeat(often, 0)])[-memory:]
            done[part] = widened(raw[part], conformal_widths(quantiles, truths, levels))
        quantiles = np.concatenate([seen, raw[order].repeat(often, 0)])[-memory:]
        truths = np.concatenate([happened, truth[order].repeat(often, 0)])[-memory:]
        return done, conformal_widths(quantiles, truths, levels)

    def _scored(
        self,
        panel: Panel,
        first: np.ndarray,
        quantiles: np.ndarray,
        truth: np.ndarray,
        series: np.ndarray,
        steps: np.ndarray,
        development: Development,
    ) -> Backtest:
        horizon, season = int(self.horizon), self.season_
        plain = [restored(values, self._transform) for values in panel.values]
        scale = np.stack([scoring.naive_scale(plain[i][: first[i]], season) for i in range(len(plain))])
        histories = [plain[i][:step] for i, step in zip(series, steps)]
        levels = check_levels(self.quantiles, self._name)
        forecasts = {
            "LEM" if self.cell == "lem" else self.cell: quantiles[..., len(levels) // 2],
            "seasonal naive": np.stack([seasonal_naive(history, horizon, season) for history in histories]),
        }
        ridge = ridge_on_lags([values[:end] for values, end in zip(plain, first)], horizon, season)
        if ridge is not None:
            forecasts["ridge on lags"] = ridge(histories)
        scores, by_channel, by_step = scoring.summary(truth, forecasts, scale[series], quantiles, levels)
        share = float(np.mean(first / panel.lengths))
        spans = f"trained, chosen and calibrated on the first {100 * share:.0f} %, scored on the rest"
        return Backtest(
            scores,
            by_channel,
            by_step,
            len(truth),
            horizon,
            season,
            spans,
            truth,
            forecasts,
            quantiles if len(levels) > 1 else None,
            levels,
            series,
            steps,
            development,
        )
