"""Accuracy and CPU time of the classifiers on 36 UCR and UEA sets, with an ablation of the frozen features.

    python benchmarks/classification.py run --data DIR [DIR ...]      (folders of NAME/NAME_TRAIN.ts, .tsv or .arff)
    python benchmarks/classification.py efforts --data DIR [DIR ...]  (training splits only: the choice of the default)
    python benchmarks/classification.py anchors --data DIR [DIR ...]  (in an environment with aeon and torch)
    python benchmarks/classification.py table                         (writes the table into docs/estimators.md)

Every method sees the archive's training split and is scored once on its test split, on one thread. aeon's classifiers
get series of unequal length padded with zeros and gaps filled by interpolation; ours get them as they are. Each fit is
kept in benchmarks/results/classification*.json; an interrupted run continues.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np

SHAPES = {
    "ACSF1": (100, 1460),
    "Adiac": (391, 176),
    "AllGestureWiimoteX": (700, 385),
    "ArrowHead": (175, 251),
    "ArticularyWordRecognition": (300, 144),
    "AtrialFibrillation": (15, 640),
    "BasicMotions": (40, 100),
    "Beef": (30, 470),
    "CBF": (900, 128),
    "Computers": (250, 720),
    "DodgerLoopDay": (80, 288),
    "ECG200": (100, 96),
    "EOGHorizontalSignal": (362, 1250),
    "ERing": (270, 65),
    "Epilepsy": (138, 206),
    "EthanolLevel": (500, 1751),
    "EyesOpenShut": (42, 128),
    "FaceFour": (88, 350),
    "Fish": (175, 463),
    "GunPoint": (150, 150),
    "HouseTwenty": (119, 2000),
    "ItalyPowerDemand": (1029, 24),
    "JapaneseVowels": (370, 26),
    "Lightning2": (61, 637),
    "Lightning7": (73, 319),
    "MelbournePedestrian": (2450, 24),
    "PickupGestureWiimoteZ": (50, 361),
    "Plane": (105, 144),
    "RacketSports": (152, 30),
    "RefrigerationDevices": (375, 720),
    "Rock": (50, 2844),
    "Strawberry": (370, 235),
    "SyntheticControl": (300, 60),
    "ToeSegmentation1": (228, 277),
    "Trace": (100, 275),
    "TwoLeadECG": (1139, 82),
}
"""The test series, and the steps of the longest series, of each set."""
SETS = tuple(SHAPES)
LONG = 600
"""Series of so many steps are long."""
REGRESSION = "Covid3Month"
HERE = Path(__file__).parent
RESULTS = {
    what: HERE / "results" / name
    for what, name in (
        ("run", "classification.json"),
        ("anchors", "classification-anchors.json"),
        ("efforts", "classification-efforts.json"),
    )
}
CACHE = HERE.parent / "build" / "classification"
PAGE = HERE.parent / "docs" / "estimators.md"
MARK = "<!-- table of benchmarks/classification.py -->"
FIGURE = HERE.parent / "docs" / "images" / "classification-ranks.png"
EFFORTS = ("quick", "default", "best")
METHODS = ("default", "quick", "best", "MiniRocket", "QUANT", "1-NN DTW", "trained LEM", "trained LSTM")
NEMENYI = (1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031)
"""The critical values of Nemenyi's test at 5 % for 2, 3, ... methods (Demsar, 2006, table 5)."""
ABLATION = ("kernels alone", "LEM on the series", "LEM on kernels", "LEM alone", "all together")


def find(folders, name, part):
    for folder in folders:
        for suffix in (".tsv", ".ts", ".arff"):
            path = folder / name / f"{name}_{part}{suffix}"
            if path.is_file() and not (suffix == ".tsv" and (folder / name / f"{name}_TRAIN.ts").is_file()):
                return path
    sys.exit(f"{name}_{part} is in none of the folders")


def load(folders, name, part):
    """Return a list of (channels, length) arrays, NaN where values are missing, and the labels."""
    path = find(folders, name, part)
    if path.suffix == ".tsv":
        table = np.genfromtxt(path, delimiter="\t")
        ends = [np.flatnonzero(~np.isnan(row))[-1] + 1 for row in table]
        return [row[None, 1:end] for row, end in zip(table, ends)], table[:, 0].astype(int).astype(str)
    cached = CACHE / f"{name}_{part}.npz"  # written by `run`, so that aeon's environment needs no reader
    if cached.is_file():
        held = np.load(cached)
        return [x[:, :n] for x, n in zip(held["X"], held["lengths"])], held["y"]
    from lem.timeseries.files import read

    X, y, _ = read(path)
    lengths = np.array([x.shape[1] for x in X])
    padded = np.full((len(X), X[0].shape[0], lengths.max()), np.nan)
    for row, x in zip(padded, X):
        row[:, : x.shape[1]] = x
    CACHE.mkdir(parents=True, exist_ok=True)
    np.savez(cached, X=padded, lengths=lengths, y=y.astype(str))
    return X, y.astype(str)


def scored(probabilities, classes, truth):
    """Return accuracy, log-loss and expected calibration error (ten bins)."""
    place = np.searchsorted(classes, truth)
    right = classes[probabilities.argmax(1)] == truth
    chance = np.clip(probabilities[np.arange(len(truth)), place], 1e-12, 1.0)
    sure = probabilities.max(1)
    bins = np.minimum((sure * 10).astype(int), 9)
    gaps = [abs(right[bins == b].mean() - sure[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    return {"score": float(right.mean()), "log_loss": float(-np.log(chance).mean()), "calibration": float(sum(gaps))}


def ours(folders, name, method, seed):
    from lem.timeseries import LEMClassifier

    (X, y), (Xt, yt) = load(folders, name, "TRAIN"), load(folders, name, "TEST")
    gaps = any(np.isnan(x).any() for x in X + Xt)
    options = {"missing": "mask" if gaps else "error", "random_state": seed}
    if method.startswith("trained "):
        model = LEMClassifier(network="lem", cell=method.split()[1].lower(), **options)
    else:
        model = LEMClassifier(effort=method, **options)
    begun = time.process_time()
    model.fit(X, y)
    fitted = time.process_time()
    probabilities = model.predict_proba(Xt)
    per_step = (time.process_time() - fitted) / sum(x.shape[1] for x in Xt)
    found = scored(probabilities, model.classes_, yt)
    return {**found, "fit": round(fitted - begun, 2), "ms_per_1000_steps": round(1e6 * per_step, 2)}


def effort(folders, name, method, seed):
    """Return the leave-one-out accuracy on the training split, and the time of the fit; no test split is read."""
    from lem.timeseries import LEMClassifier

    X, y = load(folders, name, "TRAIN")
    gaps = any(np.isnan(x).any() for x in X)
    begun = time.process_time()
    model = LEMClassifier(effort=method, missing="mask" if gaps else "error", random_state=seed).fit(X, y)
    spent = time.process_time() - begun
    return {"left_out": model.left_out_score_, "fit": round(spent, 2)}


def regression(folders, effort, seed):
    """Return the RMSE on the test split of the regression set."""
    from lem.timeseries import LEMRegressor
    from lem.timeseries.files import read

    (X, y, _), (Xt, yt, _) = (read(find(folders, REGRESSION, part)) for part in ("TRAIN", "TEST"))
    begun = time.process_time()
    model = LEMRegressor(effort=effort, random_state=seed).fit(X, y.astype(float))
    spent = time.process_time() - begun
    error = model.predict(Xt) - yt.astype(float)
    return {"rmse": float(np.sqrt((error**2).mean())), "fit": round(spent, 2)}


def ablation(folders, name, cell, seed):
    """Score ridge on parts of the default features; the parts share one network."""
    from lem.timeseries import LEMFeatures
    from lem.timeseries.ridge import fit_ridge

    (X, y), (Xt, yt) = load(folders, name, "TRAIN"), load(folders, name, "TEST")
    gaps = any(np.isnan(x).any() for x in X + Xt)
    transformer = LEMFeatures(cell=cell, missing="mask" if gaps else "error", random_state=seed)
    train, test = transformer.fit_transform(X), transformer.transform(Xt)
    classes, place = np.unique(y, return_inverse=True)
    wanted = np.where(np.arange(len(classes)) == place[:, None], 1.0, -1.0)
    model, column = transformer.map_.model, np.arange(transformer.n_features_out_)
    first = model.bank.features
    second = first + model.groups * (model.size - first) // len(model.cells)
    parts = (column < first, (column >= first) & (column < second), column >= second, column >= first, column >= 0)
    found = {}
    for label, used in zip(ABLATION, parts):
        ridge = fit_ridge(train[:, used], wanted)
        answers = classes[(test[:, used] @ ridge.weight.T + ridge.bias).argmax(1)]
        found[label.replace("LEM", cell.upper())] = float((answers == yt).mean())
    return found


def anchor(folders, name, method, seed):
    from aeon.classification.convolution_based import MiniRocketClassifier
    from aeon.classification.distance_based import KNeighborsTimeSeriesClassifier
    from aeon.classification.interval_based import QUANTClassifier

    def filled(X, length):
        out = np.zeros((len(X), X[0].shape[0], length))
        for row, x in zip(out, X):
            for line, values in zip(row, x[:, :length]):
                known = np.flatnonzero(~np.isnan(values))
                line[: len(values)] = np.interp(np.arange(len(values)), known, values[known])
        return out

    (X, y), (Xt, yt) = load(folders, name, "TRAIN"), load(folders, name, "TEST")
    length = max(10, *(x.shape[1] for x in X))
    model = {
        "MiniRocket": lambda: MiniRocketClassifier(random_state=seed, n_jobs=1),
        "QUANT": lambda: QUANTClassifier(random_state=seed),
        "1-NN DTW": lambda: KNeighborsTimeSeriesClassifier(distance="dtw", distance_params={"window": 0.1}),
    }[method]()
    begun = time.process_time()
    model.fit(filled(X, length), y)
    fitted = time.process_time()
    answers = model.predict(filled(Xt, length))
    per_step = (time.process_time() - fitted) / sum(x.shape[1] for x in Xt)
    return {
        "score": float((answers == yt).mean()),
        "fit": round(fitted - begun, 2),
        "ms_per_1000_steps": round(1e6 * per_step, 2),
    }


def run(options, work):
    """Do what has no result yet, small sets first, until the time is over."""
    until, path = time.monotonic() + 60.0 * options.minutes, RESULTS[options.what]
    size = {name: find(options.data, name, "TRAIN").stat().st_size for name in SETS}
    for method, seeds in work:
        for seed in seeds:
            for name in [
                *sorted(SETS, key=size.get),
                *([REGRESSION] if method in EFFORTS and options.what == "run" else []),
            ]:
                key = f"{name}/{method}/{seed}"
                if time.monotonic() > until:
                    sys.exit("time is over: run again to continue")
                kept = json.loads(path.read_text()) if path.is_file() else {}
                if key in kept:
                    continue
                if name == REGRESSION:
                    found = regression(options.data, method, seed)
                elif method.startswith("ablation"):
                    found = ablation(options.data, name, method.split()[1], seed)
                else:
                    measure = {"anchors": anchor, "efforts": effort, "run": ours}[options.what]
                    found = measure(options.data, name, method, seed)
                path.write_text(json.dumps({**kept, key: found}, indent=0, sort_keys=True) + "\n")
                print(key, found, flush=True)


def scores(kept, name, method):
    return [v["score"] for k, v in kept.items() if k.startswith(f"{name}/{method}/")]


def table(kept):
    """Return the table, what it adds up to, and the ablation, as Markdown."""
    means = {m: {n: float(np.mean(scores(kept, n, m))) for n in SETS if scores(kept, n, m)} for m in METHODS}
    methods = [m for m in METHODS if means[m]]
    lines = [f"| data set | {' | '.join(methods)} | fit, default |", "|---" * (len(methods) + 2) + "|"]
    for name in SETS:
        cells = [f"{means[m][name]:.3f}" if name in means[m] else "missing" for m in methods]
        times = [v["fit"] for k, v in kept.items() if k.startswith(f"{name}/default/")]
        lines.append(f"| {name} | {' | '.join(cells)} | {np.median(times):.1f} s |" if times else "")
    cells = [
        f"**{np.mean(list(means[m].values())):.3f}**"
        + ("" if len(means[m]) == len(SETS) else f" ({len(means[m])} sets)")
        for m in methods
    ]
    lines.append(f"| **mean** | {' | '.join(cells)} | |")
    return "\n".join([*lines, "", *summary(kept, means, methods), "", *efforts_table(), *ablation_table(kept)])


def summary(kept, means, methods):
    """Return what the table adds up to, as lines of Markdown."""
    found = [
        "| | fits | mean fit | median fit | slowest fit | answer to 1,000 steps | log-loss | calibration error |",
        "|---" * 8 + "|",
    ]
    for m in methods:
        some = [v for k, v in kept.items() if k.split("/")[1] == m and k.split("/")[0] in SETS]
        times = [v["fit"] for v in some]
        soft = [
            f"{np.mean([v[key] for v in some]):.3f}" if key in some[0] else "" for key in ("log_loss", "calibration")
        ]
        long = [v["ms_per_1000_steps"] for k, v in kept.items() if f"/{m}/" in k and _steps(k) >= LONG and "score" in v]
        found.append(
            f"| {m} | {len(some)} | {np.mean(times):.1f} s | {np.median(times):.1f} s | {max(times):.1f} s | "
            f"{f'{np.median(long):.1f} ms' if long else ''} | {' | '.join(soft)} |"
        )
    found.append("")
    for m in ("default", "best"):
        pairs = [(means[m][n], means["MiniRocket"][n], n) for n in SETS if n in means[m] and n in means["MiniRocket"]]
        wins, losses = sum(a > b + 1e-9 for a, b, _ in pairs), sum(a < b - 1e-9 for a, b, _ in pairs)
        long = [(a, b) for a, b, n in pairs if SHAPES[n][1] >= LONG]
        ours, theirs = np.mean(long, axis=0)
        both = np.mean([(a, b) for a, b, _ in pairs], axis=0)
        found.append(
            f"- {m} against MiniRocket on {len(pairs)} sets: {both[0]:.3f} and {both[1]:.3f} on average; {wins} wins, "
            f"{len(pairs) - wins - losses} ties, {losses} losses. On the {len(long)} sets with series of {LONG} steps "
            f"or more: {ours:.3f} and {theirs:.3f}."
            + ("" if m == "default" else f" The default on the same {len(pairs)} sets: {_mean(means, pairs):.3f}.")
        )
    for m in ("trained LEM", "trained LSTM"):
        pairs = [(means[m][n], means["default"][n], n) for n in SETS if n in means[m]]
        if pairs:
            ours = np.mean([a for a, _, _ in pairs])
            found.append(
                f"- {m}, the network of `network='lem'` as it comes, on {len(pairs)} sets: {ours:.3f}; the default on "
                f"the same sets: {_mean(means, pairs):.3f}."
            )
    spread = {
        n: np.ptp(scores(kept, n, "default"))
        for n in SETS
        if SHAPES[n][0] >= 100 and len(scores(kept, n, "default")) > 1
    }
    wide = [f"{n} ({100 * d:.1f})" for n, d in spread.items() if d > 0.05]
    seeds = {m: max(len(scores(kept, n, m)) for n in SETS) for m in methods}
    fewer = [
        f"{m} on {n} {len(scores(kept, n, m))}" for m in methods for n in means[m] if len(scores(kept, n, m)) < seeds[m]
    ]
    found.append(
        f"- Seeds: {', '.join(f'{m} {s}' for m, s in seeds.items())}{'; fewer: ' * bool(fewer)}{', '.join(fewer)}. "
        f"On the {len(spread)} sets with 100 test series or more, the best and the worst seed of the default differ by "
        f"at most {100 * max(spread.values()):.1f} points"
        + (f"; by more than 5 on {', '.join(wide)}." if wide else ".")
    )
    errors = {e: [v["rmse"] for k, v in kept.items() if k.startswith(f"{REGRESSION}/{e}/")] for e in EFFORTS}
    shown = ", ".join(f"{e} {np.mean(v):.4f} (worst {max(v):.4f}, {len(v)} seeds)" for e, v in errors.items() if v)
    if shown:
        found.append(f"- Regression, {REGRESSION}, RMSE: {shown}.")
    return found


def _steps(key):
    return SHAPES.get(key.split("/")[0], (0, 0))[1]


def _mean(means, pairs):
    return np.mean([means["default"][name] for _, _, name in pairs])


def efforts_table():
    """Return leave-one-out accuracy on the training splits and the time of a fit, for each effort."""
    path = RESULTS["efforts"]
    kept = json.loads(path.read_text()) if path.is_file() else {}
    found = []
    for methods in (EFFORTS[:2], EFFORTS):
        sets = [n for n in SETS if all(f"{n}/{m}/0" in kept for m in methods)]
        if not sets or (found and len(sets) < 5):
            continue
        found += [f"| effort, on {len(sets)} training splits | leave-one-out accuracy | mean fit |", "|---|---|---|"]
        for m in methods:
            some = [kept[f"{n}/{m}/0"] for n in sets]
            score, fit = (np.mean([v[key] for v in some]) for key in ("left_out", "fit"))
            found.append(f"| {m} | {score:.4f} | {fit:.2f} s |")
        found.append("")
    return found


def ablation_table(kept):
    """Return the mean accuracy of ridge on parts of the features, over the sets on which all parts were measured."""
    cells = [cell for cell in ("lem", "lstm") if sum(f"/ablation {cell}/" in k for k in kept) >= 30]
    if not cells:
        return []
    done = [n for n in SETS if all(f"{n}/ablation {cell}/0" in kept for cell in cells)]
    found = [f"| features, one ridge regression each | mean accuracy on {len(done)} sets |", "|---|---|"]
    for label in dict.fromkeys(x.replace("LEM", cell.upper()) for cell in cells for x in ABLATION):
        cell = "lstm" if "LSTM" in label else "lem"
        of = f", with {cell.upper()}" if label == "all together" else ""
        found.append(f"| {label}{of} | {np.mean([kept[f'{n}/ablation {cell}/0'][label] for n in done]):.3f} |")
    if len(cells) > 1:
        found.append(
            f"| all together, with LSTM | {np.mean([kept[f'{n}/ablation lstm/0']['all together'] for n in done]):.3f} |"
        )
    return found if done else []


def ranks(kept, path):
    """Draw the mean ranks of the methods that were measured on nearly all sets, with Nemenyi's critical difference."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from scipy.stats import rankdata

    methods = [m for m in METHODS if sum(bool(scores(kept, n, m)) for n in SETS) >= len(SETS) - 4]
    sets = [n for n in SETS if all(scores(kept, n, m) for m in methods)]
    score = np.array([[np.mean(scores(kept, n, m)) for m in methods] for n in sets])
    mean = np.array([rankdata(-row.round(9)) for row in score]).mean(0)
    k = len(methods)
    critical = NEMENYI[k - 2] * np.sqrt(k * (k + 1) / (6 * len(sets)))
    order = np.argsort(mean)
    chart, axis = plt.subplots(figsize=(7, 0.9 + 0.32 * k), layout="constrained")
    for level, m in enumerate(order):
        axis.plot([mean[m], mean[m]], [0, -1 - level], color="0.6", linewidth=1)
        axis.plot([mean[m]], [-1 - level], "o", color="tab:blue" if methods[m] in EFFORTS else "0.3")
        label = f"{'LEM, ' if methods[m] in EFFORTS else ''}{methods[m]}  {mean[m]:.2f}"
        white = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axis.text(mean[m] + 0.06, -1 - level, label, va="center", fontsize=9, bbox=white, zorder=3)
    height, last = 0.3, -1.0
    for first in range(k):
        same = [m for m in order[first:] if mean[m] - mean[order[first]] <= critical]
        if mean[same[-1]] > last and len(same) > 1:
            axis.plot([mean[order[first]] - 0.02, mean[same[-1]] + 0.02], [height, height], color="black", linewidth=3)
            last, height = mean[same[-1]], height + 0.3
    axis.axhline(0, color="black", linewidth=1)
    axis.set(xlim=(1, k + 0.6), ylim=(-k - 0.7, height + 0.1), yticks=[], xlabel="mean rank (1 is best)")
    axis.set_title(
        f"{len(sets)} sets; bars join methods that do not differ (critical difference {critical:.2f})", fontsize=9
    )
    for side in ("left", "right", "top"):
        axis.spines[side].set_visible(False)
    chart.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("run", "efforts", "anchors", "table"))
    parser.add_argument("--data", type=Path, nargs="+", default=[])
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no fit after so long")
    options = parser.parse_args()
    if options.what == "run":
        import torch

        torch.set_num_threads(1)
        first = [("default", range(1)), ("quick", range(1)), ("best", range(1)), ("ablation lem", range(1))]
        more = [("default", range(1, 5)), ("ablation lstm", range(1)), ("best", range(1, 3)), ("quick", range(1, 5))]
        run(options, [*first, *more, ("trained LEM", range(1)), ("trained LSTM", range(1))])
    elif options.what == "efforts":
        run(options, [(method, range(1)) for method in EFFORTS])
    elif options.what == "anchors":
        run(options, [("MiniRocket", range(5)), ("QUANT", range(5)), ("1-NN DTW", range(1))])
    else:
        kept = {
            key: found for what in ("run", "anchors") for key, found in json.loads(RESULTS[what].read_text()).items()
        }
        before, mark, rest = PAGE.read_text().partition(f"{MARK}\n")
        PAGE.write_text(f"{before}{mark}{table(kept)}\n{rest[rest.index('<!-- end -->') :]}")
        ranks(kept, FIGURE)


if __name__ == "__main__":
    main()
