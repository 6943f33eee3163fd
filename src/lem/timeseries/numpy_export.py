"""Write a model as one NumPy file and its weights, which need no part of this library."""

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lem.nn.cells import LEMCell
from lem.timeseries import numpy_frozen, numpy_model
from lem.timeseries.frozen import Frozen
from lem.timeseries.predictor import Predictor
from lem.timeseries.selftest import Run


def write_numpy(predictor: Predictor, folder: Path, elapsed: bool) -> None:
    """Write `model.py` and `weights.npz`; the file always takes elapsed times, so `elapsed` changes nothing."""
    if isinstance(predictor.model, Frozen):
        _write_frozen(predictor, predictor.model, folder)
        return
    model, cells = predictor.model, predictor.model.cells
    wrong = next((type(cell).__name__ for cell in cells if not isinstance(cell, LEMCell)), None)
    if wrong is not None or model.conv is not None:
        what = "a convolution before the layers" if wrong is None else wrong
        raise ValueError(f"Only LEM and its variants can be exported to numpy; got {what}: use onnx.")
    y_0, z_0, *_ = model.init_state(1)
    arrays = {"y_0": y_0, "z_0": z_0, "readout.weight": model.readout.weight, "readout.bias": model.readout.bias}
    arrays |= {name: getattr(predictor, name) for name in ("mean", "scale", "target_mean", "target_scale")}
    config: dict[str, Any] = {
        "kind": predictor.kind,
        "labels": None if predictor.labels is None else predictor.labels.tolist(),
        "missing": predictor.missing,
        "pool": model.pool,
        "directions": 2 if model.recurrent.bidirectional else 1,
        "dt": [],
        "clip": [],
    }
    for k, cell in enumerate(cells):
        assert isinstance(cell, LEMCell)
        bias = torch.zeros(len(cell.weight_u)) if cell.bias is None else cell.bias
        arrays |= {f"weight_u.{k}": cell.weight_u, f"weight_y.{k}": cell.weight_y}
        arrays |= {f"weight_z.{k}": cell.weight_z, f"bias.{k}": bias}
        config["dt"].append(cell.dt)
        config["clip"].append(cell.clip or (0.0, 2.0))
    plain = {name: value.detach().numpy() for name, value in arrays.items()}
    np.savez(folder / "weights.npz", config=np.array(json.dumps(config)), **plain)  # type: ignore[arg-type]
    shutil.copyfile(numpy_model.__file__, folder / "model.py")


def _write_frozen(predictor: Predictor, model: Frozen, folder: Path) -> None:
    wrong = next((type(cell).__name__ for cell in model.cells if not isinstance(cell, LEMCell)), None)
    if wrong is not None:
        raise ValueError(f"Only LEM and its variants can be exported to numpy; got {wrong}: use torch.")
    bank, cells = model.bank, [cell for cell in model.cells if isinstance(cell, LEMCell)]
    config = {
        "kind": predictor.kind,
        "labels": None if predictor.labels is None else predictor.labels.tolist(),
        "several": predictor.kind == "classifier" and predictor.flat,
        "missing": predictor.missing,
        "causal": model.causal,
        "selected": model.selected,
        "blocks": [(block.signal, block.dilation, block.start, block.count) for block in bank.blocks],
        "dt": cells[0].dt,
        "clip": cells[0].clip or (0.0, 2.0),
    }
    arrays = {name: getattr(predictor, name) for name in ("mean", "scale", "target_mean", "target_scale")}
    arrays |= {name: getattr(model, name) for name in ("read", "threshold", "feature_mean", "feature_scale")}
    arrays |= {name: getattr(bank, name) for name in ("taps", "channel", "mixing")}
    arrays |= {f"kernel_{name}": getattr(bank, name) for name in ("threshold", "scale")}
    arrays |= {f"readout.{name}": getattr(model.readout, name) for name in ("weight", "bias")}
    arrays |= {f"weight_u.{g}": cell.weight_u for g, cell in enumerate(cells)}
    arrays |= {name: torch.stack([getattr(cell, name) for cell in cells]) for name in ("weight_y", "weight_z", "bias")}
    plain = {name: value.detach().numpy() for name, value in arrays.items()}
    np.savez(folder / "weights.npz", config=np.array(json.dumps(config)), **plain)
    shutil.copyfile(numpy_frozen.__file__, folder / "model.py")


def run_numpy(folder: Path) -> Run:
    """Return an exported model as a function."""
    model = runpy.run_path(str(folder / "model.py"))["Model"](folder / "weights.npz")
    # A file written by 0.1.0 does not take elapsed times.
    return lambda series, elapsed: model(series)[0] if elapsed is None else model(series, None, elapsed)[0]
