"""Classifier and regressor on frozen features: accuracy, weights, files, streams, explanations, what is refused."""

import os
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from lem import timeseries
from lem.cli import display
from lem.timeseries import LEMClassifier, LEMRegressor, batches, ridge
from lem.timeseries.batches import Stage
from lem.timeseries.inspection import certify_predictor, predictor_scales
from lem.training.loop import Event
from lem.training.run import Progress
from tests.close import assert_close
from tests.timeseries.test_features import ragged, waves

QUICK = {"effort": "quick", "random_state": 0}


NOT_FOR_US = {
    "check_sample_weight_equivalence_on_dense_data": "thresholds and units come from all series, whatever they weigh",
    "check_methods_subset_invariance": "float32 rounding differs between batches, by 3e-7 where 1e-7 is allowed",
    "check_methods_sample_order_invariance": "the same, on processors on which the place in a batch changes rounding",
}


@parametrize_with_checks(
    [LEMClassifier(effort="quick"), LEMRegressor(effort="quick")], expected_failed_checks=lambda estimator: NOT_FOR_US
)
def test_scikit_learns_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # the checks themselves convert y and warn
        check(estimator)


# --- the readout ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "size"), [(20, 50), (50, 20)])
@pytest.mark.parametrize("weighted", [False, True])
def test_leave_one_out_is_what_refitting_without_each_sample_gives(n, size, weighted):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(n, size)), random.normal(size=(n, 2))
    weights = random.uniform(0.5, 2.0, n) if weighted else np.ones(n)
    found = ridge.fit_ridge(x, y, weights if weighted else None)
    centred = (x - np.average(x, axis=0, weights=weights)) * np.sqrt(weights / weights.mean())[:, None]
    alpha = found.penalty * (centred**2).sum() / n
    for i in (0, 7):
        rest = np.arange(n) != i
        # The penalty is relative to a mean weight of one.
        model = Ridge(alpha).fit(x[rest], y[rest], sample_weight=(weights / weights.mean())[rest])
        assert_close(found.left_out[i], model.predict(x[i : i + 1])[0], "ridge")
    whole = Ridge(alpha).fit(x, y, sample_weight=weights / weights.mean())
    assert_close(x @ found.weight.T + found.bias, whole.predict(x), "ridge")
    with pytest.raises(AssertionError):  # the fit itself is not the answer of a model that has not seen the sample
        assert_close(found.left_out, whole.predict(x), "ridge")


@pytest.mark.parametrize(("n", "size"), [(60, 30), (35, 30), (30, 60)])
def test_many_samples_and_features_choose_the_penalty_on_a_held_out_part(monkeypatch, n, size):
    random = np.random.default_rng(0)
    x = random.normal(size=(n, size))
    y = x[:, :1] + 0.1 * random.normal(size=(n, 1))
    monkeypatch.setattr(ridge, "EXACT", 10)
    found = ridge.fit_ridge(x, y)
    assert found.rows.tolist() == list(range(4, n, 5))
    kept = np.setdiff1d(np.arange(n), found.rows)
    centred = x - x.mean(0)
    whole, part = (
        Ridge(found.penalty * (centred[rows] ** 2).sum() / len(rows), fit_intercept=False).fit(
            centred[rows], (y - y.mean())[rows]
        )
        for rows in (np.arange(n), kept)
    )
    assert_close(found.weight, whole.coef_.reshape(1, -1), "ridge")
    assert_close(found.left_out, part.predict(centred[found.rows]).reshape(-1, 1) + y.mean(), "ridge")


def test_the_temperature_calibrates():
    random = np.random.default_rng(0)
    logits = random.normal(size=(4000, 3)) * 2.0
    chance = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    classes = np.array([random.choice(3, p=p) for p in chance])
    assert 1.6 < ridge.temperature(logits / 2.0, classes) < 2.5
    # Ten right answers are no proof of certainty.
    right = np.where(np.arange(2) == np.arange(10)[:, None] % 2, 1.0, -1.0)
    factor = ridge.temperature(right, np.arange(10) % 2)
    assert 0.85 < 1.0 / (1.0 + np.exp(-2.0 * factor)) < 0.95


# --- the estimators -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effort", ["quick", "default", "best"])
def test_a_classifier_learns_at_every_effort(effort):
    X, y = waves()
    test, truth = waves(seed=1)
    model = LEMClassifier(effort=effort, random_state=0).fit(X, y)
    assert model.score(test, truth) > 0.95
    chances = model.predict_proba(test)
    assert_close(chances.sum(1), np.ones(len(test)), "float32")
    assert model.left_out_score_ > 0.9


@pytest.mark.parametrize("targets", [1, 3])
def test_a_regressor_keeps_shape_and_units(targets):
    X, _ = waves()
    y = 1e6 + 1e3 * np.stack([X.std(1), X.max(1), X.mean(1)], axis=1)[:, :targets]
    y = y[:, 0] if targets == 1 else y
    model = LEMRegressor(**QUICK).fit(X, y)
    assert model.predict(X).shape == y.shape
    assert model.score(X, y) > 0.8


def test_which_network_is_used():
    X, y = waves(20, 30)
    assert LEMClassifier(**QUICK).fit(X, y).predictor_.architecture["network"] == "frozen"
    trained = LEMClassifier(8, epochs=2, random_state=0).fit(X, y)
    assert trained.predictor_.architecture["hidden_size"] == 8
    assert LEMClassifier(network="lem", epochs=1).fit(X, y).history_
    with pytest.raises(ValueError, match="`epochs` of LEMClassifier applies to network='lem' only"):
        LEMClassifier(network="features", epochs=2).fit(X, y)
    with pytest.raises(ValueError, match="partial_fit of LEMClassifier needs network='lem'"):
        LEMClassifier(network="features").partial_fit(X, y)
    with pytest.raises(ValueError, match="Did you mean 'best'"):
        LEMClassifier(effort="bst").fit(X, y)


def test_another_cell_takes_the_place_of_lem():
    X, y = waves()
    test, _ = waves(seed=1)
    lem, gru = (LEMClassifier(cell=cell, **QUICK).fit(X, y).predict_proba(test) for cell in ("lem", "gru"))
    assert np.abs(lem - gru).max() > 1e-3


def test_weights_of_samples_and_classes():
    X, y = waves(40)
    weights = np.where(np.arange(40) < 30, 1.0, 0.0)
    weighted = LEMClassifier(**QUICK).fit(X, y, sample_weight=weights)
    assert weighted.predictor_.notes["left_out"] > 0.8
    even = LEMClassifier(**QUICK).fit(X, y, sample_weight=np.full(40, 7.0))
    assert_close(even.predict_proba(X), LEMClassifier(**QUICK).fit(X, y).predict_proba(X), "float32")
    assert not np.allclose(weighted.predict_proba(X), even.predict_proba(X))
    rare = LEMClassifier(class_weight={"slow": 1.0, "fast": 50.0}, **QUICK).fit(X, y)
    plain = LEMClassifier(**QUICK).fit(X, y)
    assert (rare.predict(X) == "fast").sum() >= (plain.predict(X) == "fast").sum()
    with pytest.raises(ValueError, match="at least one non-zero"):
        LEMClassifier(**QUICK).fit(X, y, sample_weight=np.zeros(40))


def test_weights_of_samples_reach_a_trained_network():
    X, y = waves(40)
    settings = {"hidden_size": 8, "epochs": 2, "random_state": 0}
    plain = LEMClassifier(**settings).fit(X, y).predict_proba(X)
    assert_close(LEMClassifier(**settings).fit(X, y, sample_weight=np.ones(40)).predict_proba(X), plain, "float32")
    other = LEMClassifier(**settings).fit(X, y, sample_weight=np.linspace(0, 2, 40)).predict_proba(X)
    assert not np.allclose(other, plain)
    numbers = X.mean(1)
    weighted = LEMRegressor(**settings).fit(X, numbers, sample_weight=np.ones(40)).predict(X)
    assert_close(weighted, LEMRegressor(**settings).fit(X, numbers).predict(X), "float32")


def test_an_evaluation_set_is_scored(capsys):
    X, y = waves()
    test, truth = waves(20, seed=1)
    model = LEMClassifier(**QUICK, verbose=1).fit(X, y, eval_set=(test, truth))
    assert model.eval_score_ == model.score(test, truth)
    assert "evaluation set" in capsys.readouterr().err
    trained = LEMClassifier(8, epochs=3, random_state=0).fit(X, y, eval_set=[(test, truth)])
    assert trained.predictor_.notes["held_out"] == 20
    with pytest.raises(ValueError, match="must be a pair"):
        LEMClassifier(**QUICK).fit(X, y, eval_set=test)


def test_an_interrupted_training_keeps_the_best_epoch(monkeypatch, capsys):
    X, y = waves()

    class Impatient(LEMClassifier):
        def _report(self, event):
            super()._report(event)
            if len(self.history_) == 3:
                raise KeyboardInterrupt

    model = Impatient(8, epochs=50, random_state=0).fit(X, y)
    assert len(model.history_) == 3
    assert 1 <= model.best_epoch_ <= 3
    assert "interrupted" in capsys.readouterr().err
    model.predict(X)


def test_a_fit_of_frozen_features_tells_where_it_stands_and_can_be_ended(monkeypatch):
    monkeypatch.setattr(batches, "STEPS", 900)
    X, y = waves()
    model, seen = LEMClassifier(effort="best", random_state=0), []
    model._listener = seen.append
    plain = LEMClassifier(effort="best", random_state=0).fit(X, y)
    assert (model.fit(X, y).predict_proba(X) == plain.predict_proba(X)).all()
    shares = [stage.share for stage in seen if stage.name == "features"]
    assert len(shares) > 5
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert all(stage.seconds_left > 0 for stage in seen if stage.share < 1.0)
    assert "readout: kernels" in [stage.name for stage in seen]
    model._should_stop = lambda: len(seen) > 3
    seen.clear()
    with pytest.raises(KeyboardInterrupt, match="nothing is kept"):
        model.fit(X, y)
    assert len(seen) == 4


@pytest.mark.parametrize("width", [80, 40, 20])
def test_the_stage_fits_the_terminal(width, monkeypatch, capsys):
    monkeypatch.setattr(display.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((width, 24)))
    monkeypatch.setattr(display.sys.stderr, "isatty", lambda: True, raising=False)
    shown = display.Display("lem fit")
    shown(Stage("features", 0.5, 75.0))
    line = capsys.readouterr().err.replace("\r\x1b[K", "")
    assert line.strip()
    assert len(line) < width
    assert "features" in line
    assert ("1 min 15 s left" in line) == (width > 30)
    assert ("[====" in line) == (width == 80)


def test_each_training_has_its_own_clock(monkeypatch, capsys):
    monkeypatch.setattr(display, "EVERY", -1.0)
    shown = display.Display("lem forecast")
    for updates, best in [(1, None), (2, 0.1), (1, None)]:
        progress = Progress(updates=updates, best=best, best_epoch=0 if best is None else 1)
        shown(Event(progress, 6, 10, 0.5, None if best is None else {"valid": best}))
    first, second, third = capsys.readouterr().err.splitlines()
    assert "best" not in first
    assert "lem forecast  epoch 1/6" in second
    assert "best 0.1" in second
    assert third == "lem forecast  training 2, epoch 1/6  loss 0.5  0 steps/s"


# --- files, streams, explanations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LEMClassifier, LEMRegressor])
def test_a_file_gives_the_same_answers(tmp_path, kind):
    X = ragged(30, low=5)
    y = np.array(["low", "high"] * 15) if kind is LEMClassifier else np.array([x.std() for x in X])
    model = kind(**QUICK).fit(X, y)
    again = timeseries.load(model.save(tmp_path / "model.safetensors"))
    assert (again.predict(X) == model.predict(X)).all()
    assert again.effort == "quick"
    assert clone(again).fit(X, y).predict(X).shape == (30,)


@pytest.mark.parametrize("change", [{"dilations": [10**12]}, {"counts": [3, 4, 4, 4]}, {"selected": [[10**6] * 8]}])
def test_a_file_with_impossible_kernels_is_refused(tmp_path, change):
    X, y = waves(20, 30)
    predictor = LEMClassifier(**QUICK).fit(X, y).predictor_
    predictor.architecture |= change
    path = predictor.save(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="cannot be used"):
        timeseries.load(path)


def test_a_causal_classifier_follows_a_stream():
    X, y = waves()
    X = X[:, None]
    model = LEMClassifier(**QUICK, causal=True).fit(X, y)
    answers = model.stream().push(X[0])
    assert_close(answers[-1], model.predict_proba(X[:1])[0], "stream of features")
    assert_close(answers[29], model.predict_proba(X[:1, :, :30])[0], "stream of features")
    with pytest.raises(ValueError, match="causal=True"):
        LEMClassifier(**QUICK).fit(X, y).stream()


def test_an_explanation_finds_the_part_that_matters(tmp_path):
    random = np.random.default_rng(0)
    X = 0.1 * random.normal(size=(60, 2, 60))
    y = np.arange(60) % 2
    X[y == 1, 1, 30:36] += 3.0
    model = LEMClassifier(**QUICK).fit(X, y)
    found = model.explain(X[1:2], windows=10)
    assert found.effect[0].shape == (2, 10)
    assert np.unravel_index(found.effect[0].argmax(), (2, 10)) == (1, 5)
    assert found.edges[0].tolist() == list(range(0, 61, 6))
    assert found.plot(tmp_path / "why.png").stat().st_size > 1000


def test_the_time_scales_of_frozen_groups():
    X = ragged(20, low=10, high=40)
    model = LEMClassifier(**QUICK).fit(X, np.arange(20) % 2)
    seen = predictor_scales(model.predictor_, X)
    frozen = model.predictor_.model
    assert [gate.name for gate in seen.gates] == [
        f"{g} on {w}" for w in ("series", "kernels") for g in ("dt_z", "dt_y")
    ]
    assert seen.gates[0].count == sum(x.shape[1] for x in X)
    # Without inputs and recurrence a gate is the logistic function of its bias at every step.
    d = frozen.units
    for cell in frozen.cells:
        cell.weight_u.zero_()
        cell.weight_y.zero_()
    plain = predictor_scales(model.predictor_, X)
    biases = [cell.bias.double().numpy() for cell in frozen.cells]
    for k, part in ((0, biases[: frozen.groups]), (2, biases[frozen.groups :])):
        constants = [np.sort(plain.gates[k + j].time_constants) for j in range(2)]
        gates = [[1.0 + np.exp(-b[rows]) for b in part] for rows in (slice(d), slice(d, 2 * d))]
        expected = [np.sort(np.concatenate(values)) for values in gates]
        # Which of the two gates comes first in the bias is the cell's affair; they are drawn apart.
        assert any(np.allclose(constants, order, rtol=1e-4) for order in (expected, expected[::-1]))
        assert not np.allclose(seen.gates[k].time_constants, plain.gates[k].time_constants, rtol=1e-2)
    with pytest.raises(ValueError, match="this model is made of cell gru"):
        predictor_scales(LEMClassifier(cell="gru", **QUICK).fit(X, np.arange(20) % 2).predictor_, X)
    with pytest.raises(ValueError, match="no trained recurrent layer over time steps"):
        certify_predictor(model.predictor_, X)


# --- what X and y may be --------------------------------------------------------------------------------------------


def test_frames_of_sktime_and_lists_of_frames_are_read_with_rows_as_time():
    import pandas

    X = np.random.default_rng(0).normal(size=(12, 2, 30)).cumsum(2)
    y = np.arange(12) % 2
    model = LEMClassifier(**QUICK).fit(X, y)
    expected = model.predict_proba(X)
    nested = pandas.DataFrame({f"channel {c}": [pandas.Series(x[c]) for x in X] for c in range(2)})
    index = pandas.MultiIndex.from_product([[f"s{i:02}" for i in range(12)], range(30)])
    long = pandas.DataFrame(np.concatenate([x.T for x in X]), index=index)
    for frames in (nested, long, [pandas.DataFrame(x.T) for x in X]):
        assert_close(model.predict_proba(frames), expected, "exact")
        assert_close(LEMClassifier(**QUICK).fit(frames, y).predict_proba(X), expected, "exact")


def test_axes_that_look_swapped_are_questioned():
    X = np.random.default_rng(0).normal(size=(8, 30, 3))
    with pytest.warns(UserWarning, match="30 channels of 3 time steps"):
        LEMClassifier(**QUICK).fit(X, np.arange(8) % 2)


def several(n=80, seed=0):
    """Series with any of three labels: an offset, an early pulse, a fast wave."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, (n, 3))
    t = np.arange(60)
    X = 0.3 * random.normal(size=(n, 60)) + y[:, :1] + 2.0 * y[:, 1:2] * (t // 8 == 2) + y[:, 2:] * np.sin(1.5 * t)
    return X, y


def test_several_labels_at_once(tmp_path):
    (X, y), (test, truth) = several(), several(seed=1)
    model = LEMClassifier(**QUICK).fit(X, y, eval_set=(test, truth))
    chances, answer = model.predict_proba(test), model.predict(test)
    assert chances.shape == answer.shape == truth.shape
    assert ((chances > 0.5) == answer).all()
    assert (answer == truth).mean() > 0.95
    assert model.eval_score_ == model.score(test, truth) == (answer == truth).all(1).mean()
    for k in range(3):  # each label alone is learned as well as together with the others
        alone = LEMClassifier(**QUICK).fit(X, y[:, k])
        assert abs(alone.score(test, truth[:, k]) - (answer[:, k] == truth[:, k]).mean()) < 0.05
    # Calibrated: on its training series a model without skill gives the frequency of each label.
    noise = LEMClassifier(**QUICK).fit(np.random.default_rng(0).normal(size=(80, 40)), y)
    assert np.abs(noise.predict_proba(test[:, :40]).mean(0) - 0.5).max() < 0.25
    again = timeseries.load(model.save(tmp_path / "several.safetensors"))
    assert (again.predict(test) == answer).all()
    assert model.explain(test[:1]).effect[0].shape == (1, 20)
    np.savez(tmp_path / "several.npz", X=test, y=truth)
    found = timeseries.predict_file(tmp_path / "several.safetensors", tmp_path / "several.npz")
    assert found["label_2"] == answer[:, 2].tolist()
    for call in (
        lambda: timeseries.evaluate_file(tmp_path / "several.safetensors", tmp_path / "several.npz"),
        lambda: timeseries.fit_file(tmp_path / "several.npz"),
    ):
        with pytest.raises(ValueError, match=r"[iI]n Python"):
            call()


def test_several_labels_that_are_refused():
    X, y = several(20)
    for options, targets, words in (
        ({}, 2 * y + 1 + y[:, ::-1], "MultiOutputClassifier"),
        ({"class_weight": "balanced"}, y, "`class_weight` of LEMClassifier must be None"),
        ({"network": "lem"}, y, "one label a series"),
    ):
        with pytest.raises(ValueError, match=words):
            LEMClassifier(random_state=0, **options).fit(X, targets)
    with pytest.raises(ValueError, match="must have 3 columns"):
        LEMClassifier(**QUICK).fit(X, y, eval_set=(X, y[:, :2]))
    with pytest.raises(ValueError, match=r"must be \(n, 3\)"):
        LEMClassifier(**QUICK).fit(X, y, eval_set=(X, y[:, 0]))


def test_several_targets_with_more_classes():
    X, y = several(40)
    X = np.stack([X, X[::-1]], axis=1)
    targets = np.stack([y[:, 0] + y[:, 1], y[:, 2]], axis=1)
    model = MultiOutputClassifier(LEMClassifier(**QUICK)).fit(X, targets)
    assert model.predict(X).shape == (40, 2)


@pytest.mark.slow
def test_parallel_cross_validation_gives_the_same_scores():
    X, y = several(40)
    scores = [cross_val_score(LEMClassifier(**QUICK), X, y[:, 0], cv=2, n_jobs=jobs) for jobs in (1, 2)]
    assert scores[0].tolist() == scores[1].tolist()


def test_labels_that_cannot_be_learned():
    X = np.random.default_rng(0).normal(size=(6, 20))
    with pytest.raises(ValueError, match="texts or numbers, not both"):
        LEMClassifier(**QUICK).fit(X, ["a", "b", 1, "a", "b", 1])
    with pytest.raises(ValueError, match="at least two classes"):
        LEMClassifier(**QUICK).fit(X, ["a"] * 6)
    with pytest.warns(UserWarning, match="Class c has only one series"):
        LEMClassifier(**QUICK).fit(X, ["a", "a", "b", "b", "b", "c"])
