"""Restarts inside a sequence: every cell equals its pieces run alone."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck

from lem import LEM, LEMCell
from lem.nn.cells import Cell
from lem.nn.cells.timing import seen_by_steps
from lem.nn.recurrent import Recurrent
from tests import paper
from tests.close import assert_close
from tests.nn.cells.test_conformance import CASES, HIDDEN, INPUT
from tests.nn.cells.test_conformance import build as build_case
from tests.nn.cells.weights import paper_weights

STEPS = 9
LENGTHS = torch.tensor([9, 6, 1])
STARTS = [[0, 3, 4], [2, 5], [0]]  # where pieces begin, row by row; a row whose first is not 0 begins from `hx`
BATCH = len(STARTS)


def resets():
    flags = torch.zeros(STEPS, BATCH, dtype=torch.bool)
    for row, starts in enumerate(STARTS):
        flags[starts, row] = True
    return flags


def draw(*shape, dtype=torch.float64, seed=2):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def gaps(dtype=torch.float64):
    return torch.exp(draw(STEPS, BATCH, seed=6).clamp(-2, 2)).to(dtype)


def pieces(row, reverse):
    """The pieces of a row as (first, last, whether it begins from the given state), in the order in which they run."""
    length, starts = int(LENGTHS[row]), STARTS[row]
    edges = sorted({0, *starts, length})
    found = [(a, b, a not in starts) for a, b in itertools.pairwise(edges)]
    if reverse:  # the last piece is run first, from the given state
        return [(a, b, b == length) for a, b, _ in found][::-1]
    return found


def run_pieces(cell, u, state, reverse, elapsed=None):
    """Run each piece of each row alone; return outputs and final states."""
    outputs = torch.zeros(STEPS, BATCH, cell.state_sizes[0], dtype=u.dtype)
    finals = []
    for row in range(BATCH):
        for first, last, given in pieces(row, reverse):
            start = cell.state_type(*(s[row : row + 1] for s in state)) if given else None
            timing = {} if elapsed is None else {"elapsed": elapsed[first:last, row : row + 1]}
            out, final = cell.sequence(u[first:last, row : row + 1], start, None, reverse, **timing)
            outputs[first:last, row] = out[:, 0]
        finals.append(final)
    return outputs, cell.state_type(*(torch.cat(field) for field in zip(*finals)))


def compare(cell, reverse, elapsed=None, kind="exact"):
    u = draw(STEPS, BATCH, INPUT, dtype=next(cell.parameters()).dtype)
    with torch.no_grad():
        state = cell.sequence(draw(3, BATCH, INPUT, dtype=u.dtype, seed=3))[1]
        timing = {} if elapsed is None else {"elapsed": elapsed.to(u.dtype)}
        outputs, final = cell.sequence(u, state, LENGTHS, reverse, resets=resets(), **timing)
        alone, alone_final = run_pieces(cell, u, state, reverse, timing.get("elapsed"))
    assert_close(outputs, alone, kind)
    for a, b in zip(final, alone_final):
        assert_close(a, b, kind)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("case", sorted(CASES))
def test_every_cell_equals_its_pieces(case, reverse):
    # Other kernels and other batches round differently; LEM, below, is equal to the bit.
    compare(build_case(case), reverse, kind="float64")


VARIANTS = {
    "plain": {},
    "single scale": {"single_scale": True},
    "clipped": {"clip": (0.2, 0.6)},
    "learned start": {"learn_initial_state": True},
    "proj": {"proj_size": 3},
}


def build(backend="native", dtype=torch.float64, kind=LEMCell, **options):
    torch.manual_seed(1)
    cell = kind(INPUT, HIDDEN, dt=0.9, backend=backend, dtype=dtype, **options)
    with torch.no_grad():
        for p in cell.parameters():
            p.mul_(2.0).add_(0.1)
    return cell


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kernel_equals_its_pieces_to_the_bit(dtype, variant, reverse, timed):
    compare(build(dtype=dtype, **VARIANTS[variant]), reverse, gaps() if timed else None)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_loop_equals_its_pieces(variant, reverse):
    compare(build("loop", **VARIANTS[variant]), reverse, gaps(), "float64")


class RestartsAfter(LEMCell):
    def sequence(self, u, state=None, lengths=None, reverse=False, elapsed=None, resets=None):
        late = torch.cat([torch.zeros_like(resets[:1]), resets[:-1]])
        return super().sequence(u, state, lengths, reverse, elapsed, late)


class RestartsFromTheGivenState(LEMCell):
    def sequence(self, u, state=None, lengths=None, reverse=False, elapsed=None, resets=None):
        if state is not None:
            self.init_state = lambda batch: state
        return super().sequence(u, state, lengths, reverse, elapsed, resets)


@pytest.mark.parametrize("twin", [RestartsAfter, RestartsFromTheGivenState])
def test_broken_twins_are_caught(twin):
    cell = build("loop", kind=twin)
    whole = cell.sequence

    def sequence(u, state=None, lengths=None, reverse=False, elapsed=None, resets=None):
        if resets is None:
            return Cell.loop(build("loop"), u, state, lengths, reverse, elapsed)
        return whole(u, state, lengths, reverse, elapsed, resets)

    cell.sequence = sequence
    with pytest.raises(AssertionError):
        compare(cell, False, kind="float64")


@pytest.mark.parametrize("backend", ["loop", "native"])
@pytest.mark.parametrize("variant", ["plain", "learned start", "single scale", "proj"])
@pytest.mark.parametrize("reverse", [False, True])
def test_equal_to_the_transcription(backend, variant, reverse):
    cell, u, elapsed = build(backend, **VARIANTS[variant]), draw(STEPS, BATCH, INPUT), gaps()
    state = cell.state_type(*(draw(BATCH, size, seed=4) for size in cell.state_sizes))
    outputs, _ = cell.sequence(u, state, LENGTHS, reverse, elapsed=elapsed, resets=resets())
    first = [s[0].detach().numpy() for s in cell.init_state(1)]
    for row, length in enumerate(LENGTHS.tolist()):
        inputs, e = u[:length, row].numpy(), elapsed[:length, row].numpy().copy()
        starts = STARTS[row]
        if reverse:
            e = [1.0, *(1.0 if t in starts else float(e[t]) for t in range(length - 1, 0, -1))]
            starts = [length - t for t in starts if t > 0]
        expected, _ = paper.lem(
            paper_weights(cell), inputs[::-1] if reverse else inputs, state[0][row].numpy(), state[1][row].numpy(),
            cell.dt, cell.clip, cell.single_scale, elapsed=e, restarts=starts, start=first,
        )  # fmt: skip
        assert_close(outputs[:length, row], expected[::-1].copy() if reverse else expected, "float64")


@pytest.mark.parametrize("backend", ["loop", "native"])
@pytest.mark.parametrize("reverse", [False, True])
def test_no_gradient_crosses(backend, reverse):
    cell = build(backend)
    flags = torch.zeros(6, 1, dtype=torch.bool)
    flags[3] = True
    u = draw(6, 1, INPUT).requires_grad_()
    state = tuple(draw(1, HIDDEN, seed=s).requires_grad_() for s in (4, 5))
    outputs, _ = cell.sequence(u, cell.state_type(*state), None, reverse, resets=flags)
    late = outputs[:3] if reverse else outputs[3:]
    grad_u, *grad_state = torch.autograd.grad(late.sum(), (u, *state), materialize_grads=True)
    other = grad_u[3:] if reverse else grad_u[:3]
    assert not other.any()
    assert not any(g.any() for g in grad_state)
    assert grad_u.any()


class GradientCrosses(LEMCell):
    """Restart the values only: the gradient goes on to the piece before."""

    def step(self, x, state, *mask, elapsed=None):
        return super().step(x, state, *mask, elapsed=elapsed)

    def _steps(self, u, state, lengths, reverse, elapsed, resets, fields):
        _, restarts = seen_by_steps(None, resets, lengths, reverse)
        y, z = self.init_state(u.shape[1]) if state is None else state
        kept = []
        for t, x in enumerate(self.project(u)):
            y, z = (s - torch.where(restarts[t], s, torch.zeros_like(s)).detach() for s in (y, z))
            y, z = self.step(x, (y, z))
            kept.append(y)
        return [torch.stack(kept)], self.state_type(y, z)


def gradients(cell, u):
    u = u.detach().requires_grad_()
    outputs, _ = cell.sequence(u, None, resets=resets())
    return torch.autograd.grad((outputs * draw(*outputs.shape, seed=8)).sum(), (u, *cell.parameters()))


def test_a_gradient_that_crosses_is_caught():
    u = draw(STEPS, BATCH, INPUT)
    true, twin = (gradients(build("loop", kind=kind), u) for kind in (LEMCell, GradientCrosses))
    with pytest.raises(AssertionError):
        assert_close(twin[0], true[0], "float64 gradient")


@pytest.mark.parametrize("backend", ["loop", "native"])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_by_finite_differences(backend, reverse):
    cell = build(backend, learn_initial_state=True)
    flags = torch.tensor([[1, 0], [0, 1], [1, 0], [0, 0]], dtype=torch.bool)
    lengths = torch.tensor([4, 3])
    u, elapsed = draw(4, 2, INPUT).requires_grad_(), gaps()[:4, :2].clone().requires_grad_()
    names = dict(cell.named_parameters())

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def forward(self, u, elapsed):
            outputs, final = self.cell.sequence(u, None, lengths, reverse, elapsed=elapsed, resets=flags)
            return outputs, *final

    def run(u, elapsed, *weights):
        given = {f"cell.{name}": w for name, w in zip(names, weights)}
        return torch.func.functional_call(Whole(), given, (u, elapsed))

    assert gradcheck(run, (u, elapsed, *cell.parameters()))


def test_the_layer_restarts_in_both_directions_and_all_layers():
    torch.manual_seed(0)
    layer = LEM(INPUT, HIDDEN, 2, bidirectional=True, dtype=torch.float64)
    u, flags = draw(6, 1, INPUT), torch.zeros(6, 1, dtype=torch.bool)
    flags[2] = True
    outputs, _ = layer(u, resets=flags)
    for part in (slice(0, 2), slice(2, 6)):
        assert torch.equal(outputs[part], layer(u[part])[0])
    seen = layer.trajectory(u, resets=flags)
    assert_close(torch.cat(seen.y[-2:].unbind(0), -1), outputs, "float64")


def test_what_is_refused():
    u, layer = torch.zeros(5, 2, INPUT), Recurrent("gru", INPUT, HIDDEN)
    with pytest.raises(TypeError, match=r"`resets` of Recurrent must be a boolean tensor; got torch.float32"):
        layer(u, resets=torch.zeros(5, 2))
    with pytest.raises(ValueError, match="one value for each of 5 steps and 2 rows"):
        layer(u, resets=torch.zeros(2, 5, dtype=torch.bool))
    flags = torch.zeros(5, 2, dtype=torch.bool)
    flags[3, 1] = True
    with pytest.raises(ValueError, match="got one at step 3 of row 1, which has 3 steps"):
        layer(u, lengths=torch.tensor([5, 3]), resets=flags)
    with pytest.raises(ValueError, match="`cost_per_update` is used in training"):
        Recurrent("skiplstm", INPUT, HIDDEN, cost_per_update=0.1)(u, resets=flags)
