"""Speed and memory of LEM against nn.LSTM, nn.GRU and the plain loop, measured in one run. `lem bench` prints it.

Every implementation is verified before it is timed. Implementations alternate in shuffled order within a round, and
ratios are taken within a round, so that what else the machine does meets all of them. Work is counted as
2 (4 d^2 + 4 d m) B T operations forward and twice that backward, for all implementations alike. The loop takes so long
that it runs over the first steps only and its time is scaled; it and nn.GRU run in one round. On a machine that others
use, measure one thread in processor time: the wall clock then measures the others too.
"""

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from lem.diagnostics.load import Watch, is_loaded
from lem.environment import environment
from lem.kernels import cpu
from lem.nn.cells import LEMCell
from lem.nn.recurrent import LEM


class Shape(NamedTuple):
    """A problem: steps, rows, inputs, hidden units."""

    steps: int
    batch: int
    inputs: int
    hidden: int

    @property
    def flops(self) -> float:
        """Operations of one forward pass."""
        return 8.0 * self.hidden * (self.hidden + self.inputs) * self.batch * self.steps


SHAPES = [
    Shape(1000, 32, 1, 16),
    Shape(2000, 50, 2, 128),  # adding problem
    Shape(784, 128, 1, 128),  # sMNIST
    Shape(1000, 100, 96, 128),  # nCIFAR-10
    Shape(17984, 8, 6, 32),  # EigenWorms
    Shape(4000, 32, 2, 128),
    Shape(125, 100, 80, 128),  # Google12
    Shape(70, 64, 256, 256),
    Shape(150, 128, 200, 1024),  # PTB
]

LOOP_STEPS = 250
PACKED_STEPS = 500
"""The time of a packed nn.LSTM grows with the square of the steps: more than these would take hours."""
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
Run = Callable[[], Tensor]


def contestants(shape: Shape, lengths: Tensor | None = None) -> dict[str, Run]:
    """Return the forward pass of each implementation on the same input."""
    torch.manual_seed(0)
    steps, batch, m, d = shape
    u = torch.randn(steps, batch, m)
    lem, lstm, gru = LEM(m, d, backend="native"), nn.LSTM(m, d), nn.GRU(m, d)
    cell = lem.cells[0]
    assert isinstance(cell, LEMCell)
    if lengths is None:
        return {
            "lem": lambda: lem(u)[0],
            "lem bfloat16": lambda: _autocast(lem, u),
            "lstm": lambda: lstm(u)[0],
            "lstm bfloat16": lambda: _autocast(lstm, u),
            "gru": lambda: gru(u)[0],
            "loop": lambda: cell.loop(u[:LOOP_STEPS])[0],
        }
    packed = pack_padded_sequence(u[:PACKED_STEPS], lengths.clamp(max=PACKED_STEPS), enforce_sorted=False)
    return {
        "lem": lambda: lem(u, lengths=lengths)[0],
        "full": lambda: lem(u)[0],
        "lstm": lambda: lstm(packed)[0].data,
    }


def _autocast(layer: nn.Module, u: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return _outputs(layer, u)


def verify(shape: Shape) -> float:
    """Compare the kernel, in both precisions, with the loop over the first steps; raise if they differ."""
    torch.manual_seed(0)
    layer = LEM(shape.inputs, shape.hidden, backend="native")
    cell = layer.cells[0]
    assert isinstance(cell, LEMCell)
    u = torch.randn(min(shape.steps, 40), shape.batch, shape.inputs)
    runs: list[Run] = [lambda: cell.loop(u)[0], lambda: cell.sequence(u)[0], lambda: _autocast(layer, u)]
    found = []
    for run in runs:
        out = run().float()
        found.append([out.detach(), *torch.autograd.grad(out.square().sum(), list(cell.parameters()))])
    errors = [max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(x, found[0])) for x in found[1:]]
    for error, most, precision in zip(errors, (1e-3, 0.1), ("float32", "bfloat16")):
        if not error < most:
            raise RuntimeError(
                f"the kernel differs from the loop by {error:.2g} at {tuple(shape)} in {precision}; nothing is timed."
            )
    return errors[0]


def measure(
    runs: dict[str, Run],
    rounds: int,
    last_step: bool = False,
    once: tuple[str, ...] = ("loop", "gru"),
    clock: str = "wall",
) -> dict[str, dict[str, list[float]]]:
    """Time forward and backward in shuffled rounds; `once` names what is too slow for every round."""
    seconds: dict[str, dict[str, list[float]]] = {n: {"forward": [], "both": []} for n in runs}
    grads: dict[str, Tensor] = {}
    now = CLOCKS[clock]
    for r in range(rounds + 1):  # the first warms up
        order = [name for name in runs if name not in once or r == 1]
        random.Random(r).shuffle(order)
        for name in order:
            if r == 0:
                _warm_up(runs[name])
            start = now()
            out = runs[name]()
            middle = now()
            if name not in grads:
                grads[name] = torch.randn(out.shape).to(out.dtype)
                if last_step:
                    grads[name][:-1] = 0.0
            again = now()
            out.backward(grads[name])
            end = now()
            if r > 0:
                seconds[name]["forward"].append(middle - start)
                seconds[name]["both"].append(middle - start + end - again)
            del out
    return seconds


def _warm_up(run: Run) -> None:
    """Run forward and backward a few times if they are short: the kernel learns from them how many threads to use."""
    start = time.perf_counter()
    for _ in range(10):
        out = run()
        out.backward(torch.ones_like(out))
        if time.perf_counter() - start > 0.2:
            return


def _middle(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "low": ordered[len(ordered) // 4],
        "high": ordered[(3 * len(ordered)) // 4],
        "best": ordered[0],
    }


def _ratio(over: list[float], under: list[float]) -> float:
    if len(over) == len(under):
        return statistics.median(a / b for a, b in zip(over, under))
    return statistics.median(over) / statistics.median(under)


def speed(
    shapes: list[Shape], threads: int, rounds: int, last_step: bool, flush: bool, clock: str = "wall"
) -> Iterator[dict[str, Any]]:
    """Yield one row per shape: times, ratios to nn.LSTM, nn.GRU and the loop, GFLOP/s and percent of the peak."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(flush)
    try:
        for shape in shapes:
            error, peak, watch = verify(shape), cpu.peak(), Watch()
            seconds = measure(contestants(shape), rounds, last_step, clock=clock)
            others = watch.others()
            scale = max(1.0, shape.steps / LOOP_STEPS)
            seconds["loop"] = {kind: [scale * t for t in times] for kind, times in seconds["loop"].items()}
            row: dict[str, Any] = {"shape": list(shape), "threads": threads, "rounds": rounds, "error": error}
            row["clock"] = clock
            row |= {"last_step": last_step, "flush_denormals": flush, "peak_gflops": peak}
            row |= {"others": others, "loaded": is_loaded(others)}
            row["seconds"] = {n: {k: _middle(v) for k, v in s.items()} for n, s in seconds.items()}
            for kind, work in (("forward", shape.flops), ("both", 3 * shape.flops)):
                ours = seconds["lem"][kind]
                row[f"x_{kind}"] = {n: _ratio(s[kind], ours) for n, s in seconds.items() if n != "lem"}
                row[f"x_bfloat16_{kind}"] = {
                    n: _ratio(seconds[n][kind], seconds["lem bfloat16"][kind]) for n in ("lem", "lstm bfloat16")
                }
                row[f"gflops_{kind}"] = work / _middle(ours)["median"] / 1e9
            yield row
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(False)


def unequal(shapes: list[Shape], threads: int, rounds: int, clock: str = "wall") -> Iterator[dict[str, Any]]:
    """Yield one row per shape with lengths uniform in [T/10, T]: against the full batch and a PackedSequence.

    nn.LSTM runs over the first steps of the packed rows, its time scaled by the real steps, which flatters it.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for shape in shapes:
            generator = torch.Generator().manual_seed(1)
            lengths = torch.randint(shape.steps // 10, shape.steps + 1, (shape.batch,), generator=generator)
            share = float(lengths.double().mean()) / shape.steps
            scale = float(lengths.sum()) / float(lengths.clamp(max=PACKED_STEPS).sum())
            seconds = measure(contestants(shape, lengths), rounds, once=("lstm",), clock=clock)
            of_full = _ratio(seconds["lem"]["both"], seconds["full"]["both"])
            yield {
                "shape": list(shape),
                "threads": threads,
                "clock": clock,
                "load": os.getloadavg()[0],
                "share": share,
                "of_full": of_full,
                "over_ideal": of_full / share,
                "x_packed_lstm": scale * _ratio(seconds["lstm"]["both"], seconds["lem"]["both"]),
            }
    finally:
        torch.set_num_threads(before)


def odd_sizes(threads: int, rounds: int, clock: str = "wall") -> Iterator[dict[str, Any]]:
    """Yield, for each odd size, its time per operation over that of the round size next to it."""
    pairs = [
        *(("hidden", d, r) for d, r in ((1, 8), (7, 8), (17, 16), (33, 32), (100, 96), (129, 128))),
        *(("batch", b, r) for b, r in ((1, 2), (3, 4), (7, 8))),
        *(("inputs", m, r) for m, r in ((1, 2), (3, 4), (17, 16), (300, 304))),
    ]
    torch.set_num_threads(threads)
    for axis, odd, even in pairs:
        sizes = [Shape(400, 16, 2, 64)._replace(**{axis: size}) for size in (odd, even)]
        runs = {str(s): contestants(s)["lem"] for s in sizes}
        seconds = measure(runs, rounds, clock=clock)
        a, b = (seconds[str(s)]["both"] for s in sizes)
        yield {"axis": axis, "size": odd, "beside": even, "x": _ratio(a, b) * sizes[1].flops / sizes[0].flops}


def _outputs(layer: nn.Module, u: Tensor) -> Tensor:
    outputs: Tensor = layer(u)[0]
    return outputs


def modes(shapes: list[Shape], threads: int, rounds: int, clock: str = "wall") -> Iterator[dict[str, Any]]:
    """Yield the time of each way to keep less memory over that of keeping the gates."""
    torch.set_num_threads(threads)
    for shape in shapes:
        u = torch.randn(shape.steps, shape.batch, shape.inputs)
        layers = {
            m: LEM(shape.inputs, shape.hidden, backend="native", memory=m) for m in ("store", "recompute", "bounded")
        }
        runs: dict[str, Run] = {m: partial(_outputs, layer, u) for m, layer in layers.items()}
        seconds = measure(runs, rounds, clock=clock)
        store = seconds["store"]["both"]
        row: dict[str, Any] = {"shape": list(shape), "threads": threads, "store_ms": 1e3 * _middle(store)["median"]}
        yield row | {f"x_{m}": _ratio(seconds[m]["both"], store) for m in ("recompute", "bounded")}


def small_batches(threads: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the gain of more threads if the batch has fewer rows than threads; and nn.LSTM for comparison."""
    for shape in (Shape(2000, 1, 2, 64), Shape(2000, 1, 2, 128), Shape(1000, 1, 96, 256)):
        pair = contestants(shape)

        def run(name: str, count: int, pair: dict[str, Run] = pair) -> Tensor:
            torch.set_num_threads(count)
            return pair[name]()

        runs: dict[str, Run] = {
            f"{name} {count}": partial(run, name, count) for name in ("lem", "lstm") for count in (1, threads)
        }
        seconds = measure(runs, rounds)
        row: dict[str, Any] = {"shape": list(shape), "threads": threads}
        row["ms"] = {name: 1e3 * _middle(times["both"])["median"] for name, times in seconds.items()}
        for kind in ("forward", "both"):
            row[f"x_one_thread_{kind}"] = _ratio(seconds["lem 1"][kind], seconds[f"lem {threads}"][kind])
        yield row


def growth(threads: int, rounds: int, clock: str = "wall") -> Iterator[dict[str, Any]]:
    """Yield the time per step and row as the sequence and as the batch grow."""
    torch.set_num_threads(threads)
    shapes = [Shape(t, 8, 6, 32) for t in (1000, 4000, 16000, 64000)]
    shapes += [Shape(500, b, 2, 64) for b in (1, 2, 8, 32, 128, 512)]
    for shape in shapes:
        seconds = measure({"lem": contestants(shape)["lem"]}, rounds, clock=clock)
        both = _middle(seconds["lem"]["both"])["median"]
        yield {"shape": list(shape), "ns_per_step_and_row": 1e9 * both / shape.steps / shape.batch}


def streaming(hidden: tuple[int, ...] = (32, 128), times: int = 5000) -> Iterator[dict[str, Any]]:
    """Yield microseconds of a single step of one row: the kernel's stepper, nn.LSTMCell and LEMCell's own step."""
    for d in hidden:
        row: dict[str, Any] = {"hidden": d}
        cell, lstm, u = LEMCell(2, d), nn.LSTMCell(2, d), torch.randn(1, 2)
        with torch.no_grad():
            row["stepper"] = _microseconds(cpu.Stepper(cell).step, times)
            row["lstm"] = _microseconds(partial(lstm, u, (torch.zeros(1, d), torch.zeros(1, d))), times)
            row["lem"] = _microseconds(partial(cell, u, cell.init_state(1)), times)
        yield row


def _microseconds(run: Callable[[], Any], times: int) -> float:
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(times // 5):
            run()
        best = min(best, (time.perf_counter() - start) / (times // 5))
    return 1e6 * best


MEMORY = """
import sys, torch
from lem.diagnostics import bench
from lem.kernels import cpu
torch.set_num_threads(2)
shape, name = bench.Shape(*map(int, sys.argv[1:5])), sys.argv[5]
u = torch.randn(shape.steps, shape.batch, shape.inputs)
if name in ("lstm", "loop"):
    run = bench.contestants(shape)[name]
else:
    layer = bench.LEM(shape.inputs, shape.hidden, backend="native", memory=name)
    run = lambda: layer(u)[0]
for other in bench.contestants(shape._replace(steps=2)).values():  # what torch loads on first use is not ours
    out = other()
    out.backward(torch.ones_like(out))
del out
grad = torch.randn(1, 1, 1).expand(shape.steps, shape.batch, shape.hidden)
cpu.release_memory()
open("/proc/self/clear_refs", "w").write("5")
base = bench.status("VmRSS")
out = run()
out.backward(grad.contiguous())
print(bench.status("VmHWM") - base)
"""


def status(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field))
    return int(line.split()[1]) * 1024


def memory(shapes: list[Shape], names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the peak memory that forward and backward add, each in a fresh process, and the forecast."""
    for shape in shapes:
        row: dict[str, Any] = {"shape": list(shape), "bytes": {}, "forecast": {}}
        for name in names:
            command = [sys.executable, "-P", "-c", MEMORY, *map(str, shape), name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            row["bytes"][name] = int(done.stdout)
            if name not in ("lstm", "loop"):
                row["forecast"][name] = cpu.memory_forecast(*shape, memory=name).peak
        yield row


def machine() -> dict[str, Any]:
    """Describe what the measurements were made on."""
    here = environment()
    return {key: here[key] for key in ("cpu", "cores", "torch", "commit")} | {"target": cpu.target()}
