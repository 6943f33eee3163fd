"""Steps of unequal length: the laws of `elapsed`, in the loop and in the kernel."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from lem import LEM, LEMCell
from lem.nn.cells import CELLS, Cell, LEMState
from lem.nn.cells.timing import stretch
from lem.nn.recurrent import Recurrent, make_cell
from tests import paper
from tests.close import assert_close
from tests.nn.cells.weights import paper_weights

STEPS, BATCH, INPUT, HIDDEN = 11, 4, 2, 6
LENGTHS = torch.tensor([11, 7, 1, 4])
VARIANTS = {
    "plain": {},
    "dt": {"dt": 0.7},
    "single scale": {"single_scale": True, "dt": 0.6},
    "single scale, dt 1": {"single_scale": True},
    "clipped": {"clip": (0.1, 0.4)},
    "clipped at 1": {"clip": (0.3, 1.0)},
    "proj": {"proj_size": 3},
    "learned start": {"learn_initial_state": True},
}
TIMED = sorted(name for name in CELLS if make_cell(name, INPUT, HIDDEN).takes_elapsed)
TIME_STEP = {"antisymmetric": "epsilon", "cornn": "dt", "lipschitz": "epsilon", "unicornn": "dt"}


@pytest.fixture(params=["loop", "native"])
def backend(request):
    return request.param


def build(backend="loop", dtype=torch.float64, **options) -> LEMCell:
    torch.manual_seed(1)
    cell = LEMCell(INPUT, HIDDEN, backend=backend, dtype=dtype, **options)
    with torch.no_grad():
        for p in cell.parameters():
            p.mul_(2.0).add_(0.1)
    return cell


def draw(*shape, dtype=torch.float64, seed=2):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def gaps(steps=STEPS, batch=BATCH, dtype=torch.float64, seed=3):
    """Gaps from 0.1 to 8, some of them exactly 1."""
    uniform = torch.rand(steps, batch, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return torch.where(uniform < 0.2, 1.0, torch.exp(5.0 * uniform - 3.0))


def gaps_of_steps(elapsed, reverse):
    """The gap of each step of one row, in the order in which the steps are run."""
    return np.append(elapsed[1:], 1.0)[::-1] if reverse else elapsed


def compare_with_the_paper(cell: Cell, reverse: bool = False) -> None:
    u, elapsed = draw(STEPS, BATCH, INPUT), gaps()
    state = cell.state_type(*(draw(BATCH, size, seed=4) for size in cell.state_sizes))
    outputs, _ = cell.sequence(u, state, LENGTHS, reverse, elapsed=elapsed)
    for row, length in enumerate(LENGTHS.tolist()):
        inputs = u[:length, row].numpy()
        expected, _ = paper.lem(
            paper_weights(cell), inputs[::-1] if reverse else inputs, state[0][row].numpy(), state[1][row].numpy(),
            cell.dt, cell.clip, cell.single_scale, elapsed=gaps_of_steps(elapsed[:length, row].numpy(), reverse),
        )  # fmt: skip
        assert_close(outputs[:length, row], expected[::-1].copy() if reverse else expected, "float64")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_to_the_transcription(backend, variant, reverse):
    compare_with_the_paper(build(backend, **VARIANTS[variant]), reverse)


class Ignored(LEMCell):
    def step(self, x, state, *mask, elapsed=None):
        return super().step(x, state, *mask)


class OneGateOnly(LEMCell):
    def step(self, x, state, *mask, elapsed=None):
        y, _ = super().step(x, state, *mask, elapsed=elapsed)
        return LEMState(y, super().step(x, state, *mask)[1])


class BeforeTheClip(LEMCell):
    def step(self, x, state, *mask, elapsed=None):
        y, z = super().step(x, state, *mask, elapsed=elapsed)
        return LEMState(y, z) if self.clip is None else super().step(x, state, *mask, elapsed=elapsed.clamp(max=1.0))


class GapOfTheNext(LEMCell):
    def sequence(self, u, state=None, lengths=None, reverse=False, elapsed=None, resets=None):
        return super().sequence(u, state, lengths, reverse, elapsed.roll(-1, 0), resets)


@pytest.mark.parametrize("twin", [Ignored, OneGateOnly, BeforeTheClip, GapOfTheNext])
def test_broken_twins_are_caught(twin):
    torch.manual_seed(1)
    cell = twin(INPUT, HIDDEN, clip=(0.1, 0.4), dtype=torch.float64)
    with pytest.raises(AssertionError):
        compare_with_the_paper(cell)


def everything(cell, u, elapsed, reverse=False):
    u = u.detach().requires_grad_()
    outputs, final = cell.sequence(u, None, LENGTHS, reverse, elapsed=elapsed)
    loss = (outputs * torch.cos(torch.arange(outputs.numel(), dtype=u.dtype).view_as(outputs))).sum() + final[1].sum()
    return [outputs, *final, *torch.autograd.grad(loss, [u, *cell.parameters()], materialize_grads=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_gap_of_one_is_the_plain_step_to_the_bit(backend, variant, dtype):
    cell, u = build(backend, dtype, **VARIANTS[variant]), draw(STEPS, BATCH, INPUT, dtype=dtype)
    for reverse in (False, True):
        plain = everything(cell, u, None, reverse)
        timed = everything(cell, u, torch.ones(STEPS, BATCH, dtype=dtype), reverse)
        for a, b in zip(plain, timed):
            assert torch.equal(a, b)


def test_rows_with_a_gap_of_one_are_plain_among_others(backend):
    cell, u, elapsed = build(backend), draw(STEPS, BATCH, INPUT), gaps()
    elapsed[:, 1] = 1.0
    assert torch.equal(cell.sequence(u, elapsed=elapsed)[0][:, 1], cell.sequence(u)[0][:, 1])


def frozen(**options) -> LEMCell:
    """A cell whose gates and targets depend on the input alone."""
    cell = build(**options)
    with torch.no_grad():
        cell.weight_y.zero_()
        cell.weight_z.zero_()
    return cell


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("options", [{}, {"dt": 0.3}, {"single_scale": True, "dt": 0.4}, {"clip": (0.2, 0.3)}])
def test_one_step_of_length_k_is_k_steps_with_gate_and_target_held(backend, options, k):
    cell = frozen(backend=backend, **options)
    u, state = draw(1, BATCH, INPUT), LEMState(*(draw(BATCH, HIDDEN, seed=s) for s in (4, 5)))
    _, once = cell.sequence(u, state, elapsed=torch.full((1, BATCH), float(k), dtype=torch.float64))
    _, often = cell.sequence(u.expand(k, -1, -1), state)
    for a, b in zip(once, often):
        assert_close(a, b, "float64")


def test_tiny_gaps_leave_the_state_and_huge_ones_reach_the_target(backend):
    cell, u = build(backend, dt=0.3), draw(1, BATCH, INPUT)
    state = LEMState(*(draw(BATCH, HIDDEN, seed=s) for s in (4, 5)))
    *_, z_part, y_part = (cell.project(u)[0]).chunk(4, -1)
    _, tiny = cell.sequence(u, state, elapsed=torch.full((1, BATCH), 1e-300, dtype=torch.float64))
    assert torch.equal(tiny.y, state.y)
    assert torch.equal(tiny.z, state.z)
    _, huge = cell.sequence(u, state, elapsed=torch.full((1, BATCH), 1e30, dtype=torch.float64))
    w_z = cell.weight_y[2 * HIDDEN :]
    z = torch.tanh(state.y @ w_z.T + z_part)
    assert_close(huge.z, z, "float64")
    assert_close(huge.y, torch.tanh(z @ cell.weight_z.T + y_part), "float64")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_gates_and_gaps_lose_no_digits(dtype):
    gate = torch.logspace(-30, -0.01, 400, dtype=dtype)
    for elapsed in (1e-6, 0.3, 0.5, 0.999, 1.0, 1.2, 1.5, 7.0, 1e4):
        e = torch.tensor(elapsed, dtype=dtype)
        exact = -np.expm1(e.double().numpy() * np.log1p(-gate.double().numpy()))
        found = stretch(gate, e).double().numpy()
        normal = exact > torch.finfo(dtype).tiny
        relative = (found[normal] - exact[normal]) / exact[normal] / torch.finfo(dtype).eps
        assert_close(np.abs(relative).max(), 0.0, "stretch eps")
    one = torch.ones(1, dtype=dtype)
    assert float(stretch(one, one * 1e-9)) == 1.0
    assert float(stretch(one * 0.0, one * 1e9)) == 0.0


@pytest.mark.parametrize("variant", ["plain", "single scale", "clipped", "single scale, dt 1"])
def test_states_stay_bounded_by_one(backend, variant):
    cell = build(backend, **VARIANTS[variant])
    with torch.no_grad():
        for p in cell.parameters():
            p.mul_(20.0)
    u, elapsed = 30.0 * draw(200, BATCH, INPUT), gaps(200) ** 2
    with torch.no_grad():
        outputs, final = cell.sequence(u, elapsed=elapsed)
    assert float(outputs.abs().max()) <= 1.0
    assert float(final.z.abs().max()) <= 1.0


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("variant", ["plain", "dt", "single scale", "clipped", "proj"])
def test_gradients_by_finite_differences(backend, variant, reverse):
    cell = build(backend, **VARIANTS[variant])
    u, elapsed = draw(4, 2, INPUT).requires_grad_(), gaps(4, 2).requires_grad_()
    lengths = torch.tensor([4, 2])

    def run(u, elapsed, *weights):
        given = dict(zip(dict(cell.named_parameters()), weights))
        return torch.func.functional_call(Whole(cell), {f"cell.{k}": w for k, w in given.items()}, (u, elapsed))

    class Whole(torch.nn.Module):
        def __init__(self, cell):
            super().__init__()
            self.cell = cell

        def forward(self, u, elapsed):
            outputs, final = self.cell.sequence(u, None, lengths, reverse, elapsed=elapsed)
            return outputs, *final

    assert gradcheck(run, (u, elapsed, *cell.parameters()))
    if backend == "loop":
        assert gradgradcheck(run, (u, elapsed, *cell.parameters()))


def test_the_gradient_at_a_gap_of_one_is_that_of_its_neighbourhood(backend):
    cell, u = build(backend), draw(STEPS, BATCH, INPUT)
    grads = []
    for value in (1.0, 1.0 + 1e-9):
        elapsed = torch.full((STEPS, BATCH), value, dtype=torch.float64, requires_grad=True)
        outputs, _ = cell.sequence(u, elapsed=elapsed)
        grads.append(torch.autograd.grad(outputs.sum(), elapsed)[0])
    assert float(grads[0].abs().min()) > 0.0
    assert_close(grads[0], grads[1], "finite differences")


def test_saturated_gates_have_finite_gradients(backend):
    for dt in (1.0, 0.5):
        cell = build(backend, torch.float32, dt=dt)
        with torch.no_grad():
            cell.bias.fill_(100.0)
        u, elapsed = draw(STEPS, BATCH, INPUT, dtype=torch.float32), gaps(dtype=torch.float32).requires_grad_()
        for grad in everything(cell, u, elapsed):
            assert torch.isfinite(grad).all()


def test_padding_reaches_nothing(backend):
    cell, u = build(backend), draw(STEPS, BATCH, INPUT)
    elapsed = gaps()
    inside = torch.arange(STEPS)[:, None] < LENGTHS
    hostile = torch.where(inside, elapsed, torch.nan).requires_grad_()
    for reverse in (False, True):
        clean, dirty = (cell.sequence(u, None, LENGTHS, reverse, elapsed=e)[0] for e in (elapsed, hostile))
        assert torch.equal(clean, dirty)
        (grad,) = torch.autograd.grad(dirty.sum(), hostile)
        assert torch.isfinite(grad).all()
        assert not grad[~inside].any()


def test_first_order_convergence_to_the_ode_on_random_grids():
    """THEORY S0 with steps of unequal length: halving every step halves the error."""
    cell = build(dt=1.0)
    rng = np.random.default_rng(0)
    grid = np.sort(np.concatenate([[0.0], rng.uniform(0.0, 3.0, 40), [3.0]]))
    signal = lambda t: np.stack([np.sin(2.0 * t), np.cos(3.0 * t)], -1)  # noqa: E731

    def solve(times, fine):
        scale = 1.0 / fine  # the usual step: gates are dt * sigmoid, and each step is `elapsed` of them
        small = LEMCell(INPUT, HIDDEN, dt=scale, dtype=torch.float64, backend="loop")
        small.load_state_dict(cell.state_dict())
        elapsed = torch.tensor(np.diff(times) / scale)[:, None]
        u = torch.tensor(signal(times[1:]))[:, None]
        with torch.no_grad():
            return small.sequence(u, elapsed=elapsed)[0][-1, 0].numpy()

    def refined(parts):
        return np.interp(np.arange((len(grid) - 1) * parts + 1) / parts, np.arange(len(grid)), grid)

    exact = solve(refined(4096), 1e6)
    errors = [np.abs(solve(refined(parts), 1e6) - exact).max() for parts in (16, 32, 64)]
    orders = np.log2(errors[:-1]) - np.log2(errors[1:])
    assert_close(orders, np.ones(2), "convergence order")


# --- layers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_layer_takes_every_layout(backend, bidirectional):
    torch.manual_seed(0)
    layer = LEM(INPUT, HIDDEN, 2, bidirectional=bidirectional, backend=backend, dtype=torch.float64)
    u, elapsed = draw(STEPS, BATCH, INPUT), gaps()
    expected, state = layer(u, lengths=LENGTHS, elapsed=elapsed)
    assert not torch.equal(expected, layer(u, lengths=LENGTHS)[0])
    layer.batch_first = True
    found, _ = layer(u.transpose(0, 1), lengths=LENGTHS, elapsed=elapsed.T)
    assert torch.equal(found.transpose(0, 1), expected)
    layer.batch_first = False
    pack = torch.nn.utils.rnn.pack_padded_sequence
    packed, packed_state = layer(
        pack(u, LENGTHS, enforce_sorted=False), elapsed=pack(elapsed, LENGTHS, enforce_sorted=False)
    )
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(packed)
    assert_close(padded, expected, "float64")
    assert_close(packed_state[0], state[0], "float64")
    alone, _ = layer(u[:, 0], elapsed=elapsed[:, 0])
    assert_close(alone, layer(u[:, :1], elapsed=elapsed[:, :1])[0][:, 0], "float64")
    seen = layer.trajectory(u, lengths=LENGTHS, elapsed=elapsed)
    top = torch.cat(seen.y[-2:].unbind(0), -1) if bidirectional else seen.y[-1]
    assert_close(top, expected, "float64")


def test_both_directions_take_the_gap_between_the_same_observations():
    torch.manual_seed(0)
    layer = LEM(INPUT, HIDDEN, bidirectional=True, dtype=torch.float64)
    u, elapsed = draw(3, 1, INPUT), torch.tensor([[1.0], [5.0], [2.0]], dtype=torch.float64)
    forward, backward = layer.cells
    outputs, _ = layer(u, elapsed=elapsed)
    assert torch.equal(outputs[..., :HIDDEN], forward.sequence(u, elapsed=elapsed)[0])
    turned = torch.tensor([[1.0], [2.0], [5.0]], dtype=torch.float64)
    assert torch.equal(outputs[..., HIDDEN:], backward.sequence(u.flip(0), elapsed=turned)[0].flip(0))


# --- other cells ---------------------------------------------------------------------------------------------------


def test_which_cells_have_a_time_step():
    names = {type(make_cell(name, INPUT, HIDDEN)).__name__ for name in TIMED}
    assert names == {"AntisymmetricCell", "CoRNNCell", "FastRNNCell", "LEMCell", "LipschitzCell", "UnICORNNCell"}


@pytest.mark.parametrize("name", TIMED)
def test_cells_with_a_time_step_of_their_own(name):
    torch.manual_seed(1)
    cell = make_cell(name, INPUT, HIDDEN, dtype=torch.float64)
    u, elapsed = draw(4, 2, INPUT), gaps(4, 2).requires_grad_()
    plain = Cell.loop(cell, u)[0]
    assert_close(cell.sequence(u, elapsed=torch.ones(4, 2, dtype=torch.float64))[0], plain, "float64")
    assert gradcheck(lambda e: cell.sequence(u, elapsed=e)[0], (elapsed,))
    step = TIME_STEP.get(name.removesuffix("-gated"))
    if step is not None:
        doubled = cell.sequence(u, elapsed=torch.full((4, 2), 2.0, dtype=torch.float64))[0]
        setattr(cell, step, 2.0 * getattr(cell, step))
        assert_close(doubled, Cell.loop(cell, u)[0], "float64")


def test_fastrnn_repeats_its_step():
    torch.manual_seed(1)
    cell = make_cell("fastrnn", INPUT, HIDDEN, dtype=torch.float64)
    with torch.no_grad():
        cell.weight_h.zero_()
    u, h = draw(1, BATCH, INPUT), (draw(BATCH, HIDDEN, seed=5),)
    once = cell.sequence(u, h, elapsed=torch.full((1, BATCH), 3.0, dtype=torch.float64))[1]
    assert_close(once[0], cell.sequence(u.expand(3, -1, -1), h)[1][0], "float64")


@pytest.mark.parametrize("name", sorted(set(CELLS) - set(TIMED)))
def test_cells_without_a_time_step_refuse(name):
    layer = Recurrent(name, INPUT, HIDDEN)
    with pytest.raises(ValueError, match=r"`elapsed` of Recurrent must be None: \w+ has no time step"):
        layer(torch.zeros(5, 2, INPUT), elapsed=torch.ones(5, 2))
    with pytest.raises(ValueError, match="has no time step"):
        layer.cells[0].sequence(torch.zeros(5, 2, INPUT), elapsed=torch.ones(5, 2))


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_gap_that_is_no_positive_number_is_named_with_its_place(value):
    layer = LEM(INPUT, HIDDEN)
    elapsed = torch.ones(5, 3)
    elapsed[2, 1] = value
    with pytest.raises(ValueError, match=rf"must be positive and finite; got {value} at step 2 of row 1"):
        layer(torch.zeros(5, 3, INPUT), elapsed=elapsed)
    layer(torch.zeros(5, 3, INPUT), lengths=torch.tensor([5, 2, 5]), elapsed=elapsed)  # past the row's end


def test_what_else_is_refused():
    u = torch.zeros(5, 3, INPUT)
    layer = LEM(INPUT, HIDDEN)
    with pytest.raises(ValueError, match=r"`elapsed` of LEM must have one value for each of 5 steps and 3 rows"):
        layer(u, elapsed=torch.ones(3, 5))
    with pytest.raises(ValueError, match=r"must have shape \(time, batch\)"):
        layer(u, elapsed=torch.ones(5, 3, 1))
    with pytest.raises(TypeError, match="floating-point"):
        layer(u, elapsed=torch.ones(5, 3, dtype=torch.int64))
    with pytest.raises(TypeError, match="must be a tensor; got list"):
        layer(u, elapsed=[1.0])
    with pytest.raises(ValueError, match=r"`elapsed` of LEM must be torch.float32 on cpu"):
        layer(u, elapsed=torch.ones(5, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"`elapsed` of LEM must be None: it needs `dt` <= 1; got 1.5"):
        LEM(INPUT, HIDDEN, dt=1.5)(u, elapsed=torch.ones(5, 3))
    with pytest.raises(ValueError, match="`clip` that begins at 1 or below"):
        LEM(INPUT, HIDDEN, clip=(1.2, 1.5))(u, elapsed=torch.ones(5, 3))
    for backend in ("loop", "native"):
        with pytest.raises(ValueError, match="`elapsed` of LEMCell must be None: it needs `dt` <= 1"):
            LEMCell(INPUT, HIDDEN, dt=2.0, backend=backend).sequence(u, elapsed=torch.ones(5, 3))
    with pytest.raises(TypeError, match="packed like the input"):
        layer(torch.nn.utils.rnn.pack_padded_sequence(u, torch.tensor([5, 4, 3])), elapsed=torch.ones(5, 3))
