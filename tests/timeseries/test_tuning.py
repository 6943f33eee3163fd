"""`tune_file`: what it searches, on which series, how it continues, and what it refuses."""

import csv
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, log_loss

from lem.cli import main
from lem.timeseries import tuning
from lem.timeseries.formats import write
from lem.timeseries.layout import Reading
from lem.timeseries.tuning import tune_file
from tests.close import assert_close

pytest.importorskip("optuna")
READ = Reading(target="y")
SEARCH = {
    "learning_rate": {"low": 0.01, "high": 1.0, "log": True},
    "hidden_size": [4, 8],
    "epochs": {"low": 1, "high": 9},
}


@pytest.fixture
def data(tmp_path):
    random = np.random.default_rng(0)
    y = np.arange(40) % 2
    values = random.normal(size=(40, 6)) + 2.0 * y[:, None]
    table = {f"t{k}": values[:, k].tolist() for k in range(6)} | {"y": [f"c{k}" for k in y]}
    return write(tmp_path / "data.csv", table)


class Stub:
    """A classifier whose score depends on its options alone, and which remembers what it has seen."""

    seen: list[tuple[set[float], set[float]]] = []

    def __init__(self, **options):
        self.options = options

    def get_params(self):
        return {"learning_rate": 0.1, "hidden_size": 8, "epochs": 5}

    def fit(self, X, y):
        self.trained, self.classes_ = {float(x.flat[0]) for x in X}, np.unique(y)
        return self

    def predict(self, X):
        Stub.seen.append((self.trained, {float(x.flat[0]) for x in X}))
        wrong = round(min(abs(np.log(self.options["learning_rate"] / 0.2)) / 5.0, 1.0) * len(X))
        return np.array(["none"] * wrong + ["c0"] * (len(X) - wrong), dtype=object)


@pytest.fixture
def stub(monkeypatch):
    Stub.seen = []
    monkeypatch.setattr(tuning, "make_estimator", lambda task, options: Stub(**options))
    return Stub


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def summary(tuned):
    return [(t.number, t.options, t.score, t.state) for t in tuned.trials]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_an_interrupted_search_continues_as_if_it_had_not_been(data, tmp_path, stub, sampler):
    same = {"search": SEARCH, "sampler": sampler, "folds": 3}
    whole = tune_file(data, tmp_path / "whole", READ, trials=14, **same)
    assert not whole.stopped
    ended = []
    parts = tune_file(
        data, tmp_path / "parts", READ, trials=14, should_stop=lambda: len(ended) > 4, report=ended.append, **same
    )
    assert parts.stopped
    assert len(parts.trials) < 14
    again = tune_file(data, tmp_path / "parts", READ, trials=14, **same)
    assert summary(again) == summary(whole)
    assert summary(again)[: len(parts.trials)] == summary(parts)
    assert again.trials[0].options == Stub().get_params()
    other = tune_file(data, tmp_path / "other", READ, trials=14, seed=1, **same)
    assert summary(other) != summary(whole)


def test_a_process_that_died_leaves_its_trial_to_the_next(data, tmp_path, stub, monkeypatch):
    monkeypatch.setattr(tuning, "one_score", lambda *_: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(MemoryError):
        tune_file(data, tmp_path / "s", READ, trials=3, folds=2, search=SEARCH)
    monkeypatch.undo()
    monkeypatch.setattr(tuning, "make_estimator", lambda task, options: Stub(**options))
    tuned = tune_file(data, tmp_path / "s", READ, trials=3, folds=2, search=SEARCH)
    assert [t.number for t in tuned.trials] == [1, 2, 3]
    assert tuned.trials[0].options == Stub().get_params()


def test_the_search_sees_no_series_that_is_kept_for_scoring(data, tmp_path, stub):
    tune_file(data, tmp_path / "study", READ, trials=2, folds=4, search=SEARCH)
    everything = {float(row["t0"]) for row in rows_of(data)}
    searched = set.union(*(trained | held for trained, held in stub.seen))
    assert len(everything) == 40
    assert len(searched) == 32  # `lem fit` keeps 8 of 40 with the same seed
    for trained, held in stub.seen:
        assert not trained & held
        assert trained | held == searched
    tune_file(data, tmp_path / "all", READ, trials=1, folds=4, search=SEARCH, test=data)
    assert set.union(*stub.seen[-1]) == everything


def test_folds_hold_every_class_in_equal_parts():
    y = np.array(["a"] * 20 + ["b"] * 10 + ["c"] * 5)
    which, folds = tuning._folds(y, 5, "classify", 0)
    assert folds == 5
    for fold in range(5):
        assert [(y[which == fold] == label).sum() for label in "abc"] == [4, 2, 1]
    assert tuning._folds(y[:32], 5, "classify", 0)[1] == 2
    assert np.bincount(tuning._folds(np.arange(13.0), 5, "regress", 0)[0]).tolist() == [3, 3, 3, 2, 2]


def test_metrics_are_those_of_scikit_learn():
    random = np.random.default_rng(0)
    y = np.array(list("abc"), dtype=object)[random.integers(0, 3, 30)]
    chances = random.dirichlet(np.ones(3), 30)

    class Model:
        classes_ = np.array(list("abc"))

        def predict(self, X):
            return self.classes_[chances.argmax(1)]

        def predict_proba(self, X):
            return chances

    assert_close(tuning.one_score("log_loss", Model(), None, y), log_loss(y.astype(str), chances), "float64")
    expected = balanced_accuracy_score(y.astype(str), Model().predict(None))
    assert_close(tuning.one_score("balanced_accuracy", Model(), None, y), expected, "float64")
    assert tuning.one_score("accuracy", Model(), None, y) != expected


def test_a_search_finds_a_good_value_and_prunes(data, tmp_path, stub):
    tuned = tune_file(data, tmp_path / "s", READ, trials=25, folds=3, search=SEARCH, prune=True)
    assert 0.1 < tuned.best.options["learning_rate"] < 0.4
    assert tuned.best.score == max(t.score for t in tuned.trials if t.state == "complete")
    assert any(t.state == "pruned" and len(t.folds) < 3 for t in tuned.trials)
    rows = rows_of(tuned.files["trials"])
    assert [row["trial"] for row in rows] == [str(k + 1) for k in range(25)]
    assert tuned.files["figure"].stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trials": 0}, "`trials` must be at least 1"),
        ({"folds": 1}, "`folds` must be at least 2"),
        ({"sampler": "tp"}, "`sampler` must be one of 'random', 'tpe'; got 'tp'. Did you mean 'tpe'?"),
        ({"metric": "acuracy"}, "Did you mean 'accuracy'?"),
        ({"metric": "rmse"}, "`metric` must be one of 'accuracy', 'balanced_accuracy', 'log_loss'; got 'rmse'"),
        ({"search": {"effrt": ["best"]}}, "`effrt` is not an option of LEMClassifier. Did you mean 'effort'?"),
        ({"search": {}}, "must have at least one option"),
        ({"search": {"dropout": {"low": 1.0, "high": 0.5}}}, "with low below high"),
        ({"search": {"effort": "best"}}, "must be a list of values"),
        ({"search": {"effort": ["best"]}, "options": {"effort": "quick"}}, "cannot be both fixed and searched"),
        ({"options": {"effort": "quick", "cell": "lem"}}, "There is nothing to search"),
        ({"options": {"network": "features", "cell": "lme"}}, "Did you mean 'lem'?"),
    ],
)
def test_what_is_refused(data, tmp_path, options, words):
    with pytest.raises(ValueError, match=words.replace("?", r"\?").replace("[", r"\[")):
        tune_file(data, tmp_path / "study", READ, **options)
    assert not (tmp_path / "study").exists()


def test_another_study_in_the_folder_is_refused(data, tmp_path, stub):
    tune_file(data, tmp_path / "study", READ, trials=1, search=SEARCH)
    with pytest.raises(ValueError, match=r"other settings \(folds, seed\)"):
        tune_file(data, tmp_path / "study", READ, trials=1, search=SEARCH, folds=3, seed=1)
    with tuning._study(tmp_path / "busy", {}, True, False), pytest.raises(RuntimeError, match="locked by another"):
        tune_file(data, tmp_path / "busy", READ, trials=1, search=SEARCH)


def test_the_command_tunes_trains_and_continues(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("fixed.toml").write_text('effort = "quick"\n[search]\ncell = ["lem", "gru"]\n')
    words = ["tune", "data.csv", "--target", "y", "--options", "fixed.toml", "--folds", "2", "--metric", "log_loss"]
    assert main([*words, "--trials", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("data.csv: 40 series of 6 steps")
    assert "1/1  log_loss" in shown
    assert "test accuracy" in shown
    assert main([*words, "--trials", "2"]) == 0
    shown = capsys.readouterr().out
    assert "1/2" not in shown
    assert "2/2  log_loss" in shown
    best = Path("runs/data/tune-study/options.toml")
    assert 'effort = "quick"' in best.read_text()
    assert main(["fit", "data.csv", "--target", "y", "--options", str(best), "--no-plot"]) == 0
    assert main(["fit", "data.csv", "--target", "y", "--options", "fixed.toml"]) == 2
    assert "[search] of fixed.toml is for `lem tune data.csv`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["data.csv", "--jobs", "2"], "--jobs is for recipes; data.csv is a file of series"),
        (["data.csv", "--train.epochs", "2"], "--train.epochs is for recipes"),
        (["adding/lem", "--target", "y"], "--target is for a file of series; adding/lem is a recipe"),
        (["data.csv"], "name its column with --target"),
        (["none.csv", "--target", "y"], "must exist; got none.csv"),
    ],
)
def test_the_command_keeps_recipes_and_files_apart(data, tmp_path, monkeypatch, capsys, words, error):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *words]) == 2
    assert error in capsys.readouterr().err
