"""Every export gives the model's answers: at lengths 1, 7 and 1000, in any batch, with the state carried over."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lem.export import export, exported_program, selftest
from lem.predictor import Predictor
from tests.close import assert_close

ROOT = Path(__file__).parent.parent
KINDS = {"classifier": 3, "regressor": 2, "forecaster": 2}


def predictor(kind="classifier", cell="lem", missing="error", **options):
    architecture = {"cell": cell, "hidden_size": 6, "pool": "last" if kind == "forecaster" else "both", **options}
    made = Predictor(
        kind,
        2,
        KINDS[kind],
        architecture,
        labels=np.array(["a", "b", "c"]) if kind == "classifier" else None,
        horizon=3 if kind == "forecaster" else 1,
        missing=missing,
    ).eval()
    made.mean.fill_(10.0)
    made.scale.fill_(2.0)
    made.target_mean.fill_(-1.0)
    return made


def expect(model, series):
    with torch.inference_mode():
        return model(torch.from_numpy(series).transpose(0, 1))[0].numpy()


def series(batch, steps):
    return np.random.default_rng(steps).normal(10.0, 2.0, (batch, steps, 2)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "dt": 0.3, "missing": "mask"}, {"clip": (0.1, 0.4), "bias": False}]
)
def test_the_numpy_file_agrees_and_needs_numpy_alone(kind, options, tmp_path):
    if "clip" in options:
        options = {**options, "cell": "lem"}
    model = predictor(kind, **options)
    folder = export(model, "numpy", tmp_path / "out")
    assert len((folder / "model.py").read_text().splitlines()) < 80
    code = f"""
import sys
sys.modules["torch"] = sys.modules["lem"] = None
sys.path.insert(0, {str(folder)!r})
import numpy as np
from model import Model
series = np.load({str(tmp_path / "series.npy")!r})
model = Model({str(folder / "weights.npz")!r})
whole, _ = model(series)
_, state = model(series[:, :5])
part, _ = model(series[:, 5:], state)
np.save({str(tmp_path / "answers.npy")!r}, np.stack([whole, part]))
"""
    np.save(tmp_path / "series.npy", series(4, 12))
    subprocess.run([sys.executable, "-c", code], check=True)
    whole, part = np.load(tmp_path / "answers.npy")
    assert_close(whole, expect(model, series(4, 12)), "export")
    assert_close(part, whole, "export")
    done = subprocess.run([sys.executable, str(folder / "model.py")], capture_output=True, text=True, check=True)
    assert "largest error" in done.stdout


def test_a_wrong_export_fails_its_self_test(tmp_path):
    folder = export(predictor(), "numpy", tmp_path / "out")
    source = (folder / "model.py").read_text()
    for right, wrong in (
        ('@ w[f"weight_z.{k}"].T', '@ w[f"weight_z.{k}"]'),
        ("z[k] @", "state[1][k] @"),
        ("total += u", "total += z[k]"),
    ):
        assert right in source
        (folder / "model.py").write_text(source.replace(right, wrong))
        assert selftest("numpy", folder) > 1e-4, f"{wrong} must be noticed"
        assert (
            subprocess.run([sys.executable, str(folder / "model.py")], capture_output=True, check=False).returncode == 1
        )


def test_what_numpy_cannot_hold_is_refused(tmp_path):
    for options in ({"cell": "lstm"}, {"bidirectional": True}, {"cell": "lem-single-scale"}):
        with pytest.raises(ValueError, match="use onnx"):
            export(predictor(**options), "numpy", tmp_path)
    with pytest.raises(ValueError, match="`to` of export must be one of onnx, torch, numpy; got 'tflite'"):
        export(predictor(), "tflite", tmp_path)


# --- those that trace the model run in a process of their own: the run-time check of shapes cannot be traced ---------


def alone(call):
    """Run a call of this module in a fresh process, without the shape checks of conftest.py."""
    code = f"from tests.test_export import *; {call}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def check_onnx(kind, cell, missing, out):
    import onnxruntime

    model = predictor(kind, cell=cell, missing=missing, num_layers=2)
    folder = export(model, "onnx", out)
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", "time", 2]
    states = [entry.name for entry in session.get_inputs()[1:]]
    initial = json.loads(session.get_modelmeta().custom_metadata_map["lem"])["initial_state"]
    for batch, steps in ((1, 1), (3, 7), (2, 1000)):
        x = series(batch, steps)
        zero = {name: np.repeat(np.array(initial[name], np.float32)[:, None], batch, axis=1) for name in states}
        answer, *_ = session.run(None, {"series": x, **zero})
        assert_close(answer, expect(model, x), "export")
        if steps > 1:
            _, *state = session.run(None, {"series": x[:, :1], **zero})
            later, *_ = session.run(None, {"series": x[:, 1:], **dict(zip(states, state))})
            assert_close(later, answer, "export")


def check_torch(out):
    model = predictor("classifier")
    module = torch.export.load(export(model, "torch", out) / "model.pt2").module()
    for batch, steps in ((1, 1), (3, 7), (2, 500)):
        x = series(batch, steps)
        with torch.no_grad():
            answer, _ = module(torch.from_numpy(x), tuple(model.model.init_state(batch)))
        assert_close(answer, expect(model, x), "export")


def check_inductor(out):
    model = predictor("classifier")
    package = torch._inductor.aoti_compile_and_package(exported_program(model), package_path=f"{out}/model.pt2")
    compiled = torch._inductor.aoti_load_package(package)
    for batch, steps in ((2, 7), (3, 100)):
        x = series(batch, steps)
        answer, *_ = compiled(torch.from_numpy(x), tuple(s.detach() for s in model.model.init_state(batch)))
        assert_close(answer, expect(model, x), "export")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "cell", "missing"),
    [("classifier", "lem", "mask"), ("forecaster", "lem", "error"), ("regressor", "lstm", "error")],
)
def test_onnx_agrees_over_lengths_batches_and_carried_state(kind, cell, missing, tmp_path):
    alone(f"check_onnx({kind!r}, {cell!r}, {missing!r}, {str(tmp_path)!r})")


@pytest.mark.slow
def test_torch_export_keeps_batch_and_time_free(tmp_path):
    alone(f"check_torch({str(tmp_path)!r})")


@pytest.mark.slow
def test_aot_inductor_compiles_it(tmp_path):
    alone(f"check_inductor({str(tmp_path)!r})")
