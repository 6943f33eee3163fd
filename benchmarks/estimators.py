"""Accuracy of the estimators, as they come, on real UCR and UEA sets, with scikit-learn baselines and nn.LSTM.

    python benchmarks/estimators.py --data DIR      (DIR holds NAME/NAME_TRAIN.ts; default $LEM_DATA/ucr_uea)

Every method sees the archive's training split and is scored once on its test split; LEM and LSTM are the same estimator
with its default settings and differ in `cell` alone; means over three seeds. The baselines need series of one length:
unequal ones are padded with zeros. Each finished fit is kept in benchmarks/results/estimators.json, so that an
interrupted run continues; docs/estimators.md shows the table.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lem.atomic import write_atomically
from lem.environment import environment
from lem.timeseries import LEMClassifier, LEMRegressor
from lem.timeseries.files import read
from lem.timeseries.series import as_series

SETS = (
    "BasicMotions",
    "JapaneseVowels",
    "ItalyPowerDemand",
    "GunPoint",
    "ArrowHead",
    "PickupGestureWiimoteZ",
    "Covid3Month",
)
REGRESSION = ("Covid3Month",)
SEEDS = (0, 1, 2)
PAGE = Path(__file__).parent.parent / "docs" / "estimators.md"
MARK = "<!-- table of benchmarks/estimators.py -->"
RESULTS = Path(__file__).parent / "results" / "estimators.json"


def padded(X, length):
    series = as_series(X, "benchmark")
    values = np.zeros((len(X), length, series.values.shape[2]))
    steps = min(length, series.values.shape[1])
    values[:, :steps] = series.values[:, :steps]
    return values.reshape(len(X), -1)


def methods(name):
    kind = LEMRegressor if name in REGRESSION else LEMClassifier
    linear = RidgeCV(np.logspace(-3, 3, 13)) if name in REGRESSION else LogisticRegression(max_iter=5000)
    neighbour = (KNeighborsRegressor if name in REGRESSION else KNeighborsClassifier)(1)
    return {
        "LEM": lambda seed: kind(random_state=seed),
        "LSTM": lambda seed: kind(cell="lstm", random_state=seed),
        "1-NN": lambda seed: neighbour,
        "linear": lambda seed: make_pipeline(StandardScaler(), linear),
    }


def score(name, model, X, y):
    predicted = model.predict(X)
    return float(np.sqrt(((predicted - y) ** 2).mean()) if name in REGRESSION else (predicted == y).mean())


def fit(folder, name, method, seed):
    """Fit one method on the training split and score it on the test split."""
    torch.set_num_threads(1)
    X, y, _ = read(folder / name / f"{name}_TRAIN.ts")
    X_test, y_test, _ = read(folder / name / f"{name}_TEST.ts")
    length = max(x.shape[1] for x in X)
    recurrent = method in ("LEM", "LSTM")
    model = methods(name)[method](seed)
    begun, cpu = time.monotonic(), time.process_time()
    model.fit(X if recurrent else padded(X, length), y)
    wall, cpu = time.monotonic() - begun, time.process_time() - cpu
    found = score(name, model, X_test if recurrent else padded(X_test, length), y_test)
    result = {"score": found, "seconds": round(wall, 2), "cpu_seconds": round(cpu, 2)}
    return {**result, "dt": model.dt_, "best_epoch": model.best_epoch_} if recurrent else result


def run(work, tasks, results, path, jobs, minutes):
    """Do the tasks that have no result yet, some at once; keep each result when it is there."""
    until = time.monotonic() + 60.0 * minutes
    tasks, running = [task for task in tasks.items() if task[0] not in results["fits"]], {}
    with ProcessPoolExecutor(jobs) as pool:
        while tasks or running:
            while tasks and len(running) < jobs and time.monotonic() < until:
                key, task = tasks.pop(0)
                running[pool.submit(work, *task)] = key
            if not running:
                sys.exit(f"{len(tasks)} fits are left: run again to continue")
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                key = running.pop(done)
                results["fits"][key] = done.result()
                write_atomically(path, (json.dumps(results, indent=1) + "\n").encode())
                print(key, done.result(), flush=True)


def table(results):
    """Write the results as a Markdown table; what was not measured is missing."""
    lines = ["| data set | LEM | LSTM | 1-NN | linear | LEM fit | LSTM fit |", "|---|---|---|---|---|---|---|"]
    for name in SETS:
        cells = []
        for method in ("LEM", "LSTM", "1-NN", "linear"):
            found = [v["score"] for k, v in results["fits"].items() if k.startswith(f"{name}/{method}/")]
            spread = f" ± {np.std(found):.3f}" if len(found) > 1 else ""
            cells.append(f"{np.mean(found):.3f}{spread}" if found else "missing")
        for method in ("LEM", "LSTM"):
            times = [v["cpu_seconds"] for k, v in results["fits"].items() if k.startswith(f"{name}/{method}/")]
            cells.append(f"{np.median(times):.1f} s" if times else "missing")
        lines.append(f"| {name}{' (RMSE)' if name in REGRESSION else ''} | {' | '.join(cells)} |")
    return "\n".join(lines)


def add_options(parser):
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("LEM_DATA", "data")) / "ucr_uea")
    parser.add_argument("--jobs", type=int, default=2, help="fits at once, on one thread each (default 2)")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no fit after so long")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--table", action="store_true", help="measure nothing, only write the table into the page")
    add_options(parser)
    options = parser.parse_args()
    results = {"environment": {**environment(), "threads": 1}, "fits": {}}
    if RESULTS.is_file():
        results = json.loads(RESULTS.read_text())
        if results["environment"]["commit"] != environment()["commit"] and not options.table:
            parser.error(f"{RESULTS.name} is of another commit: remove it to measure again")
    tasks = {
        f"{name}/{method}/{seed}": (options.data, name, method, seed)
        for method in ("1-NN", "linear", "LEM", "LSTM")
        for name in SETS
        for seed in (SEEDS if method in ("LEM", "LSTM") else SEEDS[:1])
    }
    if not options.table:
        run(fit, tasks, results, RESULTS, options.jobs, options.minutes)
    before, mark, rest = PAGE.read_text().partition(f"{MARK}\n")
    PAGE.write_text(f"{before}{mark}{table(results)}\n{rest[rest.index('<!-- end -->') :]}")
    print(table(results))


if __name__ == "__main__":
    main()
