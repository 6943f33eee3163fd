"""Forecasts of a segment network while a series arrives."""

from typing import TYPE_CHECKING, Any

import numpy as np

from lem.timeseries.forecasting import forecast, network_of, transformed
from lem.timeseries.windows import Panel

if TYPE_CHECKING:
    from lem.timeseries.predictor import Predictor


class SegmentStream:
    """The last window of one series, from which a forecast can be asked at any time.

    A segment network centres each window on its last value, so its state is the window itself: `look_back` steps.

    Args:
        predictor: a forecaster with a segment network and without covariates.

    Examples:
        >>> import numpy as np
        >>> from lem import LEMForecaster
        >>> load = 20 + 5 * np.sin(2 * np.pi * np.arange(240) / 24)
        >>> small = {"hidden_size": 8, "epochs": 1, "updates": 5}  # for this example only
        >>> model = LEMForecaster(horizon=24, season=24, random_state=0, segment_options=small).fit(load[None])
        >>> stream = model.stream()
        >>> _ = stream.push(load[None])  # (channels, steps)
        >>> stream.forecast().shape
        (24,)
    """

    def __init__(self, predictor: "Predictor") -> None:
        network = network_of(predictor)
        if network.past + network.future + network.static:
            raise ValueError("A stream needs a forecaster without covariates: fit without `times`, `past`, `future`.")
        self.predictor, self.look_back = predictor, network.look_back
        self.reset()

    def reset(self) -> None:
        """Forget the series."""
        self._values = np.zeros((0, self.predictor.channels))

    def push(self, samples: Any) -> np.ndarray:
        """Take one step (channels,) or a chunk (channels, steps), and return the forecast after it."""
        chunk = np.asarray(samples, dtype=np.float64)
        chunk = chunk.reshape(-1, 1) if chunk.ndim < 2 else chunk
        if chunk.shape[0] != self.predictor.channels:
            raise ValueError(f"`samples` must have {self.predictor.channels} channels; got shape {np.shape(samples)}.")
        network = network_of(self.predictor)
        chunk = transformed(chunk.T, network.transform, "the stream")
        self._values = np.concatenate([self._values, chunk])[-self.look_back :]
        return self.forecast()

    def forecast(self, horizon: int | None = None) -> np.ndarray:
        """Return the forecast of what comes next, shaped as `predict` returns it for one series."""
        if not len(self._values):
            raise ValueError("`push` at least one sample before a forecast.")
        found = forecast(self.predictor, Panel([self._values]), horizon)
        answers = found[..., found.shape[-1] // 2]
        return self.predictor.shape(answers)[0]
