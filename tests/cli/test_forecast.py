"""`lem forecast`: from a dated file to a forecast with dates, and what is said of files that cannot be forecast."""

import csv
import json

import numpy as np
import pytest

from lem.cli import main
from lem.timeseries import load

SMALL = ("--segment-options", "{hidden_size = 8, epochs = 1, updates = 4, batch_size = 16}", "--network", "segments")


def write(path, columns):
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        rows.writerows(zip(*columns.values()))
    return path


def dates(count, start="2024-01-01", unit="h"):
    return [str(moment).replace("T", " ") + ":00" for moment in np.datetime64(start, unit) + np.arange(count)]


def values(count, seed=0):
    t = np.arange(count)
    return 20 + 5 * np.sin(2 * np.pi * t / 24) + np.random.default_rng(seed).normal(0, 0.5, count)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def command(*words, status=0):
        code = main(["forecast", *map(str, words)])
        shown = capsys.readouterr()
        assert code == status, shown.err
        assert status == 0 or len(shown.err.splitlines()) == 1, shown.err
        return shown.out if status == 0 else shown.err

    return command


def test_a_dated_file_becomes_a_dated_forecast(run, tmp_path):
    write("load.csv", {"date": dates(300), "load": values(300), "note": values(300, 1)})
    shown = run("load.csv", "--horizon", "12", "--target", "load", *SMALL, "--out", "next.csv")
    assert "one series of 300 steps, target load, time date (1 h, 2024-01-01 00:00:00 to" in shown
    assert "columns not used: note" in shown
    assert "seasonal naive" in shown
    with open("next.csv") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["date", "load", "load_low80", "load_high80", "load_low95", "load_high95"]
    assert [row["date"] for row in rows] == [moment + ":00" for moment in dates(12, "2024-01-13T12")]
    for row in rows:
        bounds = [float(row[name]) for name in ("load_low95", "load_low80", "load", "load_high80", "load_high95")]
        assert bounds == sorted(bounds)
    card = (tmp_path / "next.md").read_text()
    assert "Rolling origins" in card
    assert "lem forecast NEW.csv --model next.safetensors" in card
    assert (tmp_path / "next.png").read_bytes().startswith(b"\x89PNG")
    assert load("next.safetensors").season_ == 24


def test_a_model_file_forecasts_another_file(run):
    write("load.csv", {"date": dates(300), "load": values(300)})
    run("load.csv", "--horizon", "12", *SMALL, "--no-plot", "--no-backtest", "--out", "a.csv")
    run("load.csv", "--model", "a.safetensors", "--out", "b.csv")
    with open("a.csv") as first, open("b.csv") as second:
        assert first.read() == second.read()
    write("daily.csv", {"date": [str(np.datetime64("2024-01-01") + k) for k in range(300)], "load": values(300)})
    assert "The steps of daily.csv are 1 d; the model was trained on 1 h." in run(
        "daily.csv", "--model", "a.safetensors", status=2
    )


def test_months_several_series_and_covariates_known_in_advance(run):
    months = [str(np.datetime64("2015-01", "M") + k) for k in range(84)]
    series = {"month": months * 2, "shop": ["a"] * 84 + ["b"] * 84, "sold": [*values(84), *(100 * values(84, 1))]}
    write("sales.csv", series)
    ahead = [str(np.datetime64("2015-01", "M") + k) for k in range(90)]
    write("plan.csv", {"month": ahead * 2, "shop": ["a"] * 90 + ["b"] * 90, "price": [*values(90), *values(90, 2)]})
    words = ("sales.csv", "--series", "shop", "--target", "sold", "--future", "plan.csv", *SMALL, "--no-plot")
    shown = run(*words, "--horizon", "6", "--json", "--out", "next.parquet")
    assert "2 series of 84 steps" in shown
    assert "known in advance price" in shown
    assert set(json.loads(shown[shown.index("{") : shown.rindex("}") + 1])["scores"]["LEM"]) >= {"MASE", "within 95 %"}
    assert "Covariate 'price' of series a ends early: it has no value at 2022-07-01" in run(
        *words, "--horizon", "7", status=2
    )


def test_gaps_are_named_and_can_be_counted_as_missing(run):
    kept = [k for k in range(200) if k not in (50, 51, 120)]
    columns = {"date": [dates(200)[k] for k in kept], "load": values(200)[kept]}
    write("load.csv", columns)
    found = run("load.csv", "--horizon", "6", *SMALL, status=2)
    assert "2 of its steps are not 1 h (2024-01-03 01:00:00 to 2024-01-03 04:00:00, " in found
    assert "--gaps missing" in found
    shown = run("load.csv", "--horizon", "6", *SMALL, "--gaps", "missing", "--no-plot", "--no-backtest")
    assert "3 steps in gaps were counted as missing" in shown
    shown = run("load.csv", "--horizon", "6", *SMALL, "--gaps", "resample", "--no-plot", "--no-backtest")
    assert "3 steps in gaps were interpolated" in shown


def test_rows_out_of_order_are_sorted_and_said_so(run):
    order = np.random.default_rng(0).permutation(150)
    write("load.csv", {"date": [dates(150)[k] for k in order], "load": values(150)[order]})
    shown = run("load.csv", "--horizon", "6", *SMALL, "--no-plot", "--no-backtest", "--out", "a.csv")
    assert "were sorted" in shown
    write("load.csv", {"date": dates(150), "load": values(150)})
    run("load.csv", "--horizon", "6", *SMALL, "--no-plot", "--no-backtest", "--out", "b.csv")
    with open("a.csv") as first, open("b.csv") as second:
        assert first.read() == second.read()


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        ({"date": [*dates(99), dates(99)[-1]]}, (), "repeat 1 times (first: 2024-01-05 02:00:00). Give --duplicates"),
        ({"date": [*dates(99), dates(100)[-1] + "+01:00"]}, (), "must have a time zone in every row or in none"),
        ({"date": list(range(100))}, ("--time", "date"), "must hold dates"),
        ({"date": list(range(100))}, (), "has no column of dates. Name it with --time."),
        ({"load": [*values(99), np.nan]}, (), "has missing values (1 in all, first at 2024-01-05 03:00:00)"),
        ({"load": [np.nan] * 100}, ("--missing", "mask"), "Column 'load' of series 0 has no value; leave"),
        ({"load": [np.nan] * 100}, (), "Column 'load' of series 0 has no value; leave"),
        ({"load": ["high", *values(99)]}, (), "Column 'load' must hold numbers; got 'high' in row 1.\n"),
        ({"date": [d + "Z" * (k % 2) for k, d in enumerate(dates(100))]}, (), "Add the missing zones, or remove them"),
        ({}, ("--time", "load"), "Column 'load' of load.csv must hold dates"),
        ({}, ("--start", "1.5"), "--start must be a part between 0 and 1, and --stride at least 1; got 1.5 and 6."),
        ({}, ("--stride", "0"), "got 0.8 and 0."),
        ({}, ("--quantiles", "0.1,0.9"), "that include 0.5 and lie in pairs around it"),
        ({}, ("--quantiles", "many"), "such as (0.1, 0.5, 0.9); got 'many'."),
        ({}, ("--horizon", "100"), "--horizon must be shorter than the history; got 100 steps, and a series of 100"),
        ({}, ("--target", "laod"), "Did you mean 'load'?"),
        ({}, ("--out", "x.txt"), "--out must end in .csv or .parquet"),
        ({"load": values(100) - 20}, ("--log",), "log=True of LEMForecaster needs positive values"),
        ({"other": values(100)}, (), "Name what is forecast with --target: load.csv has the columns load, other."),
    ],
)
def test_what_cannot_be_forecast_is_named_with_its_remedy(run, change, words, message):
    write("load.csv", {"date": dates(100), "load": values(100), **change})
    words = words if "--horizon" in words else ("--horizon", "6", *words)
    assert message in run("load.csv", *SMALL, *words, status=2)


def test_what_is_done_with_a_file_is_said(run):
    """Zones, filled covariates and constant series: nothing is changed or filled in without saying so."""
    columns = {
        "date": [moment + "+01:00" for moment in dates(100)] * 2,
        "plant": ["a"] * 100 + ["b"] * 100,
        "load": [*values(100), *[7.0] * 100],
        "wind": [*values(100), "", "", *values(98)],
    }
    write("load.csv", columns)
    words = ("load.csv", "--horizon", "6", "--series", "plant", "--target", "load", "--past", "wind", *SMALL)
    words = (*words, "--missing", "mask", "--no-plot", "--no-backtest", "--quantiles", "0.2,0.5,0.8")
    shown = run(*words)
    assert "times with time zones (+01:00) were converted to UTC" in shown
    assert "covariate wind: 2 missing values were filled with the value before" in shown
    assert "load is constant in series b:" in shown
    with open("forecast.csv") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["date"] == "2024-01-05 03:00:00"
    assert list(rows[0])[2:] == ["load", "load_low60", "load_high60"]
    write("plan.csv", {"date": dates(106) * 2, "plant": ["a"] * 212, "sun": values(212)})
    assert "repeats times of series a" in run(*words, "--future", "plan.csv", status=2)
