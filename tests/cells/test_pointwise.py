"""Cells run without a tape: chunk ends, second derivatives, and what must go by the loop instead."""

import subprocess
import sys

import pytest
import torch
from torch.autograd import gradgradcheck

from lem.cells import CELLS, Cell, LSTMCell
from lem.cells import pointwise as module
from lem.cells.pointwise import PointwiseCell
from lem.recurrent import make_cell
from tests.close import assert_close

STEPS, BATCH, INPUT, HIDDEN = 7, 3, 2, 4


def tapeless(cell):
    """Say whether this cell takes the way of `pointwise.py`; of the LSTMs those with scaled gates do."""
    return isinstance(cell, PointwiseCell) and (not isinstance(cell, LSTMCell) or cell.forget_scale != 1.0)


NAMES = [name for name in CELLS if tapeless(make_cell(name, INPUT, HIDDEN))]


@pytest.fixture(params=NAMES)
def cell(request):
    torch.manual_seed(1)
    return make_cell(request.param, INPUT, HIDDEN, dtype=torch.float64)


def leaves(cell, steps=STEPS):
    u = torch.randn(steps, BATCH, INPUT, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return u.requires_grad_(), *cell.parameters()


def values_and_gradients(run, cell, steps=STEPS):
    tensors = leaves(cell, steps)
    outputs, state = run(cell, tensors[0])
    generator = torch.Generator().manual_seed(4)
    total = sum((s * torch.randn(s.shape, dtype=s.dtype, generator=generator)).sum() for s in (outputs, *state))
    gradients = torch.autograd.grad(total, tensors, allow_unused=True, materialize_grads=True)
    return (outputs, *state), gradients


def agree(cell, steps=STEPS):
    values, gradients = values_and_gradients(type(cell).sequence, cell, steps)
    values_too, gradients_too = values_and_gradients(Cell.sequence, cell, steps)
    for a, b in zip(values, values_too):
        assert_close(a, b, "float64")
    for a, b in zip(gradients, gradients_too):
        assert_close(a, b, "float64 gradient")


def test_many_cells_go_this_way():
    assert set(NAMES) >= {"cornn", "exprnn", "dtriv", "nnrnn", "fastrnn", "fastgrnn", "antisymmetric", "dt-lstm-v1"}


@pytest.mark.parametrize("chunk", [1, 3, STEPS])
def test_chunks_of_the_backward_pass_join(cell, chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    agree(cell)


def test_a_sequence_longer_than_one_chunk(cell):
    agree(cell, module.CHUNK + 2)


def test_a_chunk_that_forgets_the_one_before_it_is_caught(cell, monkeypatch):
    pull = module._pull

    def forgetful(*arguments):
        d_state, rest = pull(*arguments)
        return [torch.zeros_like(d) for d in d_state], rest

    monkeypatch.setattr(module, "CHUNK", 3)
    monkeypatch.setattr(module, "_pull", forgetful)
    with pytest.raises(AssertionError):
        agree(cell)


def test_second_derivatives(cell):
    parameters = dict(cell.named_parameters())
    u = torch.randn(3, 2, INPUT, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def forward(self, u):
            return self.cell.sequence(u)

    def run(u, *values):
        outputs, state = torch.func.functional_call(Whole(), {f"cell.{k}": v for k, v in zip(parameters, values)}, (u,))
        return (outputs, *state)

    assert gradgradcheck(run, (u, *parameters.values()), fast_mode=True)


def test_second_derivatives_are_those_of_the_loop(cell):
    found = []
    for run in (type(cell).sequence, Cell.sequence):
        tensors = leaves(cell)
        outputs, _ = run(cell, tensors[0])
        first = torch.autograd.grad(outputs.square().sum(), tensors[0], create_graph=True)[0]
        found.append(torch.autograd.grad(first.square().sum(), tensors, allow_unused=True, materialize_grads=True))
    for a, b in zip(*found):
        assert_close(a, b, "float64 gradient")


def test_functional_transforms_go_by_the_loop(cell):
    u = leaves(cell)[0].detach()
    gradient = torch.func.grad(lambda u: cell.sequence(u)[0].square().sum())(u)
    whole = u.clone().requires_grad_()
    expected = torch.autograd.grad(Cell.sequence(cell, whole)[0].square().sum(), whole)[0]
    assert_close(gradient, expected, "float64 gradient")
    rows = torch.func.vmap(lambda row: cell.sequence(row[:, None])[0][:, 0], in_dims=1, out_dims=1)(u)
    assert_close(rows, cell.sequence(u)[0], "float64")


def test_autocast_goes_by_the_loop(cell):
    cell, u = cell.float(), leaves(cell)[0].detach().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, _ = cell.sequence(u)
        expected, _ = Cell.sequence(cell, u)
    assert outputs.dtype == expected.dtype
    assert_close(outputs.float(), expected.float(), "exact")
    assert not torch.equal(outputs.float(), cell.sequence(u)[0])


COMPILED = """
import torch
from lem.recurrent import make_cell
cell, u = make_cell("cornn", 2, 4), torch.randn(7, 3, 2)
compiled = torch.compile(lambda u: cell.sequence(u)[0], backend="aot_eager", fullgraph=True)
torch.testing.assert_close(compiled(u), cell.sequence(u)[0])
"""


def test_compilation_goes_by_the_loop():
    """In a process of its own: the checks of shapes that tests run under cannot be compiled."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True)
