"""Accuracy of the estimators, as they come, on real UCR and UEA sets, beside scikit-learn baselines and nn.LSTM.

    python benchmarks/estimators.py --data DIR      (DIR holds NAME/NAME_TRAIN.ts; default $LEM_DATA/ucr_uea)

Every method sees the archive's training split and is scored once on its test split; LEM and LSTM are the same estimator
with its default settings and differ in `cell` alone; means over three seeds. The baselines need series of one length:
unequal ones are padded with zeros. Each finished fit is kept in benchmarks/results/estimators.json, so that an
interrupted run continues; docs/estimators.md shows the table.
"""

import argparse
import itertools
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lem.checkpoint import write_atomically
from lem.estimators import LEMClassifier, LEMRegressor
from lem.experiment import environment
from lem.series import as_series
from lem.tables import read

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


def measure(folder, results):
    # The quickest first.
    for method, name in itertools.product(("1-NN", "linear", "LEM", "LSTM"), SETS):
        X, y, _ = read(folder / name / f"{name}_TRAIN.ts")
        X_test, y_test, _ = read(folder / name / f"{name}_TEST.ts")
        length = max(x.shape[1] for x in X)
        recurrent = method in ("LEM", "LSTM")
        for seed in SEEDS if recurrent else SEEDS[:1]:
            key = f"{name}/{method}/{seed}"
            if key in results["fits"]:
                continue
            model = methods(name)[method](seed)
            begun, cpu = time.monotonic(), time.process_time()
            model.fit(X if recurrent else padded(X, length), y)
            wall, cpu = time.monotonic() - begun, time.process_time() - cpu
            found = score(name, model, X_test if recurrent else padded(X_test, length), y_test)
            results["fits"][key] = {"score": found, "seconds": round(wall, 2), "cpu_seconds": round(cpu, 2)}
            if recurrent:
                results["fits"][key] |= {"dt": model.dt_, "best_epoch": model.best_epoch_}
            write_atomically(RESULTS, (json.dumps(results, indent=1) + "\n").encode())
            print(key, results["fits"][key], flush=True)


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
            times = [v["seconds"] for k, v in results["fits"].items() if k.startswith(f"{name}/{method}/")]
            cells.append(f"{np.median(times):.1f} s" if times else "missing")
        lines.append(f"| {name}{' (RMSE)' if name in REGRESSION else ''} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--table", action="store_true", help="measure nothing, only write the table into the page")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("LEM_DATA", "data")) / "ucr_uea")
    options = parser.parse_args()
    results = {"environment": {**environment(), "threads": torch.get_num_threads()}, "fits": {}}
    if RESULTS.is_file():
        results = json.loads(RESULTS.read_text())
        if results["environment"]["commit"] != environment()["commit"] and not options.table:
            parser.error(f"{RESULTS.name} is of another commit: remove it to measure anew")
    if not options.table:
        measure(options.data, results)
    before, mark, rest = PAGE.read_text().partition(f"{MARK}\n")
    PAGE.write_text(f"{before}{mark}{table(results)}\n{rest[rest.index('<!-- end -->') :]}")
    print(table(results))


if __name__ == "__main__":
    main()
