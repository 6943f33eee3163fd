"""The speed of exported models: the library, both kinds of torch program, ONNX and the NumPy file on the same series.

    python benchmarks/export.py

A LEM classifier of 64 units reads 32 series of 3 channels and 1000 steps, in one thread; answers are compared before
anything is timed. CPU time, median and spread of interleaved rounds; written to benchmarks/results/export.json.
"""

import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from lem.atomic import write_atomically
from lem.environment import environment
from lem.timeseries import export
from lem.timeseries.predictor import Predictor
from lem.timeseries.selftest import ALLOWED

ROUNDS, BATCH, STEPS, CHANNELS = 7, 32, 1000, 3
RESULTS = Path(__file__).parent / "results" / "export.json"


def main():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core for all: not every runtime takes a number
    torch.set_num_threads(1)
    model = Predictor(
        "classifier", CHANNELS, 4, {"cell": "lem", "hidden_size": 64, "pool": "both"}, labels=np.arange(4)
    )
    model.eval()
    series = np.random.default_rng(0).normal(size=(BATCH, STEPS, CHANNELS)).astype(np.float32)

    def library(series):
        with torch.inference_mode():
            return model(torch.from_numpy(series).transpose(0, 1))[0].numpy()

    runs = {"the library": library}
    with tempfile.TemporaryDirectory() as folder:
        for name, to, portable in (
            ("torch with the kernel", "torch", False),
            ("torch, portable", "torch", True),
            ("ONNX", "onnx", True),
            ("NumPy", "numpy", True),
        ):
            written = export.export(model, to, Path(folder) / name, portable=portable)
            runs[name] = export.EXPORTS[to][1](written)
        for name, run in runs.items():
            assert np.abs(run(series) - library(series)).max() < ALLOWED, name
        times = {name: [] for name in runs}
        for _ in range(ROUNDS):
            for name, run in runs.items():
                begun = time.process_time()
                run(series)
                times[name].append((time.process_time() - begun) * 1e3)
    found = {
        name: {"median_ms": round(float(np.median(t)), 1), "spread_ms": [round(min(t), 1), round(max(t), 1)]}
        for name, t in times.items()
    }
    results = {"environment": environment(), "batch": BATCH, "steps": STEPS, "forms": found}
    write_atomically(RESULTS, (json.dumps(results, indent=1) + "\n").encode())
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
