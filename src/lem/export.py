"""A trained model for machines without this library: ONNX, torch.export, or one NumPy file.

Each export is a folder with the model, a self-test (inputs and the answers they must give) and is called done only
after the self-test has passed. ONNX and torch.export hold the time loop as one operator, so time and batch stay free;
both take the series (batch, time, channels) and a state, and return the answer and the state that continues it. For
torch.export there is a choice of that operator: torch's own `scan`, or our kernel, which is faster and needs us.
"""

import contextlib
import copy
import functools
import io
import json
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lem import numpy_model
from lem.cells import Cell, LEMCell, State
from lem.predictor import Predictor

ALLOWED = 1e-5
"""The largest error of an export, relative to answers larger than one: float32 rounding over a thousand steps.

A model that amplifies rounding is allowed ten times its own distance from float64, where that is more.
"""
TEST_LENGTHS = (1, 7, 1000)


def export(predictor: Predictor, to: str, folder: str | Path, *, portable: bool = True) -> Path:
    """Write `predictor` into a folder as "onnx", "torch" or "numpy", run its self-test there, and return the folder.

    With `portable=False` a "torch" program runs LEM on the kernel, as the operator `lem::sequence`: faster, but who
    loads it must `import lem` first.
    """
    if to not in EXPORTS:
        raise ValueError(f"`to` of export must be one of {', '.join(EXPORTS)}; got {to!r}.")
    if not portable and to != "torch":
        raise ValueError(f"`portable` of export must be True but for torch: only torch knows our operator; got {to}.")
    folder = Path(folder)
    predictor = copy.deepcopy(predictor).cpu().eval()
    folder.mkdir(parents=True, exist_ok=True)
    write, _ = EXPORTS[to]
    write(predictor, folder) if portable else _write_torch(predictor, folder, portable=False)
    _write_selftest(predictor, folder)
    worst, allowed = selftest(to, folder), allowance(folder)
    if not worst <= allowed:
        raise ValueError(
            f"The export to {to} must give the model's answers to {allowed:.2g}; got an error of {worst:.2g}."
        )
    return folder


def allowance(folder: str | Path) -> float:
    """Return the largest error that the self-test of an exported model allows."""
    return float(np.load(Path(folder) / "selftest.npz", allow_pickle=False)["allowed"])


def selftest(to: str, folder: str | Path) -> float:
    """Run an exported model on its self-test; return the largest error, relative to answers larger than one."""
    folder = Path(folder)
    run = EXPORTS[to][1](folder)
    test, worst = np.load(folder / "selftest.npz", allow_pickle=False), 0.0
    for i in range(int(test["count"])):
        worst = max(worst, _distance(run(test[f"series_{i}"]), test[f"answer_{i}"]))
    return worst


def _distance(answer: np.ndarray, expected: np.ndarray) -> float:
    return float((np.abs(answer - expected) / np.maximum(1.0, np.abs(expected))).max())


def _write_selftest(predictor: Predictor, folder: Path) -> None:
    random = np.random.default_rng(0)
    mean, scale = predictor.mean.numpy(), predictor.scale.numpy()
    tests: dict[str, Any] = {"count": len(TEST_LENGTHS), "allowed": ALLOWED}
    exact = copy.deepcopy(predictor).double()
    for i, length in enumerate(TEST_LENGTHS):
        series = (mean + scale * random.standard_normal((2, length, len(mean)))).astype(np.float32)
        if predictor.missing == "mask" and length > 1:
            series[0, 1] = np.nan
        with torch.inference_mode():
            answer, truth = (each(torch.from_numpy(series).transpose(0, 1))[0].numpy() for each in (predictor, exact))
        tests |= {f"series_{i}": series, f"answer_{i}": answer}
        tests["allowed"] = max(tests["allowed"], 10.0 * _distance(answer, truth))
    np.savez(folder / "selftest.npz", **tests)


# --- torch.export and ONNX: the time loop as one operator -----------------------------------------------------------


class _Loop(nn.Module):
    """A predictor whose time loop is one operator: series (batch, time, channels) and state in, answer and state."""

    def __init__(self, predictor: Predictor, portable: bool) -> None:
        super().__init__()
        self.predictor = copy.deepcopy(predictor)
        for cell in self.predictor.model.cells:
            if portable:
                # What a cell prepares for a sequence is the same for all once training is over; some of it, such as a
                # matrix exponential, no other runtime could compute.
                prepared = [fixed.detach().clone() for fixed in cell.prepare(1)]
                for i, fixed in enumerate(prepared):
                    cell.register_buffer(f"prepared_{i}", fixed)
                cell.sequence = functools.partial(_scan, cell, len(prepared))  # type: ignore[method-assign]
            elif (found := cell.backend_for(torch.zeros(1, 1, cell.input_size)))[0] != "native":
                raise ValueError(
                    "The export must be portable here, since LEM's kernel cannot serve "
                    f"{type(cell).__name__}: {found[1]}."
                )

    def forward(self, series: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        answer, state = self.predictor(series.transpose(0, 1), state)
        return answer, tuple(state)


def _scan(
    cell: Cell, count: int, u: Tensor, state: State | None, lengths: Tensor | None = None, reverse: bool = False
) -> tuple[Tensor, State]:
    """Do what `Cell.sequence` does, by the operator `scan` instead of a Python loop."""
    from torch._higher_order_ops.scan import scan

    assert lengths is None
    assert state is not None
    batch, prepared = u.shape[1], [cell.get_buffer(f"prepared_{i}") for i in range(count)]

    def step(carry: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
        after = cell.step(x, cell.state_type(*carry), *prepared)
        # The inductor can only size the outputs by the batch if the step mentions it.
        return [field.clone() for field in after], after[0].reshape(batch, -1).clone()

    final, outputs = scan(step, list(state), cell.project(u), reverse=reverse)
    return outputs, cell.state_type(*final)


def state_names(predictor: Predictor) -> list[str]:
    """Name the tensors of the state: those of the cell, then what the readout's mean carries."""
    fields = list(predictor.model.recurrent.state_type._fields)
    return fields + (["total", "count"] if predictor.model.pool == "both" else [])


def exported_program(predictor: Predictor, *, portable: bool = True) -> torch.export.ExportedProgram:
    """Trace a predictor with free batch and time axes; the loop is torch's `scan`, or else our `lem::sequence`."""
    dynamic = torch.export.Dim.DYNAMIC
    example = (torch.zeros(2, 3, predictor.channels), tuple(predictor.model.init_state(2)))
    shapes = ({0: dynamic, 1: dynamic}, tuple({1: dynamic} for _ in example[1]))
    with torch.no_grad(), _quiet():
        try:
            return torch.export.export(_Loop(predictor, portable).eval(), example, dynamic_shapes=shapes)
        except torch._dynamo.exc.UserError as error:
            raise ValueError(
                "The export to onnx or torch must be of a cell whose step takes the same course for all data; got "
                f"{type(predictor.model.cells[0]).__name__}."
            ) from error


def _write_torch(predictor: Predictor, folder: Path, portable: bool = True) -> None:
    torch.export.save(exported_program(predictor, portable=portable), folder / "model.pt2")


def _run_torch(folder: Path) -> Callable[[np.ndarray], np.ndarray]:
    program = torch.export.load(folder / "model.pt2")
    module, states = program.module(), list(program.example_inputs[0][1])

    def run(series: np.ndarray) -> np.ndarray:
        state = tuple(s[:, :1].expand(-1, len(series), -1).contiguous() for s in states)
        with torch.no_grad():
            answer: Tensor = module(torch.from_numpy(series), state)[0]
        return answer.numpy()

    return run


def _write_onnx(predictor: Predictor, folder: Path) -> None:
    _need("onnx", "onnxruntime", "onnxscript")
    names = state_names(predictor)
    with _quiet():
        program = torch.onnx.export(
            exported_program(predictor),
            input_names=["series", *names],
            output_names=["answer", *(f"next_{name}" for name in names)],
            dynamo=True,
            verbose=False,
        )
    import onnx

    assert program is not None
    model = program.model_proto
    _name_axes(model.graph)
    notes = {"kind": predictor.kind, "labels": None if predictor.labels is None else predictor.labels.tolist()}
    initial = {name: field[:, 0].tolist() for name, field in zip(names, predictor.model.init_state(1))}
    onnx.helper.set_model_props(model, {"lem": json.dumps({**notes, "initial_state": initial})})
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(folder / "model.onnx"))


def _name_axes(graph: Any) -> None:
    """Give the free axes their names, in place of the tracer's symbols."""
    series = graph.input[0].type.tensor_type.shape.dim
    names = {series[0].dim_param: "batch", series[1].dim_param: "time"}
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]


def _run_onnx(folder: Path) -> Callable[[np.ndarray], np.ndarray]:
    _need("onnxruntime")
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    initial = json.loads(session.get_modelmeta().custom_metadata_map["lem"])["initial_state"]

    def run(series: np.ndarray) -> np.ndarray:
        feeds = {"series": series}
        for name, value in initial.items():
            feeds[name] = np.repeat(np.array(value, np.float32)[:, None], len(series), axis=1)
        answer: np.ndarray = session.run(["answer"], feeds)[0]
        return answer

    return run


# --- NumPy ----------------------------------------------------------------------------------------------------------


def _write_numpy(predictor: Predictor, folder: Path) -> None:
    model, cells = predictor.model, predictor.model.cells
    wrong = next((type(cell).__name__ for cell in cells if not isinstance(cell, LEMCell)), None)
    if wrong is not None or model.conv is not None:
        what = "a convolution before the layers" if wrong is None else wrong
        raise ValueError(f"The export to numpy must be of LEM or its variants alone; got {what}: use onnx.")
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


def _run_numpy(folder: Path) -> Callable[[np.ndarray], np.ndarray]:
    model = runpy.run_path(str(folder / "model.py"))["Model"](folder / "weights.npz")
    return lambda series: model(series)[0]


# --- what is there --------------------------------------------------------------------------------------------------

EXPORTS: dict[str, tuple[Callable[[Predictor, Path], None], Callable[[Path], Callable[[np.ndarray], np.ndarray]]]] = {
    "onnx": (_write_onnx, _run_onnx),
    "torch": (_write_torch, _run_torch),
    "numpy": (_write_numpy, _run_numpy),
}
"""How each form is written, and how it is run."""


def _need(*libraries: str) -> None:
    import importlib.util

    for name in libraries:
        if importlib.util.find_spec(name) is None:
            raise ImportError(f"The export to ONNX needs {name}: pip install 'long-expressive-memory[export]'.")


@contextlib.contextmanager
def _quiet() -> Any:
    """Keep what torch's tracers tell about themselves (a graph, missing torchvision, deprecations) from the user."""
    import logging
    import warnings

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
