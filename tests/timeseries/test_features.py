"""LEMFeatures: against plain loops, for unequal lengths, on streams, as a scikit-learn transformer."""

import pickle
import threading
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import RidgeClassifierCV, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from lem.timeseries import LEMFeatures, batches
from lem.timeseries.convolutions import KernelBank, quantiles
from lem.timeseries.frozen import Frozen
from lem.timeseries.predictor import standardise
from tests.close import assert_close
from tests.timeseries import transcription


def ragged(n=12, channels=2, low=1, high=40, seed=0):
    random = np.random.default_rng(seed)
    return [random.normal(size=(channels, random.integers(low, high))).cumsum(1) for _ in range(n)]


def waves(n=60, length=80, seed=0):
    """Two classes that differ in frequency, with random phase."""
    random = np.random.default_rng(seed)
    y = np.arange(n) % 2
    phase = random.uniform(0, 2 * np.pi, (n, 1))
    X = np.sin(phase + np.arange(length) * np.where(y, 0.5, 0.35)[:, None]) + 0.3 * random.normal(size=(n, length))
    return X, np.array(["slow", "fast"])[y]


@parametrize_with_checks([LEMFeatures(100), LEMFeatures(100, causal=True)])
def test_scikit_learns_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # the checks themselves convert y and warn
        check(estimator)


# --- against plain loops --------------------------------------------------------------------------------------------


def by_loops(transformer, X):
    """The features of X, by the transcription, for a transformer in double precision."""
    fitted = transformer.map_
    rows = []
    for x in X:
        scaled = (x.T - fitted.mean.numpy()) / fitted.scale.numpy()
        absent = np.isnan(scaled) if fitted.missing == "mask" else None
        rows.append(transcription.features(fitted.model, np.nan_to_num(scaled), absent))
    raw = np.array(rows)
    return (raw - fitted.model.feature_mean.numpy()) / fitted.model.feature_scale.numpy()


def in_double(transformer, X):
    """The features of X by the library in float64, so that no threshold is missed by rounding."""
    fitted = pickle.loads(pickle.dumps(transformer)).map_.double()
    answers = []
    with torch.inference_mode():
        for x in X:
            u = standardise(torch.from_numpy(x.T[:, None]), fitted.mean, fitted.scale, fitted.missing, torch.float64)
            answers.append(fitted.model.features(u)[0][0].numpy())
    return np.array(answers)


def compare_with_loops(transformer, X):
    assert_close(in_double(transformer, X), by_loops(transformer, X), "float64 features")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_features_equal_plain_loops(causal, channels):
    X = ragged(8, channels, low=5)
    compare_with_loops(LEMFeatures(300, causal=causal, random_state=1).fit(X), X)


def test_missing_values_equal_plain_loops():
    X = ragged(8, 2, low=5)
    X[0][0, :2] = X[1][1, 3] = np.nan
    compare_with_loops(LEMFeatures(300, missing="mask", random_state=1).fit(X), X)


def series_not_scaled(model, inputs, lengths, signals=Frozen._signals):
    return {**signals(model, inputs, lengths), "series": inputs.permute(1, 2, 0)}


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Frozen, "_reversed", lambda model, g: False),
        (Frozen, "_signals", series_not_scaled),
        (KernelBank, "_past", 5),
    ],
)
def test_broken_methods_are_caught(monkeypatch, owner, name, broken):
    X = ragged(4, 2, low=12)
    true = LEMFeatures(1500, random_state=1).fit(X)
    compare_with_loops(true, X)
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        compare_with_loops(true, X)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda model: model.bank.taps.copy_(model.bank.taps.flip(1)),
        lambda model: model.threshold.add_(0.05),
        lambda model: model.bank.scale.mul_(1.01),
        lambda model: setattr(model.bank.blocks[0], "dilation", model.bank.blocks[0].dilation + 1),
    ],
)
def test_broken_numbers_are_caught(spoil):
    X = ragged(8, 2, low=12)
    true = LEMFeatures(300, random_state=1).fit(X)
    expected = by_loops(true, X)
    spoil(true.map_.model)
    with pytest.raises(AssertionError):
        assert_close(in_double(true, X), expected, "float64 features")


# --- unequal lengths, batches, streams ------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["lem", "gru", "lstm", "cornn"])
def test_no_feature_depends_on_padding_or_on_other_series(cell):
    X = ragged(high=60)
    model = LEMFeatures(400, cell=cell, random_state=0).fit(X)
    alone = np.concatenate([model.transform([x]) for x in X])
    assert_close(model.transform(X), alone, "features of rows")
    padded = [np.concatenate([x, np.zeros((2, 3))], axis=1) for x in X]
    with pytest.raises(AssertionError):
        assert_close(model.transform(padded), alone, "features of rows")


def test_small_batches_give_the_same_features(monkeypatch):
    X = ragged(20)
    model = LEMFeatures(300, random_state=0).fit(X)
    expected = model.transform(X)
    monkeypatch.setattr(batches, "STEPS", 50)
    assert_close(model.transform(X), expected, "features of rows")


@pytest.mark.parametrize("missing", ["error", "mask"])
def test_a_stream_keeps_the_features_of_the_series_so_far(missing):
    X = ragged(10, low=30, high=60)
    if missing == "mask":
        X[0][0, [0, 7, 8]] = np.nan
    model = LEMFeatures(300, causal=True, missing=missing, random_state=0).fit(X)
    stream, x = model.stream(), X[0]
    single = [stream.push(x[:, t]) for t in range(10)]
    chunk = stream.push(x[:, 10:25])
    answers = np.concatenate([single, chunk])
    assert_close(answers, np.concatenate([model.transform([x[:, : t + 1]]) for t in range(25)]), "features of rows")
    stream.reset()
    assert_close(stream.push(x)[-1], model.transform([x])[0], "features of rows")
    with pytest.raises(AssertionError):  # the stream goes on, it does not start again
        assert_close(stream.push(x)[-1], model.transform([x])[0], "features of rows")


def test_many_streams_at_once():
    X = ragged(10, low=30, high=60)
    model = LEMFeatures(300, causal=True, random_state=0).fit(X)
    streams = model.streams()
    streams.add("a", "b")
    first = streams.push(["b"], X[1][None, :, :5])
    both = streams.push(["a", "b"], np.stack([X[0][:, :4], X[1][:, 5:9]]))
    assert_close(first[0, -1], model.transform([X[1][:, :5]])[0], "features of rows")
    assert_close(both[0, -1], model.transform([X[0][:, :4]])[0], "features of rows")
    assert_close(both[1, -1], model.transform([X[1][:, :9]])[0], "features of rows")


def test_only_causal_features_can_follow_a_stream():
    with pytest.raises(ValueError, match="causal=True"):
        LEMFeatures(100, random_state=0).fit(ragged()).stream()


# --- as a transformer -----------------------------------------------------------------------------------------------


def test_a_pipeline_with_ridge_learns():
    X, y = waves()
    test, truth = waves(seed=1)
    model = make_pipeline(LEMFeatures(1000, random_state=0), RidgeClassifierCV()).fit(X, y)
    assert model.score(test, truth) > 0.95
    frequency = np.where(y == "fast", 0.5, 0.35)
    assert make_pipeline(LEMFeatures(1000, random_state=0), RidgeCV()).fit(X, frequency).score(X, frequency) > 0.9


def test_seeds_sizes_and_types():
    X, _ = waves(20)
    model = LEMFeatures(1000, random_state=0)
    found = model.fit_transform(X)
    assert found.dtype == np.float32
    assert found.shape == (20, model.n_features_out_)
    assert 700 < model.n_features_out_ < 1300
    assert len(model.get_feature_names_out()) == len(set(model.get_feature_names_out())) == model.n_features_out_
    assert_close(found, model.transform(X), "features of rows")
    assert_close(found, clone(model).fit_transform(X), "exact")
    assert not np.allclose(found, clone(model).set_params(random_state=1).fit_transform(X))
    assert_close(pickle.loads(pickle.dumps(model)).transform(X), model.transform(X), "exact")
    assert 7000 < LEMFeatures(10_000).fit(X).n_features_out_ < 13_000


def test_set_output_gives_a_frame():
    X, _ = waves(10)
    frame = LEMFeatures(100, random_state=0).set_output(transform="pandas").fit_transform(X)
    assert frame.columns[0].startswith("kernel")


@pytest.mark.filterwarnings("ignore:.*channels of 20 time steps")
@pytest.mark.parametrize(
    "X",
    [
        np.ones((5, 2, 30)),  # constant
        np.random.default_rng(0).normal(size=(5, 1, 1)),  # one step
        np.random.default_rng(0).normal(size=(4, 40, 50)),  # more channels than a group reads
        np.random.default_rng(0).normal(size=(3, 10_000, 20)),
    ],
)
def test_odd_shapes_give_finite_features(X):
    found = LEMFeatures(200, random_state=0).fit_transform(X)
    assert np.isfinite(found).all()


def test_what_is_refused():
    X = ragged()
    with pytest.raises(ValueError, match="`n_features` of LEMFeatures must be a positive integer"):
        LEMFeatures(0).fit(X)
    with pytest.raises(ValueError, match="Did you mean"):
        LEMFeatures(cell="lsm").fit(X)
    with pytest.raises(ValueError, match="must have 2 channels"):
        LEMFeatures(100).fit(X).transform(ragged(channels=3))
    X[1][0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN in sample 1, channel 0, position 0"):
        LEMFeatures(100).fit(X)


def test_thresholds_lie_between_the_values_of_a_sensor_with_few_levels():
    values = torch.tensor(np.random.default_rng(0).integers(0, 5, (300, 40)), dtype=torch.float32)
    limits = quantiles(values, 4, 0)
    assert limits.shape == (4, 40)
    assert ((limits - limits.round()).abs() > 0.1).all()


def test_batches_on_several_threads_give_the_same_features(monkeypatch):
    monkeypatch.setattr(batches, "STEPS", 60)
    X, before, seen = ragged(20, low=5), torch.get_num_threads(), []
    used, run = set(), KernelBank.run

    def watched(*arguments, **options):
        used.add((threading.get_ident(), torch.get_num_threads()))
        return run(*arguments, **options)

    monkeypatch.setattr(KernelBank, "run", watched)
    try:
        for threads in (1, 3):
            used.clear()
            torch.set_num_threads(threads)
            seen.append(LEMFeatures(300, random_state=0).fit(X).transform(X))
            assert torch.get_num_threads() == threads
            assert {count for _, count in used} == {1}
            assert (len(used) > 1) == (threads > 1)
    finally:
        torch.set_num_threads(before)
    assert (seen[0] == seen[1]).all()
