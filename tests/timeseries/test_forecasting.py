"""Forecasting by segments: the network against a NumPy transcription, data, intervals, backtests, model files."""

import numpy as np
import pytest
import torch

from lem.timeseries import LEMForecaster, Predictor, load
from lem.timeseries.backtest import interval_scores, naive_scale, point_scores
from lem.timeseries.baselines import ridge_on_lags, seasonal_naive
from lem.timeseries.export import EXPORTS, export
from lem.timeseries.intervals import check_levels, conformal_widths, in_order, pinball_loss, widened
from lem.timeseries.seasons import calendar_cycles, calendar_features, plan, season_from_values, season_of
from lem.timeseries.segments import FLOOR, SegmentNetwork
from lem.timeseries.timeline import Step, check_regular, find_step
from tests import paper
from tests.close import assert_close

TINY = {"hidden_size": 8, "epochs": 1, "updates": 4, "batch_size": 16}
LEVELS = (0.025, 0.1, 0.5, 0.9, 0.975)


def wave(steps, seed=0, channels=1):
    t, random = np.arange(steps), np.random.default_rng(seed)
    rows = [10 * c + 3 * np.sin(2 * np.pi * (t + 3 * c) / 12) + random.normal(0, 0.3, steps) for c in range(channels)]
    return np.stack(rows)


def hours(steps, start="2024-01-01"):
    return np.datetime64(start, "h") + np.arange(steps)


def tiny(**options):
    given = {"horizon": 6, "network": "segments", "season": 12, "random_state": 0, "segment_options": TINY}
    return LEMForecaster(**{**given, **options})


def randomised(network, seed=0):
    """Give a network weights without zeros: some maps begin at zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return network.eval()


# --- the network --------------------------------------------------------------------------------------------------


def paper_weights(w):
    """Return a cell's weights by the paper's names."""
    names = zip(("V1", "V2", "Vz", "Vy"), np.split(w["recurrent.cells.0.weight_u"], 4))
    names = [*names, *zip(("W1", "W2", "Wz"), np.split(w["recurrent.cells.0.weight_y"], 3))]
    names += [("Wy", w["recurrent.cells.0.weight_z"])]
    return dict([*names, *zip(("b1", "b2", "bz", "by"), np.split(w["recurrent.cells.0.bias"], 4))])


def transcription(network, values, known):
    """Compute the forecast of one window, decoded at once, channel by channel in NumPy."""
    w = {name: value.double().numpy() for name, value in network.state_dict().items()}
    cell, segment = paper_weights(w), network.segment
    answer = np.zeros((network.horizon, values.shape[1], network.levels))
    for c in range(values.shape[1]):
        seen = known[:, c] > 0
        last, spread = values[seen, c][-1], np.sqrt(values[seen, c].var() + FLOOR**2)
        x = (values[:, c] - last) / spread * known[:, c]
        parts = [np.concatenate([x[i : i + segment], known[i : i + segment, c]]) for i in range(0, len(x), segment)]
        embedded = np.array([np.maximum(w["embed.weight"] @ part + w["embed.bias"], 0.0) for part in parts])
        zero = np.zeros(embedded.shape[1])
        all_y, all_z = paper.lem(cell, embedded, zero, zero, 1.0)
        for j in range(network.ahead):
            query = np.concatenate([w["channel"][c], w["position"][j]])
            y = paper.lem(cell, query[None], all_y[-1], all_z[-1], 1.0)[0][-1]
            out = (w["out.weight"] @ y + w["out.bias"]).reshape(segment, network.levels)
            span = range(j * segment, min((j + 1) * segment, network.horizon))
            answer[span, c] += out[: len(span)]
        answer[:, c] += (w["linear.weight"] @ x + w["linear.bias"])[:, None]
        answer[:, c] = answer[:, c] * spread + last
    return answer


def inputs_of(values, known, horizon):
    block = np.concatenate([np.where(known > 0, values, 0.0), known], axis=1)
    block = np.concatenate([block, np.zeros((horizon, block.shape[1]))])
    return torch.from_numpy(block[:, None])


@pytest.fixture
def window():
    random = np.random.default_rng(1)
    known = (random.random((12, 2)) > 0.2).astype(float)
    return random.normal(3, 2, (12, 2)), known


def test_the_network_is_its_transcription(window):
    network = randomised(SegmentNetwork(2, 7, 12, 3, quantiles=(0.1, 0.5, 0.9), masked=True, hidden_size=6)).double()
    found = network(inputs_of(*window, 7))[0][0].detach().numpy()
    assert found.shape == (7, 2, 3)
    assert_close(found, transcription(network, *window), "float64")


def test_the_transcription_notices_a_wrong_channel_code(window):
    network = randomised(SegmentNetwork(2, 7, 12, 3, quantiles=(0.1, 0.5, 0.9), masked=True, hidden_size=6)).double()
    expected = transcription(network, *window)
    with torch.no_grad():
        network.channel.copy_(network.channel.flip(0))
    with pytest.raises(AssertionError):
        assert_close(network(inputs_of(*window, 7))[0][0].detach().numpy(), expected, "float64")


@pytest.mark.parametrize("options", [{}, {"mixing": True}, {"decoder": "recursive"}], ids=str)
def test_a_window_without_a_scaled_spread_is_forecast_equivariantly(window, options, monkeypatch):
    monkeypatch.setattr("lem.timeseries.segments.FLOOR", 0.0)
    network = randomised(SegmentNetwork(2, 7, 12, 3, masked=True, hidden_size=6, **options)).double()
    values, known = window
    plain = network(inputs_of(values, known, 7))[0]
    moved = network(inputs_of(5.0 * values - 40.0, known, 7))[0]
    assert_close(moved, 5.0 * plain - 40.0, "float64")


@pytest.mark.parametrize("options", [{}, {"mixing": True}, {"decoder": "recursive"}], ids=str)
def test_missing_values_are_never_read(window, options):
    network = randomised(SegmentNetwork(2, 7, 12, 3, masked=True, hidden_size=6, **options)).double()
    inputs = inputs_of(*window, 7)
    other = inputs.clone()
    other[:12, :, :2] += 1e6 * (1.0 - other[:12, :, 2:4])
    assert_close(network(other)[0], network(inputs)[0], "exact")


def test_a_linear_map_with_a_period_reads_the_same_place_of_earlier_periods():
    network = randomised(SegmentNetwork(2, 10, 14, 7, period=4, hidden_size=8))
    x = torch.randn(14, 3, 2)
    found = network._mapped(x)
    for step in range(10):
        before = x[2 + step % 4 :: 4]  # the window has two steps more than three periods
        expected = torch.einsum("n,nbk->bk", network.linear.weight[step // 4], before) + network.linear.bias[step // 4]
        assert_close(found[:, step], expected, "float32")


def test_forecasts_of_many_seasons_come_from_a_smaller_network():
    options = {"season": 4, "segment_options": {"updates": 1}}
    near = tiny(**options, horizon=32).fit(wave(5100), refit=False)
    far = tiny(**options, horizon=33).fit(wave(5100), refit=False)
    assert (near.predictor_.model.period, far.predictor_.model.period) == (None, 4)
    assert (near.predictor_.notes["epochs"], far.predictor_.notes["epochs"]) == (6, 3)
    assert far.predictor_.model.embed.out_features == 64
    short = tiny(**options, horizon=33).fit(wave(600), refit=False)
    assert short.predictor_.model.period is None


def test_recursive_decoding_feeds_back_what_it_forecast():
    """The first segment is the parallel one; later ones differ, since they have read the ones before."""
    both = [
        randomised(SegmentNetwork(1, 6, 12, 3, hidden_size=6, decoder=decoder)).double()
        for decoder in ("parallel", "recursive")
    ]
    random = np.random.default_rng(2)
    inputs = inputs_of(random.normal(size=(12, 1)), np.ones((12, 1)), 6)
    parallel, recursive = (network(inputs)[0] for network in both)
    assert_close(recursive[:, :3], parallel[:, :3], "float64")
    assert float((recursive[:, 3:] - parallel[:, 3:]).abs().max().detach()) > 1e-3


def test_covariates_known_in_advance_change_the_forecast_and_later_values_do_not():
    network = randomised(SegmentNetwork(1, 6, 12, 3, future=1, hidden_size=6)).double()
    inputs = torch.randn(18, 2, 3, dtype=torch.float64)
    inputs[:, :, 1] = 1.0
    plain, changed = network(inputs)[0], inputs.clone()
    changed[12:, :, :2] = 99.0
    assert_close(network(changed)[0], plain, "exact")
    changed[14, :, 2] += 1.0
    assert float((network(changed)[0] - plain).abs().max().detach()) > 1e-3


# --- seasons and times --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "season"),
    [(600, 144), (1800, 48), (3600, 24), (14400, 6), (86400, 7), (7 * 86400, 52), (365.2425 * 86400, 1)],
)
def test_the_season_follows_from_the_step(seconds, season):
    assert season_of(seconds) == season


def test_the_season_is_found_in_the_values():
    assert season_from_values([wave(200).T]) == 12
    assert season_from_values([np.random.default_rng(0).normal(size=(300, 1)).cumsum(0)]) == 1


def test_a_plan_reads_whole_segments_of_at_most_a_season():
    for season, length, horizon in [
        (24, 8640, 96),
        (12, 80, 12),
        (7, 7000, 30),
        (1, 30, 6),
        (52, 100, 8),
        (365, 900, 30),
    ]:
        look_back, segment = plan(season, np.array([length]), horizon)
        assert look_back % segment == 0
        assert segment <= max(season, look_back // 16)
        assert look_back + horizon <= length
    assert plan(24, np.array([8640]), 96) == (720, 24)


def test_months_are_steps_of_their_own():
    times = np.array(["2023-11-30", "2023-12-31", "2024-01-31", "2024-02-29"], dtype="datetime64[ns]").astype(np.int64)
    step = find_step([times])
    assert step is not None
    assert (step.months, step.season, step.show()) == (1, 12, "1 month")
    ahead = step.after(int(times[-1]), 2).astype("datetime64[ns]").astype("datetime64[D]")
    assert ahead.astype(str).tolist() == ["2024-03-31", "2024-04-30"]
    check_regular([times], step, ["a"], "date")


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0, 2, 1, 3], "out of order"),
        ([0, 1, 1, 2], "repeat 1 times"),
        ([0, 1, 2, 5, 6], "not regular: 1 of its steps"),
    ],
)
def test_irregular_times_are_named(times, message):
    moments = np.array(times, dtype=np.int64) * 3600 * 10**9
    with pytest.raises(ValueError, match=message):
        check_regular([moments], Step(0, 3600.0), ["a"], "date")


def test_calendar_features_repeat_after_their_cycle():
    assert calendar_cycles(3600.0, 100 * 86400.0) == ("day", "week")
    assert calendar_cycles(86400.0, 3 * 365 * 86400.0) == ("week", "year")
    seconds = hours(24 * 14).astype("datetime64[s]").astype(np.int64)  # 2024-01-01 is a Monday
    found = calendar_features(seconds, ("week",))
    assert_close(found[:168], found[168:], "float64")
    assert found[: 5 * 24, 2].sum() == 0
    assert found[5 * 24 : 168, 2].all()


# --- scores, baselines, intervals ---------------------------------------------------------------------------------


def test_scores_by_hand():
    truth, answer = np.array([[[1.0], [2.0]]]), np.array([[[2.0], [4.0]]])
    found = point_scores(truth, answer, np.array([[0.5]]))
    assert_close(np.array(list(found.values())), np.array([1.5, np.sqrt(2.5), 3.0, (2 / 3 + 2 / 3) / 2]), "float64")
    assert_close(naive_scale(np.array([[1.0], [2.0], [4.0], [9.0]]), 2), np.array([5.0]), "float64")
    quantiles = np.array([[[[0.0, 2.0, 1.5]], [[3.0, 4.0, 5.0]]]])
    intervals = interval_scores(truth, quantiles, (0.1, 0.5, 0.9))
    assert intervals["within 80 %"] == 0.5
    by_hand = np.mean([0.1 * 1.0, 0.5 * 1.0, 0.1 * 0.5, 0.9 * 1.0, 0.5 * 2.0, 0.1 * 3.0])
    assert_close(intervals["pinball"], by_hand, "float64")


def test_seasonal_naive_repeats_the_last_season_over_gaps():
    history = np.array([[1.0], [2.0], [3.0], [np.nan]])
    assert seasonal_naive(history, 5, 2).ravel().tolist() == [3.0, 3.0, 3.0, 3.0, 3.0]
    assert seasonal_naive(history[:3], 3, 2).ravel().tolist() == [2.0, 3.0, 2.0]


def test_ridge_on_lags_learns_a_linear_recurrence():
    x = np.zeros(400)
    x[:2] = 1.0, 0.5
    for n in range(2, 400):
        x[n] = 1.8 * x[n - 1] - 0.99 * x[n - 2] + 0.01 * np.sin(n)
    predict = ridge_on_lags([x[:300, None]], 5, 1)
    assert predict is not None
    assert np.abs(predict([x[:350, None]])[0, :, 0] - x[350:355]).max() < 0.05


def test_quantile_levels_are_checked():
    assert check_levels((0.9, 0.5, 0.1), "it") == (0.1, 0.5, 0.9)
    for wrong in [(0.1, 0.9), (0.1, 0.5), (0.0, 0.5, 1.0), ()]:
        with pytest.raises(ValueError, match="pairs around it"):
            check_levels(wrong, "it")


def test_the_pinball_loss_is_least_at_the_quantiles():
    sample = torch.randn(4000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    levels = (0.1, 0.5, 0.9)
    loss = pinball_loss(levels)
    true = torch.tensor(np.quantile(sample.numpy(), levels))
    best = loss(true.expand(4000, 1, 3), sample).mean()
    for shift in torch.eye(3, dtype=torch.float64) * 0.3:
        assert loss((true + shift).expand(4000, 1, 3), sample).mean() > best
        assert loss((true - shift).expand(4000, 1, 3), sample).mean() > best
    assert not loss(true.expand(1, 1, 3), torch.full((1, 1), torch.nan)).any()


@pytest.mark.parametrize("spread", [0.2, 1.0, 5.0])
def test_conformal_intervals_cover_whatever_was_forecast(spread):
    random = np.random.default_rng(0)
    truth = random.normal(size=(1000, 4, 2)) * np.array([1.0, 3.0])
    quantiles = np.broadcast_to(spread * np.array([-2.0, -1.0, 0.0, 1.0, 2.0]), (*truth.shape, 5))
    widths = conformal_widths(quantiles[:500], truth[:500], LEVELS)
    after = interval_scores(truth[500:], widened(quantiles[500:], widths), LEVELS)
    assert abs(after["within 80 %"] - 0.8) < 0.03
    assert abs(after["within 95 %"] - 0.95) < 0.03
    before = interval_scores(truth[500:], quantiles[500:], LEVELS)
    assert abs(before["within 80 %"] - 0.8) > 0.1, "uncorrected intervals would pass too"


def test_quantiles_do_not_cross():
    found = in_order(np.array([[3.0, 1.0, 2.0, 1.0, 5.0]]))
    assert found.tolist() == [[1.0, 1.0, 2.0, 2.0, 5.0]]


# --- the estimator ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    X = wave(160, channels=2)[None]
    return tiny().fit(X, times=hours(160)), X


def test_forecasts_have_the_shapes_of_the_series(fitted):
    model, X = fitted
    assert model.predict(X, times=hours(160)).shape == (1, 2, 6)
    assert model.predict(horizon=15).shape == (1, 2, 15)
    assert model.predict_quantiles(horizon=3).shape == (1, 2, 3, 5)
    assert_close(model.predict(horizon=15)[..., :6], model.predict(), "exact")
    assert_close(model.predict(), model.predict(X, times=hours(160)), "exact")
    assert tiny().fit(wave(160)).predict().shape == (1, 6)


def test_intervals_contain_the_forecast_and_widen_beyond_the_trained_horizon(fitted):
    model, _ = fitted
    assert model.calibrated_ > 0
    low, high = model.predict_interval(coverage=0.95, horizon=24)
    point = model.predict(horizon=24)
    assert ((low <= point) & (point <= high)).all()
    inner = model.predict_interval(coverage=0.8, horizon=24)
    assert ((low <= inner[0]) & (inner[1] <= high)).all()
    width = (high - low).mean(axis=(0, 1))
    assert width[18:].mean() > width[:6].mean()
    with pytest.raises(ValueError, match=r"`coverage` must be one of 0\.8, 0\.95"):
        model.predict_interval(coverage=0.5)


def test_a_model_file_forecasts_the_same(fitted, tmp_path):
    model, X = fitted
    again = load(model.save(tmp_path / "m.safetensors"))
    assert isinstance(again, LEMForecaster)
    assert_close(again.predict(X, times=hours(160)), model.predict(), "exact")
    low, high = again.predict_interval(X, times=hours(160))
    assert_close(np.stack([low, high]), np.stack(model.predict_interval()), "exact")
    with pytest.raises(ValueError, match="trained with `times`"):
        again.predict(X)
    with pytest.raises(ValueError, match="`X` must be given"):
        again.predict()
    with pytest.raises(ValueError, match="needed here too"):
        Predictor.load(tmp_path / "m.safetensors").predict(X)


def test_the_season_of_a_trained_model_comes_from_the_times():
    assert tiny(season="auto").fit(wave(160), times=hours(160)).season_ == 24


def test_a_stream_answers_as_predict_does():
    X = wave(160, channels=2)
    model = tiny().fit(X[None])
    stream = model.stream()
    stream.push(X[:, :100])
    for n in range(100, 103):
        answer = stream.push(X[:, n])
    assert_close(answer, model.predict(X[None, :, :103])[0], "float32")
    assert stream.forecast(9).shape == (2, 9)
    with pytest.raises(ValueError, match="no table of streams"):
        model.streams()


def test_several_series_of_unequal_lengths_and_scales():
    X = [wave(n, seed=n)[0] * scale for n, scale in [(90, 1.0), (120, 1000.0), (60, 0.01)]]
    model = tiny(segment_options={**TINY, "updates": 20}).fit(X)
    assert model.predict(X).shape == (3, 1, 6)
    for alone, x in zip(model.predict(X)[:, 0], X):
        assert_close(model.predict([x])[0, 0] / np.abs(x).max(), alone / np.abs(x).max(), "float32")
        assert np.abs(alone - x.mean()).max() < 3 * np.ptp(x), "a forecast is in the units of its series"


def test_covariates_and_static_features_reach_the_network():
    temperature = np.random.default_rng(3).normal(size=(1, 170))
    X = 0.1 * wave(160) + temperature[:, :160]
    known = {"past": X[None, :, :] ** 2, "future": temperature[None], "static": np.ones((1, 1))}
    model = tiny(segment_options={**TINY, "updates": 30}).fit(X[None], **known)
    assert (model.predictor_.architecture["past"], model.predictor_.architecture["future"]) == (1, 1)
    plain = model.predict(X[None], **known)
    warmer = {**known, "future": temperature[None] + np.where(np.arange(170) >= 160, 3.0, 0.0)}
    assert np.abs(model.predict(X[None], **warmer) - plain).max() > 1e-6
    with pytest.raises(ValueError, match="it ends after 162 steps"):
        model.predict(X[None], **{**known, "future": temperature[None, :, :162]})
    with pytest.raises(ValueError, match="`static` of LEMForecaster must have 1 columns"):
        model.predict(X[None], past=known["past"], future=known["future"])


def test_missing_values_are_forecast_over():
    X = wave(160)
    X[0, 30:34] = np.nan
    X[0, -2:] = np.nan
    with pytest.raises(ValueError, match="must be finite"):
        tiny().fit(X)
    found = tiny(missing="mask").fit(X).predict()
    assert np.isfinite(found).all()
    with pytest.raises(ValueError, match="has no known value"):
        tiny(missing="mask").fit(np.full((1, 160), np.nan))


def test_log_needs_positive_values_and_is_undone():
    X = np.exp(wave(160) / 3.0)
    found = tiny(log=True).fit(X).predict_quantiles()
    assert (found > 0).all()
    with pytest.raises(ValueError, match="log=True of LEMForecaster needs positive values"):
        tiny(log=True).fit(X - 1.0)


def test_a_constant_series_is_continued():
    found = tiny().fit(np.full((1, 100), 7.0)).predict()
    assert_close(found, np.full((1, 6), 7.0), "float32")


def chosen_by_times(times):
    return LEMForecaster(horizon=6)._chosen_network(np.array([100]), times)


def test_the_network_is_chosen_by_length_and_by_parameters():
    def chosen(steps, **options):
        return LEMForecaster(horizon=6, **options)._chosen_network(np.array([steps]))

    assert (chosen(100), chosen(20), chosen(23, network="segments")) == ("segments", "steps", "segments")
    assert (chosen(100, epochs=3), chosen(100, network="steps")) == ("steps", "steps")
    with pytest.raises(ValueError, match="`epochs` of LEMForecaster applies to network='steps' only"):
        LEMForecaster(network="segments", epochs=3).fit(wave(100))
    with pytest.raises(ValueError, match="may have hidden_size"):
        tiny(segment_options={"hiden_size": 3}).fit(wave(100))
    with pytest.raises(ValueError, match="`past` of LEMForecaster needs the network of segments"):
        LEMForecaster(4, horizon=2, epochs=1).fit(wave(100), past=wave(100)[None])
    assert chosen_by_times(hours(100)) == "segments"
    assert chosen_by_times([hours(100)]) == "segments"
    assert chosen_by_times([np.arange(100.0)]) == "steps"
    assert chosen_by_times([hours(200)[np.arange(100) ** 2 // 50]]) == "steps"
    assert LEMForecaster(horizon=6)._chosen_network(np.array([100]), [hours(100)], 3600.0) == "steps"


def test_steps_forecast_beyond_the_trained_horizon():
    model = LEMForecaster(4, horizon=3, epochs=1, random_state=0).fit(wave(60))
    longer = model.predict(wave(60), horizon=7)
    assert longer.shape == (1, 7)
    assert_close(longer[:, :3], model.predict(wave(60)), "float32")


# --- backtests ----------------------------------------------------------------------------------------------------


def test_a_backtest_has_not_seen_what_it_is_scored_on():
    X = wave(160)
    plain = tiny().backtest(X, start=120)
    changed = X.copy()
    changed[0, 121:] += 50.0
    after = tiny().backtest(changed, start=120)
    assert plain.steps.tolist() == list(range(120, 155, 6))
    assert_close(after.forecasts["LEM"][0], plain.forecasts["LEM"][0], "exact")
    assert_close(after.quantiles[0], plain.quantiles[0], "exact")
    assert after.scores["LEM"]["MAE"] > plain.scores["LEM"]["MAE"]
    changed[0, 119] += 50.0  # the last step before the first origin is seen
    assert np.abs(tiny().backtest(changed, start=120).forecasts["LEM"][0] - plain.forecasts["LEM"][0]).max() > 1.0


def test_a_backtest_stands_beside_its_baselines_and_hands_over_its_calibration():
    X = wave(200, channels=2)[None]
    found = tiny().backtest(X, stride=3)
    assert set(found.scores) == {"LEM", "seasonal naive", "ridge on lags"}
    expected = np.stack([seasonal_naive(X[0, :, :step].T, 6, 12) for step in found.steps])
    assert_close(found.forecasts["seasonal naive"], expected, "exact")
    mae = np.abs(found.forecasts["LEM"] - found.truth).mean()
    assert_close(found.scores["LEM"]["MAE"], mae, "float64")
    assert_close(np.mean(found.by_step["LEM"]), mae, "float64")
    assert_close(np.mean(found.by_channel["LEM"]["MAE"]), mae, "float64")
    assert "within 80 %" in str(found)
    model = tiny().fit(X, backtest=found)
    assert model.best_epoch_ == found.development.best_epoch
    assert_close(model.predictor_.model.widths.numpy(), found.development.widths, "exact")
    assert len(tiny().backtest(X, start=150, stride=20, refit=True).truth) == 3


def test_the_intervals_of_a_backtest_follow_a_change_of_the_noise():
    """A forecast every 12 steps counts as much as the 12 calibration forecasts in the same time."""
    x = wave(1200)
    x[0, 700:] += np.random.default_rng(1).normal(0, 3, 500)
    found = tiny(horizon=12).backtest(x, start=600)
    assert found.scores["LEM"]["within 80 %"] > 0.7
    late = found.steps > 850
    lower, upper = found.quantiles[late, ..., 1], found.quantiles[late, ..., -2]
    assert 0.73 < ((found.truth[late] >= lower) & (found.truth[late] <= upper)).mean() < 0.87


def test_a_backtest_needs_room():
    with pytest.raises(ValueError, match="A backtest of 6 steps needs longer series"):
        tiny().backtest(wave(9))


# --- exports ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["numpy", *(pytest.param(to, marks=pytest.mark.slow) for to in ("torch", "onnx"))])
@pytest.mark.parametrize("several", [False, True])
def test_an_exported_forecaster_answers_as_the_model(to, several, tmp_path):
    X = [wave(160)[0], 100 * wave(140, 1)[0]] if several else wave(160)
    options = TINY if several else {**TINY, "period": 12}
    model = tiny(missing="mask", log=False, segment_options=options).fit(X)
    folder = export(model.predictor_, to, tmp_path / to)
    look_back = model.predictor_.architecture["look_back"]
    window = (wave(look_back, 5) + 20).T[None]
    window[0, 3] = np.nan
    expected = model.predict_quantiles([window[0].T])  # (series, channel, horizon, quantile)
    answer = EXPORTS[to][1](folder)(window.astype(np.float32), None)
    assert answer.shape == (1, 6, 1, 5)
    assert_close(answer[0, :, 0], expected.reshape(6, 5), "export")


def test_an_export_names_what_it_cannot_do(tmp_path):
    model = tiny().fit(wave(160), times=hours(160))
    with pytest.raises(ValueError, match="with times or covariates cannot be exported yet"):
        export(model.predictor_, "numpy", tmp_path)
    with pytest.raises(ValueError, match="Only LEM without mixing"):
        export(tiny(cell="gru").fit(wave(160)).predictor_, "numpy", tmp_path)
