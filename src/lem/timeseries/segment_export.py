"""Export a forecaster by segments: a program from the last window of a series to the quantiles of its forecast.

The program reads (batch, look_back, channel) in the user's units, NaN where a value is missing, and returns
(batch, horizon, channel, quantile). Dates stay outside; so do covariates, whose models cannot be exported yet.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lem.kernels import loop_only
from lem.nn.cells.lem import LEMCell
from lem.timeseries import numpy_segments
from lem.timeseries.forecasting import network_of
from lem.timeseries.intervals import NARROWEST
from lem.timeseries.predictor import Predictor
from lem.timeseries.tracing import need_onnx, quiet


class WindowProgram(nn.Module):
    """A forecaster by segments as a function of one window of each series."""

    mean: Tensor
    scale: Tensor

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.network = network_of(predictor)
        self.register_buffer("mean", predictor.mean.clone())
        self.register_buffer("scale", predictor.scale.clone())

    def forward(self, series: Tensor, state: Any = ()) -> tuple[Tensor, Any]:
        """Return the quantiles in the user's units, and no state."""
        network = self.network
        known = (~torch.isnan(series)).to(torch.float64)
        filled = torch.nan_to_num(series.to(torch.float64))
        if network.transform == "log":
            filled = torch.log(torch.where(known > 0, filled, torch.ones_like(filled))) * known
        mean, scale = self.mean, self.scale
        if network.own_units:
            count = known.sum(1, keepdim=True).clamp(min=1.0)
            mean = (filled * known).sum(1, keepdim=True) / count
            spread = torch.sqrt((((filled - mean) * known) ** 2).sum(1, keepdim=True) / count)
            scale = torch.where(spread > 1e-12 * mean.abs(), spread, torch.ones_like(spread))
        standard = (filled - mean) / scale * known
        dtype = next(network.parameters()).dtype
        window = torch.cat([standard, known], dim=2).transpose(0, 1).to(dtype)
        ahead = torch.zeros_like(window[:1]).expand(network.horizon, -1, -1)
        quantiles = self._widened(network(torch.cat([window, ahead]))[0].to(torch.float64))
        if network.own_units:
            mean, scale = mean[..., None], scale[..., None]
        else:
            mean, scale = mean[:, None], scale[:, None]
        answer = quantiles * scale + mean
        return (torch.exp(answer) if network.transform == "log" else answer), state

    def _widened(self, quantiles: Tensor) -> Tensor:
        """Do what `lem.timeseries.intervals.widened` does."""
        middle = quantiles.shape[-1] // 2
        median = quantiles[..., middle : middle + 1]
        low, high = quantiles[..., :middle], quantiles[..., middle + 1 :]
        # First as `in_order`, then widened, then in order again.
        for factors in (None, self.network.widths):
            if factors is not None:
                below, above = (low - median).clamp(max=-NARROWEST), (high - median).clamp(min=NARROWEST)
                low, high = median + below * factors[:, :middle], median + above * factors[:, middle + 1 :]
            lows, highs = [median], [median]
            for k in range(middle):
                lows.append(torch.minimum(lows[-1], low[..., middle - 1 - k : middle - k]))
                highs.append(torch.maximum(highs[-1], high[..., k : k + 1]))
            low, high = torch.cat([*lows[:0:-1], median], -1)[..., :middle], torch.cat(highs, -1)[..., 1:]
        return torch.cat([low, median, high], dim=-1)


def write_segments(predictor: Predictor, to: str, folder: Path) -> None:
    """Write the program and the data of its self-test."""
    network = network_of(predictor)
    if network.past + network.future + network.static:
        raise ValueError("A forecaster with times or covariates cannot be exported yet: fit without them.")
    program = WindowProgram(predictor).eval()
    {"onnx": _write_onnx, "torch": _write_torch, "numpy": _write_numpy}[to](predictor, program, folder)
    random = np.random.default_rng(0)
    shape = (2, network.look_back, predictor.channels)
    series = predictor.mean.numpy() + predictor.scale.numpy() * random.standard_normal(shape)
    series = np.exp(series) if network.transform == "log" else series
    if predictor.missing == "mask":
        series[0, 1] = np.nan
    series = series.astype(np.float32)
    with torch.inference_mode():
        answer = program(torch.from_numpy(series))[0].numpy()
    tests = {"count": np.array(1), "allowed": np.array(1e-3), "series_0": series, "answer_0": answer}
    np.savez(folder / "selftest.npz", **tests)


def _exported(predictor: Predictor, program: WindowProgram) -> Any:
    network = network_of(predictor)
    example = torch.zeros(2, network.look_back, predictor.channels)
    with torch.no_grad(), quiet(), loop_only():
        return torch.export.export(program, (example, ()), dynamic_shapes=({0: torch.export.Dim.DYNAMIC}, ()))


def _write_torch(predictor: Predictor, program: WindowProgram, folder: Path) -> None:
    torch.export.save(_exported(predictor, program), folder / "model.pt2")


def _write_onnx(predictor: Predictor, program: WindowProgram, folder: Path) -> None:
    need_onnx()
    with quiet():
        exported = torch.onnx.export(
            _exported(predictor, program), input_names=["series"], output_names=["answer"], dynamo=True, verbose=False
        )
    import onnx

    assert exported is not None
    model = exported.model_proto
    notes = {"kind": "forecaster", "labels": None, "quantiles": list(network_of(predictor).quantiles)}
    onnx.helper.set_model_props(model, {"lem": json.dumps({**notes, "initial_state": {}})})
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(folder / "model.onnx"))


def _write_numpy(predictor: Predictor, program: WindowProgram, folder: Path) -> None:
    network = network_of(predictor)
    if type(network.recurrent.cells[0]) is not LEMCell or network.mixing or network.decoder != "parallel":
        raise ValueError("Only LEM without mixing, with decoder='parallel', can be exported to numpy: use onnx.")
    if len(network.recurrent.cells) > 1:
        raise ValueError("Only one layer can be exported to numpy: use onnx.")
    cell: Any = network.recurrent.cells[0]
    config = {
        "channels": network.channels,
        "horizon": network.horizon,
        "look_back": network.look_back,
        "segment": network.segment,
        "levels": network.levels,
        "quantiles": list(network.quantiles),
        "masked": network.masked,
        "scaled": network.scaled,
        "own_units": network.own_units,
        "period": network.period,
        "transform": network.transform,
        "dt": cell.dt,
    }
    plain = {name: value.detach().cpu().numpy() for name, value in network.state_dict().items()}
    plain |= {"mean": predictor.mean.numpy(), "scale": predictor.scale.numpy()}
    np.savez(folder / "weights.npz", config=np.array(json.dumps(config)), **plain)
    shutil.copyfile(numpy_segments.__file__, folder / "model.py")
