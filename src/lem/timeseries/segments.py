"""The segment network: a recurrent layer over segments of a series that forecasts all future segments.

Each window of history is cut into segments of equal length, which a linear layer embeds and a recurrent layer reads.
The future segments are then decoded from its final state, all at once or one after the other. The window is centred on
its last value and divided by its own spread, and the forecast is scaled back, so that the forecast of a * x + b is a
times the forecast of x plus b.
"""

from typing import Any

import torch
from torch import Tensor, nn

from lem.nn.recurrent import Recurrent
from lem.shapes import Float
from lem.wording import check_choice

DECODERS = ("parallel", "recursive")
FLOOR = 0.05
"""Added, in quadrature, to the spread of a window, in units of the spread of its series: a flat window has none."""


class SegmentNetwork(nn.Module):
    """Forecast `horizon` steps of `channels` from windows of `look_back` steps.

    Called as `network(inputs) -> (forecast, ())`. The inputs (look_back + horizon, batch, features) hold, in this
    order: the values of the channels, 1 or 0 for each value that is known or missing, the past covariates, the future
    covariates and the static features; of the last `horizon` steps only the future covariates are read. The forecast
    is (batch, horizon, channels, quantiles).

    Args:
        channels: the series forecast together.
        horizon: the number of steps forecast.
        look_back: the number of steps read, a multiple of `segment`.
        segment: the length of a segment.
        past: the number of covariates known up to now.
        future: the number of covariates known in advance.
        static: the number of features that do not change.
        quantiles: the levels of the quantiles forecast.
        masked: whether the network has inputs that mark missing values.
        mixing: read the segments of all channels together; by default each channel is forecast from itself, with the
            same weights for all.
        decoder: "parallel" decodes all future segments from the state after the history; "recursive" decodes one,
            feeds it back and goes on.
        scaled: whether a window is divided by its spread.
        linear: whether a linear map of the window is added to the forecast.
        period: each step is then mapped from the steps whole periods before it, with the same weights for every place
            in the period; None maps all steps of the window to each.
        cell: the recurrent model, a name in `lem.CELLS`.
        hidden_size: its number of units.
        num_layers: its number of layers.
        dropout: of what the readout reads.
        cell_options: further options of the cell.
        own_units: whether each series is standardised by its own history.
        calendar: the calendar cycles among the future covariates, the last of which they are.
        transform: "log" if the values are logarithms.
    """

    covariate_mean: Tensor
    covariate_scale: Tensor
    widths: Tensor

    def __init__(
        self,
        channels: int,
        horizon: int,
        look_back: int,
        segment: int,
        *,
        past: int = 0,
        future: int = 0,
        static: int = 0,
        quantiles: tuple[float, ...] | list[float] = (0.5,),
        masked: bool = False,
        mixing: bool = False,
        decoder: str = "parallel",
        scaled: bool = True,
        linear: bool = True,
        period: int | None = None,
        cell: str = "lem",
        hidden_size: int = 128,
        num_layers: int = 1,
        dropout: float = 0.5,
        cell_options: dict[str, Any] | None = None,
        own_units: bool = False,
        calendar: tuple[str, ...] | list[str] = (),
        transform: str | None = None,
    ) -> None:
        super().__init__()
        if look_back % segment or look_back < segment or horizon < 1:
            raise ValueError(
                f"`look_back` of SegmentNetwork must be a multiple of `segment`, {segment}; got {look_back}."
            )
        check_choice("SegmentNetwork", "decoder", decoder, DECODERS)
        self.channels, self.horizon, self.look_back, self.segment = channels, horizon, look_back, segment
        self.quantiles, levels = tuple(quantiles), len(quantiles)
        self.own_units, self.calendar, self.transform = own_units, tuple(calendar), transform
        self.past, self.future, self.static, self.levels = past, future, static, levels
        self.masked, self.mixing, self.decoder, self.scaled = masked, mixing, decoder, scaled
        self.ahead = -(-horizon // segment)
        together = channels if mixing else 1
        self.groups = channels // together
        half = hidden_size // 2
        width = together * (2 if masked else 1) + past + future
        self.embed = nn.Linear(segment * width, hidden_size)
        self.recurrent = Recurrent(cell, hidden_size, hidden_size, num_layers, **(cell_options or {}))
        self.position = nn.Parameter(torch.randn(self.ahead, hidden_size - half) * 0.1)
        self.channel = nn.Parameter(torch.randn(self.groups, half) * 0.1)
        self.known_ahead = nn.Linear(segment * future, hidden_size, bias=False) if future else None
        self.from_static = nn.Linear(static, hidden_size, bias=False) if static else None
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(hidden_size, segment * together * levels)
        self.direct = nn.Linear(segment * future, segment * together * levels, bias=False) if future else None
        self.period = period
        self.linear = None
        if linear:
            self.linear = (
                nn.Linear(look_back // period, -(-horizon // period)) if period else nn.Linear(look_back, horizon)
            )
        for start_at_zero in (self.direct, self.linear):
            if start_at_zero is not None:
                for parameter in start_at_zero.parameters():
                    nn.init.zeros_(parameter)
        covariates = past + future + static
        self.register_buffer("covariate_mean", torch.zeros(covariates, dtype=torch.float64))
        self.register_buffer("covariate_scale", torch.ones(covariates, dtype=torch.float64))
        # The factors of the distances of the quantiles from the median: see `lem.timeseries.intervals`.
        self.register_buffer("widths", torch.ones(channels, levels, dtype=torch.float64))

    def forward(
        self, inputs: Float[Tensor, "time batch feature"], state: Any = None, lengths: Any = None
    ) -> tuple[Float[Tensor, "batch horizon channel quantile"], tuple[Tensor, ...]]:
        """Return the forecast in the units of the inputs, and no state."""
        k, end, batch = self.channels, self.look_back, inputs.shape[1]
        values, known = inputs[:end, :, :k], inputs[:end, :, k : 2 * k]
        centre, scale = window_units(values, known, self.scaled)
        normal = (values - centre) / scale * known
        covariates = inputs[..., 2 * k : 2 * k + self.past + self.future]
        static = inputs[0, :, 2 * k + self.past + self.future :]
        history = self._segments(normal, known, covariates[:end])
        _, final = self.recurrent(self._embedded(history, static))
        ahead = _cut(covariates[end:, :, self.past :], self.segment)
        forecast = self._decoded(final, ahead, static, covariates[end:], batch)
        if self.linear is not None:
            forecast = forecast + self._mapped(normal)[..., None]
        return forecast * scale[:, None, :, None] + centre[:, None, :, None], ()

    def _mapped(self, normal: Tensor) -> Tensor:
        """Return the linear map of a window: (batch, horizon, channel)."""
        assert self.linear is not None
        if self.period is None:
            return self.linear(normal.permute(1, 2, 0)).transpose(1, 2)
        rows = normal[-(len(normal) // self.period * self.period) :].view(-1, self.period, *normal.shape[1:])
        ahead = self.linear(rows.permute(2, 3, 1, 0))  # (batch, channel, place in the period, period ahead)
        return ahead.permute(0, 3, 2, 1).flatten(1, 2)[:, : self.horizon]

    def _segments(self, normal: Tensor, known: Tensor, covariates: Tensor) -> Tensor:
        """Return what the embedding reads, (segment, row, feature); a row is a window, or one channel of it."""
        parts = [normal, known] if self.masked else [normal]
        own = [_cut(part, self.segment, self.groups) for part in parts]
        if self.past + self.future:
            shared = _cut(covariates, self.segment)[:, :, None].expand(-1, -1, self.groups, -1)
            own.append(shared.flatten(1, 2))
        return torch.cat(own, dim=-1)

    def _embedded(self, segments: Tensor, static: Tensor) -> Tensor:
        embedded = self.embed(segments)
        if self.from_static is not None:
            embedded = embedded + self.from_static(static).repeat_interleave(self.groups, 0)
        return torch.relu(embedded)

    def _queries(self, ahead: Tensor, static: Tensor, batch: int) -> Tensor:
        """Return what the recurrent layer reads for each future segment: (ahead, row, unit)."""
        codes = [self.channel.expand(self.ahead, -1, -1), self.position[:, None].expand(-1, self.groups, -1)]
        queries = torch.cat(codes, dim=-1).repeat(1, batch, 1)
        if self.known_ahead is not None:
            queries = queries + self.known_ahead(ahead).repeat_interleave(self.groups, 1)
        if self.from_static is not None:
            queries = queries + self.from_static(static).repeat_interleave(self.groups, 0)
        return queries

    def _decoded(self, final: Any, ahead: Tensor, static: Tensor, covariates: Tensor, batch: int) -> Tensor:
        queries, kind = self._queries(ahead, static, batch), self.recurrent.state_type
        if self.decoder == "parallel":
            rows = queries.shape[1]
            start = [field.repeat(1, self.ahead, 1) for field in final]
            outputs, _ = self.recurrent(queries.reshape(1, self.ahead * rows, -1), kind(*start))
            raw = self.out(self.dropout(outputs)).view(self.ahead, rows, -1)
            return self._shaped(self._with_direct(raw, ahead), batch)
        parts, shared = [], _cut(covariates, self.segment)[:, :, None].expand(-1, -1, self.groups, -1).flatten(1, 2)
        for step in range(self.ahead):
            outputs, final = self.recurrent(queries[step : step + 1], final)
            raw = self._with_direct(self.out(self.dropout(outputs)), ahead[step : step + 1])
            parts.append(raw)
            # The median is fed back; all of it counts as known, and past covariates as their last values.
            seen = raw.view(1, raw.shape[1], -1, self.levels)[..., self.levels // 2]
            fed = [seen, torch.ones_like(seen)] if self.masked else [seen]
            fed += [shared[step : step + 1]] if self.past + self.future else []
            if step + 1 < self.ahead:
                _, final = self.recurrent(self._embedded(torch.cat(fed, dim=-1), static), final)
        return self._shaped(torch.cat(parts), batch)

    def _with_direct(self, raw: Tensor, ahead: Tensor) -> Tensor:
        return raw if self.direct is None else raw + self.direct(ahead).repeat_interleave(self.groups, 1)

    def _shaped(self, raw: Tensor, batch: int) -> Tensor:
        """Return (batch, horizon, channel, quantile) from (ahead, row, what is read out)."""
        split = raw.view(self.ahead, batch, self.groups, -1, self.segment, self.levels)
        return split.permute(1, 0, 4, 2, 3, 5).reshape(batch, -1, self.channels, self.levels)[:, : self.horizon]

    def count_parameters(self) -> int:
        """Return the number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters())


def window_units(values: Tensor, known: Tensor, scaled: bool) -> tuple[Tensor, Tensor]:
    """Return the last known value of each window and channel, and the spread of its known values: (batch, channel)."""
    steps = torch.arange(1, len(values) + 1, device=values.device, dtype=values.dtype)[:, None, None]
    last = (known * steps).argmax(0, keepdim=True)
    centre = values.gather(0, last)[0]
    if not scaled:
        return centre, torch.ones_like(centre)
    count = known.sum(0).clamp(min=1.0)
    mean = (values * known).sum(0) / count
    spread = (((values - mean) * known) ** 2).sum(0) / count
    return centre, torch.sqrt(spread + FLOOR**2)


def _cut(values: Tensor, segment: int, groups: int = 1) -> Tensor:
    """Cut (time, batch, feature) into (segments, batch * groups, segment * features of a group); the end is padded."""
    time, batch, features = values.shape
    short = -time % segment
    if short:
        values = torch.cat([values, values[-1:].expand(short, -1, -1)])
    parts = values.view(-1, segment, batch, groups, features // groups) if features else values.new_zeros(0)
    if not features:
        return values.new_zeros((time + short) // segment, batch, 0)
    return parts.permute(0, 2, 3, 4, 1).reshape(len(parts), batch * groups, -1)
