"""Time two versions of the library in turns: forward and backward of LEM at the shapes of `lem bench`, in float32.

`python benchmarks/before_after.py BEFORE AFTER --threads 2 --json FILE`, where BEFORE and AFTER are `src` folders with
a built kernel. Each version runs in a process of its own; the two alternate within a round, so that what else the
machine does meets both. Seconds are of the wall clock and of the processor; the latter counts all threads.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

SHAPES = [
    (1000, 32, 1, 16), (2000, 50, 2, 128), (784, 128, 1, 128), (1000, 100, 96, 128), (17984, 8, 6, 32),
    (4000, 32, 2, 128), (125, 100, 80, 128), (70, 64, 256, 256), (150, 128, 200, 1024),
]  # fmt: skip

WORKER = """
import sys, time
folder, threads, *shape = sys.argv[1:]
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in f"{type(f).__module__}{type(f).__name__}".lower()]
sys.path.insert(0, folder)
import torch, lem
assert lem.__file__.startswith(folder), lem.__file__
torch.set_num_threads(int(threads))
torch.manual_seed(0)
steps, batch, m, d = map(int, shape)
layer, u = lem.LEM(m, d, backend="native"), torch.randn(steps, batch, m)
grad = torch.randn(steps, batch, d)
def once():
    wall, processor = time.perf_counter(), time.process_time()
    out, _ = layer(u)
    out.backward(grad)
    return time.perf_counter() - wall, time.process_time() - processor
for _ in range(10 if steps * batch * d * d < 1e9 else 2):
    once()
for line in sys.stdin:
    print(*once(), flush=True)
"""


def worker(folder: Path, threads: int, shape: tuple[int, ...]) -> subprocess.Popen[str]:
    """Start a process that measures one call for every line it reads."""
    command = [sys.executable, "-c", WORKER, str(folder.resolve()), str(threads), *map(str, shape)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen[str]) -> tuple[float, float]:
    """Let a worker measure one call; return seconds of the wall clock and of the processor."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    wall, processor = process.stdout.readline().split()
    return float(wall), float(processor)


def compare(before: Path, after: Path, shape: tuple[int, ...], threads: int, rounds: int) -> dict[str, Any]:
    """Return the median times of both versions, and the median of their ratios within a round."""
    pair = [worker(folder, threads, shape) for folder in (before, after)]
    times = []
    for r in range(rounds):
        order = (0, 1) if r % 2 else (1, 0)
        found = {i: ask(pair[i]) for i in order}
        times.append((found[0], found[1]))
    for process in pair:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    row: dict[str, Any] = {"shape": list(shape), "threads": threads, "rounds": rounds}
    for k, clock in enumerate(("wall", "processor")):
        row[clock] = {
            "before": statistics.median(b[k] for b, _ in times), "after": statistics.median(a[k] for _, a in times),
            "x": statistics.median(b[k] / a[k] for b, a in times),
        }  # fmt: skip
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", type=int, nargs="+", default=range(1, len(SHAPES) + 1), help="rows, from 1")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {"load": os.getloadavg(), "rows": []}
    for number in args.only:
        row = compare(args.before, args.after, SHAPES[number - 1], args.threads, args.rounds)
        found["rows"].append(row)
        print(row, flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
