"""`lem fit`, `predict`, `evaluate` and `export`: one command from a file to a trained model, and on from there."""

import csv
import json

import numpy as np
import pytest

from lem.cli import main
from lem.timeseries.formats import write
from lem.timeseries.predictor import Predictor


@pytest.fixture
def classes(tmp_path):
    random = np.random.default_rng(0)
    up = random.integers(0, 2, 60)
    X = random.normal(size=(60, 12)) + np.where(up, 1.0, -1.0)[:, None]
    columns = {f"t{t}": X[:, t].tolist() for t in range(12)}
    return write(tmp_path / "data.csv", {**columns, "label": np.where(up, "up", "down").tolist()})


def run(capsys, *words):
    status = main([str(word) for word in words])
    shown = capsys.readouterr()
    return status, shown.out + shown.err


def test_from_a_csv_to_a_model_a_card_a_picture_and_predictions(classes, tmp_path, capsys):
    out = tmp_path / "model.safetensors"
    common = ("--target", "label")
    status, text = run(capsys, "fit", classes, *common, "--out", out, "--epochs", 30, "--hidden-size", 8)
    assert status == 0, text
    assert "test accuracy" in text
    card = (tmp_path / "model.md").read_text()
    for words in (
        "2 classes: down, up",
        "48 series, of which 10 held out",
        "dt 1",
        "hidden_size 8",
        "balanced accuracy",
    ):
        assert words in card
    assert (tmp_path / "model.png").stat().st_size > 5000
    status, text = run(capsys, "evaluate", out, classes, *common)
    assert status == 0
    assert float(text.partition("\naccuracy ")[2].split()[0]) > 0.9
    status, text = run(capsys, "evaluate", out, classes, "--json")
    scores = json.loads(text)
    assert scores["accuracy_low"] < scores["accuracy"] <= scores["accuracy_high"]
    assert set(scores["classes"]) == {"up", "down"}
    assert sum(map(sum, scores["confusion"])) == scores["series"] == 60
    status, text = run(capsys, "predict", out, classes, *common)
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == 60
    assert set(rows[0]) == {"series", "prediction", "p(down)", "p(up)"}
    assert run(capsys, "evaluate", out, classes) == run(
        capsys, "evaluate", out, classes, *common
    )  # it knows its target
    assert run(capsys, "predict", out, classes) == run(capsys, "predict", out, classes, *common)
    header, *rest = [row.rsplit(",", 1)[0] for row in classes.read_text().splitlines()]
    (tmp_path / "unlabelled.csv").write_text("\n".join([header, *rest]) + "\n")
    assert run(capsys, "predict", out, tmp_path / "unlabelled.csv") == run(capsys, "predict", out, classes)
    status, text = run(capsys, "predict", out, classes, *common, "--out", tmp_path / "p.parquet")
    assert (tmp_path / "p.parquet").is_file()
    status, text = run(capsys, "export", out, "--to", "numpy")
    assert status == 0, text
    assert "self-test passed" in text
    assert (tmp_path / "model-numpy" / "weights.npz").is_file()


def test_regression_and_forecasting_from_tables(tmp_path, capsys):
    t = np.arange(240)
    wave = write(tmp_path / "wave.csv", {"time": t.tolist(), "v": np.sin(t / 4).tolist()})
    out = tmp_path / "forecast.safetensors"
    words = ("--channels", "v", "--time", "time")
    status, text = run(capsys, "fit", wave, *words, "--forecast", 3, "--out", out, "--epochs", 3, "--no-plot")
    assert status == 0, text
    assert "test RMSE" in text
    status, text = run(capsys, "predict", out, wave, *words)
    assert [line.split(",")[:2] for line in text.splitlines()] == [
        ["series", "time"],
        *(["0", f"{240 + k}"] for k in range(3)),
    ]
    assert run(capsys, "predict", out, wave) == (status, text)
    status, text = run(capsys, "evaluate", out, wave, *words)
    assert "baseline           the last value of each series, repeated" in text
    rows = write(tmp_path / "rows.csv", {"a": t.tolist(), "b": (t % 7).tolist(), "y": (t / 10.0 + 0.05).tolist()})
    other = tmp_path / "regress.safetensors"
    words = ("--layout", "wide", "--keep", "a")
    status, text = run(capsys, "fit", rows, "--target", "y", *words, "--out", other, "--epochs", 2, "--test", rows)
    assert status == 0, text
    assert "test RMSE" in text
    assert "on 240 series: rows.csv" in text


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("fit", "DATA"), "name its column with --target"),
        (("fit", "DATA", "--target", "lable"), "Did you mean 'label'"),
        (("fit", "DATA", "--target", "label", "--cell", "lstmm"), "Did you mean 'lstm'"),
        (("fit", "DATA", "--target", "label", "--task", "regress"), "must be a number for every series; got"),
        (("fit", "DATA", "--target", "label", "--channels", "t00"), "--channels must name columns of data.csv"),
        (("fit", "DATA", "--target", "label", "--time", "t0"), "--time needs --series"),
        (("fit", "DATA", "--target", "label", "--test-fraction", "1.5"), "must be a number in [0, 1); got 1.5"),
        (("fit", "DATA", "--target", "label", "--seed", "-1"), "must be a whole number of at least 0; got -1"),
        (("fit", "DATA", "--target", "label", "--forecast", "2"), "needs no --target"),
        (
            ("fit", "DATA", "--target", "label", "--hidden-size", "0"),
            "--hidden-size of LEMClassifier must",
        ),
        (("fit", "DATA", "--target", "label", "--window", "9"), "--window is not an option of LEMClassifier"),
        (
            ("fit", "DATA", "--target", "label", "--gaps", "elapsed"),
            "--gaps elapsed needs a column of times; name it with --time",
        ),
        (("fit", "DATA", "--target", "label", "--options", "none.toml"), "file of options must exist"),
        (("fit", "DATA", "--target", "label", "--static", "t0,t1", "--ignore", "t1"), "both --static and --ignore"),
        (("export", ".", "--to", "numpy"), "The model file must exist"),
        (("predict", "DATA", "DATA"), "not a safetensors file"),
        (("predict", "DATA", "DATA", "--out", "answers.xlsx"), "must end in .csv or .parquet"),
        (("export", "nothing.safetensors", "--to", "onnx"), "must exist"),
        (("evaluate", "DATA"), "needs a file of series"),
    ],
)
def test_wrong_commands_are_one_line(words, error, classes, capsys):
    assert main([str(classes if word == "DATA" else word) for word in words]) == 2
    shown = capsys.readouterr().err
    assert error in shown
    assert len(shown.splitlines()) == 1


def test_a_file_of_options_and_flags_that_win(classes, tmp_path, capsys):
    settings = tmp_path / "settings.toml"
    settings.write_text('target = "label"\nepochs = 1\nhidden-size = 5\nno_plot = true\ndropout = 0.1\n')
    out = tmp_path / "m.safetensors"
    words = ("--options", settings, "--hidden-size", "3", "--bidirectional", "--out", out)
    status, text = run(capsys, "fit", classes, *words)
    assert status == 0, text
    notes = Predictor.load(out).notes["estimator"]
    assert {name: notes[name] for name in ("hidden_size", "epochs", "dropout", "bidirectional")} == {
        "hidden_size": 3,
        "epochs": 1,
        "dropout": 0.1,
        "bidirectional": True,
    }
    settings.write_text("epoch = 3\n")
    assert "unknown option 'epoch'. Did you mean 'epochs'?" in run(capsys, "fit", classes, "--options", settings)[1]
