"""Series with times: from time stamps to elapsed times, in estimators, files of series and model files."""

import datetime
import re

import numpy as np
import pytest
import sklearn
import torch
from sklearn.model_selection import cross_val_score

from lem.cli import main
from lem.timeseries import LEMClassifier, LEMForecaster, LEMRegressor, evaluate_file, fit_file, load, predict_file
from lem.timeseries.answering import continuation
from lem.timeseries.files import load as load_file
from lem.timeseries.formats import write
from lem.timeseries.gaps import Clock, values_ahead, with_times
from lem.timeseries.inspection import certify_predictor, predictor_scales
from lem.timeseries.layout import Reading
from lem.timeseries.predictor import Predictor
from lem.timeseries.series import as_series
from lem.wording import InputError
from tests.close import assert_close

QUICK = {"hidden_size": 6, "epochs": 2, "random_state": 0}
X = [np.array([[1.0, 2.0, 4.0]]), np.array([[0.5, 0.25]])]
TIMES = [np.array([0.0, 2.0, 3.0]), np.array([5.0, 9.0])]


def irregular(count=24, steps=12, seed=0, channels=1, least=6):
    """Return random walks at random times, and the slopes that only the times tell."""
    random = np.random.default_rng(seed)
    lengths = random.integers(least, steps + 1, count)
    walks = [random.standard_normal((channels, n)).cumsum(1) for n in lengths]
    return walks, [random.uniform(0.1, 3.0, n).cumsum() for n in lengths], random.standard_normal(count)


# --- from times to elapsed ---------------------------------------------------------------------------------------


def test_elapsed_times_by_hand():
    series, clock = with_times(as_series(X, "me"), TIMES, "me")
    assert clock == Clock(2.0, "number")  # the median of 2, 1 and 4
    assert series.elapsed.tolist() == [[1.0, 1.0, 0.5], [1.0, 2.0, 1.0]]
    again, _ = with_times(as_series(X, "me"), TIMES, "me", unit=0.5)
    assert again.elapsed.tolist() == [[1.0, 4.0, 2.0], [1.0, 8.0, 1.0]]
    fitted, _ = with_times(as_series(X[:1], "me"), TIMES[:1], "me", Clock(4.0, "number"))
    assert fitted.elapsed.tolist() == [[1.0, 0.5, 0.25]]
    assert fitted.take(np.array([True])).elapsed.tolist() == fitted.elapsed.tolist()
    alone, clock = with_times(as_series([[[3.0]]], "me"), [[7.0]], "me")
    assert (alone.elapsed.tolist(), clock.unit) == ([[1.0]], 1.0)


@pytest.mark.parametrize(
    ("stamp", "kind"),
    [
        (lambda hours: np.datetime64("2024-01-31T22:00") + np.timedelta64(int(60 * hours), "m"), "datetime"),
        (lambda hours: datetime.datetime(2024, 1, 31) + datetime.timedelta(hours=float(hours)), "datetime"),
        (lambda hours: f"2024-02-0{1 + int(hours) // 24} {int(hours) % 24:02}:00", "datetime"),
        (lambda hours: f"{int(hours)}:00:00", "duration"),
    ],
)
def test_stamps_of_every_kind_are_seconds(stamp, kind):
    stamps = [np.array([stamp(hours) for hours in row]) for row in TIMES]
    series, clock = with_times(as_series(X, "me"), stamps, "me")
    assert clock == Clock(7200.0, kind)
    assert series.elapsed.tolist() == [[1.0, 1.0, 0.5], [1.0, 2.0, 1.0]]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (3.0, r"must be \(n, length\), or a list of one array per series; got float"),
        (TIMES[:1], "one entry for each of 2 series; got 1"),
        ([TIMES[0], TIMES[0]], r"sample 1 has 2 steps and times of shape \(3,\)"),
        ([TIMES[0], np.array([1.0, np.nan])], r"Column 'times\[1\]' must have a time in every row; row 2 has none"),
        ([TIMES[0], np.array(["a", "b"])], "must be times: Column"),
        (
            [np.array([0.0, 2.0, 2.0]), TIMES[1]],
            "must increase within each series; in sample 0, 2 at position 2 follow",
        ),
        ([TIMES[0], np.array([9.0, 5.0])], "in sample 1, 5 at position 1 follows 9"),
        ([TIMES[0], np.array(["2024-01-01", "2024-01-02"])], "of one kind for all series; got datetime and number"),
    ],
)
def test_wrong_times_are_named_with_their_place(times, message):
    with pytest.raises((ValueError, TypeError), match=f"`times` of me.*{message}"):
        with_times(as_series(X, "me"), times, "me")


def test_wrong_units_and_kinds_are_refused():
    for unit in (0.0, -1.0, float("inf"), "1h"):
        with pytest.raises(ValueError, match="`time_unit` of me must be a positive number"):
            with_times(as_series(X, "me"), TIMES, "me", unit=unit)
    with pytest.raises(ValueError, match="must be datetimes, as in fit; got numbers"):
        with_times(as_series(X, "me"), TIMES, "me", Clock(1.0, "datetime"))


def test_values_ahead_by_hand():
    # At 1, 3 and 4 the series is 0, 4 and 10; one and two steps after 1 it is 2 and 4, one after 3 it is 10.
    found = values_ahead(np.array([[0.0], [4.0], [10.0]]), np.array([1.0, 2.0, 1.0]), 2)
    np.testing.assert_array_equal(found[..., 0], [[2.0, 4.0], [10.0, np.nan], [np.nan, np.nan]])


# --- estimators ---------------------------------------------------------------------------------------------------


def labels(y):
    return np.where(y > 0, "up", "down")


@pytest.mark.parametrize("kind", [LEMClassifier, LEMRegressor, LEMForecaster])
@pytest.mark.parametrize(
    "options", [{}, {"cell": "cornn", "dt": 0.05}, {"num_layers": 2, "bidirectional": True}], ids=str
)
def test_the_model_is_called_with_the_elapsed_times(kind, options, tmp_path):
    if kind is LEMForecaster and options.get("bidirectional"):
        pytest.skip("a forecaster reads every step")
    walks, times, y = irregular()
    y = {LEMClassifier: labels(y), LEMRegressor: y, LEMForecaster: None}[kind]
    model = kind(**QUICK, **options).fit(walks, y, times=times)
    unit = float(np.median(np.concatenate([np.diff(t) for t in times])))
    assert model.time_unit_ == unit
    answers = model.predict_proba(walks, times=times) if kind is LEMClassifier else model.predict(walks, times=times)
    network = model.predictor_
    for k in (0, 3):  # one series, its gaps by hand
        gaps = torch.from_numpy(np.concatenate([[1.0], np.diff(times[k]) / unit]))
        with torch.no_grad():
            alone = network(torch.from_numpy(walks[k].T[:, None]), None, None, False, gaps[:, None])[0][0].numpy()
        expected = alone.T if kind is LEMForecaster else alone
        assert_close(np.ravel(answers[k]), np.ravel(expected), "float32")
    # Other times, other answers; the same gaps in another unit of time or from another start, the same answers.
    other = model.predict(walks, times=[1.0 + 2.0 * t for t in times])
    again = load(model.save(tmp_path / "model.lem"))
    assert again.time_unit_ == unit
    same = again.predict(walks, times=[t - 100.0 for t in times])
    if kind is not LEMClassifier:
        assert_close(same, model.predict(walks, times=times), "float32")
        assert np.abs(other - same).max() > 1e-4


def test_a_time_unit_scales_the_times():
    walks, times, y = irregular()
    one = LEMRegressor(**QUICK, dt=0.5).fit(walks, y, times=times, time_unit=0.5)
    two = LEMRegressor(**QUICK, dt=0.5).fit(walks, y, times=[10.0 * t for t in times], time_unit=5.0)
    assert_close(one.predict(walks, times=times), two.predict(walks, times=[10.0 * t for t in times]), "float32")
    assert (one.time_unit_, LEMRegressor(**QUICK).fit(walks, y).time_unit_) == (0.5, None)


def test_equal_gaps_are_the_model_without_times():
    walks, _, y = irregular()
    even = [3.0 * np.arange(x.shape[1]) for x in walks]
    plain = LEMRegressor(**QUICK).fit(walks, y)
    timed = LEMRegressor(**QUICK).fit(walks, y, times=even)
    np.testing.assert_array_equal(plain.predict(walks), timed.predict(walks, times=even))


@pytest.mark.parametrize("weighted", [False, True])
def test_training_sees_the_times(weighted):
    """A sum over gaps that the values do not show is learned with times, and not without them."""
    random = np.random.default_rng(0)
    fast = random.random(200) < 0.5
    walks = [np.ones((1, 8)) for _ in fast]
    times = [(0.2 if f else 2.0) * random.uniform(0.5, 1.5, 8).cumsum() for f in fast]
    weights = {"sample_weight": np.ones(180)} if weighted else {}
    model = LEMClassifier(8, epochs=12, random_state=0, learning_rate=0.02)
    eval_set = (walks[:20], fast[:20], times[:20])
    model.fit(walks[20:], fast[20:], times=times[20:], time_unit=1.0, eval_set=eval_set, **weights)
    assert model.eval_score_ == model.score(walks[:20], fast[:20], times=times[:20]) == 1.0
    assert model.partial_fit(walks[20:], fast[20:], times=times[20:]).score(walks, fast, times=times) > 0.95
    blind = LEMClassifier(8, epochs=12, random_state=0).fit(walks[20:], fast[20:])
    assert blind.score(walks[:20], fast[:20]) < 0.8


def test_missing_values_and_times_together():
    walks, times, y = irregular(channels=2)
    for x in walks:
        x[1, ::3] = np.nan
    model = LEMRegressor(**QUICK, missing="mask").fit(walks, y, times=times)
    found = model.predict(walks, times=times)
    assert np.isfinite(found).all()
    walks[0][1, 0] = 5.0
    changed = model.predict(walks, times=times)
    assert changed[0] != found[0]
    assert (changed[1:] == found[1:]).all()


def test_cross_validation_routes_the_times():
    walks, times, y = irregular(30)
    with sklearn.config_context(enable_metadata_routing=True):
        model = LEMRegressor(**QUICK).set_fit_request(times=True).set_score_request(times=True)
        scores = cross_val_score(model, walks, y, cv=3, params={"times": times})
    assert np.isfinite(scores).all()


def test_explanations_and_scores_take_times():
    walks, times, y = irregular()
    model = LEMRegressor(**QUICK).fit(walks, y, times=times)
    assert np.isfinite(model.score(walks, y, times=times))
    effect = model.explain(walks[:2], windows=3, times=times[:2]).effect
    assert np.isfinite(np.concatenate([np.ravel(part) for part in effect])).all()


def test_a_forecaster_looks_ahead_in_time_not_in_observations():
    """Of a straight line, the value after k usual steps is that of the line at that time, whatever the gaps."""
    random = np.random.default_rng(0)
    times = [random.uniform(0.3, 1.7, 40).cumsum() for _ in range(24)]
    lines = [(slope * t)[None] for slope, t in zip(random.uniform(-1.0, 1.0, 24), times)]
    model = LEMForecaster(16, horizon=2, epochs=30, random_state=0).fit(lines, times=times, time_unit=1.0)
    history, ahead, cut = continuation(lines, 2, times, 1.0)
    assert_close(
        ahead[0, 0], lines[0][0, len(cut[0]) - 1] / cut[0][-1] * (cut[0][-1] + np.array([1.0, 2.0])), "float64"
    )
    assert model.score(history, ahead, times=cut) > 0.97
    short = LEMForecaster(4, horizon=2, epochs=1, random_state=0).fit(lines[:3], times=times[:3])  # ends are held out
    assert np.isfinite(short.predict(lines[:3], times=times[:3])).all()


@pytest.mark.parametrize(
    ("fit", "predict", "message"),
    [
        ({"times": True}, {}, "`times` of LEMRegressor must be given, as in fit"),
        ({}, {"times": True}, "`times` of LEMRegressor must be None, as in fit"),
        ({"time_unit": 1.0}, {}, "`time_unit` of LEMRegressor must be None without `times`"),
    ],
)
def test_times_are_given_always_or_never(fit, predict, message):
    walks, times, y = irregular()
    fit, predict = ({k: times if v is True else v for k, v in given.items()} for given in (fit, predict))
    with pytest.raises(ValueError, match=message):
        LEMRegressor(**QUICK).fit(walks, y, **fit).predict(walks, **predict)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": "gru"}, "`times` of LEMRegressor must be None: GRUCell has no time step"),
        ({"dt": 1.5}, "`times` of LEMRegressor must be None: .*dt.*1.5"),
        ({"network": "features"}, "must be None with network='features'"),
    ],
)
def test_models_that_cannot_take_times_refuse_them(options, message):
    walks, times, y = irregular()
    quick = {} if options.get("network") else QUICK
    with pytest.raises(ValueError, match=message):
        LEMRegressor(**quick, **options).fit(walks, y, times=times)
    with pytest.raises(ValueError, match=r"`eval_set` of LEMRegressor must be \(X, y, times\)"):
        LEMRegressor(**QUICK).fit(walks, y, times=times, eval_set=(walks, y))


def test_times_choose_the_trained_network_and_dt_from_the_time_they_span():
    walks, times, y = irregular()
    model = LEMRegressor(random_state=0, epochs=1)
    model.set_params(epochs=150)
    assert model._network == "features"
    long = LEMRegressor(**QUICK).fit(walks, y, times=[100.0 * t for t in times], time_unit=1.0)
    assert long.dt_ < LEMRegressor(**QUICK).fit(walks, y, times=times, time_unit=1.0).dt_


# --- the model file -----------------------------------------------------------------------------------------------


def test_a_model_file_keeps_its_clock_and_a_wrong_one_is_refused(tmp_path):
    walks, times, y = irregular()
    model = LEMRegressor(**QUICK).fit(walks, y, times=times)
    path = model.save(tmp_path / "a.lem")
    read = Predictor.load(path)
    assert read.clock == model.predictor_.clock
    with pytest.raises(ValueError, match="`times` of the regressor must be given: the model was fitted with times"):
        read.predict(walks)
    for wrong in (("unit", 0.0), ("unit", "h"), ("kind", "weeks")):
        model.predictor_.clock = model.predictor_.clock._replace(**dict([wrong]))
        with pytest.raises(ValueError, match="`clock` of its metadata must"):
            Predictor.load(model.save(tmp_path / "b.lem"))
        model.predictor_.clock = read.clock


# --- files of series ----------------------------------------------------------------------------------------------


def table(tmp_path, name="a.csv", seed=0, stamps=True, least=6, steps=12):
    walks, times, y = irregular(24, steps, seed, least=least)
    rows = {"id": [], "time": [], "flow": [], "kind": []}
    for k, (x, t) in enumerate(zip(walks, times)):
        whole = np.round(3600 * t).astype(int)
        for value, second in zip(x[0], whole):
            moment = np.datetime64("2024-03-01") + np.timedelta64(int(second), "s")
            rows["id"].append(f"p{k}")
            rows["time"].append(str(moment).replace("T", " ") if stamps else int(second))
            rows["flow"].append(float(value))
            rows["kind"].append("up" if y[k] > 0 else "down")
    write(tmp_path / name, rows)
    exact = [np.round(3600 * t).astype(int) for t in times]
    return tmp_path / name, walks, [np.datetime64("2024-03-01", "s") + t.astype("m8[s]") for t in exact], y


def test_a_file_with_gaps_elapsed_is_the_estimator_with_times(tmp_path):
    path, walks, times, y = table(tmp_path)
    roles = {"series": "id", "time": "time", "target": "kind", "gaps": "elapsed"}
    fitted = fit_file(path, **roles, test_fraction=0.0, out=tmp_path / "m.lem", picture=False, options=QUICK_OPTIONS)
    unit = float(np.median(np.concatenate([np.diff(t).astype(float) for t in times])))
    assert fitted.estimator.time_unit_ == fitted.data.schema.interval == unit
    assert any("irregular steps of time: the model sees them" in note for note in fitted.data.notes)
    twin = LEMClassifier(**QUICK).fit(walks, labels(y), times=times)
    answers = predict_file(tmp_path / "m.lem", path)
    assert_close(np.array(answers["p(up)"]), twin.predict_proba(walks, times=times)[:, 1], "float32")
    assert evaluate_file(tmp_path / "m.lem", path).plain()["accuracy"] == pytest.approx(
        twin.score(walks, labels(y), times=times)
    )
    assert "irregular times: elapsed" in (tmp_path / "m.md").read_text()


QUICK_OPTIONS = {"hidden_size": 6, "epochs": 2}


def test_analysis_of_a_model_file_takes_the_times(tmp_path, capsys):
    path, walks, times, _ = table(tmp_path)
    roles = {"series": "id", "time": "time", "target": "kind", "gaps": "elapsed"}
    model = tmp_path / "m.safetensors"
    fitted = fit_file(path, **roles, test_fraction=0.0, out=model, picture=False, options=QUICK_OPTIONS).estimator
    assert main(["scales", str(model), str(path)]) == 0
    shown = capsys.readouterr().out
    steps, span = re.search(r"slowest unit of dt_z: \d+, time constant (\S+) steps = (\S+) s", shown).groups()
    assert float(span) == pytest.approx(float(steps) * fitted.time_unit_, rel=0.01)
    seen = predictor_scales(fitted.predictor_, walks, times=times)
    assert f"{seen.ranking(0)[0][1]:.3g} steps" in shown
    assert main(["certify", str(model), str(path)]) == 0
    assert "there are elapsed times" in capsys.readouterr().out
    with pytest.raises(ValueError, match="`times` of the classifier must be given"):
        predictor_scales(fitted.predictor_, walks)
    with pytest.raises(ValueError, match="`times` of the classifier must be given"):
        certify_predictor(fitted.predictor_, walks)
    hours = [t.astype(float) / 3600 for t in times]
    numbers = LEMClassifier(**QUICK).fit(walks, np.arange(24) % 2, times=hours).predictor_
    assert " of the times' unit" in str(predictor_scales(numbers, walks, times=hours))


def test_a_held_out_part_and_a_test_file_have_their_times(tmp_path):
    path, *_ = table(tmp_path, stamps=False)
    other, *_ = table(tmp_path, "b.csv", seed=1, stamps=False)
    roles = {"series": "id", "time": "time", "target": "kind", "gaps": "elapsed", "options": QUICK_OPTIONS}
    for extra in ({}, {"test": other}):
        assert 0.0 <= fit_file(path, **roles, **extra).scores.plain()["accuracy"] <= 1.0


def test_a_forecast_of_a_file_with_gaps_elapsed(tmp_path):
    path, *_ = table(tmp_path, least=20, steps=30)
    roles = {"series": "id", "time": "time", "ignore": ["kind"], "gaps": "elapsed", "options": QUICK_OPTIONS}
    other, *_ = table(tmp_path, "b.csv", seed=1, least=20, steps=30)
    fit_file(path, forecast=2, test=other, **roles, out=tmp_path / "m.lem", picture=False)
    answers = predict_file(tmp_path / "m.lem", path)
    assert len(answers["time"]) == 2 * 24
    assert np.isfinite(answers["flow"]).all()
    assert np.isfinite(evaluate_file(tmp_path / "m.lem", path).plain()["rmse"])
    with pytest.raises(InputError, match="Each series must span more than the 50 usual steps"):
        continuation([np.zeros((1, 60))], 50, [np.arange(60) * 0.1], 1.0)


def test_times_of_a_file_are_kept_only_when_the_model_sees_them(tmp_path):
    path, _, times, _ = table(tmp_path)
    reading = {"series": "id", "time": "time", "target": "kind"}
    seen = load_file(path, Reading(**reading, gaps="elapsed"))
    assert all((a == b).all() for a, b in zip(seen.times, times))
    assert load_file(path, Reading(**reading, gaps="ignore")).times is None
    with pytest.raises(InputError, match="Give gaps='elapsed' to let the model see the time between steps"):
        load_file(path, Reading(**reading))
