"""A stream answers after every step, for any cutting into chunks, what the whole series so far would be answered."""

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from lem.nn.cells import CELLS
from lem.timeseries.predictor import Predictor
from lem.training.checkpoint import load_tree, save_tree
from tests.close import assert_close


def predictor(kind="classifier", cell="lem", **options):
    outputs = {"classifier": 3, "regressor": 1, "forecaster": 2}[kind]
    labels = np.array(["a", "b", "c"]) if kind == "classifier" else None
    architecture = {"cell": cell, "hidden_size": 6, "pool": "last" if kind == "forecaster" else "both", **options}
    return Predictor(kind, 2, outputs, architecture, labels=labels, horizon=4 if kind == "forecaster" else 1).eval()


def series(steps, n=1, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 2, steps))


@pytest.mark.parametrize("cell", sorted(CELLS))
def test_every_cell_streams_what_it_would_say_to_each_prefix(cell):
    model, X = predictor(cell=cell, num_layers=1 if cell == "nrde" else 2), series(6)  # NRDE's states do not stack
    stream = model.stream()
    pushed = np.concatenate([stream.push(X[0][:, 0])[None], stream.push(X[0][:, 1:])])
    whole = np.concatenate([model.predict_proba(X[:, :, : t + 1]) for t in range(6)])
    assert_close(pushed, whole, "stream")


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(
    st.lists(st.one_of(st.just(1), st.integers(1, 40)), min_size=1, max_size=8),
    st.sampled_from(["classifier", "regressor", "forecaster"]),
)
def test_any_chunking_gives_the_batch_answer(chunks, kind):
    model, X = predictor(kind), series(sum(chunks))
    stream, pieces = model.stream(), np.split(X[0], np.cumsum(chunks)[:-1], axis=1)
    # One step comes as a sample, by the stepper, or as a chunk of one: by turns.
    alone = [i % 2 == 0 and piece.shape[1] == 1 for i, piece in enumerate(pieces)]
    answers = np.concatenate(
        [stream.push(piece[:, 0])[None] if single else stream.push(piece) for piece, single in zip(pieces, alone)]
    )
    assert_close(answers, model.stream().push(X[0]), "stream")
    final = model.predict_proba(X) if kind == "classifier" else model.predict(X)
    assert_close(answers[-1], final[0], "stream")


def test_one_sample_has_no_axis_of_steps_and_numbers_serve_one_channel():
    model, X = predictor(), series(3)
    stream = model.stream()
    assert_close(np.stack([stream.push(X[0][:, t]) for t in range(3)]), model.stream().push(X[0]), "stream")
    single = Predictor("regressor", 1, 1, {"cell": "lem", "hidden_size": 4}, flat=True).eval()
    assert np.shape(single.stream().push(0.5)) == ()
    assert np.shape(single.stream().push([0.5, 0.25, 1.0])) == (3,)


@pytest.mark.parametrize("kind", ["classifier", "regressor", "forecaster"])
@pytest.mark.parametrize(
    "options",
    [{"num_layers": 3, "clip": (0.1, 0.6)}, {"single_scale": True}, {"bias": False, "learn_initial_state": True}],
)
def test_single_steps_run_on_the_kernel_and_equal_the_batch(kind, options):
    """In any order and company: rows that lie together are stepped in place, others are copied and put back."""
    model, X = predictor(kind, **options), series(30, n=5)
    table = model.streams()
    table.add(*range(5))
    whole = [model.stream().push(x) for x in X]
    random, steps = np.random.default_rng(0), [0] * 5
    for _ in range(60):
        ids = random.permutation(5)[: random.integers(1, 6)].tolist()
        ids = sorted(ids) if random.random() < 0.5 else ids
        answers = table.push(ids, np.asfortranarray([X[i, :, steps[i] % 30] for i in ids]))
        for i, answer in zip(ids, answers):
            steps[i] += 1
            if steps[i] <= 30:
                assert_close(answer, whole[i][steps[i] - 1], "stream")
    assert min(steps) > 20
    assert len(table._steppers) == options.get("num_layers", 1)
    assert predictor(kind, backend="loop").streams()._ready() == []
    assert predictor(kind, cell="lstm").streams()._ready() == []


def test_a_stream_follows_weights_that_change():
    model, X = predictor(), series(2)
    stream = model.stream()
    stream.push(X[0][:, 0])
    with torch.no_grad():
        for weight in model.model.recurrent.parameters():
            weight.mul_(0.5)
    fresh = model.stream()
    fresh.restore(stream.snapshot())
    chunk = fresh.push(X[0][:, 1:])  # reads the weights anew
    assert_close(stream.push(X[0][:, 1]), chunk[0], "stream")


def test_many_streams_come_and_go_without_touching_each_other():
    model, X = predictor(), series(8, n=4)
    expected = [model.stream().push(x) for x in X]
    table = model.streams()
    table.add("a", "b")
    first = table.push(["b", "a"], X[[1, 0], :, 0])
    assert_close(first, np.stack([expected[1][0], expected[0][0]]), "stream")
    table.add("c")
    table.drop("a")
    table.add("d")  # takes the row of "a", which must be fresh
    assert table.ids == ["b", "c", "d"]
    assert "a" not in table
    assert len(table) == 3
    later = table.push(["d", "b"], X[[3, 1], :, 1:3])
    assert_close(later[1], expected[1][1:3], "stream")
    assert_close(later[0], model.stream().push(X[3][:, 1:3]), "stream")


def test_a_snapshot_survives_a_file_and_goes_on_as_if_nothing_had_happened(tmp_path):
    model, X = predictor(), series(8, n=2)
    table = model.streams()
    table.add("a", "b")
    table.push(["a", "b"], X[:, :, :3])
    save_tree(tmp_path / "streams", table.snapshot())
    expected = table.push(["a", "b"], X[:, :, 3:])
    other = model.streams()
    other.restore(load_tree(tmp_path / "streams"))
    other.add("c")
    assert_close(other.push(["a", "b"], X[:, :, 3:]), expected, "exact")
    single = model.stream()
    single.push(X[0][:, :3])
    kept = single.snapshot()
    once = single.push(X[0][:, 3:])
    single.restore(kept)
    assert_close(single.push(X[0][:, 3:]), once, "exact")
    single.reset()
    assert_close(single.push(X[0]), model.stream().push(X[0]), "exact")


def test_ten_thousand_streams_step_at_once():
    model = predictor()
    table = model.streams()
    table.add(*range(10_000))
    X = series(2, n=10_000)
    answers = [table.push(range(10_000), X[:, :, t]) for t in range(2)]
    assert_close(answers[1][::999], model.predict_proba(X)[::999], "stream")


def test_wrong_pushes_are_named():
    table = predictor().streams()
    table.add("a")
    with pytest.raises(ValueError, match="got 'b'"):
        table.push(["b"], [[0.0, 0.0]])
    with pytest.raises(ValueError, match=r"must be \(1, 2\) or \(1, 2, steps\), one row per stream; got \(1, 3\)"):
        table.push(["a"], [[0.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match="got nan in row 0, channel 1, step 0"):
        table.push(["a"], [[0.0, np.nan]])
    with pytest.raises(ValueError, match="got inf in row 0, channel 0, step 1"):
        table.push(["a"], [[[0.0, np.inf], [0.0, 0.0]]])
    with pytest.raises(ValueError, match=r"must be \(0, 2\)"):
        table.push([], np.zeros((0, 2)))
    with pytest.raises(ValueError, match="'a' again"):
        table.add("a")
    with pytest.raises(ValueError, match="added once; got 'c' again"):
        table.add("c", "c")
    table.drop()
    assert "c" not in table
    with pytest.raises(ValueError, match=r"with ids and state; got \['ids'\]"):
        table.restore({"ids": []})
    with pytest.raises(ValueError, match="named once"):
        table.push(["a", "a"], np.zeros((2, 2)))
    with pytest.raises(ValueError, match="must hold states of shapes"):
        table.restore({"ids": ["x"], "state": []})
    with pytest.raises(ValueError, match="runs forwards only"):
        predictor(bidirectional=True).stream()


# --- samples that come at unequal times ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2}, {"proj_size": 4}, {"backend": "loop"}, {"cell": "unicornn"}]
)
def test_a_stream_takes_the_time_since_the_sample_before(options):
    model, X = predictor(**options), series(7, n=2)
    gaps = np.exp(np.random.default_rng(1).normal(size=(2, 7)))
    u = torch.from_numpy(X.transpose(2, 0, 1))
    with torch.inference_mode():
        whole = model(u, None, None, True, elapsed=torch.from_numpy(gaps.T.copy()))[0].numpy()
        ignored = model(u, None, None, True)[0].numpy()
    stream = model.stream()
    steps = [stream.push(X[0][:, t], elapsed=gaps[0, t]) for t in range(3)]
    chunk = stream.push(X[0][:, 3:], elapsed=gaps[0, 3:])
    assert_close(np.concatenate([np.stack(steps), chunk]), whole[:, 0], "stream")
    table = model.streams()
    table.add("a", "b")
    first = table.push(["a", "b"], X[:, :, 0], elapsed=gaps[:, 0])
    assert_close(first, whole[0], "stream")
    rest = table.push(["a", "b"], X[:, :, 1:], elapsed=gaps[:, 1:])
    assert_close(rest, whole[1:].transpose(1, 0, 2), "stream")
    with pytest.raises(AssertionError):
        assert_close(ignored[:, 0], whole[:, 0], "stream")


def test_elapsed_times_of_a_stream_that_are_refused():
    stream, sample = predictor().stream(), np.zeros(2)
    for wrong in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match=r"`elapsed` of push must be positive and finite; got .* in row 0, step 0"):
            stream.push(sample, elapsed=wrong)
    with pytest.raises(ValueError, match=r"`elapsed` of push must be a number or have shape \(1, 4\)"):
        stream.push(np.zeros((2, 4)), elapsed=np.ones(3))
    with pytest.raises(ValueError, match="`elapsed` of push must be None: LSTMCell has no time step"):
        predictor(cell="lstm").stream().push(sample, elapsed=2.0)
    with pytest.raises(ValueError, match="`dt` <= 1"):
        predictor(dt=1.5).stream().push(sample, elapsed=2.0)
