"""Compare defaults of the segment network before the test parts begin.

    python benchmarks/forecasting_search.py --data DIR [--only EXPRESSION] [--minutes N]

Everything ends where the test part of benchmarks/forecasting.py begins: the training part is learned, and the
validation part chooses the epoch and is scored, at every fourth origin. The errors of the first steps are kept as well.
Results are JSON lines in benchmarks/results/forecasting-search.jsonl; an interrupted run continues.
"""

import argparse
import itertools
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from forecasting import LONG, read_long

RESULTS = Path(__file__).parent / "results" / "forecasting-search.jsonl"
CANDIDATES: dict[str, dict[str, Any]] = {  # options of the segment network
    "64 units, 3 epochs, period": {"hidden_size": 64, "epochs": 3, "period": 24},
    "128 units, 6 epochs": {"hidden_size": 128, "epochs": 6},
    "64 units, 3 epochs": {"hidden_size": 64, "epochs": 3},
    "128 units, 3 epochs": {"hidden_size": 128, "epochs": 3},
    "32 units, 3 epochs, period": {"hidden_size": 32, "epochs": 3, "period": 24},
    "32 units, 3 epochs": {"hidden_size": 32, "epochs": 3},
    "64 units, 3 epochs, no linear map": {"hidden_size": 64, "epochs": 3, "linear": False},
}
SETS = ("ETTh1", "ETTh2", "exchange_rate", "illness")


def score(folder, name, horizon, candidate, seed):
    from lem.timeseries import LEMForecaster
    from lem.timeseries.forecasting import network_of, units_of
    from lem.timeseries.segment_training import run
    from lem.timeseries.windows import Panel, WindowSplit

    values, ends = read_long(folder, name)
    last, part = ends[1], ends[1] - ends[0]
    values = values[:last]
    options = dict(CANDIDATES[candidate])
    begun = time.process_time()
    model = LEMForecaster(horizon=horizon, network="segments", random_state=seed, segment_options=options)
    model.fit(values[None].transpose(0, 2, 1), validation=part, refit=False)
    seconds = time.process_time() - begun
    network, units = network_of(model.predictor_), units_of(model.predictor_)
    middle = len(network.quantiles) // 2
    errors = []
    origins = np.arange(last - part, last - horizon + 1, 4)
    for some in np.array_split(origins, max(len(origins) // 250, 1)):
        found, truth = run(network, WindowSplit(Panel([values]), units, network.look_back, horizon, [some]))
        errors.append((found[..., middle] - truth) * units.scale)
    error = np.concatenate(errors)
    steps = [h for h in LONG[name] if h <= horizon]
    return {
        "mse": [round(float((error[:, :h] ** 2).mean()), 4) for h in steps],
        "mae": [round(float(np.abs(error[:, :h]).mean()), 4) for h in steps],
        "valid": [round(record["valid"], 4) for record in model.history_],
        "epoch": model.best_epoch_,
        "seconds": round(seconds, 1),
    }


def main():
    import torch

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", default="", help="fits whose key matches this expression")
    parser.add_argument("--minutes", type=float, default=1e9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    until = time.monotonic() + 60 * options.minutes
    for candidate, name, end in itertools.product(CANDIDATES, SETS, (-1, 0)):
        horizon = LONG[name][end]
        key = f"{name}/{horizon}/{candidate}/0"
        lines = RESULTS.read_text().splitlines() if RESULTS.is_file() else []
        if not re.search(options.only, key) or any(json.loads(line)["key"] == key for line in lines):
            continue
        if time.monotonic() > until:
            sys.exit("time is over: run again to continue")
        found = {"key": key, **score(options.data, name, horizon, candidate, 0)}
        with RESULTS.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(found, flush=True)


if __name__ == "__main__":
    main()
