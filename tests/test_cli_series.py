"""`lem fit`, `predict`, `evaluate` and `export`: one command from a file to a trained model, and on from there."""

import csv

import numpy as np
import pytest

from lem.cli import main
from lem.tables import write


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
    for words in ("2 classes: down, up", "48, of which 10 held out", "| dt | 1 |", "lem, 1 x 8 units", "test accuracy"):
        assert words in card
    assert (tmp_path / "model.png").stat().st_size > 5000
    status, text = run(capsys, "evaluate", out, classes, *common)
    assert status == 0
    assert float(text.removeprefix("accuracy: ")) > 0.9
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
    assert text.splitlines()[0] == "series,prediction_0_0,prediction_0_1,prediction_0_2"
    status, text = run(capsys, "evaluate", out, wave, *words)
    assert text.startswith("RMSE: ")
    rows = write(tmp_path / "rows.csv", {"a": t.tolist(), "b": (t % 7).tolist(), "y": (t / 10.0 + 0.05).tolist()})
    other = tmp_path / "regress.safetensors"
    status, text = run(capsys, "fit", rows, "--target", "y", "--out", other, "--epochs", 2, "--test", rows)
    assert status == 0, text
    assert "test RMSE" in text
    assert "240 series of rows.csv" in text


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("fit", "DATA"), "name its column with --target"),
        (("fit", "DATA", "--target", "lable"), "Did you mean 'label'"),
        (("fit", "DATA", "--target", "label", "--cell", "lstmm"), "Did you mean 'lstm'"),
        (("fit", "DATA", "--target", "label", "--task", "regress"), "must be a number in every row; got"),
        (("fit", "DATA", "--target", "label", "--channels", "t00"), "Each of `channels` must be a column"),
        (("fit", "DATA", "--target", "label", "--time", "t0"), "`time` needs `series`"),
        (("fit", "DATA", "--target", "label", "--test-fraction", "1.5"), "must be a number in [0, 1); got 1.5"),
        (("fit", "DATA", "--target", "label", "--seed", "-1"), "must be a whole number of at least 0; got -1"),
        (("fit", "DATA", "--target", "label", "--forecast", "2"), "needs no --target"),
        (("fit", "DATA", "--target", "t1", "--balanced", "--channels", "t0"), "--balanced of lem fit is for classes"),
        (("export", ".", "--to", "numpy"), "The model file must exist"),
        (("predict", "DATA", "DATA"), "no safetensors file"),
        (("export", "nothing.safetensors", "--to", "onnx"), "must exist"),
        (("evaluate", "DATA"), "needs a file of series"),
    ],
)
def test_wrong_commands_are_one_line(words, error, classes, capsys):
    status, text = run(capsys, *(classes if word == "DATA" else word for word in words))
    assert status == 2
    assert error in text
    assert len(text.splitlines()) == 1
