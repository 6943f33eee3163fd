"""What it costs that glibc hands large buffers back to the system: `python benchmarks/buffers.py [--out FILE]`.

LEM and nn.LSTM of equal size, forward and backward, by the default settings and with the buffers kept (two variables of
glibc's, which must be set before a process starts: each side runs in its own process, alternately). One thread,
processor time, the median of all calls but each process's first.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from lem import LEM
from lem.atomic import write_atomically
from lem.environment import environment

KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
SHAPES = ((2000, 50, 2, 128),)
CALLS = 5


def measure():
    """Print the processor times of each layer at each shape."""
    torch.set_num_threads(1)
    for steps, batch, m, d in SHAPES:
        u = torch.randn(steps, batch, m)
        for name, layer in (("LEM", LEM(m, d)), ("nn.LSTM", torch.nn.LSTM(m, d))):
            for call in range(CALLS + 1):
                began = time.process_time()
                layer(u)[0].sum().backward()
                if call:
                    print(json.dumps([name, [steps, batch, m, d], time.process_time() - began]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return measure()
    times = {}
    for _ in range(options.rounds):
        for setting, extra in (("default", {}), ("kept", KEPT)):
            command = [sys.executable, __file__, "--child"]
            done = subprocess.run(command, env={**os.environ, **extra}, capture_output=True, text=True, check=True)
            for line in done.stdout.splitlines():
                name, shape, seconds = json.loads(line)
                times.setdefault((tuple(shape), name, setting), []).append(seconds)
    rows = [
        {"shape": list(shape), "layer": name, "buffers": setting, "seconds": statistics.median(values)}
        | {"least": min(values), "most": max(values), "calls": len(values), "threads": 1}
        for (shape, name, setting), values in times.items()
    ]
    for row in rows:
        spread = f"{row['least']:.3f} to {row['most']:.3f}"
        print(f"{row['shape']!s:22} {row['layer']:8} {row['buffers']:8} {row['seconds']:.3f} s ({spread})")
    if options.out:
        content = json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n"
        write_atomically(options.out, content.encode())


if __name__ == "__main__":
    main()
