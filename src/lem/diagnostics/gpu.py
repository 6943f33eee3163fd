"""Check and time LEM on a GPU: every path that the card offers, against the loop and nn.LSTM.

`lem doctor` runs the checks, `lem bench --device cuda` the measurements. Everything takes the device as an argument.
"""

import copy
import functools
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lem.environment import environment
from lem.kernels.triton import operator
from lem.kernels.triton.kernel import card_refusal, installation
from lem.kernels.triton.memory import memory_forecast
from lem.kernels.triton.paths import AMD, NVIDIA, Path, choose, mode_of
from lem.nn.cells import LEMCell, LEMState
from lem.nn.recurrent import LEM

LIMITS = {"tf32x3": 1e-5, "ieee": 1e-5, "tf32": 1e-2, "bfloat16": 5e-2, "float16": 1e-2}
"""How far outputs and gradients may be from float64, by how the products are computed: ten times the emulated error."""
WIDTHS = (16, 32, 64, 128, 256, 320)
"""The widths of the table of paths, and one that only the alternating path serves."""


# --- is it right? -------------------------------------------------------------------------------------------------


def checks() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the checks for the GPU of this machine; none if there is no GPU."""
    if not torch.cuda.is_available():
        return
    device = torch.device("cuda", torch.cuda.current_device())
    name = torch.cuda.get_device_name(device)
    reason = installation() or card_refusal(operator.card_of(device.index))
    if reason is not None:
        yield f"GPU {name}", functools.partial(_refused, f"{reason.text}. {reason.remedy}".strip())
        return
    for path, mode, width in offered(torch.empty(0, device=device)):
        yield f"GPU, {path.kind}, {width} units, {mode}", functools.partial(agreement, mode, width, device)
    empty = torch.empty(0, device=device)
    for width in WIDTHS:
        path = operator.path_of(empty, width, timed=True)
        timed = functools.partial(
            agreement, mode_of(empty.dtype, operator.card(empty).vendor), width, device, timed=True
        )
        yield f"GPU, {path.kind}, {width} units, elapsed times and restarts", timed
    yield "GPU, memory forecast", functools.partial(forecast, device)


def offered(u: Tensor) -> Iterator[tuple[Path, str, int]]:
    """Yield what the table of paths offers on the card of a tensor: path, mode of the products, units."""
    card = operator.card(u)
    for mode in NVIDIA if card.vendor == "cuda" else AMD:
        for width in WIDTHS:
            yield choose(width, mode, card), mode, width


def _refused(text: str) -> str:
    raise OSError(text)


@contextmanager
def products(mode: str) -> Iterator[torch.dtype]:
    """Compute products in a mode; give the type in which the layer has to be."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if mode == "tf32" else "highest")
    try:
        yield getattr(torch, mode) if mode in ("bfloat16", "float16") else torch.float32
    finally:
        torch.set_float32_matmul_precision(before)


def agreement(
    mode: str, width: int, device: torch.device | str, steps: int = 50, batch: int = 19, timed: bool = False
) -> str:
    """Compare values and gradients with the loop in float64, and two runs with each other, bit for bit.

    A `timed` call has elapsed times and restarts.
    """
    with products(mode) as dtype:
        torch.manual_seed(0)
        cell = LEMCell(3, width, dt=0.7, dtype=dtype)
        u, weight = torch.randn(steps, batch, 3, dtype=dtype), torch.randn(steps, batch, width, dtype=dtype)
        lengths = torch.randint(1, steps + 1, (batch,))
        elapsed = 2 * torch.rand(steps, batch, dtype=dtype) + 0.1 if timed else None
        resets = (torch.rand(steps, batch) < 0.1) & (torch.arange(steps)[:, None] < lengths) if timed else None
        twin = copy.deepcopy(cell).double()
        expected = _run(twin, LEMCell.loop, u.double(), weight.double(), lengths, elapsed, resets)
        cell = cell.to(device)
        cell.backend = "triton"
        given = [None if t is None else t.to(device) for t in (u, weight, lengths, elapsed, resets)]
        first, second = (_run(cell, LEMCell.sequence, *given) for _ in range(2))
    if not all(torch.equal(a, b) for a, b in zip(first, second)):
        raise ArithmeticError("two runs of the same call differ: a race in the kernel")
    errors = [(g.cpu().double() - e).abs().max() / e.abs().max().clamp(min=1.0) for g, e in zip(first, expected)]
    worst = float(torch.stack(errors).max())
    if not worst <= LIMITS[mode]:
        raise ArithmeticError(f"differs from the float64 reference by {worst:.1e}; at most {LIMITS[mode]:g} is right")
    return f"within {worst:.0e} of the float64 reference; two runs are equal, bit for bit"


def _run(cell: LEMCell, sequence: Callable[..., Any], *given: Tensor | None) -> list[Tensor]:
    u, weight, lengths, elapsed, resets = given
    assert u is not None
    u = u.clone().requires_grad_()
    if elapsed is not None:
        elapsed = elapsed.to(u.dtype, copy=True).requires_grad_()
    cell.zero_grad()
    outputs, final = sequence(cell, u, None, lengths, False, elapsed, resets)
    assert isinstance(final, LEMState)
    ((outputs * weight).sum() + final.z.sum()).backward()
    grads = [p.grad for p in (u, *cell.parameters(), *([] if elapsed is None else [elapsed]))]
    return [t.detach().clone() for t in (outputs, *final, *grads) if t is not None]


def forecast(device: torch.device) -> str:
    """Compare the memory forecast with what torch allocated."""
    shape = Shape(2000, 64, 8, 64)
    told = []
    for memory in ("recompute", "bounded"):
        layer = LEM(shape.inputs, shape.hidden, memory=memory, device=device)
        u = torch.randn(shape.steps, shape.batch, shape.inputs, device=device)
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        base = torch.cuda.memory_allocated(device)
        layer(u)[0].square().sum().backward()
        peak = torch.cuda.max_memory_allocated(device) - base
        expected = memory_forecast(*shape, memory=memory).peak
        # The square and its gradient are not the layer's.
        own = peak - 2 * shape.steps * shape.batch * shape.hidden * 4
        if own > 1.1 * expected + (4 << 20):
            raise MemoryError(f"memory={memory!r} took {own} bytes; {expected} were forecast")
        told.append(f"{memory}: {own / 2**20:.0f} MiB, forecast {expected / 2**20:.0f}")
    return "; ".join(told)


# --- is it fast? --------------------------------------------------------------------------------------------------


class Shape(NamedTuple):
    """A problem: steps, rows, inputs, units."""

    steps: int
    batch: int
    inputs: int
    hidden: int


SHAPES = [Shape(t, b, 16, d) for d in (32, 64, 128, 256, 1024) for b in (16, 128, 2048) for t in (100, 1000)]
LOOP_STEPS = 50
"""The loop runs over the first steps only; its time is scaled."""


def machine(device: torch.device | str) -> dict[str, Any]:
    """Describe the GPU and the software that the measurements were made with."""
    here = environment()
    found: dict[str, Any] = {key: here[key] for key in ("lem", "torch", "python", "commit") if key in here}
    if torch.device(device).type == "cuda":
        import triton

        properties = torch.cuda.get_device_properties(device)
        card = operator.card_of(torch.device(device).index or 0)
        found |= {"gpu": properties.name, "architecture": card.architecture, "shared": card.shared}
        found |= {"gpu_memory": properties.total_memory, "processors": properties.multi_processor_count}
        found |= {"triton": triton.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
        found["matmul_precision"] = torch.get_float32_matmul_precision()
    return found


def speed(device: torch.device | str, rounds: int, shapes: list[Shape] = SHAPES) -> Iterator[dict[str, Any]]:
    """Yield one row per shape: the path, seconds of each implementation, and ratios to nn.LSTM and the loop.

    A shape that does not fit into the memory of the GPU is reported as such.
    """
    for shape in shapes:
        row: dict[str, Any] = {"shape": list(shape), "rounds": rounds}
        try:
            row |= _measured(shape, torch.device(device), rounds)
        except torch.cuda.OutOfMemoryError:
            row["error"] = "out of memory"
            torch.cuda.empty_cache()
        yield row


def _measured(shape: Shape, device: torch.device, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    steps, batch, m, d = shape
    u = torch.randn(steps, batch, m).to(device)
    layer, lstm = LEM(m, d, backend="triton").to(device), nn.LSTM(m, d).to(device)
    cell = layer.cells[0]
    assert isinstance(cell, LEMCell)
    short = u[:LOOP_STEPS]

    runs: dict[str, Callable[[], Tensor]] = {
        "triton": lambda: cell.sequence(u)[0],
        "alternating": lambda: cell.sequence(u)[0],
        "lstm": lambda: lstm(u)[0],
        "loop": lambda: cell.loop(short)[0],
    }
    with torch.no_grad():
        error = float((cell.sequence(short)[0] - cell.loop(short)[0]).abs().max())
    path = operator.path_of(u, d).kind
    if path == "alternating":
        del runs["alternating"]
    seconds = _times(runs, device, rounds)
    scale = max(1.0, steps / LOOP_STEPS)
    seconds["loop"] = {kind: [scale * t for t in times] for kind, times in seconds["loop"].items()}
    found: dict[str, Any] = {"path": path, "difference_to_loop": error, "seconds": {}}
    for name, kinds in seconds.items():
        found["seconds"][name] = {kind: _middle(times) for kind, times in kinds.items()}
    for kind in ("forward", "both"):
        ours = seconds["triton"][kind]
        for other in ("lstm", "loop"):
            found[f"x_{other}_{kind}"] = statistics.median(a / b for a, b in zip(seconds[other][kind], ours))
    return found


def _times(
    runs: dict[str, Callable[[], Tensor]], device: torch.device, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Time forward and backward in shuffled rounds; the first two warm up and compile."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    seconds: dict[str, dict[str, list[float]]] = {name: {"forward": [], "both": []} for name in runs}
    for r in range(rounds + 2):
        order = list(runs)
        random.Random(r).shuffle(order)
        for name in order:
            wait()
            with operator.using("alternating") if name == "alternating" else nullcontext():
                start = time.perf_counter()
                out = runs[name]()
                wait()
                middle = time.perf_counter()
                grad = torch.ones_like(out)
                wait()
                again = time.perf_counter()
                out.backward(grad)
                wait()
                end = time.perf_counter()
            if r >= 2:
                seconds[name]["forward"].append(middle - start)
                seconds[name]["both"].append(middle - start + end - again)
            del out, grad
    return seconds


def _middle(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "low": ordered[len(ordered) // 4],
        "high": ordered[(3 * len(ordered)) // 4],
    }
