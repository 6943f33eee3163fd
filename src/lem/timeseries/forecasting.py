"""Forecasts of a trained segment network: of any horizon, in the user's units, with corrected quantiles."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from lem.timeseries.intervals import widened
from lem.timeseries.segment_training import run
from lem.timeseries.segments import SegmentNetwork
from lem.timeseries.series import Series
from lem.timeseries.windows import Panel, Units, WindowSplit

if TYPE_CHECKING:
    from lem.timeseries.predictor import Predictor


def network_of(predictor: "Predictor") -> SegmentNetwork:
    """Return the segment network of a predictor; raise if it has another."""
    if not isinstance(predictor.model, SegmentNetwork):
        raise ValueError("This needs a forecaster with network='segments'; the model predicts sample by sample.")
    return predictor.model


def units_of(predictor: "Predictor") -> Units:
    """Return the units of a trained predictor."""
    network = network_of(predictor)
    return Units(
        predictor.mean.cpu().numpy(),
        predictor.scale.cpu().numpy(),
        network.own_units,
        network.covariate_mean.cpu().numpy(),
        network.covariate_scale.cpu().numpy(),
    )


def set_units(predictor: "Predictor", units: Units) -> None:
    """Put units into a predictor."""
    network = network_of(predictor)
    predictor.mean.copy_(torch.from_numpy(units.mean))
    predictor.scale.copy_(torch.from_numpy(units.scale))
    predictor.target_mean.copy_(predictor.mean)
    predictor.target_scale.copy_(predictor.scale)
    network.covariate_mean.copy_(torch.from_numpy(units.covariate_mean))
    network.covariate_scale.copy_(torch.from_numpy(units.covariate_scale))


def transformed(values: np.ndarray, transform: str | None, whose: str) -> np.ndarray:
    """Return values as a network sees them: with transform="log" their logarithms."""
    if transform is None:
        return values
    known = values[~np.isnan(values)]
    if (known <= 0.0).any():
        raise ValueError(
            f"log=True of {whose} needs positive values; got {known.min():g}. Add a constant to the series, or "
            "leave `log` out."
        )
    return np.log(values)


def restored(values: np.ndarray, transform: str | None) -> np.ndarray:
    """Undo `transformed`."""
    return values if transform is None else np.exp(values)


def forecast(predictor: "Predictor", panel: Panel, horizon: int | None = None) -> np.ndarray:
    """Return quantile forecasts of what follows each series, (series, horizon, channel, quantile).

    Beyond the trained horizon the median is fed back; the interval of each further block is as wide as independent
    errors of the blocks before it and its own make it.

    Args:
        predictor: with a segment network.
        panel: the series as the network sees them (see `transformed`), with their covariates.
        horizon: the number of steps; by default as trained.
    """
    network = network_of(predictor)
    wanted = network.horizon if horizon is None else int(horizon)
    middle, units = len(network.quantiles) // 2, units_of(predictor)
    parts: list[np.ndarray] = []
    scales = [units.of_series(values) for values in panel.values]
    values, past, spread = list(panel.values), list(panel.past), 0.0
    while sum(part.shape[1] for part in parts) < wanted:
        origins = [np.array([len(each)]) for each in values]
        now = Panel(values, past, panel.future, panel.static)
        split = WindowSplit(now, units, network.look_back, network.horizon, origins, scales=scales)
        found = corrected(network, run(network, split)[0])
        median = found[..., middle : middle + 1]
        around = found - median
        signs = np.where(np.arange(found.shape[-1]) < middle, -1.0, 1.0)
        parts.append(median + signs * np.sqrt(spread**2 + around**2))
        spread = np.sqrt(spread**2 + around[:, -1:] ** 2)
        fed = [each[:, :, 0] * scale + mean for each, (mean, scale) in zip(median, scales)]
        values = [np.concatenate([before, more]) for before, more in zip(values, fed)]
        past = [np.concatenate([before, np.repeat(before[-1:], network.horizon, 0)]) for before in past]
    found = np.concatenate(parts, axis=1)[:, :wanted]
    mean, scale = (np.stack(part)[:, None, :, None] for part in zip(*scales))
    return restored(found * scale + mean, network.transform)


def corrected(network: SegmentNetwork, quantiles: np.ndarray) -> np.ndarray:
    """Return standardised quantiles with the conformal corrections of the network."""
    return widened(quantiles, network.widths.cpu().numpy())


def segment_answers(predictor: "Predictor", series: Series) -> np.ndarray:
    """Return the median forecasts of series without covariates, (series, horizon, channel)."""
    network = network_of(predictor)
    if network.past + network.future + network.static:
        raise ValueError(
            "The forecaster was trained with times or covariates, which are needed here too: use `predict` of "
            "LEMForecaster, or `lem forecast`."
        )
    values = [transformed(x[:n], network.transform, "the forecaster") for x, n in zip(series.values, series.lengths)]
    return forecast(predictor, Panel(values))[..., len(network.quantiles) // 2]
