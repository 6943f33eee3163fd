"""Apply the analysis tools to a model file and a file of series: time scales and certificates."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lem.analysis.certificate import Advice, Certificate, advise_dt, certify_layers, lem_cells
from lem.analysis.timescales import GateScales, Scales, parts, time_scales
from lem.nn.cells import LEMCell
from lem.nn.model import SequenceModel
from lem.timeseries.answering import schema_of
from lem.timeseries.frozen import Frozen
from lem.timeseries.predictor import Predictor
from lem.timeseries.series import Series, as_series

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


def predictor_scales(predictor: Predictor, X: Any, interval: float | None = None) -> Scales:
    """Count the gates of a model over series.

    The interval between two steps is that of the training data by default. Of frozen features the gates of all groups
    on the series, and of all groups on local kernels, are counted together.
    """
    series, schema = as_series(X, "the model", predictor.missing), schema_of(predictor)
    if interval is None and schema is not None and schema.time_kind in ("datetime", "duration"):
        interval = schema.interval
    if isinstance(predictor.model, Frozen):
        return _frozen_scales(predictor, predictor.model, series, interval)
    model = trained_model(predictor)
    lem_cells(model.recurrent)

    def batches() -> Iterator[tuple[Tensor, Tensor | None]]:
        for start in range(0, len(series.lengths), BATCH):
            yield model.encode(*_inputs(predictor, series, slice(start, start + BATCH)))

    return time_scales(model.recurrent, batches(), interval)


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
        u, lengths = _inputs(predictor, series, slice(start, start + BATCH))
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


def certify_predictor(predictor: Predictor, X: Any, rows: int = 4) -> tuple[list[Certificate], Advice]:
    """Certify every LEM cell of a model on the first series, cut to the shortest of them.

    The gradient is that of the log probability of the predicted class, or of the sum of the predicted numbers.
    """
    model = trained_model(predictor).eval()
    lem_cells(model.recurrent)
    inputs, lengths = _inputs(predictor, as_series(X, "the model", predictor.missing), slice(0, rows))
    with torch.no_grad():
        u, lengths = model.encode(inputs, lengths)
        steps = len(u) if lengths is None else int(lengths.min())
        u = u[:steps]
        outputs, final = model.recurrent(u)
        mean = outputs.mean(0)
    last = torch.cat(final[0][-2 if model.recurrent.bidirectional else -1 :].unbind(0), dim=-1).requires_grad_()
    # A readout of the last output and the mean of all: the certificate follows the last output.
    read = model.readout(last if model.readout.in_features == last.shape[-1] else torch.cat([last, mean], dim=-1))
    value = torch.log_softmax(read, dim=-1).max(-1).values if predictor.kind == "classifier" else read.sum(-1)
    value.sum().backward()
    return certify_layers(model.recurrent, u, last.grad), advise_dt(steps, lem_cells(model.recurrent)[0], u)


def _inputs(predictor: Predictor, series: Series, rows: slice) -> tuple[Tensor, Tensor | None]:
    """Return standardised series (time, batch, channel) and their lengths, None if all are equal."""
    lengths = torch.from_numpy(series.lengths[rows])
    u = torch.from_numpy(series.values[rows, : int(lengths.max())]).transpose(0, 1).to(predictor.mean.device)
    return predictor.standardise(u), None if bool((lengths == lengths.max()).all()) else lengths
