"""The estimators: scikit-learn's own checks, unequal lengths, missing values, what is refused, files and pickles."""

import pickle
import threading
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from lem import timeseries
from lem.timeseries import LEMClassifier, LEMForecaster, LEMRegressor, time_step
from lem.timeseries.batches import one_thread
from tests.close import assert_close

QUICK = {"hidden_size": 8, "epochs": 2, "random_state": 0}


def noise(n=24, channels=2, length=9, seed=0):
    return np.random.default_rng(seed).normal(size=(n, channels, length))


def ragged(n=24, channels=2, seed=0):
    random = np.random.default_rng(seed)
    return [random.normal(size=(channels, random.integers(1, 12))) for _ in range(n)]


def labels(X, names=("down", "up")):
    return np.array([names[int(x[0].mean() > 0)] for x in X])


def _not_for_us(estimator):
    if isinstance(estimator, LEMForecaster):
        return {"check_n_features_in_after_fitting": "a forecaster continues histories of any length"}
    # These train by mini-batches, as scikit-learn's SGD and MLP estimators do, which are excepted likewise.
    repeated = "a series of weight 2 is drawn once an epoch, two copies of it twice"
    # `test_predictions_do_not_depend_on_the_batch` holds these two to the tolerance of float32.
    rounding = "float32 rounding differs between batches, by 2e-7 where 1e-7 is allowed"
    return {
        "check_sample_weight_equivalence_on_dense_data": repeated,
        "check_methods_subset_invariance": rounding,
        "check_methods_sample_order_invariance": rounding,
    }


@parametrize_with_checks(
    [
        LEMClassifier(16, epochs=80, batch_size=64, learning_rate=0.03, patience=30),
        LEMRegressor(16, epochs=40, batch_size=16, learning_rate=0.01),
        LEMForecaster(8, epochs=2),
    ],
    expected_failed_checks=_not_for_us,
)
def test_scikit_learns_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # the checks themselves convert y and warn
        check(estimator)


def test_time_step_stays_within_the_papers_interval_and_falls_with_length():
    steps = [time_step(length) for length in (1, 10, 100, 784, 10_000, 100_000)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == 1.0
    assert all(length**-0.5 <= time_step(length) <= 1.0 for length in (1, 10, 100, 784, 10_000, 100_000))


@pytest.mark.parametrize("cell", ["lem", "lstm"])
def test_unequal_lengths_give_what_each_series_gives_alone(cell):
    X = ragged()
    model = LEMClassifier(**QUICK, cell=cell).fit(X, labels(X))
    together = model.predict_proba(X)
    assert_close(together, np.concatenate([model.predict_proba([x]) for x in X]), "float32")


@pytest.mark.parametrize("options", [QUICK, {"effort": "quick", "random_state": 0}], ids=["trained", "frozen"])
def test_predictions_do_not_depend_on_the_batch(options):
    """scikit-learn's two checks of it, with the tolerance of float32."""
    X = noise(length=12)
    model = LEMRegressor(**options).fit(X, X[:, 0].mean(axis=1))
    whole, order = model.predict(X), np.random.default_rng(1).permutation(len(X))
    assert_close(model.predict(X[order]), whole[order], "float32")
    assert_close(np.concatenate([model.predict(x[None]) for x in X]), whole, "float32")


def test_padding_is_never_seen():
    X = ragged()
    model = LEMRegressor(**QUICK).fit(X, np.array([x.mean() for x in X]))
    longer = [*X, np.zeros((2, 40))]
    assert_close(model.predict(longer)[:-1], model.predict(X), "float32")


@pytest.mark.parametrize("targets", [1, 3])
def test_regression_of_one_or_many_targets_keeps_their_shape_and_units(targets):
    X = noise()
    y = 1e6 + 1e3 * X[:, 0, :targets]
    y = y[:, 0] if targets == 1 else y
    predicted = LEMRegressor(**QUICK).fit(X, y).predict(X)
    assert predicted.shape == y.shape
    assert abs(predicted.mean() - 1e6) < 1e4


def test_large_offsets_do_not_swallow_the_signal():
    X = noise()
    model = LEMClassifier(**QUICK)
    plain = model.fit(X, labels(X)).predict_proba(X)
    shifted = clone(model).fit(1e9 + 1e-2 * X, labels(X)).predict_proba(1e9 + 1e-2 * X)
    assert_close(shifted, plain, "shifted units")


def test_missing_values_are_refused_by_name_or_masked():
    X = noise()
    X[3, 1, 4] = np.nan
    with pytest.raises(ValueError, match="NaN in sample 3, channel 1, position 4"):
        LEMClassifier(**QUICK).fit(X, labels(noise()))
    model = LEMClassifier(**QUICK, missing="mask").fit(X, labels(noise()))
    before = model.predict_proba(X)
    assert np.isfinite(before).all()
    filled = np.where(np.isnan(X), model.predictor_.mean.numpy()[None, :, None], X)
    assert not np.allclose(model.predict_proba(filled)[3], before[3]), "the mask channel must tell 0 from missing"


def test_class_weights_shift_the_answer_towards_the_rare_class():
    X = noise(60)
    y = np.where(np.arange(60) % 6 == 0, "rare", "common")
    rare = [
        LEMClassifier(8, epochs=30, random_state=0, class_weight=w).fit(X, y).predict_proba(X)
        for w in (None, "balanced")
    ]
    assert rare[1][:, 1].mean() > rare[0][:, 1].mean() + 0.1


@pytest.mark.parametrize("kind", [LEMClassifier, LEMRegressor])
def test_the_same_seed_gives_the_same_model_and_leaves_torchs_generator_alone(kind):
    X = noise()
    y = labels(X) if kind is LEMClassifier else X[:, 0, 0]
    state = torch.get_rng_state()
    first, second = (kind(**QUICK).fit(X, y).predict(X) for _ in range(2))
    assert (first == second).all()
    assert torch.equal(state, torch.get_rng_state())


def test_the_split_is_stratified_and_early_stopping_keeps_the_best_epoch():
    X = noise(50)
    model = LEMClassifier(8, epochs=12, patience=3, random_state=0).fit(X, labels(X))
    assert model.predictor_.notes["held_out"] == 10
    curve = [record["valid"] for record in model.history_]
    assert curve[model.best_epoch_ - 1] == max(curve)
    assert len(curve) <= model.best_epoch_ + 3
    everything = LEMClassifier(8, epochs=3, validation_fraction=0, random_state=0).fit(X, labels(X))
    assert everything.best_epoch_ == 3
    assert everything.predictor_.notes["held_out"] == 0


def test_grid_search_pipeline_and_cross_validation_take_three_axes():
    X, y = noise(), labels(noise())
    search = GridSearchCV(LEMClassifier(epochs=1, random_state=0), {"hidden_size": [4, 8]}, cv=2).fit(X, y)
    assert search.best_params_["hidden_size"] in (4, 8)
    pipeline = make_pipeline(FunctionTransformer(lambda X: X - 1.0), LEMClassifier(**QUICK)).fit(X, y)
    assert pipeline.predict(X).shape == (24,)
    assert len(cross_val_score(LEMRegressor(**QUICK), X, X[:, 0, 0], cv=2)) == 2


@pytest.mark.parametrize("kind", [LEMClassifier, LEMRegressor, LEMForecaster])
def test_pickle_and_file_give_the_same_answers(kind, tmp_path):
    X = noise()
    y = labels(X) if kind is LEMClassifier else X[:, 0, :2]
    model = kind(**QUICK).fit(X, y)
    copies = pickle.loads(pickle.dumps(model)), timeseries.load(model.save(tmp_path / "model.safetensors"))
    for copy in copies:
        assert type(copy) is kind
        assert (copy.predict(X) == model.predict(X)).all()
        assert copy.get_params() == model.get_params()
        copy.partial_fit(X, y)


@pytest.mark.parametrize(
    "y", [np.arange(24) % 3, np.arange(24) % 2 == 0, np.arange(24) % 2 / 2, np.array(["é", "b"] * 12)]
)
def test_labels_of_any_kind_come_back_as_they_were(y, tmp_path):
    y = np.sort(y)
    if y.dtype.kind == "f":
        y = y.astype(int).astype(float)
        y[12:] = 1.0
    model = LEMClassifier(**QUICK).fit(noise(), y)
    assert model.predict(noise()).dtype == y.dtype
    copy = timeseries.load(model.save(tmp_path / "model.safetensors"))
    assert copy.predict(noise()).tolist() == model.predict(noise()).tolist()


def test_partial_fit_continues_where_it_stood():
    X = noise(40)
    y = labels(X)
    model = LEMClassifier(8, random_state=0, learning_rate=0.02)
    for _ in range(15):
        model.partial_fit(X, y, classes=["down", "up", "unseen"])
    assert model.classes_.tolist() == ["down", "unseen", "up"]
    assert len(model.history_) == 15
    assert model.history_[-1]["loss"] < 0.7 * model.history_[0]["loss"]
    with pytest.raises(ValueError, match="must hold the classes down, unseen, up; got 'other' in sample 0"):
        model.partial_fit(X[:1], ["other"])


def test_a_forecaster_beats_the_last_value_on_a_wave():
    wave = np.sin(np.arange(400) / 5.0) + 3.0
    model = LEMForecaster(16, horizon=3, window=50, epochs=80, batch_size=4, random_state=0).fit(wave[None])
    history, future = wave[None, :200], wave[None, 200:203]
    assert model.predict(history).shape == (1, 3)
    wrong = np.abs(model.predict(history) - future).max()
    assert wrong < 0.3 * np.abs(history[:, -1:] - future).max()
    assert model.predictor_.notes["held_out"] == 1


def test_a_forecast_of_many_channels_keeps_their_order():
    X = [np.stack([np.arange(length), -10.0 * np.arange(length)]) for length in (20, 30, 25)]
    model = LEMForecaster(8, horizon=2, epochs=60, random_state=0, learning_rate=0.02).fit(X)
    ahead = model.predict(X)
    assert ahead.shape == (3, 2, 2)
    assert model.score(X, ahead) == 1.0
    assert (ahead[:, 1] < ahead[:, 0]).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 0}, "`hidden_size` of LEMClassifier must be a positive integer; got 0"),
        ({"batch_size": "some"}, "`batch_size` of LEMClassifier must be 'auto' or a positive integer"),
        ({"dt": "small"}, "`dt` of LEMClassifier must be 'auto' or a number"),
        ({"dt": 3.0}, r"`dt` of LEMCell must be a number in \(0, 2\]"),
        ({"dt": 0.5, "cell": "gru"}, "must be 'auto' for cell 'gru', which has none"),
        ({"cell": "lme"}, "Did you mean 'lem'"),
        ({"missing": "zero"}, "`missing` of LEMClassifier must be one of 'error', 'mask'"),
        ({"validation_fraction": 1.0}, r"must be a number in \[0, 1\)"),
    ],
)
def test_wrong_parameters_are_named_at_fit(change, words):
    with pytest.raises(ValueError, match=words):
        LEMClassifier(**{**QUICK, **change}).fit(noise(), labels(noise()))


def test_wrong_targets_and_channels_are_named():
    X, y = noise(), labels(noise())
    with pytest.raises(ValueError, match="at least two classes; got 1 class: up"):
        LEMClassifier(**QUICK).fit(X, ["up"] * 24)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        LEMClassifier(**QUICK).fit(X, y[:5])
    with pytest.raises(ValueError, match=r"Input y contains NaN: .* see sample 2"):
        LEMRegressor(**QUICK).fit(X, [0, 1, np.nan, *range(21)])
    model = LEMClassifier(**QUICK).fit(X, y)
    with pytest.raises(ValueError, match="must have 2 channels, as in fit; got 3"):
        model.predict(noise(channels=3))
    with pytest.raises(ValueError, match="longer than the horizon, 5; got n_features=4 time steps in sample 0"):
        LEMForecaster(**QUICK, horizon=5).fit(np.zeros((3, 4)))
    with pytest.raises(ValueError, match="`horizon` of LEMForecaster must be a positive integer"):
        LEMForecaster(**QUICK, horizon=0).fit(np.zeros((3, 4)))


def test_verbose_tells_the_learning_curve(capsys):
    LEMClassifier(**QUICK, verbose=1).fit(noise(), labels(noise()))
    shown = capsys.readouterr()
    assert "LEMClassifier epoch 2/2  loss" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dt": None}, "`dt` of LEMClassifier must be 'auto' or a number; got None"),
        ({"dropout": 2.0}, r"`dropout` of LEMClassifier must be a number in \[0, 1\); got 2.0"),
        ({"validation_fraction": "a"}, r"`validation_fraction` of LEMClassifier must be a number in \[0, 1\)"),
        ({"cell_options": 3}, "`cell_options` of LEMClassifier must be a dict or None; got 3"),
        ({"device": "gpu"}, "`device` of LEMClassifier must be one that torch has here; got 'gpu'"),
    ],
)
def test_senseless_parameters_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        LEMClassifier(4, epochs=1, **options).fit(np.zeros((4, 1, 5)), [0, 1, 0, 1])


@pytest.mark.parametrize(("hidden_size", "on_one"), [(8, True), (256, False)])
def test_only_small_networks_train_on_one_thread(hidden_size, on_one):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 1, 5)).astype(np.float32), np.arange(20) % 2
    before, seen = torch.get_num_threads(), set()
    torch.set_num_threads(3)
    hook = torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: seen.add(torch.get_num_threads()))
    try:
        LEMClassifier(hidden_size, network="lem", epochs=1, random_state=0).fit(X, y)
        assert torch.get_num_threads() == 3
    finally:
        hook.remove()
        torch.set_num_threads(before)
    assert (1 in seen) is on_one


def test_fits_side_by_side_give_the_number_of_threads_back():
    before, inside, after = torch.get_num_threads(), threading.Barrier(2), []
    torch.set_num_threads(3)

    def fit():
        with one_thread():
            assert torch.get_num_threads() == 1
            inside.wait(60)
        after.append(torch.get_num_threads())

    try:
        workers = [threading.Thread(target=fit) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert after == [3, 3]
        with one_thread() as had:
            assert had == 3
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
