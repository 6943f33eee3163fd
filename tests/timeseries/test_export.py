"""Every export gives the model's answers: at lengths 1, 7 and 1000, in any batch, with the state carried over."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lem.nn.cells import CELLS
from lem.timeseries.export import export, exported_program, selftest
from lem.timeseries.predictor import Predictor
from lem.timeseries.selftest import ALLOWED, allowance
from tests.close import assert_close

ROOT = Path(__file__).parents[2]
UNDAMPED = {"antisymmetric", "dtriv", "exprnn", "nnrnn"}
"""Cells that keep, or amplify, the rounding of all steps."""
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
    "options",
    [
        {"num_layers": 2, "dt": 0.3, "missing": "mask"},
        {"clip": (0.1, 0.4), "bias": False, "learn_initial_state": True},
        {"cell": "lem-single-scale", "num_layers": 2, "layer_options": [{"dt": 0.2}, {"dt": 0.7}]},
    ],
)
def test_the_numpy_file_agrees_and_needs_numpy_alone(kind, options, tmp_path):
    model = predictor(kind, **options)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("y_0", "z_0")):
                weight.normal_()
    folder = export(model, "numpy", tmp_path / "out")
    assert len((folder / "model.py").read_text().splitlines()) < 100
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
        ("z @ w_z.T", "z @ w_z"),
        ("np.tanh(z_y + z_u)", "np.tanh(z_y)"),
        ("zip(gates_u, gates_y)", "zip(gates_u[::-1], gates_y[::-1])"),
        ("total + x.sum(axis=1)", "total + x.mean(axis=1)"),
    ):
        assert right in source
        (folder / "model.py").write_text(source.replace(right, wrong))
        assert selftest("numpy", folder) > 1e-4, f"{wrong} must be noticed"
        assert (
            subprocess.run([sys.executable, str(folder / "model.py")], capture_output=True, check=False).returncode == 1
        )


@pytest.mark.parametrize("cell", [name for name in CELLS if name.startswith("lem")])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.filterwarnings("ignore:`t_max`")
def test_numpy_holds_every_variant_of_lem(cell, bidirectional, tmp_path):
    """`export` itself compares with the model, at lengths 1, 7 and 1000; here with rows of another batch."""
    model = predictor(cell=cell, num_layers=2, bidirectional=bidirectional, missing="mask")
    folder = export(model, "numpy", tmp_path)
    alone = runpy.run_path(str(folder / "model.py"))["Model"](folder / "weights.npz")
    assert_close(alone(series(5, 30))[0], expect(model, series(5, 30)), "export")
    assert allowance(folder) == ALLOWED


def test_what_cannot_be_exported_is_refused(tmp_path):
    for options, got in (({"cell": "lstm"}, "got LSTMCell"), ({"conv_channels": 3}, "got a convolution")):
        with pytest.raises(ValueError, match=f"{got}.*: use onnx"):
            export(predictor(**options), "numpy", tmp_path)
    with pytest.raises(ValueError, match="`to` of export must be one of 'onnx', 'torch', 'numpy'; got 'tflite'"):
        export(predictor(), "tflite", tmp_path)
    with pytest.raises(ValueError, match="`portable` of export can be False for torch only"):
        export(predictor(), "onnx", tmp_path, portable=False)
    with pytest.raises(ValueError, match="must be portable here, since LEM's kernel cannot serve LSTMCell: "):
        export(predictor(cell="lstm"), "torch", tmp_path, portable=False)
    with pytest.raises(ValueError, match=r"must be portable here, .*: backend='loop'"):
        export(predictor(backend="loop"), "torch", tmp_path, portable=False)


def test_a_model_that_amplifies_rounding_is_allowed_as_much(tmp_path):
    model = predictor("regressor")
    with torch.no_grad():
        model.model.readout.weight.mul_(1e6)  # answers of some 1e6 that cancel leave an error of some 0.1
        model.model.readout.bias.zero_()
    model.target_scale.fill_(1e-6)
    assert allowance(export(model, "numpy", tmp_path)) == ALLOWED
    model.target_scale.fill_(1.0)
    model.target_mean.fill_(0.0)
    assert selftest("numpy", export(model, "numpy", tmp_path)) <= allowance(tmp_path)


# --- those that trace the model run in a process of their own: the run-time check of shapes cannot be traced ---------


def alone(call):
    """Run a call of this module in a fresh process, without the shape checks of conftest.py."""
    code = f"from tests.timeseries.test_export import *; torch.manual_seed(0); {call}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def check_onnx(kind, cell, missing, out, layers=2):
    import onnxruntime

    model = predictor(kind, cell=cell, missing=missing, num_layers=layers)
    folder = export(model, "onnx", out)
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", "time", 2]
    states = [entry.name for entry in session.get_inputs()[1:]]
    limit = "undamped export" if cell in UNDAMPED else "export"
    initial = json.loads(session.get_modelmeta().custom_metadata_map["lem"])["initial_state"]
    for batch, steps in ((1, 1), (3, 7), (2, 1000)):
        x = series(batch, steps)
        zero = {name: np.repeat(np.array(initial[name], np.float32)[:, None], batch, axis=1) for name in states}
        answer, *_ = session.run(None, {"series": x, **zero})
        assert_close(answer, expect(model, x), limit)
        if steps > 1:
            _, *state = session.run(None, {"series": x[:, :1], **zero})
            later, *_ = session.run(None, {"series": x[:, 1:], **dict(zip(states, state))})
            assert_close(later, answer, limit)


def check_torch(cell, portable, out):
    model = predictor("classifier", cell=cell, num_layers=2)
    program = torch.export.load(export(model, "torch", out, portable=portable) / "model.pt2")
    operators = {str(node.target) for node in program.graph.nodes}
    assert ("lem.sequence.default" in operators) == (not portable)
    module = program.module()
    for batch, steps in ((1, 1), (3, 7), (2, 500)):
        x = series(batch, steps)
        with torch.no_grad():
            answer, _ = module(torch.from_numpy(x), tuple(model.model.init_state(batch)))
            _, state = module(torch.from_numpy(x[:, : steps // 2 + 1]), tuple(model.model.init_state(batch)))
        assert_close(answer, expect(model, x), "export")
        if steps > 1:
            with torch.no_grad():
                assert_close(module(torch.from_numpy(x[:, steps // 2 + 1 :]), state)[0], answer, "export")


def check_inductor(portable, out):
    model = predictor("classifier")
    program = exported_program(model, portable=portable)
    package = torch._inductor.aoti_compile_and_package(program, package_path=f"{out}/model.pt2")
    compiled = torch._inductor.aoti_load_package(package)
    for batch, steps in ((2, 7), (3, 100), (1, 1)):
        x = series(batch, steps)
        answer, *_ = compiled(torch.from_numpy(x), tuple(s.detach() for s in model.model.init_state(batch)))
        assert_close(answer, expect(model, x), "export")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classifier", "regressor", "forecaster"])
def test_onnx_agrees_for_every_kind_of_answer(kind, tmp_path):
    alone(f"check_onnx({kind!r}, 'lem', 'mask', {str(tmp_path)!r})")


@pytest.mark.slow
@pytest.mark.parametrize("cell", sorted(set(CELLS) - {"lem", "nrde"}))
def test_onnx_agrees_for_every_cell_but_one(cell, tmp_path):
    alone(f"check_onnx('classifier', {cell!r}, 'error', {str(tmp_path)!r})")


def check_nrde(out):
    with pytest.raises(
        ValueError, match="whose step depends on the data cannot be exported to onnx or torch; got NRDECell"
    ):
        export(predictor(cell="nrde"), "onnx", out)


@pytest.mark.slow
def test_the_one_whose_step_depends_on_its_data_is_refused_by_name(tmp_path):
    alone(f"check_nrde({str(tmp_path)!r})")


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "portable"), [("lem", True), ("lem", False), ("exprnn", True)])
def test_torch_export_keeps_batch_and_time_free(cell, portable, tmp_path):
    alone(f"check_torch({cell!r}, {portable}, {str(tmp_path)!r})")


def test_the_program_with_our_operator_loads_where_lem_is_imported_and_nowhere_else(tmp_path):
    alone(f"export(predictor(), 'torch', {str(tmp_path)!r}, portable=False)")
    code = f"""
import torch
try:
    torch.export.load({str(tmp_path / "model.pt2")!r})
except Exception:
    import lem.nn
    torch.export.load({str(tmp_path / "model.pt2")!r})
else:
    raise SystemExit("it must not load without lem")
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("portable", [True, False])
def test_aot_inductor_compiles_it(portable, tmp_path):
    alone(f"check_inductor({portable}, {str(tmp_path)!r})")


# --- samples that come at unequal times, and a narrower y ------------------------------------------------------------


def irregular(model, batch=3, steps=9):
    """Return a series, its gaps, and what the model answers to both."""
    given, gaps = series(batch, steps), np.exp(np.random.default_rng(3).normal(size=(batch, steps))).astype(np.float32)
    with torch.inference_mode():
        answer = model(torch.from_numpy(given).transpose(0, 1), elapsed=torch.from_numpy(gaps).T)[0].numpy()
    return given, gaps, answer


OPTIONS = [
    {"num_layers": 2, "dt": 0.7},
    {"bidirectional": True, "proj_size": 4},
    {"cell": "lem-single-scale", "dt": 0.6},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_numpy_file_takes_elapsed_times(options, tmp_path):
    model = predictor(**options)
    folder = export(model, "numpy", tmp_path, elapsed=True)
    run = runpy.run_path(str(folder / "model.py"))["Model"](folder / "weights.npz")
    given, gaps, expected = irregular(model)
    assert_close(run(given, None, gaps)[0], expected, "export")
    assert_close(run(given)[0], expect(model, given), "export")
    with pytest.raises(AssertionError):
        assert_close(run(given)[0], expected, "export")


@pytest.mark.parametrize("portable", [True, False])
@pytest.mark.parametrize("options", OPTIONS[:2])
def test_a_torch_program_takes_elapsed_times(options, portable, shapes_unchecked):
    model = predictor(**options)
    program = exported_program(model, portable=portable, elapsed=True).module()
    given, gaps, expected = irregular(model)
    state = tuple(s.contiguous() for s in model.model.init_state(len(given)))
    with torch.no_grad():
        answer = program(torch.from_numpy(given), state, torch.from_numpy(gaps))[0]
    assert_close(answer, expected, "export")


def test_an_onnx_file_takes_elapsed_times(tmp_path, shapes_unchecked):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = predictor(bidirectional=True, proj_size=4)
    folder = export(model, "onnx", tmp_path, elapsed=True)
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    assert [i.name for i in session.get_inputs()][-1] == "elapsed"
    given, gaps, expected = irregular(model)
    names = [i.name for i in session.get_inputs()][1:-1]
    feeds = {name: s.numpy() for name, s in zip(names, model.model.init_state(len(given)))}
    assert_close(session.run(["answer"], {"series": given, "elapsed": gaps, **feeds})[0], expected, "export")


def test_elapsed_times_of_a_cell_without_a_time_step_are_refused(tmp_path):
    with pytest.raises(ValueError, match="`elapsed` of export must be False: GRUCell has no time step"):
        export(predictor(cell="gru"), "onnx", tmp_path, elapsed=True)


# --- models of frozen features ---------------------------------------------------------------------------------------


def waves(missing="error"):
    """Return 24 series of 2 channels and 30 steps, and two classes that differ in a frequency."""
    random = np.random.default_rng(0)
    y = np.arange(24) % 2
    X = np.sin(np.arange(30) * (0.3 + 0.2 * y[:, None, None]) + random.uniform(0, 6, (24, 2, 1)))
    X = (X + 0.3 * random.normal(size=X.shape)).astype(np.float32)
    if missing == "mask":
        X[3, 1, 4:8] = X[5, 0, :2] = np.nan
    return X, y


def frozen(kind="classifier", missing="error", **options):
    """Return a fitted model of frozen features and the series (batch, time, channels) it was fitted on."""
    from lem.timeseries import LEMClassifier, LEMRegressor

    X, y = waves(missing)
    estimator = LEMClassifier if kind == "classifier" else LEMRegressor
    targets = {"regressor": X[:, 0, 5:7].copy(), "classifier": y, "labels": np.stack([y, np.arange(24) // 2 % 2], 1)}
    made = (LEMClassifier if kind == "labels" else estimator)(
        effort="quick", network="features", random_state=0, missing=missing, **options
    )
    return made.fit(X, np.nan_to_num(targets[kind])).predictor_, np.ascontiguousarray(X.transpose(0, 2, 1))


FROZEN = [
    {},
    {"missing": "mask"},
    {"causal": True},
    {"kind": "regressor", "causal": True, "missing": "mask"},
    {"kind": "labels"},
    {"cell": "lem-single-scale"},
]


@pytest.mark.parametrize("options", FROZEN)
def test_the_numpy_file_of_frozen_features_agrees_and_needs_numpy_alone(options, tmp_path):
    model, X = frozen(**options)
    folder = export(model, "numpy", tmp_path / "out")
    np.save(tmp_path / "series.npy", X)
    code = f"""
import sys
sys.modules["torch"] = sys.modules["lem"] = None
sys.path.insert(0, {str(folder)!r})
import numpy as np
from model import Model
model = Model({str(folder / "weights.npz")!r})
series = np.load({str(tmp_path / "series.npy")!r})
np.savez({str(tmp_path / "answers.npz")!r}, whole=model(series)[0], short=model(series[:5, :9])[0])
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    found = np.load(tmp_path / "answers.npz")
    assert allowance(folder) < 0.02
    for name, given in (("whole", X), ("short", X[:5, :9])):
        error = np.abs(found[name] - expect(model, given))
        # Rounding decides a comparison with a threshold here and there.
        assert np.median(error) < 1e-4
        assert error.max() < 0.02
    done = subprocess.run([sys.executable, str(folder / "model.py")], capture_output=True, text=True, check=True)
    assert "largest error" in done.stdout


def test_a_wrong_export_of_frozen_features_fails_its_self_test(tmp_path):
    folder = export(frozen("regressor")[0], "numpy", tmp_path)
    source = (folder / "model.py").read_text()
    for right, wrong in (
        ("z @ w_z + y_u", "z + y_u"),
        ('(1 if self.config["causal"] else 2)', "1"),
        ("inner = slice(0, steps) if", "inner = slice(0, steps) if True or"),
        ("outputs[backwards] = outputs[backwards, :, ::-1]", "pass"),
        ("parts = [*shares, rises, last,", "parts = [*shares, last, rises,"),
        ("2 * signals[change]", "signals[change]"),
    ):
        assert right in source
        (folder / "model.py").write_text(source.replace(right, wrong))
        assert selftest("numpy", folder) > allowance(folder), f"{wrong} must be noticed"


def test_what_cannot_be_exported_of_frozen_features_is_refused(tmp_path):
    with pytest.raises(ValueError, match="got GRUCell: use torch"):
        export(frozen(cell="gru")[0], "numpy", tmp_path)
    with pytest.raises(ValueError, match="with causal=True or missing='mask' cannot be exported to onnx"):
        export(frozen(causal=True)[0], "onnx", tmp_path)
    with pytest.raises(ValueError, match="`elapsed` of export must be False: frozen features do not read"):
        export(frozen()[0], "torch", tmp_path, elapsed=True)


def check_frozen(portable, out):
    model, X = frozen(missing="mask")
    program = torch.export.load(export(model, "torch", out, portable=portable) / "model.pt2")
    operators = {str(node.target) for node in program.graph.nodes}
    assert ("lem.sequence.default" in operators) == (not portable)
    module = program.module()
    for given in (X, X[:3, :9], X[:1, :3]):
        with torch.no_grad():
            answer, state = module(torch.from_numpy(given), ())
        error = np.abs(answer.numpy() - expect(model, given))
        assert state == ()
        assert np.median(error) < 1e-4
        assert error.max() < 0.02


def check_frozen_onnx(out):
    from lem.timeseries.export import EXPORTS
    from lem.timeseries.supervised import EFFORTS

    EFFORTS["quick"] = 120  # the exporter takes minutes for thousands of features
    model, X = frozen()
    run = EXPORTS["onnx"][1](export(model, "onnx", out))
    for given in (X, X[:3, :9], X[:1, :2]):
        error = np.abs(run(given, None) - expect(model, given))
        assert np.median(error) < 1e-4
        assert error.max() < 0.02


@pytest.mark.slow
def test_an_onnx_model_of_frozen_features_keeps_batch_and_time_free(tmp_path):
    pytest.importorskip("onnxruntime")
    alone(f"check_frozen_onnx({str(tmp_path)!r})")


@pytest.mark.slow
@pytest.mark.parametrize("portable", [True, False])
def test_a_torch_program_of_frozen_features_keeps_batch_and_time_free(portable, tmp_path):
    alone(f"check_frozen({portable}, {str(tmp_path)!r})")
