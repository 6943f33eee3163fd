"""A new user's first hour with files, in an empty folder: every step ends right, or in one line with its remedy."""

import contextlib
import csv
import io
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lem.cli import main
from lem.timeseries import LEMClassifier, LEMForecaster
from lem.timeseries.formats import as_csv, read_table, write
from lem.timeseries.series import as_series

FIXTURES = Path(__file__).parent.parent / "fixtures"
QUICK = ("--epochs", "3", "--hidden-size", "4", "--no-plot")
FIT = ("--series", "pump_id", "--time", "time", "--target", "fault")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the example data and a model of it."""
    folder = tmp_path_factory.mktemp("pumps")
    with contextlib.chdir(folder):
        assert main(["example", "pumps.csv"]) == 0
        assert main(["fit", "pumps.csv", *FIT, "--epochs", "25", "--hidden-size", "16", "--no-plot"]) == 0
    return folder


@pytest.fixture
def run(capsys, monkeypatch, trained):
    monkeypatch.chdir(trained)

    def command(*words, status=0):
        code = main([str(word) for word in words])
        shown = capsys.readouterr()
        assert code == status, shown.err
        assert status == 0 or len(shown.err.splitlines()) == 1, shown.err
        return shown.out if status == 0 else shown.err

    return command


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_1_other_order_of_columns_gives_the_same_answers(run):
    columns = read_table(Path("pumps.csv"))
    names = list(columns)
    for order in (names[::-1], sorted(names), names[3:] + names[:3]):
        write("shuffled.csv", {name: columns[name].tolist() for name in order})
        assert run("predict", "model.safetensors", "shuffled.csv") == run("predict", "model.safetensors", "pumps.csv")
    write("renamed.csv", {"Pressure" if name == "pressure" else name: columns[name].tolist() for name in names})
    error = run("predict", "model.safetensors", "renamed.csv", status=2)
    assert "renamed.csv has no column 'pressure', which the model was trained on. Did you mean 'Pressure'?" in error
    write("fewer.csv", {name: columns[name].tolist() for name in names if name not in ("flow", "time")})
    assert "no columns 'time', 'flow'" in run("predict", "model.safetensors", "fewer.csv", status=2)


def test_1_extra_columns_are_named_and_not_used(run, capsys):
    columns = {name: column.tolist() for name, column in read_table(Path("pumps.csv")).items()}
    write("more.csv", {"humidity": ["7"] * len(columns["flow"]), **columns})
    assert main(["predict", "model.safetensors", "more.csv"]) == 0
    shown = capsys.readouterr()
    assert shown.err == "lem: columns not used: humidity\n"
    assert shown.out == run("predict", "model.safetensors", "pumps.csv")


def test_2_a_long_numeric_table_is_not_read_as_one_series_a_row(run):
    rng = np.random.default_rng(0)
    n, steps = 20, 30
    numbers = {
        "unit": np.repeat(np.arange(n) + 100, steps).tolist(),
        "minute": np.tile(np.arange(steps), n).tolist(),
        "flow": rng.normal(size=n * steps).tolist(),
        "fault": np.repeat(np.arange(n) % 2, steps).tolist(),
    }
    write("numbers.csv", numbers)
    error = run("fit", "numbers.csv", "--target", "fault", status=2)
    assert "column 'unit' looks like a series id" in error
    assert "column 'minute' looks like time" in error
    remedy = "--series unit --time minute"
    assert remedy in error
    shown = run("fit", "numbers.csv", "--target", "fault", *remedy.split(), *QUICK, "--out", "numbers.safetensors")
    assert shown.startswith(
        "numbers.csv: 20 series of 30 steps, 1 channel (flow), id unit, time minute (1), target fault: 0 10, 1 10\n"
    )
    error = run("fit", "numbers.csv", "--target", "fault", "--ignore", "unit,minute", status=2)
    assert "--series" in error
    assert "--layout wide" in error


def test_3_predict_and_evaluate_need_no_options(run):
    answers = table(run("predict", "model.safetensors", "pumps.csv"))
    assert [row["pump_id"] for row in answers] == [f"pump{k + 1:02d}" for k in range(60)]
    assert all(abs(sum(float(row[f"p({c})"]) for c in ("ok", "leak", "blockage")) - 1) < 1e-4 for row in answers)
    assert not any("e-" in value for row in answers for value in row.values())
    scores = json.loads(run("evaluate", "model.safetensors", "pumps.csv", "--json"))
    assert (
        scores["accuracy"]
        == sum(row["prediction"] == t for row, t in zip(answers, ["ok", "leak", "blockage"] * 20)) / 60
    )
    shown = run("evaluate", "model.safetensors", "pumps.csv")
    for words in ("balanced accuracy", "95 % interval", "precision  recall", "true / predicted"):
        assert words in shown
    unlabelled = {name: c.tolist() for name, c in read_table(Path("pumps.csv")).items() if name != "fault"}
    write("unlabelled.csv", unlabelled)
    assert table(run("predict", "model.safetensors", "unlabelled.csv")) == answers
    assert "--target" in run("evaluate", "model.safetensors", "unlabelled.csv", status=2)


def test_5_gaps_and_duplicates_are_reported_and_chosen_by_name(run):
    columns = {name: column.tolist() for name, column in read_table(Path("pumps.csv")).items()}
    kept = [row for row in range(len(columns["flow"])) if row not in (20, 21, 22)]
    write("gaps.csv", {name: [column[row] for row in kept] for name, column in columns.items()})
    error = run("fit", "gaps.csv", *FIT, status=2)
    assert (
        "1 steps differ from the usual 1 min (first: from 2024-03-01 08:19:00 to 2024-03-01 08:23:00 in series pump01)"
        in error
    )
    for way in ("resample", "ignore"):
        assert f"--gaps {way}" in error
        assert "1 irregular steps of time" in run(
            "fit", "gaps.csv", *FIT, *QUICK, "--gaps", way, "--out", "g.safetensors"
        )
    shown = run("fit", "gaps.csv", *FIT, "--epochs", "1", "--gaps", "elapsed", "--out", "e.safetensors")
    assert "1 irregular steps of time: the model sees them, in units of 1 min" in shown
    twice = [*range(5), 4, *range(5, len(columns["flow"]))]
    write("twice.csv", {name: [column[row] for row in twice] for name, column in columns.items()})
    error = run("predict", "model.safetensors", "twice.csv", status=2)
    assert "'time' repeats 1 times (first: 2024-03-01 08:04:00 in rows 5 and 6, series pump01)" in error
    same = run("predict", "model.safetensors", "twice.csv", "--duplicates", "first")
    assert same == run("predict", "model.safetensors", "pumps.csv")
    slow = [row for row in range(len(columns["flow"])) if int(columns["time"][row][14:16]) % 2 == 0]
    write("slow.csv", {name: [column[row] for row in slow] for name, column in columns.items()})
    error = run("predict", "model.safetensors", "slow.csv", status=2)
    assert "are 2 min; the model was trained on steps of 1 min. Give --gaps resample" in error
    assert len(table(run("predict", "model.safetensors", "slow.csv", "--gaps", "resample"))) == 60


def test_4_arrays_with_time_in_rows_are_read_right_or_warned_of():
    rng = np.random.default_rng(0)
    frames = [pd.DataFrame(rng.normal(size=(30, 3)), columns=["a", "b", "c"]) for _ in range(4)]
    series = as_series(frames, "LEMClassifier")
    assert series.values.shape == (4, 30, 3)
    assert (series.values[1] == frames[1].to_numpy()).all()
    with pytest.warns(UserWarning, match=r"has 40 channels of 3 time steps.*X.transpose\(0, 2, 1\)"):
        LEMClassifier(effort="quick").fit(rng.normal(size=(8, 40, 3)), [0, 1] * 4)
    with pytest.raises(ValueError, match=r"one series is X\[None, :\]"):
        LEMForecaster(4, epochs=1).fit(np.arange(50.0))


def test_6_scales_and_certificates_of_a_model_file(run):
    shown = run("scales", "model.safetensors", "pumps.csv", "--figure", "scales.png")
    assert "dt_z" in shown
    assert "min" in shown or " s" in shown
    assert "advice" in run("certify", "model.safetensors", "pumps.csv", "--figure", "certificate.png")
    assert Path("scales.png").stat().st_size > 5000
    assert Path("certificate.png").stat().st_size > 5000
    assert "needs a file of series after the model file" in run("scales", "model.safetensors", status=2)


def test_7_errors_name_flags(run):
    columns = {name: column.tolist() for name, column in read_table(Path("pumps.csv")).items()}
    columns["flow"][7] = ""
    write("hole.csv", columns)
    error = run("fit", "hole.csv", *FIT, status=2)
    assert "1 missing values (first: series pump01, channel 'flow', step 8). Give --missing mask" in error
    error = run("predict", "model.safetensors", "hole.csv", status=2)
    assert "The model was fitted on series without any: fill them, or fit a model with --missing mask." in error
    assert "1 missing values" in run("fit", "hole.csv", *FIT, *QUICK, "--missing", "mask", "--out", "h.safetensors")
    assert "--time time" in run("fit", "pumps.csv", "--series", "pump_id", "--target", "fault", status=2)
    for error in (run("fit", "pumps.csv", *FIT, "--epochs", "0", status=2),):
        assert "--epochs" in error
        assert "`" not in error


def test_the_card_of_frozen_features_names_no_options_of_training(run):
    run("fit", "pumps.csv", *FIT, "--effort", "quick", "--no-plot", "--out", "frozen.safetensors")
    card = Path("frozen.md").read_text()
    assert "effort=quick" in card
    assert "epochs=" not in card
    assert "epochs=25" in Path("model.md").read_text()


def test_8_progress_names_the_metric(run, monkeypatch, capsys):
    monkeypatch.setattr("lem.cli.display.EVERY", 0.0)  # a line for each event, as no terminal is there
    assert main(["fit", "pumps.csv", *FIT, *QUICK, "--out", "progress.safetensors"]) == 0
    assert re.search(r"lem fit  epoch 3/3 .*best [0-9.]+ at [0-9]+  accuracy [0-9.]+  loss", capsys.readouterr().err)


def test_8_ctrl_c_keeps_the_best_model(trained):
    words = ["fit", "pumps.csv", *FIT, "--epochs", "100000", "--patience", "100000", "--out", "stopped.safetensors"]
    code = "import sys, lem.cli.display as d\nd.EVERY = 0.0\nfrom lem.cli import main\nsys.exit(main(sys.argv[1:]))\n"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words, "--no-plot", "--hidden-size", "4"],
        cwd=trained,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    deadline = time.monotonic() + 300
    while "best" not in process.stderr.readline():  # the first epoch is over
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    output, error = process.communicate(timeout=300)
    assert process.returncode == 130, error
    assert "the best so far, was kept. Run the same command again" in error
    assert "test accuracy" in output
    assert main(["predict", str(trained / "stopped.safetensors"), str(trained / "pumps.csv")]) == 0


def test_model_files_of_0_1_0_take_columns_by_position_and_say_so(tmp_path, capsys):
    rng = np.random.default_rng(0)
    write(tmp_path / "x.csv", {"s": ["a"] * 8 + ["b"] * 8, **{k: rng.normal(size=16).tolist() for k in "vw"}})
    words = ["predict", str(FIXTURES / "0.1.0" / "classifier.safetensors"), str(tmp_path / "x.csv"), "--series", "s"]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "does not name its columns" in shown.err
    assert "by position" in shown.err
    assert len(table(shown.out)) == 2


BAD = {
    "zero.csv": (b"", "is empty: it has 0 bytes. Save the data again"),
    "header.csv": (b"a,b,c\n", "at least one row; it has 1 lines. Save it with its rows"),
    "ragged.csv": (b"a,b\n1,2\n1\n", "Row 2 of ragged.csv must have 2 entries, as the header has; got 1. Correct"),
    "infinite.csv": (b"t0,t1,t2,y\n1,2,3,a\n3,-inf,5,b\n", "Column 't1' must hold finite numbers; got -inf in row 2"),
    "sheet.xlsx": (b"PK\x03\x04", "is a spreadsheet. Save the sheet as CSV"),
    "sheet.csv": (b"PK\x03\x04rest", "is a spreadsheet or an archive with a false name"),
    "binary.csv": (b"a,b\n\x00\x01,2\n", "must be text; it holds zero bytes"),
    "packed.csv.gz": (b"\x1f\x8b", "is a compressed file. Unpack it first"),
    "mixed.csv": ("ä,b\n1,2\n".encode() + "ö,2\n".encode("latin-1"), "mixes UTF-8 with another encoding (line 3"),
    "numbers.csv": (b"3.5,4.5,0\n1,2,0\n", "must name the columns; it holds numbers"),
    "twice.csv": (b"a,a\n1,2\n", "'a' twice"),
    "commas.csv": (b"id;v;w;y\na;1,5;2.5;0\nb;1,5;2.5;1\n", "mixes decimal commas (column 'v') with decimal points"),
    "constant.csv": (b"t0,t1,t2,y\n1,2,3,a\n3,4,5,a\n", "The target 'y' is a for every series"),
    "holes.csv": (b"t0,t1,t2,y\n1,2,3,a\n3,4,5,\n", "The target 'y' must have a value in every row; row 2 has none"),
    "ids.csv": (b"id,v,y\na,1,0\n,2,0\nb,3,1\n", "Column 'id' must name the series of every row; row 2 has none"),
    "huge.csv": (
        b"code,t0,t1,t2,y\n" + b"".join(b"9%020d,1,2,3,%d\n" % (k * k % 7, k % 2) for k in range(9)),
        "column 'code' looks like a series id (it holds integers too large to be measured values)",
    ),
    "dates.csv": (
        b"id,when,v,y\na,03/04/2024,1,0\na,04/04/2024,2,0\nb,05/04/2024,1,1\nb,06/04/2024,1,1\n",
        "day and month cannot be told apart. Give --time-format %d/%m/%Y or",
    ),
    "changes.csv": (
        b"id,v,y\na,1,0\na,2,1\nb,3,1\n",
        "The target 'y' must not change within a series; series a has 0 in row 1",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named_with_what_to_do(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    content, words = BAD[name]
    Path(name).write_bytes(content)
    extra = ["--series", "id"] if b"id" in content[:3] else []
    extra += ["--time", "when"] if b"when" in content[:10] else []
    assert main(["fit", name, "--target", "y", *extra]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [Path(tmp_path / name)]


def test_other_bad_arguments(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write("pumps.csv", {"t0": [1], "t1": [2], "t2": [3], "y": ["a"]})
    Path("folder").mkdir()
    for data, words in (
        ("https://example.org/pumps.csv", "https://example.org/pumps.csv is a URL. Download the file first"),
        ("pump.csv", "The file of series must exist; got pump.csv. Did you mean 'pumps.csv'?"),
        ("folder", "is a folder. Give one of the files in it"),
    ):
        assert main(["fit", data, "--target", "y"]) == 2
        assert words in capsys.readouterr().err


def test_a_table_of_a_hundred_thousand_columns(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    count = 100_000
    rows = [",".join(f"t{k}" for k in range(count)) + ",y"]
    rows += [",".join(["0.5"] * count) + f",{label}" for label in "ab"]
    Path("wide.csv").write_text("\n".join(rows) + "\n")
    assert main(["fit", "wide.csv", "--target", "y", "--ignore", "t99999", "--hidden-size", "0"]) == 2
    error = capsys.readouterr().err
    assert "--hidden-size" in error


def test_a_nested_parquet_is_refused(tmp_path, monkeypatch, capsys):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    monkeypatch.chdir(tmp_path)
    parquet.write_table(pyarrow.table({"x": [[1.0, 2.0], [3.0]], "y": [0, 1]}), "nested.parquet")
    assert main(["fit", "nested.parquet", "--target", "y"]) == 2
    assert "Column 'x' of nested.parquet is nested (list<element: double>)" in capsys.readouterr().err


def test_the_example_is_as_described_and_never_overwrites(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["example", "pumps.csv"]) == 0
    assert main(["example", "pumps.csv"]) == 2
    assert "exists already" in capsys.readouterr().err
    columns = read_table(Path("pumps.csv"))
    assert list(columns) == ["pump_id", "time", "flow", "pressure", "temperature", "fault"]
    assert as_csv({name: c.tolist() for name, c in columns.items()}) == Path("pumps.csv").read_text()
