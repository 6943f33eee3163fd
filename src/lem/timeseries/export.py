"""A trained model for machines without this library: ONNX, torch.export, or one NumPy file.

Each export is a folder with the model, a self-test (inputs and the answers they must give) and is called done only
after the self-test has passed. ONNX and torch.export hold the time loop as one operator, so time and batch stay free;
both take the series (batch, time, channels) and a state, and return the answer and the state that continues it. For
torch.export there is a choice of that operator: torch's own `scan`, or our kernel, which is faster and needs us.
"""

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lem.extras import extra
from lem.nn.cells import Cell, LEMCell, State
from lem.nn.cells.scan import scan
from lem.timeseries.frozen import Frozen
from lem.timeseries.numpy_export import run_numpy, write_numpy
from lem.timeseries.predictor import Predictor
from lem.timeseries.segment_export import write_segments
from lem.timeseries.segments import SegmentNetwork
from lem.timeseries.selftest import Run, allowance, distance, write_selftest
from lem.timeseries.tracing import need_onnx, quiet
from lem.wording import check_choice


def export(
    predictor: Predictor, to: str, folder: str | Path, *, portable: bool = True, elapsed: bool | None = None
) -> Path:
    """Write `predictor` into a folder as "onnx", "torch" or "numpy", run its self-test there, and return the folder.

    With `portable=False` a "torch" program runs LEM on the kernel, as the operator `lem::sequence`: faster, but who
    loads it must `import lem.nn` first.

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
    if to == "onnx" and isinstance(predictor.model, Frozen) and (predictor.model.causal or predictor.model.masked):
        raise ValueError(
            "Models of frozen features with causal=True or missing='mask' cannot be exported to onnx: use numpy or "
            "torch."
        )
    if elapsed and isinstance(predictor.model, Frozen):
        raise ValueError("`elapsed` of export must be False: frozen features do not read the times of observations.")
    if elapsed and not segments and (reason := predictor.model.cells[0].refuse_elapsed()) is not None:
        raise ValueError(f"`elapsed` of export must be False: {reason}.")
    check_choice("export", "to", to, EXPORTS)
    if not portable and to != "torch":
        raise ValueError(
            f"`portable` of export can be False for torch only: {to} does not have this library's operator."
        )
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
        write_selftest(predictor, folder, elapsed)
    worst, allowed = selftest(to, folder), allowance(folder)
    if not worst <= allowed:
        raise ValueError(
            f"The export to {to} must give the model's answers to {allowed:.2g}; got an error of {worst:.2g}."
        )
    return folder


def selftest(to: str, folder: str | Path) -> float:
    """Run an exported model on its self-test; return the largest error, relative to answers larger than one."""
    folder = Path(folder)
    run = EXPORTS[to][1](folder)
    test, worst = np.load(folder / "selftest.npz", allow_pickle=False), 0.0
    for i in range(int(test["count"])):
        gaps = test.get(f"elapsed_{i}")
        worst = max(worst, distance(run(test[f"series_{i}"], gaps), test[f"answer_{i}"]))
    return worst


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
    with torch.no_grad(), quiet():
        try:
            return torch.export.export(_Loop(predictor, portable).eval(), example, dynamic_shapes=shapes)
        except torch._dynamo.exc.UserError as error:
            raise ValueError(
                "A cell whose step depends on the data cannot be exported to onnx or torch; got "
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
    need_onnx()
    names = state_names(predictor)
    with quiet():
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
    onnxruntime = extra("onnxruntime", "The export to ONNX needs")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    initial = json.loads(session.get_modelmeta().custom_metadata_map["lem"])["initial_state"]

    def run(series: np.ndarray, elapsed: np.ndarray | None) -> np.ndarray:
        feeds = {"series": series} | ({} if elapsed is None else {"elapsed": elapsed})
        for name, value in initial.items():
            feeds[name] = np.repeat(np.array(value, np.float32)[:, None], len(series), axis=1)
        answer: np.ndarray = session.run(["answer"], feeds)[0]
        return answer

    return run


# --- all forms -------------------------------------------------------------------------------------------------------

EXPORTS: dict[str, tuple[Callable[[Predictor, Path, bool], None], Callable[[Path], Run]]] = {
    "onnx": (_write_onnx, _run_onnx),
    "torch": (_write_torch, _run_torch),
    "numpy": (write_numpy, run_numpy),
}
"""How each form is written, and how it is run."""
