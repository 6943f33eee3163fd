"""The kernels of independent and of coupled units (most of the zoo) against the loop: targets, sizes, threads, NaN."""

import ctypes

import pytest
import torch

from lem.kernels import choose, cpu, loop_only
from lem.kernels.cpu import affine, coupled, library, units
from lem.kernels.torch_rnn import TorchKernel
from lem.nn.cells import CELLS, Cell
from lem.nn.cells.lstm import LARGE
from lem.nn.recurrent import Recurrent
from tests.close import assert_close

INDEPENDENT = {"unicornn": {"dt": 0.7, "alpha": 1.3}, "indrnn": {"length": 5}}
COUPLED = {"cornn": {"dt": 0.2}, "fastrnn": {}, "fastgrnn": {}, "antisymmetric": {}, "exprnn": {}}
COUPLED |= {"rnn": {}, "lstm": {"forget_scale": 0.9, "input_scale": 0.7}}
CELL = INDEPENDENT | COUPLED
# (steps, batch, inputs, hidden): columns around the vector widths, and one of everything
SIZES = [(1, 1, 1, 1), (3, 3, 3, 7), (140, 2, 1, 8), (9, 7, 5, 33), (5, 66, 2, 16)]
KIND = {torch.float32: ("float32", "float32 gradient"), torch.float64: ("float64", "float64 gradient")}


@pytest.fixture(params=cpu.targets())
def target(request):
    with cpu.using_target(request.param):
        yield request.param


@pytest.fixture(params=CELL)
def name(request):
    return request.param


def build(name, m, d, dtype=torch.float64):
    torch.manual_seed(1)
    cell = CELLS[name](m, d, dtype=dtype, **CELL[name])
    with torch.no_grad():
        for p in cell.parameters():
            p.add_(0.3 * torch.randn(p.shape).to(dtype))
    return cell


def everything(cell, u, reverse=False, *, loop=False, shown=True):
    """Run forward and backward from a random state; return outputs, final state and all gradients."""
    generator = torch.Generator().manual_seed(2)

    def draw(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64).to(u.dtype) - 0.3

    u = u.detach().requires_grad_()
    state = cell.state_type(*(draw(u.shape[1], size).requires_grad_() for size in cell.state_sizes))
    outputs, final = (cell.loop if loop else cell.sequence)(u, state, None, reverse)
    loss = sum((s * draw(*s.shape)).sum() for s in ((outputs, *final) if shown else final))
    return [outputs, *final], torch.autograd.grad(loss, [u, *state, *cell.parameters()])


def inputs(steps, batch, m, dtype=torch.float64):
    return torch.randn(steps, batch, m, dtype=dtype, generator=torch.Generator().manual_seed(4))


def compare(cell, u, **how):
    ours, theirs = everything(cell, u, **how), everything(cell, u, **how, loop=True)
    for kind, mine, others in zip(KIND[u.dtype], ours, theirs):
        for a, b in zip(mine, others):
            assert_close(a, b, kind)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_every_target_equals_the_loop(target, name, size, dtype, reverse):
    steps, batch, m, d = size
    if name in COUPLED:
        steps = min(steps, 40)  # orthogonal matrices keep every rounding error
    cell, u = build(name, m, d, dtype), inputs(steps, batch, m, dtype)
    assert cell.backend_for(u)[0] == "native"  # or the loop would be compared with itself
    compare(cell, u, reverse=reverse)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("unicornn", "alpha"),
        ("cornn", "dt"),
        ("cornn", "gamma"),
        ("cornn", "epsilon"),
        ("lstm", "forget_scale"),
        ("lstm", "input_scale"),
    ],
)
def test_the_comparison_sees_a_wrong_number(name, number):
    cell, u = build(name, 3, 8), inputs(9, 2, 3)
    right = everything(cell, u)
    setattr(cell, number, getattr(cell, number) * (1.0 + 1e-6))
    wrong = everything(cell, u)
    with pytest.raises(AssertionError):
        assert_close(right[1][0], wrong[1][0], "float64 gradient")


def test_a_loss_of_the_last_state_alone(name):
    compare(build(name, 2, 5), inputs(6, 3, 2), shown=False)


def test_the_gradient_by_finite_differences(name):
    cell = build(name, 2, 3)
    u = inputs(5, 2, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda u: cell.sequence(u)[0], (u,))


def test_neither_threads_nor_what_is_kept_change_a_number(name):
    cell, u = build(name, 2, 68, torch.float32), inputs(300, 20, 2, torch.float32)
    if name == "indrnn":  # else it overflows
        cell.weight_h.data.clamp_(-1.0, 1.0)
    before, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            found.append(everything(cell, u))
    finally:
        torch.set_num_threads(before)
    matrices = {p.shape for p in cell.parameters() if p.dim() > 1 or p.numel() % cell.hidden_size}
    for other in found[1:]:
        for a, b in zip((*found[0][0], *found[0][1]), (*other[0], *other[1])):
            # The gradient of a matrix is a product of torch's, which on some processors adds in another order with
            # other threads; small sums of large terms then differ, compared with themselves, by more.
            if a.shape in matrices:
                assert_close((a - b).abs().max() / b.abs().max(), 0.0, "float32 gradient")
            else:
                assert_close(a, b, "exact")
    with torch.no_grad():
        alone = cell.sequence(u)
    with_gradient = cell.sequence(u)
    for a, b in zip((alone[0], *alone[1]), (with_gradient[0], *with_gradient[1])):
        assert_close(a, b, "exact")


def test_a_unit_that_is_not_a_number_stays_alone(target, name):
    cell, u = build(name, 2, 9), inputs(6, 2, 2)
    u[2, 1] = torch.nan
    ours, loop = cell.sequence(u)[0], cell.loop(u)[0]
    assert torch.equal(ours.isnan(), loop.isnan())
    assert ours[2:, 1].isnan().all()
    assert not ours[:, 0].isnan().any()


@pytest.mark.parametrize("rows", [1, 2])
def test_a_state_of_too_few_rows_is_not_read_beyond_its_end(name, rows):
    cell, u = build(name, 2, 5), inputs(6, 3, 2)
    few = cell.state_type(*(torch.full((rows, 5), 0.3, dtype=torch.float64) for _ in cell.state_sizes))
    if rows == 1 and name in INDEPENDENT:  # one state for all rows, as the loop takes it
        for ours, loop in zip(cell.sequence(u, few)[1], cell.loop(u, few)[1]):
            assert_close(ours, loop, "float64")
        return
    for run in (Cell.sequence, Cell.loop):
        with pytest.raises((RuntimeError, ValueError), match=r"size|`state` .* must have shape \(3, 5\)"):
            run(cell, u, few)


def test_a_state_of_another_type_takes_the_loop(name):
    cell, u = build(name, 2, 5, torch.float32), inputs(6, 3, 2, torch.float32)
    wide = cell.state_type(*(torch.zeros(3, 5, dtype=torch.float64) for _ in cell.state_sizes))
    found = []
    for run in (Cell.sequence, Cell.loop):
        try:
            found.append(run(cell, u, wide)[0].dtype)
        except RuntimeError as error:  # torch's own words about two types
            found.append(str(error))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", [*COUPLED, "dtriv", "nnrnn", "chrono-lstm", "dt-lstm-v1", "dt-lstm-v2"])
def test_what_the_documentation_says_runs_on_the_kernel_does(name):
    cell, u = CELLS[name](2, 4, dtype=torch.float64), inputs(5, 3, 2)
    assert cell.backend_for(u)[0] == "native"
    assert_close(cell.sequence(u)[0], cell.loop(u)[0], "float64")
    for looped in ("antisymmetric-gated", "skiplstm"):
        assert CELLS[looped](2, 4, dtype=torch.float64).backend_for(u)[0] == "loop"


def test_the_shapes_the_library_cannot_see_are_checked():
    x, state = torch.zeros(3, 2, 4), (torch.zeros(2, 4),)
    with pytest.raises(ValueError, match=r"`W` .* must have shape \(4, 4\); got \(4, 5\)"):
        coupled.coupled_sequence(coupled.MODRELU, x, torch.zeros(4, 5), torch.zeros(1, 4), state)
    with pytest.raises(ValueError, match=r"`c` .* must have shape \(1, 4\); got \(2, 4\)"):
        coupled.coupled_sequence(coupled.MODRELU, x, torch.zeros(4, 4), torch.zeros(2, 4), state)
    wide = torch.zeros(3, 2, 7)
    with pytest.raises(ValueError, match=r"`x` .* must have shape \(3, 2, 4\); got \(3, 2, 7\)"):
        coupled.coupled_sequence(coupled.LSTM, wide, torch.zeros(1, 4), torch.zeros(2, 1), (torch.zeros(2, 1),) * 2)


@pytest.mark.parametrize("name", ["lstm", "rnn", "gru"])
def test_torchs_kernel_serves_what_ours_does_not(name, monkeypatch):
    cell, u = CELLS[name](2, 5, dtype=torch.float64), inputs(6, 3, 2)
    loop = cell.loop(u)[0]
    assert_close(cell.sequence(u)[0], loop, "float64")
    assert cell.backend_for(u)[0] == ("torch" if name == "gru" else "native")
    lengths, called = torch.tensor([6, 2, 4]), []
    monkeypatch.setattr(TorchKernel, "run", lambda *given, run=TorchKernel.run: called.append(given[0]) or run(*given))
    assert_close(cell.sequence(u, None, lengths)[0], cell.loop(u, None, lengths)[0], "float64")
    assert len(called) == 1
    with loop_only():
        assert_close(cell.sequence(u)[0], loop, "float64")
        assert cell.backend_for(u) == ("loop", choose.LOOP_ONLY.text)
    assert len(called) == 1

    class Own(type(cell)):
        def step(self, x, state, *prepared):
            return self.state_type(*(s + 1.0 for s in state))

    own = Own(2, 5, dtype=torch.float64)
    assert_close(own.sequence(u)[1][0], torch.full((3, 5), 6.0), "exact")
    assert own.backend_for(u)[0] == "loop"
    assert len(called) == 1


def test_a_large_lstm_is_torchs():
    u = torch.zeros(1, 1, 1)
    assert CELLS["lstm"](1, LARGE - 1).backend_for(u)[0] == "native"
    assert CELLS["lstm"](1, LARGE).backend_for(u) == ("torch", "torch.lstm")
    assert CELLS["dt-lstm-v1"](1, LARGE).backend_for(u)[0] == "native"  # torch knows no scaled gates


def test_an_equation_of_ones_own_is_not_replaced_by_the_kernels(name):
    base = type(build(name, 2, 4))

    class Still(base):
        def step(self, x, state, *prepared):
            return self.state_type(*(s + 0.0 for s in state))

    cell = Still(2, 4, dtype=torch.float64)
    assert cell.backend_for(inputs(5, 3, 2))[0] == "loop"
    start = cell.state_type(*(torch.ones(3, 4, dtype=torch.float64) for _ in cell.state_sizes))
    assert_close(cell.sequence(inputs(5, 3, 2), start)[1][0], torch.ones(3, 4), "exact")


def test_the_loop_serves_what_the_kernel_cannot(name, monkeypatch):
    cell, u = build(name, 2, 4), inputs(5, 3, 2)
    expected = cell.sequence(u)[0]
    gradient = torch.func.grad(lambda x: cell.sequence(x)[0].sum())(u)
    leaf = u.clone().requires_grad_()
    assert_close(gradient, torch.autograd.grad(cell.sequence(leaf)[0].sum(), leaf)[0], "float64 gradient")
    monkeypatch.setattr(library, "LIBRARY", None)
    assert_close(cell.sequence(u)[0], expected, "float64")
    assert cell.backend_for(u)[0] != "native"


def test_a_second_derivative_is_the_loops(name):
    cell, u = build(name, 2, 4), inputs(5, 3, 2).requires_grad_()
    # A sum: the gradient that comes in is a constant, so torch's own guard would let it pass and give zero.
    (first,) = torch.autograd.grad(cell.sequence(u)[0].sum(), u, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no second derivative.*loop_only"):
        torch.autograd.grad(first.sum(), [u, *cell.parameters()], allow_unused=True)
    with loop_only():
        (again,) = torch.autograd.grad(cell.sequence(u)[0].sum(), u, create_graph=True)
        second = torch.autograd.grad(again.sum(), [u, *cell.parameters()], allow_unused=True)
    assert_close(first, again, "float64 gradient")
    assert any(s is not None and s.abs().max() > 0 for s in second)


def test_the_library_refuses_what_it_could_not_run():
    call = library.library().lem_units_forward
    assert call(ctypes.byref(units.Units(0))) == 1
    good = torch.zeros(3, 2, dtype=torch.float64)
    bad = [{"kind": 2}, {"steps": 0}, {"count": 0}, {"threads": 0}, {"item_bytes": 2}, {"w": None}, {"x": None}]
    for change in ({}, *bad):
        p = units.Units(ctypes.sizeof(units.Units), 8, units.RELU, 3, 2, 1)
        for field in ("x", "w", "y_0", "y"):
            setattr(p, field, good.data_ptr())
        for field, value in change.items():
            setattr(p, field, value)
        assert call(ctypes.byref(p)) == (1 if change else 0), change


def test_the_library_refuses_coupled_units_it_could_not_run():
    forward = library.library().lem_coupled_forward
    assert forward(ctypes.byref(coupled.Coupled(0))) == 1
    good, work = torch.zeros(3, 2, 2, dtype=torch.float64), torch.zeros(1 << 20, dtype=torch.uint8)
    bad = [{"kind": 5}, {"kind": -1}, {"steps": 0}, {"batch": 0}, {"hidden": 0}, {"threads": 0}, {"item_bytes": 2}]
    bad += [
        {"x": None},
        {"weight": None},
        {"c": None},
        {"y": None},
        {"y_0": None},
        {"kind": coupled.OSCILLATOR},
        {"kind": coupled.LSTM},
    ]
    for change in ({}, *bad, {"work_bytes": 1}, {"work": None}):
        p = coupled.Coupled(ctypes.sizeof(coupled.Coupled), 8, coupled.MODRELU, 3, 2, 2, 1)
        for field in ("x", "weight", "c", "y_0", "y"):
            setattr(p, field, good.data_ptr())
        p.work, p.work_bytes = work.data_ptr() + (-work.data_ptr()) % 64, 1 << 19
        for field, value in change.items():
            setattr(p, field, value)
        expected = 0 if not change else 2 if "work" in str(change) else 1
        assert forward(ctypes.byref(p)) == expected, change


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("m", [1, 3, 40])
def test_the_affine_map_equals_torchs(m, bias):
    generator = torch.Generator().manual_seed(3)
    shapes = [(700, 5, m), (130, m), *([(130,)] if bias else [])]  # large enough for kept pages
    given = [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]
    ours, torchs = affine.affine(*given), torch.nn.functional.linear(*given)
    assert type(ours.grad_fn) is not type(torchs.grad_fn)  # or torch would be compared with itself
    assert_close(ours, torchs, "float64")
    pull = torch.randn(ours.shape, dtype=torch.float64, generator=generator)
    for a, b in zip(*(torch.autograd.grad(out, given, pull) for out in (ours, torchs))):
        assert_close(a, b, "float64 gradient")
    with torch.no_grad():
        assert_close(affine.affine(*given), torchs, "exact")


def test_the_affine_map_can_be_differentiated_twice():
    generator = torch.Generator().manual_seed(3)
    given = [
        torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in ((3, 2, 2), (4, 2), (4,))
    ]
    assert torch.autograd.gradgradcheck(affine.affine, given)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("units", [1, 4])
@pytest.mark.parametrize("name", CELLS)
def test_a_view_whose_sign_is_only_marked_is_read_with_its_sign(name, units, gradient):
    """`_neg_view` flips a bit of the tensor, not its memory; `contiguous()` does not resolve it."""
    size = 2 if name == "nnrnn" and units == 1 else units
    torch.manual_seed(0)
    layer = Recurrent(name, 2, size).requires_grad_(gradient)
    u = torch.randn(5, 1, 2)
    state = type(layer(u)[1])(*(field.detach() for field in layer(u)[1]))
    expected = layer(u, state)[0]
    turned = type(state)(*((-field)._neg_view() for field in state))
    assert all(field.is_neg() for field in turned)
    assert_close(layer(u, turned)[0], expected, "exact")
    assert_close(layer((-u)._neg_view(), state)[0], expected, "exact")
