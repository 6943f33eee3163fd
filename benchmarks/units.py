"""The cells of the zoo that run on the kernel, compared with the loop.

    python benchmarks/units.py [--threads 1] [--cells cornn fastgrnn] [--out FILE]

Both sides run one layer forward and backward from the same weights and inputs. They are verified first: gradients
agree over the first 200 steps. Then they are timed in turns, by the processor time of the process, which a busy machine
disturbs less than the clock; the ratio is the median of the ratios of neighbours.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from lem.atomic import write_atomically
from lem.environment import environment
from lem.nn.cells import CELLS, Cell

SHAPES = {
    "adding": (2000, 50, 2, 128),
    "heart rate, second layer": (4000, 32, 128, 128),
    "long pulse": (15000, 8, 2, 32),
}
INDEPENDENT, COUPLED = ("unicornn", "indrnn"), ("cornn", "fastrnn", "fastgrnn", "antisymmetric", "exprnn")


def both_ways(cell, u, run):
    """Forward and backward; return the gradients and the processor time."""
    began = time.process_time()
    outputs, final = run(cell, u)
    found = torch.autograd.grad(outputs.mean() + final[0].mean(), [u, *cell.parameters()])
    return found, time.process_time() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cells", nargs="+", choices=INDEPENDENT + COUPLED, default=INDEPENDENT + COUPLED)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for name in options.cells:
        for task, (steps, batch, m, d) in SHAPES.items():
            if task == ("adding" if name in INDEPENDENT else "heart rate, second layer"):
                continue  # where the paper has it in no such place
            torch.manual_seed(0)
            cell, u = CELLS[name](m, d), torch.randn(steps, batch, m, requires_grad=True)
            sides = {"kernel": type(cell).sequence, "loop": Cell.sequence}
            short = u[:200].detach().requires_grad_()  # undamped units amplify rounding over thousands of steps
            gradients = {side: both_ways(cell, short, run)[0] for side, run in sides.items()}
            for a, b in zip(*gradients.values()):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(b.abs().max()))
            times = {side: [] for side in sides}
            for i in range(options.rounds + 1):
                for side, run in sides.items():
                    taken = both_ways(cell, u, run)[1]
                    times[side] += [taken] * (i > 0)  # the first round fetches memory from the system
            ratios = sorted(slow / fast for fast, slow in zip(times["kernel"], times["loop"]))
            row = {"cell": name, "task": task, "shape": [steps, batch, m, d], "threads": options.threads}
            row |= {f"{side}_seconds": statistics.median(values) for side, values in times.items()}
            row |= {
                "ratio": statistics.median(ratios),
                "least": ratios[0],
                "most": ratios[-1],
                "rounds": options.rounds,
            }
            rows.append(row)
            print(
                f"{name:13} {task:25} kernel {row['kernel_seconds']:.3f} s, loop {row['loop_seconds']:.3f} s: "
                f"{row['ratio']:.1f} times ({ratios[0]:.1f} to {ratios[-1]:.1f}), {options.threads} threads",
                flush=True,
            )
    if options.out:
        write_atomically(options.out, json.dumps({"environment": environment(), "rows": rows}, indent=1).encode())


if __name__ == "__main__":
    main()
