"""Apply the analysis tools to a model file and a file of series: time scales and certificates."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lem.analysis.certificate import Advice, Certificate, certify_model, lem_cells
from lem.analysis.timescales import GateScales, Scales, parts, time_scales
from lem.nn.cells import LEMCell
from lem.nn.model import SequenceModel
from lem.timeseries.answering import schema_of
from lem.timeseries.frozen import Frozen
from lem.timeseries.predictor import Predictor
from lem.timeseries.series import Series

BATCH = 64


def trained_model(predictor: Predictor) -> SequenceModel:
    """Return the network of a model file, which must be made of trained layers."""
    model: Any = predictor.model
    if not isinstance(model, SequenceModel):
        raise ValueError(
            "This model file has no trained recurrent layer over time steps to certify: its features come from fixed "
            "random layers, through which no gradient passes, or it forecasts by segments."
        )
    return model


def predictor_scales(predictor: Predictor, X: Any, interval: float | None = None, times: Any = None) -> Scales:
    """Count the gates of a model over series.

    The interval between two steps is that of the training data by default, or the time that a model with `times` counts
    as one step. Of frozen features the gates of all groups on the series, and of all groups on local kernels, are
    counted together.
    """
    series, schema, clock = predictor.read(X, times), schema_of(predictor), predictor.clock
    predictor.check(series)
    if interval is None and schema is not None and schema.time_kind in ("datetime", "duration"):
        interval = schema.interval
    unit = "of the times' unit" if clock is not None and clock.kind == "number" and interval is None else "s"
    interval = clock.unit if clock is not None and interval is None else interval
    if isinstance(predictor.model, Frozen):
        return _frozen_scales(predictor, predictor.model, series, interval)
    model = trained_model(predictor)
    lem_cells(model.recurrent)

    def batches() -> Iterator[tuple[Tensor | None, ...]]:
        for start in range(0, len(series.lengths), BATCH):
            u, lengths, elapsed = _inputs(predictor, series, slice(start, start + BATCH))
            yield *model.encode(u, lengths), elapsed

    return time_scales(model.recurrent, batches(), interval, unit)


@torch.inference_mode()
def _frozen_scales(predictor: Predictor, model: Frozen, series: Series, interval: float | None) -> Scales:
    if not all(isinstance(cell, LEMCell) for cell in model.cells):
        raise ValueError(
            f"Time scales are those of LEM's gates; this model is made of cell {predictor.architecture['cell']}."
        )
    counts = {"on series": model.groups, "on kernels": len(model.cells) - model.groups}
    seen = {
        (gate, where): GateScales(f"{gate} {where}", count * model.units)
        for where, count in counts.items()
        for gate in ("dt_z", "dt_y")
    }
    for start in range(0, len(series.lengths), BATCH):
        u, lengths, _ = _inputs(predictor, series, slice(start, start + BATCH))
        ends = torch.full((u.shape[1],), len(u)) if lengths is None else lengths
        inside = torch.arange(len(u))[:, None] < ends
        taken: dict[tuple[str, str], list[Tensor]] = {key: [] for key in seen}
        for g, (cell, read) in enumerate(model.readings(u, ends)):
            assert isinstance(cell, LEMCell)
            before = torch.cat([cell.init_state(u.shape[1])[0][None], cell.sequence(read)[0][:-1]])
            gates, where = parts(cell, read, before), "on series" if g < model.groups else "on kernels"
            taken["dt_z", where].append(gates.dt_z[inside])
            taken["dt_y", where].append(gates.dt_y[inside])
        for key, values in taken.items():
            seen[key].add(torch.cat(values, dim=1))
    return Scales(list(seen.values()), interval)


def certify_predictor(
    predictor: Predictor, X: Any, rows: int = 4, times: Any = None
) -> tuple[list[Certificate], Advice]:
    """Certify every LEM cell of a model on the first series, cut to the shortest of them.

    The gradient is that of the log probability of the predicted class, or of the sum of the predicted numbers.
    """
    model = trained_model(predictor).eval()
    lem_cells(model.recurrent)
    series = predictor.read(X, times)
    predictor.check(series)
    inputs, lengths, elapsed = _inputs(predictor, series, slice(0, rows))
    with torch.no_grad():
        u, lengths = model.encode(inputs, lengths)
    steps = len(u) if lengths is None else int(lengths.min())

    def value(read: Tensor) -> Tensor:
        return torch.log_softmax(read, dim=-1).max(-1).values if predictor.kind == "classifier" else read.sum(-1)

    return certify_model(model, u[:steps], value, None if elapsed is None else elapsed[:steps])


def _inputs(predictor: Predictor, series: Series, rows: slice) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return standardised series (time, batch, channel), their lengths (None if all are equal) and elapsed times."""
    lengths = torch.from_numpy(series.lengths[rows])
    longest = int(lengths.max())
    arrays = (series.values, series.elapsed)
    u, elapsed = (
        None if a is None else torch.from_numpy(a[rows, :longest]).transpose(0, 1).to(predictor.mean.device)
        for a in arrays
    )
    assert u is not None
    x = predictor.standardise(u)
    return x, None if bool((lengths == longest).all()) else lengths, None if elapsed is None else elapsed.to(x.dtype)
