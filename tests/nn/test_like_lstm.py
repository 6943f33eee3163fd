"""What programs written for nn.LSTM use of a layer besides the call, each checked side by side with nn.LSTM."""

import warnings

import numpy as np
import pytest
import torch
from torch import fx, nn
from torch.nn import utils
from torch.nn.utils import prune

from lem import LEM, LEMCell, Recurrent
from tests.close import assert_close

M, D = 3, 5
BOTH = pytest.mark.parametrize("kind", [nn.LSTM, LEM])


@pytest.mark.parametrize("proj_size", [0, 2])
@pytest.mark.parametrize("batch_first", [False, True])
def test_attributes_and_checks_are_those_of_nn_lstm(proj_size, batch_first):
    options = {"num_layers": 2, "bidirectional": True, "proj_size": proj_size, "batch_first": batch_first}
    ours, theirs = LEM(M, D, **options), nn.LSTM(M, D, **options)
    for name in ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.proj_size == theirs.proj_size
    assert len(ours.all_weights) == len(theirs.all_weights) == 4
    assert {id(w) for each in ours.all_weights for w in each} == {id(p) for p in ours.parameters()}
    assert ours.mode == "LEM"
    assert ours.flatten_parameters() is None
    u, sizes = torch.randn(4, 6, M), torch.tensor([3, 1])
    for which in ("get_expected_hidden_size", "get_expected_cell_size"):
        assert getattr(ours, which)(u, None) == getattr(theirs, which)(u, None)
        assert getattr(ours, which)(u, sizes) == getattr(theirs, which)(u, sizes)
    expected = ours.get_expected_hidden_size(u, None), ours.get_expected_cell_size(u, None)
    state = tuple(torch.randn(shape) for shape in expected)
    order = torch.randperm(expected[0][1])
    for layer in (ours, theirs):
        layer.check_forward_args(u, state, None)
        for a, b in zip(layer.permute_hidden(state, order), state):
            assert torch.equal(a, b[:, order])
        assert layer.permute_hidden(state, None) is state
        for wrong in (
            lambda m: m.check_input(torch.randn(4, 6, M + 1), None),
            lambda m: m.check_input(torch.randn(4, M), None),
            lambda m: m.check_input(torch.randn(4, 6, M), sizes),
            lambda m: m.check_hidden_size(state[0][:, 1:], expected[0]),
            lambda m: m.check_forward_args(u, (state[0], state[1][1:]), None),
            lambda m: m.check_forward_args(u, (state[0][..., 1:], state[1]), None),
        ):
            with pytest.raises(RuntimeError, match=r"must have|must be equal|Expected hidden"):
                wrong(layer)


def test_a_permuted_state_keeps_its_type():
    layer = LEM(M, D)
    _, state = layer(torch.randn(4, 2, M))
    assert layer.permute_hidden(state, torch.tensor([1, 0])).y.shape == state.y.shape


WRONG = {
    "batch of the state": lambda m: m(torch.zeros(6, 7, M), (torch.zeros(1, 4, D), torch.zeros(1, 4, D))),
    "batch of h": lambda m: m(torch.zeros(6, 4, M), (torch.zeros(1, 7, D), torch.zeros(1, 4, D))),
    "batch of c": lambda m: m(torch.zeros(6, 4, M), (torch.zeros(1, 4, D), torch.zeros(1, 7, D))),
    "channels": lambda m: m(torch.zeros(6, 4, 7)),
    "units": lambda m: m(torch.zeros(6, 4, M), (torch.zeros(1, 4, 7), torch.zeros(1, 4, 7))),
    "layers": lambda m: m(torch.zeros(6, 4, M), (torch.zeros(7, 4, D), torch.zeros(7, 4, D))),
    "no steps": lambda m: m(torch.zeros(0, 4, M)),
    "axes of the state": lambda m: m(torch.zeros(6, 4, M), (torch.zeros(1, D), torch.zeros(1, D))),
    "axes": lambda m: m(torch.zeros(6, 4, 2, M)),
    "type": lambda m: m(torch.zeros(6, 4, M, dtype=torch.float64)),
    "no units": lambda m: type(m)(M, 0),
    "no layers": lambda m: type(m)(M, D, 0),
    "no inputs": lambda m: type(m)(0, D),
    "negative inputs": lambda m: type(m)(-1, D),
    "inputs of a type": lambda m: type(m)(3.0, D),
    "units of a type": lambda m: type(m)(M, "5"),
    "bias": lambda m: type(m)(M, D, bias=1),
    "batch first": lambda m: type(m)(M, D, batch_first="False"),
    "projection": lambda m: type(m)(M, D, proj_size=D),
    "negative projection": lambda m: type(m)(M, D, proj_size=-1),
    "dropout": lambda m: type(m)(M, D, dropout=1.5),
    "dropout as a flag": lambda m: type(m)(M, D, dropout=True),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_handler_of_nn_lstms_exception_catches_ours(mistake):
    with pytest.raises((ValueError, RuntimeError, TypeError)) as theirs:
        WRONG[mistake](nn.LSTM(M, D))
    with pytest.raises(type(theirs.value)) as ours:
        WRONG[mistake](LEM(M, D))
    assert isinstance(ours.value, ValueError)  # what this library raises for a wrong argument everywhere else


CELL = {
    "channels": lambda m: m(torch.zeros(4, 7)),
    "units": lambda m: m(torch.zeros(4, M), (torch.zeros(4, 7), torch.zeros(4, 7))),
    "batch": lambda m: m(torch.zeros(4, M), (torch.zeros(2, D), torch.zeros(2, D))),
    "axes": lambda m: m(torch.zeros(4, M), (torch.zeros(4, 1, 1, D), torch.zeros(4, 1, 1, D))),
}


@pytest.mark.parametrize("mistake", CELL)
def test_the_cell_raises_what_nn_lstm_cell_raises(mistake):
    with pytest.raises((ValueError, RuntimeError)) as theirs:
        CELL[mistake](nn.LSTMCell(M, D))
    with pytest.raises(type(theirs.value)) as ours:
        CELL[mistake](LEMCell(M, D))
    assert isinstance(ours.value, ValueError)


def test_numpy_numbers_are_numbers():
    layer = LEM(np.int64(M), np.int32(D), np.int64(2), dropout=np.float32(0.5), proj_size=np.int16(2))
    assert [type(n) for n in (layer.input_size, layer.hidden_size, layer.num_layers, layer.proj_size)] == [int] * 4
    assert type(layer.dropout) is float
    assert layer(torch.randn(4, 2, M))[0].shape == (4, 2, 2)


@BOTH
def test_a_dropout_of_one_and_dropout_that_is_changed(kind):
    layer, u = kind(M, D, 2, dropout=1.0), torch.randn(6, 2, M)
    outputs, _ = layer(u)
    assert outputs.isfinite().all()
    layer.eval()
    assert not torch.equal(layer(u)[0], outputs)
    layer.train()
    layer.dropout = 0.0
    assert torch.equal(layer(u)[0], layer(u)[0])


def test_a_shared_dropout_of_one_drops_all():
    layer = LEM(M, D, 2, dropout=1.0, shared_dropout=True)
    assert not layer._drop(torch.ones(4, 2, D)).any()


@BOTH
def test_dropout_of_one_layer_warns(kind):
    with pytest.warns(UserWarning, match="dropout"):
        kind(M, D, dropout=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kind(M, D, 2, dropout=0.5)


@BOTH
def test_no_rows(kind):
    layer = kind(M, D)
    outputs, _ = layer(torch.zeros(5, 0, M))
    assert outputs.shape == (5, 0, D)
    outputs.sum().backward()


@BOTH
def test_gradients_of_a_retained_graph_repeat(kind):
    layer = kind(M, D, 2)
    outputs, _ = layer(torch.randn(4, 2, M))
    found = []
    for _ in range(3):
        layer.zero_grad()
        outputs.sum().backward(retain_graph=True)
        found.append([p.grad.clone() for p in layer.parameters()])
    for again in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(again, found[0]))


@pytest.mark.parametrize("kind", [nn.LSTMCell, LEMCell])
def test_a_cell_with_the_gradient_of_one_field(kind):
    cell = kind(M, D)
    for k in range(2):
        u = torch.randn(2, M, requires_grad=True)
        cell(u)[k].sum().backward()
        assert u.grad.abs().sum() > 0


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn = kind(M, D, 2, batch_first=True)
        self.out = nn.Linear(D, 2)

    def forward(self, x):
        outputs, (h, _) = self.rnn(x)
        return self.out(outputs[:, -1] + h[-1])


@BOTH
def test_fx_takes_the_layer_as_a_leaf(kind):
    model, x = Model(kind), torch.randn(2, 6, M)
    traced = fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["rnn", "out"]
    assert_close(traced(x), model(x), "exact")
    assert_close(traced(x[:, :3]), model(x[:, :3]), "exact")


def test_fx_records_the_state_and_lengths():
    class WithState(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = LEM(M, D)

        def forward(self, x, y, z, n):
            return self.rnn(x, (y, z), n)[0]

    model = WithState()
    given = torch.randn(6, 2, M), torch.randn(1, 2, D), torch.randn(1, 2, D), torch.tensor([6, 2])
    assert_close(fx.symbolic_trace(model)(*given), model(*given), "exact")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@BOTH
def test_a_trace_runs_other_lengths_and_has_gradients(kind, shapes_unchecked):
    model, x = Model(kind), torch.randn(2, 6, M)
    traced = torch.jit.trace(model, (x,))  # checks the trace without gradients, too
    other = torch.randn(3, 11, M)
    assert_close(traced(other), model(other), "exact")
    with torch.no_grad():
        assert_close(traced(other), model(other), "exact")
    model.zero_grad()
    model(other).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    traced(other).sum().backward()
    for p, e in zip(model.parameters(), expected):
        assert_close(p.grad, e, "float32 gradient")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per")
def test_quantization_is_refused_in_words():
    quantize = pytest.importorskip("torch.ao.quantization").quantize_dynamic
    with pytest.warns(UserWarning, match="LEM stays in floating point"):
        quantized = quantize(Model(LEM).eval(), dtype=torch.qint8)
    assert isinstance(quantized.rnn, LEM)
    with pytest.raises(NotImplementedError, match="LEM cannot be quantized"):
        quantize(Model(LEM).eval(), {LEM}, dtype=torch.qint8)
    assert not hasattr(LEM(M, D), "qconfig")


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("kind", ["weight norm", "parametrization", "pruning"])
def test_weights_are_reparametrised_by_cell(kind):
    layer, u = LEM(M, D, 2), torch.randn(4, 2, M)
    cell, expected, names = layer.cells[0], layer(u)[0].detach(), set(dict(layer.named_parameters()))
    if kind == "pruning":
        prune.l1_unstructured(cell, "weight_u", 0.5)
        assert (cell.weight_u == 0).sum() == cell.weight_u.numel() // 2
    else:
        {"weight norm": utils.weight_norm, "parametrization": utils.parametrizations.weight_norm}[kind](
            cell, "weight_u"
        )
        assert_close(layer(u)[0], expected, "float32")
    assert set(dict(layer.named_parameters())) != names
    outputs, _ = layer(u)
    outputs.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    if kind == "pruning":
        prune.remove(cell, "weight_u")
    elif kind == "weight norm":
        utils.remove_weight_norm(cell, "weight_u")
    else:
        utils.parametrize.remove_parametrizations(cell, "weight_u")
    assert set(dict(layer.named_parameters())) == names
    assert_close(layer(u)[0], outputs, "float32")


def test_names_of_initialisation_code():
    """The documented mapping: weight_ih is weight_u; weight_hh is weight_y and weight_z; biases are called bias."""
    names = {name.rsplit(".", 1)[1] for name, _ in LEM(M, D, 2).named_parameters()}
    assert names == {"weight_u", "weight_y", "weight_z", "bias"}


def test_every_cell_of_the_zoo_has_the_interface():
    layer = Recurrent("gru", M, D, 2)
    assert layer.mode == "Recurrent"
    assert len(layer.all_weights) == 2
    assert layer.get_expected_hidden_size(torch.randn(4, 2, M), None) == (2, 2, D)
