"""Check what runs on this machine: every backend against the float64 reference, and its speed against nn.LSTM.

`lem doctor` prints it. The whole examination takes about a minute and needs no network.
"""

import copy
import functools
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lem.diagnostics import gpu
from lem.diagnostics.load import Watch, is_loaded
from lem.environment import environment
from lem.extras import EXTRAS
from lem.kernels import cpu
from lem.nn.cells import LEMCell, LEMState
from lem.nn.model import SequenceModel
from lem.nn.recurrent import LEM
from lem.tasks import SOURCES
from lem.tasks.fetch import data_folder
from lem.training.checkpoint import load_tree, save_tree
from lem.training.data import ArraySplit
from lem.training.loop import fit
from lem.training.store import Memory

# How far a backend may be from the float64 loop: rounding over 200 steps, ten times the worst seen.
LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5}
SHAPES = ((1000, 32, 1, 16), (400, 64, 2, 128), (4000, 8, 6, 32))


def examine(say: Callable[[str], None] = lambda text: None, speed: bool = True) -> dict[str, Any]:
    """Examine the machine; `say` is called with the name of each step. The result is plain data for a bug report."""
    report: dict[str, Any] = {"environment": environment(), "kernel": _kernel(), "extras": _extras()}
    report["data"] = {"folder": str(data_folder()), "present": [k for k, s in SOURCES.items() if s.present()]}
    report["checks"] = []
    for name, check in _checks():
        say(name)
        try:
            detail, ok = check(), True
        except Exception as error:  # a broken machine may fail in any way, and must be reported whole
            detail, ok = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", False
        report["checks"].append({"name": name, "ok": ok, "detail": detail})
    report["speed"] = []
    for shape in SHAPES if speed else ():
        say(f"speed at {shape}")
        report["speed"].append(_speed(shape))
    report["ok"] = all(check["ok"] for check in report["checks"])
    report["advice"] = list(_advice(report))
    return report


def _kernel() -> dict[str, Any]:
    backend, why = LEMCell(1, 1).backend_for(torch.zeros(1, 1, 1))
    return {
        "backend": backend,
        "why": why,
        "targets": cpu.targets() if backend == "native" else [],
        "torch_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _extras() -> dict[str, list[str]]:
    """Return what is missing of each extra."""
    return {
        extra: [module for module in modules if importlib.util.find_spec(module) is None]
        for extra, modules in EXTRAS.items()
    }


# --- is it right? -------------------------------------------------------------------------------------------------


def _checks() -> Iterator[tuple[str, Callable[[], str]]]:
    if (missing := cpu.library_missing()) is not None and missing.code == "broken":  # not built is a choice
        yield "kernel library", _broken
    for dtype in LIMITS:
        kind = str(dtype).removeprefix("torch.")
        yield f"loop, {kind}", functools.partial(_agreement, "loop", dtype)
        for target in _kernel()["targets"]:
            yield f"kernel {target}, {kind}", functools.partial(_agreement, target, dtype)
    yield from gpu.checks()
    yield "streaming", _streaming
    yield "resume", _resume
    yield "checkpoint files", _files
    if _kernel()["targets"]:  # the loop is written out step by step: its export has a fixed length
        yield "torch.export with a free time axis", _export


def _broken() -> str:
    raise OSError(_kernel()["why"])


def _agreement(backend: str, dtype: torch.dtype) -> str:
    """Compare values and gradients, with unequal rows and both directions, with single steps in float64."""
    reference, u, weight, lengths, answers = _reference()
    cell, errors = copy.deepcopy(reference).to(dtype), []
    for reverse, expected in enumerate(answers):
        if backend == "loop":
            got = _run(cell, u.to(dtype), weight.to(dtype), lengths, bool(reverse), LEMCell.loop)
        else:
            cell.backend = "native"
            with cpu.using_target(backend):
                got = _run(cell, u.to(dtype), weight.to(dtype), lengths, bool(reverse), LEMCell.sequence)
        errors += [(g - e).abs().max() / e.abs().max().clamp(min=1.0) for g, e in zip(got, expected)]
    worst = float(torch.stack(errors).max())  # NaN where one is, unlike Python's max
    if not worst <= LIMITS[dtype]:
        raise ArithmeticError(f"differs from the float64 reference by {worst:.1e}; at most {LIMITS[dtype]:g} is right")
    return f"within {worst:.0e} of the float64 reference: values, gradients, lengths, both directions"


@functools.cache
def _reference() -> tuple[LEMCell, Tensor, Tensor, Tensor, list[list[Tensor]]]:
    """Return a cell, a problem, and what must come out, forwards and backwards in time."""
    torch.manual_seed(0)
    steps, batch, d = 200, 5, 33
    cell = LEMCell(3, d, dt=0.7, dtype=torch.float64, backend="loop")
    u, weight = torch.randn(steps, batch, 3, dtype=torch.float64), torch.randn(steps, batch, d, dtype=torch.float64)
    lengths = torch.tensor([200, 1, 117, 64, 33])
    return cell, u, weight, lengths, [_run(cell, u, weight, lengths, reverse, _by_hand) for reverse in (False, True)]


def _by_hand(cell: LEMCell, u: Tensor, _: None, lengths: Tensor, reverse: bool) -> tuple[Tensor, LEMState]:
    """Run each row alone, step by step: what every backend must equal, and shares nothing with but the equation."""
    outputs, ends = [], []
    for row, length in enumerate(lengths.tolist()):
        state, seen = None, []
        for t in reversed(range(length)) if reverse else range(length):
            state = cell(u[t, row], state)
            seen.append(state[0])
        shown = torch.stack(seen[::-1] if reverse else seen)
        outputs.append(torch.cat([shown, shown.new_zeros(len(u) - length, shown.shape[1])]))
        ends.append(state)
    y, z = (torch.stack(field) for field in zip(*ends))
    return torch.stack(outputs, dim=1), LEMState(y, z)


def _run(
    cell: LEMCell, u: Tensor, weight: Tensor, lengths: Tensor, reverse: bool, sequence: Callable[..., Any]
) -> list[Tensor]:
    u = u.clone().requires_grad_()
    cell.zero_grad()
    outputs, final = sequence(cell, u, None, lengths, reverse)
    ((outputs * weight).sum() + final.z.sum()).backward()
    grads = [p.grad for p in (u, *cell.parameters())]
    return [t.detach().double() for t in (outputs, *final, *grads) if t is not None]


def _streaming() -> str:
    torch.manual_seed(0)
    layer, u = LEM(2, 16, num_layers=2), torch.randn(50, 3, 2)
    with torch.no_grad():
        whole, _ = layer(u)
        parts, state = [], None
        for chunk in u.split([1, 7, 30, 12]):
            out, state = layer(chunk, state)
            parts.append(out)
    difference = float((torch.cat(parts) - whole).abs().max())
    if not difference <= 1e-5:
        raise ArithmeticError(f"chunks differ from the whole by {difference:.1e}")
    return "chunks equal the whole sequence"


def _resume() -> str:
    generator = torch.Generator().manual_seed(0)
    data = ArraySplit(torch.randn(16, 10, 2, generator=generator), torch.arange(16) % 2)

    def train(store: Memory, stop: int | None) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model, calls = SequenceModel("lem", 2, 8, 2), iter(range(10**6))
        settings: dict[str, Any] = {"loss": "cross_entropy", "metric": "accuracy", "batch_size": 4, "epochs": 2}
        halt = (lambda: next(calls) + 1 == stop) if stop else None
        fit(model, data, data, learning_rate=0.01, store=store, should_stop=halt, **settings)
        return model.state_dict()

    whole, store = train(Memory(), None), Memory()
    train(store, 3)
    resumed = train(store, None)
    if not all(torch.equal(whole[name], resumed[name]) for name in whole):
        raise ArithmeticError("a resumed run differs from the run that was not interrupted")
    return "a resumed run equals the uninterrupted one, bit for bit"


def _files() -> str:
    with tempfile.TemporaryDirectory() as folder:
        tree: dict[str, Any] = {"weights": torch.randn(1000), "step": 3}
        save_tree(Path(folder) / "x.ckpt", tree)
        if not torch.equal(load_tree(Path(folder) / "x.ckpt")["weights"], tree["weights"]):
            raise OSError("a checkpoint does not come back as it was written")
    return "written whole, read back the same"


def _export() -> str:
    layer, time_axis = LEM(2, 8), torch.export.Dim("time", min=2, max=10**6)
    program = torch.export.export(layer, (torch.randn(20, 3, 2),), dynamic_shapes=({0: time_axis},))
    u = torch.randn(77, 3, 2)
    difference = float((program.module()(u)[0] - layer(u)[0]).detach().abs().max())
    if not difference <= 1e-6:
        raise ArithmeticError(f"the exported program differs by {difference:.1e}")
    return "exported at 20 steps, run at 77"


# --- is it fast? --------------------------------------------------------------------------------------------------


def _speed(shape: tuple[int, int, int, int]) -> dict[str, Any]:
    """Time forward + backward against nn.LSTM of equal size, interleaved; the ratio is paired within each round."""
    steps, batch, m, d = shape
    u, seconds = torch.randn(steps, batch, m), {"lem": [], "lstm": []}  # type: ignore[var-annotated]
    layers = {"lem": LEM(m, d), "lstm": nn.LSTM(m, d)}
    watch = Watch()
    for trial in range(6):
        for name, layer in layers.items():
            start = time.perf_counter()
            layer(u)[0].sum().backward()
            if trial:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    ratios = sorted(b / a for a, b in zip(seconds["lem"], seconds["lstm"]))
    others = watch.others()
    return {
        "shape": list(shape),
        "lem_ms": round(1e3 * statistics.median(seconds["lem"]), 2),
        "lstm_ms": round(1e3 * statistics.median(seconds["lstm"]), 2),
        "times_lstm": round(statistics.median(ratios), 2),
        "spread": [round(ratios[0], 2), round(ratios[-1], 2)],
        "threads": torch.get_num_threads(),
        "loaded": is_loaded(others),
    }


def _advice(report: dict[str, Any]) -> Iterator[str]:
    for check in report["checks"]:
        if not check["ok"]:
            yield f"{check['name']} is wrong here ({check['detail']}): please report it with `lem doctor --json`."
    if report["kernel"]["backend"] != "native":
        yield (
            f"LEM runs on the Python loop: {report['kernel']['why']}. The results are right, but slower by one to two "
            "orders of magnitude, and an export has a fixed length. With a C++ compiler at hand, "
            "`pip install --force-reinstall --no-deps --no-cache-dir .` builds the kernel."
        )
    if any(row["loaded"] for row in report["speed"]):
        yield "Other programs used the processors while this was timed: run `lem doctor` again on an idle machine."
    slow = [row for row in report["speed"] if row["times_lstm"] < 1.0 and report["kernel"]["backend"] == "native"]
    for row in slow:
        yield f"Slower than nn.LSTM at {tuple(row['shape'])}: is another program using the cores?"
    missing = [extra for extra, modules in report["extras"].items() if modules]
    if missing:
        yield f"Not installed: {', '.join(missing)}. In a checkout of lem, run: pip install '.[{','.join(missing)}]'"
