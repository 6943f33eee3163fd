"""`Recurrent("lstm" | "gru" | "rnn")` against torch's module: `python benchmarks/torch_kernels.py [--out FILE]`.

Both have the same weights; outputs and gradients are compared before anything is timed. They are timed in turn, by the
processor time of the one thread they use, so that whatever else the machine does falls on neither or both. Printed are
medians and the quartiles of the ratio of neighbours.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import nn

from lem import Recurrent
from lem.atomic import write_atomically
from lem.environment import environment

MODULES = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
SIZES = [
    (2000, 50, 2, 128),
    (784, 64, 1, 256),
    (101, 128, 40, 128),
    (1000, 32, 6, 32),
    (100, 8, 2, 16),
    (35, 20, 650, 650),
]


def pair(name: str, inputs: int, units: int) -> tuple[nn.Module, nn.Module]:
    theirs, ours = MODULES[name](inputs, units), Recurrent(name, inputs, units, two_biases=True)
    with torch.no_grad():
        for mine, torchs in zip(ours.cells[0].parameters(), theirs.parameters()):
            mine.copy_(torchs)
    return theirs, ours


def run(module: nn.Module, u: torch.Tensor, backward: bool) -> float:
    start = time.process_time()
    if backward:
        module(u)[0].sum().backward()
    else:
        with torch.no_grad():
            module(u)
    return time.process_time() - start


def verify(theirs: nn.Module, ours: nn.Module, u: torch.Tensor) -> None:
    expected, got = theirs(u)[0], ours(u)[0]
    torch.testing.assert_close(got, expected)
    expected.sum().backward()
    got.sum().backward()
    for mine, torchs in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(mine.grad, torchs.grad, rtol=1e-3, atol=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print(f"torch {torch.__version__}, 1 thread, {options.repeats} repeats")
    sizes = "steps x batch x inputs x units"
    print(f"{'cell':5} {sizes:32} {'pass':9} {'torch ms':>9} {'lem ms':>9} {'ratio (quartiles)':>22}")
    for steps, batch, inputs, units in SIZES:
        for name in MODULES:
            theirs, ours = pair(name, inputs, units)
            u = torch.randn(steps, batch, inputs)
            verify(theirs, ours, u[:20])
            for backward in (False, True):
                times = [(run(theirs, u, backward), run(ours, u, backward)) for _ in range(options.repeats + 1)][1:]
                ratios = [a / b for a, b in times]  # above one: ours is the faster
                low, middle, high = statistics.quantiles(ratios, n=4)
                torchs, lems = (1e3 * statistics.median(column) for column in zip(*times))
                what = f"{steps} x {batch} x {inputs} x {units}"
                rows.append({"cell": name, "shape": [steps, batch, inputs, units], "backward": backward, "threads": 1})
                rows[-1] |= {"torch_ms": torchs, "lem_ms": lems, "ratio": middle, "quartiles": [low, high]}
                rows[-1] |= {"repeats": options.repeats}
                print(
                    f"{name:5} {what:32} {'both' if backward else 'forward':9} {torchs:9.1f} {lems:9.1f} "
                    f"{middle:8.3f} ({low:.3f}-{high:.3f})",
                    flush=True,
                )
    if options.out:
        write_atomically(options.out, json.dumps({"environment": environment(), "rows": rows}, indent=1).encode())


if __name__ == "__main__":
    main()
