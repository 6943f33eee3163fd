"""What every cell must do: to register is to be tested."""

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lem.nn.cells import CELLS, Cell, NRDECell
from lem.nn.cells.table import TABLE, rows
from lem.nn.model import SequenceModel
from lem.nn.recurrent import Recurrent, make_cell
from tests.close import assert_close

# Every registered cell on its defaults, and what else of its options changes how it runs.
CASES: dict[str, tuple[str, dict]] = {name: (name, {}) for name in CELLS} | {
    "lstm, two biases": ("lstm", {"two_biases": True}),
    "gru, two biases": ("gru", {"two_biases": True}),
    "rnn, two biases": ("rnn", {"two_biases": True}),
    "rnn, no bias": ("rnn", {"bias": False}),
    "lipschitz, Euler": ("lipschitz", {"solver": "euler"}),
    "exprnn, input bias": ("exprnn", {"input_bias": True}),
    "unicornn, reconstructed": ("unicornn", {"reconstruct": True}),
    "tarnn, two iterations": ("tarnn", {"length": 4, "iterations": 2}),
    "tarnn, gate inside": ("tarnn", {"gate_outside": False}),
    "skiplstm, learned start": ("skiplstm", {"learn_initial_state": True}),
    # Smaller than the defaults, which differ in nothing but the time a test takes.
    "nrde": ("nrde", {"inner_size": 3, "window": 2, "length": 8}),
    "nrde, depth 3": ("nrde", {"inner_size": 2, "window": 3, "depth": 3, "layers": 1, "solver": "midpoint"}),
    "nrde, depth 1": ("nrde", {"inner_size": 3, "window": 1, "depth": 1, "layers": 3}),
}
STRAIGHT_THROUGH = ("skiplstm", "skiplstm, learned start")
"""Their gradient is defined, not derived: see test_skiplstm.py."""
STEPS, BATCH, INPUT, HIDDEN = 7, 3, 2, 4


def build(case, dtype=torch.float64) -> Cell:
    name, options = CASES[case]
    torch.manual_seed(1)
    return make_cell(name, INPUT, HIDDEN, **options, dtype=dtype)


def inputs(steps=STEPS, batch=BATCH, dtype=torch.float64):
    return torch.randn(steps, batch, INPUT, dtype=dtype, generator=torch.Generator().manual_seed(2))


def random_state(cell, batch=BATCH):
    """Return a state the cell can be in: the one after some random input."""
    u = torch.randn(3, batch, INPUT, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        return cell.sequence(u)[1]


@pytest.fixture(params=sorted(CASES))
def name(request):
    return request.param


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_gradients_of_inputs_parameters_and_initial_state(name, check):
    if name in STRAIGHT_THROUGH:
        pytest.skip("a straight-through gradient is not that of the function")
    cell = build(name)
    parameters = dict(cell.named_parameters())
    u, state = inputs(3, 2), random_state(cell, 2)
    for tensor in (u, *state):
        tensor.requires_grad_()

    def run(u, *rest):
        split = len(state)
        named = dict(zip(parameters, rest[split:]))
        call = Sequence(cell)
        given = {f"cell.{key}": value for key, value in named.items()}
        outputs, final = torch.func.functional_call(call, given, (u, cell.state_type(*rest[:split])))
        return (outputs, *final)

    leaves = (u, *state, *parameters.values())
    # The fast mode compares one random direction: enough for the second derivative, which autograd composes.
    fast = check is gradgradcheck or sum(leaf.numel() for leaf in leaves) > 150
    assert check(run, leaves, fast_mode=fast)


class Sequence(torch.nn.Module):
    """A cell's loop as a module's forward, so that functional_call can replace its parameters."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, u, state):
        return self.cell.loop(u, state)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", [None, [7, 1, 4], [3]])
@pytest.mark.parametrize("fresh", [False, True])
def test_sequence_equals_the_loop(name, fresh, lengths, reverse):
    """Where a cell overrides `sequence`, outputs, final state and all gradients are those of the loop."""
    batch = BATCH if lengths is None else len(lengths)
    cell, u = build(name), inputs(batch=batch).requires_grad_()
    state = None if fresh else tuple(s.requires_grad_() for s in random_state(cell, batch))
    lengths = None if lengths is None else torch.tensor(lengths)
    leaves = [u, *(state or ()), *cell.parameters()]
    found = []
    for run in (Cell.sequence, Cell.loop):
        outputs, final = run(cell, u, state, lengths, reverse)
        generator = torch.Generator().manual_seed(4)
        total = sum((s * torch.randn(s.shape, dtype=s.dtype, generator=generator)).sum() for s in (outputs, *final))
        found.append(((outputs, *final), torch.autograd.grad(total, leaves, allow_unused=True)))
    (values, gradients), (values_too, gradients_too) = found
    for a, b in zip(values, values_too):
        assert_close(a, b, "float64")
    for a, b, leaf in zip(gradients, gradients_too, leaves):
        zero = torch.zeros_like(leaf)
        assert_close(zero if a is None else a, zero if b is None else b, "float64 gradient")


def test_later_inputs_do_not_change_earlier_outputs(name):
    cell, u = build(name), inputs()
    changed = u.clone()
    changed[4:] += 1.0
    before, _ = cell.sequence(u)
    after, _ = cell.sequence(changed)
    assert_close(after[:4], before[:4], "exact")
    assert not torch.equal(after[4:], before[4:])


@pytest.mark.parametrize("at", [1, 3, 6])
def test_two_chunks_equal_the_whole(name, at):
    cell, u = build(name), inputs()
    whole, final = cell.sequence(u)
    first, state = cell.sequence(u[:at])
    second, state = cell.sequence(u[at:], state)
    assert_close(torch.cat([first, second]), whole, "float64")
    for a, b in zip(state, final):
        assert_close(a, b, "float64")


def test_rows_do_not_see_each_other(name):
    cell, u = build(name), inputs()
    order = torch.tensor([2, 0, 1])
    outputs, _ = cell.sequence(u)
    permuted, _ = cell.sequence(u[:, order])
    assert_close(permuted, outputs[:, order], "float64")


# Batches of one and lengths of one are shapes of their own: code that broadcasts or looks at a size of 1 differs there.
LENGTHS = {"three rows": [7, 1, 4], "one row": [3], "one row of one step": [1], "all of one step": [1, 1]}


@pytest.mark.parametrize("rows", LENGTHS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_row_of_unequal_length_equals_the_row_alone(name, reverse, rows):
    """Outputs, final state and gradients of each row are those of the row without its padding, which holds NaN."""
    lengths = LENGTHS[rows]
    cell, u = build(name), inputs(batch=len(lengths))
    for row, length in enumerate(lengths):
        u[length:, row] = float("nan")
    u.requires_grad_()
    outputs, final = cell.sequence(u, lengths=torch.tensor(lengths), reverse=reverse)
    (sum(s.sum() for s in final) + outputs.sum()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in cell.parameters())
    for row, length in enumerate(lengths):
        part = u[:length, row : row + 1].detach().requires_grad_()
        alone, state = cell.sequence(part, reverse=reverse)
        (sum(s.sum() for s in state) + alone.sum()).backward()
        assert_close(outputs[:length, row : row + 1], alone, "float64")
        assert not outputs[length:, row].any()
        assert_close(u.grad[:length, row : row + 1], part.grad, "float64 gradient")
        assert not u.grad[length:, row].any()
        for a, b in zip(final, state):
            assert_close(a[row : row + 1], b, "float64")


@pytest.mark.parametrize("rows", LENGTHS)
def test_both_directions_of_a_layer_ignore_the_padding(name, rows):
    """A bidirectional layer gives each row what it gives the row alone, whatever stands in the padding."""
    registered, options = CASES[name]
    lengths = LENGTHS[rows]
    torch.manual_seed(1)
    layer = Recurrent(registered, INPUT, HIDDEN, bidirectional=True, dtype=torch.float64, **options)
    u = inputs(batch=len(lengths))
    for row, length in enumerate(lengths):
        u[length:, row] = float("nan")
    outputs, final = layer(u, lengths=torch.tensor(lengths))
    for row, length in enumerate(lengths):
        alone, state = layer(u[:length, row : row + 1])
        assert_close(outputs[:length, row : row + 1], alone, "float64")
        assert not outputs[length:, row].any()
        for a, b in zip(final, state):
            assert_close(a[:, row : row + 1], b, "float64")


def test_one_step_equals_a_sequence_of_length_one(name):
    cell, u, state = build(name), inputs(1), random_state(build(name))
    outputs, final = cell.sequence(u, state)
    after = cell(u[0], state)
    assert_close(after[0], outputs[0], "float64")
    for a, b in zip(after, final):
        assert_close(a, b, "float64")


def test_all_states_agree_with_the_outputs(name):
    cell, u = build(name), inputs()
    outputs, final = cell.sequence(u)
    states, last = cell.trajectory(u)
    assert_close(states[0], outputs, "float64")
    for field, end, end_too in zip(states, last, final):
        assert_close(field[-1], end, "exact")
        assert_close(end, end_too, "float64")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_type_is_kept(name, dtype):
    outputs, final = build(name, dtype).sequence(inputs(dtype=dtype))
    assert {outputs.dtype, *(s.dtype for s in final)} == {dtype}


def test_copies_compute_the_same(name, tmp_path):
    cell, u = build(name), inputs()
    expected, _ = cell.sequence(u)
    other = build(name)
    torch.manual_seed(9)
    for parameter in other.parameters():
        torch.nn.init.uniform_(parameter, -0.1, 0.1)
    other.load_state_dict(cell.state_dict())
    for copied in (other, copy.deepcopy(cell), pickle.loads(pickle.dumps(cell))):
        assert_close(copied.sequence(u)[0], expected, "exact")


def test_the_seed_decides_the_weights(name):
    first, second = build(name).state_dict(), build(name).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_the_declared_number_of_parameters_is_the_real_one(name):
    """The formula in the table of `lem models` gives what a cell has on its defaults."""
    cell = build(name)
    known = {"d": HIDDEN, "m": INPUT, **vars(cell)}
    if isinstance(cell, NRDECell):
        known["inner_size"] = cell.field[0].out_features
    if CASES[name][1].keys() & {"two_biases", "bias", "input_bias", "learn_initial_state"}:
        pytest.skip("an option that changes the number")
    expected = eval(TABLE[CASES[name][0]].parameters, {}, known)
    assert sum(p.numel() for p in cell.parameters()) == expected


def test_every_cell_is_in_the_table():
    assert list(TABLE) == list(CELLS)
    assert [row[0] for row in rows()] == list(CELLS)


def test_the_documentation_lists_every_cell():
    page = (Path(__file__).parents[3] / "docs/models.md").read_text()
    for name, equation, state, parameters, reference in rows():
        assert f"| `{name}` | {equation} | {state} | {parameters} | {reference} |" in page


def test_layers_and_directions(name):
    """Two layers in both directions, with lengths and packed input; or the reason why not."""
    registered, options = CASES[name]
    u, lengths = inputs(), torch.tensor([7, 1, 4])
    if registered == "nrde":
        with pytest.raises(ValueError, match="width of its state"):
            Recurrent(registered, INPUT, HIDDEN, 2, **options)
        layer = Recurrent(registered, INPUT, HIDDEN, 1, bidirectional=True, dtype=torch.float64, **options)
    else:
        layer = Recurrent(registered, INPUT, HIDDEN, 2, bidirectional=True, dtype=torch.float64, **options)
    outputs, state = layer(u, lengths=lengths)
    packed, state_too = layer(pack_padded_sequence(u, lengths, enforce_sorted=False))
    assert outputs.shape == (STEPS, BATCH, 2 * HIDDEN)
    assert_close(pad_packed_sequence(packed)[0], outputs, "float64")
    for a, b in zip(state, state_too):
        assert_close(a, b, "float64")


def test_training_keeps_the_cell_sound(name):
    """The hooks of training in their order: every parameter is in a group once, learns, and stays finite."""
    cell, u = build(name), inputs()
    groups = cell.param_groups(0.01)
    assert sorted(id(p) for g in groups for p in g["params"]) == sorted(id(p) for p in cell.parameters())
    optimizer = torch.optim.Adam(groups)
    before = [p.detach().clone() for p in cell.parameters()]
    for _ in range(3):
        optimizer.zero_grad()
        outputs, _ = cell.sequence(u)
        penalty = cell.penalty()
        ((outputs - 0.5) ** 2).mean().add(0.0 if penalty is None else penalty).backward()
        optimizer.step()
        cell.after_update()
    assert all(p.isfinite().all() for p in cell.parameters())
    assert sum(not torch.equal(a, b) for a, b in zip(before, cell.parameters())) >= len(before) // 2


@pytest.mark.slow
def test_eight_short_sequences_are_learnt_by_heart(name):
    """Eight random sequences of eight steps, one random target each, to a hundredth of the targets' variance."""
    registered, options = CASES[name]
    torch.manual_seed(5)
    options = {**options, **LEARNING.get(registered, {})}
    model = SequenceModel(registered, INPUT, 32, 1, **options)
    u, target = torch.randn(8, 8, INPUT), torch.randn(8, 1)
    optimizer = torch.optim.Adam(model.param_groups(0.01))
    for _ in range(1500):
        optimizer.zero_grad()
        loss = ((model(u)[0] - target) ** 2).mean()
        penalty = model.penalty()
        (loss if penalty is None else loss + penalty).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.after_update()
        if loss.item() < 0.01 * target.var().item():
            return
    pytest.fail(f"loss {loss.item():.3g} of a variance of {target.var().item():.3g} after 1500 updates")


LEARNING: dict[str, dict] = {
    "antisymmetric": {"epsilon": 0.5},
    "antisymmetric-gated": {"epsilon": 0.5},
    "lipschitz": {"epsilon": 0.5},
    "cornn": {"dt": 0.5, "gamma": 1.0, "epsilon": 1.0},
    "unicornn": {"dt": 0.5},
    "nrde": {"window": 1},
}
"""Steps in keeping with eight inputs: the defaults are for hundreds."""
