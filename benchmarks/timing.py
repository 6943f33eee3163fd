"""What elapsed times, resets and projections cost: `python benchmarks/timing.py [--json FILE]`.

Forward and backward of one layer, float32, one thread, processor time. The calls of one round follow each other, the
figures are medians over rounds of the ratio to the plain call of the same round.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from lem import LEM
from lem.kernels import cpu

SHAPES = [(2000, 8, 6, 32), (1000, 32, 1, 32), (500, 50, 2, 128), (784, 32, 1, 128), (70, 64, 256, 256)]
ROUNDS = 15


def measure(steps: int, batch: int, inputs: int, units: int, rounds: int) -> dict[str, float]:
    """Return the milliseconds of the plain call, and the others as multiples of it."""
    torch.manual_seed(0)
    layer, narrow = LEM(inputs, units, memory="store"), LEM(inputs, units, proj_size=units // 2, memory="store")
    u = torch.randn(steps, batch, inputs)
    elapsed = torch.exp(torch.randn(steps, batch))
    learned = elapsed.clone().requires_grad_()
    resets = torch.rand(steps, batch) < 0.02
    calls = {
        "plain": lambda: layer(u),
        "resets": lambda: layer(u, resets=resets),
        "elapsed": lambda: layer(u, elapsed=elapsed),
        "elapsed = 1": lambda: layer(u, elapsed=torch.ones_like(elapsed)),
        "elapsed, with its gradient": lambda: layer(u, elapsed=learned),
        "elapsed and resets": lambda: layer(u, elapsed=elapsed, resets=resets),
        "proj_size = units / 2": lambda: narrow(u),
    }

    def seconds(name: str) -> float:
        start = time.process_time()
        calls[name]()[0].sum().backward()
        return time.process_time() - start

    for name in calls:
        seconds(name)
    found = [{name: seconds(name) for name in calls} for _ in range(rounds)]
    ratios = {name: statistics.median(r[name] / r["plain"] for r in found) for name in calls if name != "plain"}
    return {"plain, ms": 1e3 * statistics.median(r["plain"] for r in found)} | ratios


def main() -> None:
    """Print the table; write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for shape in SHAPES:
        row = measure(*shape, rounds=arguments.rounds)
        rows.append({"shape": shape, **row})
        print(shape, ", ".join(f"{name} {value:.3g}" for name, value in row.items()), flush=True)
    if arguments.json:
        about = {"target": cpu.target(), "torch": torch.__version__, "rounds": arguments.rounds, "threads": 1}
        arguments.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
