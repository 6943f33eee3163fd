"""Forecast ETTh1, ETTh2, exchange_rate, illness and sets of the Monash archive with the defaults of `LEMForecaster`.

    python benchmarks/forecasting.py run --data DIR [--minutes N]   (folders as in their public sources)
    python benchmarks/forecasting.py table                          (writes the tables into docs/forecasting.md)

Long horizons: standardised by the training part, MSE and MAE over all origins of the test part, look-back chosen by the
defaults. ETT is split 12/4/4 months; exchange_rate and illness 70/10/20 %. Monash sets: the last `horizon` values of
each series are forecast once; MASE as the archive computes it. One thread; each fit is kept in benchmarks/results and
an interrupted run continues. No fit sees its test part.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "forecasting.json"
PAGE = HERE.parent / "docs" / "forecasting.md"
LONG = {
    "ETTh1": (96, 192, 336, 720),
    "ETTh2": (96, 192, 336, 720),
    "exchange_rate": (96, 192, 336, 720),
    "illness": (24, 36, 48, 60),
}
FILES = {
    "ETTh1": "ETT/ETTh1.csv",
    "ETTh2": "ETT/ETTh2.csv",
    "exchange_rate": "exchange_rate/exchange_rate.csv",
    "illness": "illness/national_illness.csv",
}
MONASH = {  # horizon and season
    "us_births": (30, 7),
    "hospital": (12, 12),
    "tourism_monthly": (24, 12),
    "traffic_weekly": (8, 52),
    "m3_monthly": (18, 12),
    "m3_yearly": (6, 1),
    "m4_hourly": (48, 24),
}


def read_long(folder, name):
    values = np.genfromtxt(folder / FILES[name], delimiter=",", skip_header=1)[:, 1:]
    if name.startswith("ETT"):
        ends = [720 * months for months in (12, 16, 20)]
    else:
        count = len(values)
        ends = [int(0.7 * count), count - int(0.2 * count), count]
    values = values[: ends[2]]
    train = values[: ends[0]]
    return (values - train.mean(0)) / train.std(0), ends


def long_horizon(folder, name, horizon, cell, seed):
    """Return the scores of one fit on the test part: MSE and MAE of all origins, and coverage."""
    from lem.timeseries import LEMForecaster
    from lem.timeseries.forecasting import network_of, units_of
    from lem.timeseries.segment_training import run
    from lem.timeseries.windows import Panel, WindowSplit

    values, ends = read_long(folder, name)
    begun = time.process_time()
    model = LEMForecaster(horizon=horizon, cell=cell, network="segments", random_state=seed)
    model.fit(values[None, : ends[1]].transpose(0, 2, 1), validation=ends[1] - ends[0], refit=False)
    fitted = time.process_time()
    network = network_of(model.predictor_)
    origins = np.arange(ends[1], ends[2] - horizon + 1)
    middle, squares, sizes, count = len(network.quantiles) // 2, 0.0, 0.0, 0
    units = units_of(model.predictor_)
    for part in np.array_split(origins, max(len(origins) // 500, 1)):
        split = WindowSplit(Panel([values]), units, network.look_back, horizon, [part])
        found, truth = run(network, split)
        error = (found[..., middle] - truth) * units.scale  # the truth is standardised by the model's own units
        squares, sizes, count = squares + (error**2).sum(), sizes + np.abs(error).sum(), count + error.size
    return {
        "mse": float(squares / count),
        "mae": float(sizes / count),
        **covered(model, network, units, values, ends),
        "epoch": model.best_epoch_,
        "look_back": network.look_back,
        "segment": network.segment,
        "seconds": round(fitted - begun, 1),
    }


def covered(model, network, units, values, ends):
    """Return how much of the test part lies in the intervals, at origins one day (of 24 steps) apart.

    They are corrected on the validation part, and then by the forecasts whose truth is known by then.
    """
    from lem.timeseries.segment_training import Spans, calibrate
    from lem.timeseries.segment_training import run as forecasts
    from lem.timeseries.windows import Panel, WindowSplit

    spans = Spans(*(np.array([end]) for end in (ends[0], ends[0], ends[1])))
    known = Panel([values[: ends[1]]])
    widths, _ = calibrate(network, known, units, network.quantiles, spans)
    origins = np.arange(ends[1], ends[2] - network.horizon + 1, 24)
    split = WindowSplit(Panel([values]), units, network.look_back, network.horizon, [origins])
    raw, truth = forecasts(network, split)
    found, _ = model._rolled(network, known, units, spans, split, raw, truth, widths, 24)
    inside = [(truth >= found[..., k]) & (truth <= found[..., -1 - k]) for k in (1, 0)]
    return {"within_80": float(inside[0].mean()), "within_95": float(inside[1].mean())}


def read_monash(folder, name):
    """Return the series of a .tsf file."""
    text = (folder / f"monash_{name}" / f"{name}_dataset.tsf").read_text(encoding="latin-1")
    rows = text.partition("@data")[2].split("\n")
    return [np.array([float(v) for v in row.rpartition(":")[2].split(",")]) for row in rows if ":" in row]


def mase(series, forecasts, horizon, season):
    """Return the mean over series of MASE, with the in-sample seasonal naive error as the scale."""
    found = []
    for values, answer in zip(series, forecasts):
        history, truth = values[:-horizon], values[-horizon:]
        lag = season if len(history) > season else 1
        scale = np.abs(history[lag:] - history[:-lag]).mean()
        if scale > 0:
            found.append(np.abs(truth - answer).mean() / scale)
    return float(np.mean(found))


def monash(folder, name, cell, seed):
    from lem.timeseries import LEMForecaster
    from lem.timeseries.baselines import ridge_on_lags, seasonal_naive

    horizon, season = MONASH[name]
    series = read_monash(folder, name)
    histories = [values[:-horizon] for values in series]
    begun = time.process_time()
    model = LEMForecaster(horizon=horizon, cell=cell, season=season, network="segments", random_state=seed)
    model.fit(histories)
    seconds = time.process_time() - begun
    answers = model.predict(histories).reshape(len(series), horizon)
    low, high = (each.reshape(len(series), horizon) for each in model.predict_interval(histories, coverage=0.8))
    truth = np.stack([values[-horizon:] for values in series])
    plain = [values[:, None] for values in histories]
    ridge = ridge_on_lags(plain, horizon, season)
    naive = [seasonal_naive(values, horizon, season)[:, 0] for values in plain]
    return {
        "mase": mase(series, answers, horizon, season),
        "naive": mase(series, naive, horizon, season),
        "ridge": None if ridge is None else mase(series, ridge(plain)[..., 0], horizon, season),
        "within_80": float(((truth >= low) & (truth <= high)).mean()),
        "epoch": model.best_epoch_,
        "look_back": model.predictor_.architecture["look_back"],
        "segment": model.predictor_.architecture["segment"],
        "seconds": round(seconds, 1),
    }


def work():
    """Name all fits, the most wanted first."""
    for horizon in range(4):
        for name in ("ETTh1", "ETTh2"):
            yield name, LONG[name][horizon], "lem", 0
    for name in MONASH:
        yield name, None, "lem", 0
    for cell in ("gru", "lstm"):
        for horizon in range(4):
            for name in ("ETTh1", "ETTh2"):
                yield name, LONG[name][horizon], cell, 0
    for name in ("illness", "exchange_rate"):
        for horizon in LONG[name]:
            yield name, horizon, "lem", 0
    for seed in (1, 2):
        for name in LONG:
            for horizon in LONG[name]:
                yield name, horizon, "lem", seed


def run_all(options):
    until = time.monotonic() + 60.0 * options.minutes
    for name, horizon, cell, seed in work():
        key = f"{name}/{horizon or MONASH[name][0]}/{cell}/{seed}"
        if options.only and not key.startswith(options.only):
            continue
        kept = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
        if key in kept:
            continue
        if time.monotonic() > until:
            sys.exit("time is over: run again to continue")
        found = (
            monash(options.data, name, cell, seed)
            if name in MONASH
            else long_horizon(options.data, name, horizon, cell, seed)
        )
        kept = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}  # another run may have added to it
        RESULTS.write_text(json.dumps({**kept, key: found}, indent=0, sort_keys=True) + "\n")
        print(key, found, flush=True)


PUBLISHED = {  # MSE and MAE as printed in the papers that docs/forecasting.md names
    "DLinear": {
        "ETTh1": ((0.375, 0.399), (0.405, 0.416), (0.439, 0.443), (0.472, 0.490)),
        "ETTh2": ((0.289, 0.353), (0.383, 0.418), (0.448, 0.465), (0.605, 0.551)),
    },
    "PatchTST/64": {
        "ETTh1": ((0.370, 0.400), (0.413, 0.429), (0.422, 0.440), (0.447, 0.468)),
        "ETTh2": ((0.274, 0.337), (0.341, 0.382), (0.329, 0.384), (0.379, 0.422)),
    },
}


def cell_of(kept, name, horizon, cell):
    """Return the mean MSE and MAE over seeds as text, with the number of seeds if there are several."""
    found = [value for key, value in kept.items() if key.startswith(f"{name}/{horizon}/{cell}/")]
    if not found:
        return "missing"
    text = f"{np.mean([v['mse'] for v in found]):.3f} / {np.mean([v['mae'] for v in found]):.3f}"
    return text + (f" ({len(found)} seeds)" if len(found) > 1 else "")


def long_table(kept):
    lines = ["| set, horizon | LEM | GRU | LSTM | DLinear | PatchTST/64 | LEM, within | LEM, CPU s |", "|---" * 8 + "|"]
    for name, horizons in LONG.items():
        if not any(key.startswith(f"{name}/") for key in kept):
            lines.append(f"| {name} | missing | missing | missing | | | missing | |")
            continue
        for k, horizon in enumerate(horizons):
            printed = [
                "{:.3f} / {:.3f}".format(*PUBLISHED[m][name][k]) if name in PUBLISHED[m] else "" for m in PUBLISHED
            ]
            seconds = [v["seconds"] for key, v in kept.items() if key.startswith(f"{name}/{horizon}/lem/")]
            cells = [cell_of(kept, name, horizon, cell) for cell in ("lem", "gru", "lstm")]
            shares = [v for key, v in kept.items() if key.startswith(f"{name}/{horizon}/lem/") and "within_80" in v]
            within = (
                " / ".join(f"{100 * np.mean([v[k] for v in shares]):.1f} %" for k in ("within_80", "within_95"))
                if shares
                else "missing"
            )
            took = f"{np.median(seconds):.0f}" if seconds else ""
            lines.append(f"| {name}, {horizon} | {' | '.join([*cells, *printed, within, took])} |")
        done = [
            np.mean([v["mse"] for key, v in kept.items() if key.startswith(f"{name}/{horizon}/lem/")])
            for horizon in horizons
            if any(key.startswith(f"{name}/{horizon}/lem/") for key in kept)
        ]
        if len(done) == 4 and name in PUBLISHED["DLinear"]:
            means = [f"{np.mean([pair[0] for pair in PUBLISHED[m][name]]):.3f}" for m in PUBLISHED]
            lines.append(f"| **{name}, mean MSE** | **{np.mean(done):.3f}** | | | {' | '.join(means)} | | |")
    return "\n".join(lines)


def monash_table(kept):
    lines = ["| set | LEM | seasonal naive | ridge on lags | within 80 % | CPU s |", "|---" * 6 + "|"]
    ratios = []
    for name, (horizon, _) in MONASH.items():
        found = kept.get(f"{name}/{horizon}/lem/0")
        if found is None:
            lines.append(f"| {name}, {horizon} | missing | | | | |")
            continue
        ratios.append(found["mase"] / found["naive"])
        ridge = "" if found["ridge"] is None else f"{found['ridge']:.3f}"
        lines.append(
            f"| {name}, {horizon} | {found['mase']:.3f} | {found['naive']:.3f} | {ridge} | "
            f"{100 * found['within_80']:.1f} % | {found['seconds']:.0f} |"
        )
    if ratios:
        mean = float(np.exp(np.mean(np.log(ratios))))
        lines += ["", f"Geometric mean of LEM's MASE over that of seasonal naive: {mean:.3f}, over {len(ratios)} sets."]
    return "\n".join(lines)


def tables():
    kept, text = json.loads(RESULTS.read_text()), PAGE.read_text()
    for mark, table in (("long horizons", long_table(kept)), ("monash", monash_table(kept))):
        before, line, rest = text.partition(f"<!-- {mark} of benchmarks/forecasting.py -->\n")
        text = f"{before}{line}{table}\n{rest[rest.index('<!-- end -->') :]}"
    PAGE.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no fit after so long")
    parser.add_argument("--only", default="", help="fits whose key begins so")
    options = parser.parse_args()
    if options.what == "run":
        import torch

        torch.set_num_threads(1)
        run_all(options)
    else:
        tables()


if __name__ == "__main__":
    main()
