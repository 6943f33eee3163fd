"""Compare the kernels with the loop in float64 on random problems: `python tools/fuzz_kernels.py [--runs N]`.

Each problem draws a cell, sizes around the vector widths, layers, directions, lengths, an initial state, elapsed times,
resets, the layout of the input, the type, the number of threads and, if the machine has several, the instruction set;
for LEM, which is half of the problems, also its options, what is kept for the backward pass and the precision. The
kernel's outputs, final states and gradients must agree with those of the loop in float64.

How close they must be depends on the problem: a chaotic one magnifies any rounding. So the loop is run again with
the input and the weights changed by one unit in the last place of the kernel's type, and the kernel may differ by
`FACTOR` times as much, or by a small absolute error if the problem changes nothing, or by `OWN` times what the loop
itself differs by in the kernel's type: sums that cancel have such errors in both. With bfloat16 products the unit is
that of bfloat16. Clipped gates are drawn in float64 only: rounding can carry a gate across the edge of the interval,
where its gradient jumps. A problem that fails is printed as the command that repeats it; the status is then 1.
"""

import argparse
import copy
import random
import sys
import time
from typing import Any

import torch
from torch import Tensor

from lem.kernels import cpu, loop_only
from lem.nn.cells import CELLS
from lem.nn.recurrent import Recurrent

FACTOR = {"float32": 64.0, "float64": 64.0, "bfloat16": 8.0}
OWN = 4.0
FLOOR = {"float32": 2e-5, "float64": 1e-11, "bfloat16": 2e-2}
ULP = {"float32": 2.0**-23, "float64": 2.0**-52, "bfloat16": 2.0**-8}
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65)


def draw(chance: random.Random) -> dict[str, Any]:
    """Draw a problem: plain values only, so that it can be printed."""
    name = "lem" if chance.random() < 0.5 else chance.choice(sorted(CELLS))
    hidden = chance.choice(SIZES)
    problem = {
        "cell": name,
        "inputs": chance.choice((1, 2, 3, 5, 8, 17)),
        "hidden": hidden + hidden % 2 if name == "nnrnn" else hidden,  # which has 2 x 2 blocks
        "layers": 1 if name == "nrde" else chance.choice((1, 1, 1, 2)),  # whose states cannot be stacked
        "bidirectional": chance.random() < 0.25,
        "steps": chance.choice((1, 2, 3, 5, 9, 20, 37)),
        "batch": chance.choice((1, 1, 2, 3, 4, 7, 8, 9)),
        "lengths": chance.random() < 0.4,
        "state": chance.random() < 0.4,
        "layout": chance.choice(("plain", "batch first", "strided", "reversed", "negative")),
        "dtype": chance.choice(("float32", "float32", "float64")),
        "gradient": chance.random() < 0.6,
        "threads": chance.choice((1, 1, 2, 3)),
        "scale": chance.choice((0.1, 1.0, 1.0, 10.0)),
        "elapsed": chance.random() < 0.3,
        "resets": chance.random() < 0.3,
        "target": chance.choice(cpu.targets()),
        "precision": "auto",
        "options": {},
    }
    if name == "lem":
        draw_lem(problem, chance)
    return problem


def draw_lem(problem: dict[str, Any], chance: random.Random) -> None:
    """Draw LEM's options, and now and then a size at which threads share a row or the backward pass has chunks."""
    if chance.random() < 0.05:
        problem["hidden"] = chance.choice((127, 130, 257, 300))
    elif chance.random() < 0.05:
        problem["steps"] = chance.choice((129, 150, 300))
    if problem["dtype"] == "float32":
        problem["precision"] = chance.choice(("auto", "auto", "bfloat16", "autocast"))
    options = problem["options"]
    options["dt"] = chance.choice((0.2, 0.9, 1.0, 1.0, 1.0 if problem["elapsed"] else 1.8))
    options["memory"] = chance.choice(("auto", "store", "recompute", "bounded"))
    options["bias"] = chance.random() < 0.8
    options["learn_initial_state"] = chance.random() < 0.3
    options["state_dropout"] = chance.choice((0.0, 0.0, 0.3))
    kind = chance.random()
    if kind < 0.2:
        options["single_scale"] = True
    elif kind < 0.35 and problem["dtype"] == "float64":
        options["clip"] = (0.3, 0.6)
    if problem["hidden"] > 1 and chance.random() < 0.3:
        options["proj_size"] = chance.randint(1, problem["hidden"] - 1)


def laid_out(u: Tensor, layout: str) -> Tensor:
    """Return the same values in memory of another layout."""
    if layout == "batch first":
        return u.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "strided":
        return torch.stack([u, torch.full_like(u, 1e9)], dim=-1)[..., 0]
    if layout == "reversed":
        return u.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    return (-u)._neg_view() if layout == "negative" else u


def results(layer: Recurrent, u: Tensor, state: Any, lengths: Tensor | None, problem: dict[str, Any]) -> list[Tensor]:
    """Return the outputs inside the lengths, the final state and, if asked for, the gradients of a fixed sum."""
    layer.zero_grad()
    torch.manual_seed(problem["steps"])  # of the dropout mask
    gradient = problem["gradient"]
    u = u.detach().requires_grad_(gradient)
    timing = given_times(layer, u, lengths, problem)
    with torch.set_grad_enabled(gradient), torch.autocast("cpu", torch.bfloat16, problem["precision"] == "autocast"):
        out, final = layer(u, state, lengths, **timing)
    with torch.set_grad_enabled(gradient):
        if lengths is not None:
            out = out * (torch.arange(len(out))[:, None, None] < lengths[None, :, None])
        found = [out, *final]
        if gradient:
            weights = [torch.linspace(-1.0, 1.0, f.numel(), dtype=torch.float64).reshape(f.shape) for f in found]
            total = sum((f * w.to(f.dtype)).sum() for f, w in zip(found, weights))
            if total.requires_grad:
                total.backward()
            leaves = [u, *timing.values(), *layer.parameters()]
            found += [p.grad for p in leaves if p.grad is not None]
    return [f.detach().double() for f in found]


def given_times(layer: Recurrent, u: Tensor, lengths: Tensor | None, problem: dict[str, Any]) -> dict[str, Tensor]:
    """Return `elapsed`, if the cell takes it, and `resets`: the same values for every type."""
    given, generator = {}, torch.Generator().manual_seed(problem["hidden"])
    shape = u.shape[:2]
    if problem["elapsed"] and layer._cell(0).refuse_elapsed() is None:
        uniform = torch.rand(shape, generator=generator)
        elapsed = torch.where(uniform < 0.2, 1.0, torch.exp(4.0 * uniform - 2.5)).to(u.dtype)
        given["elapsed"] = elapsed.requires_grad_(problem["gradient"])
    if problem["resets"]:
        resets = torch.rand(shape, generator=generator) < 0.2
        given["resets"] = resets if lengths is None else resets & (torch.arange(shape[0])[:, None] < lengths)
    return given


def largest(tensor: Tensor) -> float:
    """Return the largest absolute value, NaN if there is one, 0 for an empty tensor."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def nudged(tensor: Tensor, ulp: float, generator: torch.Generator) -> Tensor:
    signs = torch.randint(0, 2, tensor.shape, generator=generator, dtype=torch.float64) * 2.0 - 1.0
    return tensor * (1.0 + ulp * signs)


def check(problem: dict[str, Any], seed: int) -> str:
    """Return "" if the kernel agrees with the loop, or what differs."""
    torch.manual_seed(seed)
    torch.set_num_threads(problem["threads"])
    dtype = getattr(torch, problem["dtype"])
    unit = problem["dtype"] if problem["precision"] == "auto" else "bfloat16"
    sizes = (problem["inputs"], problem["hidden"], problem["layers"])
    layer = Recurrent(problem["cell"], *sizes, bidirectional=problem["bidirectional"], **problem["options"]).to(dtype)
    steps, batch = problem["steps"], problem["batch"]
    u = (torch.randn(steps, batch, problem["inputs"]) * problem["scale"]).to(dtype)
    lengths = torch.randint(1, steps + 1, (batch,)) if problem["lengths"] else None
    exact, plain = copy.deepcopy(layer).double(), {**problem, "precision": "auto"}
    state = None
    if problem["state"]:
        with torch.no_grad():
            # One that the cell reaches: not every tensor is a state, SkipLSTM's holds probabilities.
            state = layer(torch.randn_like(u))[1]
    wide = None if state is None else type(state)(*(f.double() for f in state))
    if problem["precision"] == "bfloat16":
        for cell in layer.cells:
            cell.precision = "bfloat16"
    with cpu.using_target(problem["target"]):
        actual = results(layer, laid_out(u, problem["layout"]), state, lengths, problem)
    generator = torch.Generator().manual_seed(seed)
    with loop_only():
        own = results(layer, u, state, lengths, plain)
        expected = results(exact, u.double(), wide, lengths, plain)
        changes = [0.0] * len(expected)
        for _ in range(3):
            near = copy.deepcopy(exact)
            with torch.no_grad():
                for parameter in near.parameters():
                    parameter.copy_(nudged(parameter, ULP[unit], generator))
            moved = results(near, nudged(u.double(), ULP[unit], generator), wide, lengths, plain)
            changes = [max(c, largest(m - e)) for c, m, e in zip(changes, moved, expected)]
    if len(actual) != len(expected):
        return f"{len(actual)} results instead of {len(expected)}"
    for place, (a, o, e, change) in enumerate(zip(actual, own, expected, changes)):
        error = largest(a - e)
        bound = FACTOR[unit] * change + FLOOR[unit] * max(1.0, largest(e)) + OWN * largest(o - e)
        if not error <= bound:
            return f"result {place} differs by {error:.3g}, more than {bound:.3g}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the kernels with the loop on random problems.")
    parser.add_argument("--runs", type=int, default=500, help="how many problems (default 500)")
    parser.add_argument("--seed", type=int, default=0, help="of the first problem (default 0)")
    parser.add_argument("--minutes", type=float, help="stop after this much time")
    options = parser.parse_args()
    began, failed, done = time.monotonic(), 0, 0
    for seed in range(options.seed, options.seed + options.runs):
        if options.minutes is not None and time.monotonic() - began > 60.0 * options.minutes:
            break
        problem = draw(random.Random(seed))
        wrong = check(problem, seed)
        done += 1
        if wrong:
            failed += 1
            print(f"{wrong}: {problem}\n  python tools/fuzz_kernels.py --runs 1 --seed {seed}", flush=True)
    print(f"{done} problems, {failed} wrong, target {cpu.target()}, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
