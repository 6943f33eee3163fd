"""The kernel against the loop: every target of this machine, every variant, odd sizes, hostile numbers, threads."""

import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from lem import LEM, LEMCell
from lem.kernels import cpu, loop_only
from lem.kernels.cpu import buffers, library
from lem.kernels.cpu import lem as operator
from lem.kernels.cpu.memory import plan
from lem.nn.cells import Cell
from tests.close import assert_close

VARIANTS = {
    "plain": {},
    "no bias": {"bias": False},
    "single scale": {"single_scale": True},
    "clipped": {"clip": (0.2, 0.6)},
    "state dropout": {"state_dropout": 0.4},
    "learned start": {"learn_initial_state": True},
}
# (steps, batch, inputs, hidden): around the vector widths, one of everything, chunks that do not divide
SIZES = [(1, 1, 1, 1), (3, 3, 3, 7), (140, 2, 1, 8), (9, 7, 17, 33), (5, 66, 2, 16), (4, 2, 300, 17), (3, 9, 2, 129)]
KIND = {torch.float32: ("float32", "float32 gradient"), torch.float64: ("float64", "float64 gradient")}


@pytest.fixture(params=cpu.targets())
def target(request):
    with cpu.using_target(request.param):
        yield request.param


@pytest.fixture
def thread_count():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def build(inputs, hidden, dtype=torch.float64, **options):
    torch.manual_seed(1)
    cell = LEMCell(inputs, hidden, dt=0.9, dtype=dtype, backend="native", **options)
    with torch.no_grad():
        for p in cell.parameters():
            p.mul_(2.0)
    return cell


def everything(cell, u, state=None, lengths=None, reverse=False, *, loop=False):
    """Run forward and backward; return outputs, final states and all gradients."""
    torch.manual_seed(2)  # the dropout mask
    run = Cell.loop if loop else Cell.sequence
    u = u.detach().requires_grad_()
    state = None if state is None else type(cell).state_type(*(s.detach().requires_grad_() for s in state))
    outputs, final = run(cell, u, state, lengths, reverse)
    weight = (torch.rand(outputs.shape, generator=torch.Generator().manual_seed(3)) - 0.3).to(u.dtype)
    loss = (outputs * weight).sum() / len(u) + (final[0] * 0.7).sum() - (final[1] ** 2).sum()
    leaves = [u, *(state or ()), *cell.parameters()]
    return [outputs, *final], torch.autograd.grad(loss, leaves)


def compare(cell, u, *rest):
    forward, backward = KIND[u.dtype]
    ours, theirs = everything(cell, u, *rest), everything(cell, u, *rest, loop=True)
    for a, b in zip(ours[0], theirs[0]):
        assert_close(a, b, forward)
    for a, b in zip(ours[1], theirs[1]):
        assert_close(a, b, backward)


def inputs(steps, batch, m, dtype=torch.float64):
    return torch.randn(steps, batch, m, dtype=dtype, generator=torch.Generator().manual_seed(4))


def states(batch, d, dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.rand(batch, d, dtype=dtype, generator=generator) - 0.5 for _ in range(2))


# --- the square of agreement --------------------------------------------------------------------------------


def test_the_kernel_is_built_and_chosen():
    assert cpu.targets()[:2] == ["scalar", "baseline"]
    backend, why = LEMCell(2, 3).backend_for(torch.zeros(4, 1, 2))
    assert backend == "native"
    assert cpu.target() in why


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_every_target_equals_the_loop(target, size, dtype):
    steps, batch, m, d = size
    compare(build(m, d, dtype), inputs(steps, batch, m, dtype), states(batch, d, dtype))


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_equals_the_loop(target, variant, reverse, unequal):
    cell = build(3, 11, **VARIANTS[variant])
    u = inputs(13, 5, 3)
    compare(cell, u, None, torch.tensor([13, 1, 7, 7, 12]) if unequal else None, reverse)


def test_gradcheck_through_the_operator(target):
    cell = build(2, 3, clip=(0.1, 0.8))
    tensors = [inputs(3, 2, 2), *(p.detach() for p in cell.parameters()), *states(2, 3)]
    lengths = torch.tensor([3, 2])

    def run(u, weight_u, weight_y, weight_z, bias, y, z):
        return operator.sequence(u, weight_u, weight_y, weight_z, bias, y, z, None, lengths, clip=(0.1, 0.8))

    assert gradcheck(run, [t.requires_grad_() for t in tensors])


@pytest.mark.slow
def test_ten_thousand_steps_in_single_precision():
    """Against the float64 loop the kernel must be no further off than the float32 loop."""
    cell, u = build(2, 8, torch.float32), inputs(10_000, 2, 2, torch.float32)
    with torch.no_grad():
        for p in cell.parameters():
            p.mul_(0.5)
    ours, looped = everything(cell, u)[1], everything(cell, u, loop=True)[1]
    exact = everything(cell.double(), u.double(), loop=True)[1]
    for a, b, e in zip(ours, looped, exact):
        size = e.abs().max()
        assert_close((a - e).abs().max() / size, 0.0, "float32 gradient")
        assert (a - e).abs().max() <= 2.0 * (b - e).abs().max() + 1e-6 * size


@pytest.mark.parametrize("steps", [300, 7000], ids=["in cache", "fetched ahead"])
def test_what_is_kept_changes_nothing(target, steps):
    lengths = torch.tensor([steps, 17, 120])
    if steps == 7000:  # only "store" keeps so much that the kernel fetches it ahead
        size = cpu.memory_forecast(steps, 3, 2, 9, dtype=torch.float64).kept
        assert size > 4 << 20, "the kernel fetches nothing ahead here"
    u = inputs(steps, 3, 2)
    for given, reverse in ((None, False), (lengths, False), (lengths, True)):
        runs = [
            everything(build(2, 9, memory=memory), u, None, given, reverse)
            for memory in ("store", "recompute", "bounded")
        ]
        for other in runs[1:]:
            for a, b in zip([*other[0], *other[1]], [*runs[0][0], *runs[0][1]]):
                assert_close(a, b, "exact")


def test_lengths_equal_separate_runs(target):
    cell, u, lengths = build(2, 17), inputs(20, 6, 2), [20, 3, 1, 14, 14, 9]
    padded = u.clone()
    for row, length in enumerate(lengths):
        padded[length:, row] = float("nan")
    for reverse in (False, True):
        outputs, final = cell.sequence(padded, None, torch.tensor(lengths), reverse)
        for row, length in enumerate(lengths):
            alone, last = cell.sequence(u[:length, row : row + 1], None, None, reverse)
            assert_close(outputs[:length, row], alone[:, 0], "exact")
            assert_close(outputs[length:, row], torch.zeros(20 - length, 17), "exact")
            for a, b in zip(final, last):
                assert_close(a[row], b[0], "exact")


@pytest.mark.parametrize("count", [2, 3, 8])
def test_threads_change_no_row(target, thread_count, count):
    """Rows are independent to the bit; sums over rows (weights) only in the last bits."""
    cell, u = build(3, 17, torch.float32), inputs(64, 19, 3, torch.float32)
    thread_count(1)
    one = everything(cell, u, states(19, 17, torch.float32))
    thread_count(count)
    many = everything(cell, u, states(19, 17, torch.float32))
    for a, b in zip([*many[0], *many[1][:3]], [*one[0], *one[1][:3]]):
        assert_close(a, b, "exact")
    for a, b in zip(many[1][3:], one[1][3:]):
        assert_close(a, b, "float32 gradient")


@pytest.mark.parametrize("memory", ["store", "recompute", "bounded"])
@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_threads_that_share_the_units_of_a_row(monkeypatch, thread_count, batch, count, memory):
    """More threads than rows: they divide the hidden units. With one row nothing at all depends on their number."""
    cell, u = build(3, 70, memory=memory), inputs(20, batch, 3)
    lengths = torch.tensor([20, 7, 13][:batch])
    thread_count(1)
    one = everything(cell, u, states(batch, 70), lengths)
    thread_count(count)
    for team in (0, count, -count):  # chosen; sharing the steps; sharing only the products over many steps
        monkeypatch.setattr(operator, "TEAM", team)
        many = everything(cell, u, states(batch, 70), lengths)
        for a, b in zip([*many[0], *many[1][:3]], [*one[0], *one[1][:3]]):
            assert_close(a, b, "exact")
        for a, b in zip(many[1][3:], one[1][3:]):
            assert_close(a, b, "exact" if batch == 1 else "float64 gradient")
    for a, b in zip(many[1], everything(cell, u, states(batch, 70), lengths, loop=True)[1]):
        assert_close(a, b, "float64 gradient")


# --- hostile numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 1e-40, 50.0, 1e4])
def test_zero_tiny_and_extreme_weights(target, scale):
    cell, u = build(2, 9, torch.float32), inputs(12, 3, 2, torch.float32)
    with torch.no_grad():
        for p in cell.parameters():
            p.mul_(scale)
    if scale > 1.0:  # chaotic: one step can be compared
        u = u[:1]
    compare(cell, u)


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_infinities_and_nan_stay_in_their_row_and_after_their_step(target, value):
    cell, u = build(2, 9, torch.float32), inputs(12, 3, 2, torch.float32)
    clean = cell.sequence(u)[0]
    u[5, 1, 0] = value
    dirty = cell.sequence(u)[0]
    assert_close(dirty[:, [0, 2]], clean[:, [0, 2]], "exact")
    assert_close(dirty[:5, 1], clean[:5, 1], "exact")
    # An infinite input saturates the gates; with a NaN there is nothing to say but NaN.
    assert torch.isnan(dirty[5:, 1]).any() if value != value else torch.isfinite(dirty[5, 1]).all()
    loop = cell.loop(u)[0]
    assert_close(torch.isnan(dirty), torch.isnan(loop), "exact")
    everything(cell, u)  # no crash, no hang


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("which", ["sigmoid", "tanh"])
def test_the_functions_keep_their_stated_error(target, which, dtype):
    wide = dtype == torch.float64
    reference = np.longdouble if wide else np.float64
    parts = [np.linspace(-1, 1, 200_001), np.linspace(-100, 100, 200_001), np.linspace(-750, 750, 20_001)]
    parts += [sign * np.geomspace(1e-37, 80, 100_001) for sign in (-1, 1)]
    x = np.concatenate(parts).astype(np.float64 if wide else np.float32)
    out = np.empty_like(x)
    library.library().lem_function(which == "tanh", x.itemsize, x.ctypes.data, out.ctypes.data, x.size)
    wide_x = x.astype(reference)
    with np.errstate(over="ignore"):
        exact = np.tanh(wide_x) if which == "tanh" else 1 / (1 + np.exp(-wide_x))
    ulp = np.spacing(np.abs(exact).astype(x.dtype)).astype(reference)
    error = np.abs(out.astype(reference) - exact) / ulp
    normal = np.abs(exact) >= np.finfo(x.dtype).tiny * 2
    assert_close(error[normal].max(), 0.0, "scalar ulp" if target == "scalar" else "vector ulp")
    assert np.abs(out[~normal]).max(initial=0.0) <= np.finfo(x.dtype).tiny * 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_power_of_a_gate_keeps_its_stated_error(target, dtype):
    near_one = 1.0 - np.geomspace(np.finfo(dtype).eps, 0.5, 20_001)
    gates = np.concatenate([np.geomspace(1e-30, 0.5, 20_001), near_one, np.linspace(0.0, 0.999, 20_001)]).astype(dtype)
    gates = gates[gates < 1.0]
    exact_log = np.log1p(-gates.astype(np.longdouble))

    def worst(which: int, out: np.ndarray, exact: np.ndarray) -> float:
        assert (
            library.library().lem_function(which, gates.itemsize, gates.ctypes.data, out.ctypes.data, gates.size) == 0
        )
        normal = np.abs(exact) > 2 * np.finfo(dtype).tiny
        ulp = np.spacing(np.abs(exact).astype(dtype)).astype(np.longdouble)
        return float((np.abs(out.astype(np.longdouble) - exact) / ulp)[normal].max())

    assert_close(worst(2, np.empty_like(gates), exact_log), 0.0, "vector ulp")
    for elapsed in (1e-6, 1e-3, 0.3, 0.7, 1.5, 3.0, 10.0, 1e3, 1e8):
        power = np.full_like(gates, elapsed)
        exact = -np.expm1(power.astype(np.longdouble) * exact_log)
        assert_close(worst(3, power, exact), 0.0, "stretch ulp")


def test_special_values_of_the_power_of_a_gate(target):
    for dtype in (np.float32, np.float64):
        gates = np.array([0.0, 1.0, 1.0, 0.5, np.nan], dtype=dtype)
        out = np.array([3.0, 1e-6, 1e6, 1e30, 2.0], dtype=dtype)
        library.library().lem_function(3, gates.itemsize, gates.ctypes.data, out.ctypes.data, gates.size)
        assert_close(out, [0.0, 1.0, 1.0, 1.0, np.nan], "exact")


def test_special_values_of_the_functions(target):
    for dtype in (np.float32, np.float64):
        x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], dtype=dtype)
        out = np.empty_like(x)
        library.library().lem_function(0, x.itemsize, x.ctypes.data, out.ctypes.data, x.size)
        assert_close(out, [1.0, 0.0, np.nan, 0.5, 0.5], "tiny")
        library.library().lem_function(1, x.itemsize, x.ctypes.data, out.ctypes.data, x.size)
        assert_close(out, [1.0, -1.0, np.nan, 0.0, 0.0], "exact")
        assert np.signbit(out[4])


# --- layouts ------------------------------------------------------------------------------------------------


def test_non_contiguous_and_expanded_inputs():
    cell = build(3, 9)
    base = inputs(8, 4, 6)
    for u in (base[..., ::2], base[..., :3].transpose(0, 1)[:8], base[:1, :, :3].expand(8, 4, 3), base[::2, 1:3, 3:]):
        compare(cell, u)
    out = cell.sequence(base[..., :3])[0]
    grads = [torch.autograd.grad(f(cell.sequence(base[..., :3])[0]), cell.weight_z)[0]
             for f in (torch.sum, lambda x: (x * torch.ones_like(x)).sum())]  # fmt: skip
    assert out.is_contiguous()
    assert_close(grads[0], grads[1], "exact")


def test_only_what_needs_a_gradient_gets_one():
    cell, u = build(2, 5), inputs(6, 2, 2)
    cell.weight_u.requires_grad_(False)
    outputs, _ = cell.sequence(u)
    outputs[-1].sum().backward()
    assert cell.weight_u.grad is None
    assert cell.weight_y.grad is not None
    with torch.no_grad():
        assert not cell.sequence(u)[0].requires_grad


def test_outputs_changed_in_place_are_noticed():
    outputs, _ = build(2, 5).sequence(inputs(6, 2, 2))
    outputs.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


# --- torch's machinery --------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_opcheck(keep):
    cell, u = build(2, 5), inputs(6, 3, 2)
    tensors = [t.detach().requires_grad_() for t in (u, cell.weight_u, cell.weight_y, cell.weight_z, cell.bias)]
    tensors += [s.requires_grad_() for s in states(3, 5)]
    for lengths in (None, torch.tensor([6, 6, 6]), torch.tensor([6, 2, 4])):
        # With unequal lengths the end of what is kept is not written, so two runs cannot be compared there.
        tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
        tests = tests[:3] if lengths is not None and lengths[1] == 2 else tests
        options = (None, lengths, 0.9, [0.1, 0.8], False, keep, 2)
        torch.library.opcheck(torch.ops.lem.sequence, (*tensors, *options), test_utils=tests)


COMPILE = """
import torch
from lem import LEM
layer = LEM(2, 5, num_layers=2, batch_first=True, backend="native")
u, weights = torch.randn(3, 7, 2), list(layer.parameters())

def gradients(run):
    return torch.autograd.grad(run(u)[0].square().sum(), weights)

compiled = torch.compile(layer, fullgraph=True, backend="BACKEND")
for a, b in zip(gradients(compiled), gradients(layer)):
    torch.testing.assert_close(a, b)
with torch.no_grad():
    torch.testing.assert_close(compiled(u)[0], layer(u)[0])

layer.eval()
time, batch = torch.export.Dim("time", min=2, max=4096), torch.export.Dim("batch", min=2, max=64)
program = torch.export.export(layer, (u,), dynamic_shapes=({0: batch, 1: time},))
other = torch.randn(5, 11, 2)
torch.testing.assert_close(program.module()(other)[0], layer(other)[0], rtol=0, atol=0)
"""


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compile_the_full_graph_and_export_with_dynamic_time_and_batch(backend):
    """In a process of its own: the run-time check of shapes in the signatures cannot be traced."""
    done = subprocess.run([sys.executable, "-c", COMPILE.replace("BACKEND", backend)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, on first use of forward mode
def test_transforms_and_forward_mode_take_the_loop():
    cell, u = LEMCell(2, 5, dtype=torch.float64), inputs(4, 2, 2)
    gradient = torch.func.grad(lambda x: cell.sequence(x)[0].sum())(u)
    assert_close(gradient, everything_sum(cell, u), "float64 gradient")
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(u, torch.ones_like(u))
        out = torch.autograd.forward_ad.unpack_dual(cell.sequence(dual)[0])
    assert out.tangent is not None
    cell.backend = "native"
    with pytest.raises(RuntimeError, match=r"torch\.func transforms"):
        torch.func.grad(lambda x: cell.sequence(x)[0].sum())(u)


def everything_sum(cell, u):
    u = u.detach().requires_grad_()
    return torch.autograd.grad(cell.sequence(u)[0].sum(), u)[0]


def test_the_choice_of_threads_does_not_change_results(thread_count):
    """The library times the first calls of a size on one thread and on all: no bit may depend on which it was."""
    thread_count(2)
    cell, u = build(2, 32, torch.float32), inputs(50, 16, 2, torch.float32)
    runs = [everything(cell, u) for _ in range(40)]
    for values, gradients in runs[1:]:
        for a, b in zip([*values, *gradients], [*runs[0][0], *runs[0][1]]):
            assert_close(a, b, "exact")


# --- choosing -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Complex modules:UserWarning")
def test_native_raises_where_it_cannot_serve_and_auto_says_why(shapes_unchecked):
    u = inputs(3, 2, 2, torch.float32)
    strict, free = LEMCell(2, 3, backend="native"), LEMCell(2, 3)
    with pytest.raises(RuntimeError, match="the tensors have different types"):
        strict.sequence(u.double())
    with pytest.raises(RuntimeError, match=r"does not support torch\.complex64"):
        strict.to(torch.complex64).sequence(u.to(torch.complex64))
    assert free.bfloat16().backend_for(u.double())[0] == "loop"
    assert LEMCell(2, 3, backend="loop").backend_for(u) == ("loop", "backend='loop'")
    with loop_only():
        assert free.float().backend_for(u.float())[0] == "loop"
    assert free.float().backend_for(u.float())[0] == "native"

    class Other(LEMCell):
        def time_steps(self, gates_u, gates_y):
            return super().time_steps(gates_u, gates_y)

    assert "overrides `time_steps`" in Other(2, 3).backend_for(u)[1]


def test_bad_options_and_bad_sizes_are_refused_in_words():
    with pytest.raises(ValueError, match=r"`backend` of LEMCell must be one of 'auto', 'native', .*; got"):
        LEMCell(2, 3, backend="cuda")
    for memory in ("small", -1, True):
        with pytest.raises(ValueError, match="`memory` of LEMCell must be"):
            LEM(2, 3, memory=memory)
    cell, u = build(2, 3), inputs(4, 2, 2)
    with pytest.raises(ValueError, match="`y_0` of lem::sequence must have shape"):
        operator.sequence(u, cell.weight_u, cell.weight_y, cell.weight_z, cell.bias, *states(3, 3))
    with pytest.raises(ValueError, match="`weight_u` of lem::sequence must have shape"):
        operator.sequence(u, cell.weight_u[:4], cell.weight_y, cell.weight_z, cell.bias, *states(2, 3))
    for lengths in ([0, 4], [4, 5]):
        with pytest.raises(ValueError, match="refused a call"):
            cell.sequence(u, None, torch.tensor(lengths))
    with pytest.raises(ValueError, match="must be one of scalar, baseline"):
        cpu.set_target("mmx")


def test_what_was_kept_by_another_target_is_refused():
    cell, u = build(2, 3), inputs(4, 2, 2)
    with cpu.using_target("baseline"):
        outputs, _ = cell.sequence(u)
    with cpu.using_target("scalar"), pytest.raises(ValueError, match="another target"):
        outputs.sum().backward()


# --- processes and threads ----------------------------------------------------------------------------------


def _train(seed, steps=5):
    torch.manual_seed(seed)
    layer = LEM(2, 16, backend="native")
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    u = torch.randn(50, 12, 2)
    for _ in range(steps):
        optimiser.zero_grad()
        layer(u)[0][-1].square().sum().backward()
        optimiser.step()
    return [p.detach().clone() for p in layer.parameters()]


def test_two_models_in_two_python_threads(thread_count):
    thread_count(2)
    lock = threading.Lock()  # seeds and layers are drawn under it: the generator is shared

    def one(seed):
        with lock:
            torch.manual_seed(seed)
            layer, u = LEM(2, 16), torch.randn(50, 12, 2)
        outputs = [layer(u)[0] for _ in range(20)]
        return torch.stack([torch.autograd.grad(o.sum(), layer.cells[0].weight_z)[0] for o in outputs])

    alone = [one(seed) for seed in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(one, (1, 2)))
    for a, b in zip(together, alone):
        assert_close(a, b, "exact")


def test_a_forked_child_works_after_use(thread_count):
    thread_count(2)
    expected = _train(3)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found = pool.apply_async(_train_lists, (3,)).get(timeout=300)
    for a, b in zip(found, expected):
        assert_close(a, b, "float32")


def _train_lists(seed):
    torch.set_num_threads(1)
    return [p.numpy() for p in _train(seed)]


def test_a_wrong_target_leaves_the_loop_and_says_so():
    code = "import torch, lem; print(lem.LEMCell(1, 2).backend_for(torch.zeros(3, 1, 1)))"
    environment = {**os.environ, "LEM_TARGET": "mmx"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert "'loop', \"the C++ kernel cannot be used: `LEM_TARGET` must be one of" in done.stdout
    assert "LEM runs on the slow loop" in done.stderr


def test_the_library_needs_no_torch():
    """Load it in a process that has no torch; the same proof must fail where torch is imported first."""
    path = Path(library.__file__).with_name("_native.so")
    code = "import ctypes, sys; ctypes.CDLL({path!r}); sys.exit(int('torch' in sys.modules))"
    alone = code.format(path=str(path))
    assert subprocess.run([sys.executable, "-c", alone], check=False).returncode == 0
    assert subprocess.run([sys.executable, "-c", "import torch; " + alone], check=False).returncode == 1


# --- memory -------------------------------------------------------------------------------------------------


def test_buffers_are_reused_and_released():
    cell, u = LEMCell(2, 64), torch.randn(200, 16, 2)
    cpu.release_memory()
    first = cell.sequence(u)[0]
    address = first.data_ptr()
    copy = first.detach().clone()
    del first
    again = cell.sequence(u)[0]
    assert again.data_ptr() == address
    assert_close(again, copy, "exact")
    held = cell.sequence(u)[0]  # a tensor that is alive is never given away
    assert held.data_ptr() != again.data_ptr()
    del again, held
    cpu.release_memory()
    assert buffers._cache.free == []


def test_no_memory_is_an_error_that_leaves_the_module_usable():
    cell = LEMCell(1, 1024)
    u = torch.zeros(1, 1, 1).expand(2**34, 1, 1)
    with pytest.raises(MemoryError, match=r"could not allocate [0-9,]+ bytes"):
        cell.sequence(u)
    assert cell.sequence(torch.zeros(3, 1, 1))[0].shape == (3, 1, 1024)


def test_a_budget_chooses_what_is_kept():
    u = torch.zeros(2000, 8, 4)
    peaks = {m: cpu.memory_forecast(2000, 8, 4, 32, memory=m).peak for m in ("store", "recompute", "bounded")}
    assert peaks["store"] > peaks["recompute"] > peaks["bounded"]
    for memory, peak in peaks.items():
        assert plan(u, 32, False, peak)[0] == memory
    assert plan(u, 32, False, 1)[0] == "bounded"
    assert plan(u, 32, False, "auto")[0] == "store"


# --- streaming ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["plain", "no bias", "single scale", "clipped", "learned start"])
def test_single_steps_equal_the_sequence(target, variant):
    cell, u = build(3, 17, **VARIANTS[variant]), inputs(9, 2, 3)
    outputs, final = cell.sequence(u)
    stepper = cpu.Stepper(cell, batch=2)
    for t in range(9):
        stepper.u.copy_(u[t])
        stepper.step()
        assert_close(stepper.y, outputs[t], "exact")
    assert_close(stepper.z, final[1], "exact")


def test_a_stepper_advances_tables_of_any_number_of_rows_in_place(target):
    cell = build(3, 17)
    stepper = cpu.Stepper(cell)
    for rows in (2, 65, 1, 300, 7):
        u, (y, z) = inputs(1, rows, 3)[0], (torch.randn(rows, 17, dtype=cell.weight_z.dtype) for _ in range(2))
        expected = cell.sequence(u[None], (y, z))[1]
        y, z = y.clone(), z.clone()
        stepper.advance(u, y, z)
        assert_close(y, expected[0], "exact")
        assert_close(z, expected[1], "exact")
    with pytest.raises(ValueError, match=r"`z` of Stepper\.advance must be a contiguous"):
        stepper.advance(u, y, z.T.contiguous().T)
    with pytest.raises(ValueError, match=r"`u` of Stepper\.advance must be"):
        stepper.advance(u.to(torch.float16), y, z)


def test_the_struct_has_the_size_the_library_expects():
    p = library.Problem(ctypes.sizeof(library.Problem) - 8, 4, 1, 1, 1, 1, 1)
    assert library.library().lem_saved_bytes(p) < 0


def test_a_library_of_another_version_is_refused():
    found, reason = library.load(Path(torch._C.__file__))  # a library, and not ours
    assert found is None
    assert reason.code == "broken"
    assert "another version" in reason.text
    assert "Install the package again" in reason.remedy


@pytest.mark.parametrize("left", [0, 63, 4096, -1])
def test_a_library_cut_short_is_refused_and_the_loop_left(left, tmp_path):
    content = Path(library.__file__).with_name("_native.so").read_bytes()
    cut = tmp_path / "_native.so"
    cut.write_bytes(content[:left])
    found, reason = library.load(cut)  # without the check the loader maps the missing pages, and the process dies
    assert found is None
    assert reason.code == "broken"
    cut.write_bytes(content)
    assert library.load(cut)[1] is None


@pytest.mark.parametrize("sizes", [(2**40, 2**20, 1, 64), (2**64 + 5, 1, 1, 1), (1, 2**63, 1, 1), (1, 1, 1, 2**40)])
def test_a_forecast_that_would_overflow_is_refused(sizes):
    with pytest.raises(ValueError, match=r"must ask for less than 2\^62 bytes"):
        cpu.memory_forecast(*sizes)


def test_a_forecast_grows_with_every_size():
    base = (1000, 64, 8, 128)
    for place in range(4):
        larger = tuple(size * (1000 if i == place else 1) for i, size in enumerate(base))
        assert cpu.memory_forecast(*larger).peak > cpu.memory_forecast(*base).peak > 0
