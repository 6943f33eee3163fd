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

from lem.nn.cells import Cell, LEMCell, State
from lem.nn.cells.scan import scan
from lem.timeseries import numpy_frozen, numpy_model
from lem.timeseries.frozen import Frozen
from lem.timeseries.predictor import Predictor
from lem.timeseries.segment_export import write_segments
from lem.timeseries.segments import SegmentNetwork

ALLOWED = 1e-5
"""The largest error of an export, relative to answers larger than one: float32 rounding over a thousand steps.

A model that amplifies rounding is allowed ten times its own distance from float64, where that is more.
"""
TEST_LENGTHS = (1, 7, 1000)
CANDIDATES = 32
"""From how many series of each length the two are chosen whose comparisons with thresholds hang least on rounding."""
NUDGES, NUDGE = 3, 5e-7
"""How often, and how far relatively, values and weights are moved to see that."""

Run = Callable[[np.ndarray, np.ndarray | None], np.ndarray]
"""An exported model as a function of the series and, where it takes them, the elapsed times."""


def export(
    predictor: Predictor, to: str, folder: str | Path, *, portable: bool = True, elapsed: bool | None = None
) -> Path:
    """Write `predictor` into a folder as "onnx", "torch" or "numpy", run its self-test there, and return the folder.

    With `portable=False` a "torch" program runs LEM on the kernel, as the operator `lem::sequence`: faster, but who
    loads it must `import lem` first.

    With `elapsed=True`, a "torch" or "onnx" program takes a last input `elapsed`, (batch, time): the time since the
    previous observation, in units of the usual step. A NumPy model always takes it as an option. By default a program
    takes it if the model was fitted with times.

    Examples:
        >>> import numpy as np
        >>> from lem.timeseries import LEMClassifier
        >>> from lem.timeseries.export import export
        >>> X, y = np.random.default_rng(0).normal(size=(20, 2, 40)), np.arange(20) % 2
        >>> model = LEMClassifier(8, epochs=1, random_state=0).fit(X, y)
        >>> folder = export(model.predictor_, "numpy", "classifier-numpy")
        >>> sorted(path.name for path in folder.iterdir())
        ['model.py', 'selftest.npz', 'weights.npz']
    """
    elapsed = predictor.clock is not None if elapsed is None else elapsed
    segments = isinstance(predictor.model, SegmentNetwork)
    if to == "onnx" and isinstance(predictor.model, Frozen):
        raise ValueError(
            "Models of frozen features cannot be exported to onnx: use numpy or torch, or fit with network='lem'."
        )
    if elapsed and isinstance(predictor.model, Frozen):
        raise ValueError("`elapsed` of export must be False: frozen features do not read the times of observations.")
    if elapsed and not segments and (reason := predictor.model.cells[0].refuse_elapsed()) is not None:
        raise ValueError(f"`elapsed` of export must be False: {reason}.")
    if to not in EXPORTS:
        raise ValueError(f"`to` of export must be one of {', '.join(EXPORTS)}; got {to!r}.")
    if not portable and to != "torch":
        raise ValueError(f"`portable` of export must be True but for torch: only torch knows our operator; got {to}.")
    folder = Path(folder)
    predictor = copy.deepcopy(predictor).cpu().eval()
    folder.mkdir(parents=True, exist_ok=True)
    write, _ = EXPORTS[to]
    if segments:
        if elapsed or not portable:
            raise ValueError("A forecaster by segments is exported with elapsed=False and portable=True.")
        write_segments(predictor, to, folder)
    elif portable:
        write(predictor, folder, elapsed)
    else:
        _write_torch(predictor, folder, elapsed, portable=False)
    if not segments:
        _write_selftest(predictor, folder, elapsed)
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
        gaps = test.get(f"elapsed_{i}")
        worst = max(worst, _distance(run(test[f"series_{i}"], gaps), test[f"answer_{i}"]))
    return worst


def _distance(answer: np.ndarray, expected: np.ndarray) -> float:
    return float((np.abs(answer - expected) / np.maximum(1.0, np.abs(expected))).max())


def _write_selftest(predictor: Predictor, folder: Path, elapsed: bool) -> None:
    random = np.random.default_rng(0)
    lengths = TEST_LENGTHS
    if isinstance(predictor.model, Frozen):  # the kernels reach over about one series of the training set
        lengths = (*TEST_LENGTHS[:2], min(predictor.model.bank.reach + 1, TEST_LENGTHS[2]))
    tests: dict[str, Any] = {"count": len(lengths), "allowed": ALLOWED}
    exact = copy.deepcopy(predictor).double()
    for i, length in enumerate(lengths):
        timed: dict[str, Any] = {}
        series = _test_series(predictor, length, random)
        if elapsed:
            gaps = np.exp(random.standard_normal((2, length))).astype(np.float32)
            tests[f"elapsed_{i}"], timed = gaps, {"elapsed": torch.from_numpy(gaps).T}
        answer, truth = (_answer(each, series, **timed) for each in (predictor, exact))
        error = _distance(answer, truth)
        if isinstance(predictor.model, Frozen):
            series, answer, error = _far_from_thresholds(predictor, exact, length, random)
            tests["allowed"] = max(tests["allowed"], _jump(predictor, predictor.model, length))
        tests |= {f"series_{i}": series, f"answer_{i}": answer}
        tests["allowed"] = max(tests["allowed"], 10.0 * error)
    np.savez(folder / "selftest.npz", **tests)


def _test_series(predictor: Predictor, length: int, random: np.random.Generator) -> np.ndarray:
    mean, scale = predictor.mean.numpy(), predictor.scale.numpy()
    series = (mean + scale * random.standard_normal((2, length, len(mean)))).astype(np.float32)
    if predictor.missing == "mask" and length > 1:
        series[0, 1] = np.nan
    return series


def _answer(predictor: Predictor, series: np.ndarray, **timed: Tensor) -> np.ndarray:
    with torch.inference_mode():
        answer: Tensor = predictor(torch.from_numpy(series).transpose(0, 1), **timed)[0]
    return answer.numpy()


def _far_from_thresholds(
    predictor: Predictor, exact: Predictor, length: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return two series, their answers, and how much rounding moves these.

    A feature that counts the steps above a threshold jumps where rounding decides a comparison. So of many series
    those are taken whose answers move least in float64, and when input and weights move by a few roundings.
    """
    series = np.concatenate([_test_series(predictor, length, random) for _ in range(CANDIDATES // 2)])
    if predictor.missing == "mask" and length > 1:
        series[:, 1] = np.nan
    answer = _answer(predictor, series)
    error = np.zeros(len(series))
    for k in range(1 + NUDGES):
        other, moved = exact, series
        if k > 0:
            other = copy.deepcopy(predictor)
            moved = series * (1.0 + NUDGE * random.uniform(-1.0, 1.0, series.shape)).astype(np.float32)
            with torch.no_grad():
                for weight in (weight for cell in other.model.cells for weight in cell.parameters()):
                    noise = torch.from_numpy(random.uniform(-1.0, 1.0, tuple(weight.shape))).float()
                    weight.mul_(1.0 + NUDGE * noise)
        difference = np.abs(_answer(other, moved) - answer) / np.maximum(1.0, np.abs(answer))
        error = np.maximum(error, difference.reshape(len(series), -1).max(axis=1))
    best = np.argsort(error, kind="stable")[:2]
    return series[best], _answer(predictor, series[best]), float(error[best].max())


def _jump(predictor: Predictor, model: Frozen, length: int) -> float:
    """Return how far an answer can move if rounding decides whether one saturated unit rises at one step.

    No choice of series avoids that, but the short ones are over before units saturate.
    """
    if length <= TEST_LENGTHS[1]:
        return 0.0
    rises = [name.endswith("_rise") for name in model.names()]
    slope = (model.get_parameter("readout.weight").abs() / model.feature_scale)[:, rises].amax().item() / length
    # A probability moves by at most a quarter of what its score moves by, relative to another score.
    return slope * (0.5 if predictor.kind == "classifier" else float(predictor.target_scale.max()))


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
            elif (reason := _outside_the_operator(cell)) is not None:
                raise ValueError(
                    "The export must be portable here, since LEM's kernel cannot serve "
                    f"{type(cell).__name__}: {reason}."
                )

    def forward(
        self, series: Tensor, state: tuple[Tensor, ...], elapsed: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        timed = {} if elapsed is None else {"elapsed": elapsed.transpose(0, 1)}
        answer, state = self.predictor(series.transpose(0, 1), state, **timed)
        return answer, tuple(state)


def _outside_the_operator(cell: Cell) -> str | None:
    """Say why `lem::sequence` does not compute this cell; None if it does."""
    if not isinstance(cell, LEMCell):  # the kernels of other cells are not operators of torch
        return "it computes LEM only"
    backend, reason = cell.backend_for(torch.zeros(1, 1, cell.input_size))
    return None if backend == "native" else reason


def _scan(
    cell: Cell,
    count: int,
    u: Tensor,
    state: State | None,
    lengths: Tensor | None = None,
    reverse: bool = False,
    elapsed: Tensor | None = None,
) -> tuple[Tensor, State]:
    """Do what `Cell.sequence` does, by the operator `scan`, with what the cell prepared before tracing."""
    prepared = [cell.get_buffer(f"prepared_{i}") for i in range(count)]
    return scan(cell, u, state, lengths, reverse, elapsed, prepared=prepared)


def state_names(predictor: Predictor) -> list[str]:
    """Name the tensors of the state: those of the cell, then what the readout's mean carries."""
    if isinstance(predictor.model, Frozen):
        return predictor.model.state_names()
    fields = list(predictor.model.recurrent.state_type._fields)
    return fields + (["total", "count"] if predictor.model.pool == "both" else [])


def exported_program(
    predictor: Predictor, *, portable: bool = True, elapsed: bool = False
) -> torch.export.ExportedProgram:
    """Trace a predictor with free batch and time axes; the loop is torch's `scan`, or else our `lem::sequence`."""
    dynamic = torch.export.Dim.DYNAMIC
    example: tuple[Any, ...] = (torch.zeros(2, 3, predictor.channels), tuple(predictor.model.init_state(2)))
    shapes: tuple[Any, ...] = ({0: dynamic, 1: dynamic}, tuple({1: dynamic} for _ in example[1]))
    if elapsed:
        example, shapes = (*example, torch.ones(2, 3)), (*shapes, {0: dynamic, 1: dynamic})
    with torch.no_grad(), _quiet():
        try:
            return torch.export.export(_Loop(predictor, portable).eval(), example, dynamic_shapes=shapes)
        except torch._dynamo.exc.UserError as error:
            raise ValueError(
                "The export to onnx or torch must be of a cell whose step takes the same course for all data; got "
                f"{type(predictor.model.cells[0]).__name__}."
            ) from error


def _write_torch(predictor: Predictor, folder: Path, elapsed: bool, portable: bool = True) -> None:
    torch.export.save(exported_program(predictor, portable=portable, elapsed=elapsed), folder / "model.pt2")


def _run_torch(folder: Path) -> Run:
    program = torch.export.load(folder / "model.pt2")
    module, states = program.module(), list(program.example_inputs[0][1])

    def run(series: np.ndarray, elapsed: np.ndarray | None) -> np.ndarray:
        state = tuple(s[:, :1].expand(-1, len(series), -1).contiguous() for s in states)
        timed = () if elapsed is None else (torch.from_numpy(elapsed),)
        with torch.no_grad():
            answer: Tensor = module(torch.from_numpy(series), state, *timed)[0]
        return answer.numpy()

    return run


def _write_onnx(predictor: Predictor, folder: Path, elapsed: bool) -> None:
    _need("onnx", "onnxruntime", "onnxscript")
    names = state_names(predictor)
    with _quiet():
        program = torch.onnx.export(
            exported_program(predictor, elapsed=elapsed),
            input_names=["series", *names, *["elapsed"] * elapsed],
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


def _run_onnx(folder: Path) -> Run:
    _need("onnxruntime")
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    initial = json.loads(session.get_modelmeta().custom_metadata_map["lem"])["initial_state"]

    def run(series: np.ndarray, elapsed: np.ndarray | None) -> np.ndarray:
        feeds = {"series": series} | ({} if elapsed is None else {"elapsed": elapsed})
        for name, value in initial.items():
            feeds[name] = np.repeat(np.array(value, np.float32)[:, None], len(series), axis=1)
        answer: np.ndarray = session.run(["answer"], feeds)[0]
        return answer

    return run


# --- NumPy ----------------------------------------------------------------------------------------------------------


def _write_numpy(predictor: Predictor, folder: Path, elapsed: bool) -> None:
    if isinstance(predictor.model, Frozen):
        _write_numpy_frozen(predictor, predictor.model, folder)
        return
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


def _write_numpy_frozen(predictor: Predictor, model: Frozen, folder: Path) -> None:
    wrong = next((type(cell).__name__ for cell in model.cells if not isinstance(cell, LEMCell)), None)
    if wrong is not None:
        raise ValueError(f"The export to numpy must be of LEM or its variants alone; got {wrong}: use torch.")
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


def _run_numpy(folder: Path) -> Run:
    model = runpy.run_path(str(folder / "model.py"))["Model"](folder / "weights.npz")
    # A file written by 0.1.0 knows no elapsed times.
    return lambda series, elapsed: model(series)[0] if elapsed is None else model(series, None, elapsed)[0]


# --- what is there --------------------------------------------------------------------------------------------------

EXPORTS: dict[str, tuple[Callable[[Predictor, Path, bool], None], Callable[[Path], Run]]] = {
    "onnx": (_write_onnx, _run_onnx),
    "torch": (_write_torch, _run_torch),
    "numpy": (_write_numpy, _run_numpy),
}
"""How each form is written, and how it is run."""


def _need(*libraries: str) -> None:
    import importlib.util

    for name in libraries:
        if importlib.util.find_spec(name) is None:
            raise ImportError(f"The export to ONNX needs {name}. In a checkout of lem, run: pip install '.[export]'")


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
