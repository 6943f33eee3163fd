"""What every cell must do: to register is to be tested."""

import copy
import pickle

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from lem.cells import CELLS, Cell
from lem.recurrent import make_cell
from tests.close import assert_close

# Options a cell needs to be built at all; everything else runs on its defaults.
NEEDED: dict[str, dict] = {}
STEPS, BATCH, INPUT, HIDDEN = 7, 3, 2, 4


def build(name, dtype=torch.float64, **options) -> Cell:
    torch.manual_seed(1)
    return make_cell(name, INPUT, HIDDEN, **NEEDED.get(name, {}), dtype=dtype, **options)


def inputs(steps=STEPS, batch=BATCH, dtype=torch.float64):
    return torch.randn(steps, batch, INPUT, dtype=dtype, generator=torch.Generator().manual_seed(2))


def random_state(cell, batch=BATCH):
    generator = torch.Generator().manual_seed(3)
    start = cell.init_state(batch)
    return cell.state_type(*(torch.rand(s.shape, dtype=s.dtype, generator=generator) - 0.5 for s in start))


@pytest.fixture(params=sorted(CELLS))
def name(request):
    return request.param


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_gradients_of_inputs_parameters_and_initial_state(name, check):
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

    assert check(run, (u, *state, *parameters.values()))


class Sequence(torch.nn.Module):
    """A cell's loop as a module's forward, so that functional_call can replace its parameters."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, u, state):
        return Cell.sequence(self.cell, u, state)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", [None, [7, 1, 4]])
def test_sequence_equals_the_loop(name, lengths, reverse):
    cell, u = build(name), inputs()
    state = random_state(cell)
    lengths = None if lengths is None else torch.tensor(lengths)
    fused, fused_final = cell.sequence(u, state, lengths, reverse)
    looped, looped_final = Cell.sequence(cell, u, state, lengths, reverse)
    assert_close(fused, looped, "float64")
    for a, b in zip(fused_final, looped_final):
        assert_close(a, b, "float64")


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


@pytest.mark.parametrize("reverse", [False, True])
def test_each_row_of_unequal_lengths_is_what_it_is_alone(name, reverse):
    cell, u, lengths = build(name), inputs(), [7, 1, 4]
    u[1:, 1] = float("nan")  # what stands in the padding must not matter
    outputs, final = cell.sequence(u, lengths=torch.tensor(lengths), reverse=reverse)
    for row, length in enumerate(lengths):
        alone, state = cell.sequence(u[:length, row : row + 1], reverse=reverse)
        assert_close(outputs[:length, row : row + 1], alone, "float64")
        assert not outputs[length:, row].any()
        for a, b in zip(final, state):
            assert_close(a[row : row + 1], b, "float64")


def test_padding_leaves_no_trace_in_the_gradient(name):
    cell, u = build(name), inputs()
    u[4:] = float("nan")
    outputs, _ = cell.sequence(u, lengths=torch.tensor([4, 4, 4]))
    outputs.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in cell.parameters())


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


def test_degrees_of_freedom_do_not_exceed_the_stored_numbers(name):
    cell = build(name)
    assert 0 < cell.degrees_of_freedom() <= sum(p.numel() for p in cell.parameters())
