"""The layer: nn.LSTM's shapes, packed and unequal input, and what users of nn.LSTM do with a layer."""

import copy
import inspect
import itertools
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from lem import LEM, LEMCell, Recurrent
from tests.close import assert_close

M, D = 3, 5
GRID = list(itertools.product([1, 2, 3], [False, True], [False, True], [True, False]))


def layer(seed=0, **options):
    torch.manual_seed(seed)
    return LEM(M, D, dtype=torch.float64, **options)


def shapes(outputs, state):
    data = outputs.data if isinstance(outputs, PackedSequence) else outputs
    return [tuple(data.shape), *(tuple(s.shape) for s in state)]


@pytest.mark.parametrize(("num_layers", "bidirectional", "batch_first", "bias"), GRID)
@pytest.mark.parametrize("form", ["batched", "unbatched", "sorted", "unsorted"])
@pytest.mark.parametrize("with_state", [False, True])
def test_shapes_are_those_of_nn_lstm(num_layers, bidirectional, batch_first, bias, form, with_state):
    arguments = (M, D, num_layers, bias, batch_first, 0.0, bidirectional)  # nn.LSTM's, in nn.LSTM's order
    ours, theirs = LEM(*arguments), nn.LSTM(*arguments)
    rows = [torch.randn(t, M) for t in ((6, 4, 1) if form != "unsorted" else (4, 1, 6))]
    batch = 3
    if form == "unbatched":
        u, batch = rows[0], None
    elif form == "batched":
        u = torch.randn((3, 6, M) if batch_first else (6, 3, M))
    else:
        u = pack_sequence(rows, enforce_sorted=form == "sorted")
    shape = (num_layers * (2 if bidirectional else 1), *([] if batch is None else [batch]), D)
    state = (torch.randn(shape), torch.randn(shape)) if with_state else None
    got, expected = ours(u, state), theirs(u, state)
    assert shapes(*got) == shapes(*expected)
    if isinstance(u, PackedSequence):
        for field in ("batch_sizes", "sorted_indices", "unsorted_indices"):
            a, b = getattr(got[0], field), getattr(expected[0], field)
            assert (a is None and b is None) or torch.equal(a, b)


def test_defaults_are_those_of_nn_lstm_and_of_the_cell():
    ours, cell = inspect.signature(LEM).parameters, inspect.signature(LEMCell).parameters
    lstm = nn.LSTM(M, D)
    for name in ("num_layers", "bias", "batch_first", "dropout", "bidirectional"):
        assert ours[name].default == getattr(lstm, name), name
        assert inspect.signature(Recurrent).parameters[name].default == getattr(lstm, name), name
    shared = set(ours) & set(cell) - {"input_size", "hidden_size"}
    assert {"dt", "single_scale", "clip", "t_max", "initial_dt", "state_dropout", "backend", "memory"} <= shared
    assert all(ours[name].default == cell[name].default for name in shared)


def test_the_cell_has_the_shapes_of_nn_lstm_cell():
    for ours, theirs in ((LEMCell(M, D), nn.LSTMCell(M, D)), (LEMCell(M, D, False), nn.LSTMCell(M, D, False))):
        for u in (torch.randn(4, M), torch.randn(M)):
            for state in (None, tuple(torch.randn(2, *u.shape[:-1], D))):
                assert [s.shape for s in ours(u, state)] == [s.shape for s in theirs(u, state)]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_packed_rows_are_what_they_are_alone(bidirectional, enforce_sorted):
    model = layer(num_layers=2, bidirectional=bidirectional)
    lengths = [7, 4, 1] if enforce_sorted else [4, 7, 1]
    rows = [torch.randn(t, M, dtype=torch.float64) for t in lengths]
    start = tuple(torch.randn(2, 4 if bidirectional else 2, 3, D, dtype=torch.float64))
    packed, state = model(pack_sequence(rows, enforce_sorted=enforce_sorted), start)
    outputs, got = pad_packed_sequence(packed)
    assert got.tolist() == lengths
    for i, row in enumerate(rows):
        alone, final = model(row, tuple(s[:, i] for s in start))
        assert_close(outputs[: len(row), i], alone, "float64")
        assert_close(state.y[:, i], final.y, "float64")
        assert_close(state.z[:, i], final.z, "float64")


@pytest.mark.parametrize("batch_first", [False, True])
def test_lengths_equal_packing(batch_first):
    model = layer(num_layers=2, bidirectional=True, batch_first=batch_first)
    lengths = torch.tensor([2, 6, 3])
    u = torch.randn((3, 6, M) if batch_first else (6, 3, M), dtype=torch.float64)
    outputs, state = model(u, lengths=lengths)
    packed, expected = model(pack_padded_sequence(u, lengths, batch_first, enforce_sorted=False))
    assert_close(outputs, pad_packed_sequence(packed, batch_first)[0], "float64")
    assert_close(state.y, expected.y, "float64")
    assert_close(state.z, expected.z, "float64")


def test_backward_direction_is_the_forward_one_on_reversed_time():
    both, one = layer(bidirectional=True), layer()
    one.cells[0].load_state_dict(both.cells[1].state_dict())
    u = torch.randn(8, 2, M, dtype=torch.float64)
    outputs, state = both(u)
    expected, final = one(u.flip(0))
    assert_close(outputs[:, :, D:], expected.flip(0), "float64")
    assert_close(state.y[1], final.y[0], "float64")


@pytest.mark.parametrize("shape", [(9, 2, M), (9, M)])
def test_trajectory_holds_every_state_of_every_layer(shape):
    model, u = layer(num_layers=2, bidirectional=True), torch.randn(shape, dtype=torch.float64)
    outputs, final = model(u)
    states = model.trajectory(u)
    assert states.y.shape == (4, *shape[:-1], D)
    assert_close(torch.cat([states.y[2], states.y[3]], dim=-1), outputs, "float64")
    for layer_index in (0, 2):
        assert_close(states.z[layer_index, -1], final.z[layer_index], "float64")
        assert_close(states.z[layer_index + 1, 0], final.z[layer_index + 1], "float64")


def test_dropout_acts_between_layers_in_training_only():
    model = layer(num_layers=2, dropout=0.5)
    u = torch.randn(4, 2, M, dtype=torch.float64)
    assert not torch.equal(model(u)[0], model(u)[0])
    model.eval()
    assert torch.equal(model(u)[0], model(u)[0])
    with pytest.warns(UserWarning, match=r"dropout=0.5 of LEM has no effect with num_layers=1"):
        single = layer(num_layers=1, dropout=0.5)
    assert torch.equal(single(u)[0], single(u)[0])


def test_shared_dropout_uses_one_mask_for_all_steps():
    model = layer(num_layers=2, dropout=0.5, shared_dropout=True)
    dropped = model._drop(torch.ones(6, 4, D, dtype=torch.float64))
    assert torch.equal(dropped, dropped[:1].expand_as(dropped))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}


def test_ways_of_copying_and_calling():
    model, u = layer(num_layers=2, bidirectional=True), torch.randn(5, 2, M, dtype=torch.float64)
    expected = model(u)[0]
    other = layer(seed=1, num_layers=2, bidirectional=True)
    other.load_state_dict(model.state_dict())
    for same in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(same(u)[0], expected)
    called = torch.func.functional_call(
        layer(seed=2, num_layers=2, bidirectional=True), dict(model.named_parameters()), u
    )
    assert torch.equal(called[0], expected)
    assert_close(copy.deepcopy(model).to(torch.float32)(u.float())[0], expected, "float32")


def test_half_precision_and_autocast():
    model, u = LEM(M, D), torch.randn(10, 2, M)
    expected, _ = model(u)
    assert_close(copy.deepcopy(model).to(torch.bfloat16)(u.bfloat16())[0], expected, "bfloat16")
    with torch.autocast("cpu", torch.bfloat16):
        outputs, _ = model(u)
        outputs.sum().backward()
    assert_close(outputs, expected, "bfloat16")
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_code_written_for_nn_lstm_runs_with_one_word_changed():
    class Tagger(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.rnn = layer(4, 6, num_layers=2, batch_first=True, dropout=0.1, bidirectional=True)
            self.out = nn.Linear(12, 2)

        def forward(self, x):
            self.rnn.flatten_parameters()
            outputs, (h, c) = self.rnn(x, tuple(torch.zeros(2, 4, len(x), 6)))
            return self.out(outputs), h, c

    results = [Tagger(layer)(torch.randn(3, 7, 4)) for layer in (nn.LSTM, LEM)]
    assert [r.shape for r in results[0]] == [r.shape for r in results[1]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m(torch.zeros(5)), r"`input` of LEM must have shape \(time, batch, 3\)"),
        (lambda m: m(torch.zeros(5, 2, 4)), r"got \(5, 2, 4\)"),
        (lambda m: m(torch.zeros(0, 2, 3)), "at least one time step"),
        (lambda m: m(torch.zeros(5, 2, 3), tuple(torch.zeros(2, 1, 3, D))), "`hx` .* must have shapes"),
        (lambda m: m(torch.zeros(5, 2, 3), (torch.zeros(1, 2, D),)), "`hx` .* must have shapes"),
        (lambda m: m(torch.zeros(5, 2, 3), lengths=torch.tensor([0, 5])), r"lie in \[1, 5\].*got 0 in row 0"),
        (lambda m: m(torch.zeros(5, 2, 3), lengths=torch.tensor([5, 6])), "got 6 in row 1"),
        (lambda m: m(torch.zeros(5, 2, 3), lengths=torch.tensor([5])), r"1-D tensor of 2 integers"),
        (lambda m: m(torch.zeros(5, 2, 3), lengths=torch.tensor([5.0, 5.0])), r"got torch.float32"),
        (lambda m: m(pack_sequence([torch.zeros(2, 3)]), lengths=torch.tensor([2])), "must be None for a Packed"),
    ],
)
def test_bad_calls(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(LEM(M, D))


def test_bad_constructions():
    with pytest.raises(
        ValueError, match=r"`cell` must be a Cell subclass or one of .*; got 'lme'. Did you mean 'lem'\?"
    ):
        Recurrent("lme", 2, 3)
    with pytest.raises(TypeError, match=r"`dtt` is not an option of cell 'lem'.*Did you mean 'dt'\?"):
        Recurrent("lem", 2, 3, dtt=0.5)
    with pytest.raises(ValueError, match="num_layers must be greater than zero"):
        LEM(2, 3, 0)
    with pytest.raises(ValueError, match=r"dropout should be a number in range \[0, 1\]"):
        LEM(2, 3, dropout=1.5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda u: ([[1.0]],), TypeError, "`input` of LEM must be a tensor or a PackedSequence; got list"),
        (lambda u: (u.float(),), ValueError, "must be torch.float64 on cpu, as its weights; got torch.float32 on cpu"),
        (lambda u: (u.to("meta"),), ValueError, r"got torch.float64 on meta. Call .to\('cpu', torch.float64\) on it"),
        (lambda u: (u, (torch.zeros(1, 2, D),) * 2), ValueError, "`hx` of LEM must be torch.float64"),
        (lambda u: (u, "ab"), ValueError, r"must have shapes .* got \['str', 'str'\]"),
        (lambda u: (u, None, [4, 2]), TypeError, "`lengths` of LEM must be a 1-D tensor of 2 integers; got list"),
    ],
)
def test_what_is_no_such_tensor_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        layer()(*arguments(torch.randn(4, 2, M, dtype=torch.float64)))


def test_autocast_converts():
    with torch.autocast("cpu", torch.bfloat16):
        outputs, _ = LEM(M, D)(torch.randn(4, 2, M).bfloat16())
    assert outputs.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dt": True}, "`dt` of LEMCell must be a number"),
        ({"clip": 0.5}, "`clip` of LEMCell must be"),
        ({"clip": ("a", "b")}, "`clip` of LEMCell must be"),
        ({"dropout": "x"}, r"dropout should be a number in range \[0, 1\]"),
        ({"num_layers": True}, r"num_layers should be of type int, got: bool \(LEM got True\)"),
    ],
)
def test_options_of_other_types_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LEM(M, D, **options)
    with pytest.raises(ValueError, match="one entry for each of 1 layers; got 5"):
        Recurrent("lem", M, D, layer_options=5)
    with pytest.raises(ValueError, match="`cell` must be a Cell subclass or one of"):
        Recurrent(torch.nn.LSTMCell, M, D)


@pytest.mark.parametrize("name", ["lem", "lstm", "gru", "skiplstm"])
def test_states_are_saved_and_loaded_by_torch(name, tmp_path):
    _, state = Recurrent(name, M, D)(torch.randn(4, 2, M))
    torch.save(state, tmp_path / "state.pt")
    again = torch.load(tmp_path / "state.pt", weights_only=True)
    assert type(again) is type(state)
    for a, b in zip(again, state):
        assert_close(a, b, "exact")


def test_an_exported_program_that_returns_a_state_is_saved_and_loaded(tmp_path):
    layer, u = LEM(M, D).eval(), torch.randn(4, 2, M)
    with torch.no_grad():
        torch.export.save(torch.export.export(layer, (u,)), tmp_path / "layer.pt2")
        outputs, state = torch.export.load(tmp_path / "layer.pt2").module()(u)
        expected, _ = layer(u)
    assert_close(outputs, expected, "float32")
    assert type(state).__name__ == "LEMState"


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.float32])
def test_lengths_of_types_that_torch_cannot_compare_are_refused(dtype):
    with pytest.raises(ValueError, match=r"`lengths` of .* must be a 1-D tensor of 2 integers, such as int64; got"):
        Recurrent("gru", 2, 3)(torch.randn(5, 2, 2), None, torch.tensor([1, 1]).to(dtype))
