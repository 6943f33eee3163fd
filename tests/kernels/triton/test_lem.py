"""The Triton kernels against the loop, in Triton's interpreter: values, final states and all gradients."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install '.[gpu]'")

from lem.kernels.triton import alternating, coefficients, lem, memory, resident, streamed
from tests import paper
from tests.close import assert_close
from tests.kernels.triton.problems import KINDS, VARIANTS, Case, assert_same, path_of, twin
from tests.nn.cells.weights import paper_weights


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_combination_of_variants_equals_the_loop(kind, variant):
    case = Case((2, 3, 2, 5), variant)
    assert_same(case.triton(path_of(kind, 5)), case.loop())


# One row, one step, one unit; neighbours of 16 rows and units; inputs on both sides of the in-kernel projection.
SIZES = [(1, 1, 1, 1), (2, 17, 16, 15), (3, 16, 17, 17)]


@pytest.mark.parametrize("sizes", SIZES)
def test_odd_sizes_with_all_variants_together(kind, sizes):
    case = Case(sizes, "clip mask lengths reverse")
    assert_same(case.triton(path_of(kind, sizes[-1])), case.loop())


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sizes", [(5, 19, 18, 33), (4, 5, 1, 64), (7, 2, 3, 70), (2, 33, 40, 31), (3, 1, 2, 129)])
def test_larger_sizes_with_each_combination_of_variants(kind, sizes, variant):
    case = Case(sizes, variant)
    assert_same(case.triton(path_of(kind, sizes[-1])), case.loop())


TIMED = [
    "elapsed", "resets", "projected", "single elapsed resets", "mask lengths elapsed resets projected",
    "clip mask lengths reverse elapsed resets projected",
]  # fmt: skip


@pytest.mark.parametrize("variant", TIMED)
def test_elapsed_times_restarts_and_narrow_outputs(kind, variant):
    case = Case((5, 3, 2, 5), variant)
    assert_same(case.triton(path_of(kind, 5)), case.loop())


@pytest.mark.slow
@pytest.mark.parametrize("extras", ["elapsed", "resets", "elapsed resets projected"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_each_combination_of_variants_with_times(kind, variant, extras):
    case = Case((5, 19, 3, 17), f"{variant.replace('plain', '')} {extras}")
    assert_same(case.triton(path_of(kind, 17)), case.loop())


@pytest.mark.parametrize("segment", [None, 2])
def test_times_of_all_sizes(kind, segment):
    """From almost nothing to so long that the state is forgotten, with dt = 1 and gates on both sides of a half."""
    case = Case((6, 2, 2, 5), "elapsed", dt=1.0, scale=2.0)
    case.elapsed = torch.tensor([1e-4, 0.3, 1.0, 1.0 + 1e-6, 30.0, 1e4])[:, None].expand(6, 2).contiguous()
    assert_same(case.triton(path_of(kind, 5), segment), case.loop(torch.float64))


def test_times_in_chunks(kind, monkeypatch):
    case = Case((5, 3, 17, 5), "lengths reverse elapsed resets projected")
    monkeypatch.setattr(memory, "WORK_BYTES", 2 * memory.work_per_step(3, 5, False, 4, True))
    assert_same(case.triton(path_of(kind, 5)), case.loop())


def test_without_bias(kind):
    case = Case((3, 2, 2, 5), bias=False)
    assert_same(case.triton(path_of(kind, 5)), case.loop())


@pytest.mark.parametrize(
    "variant", ["plain", "mask lengths", "mask lengths reverse", "lengths reverse elapsed resets projected"]
)
@pytest.mark.parametrize("segment", [2, 5])
def test_segments_with_checkpoints_give_the_same(segment, variant):
    case = Case((5, 3, 2, 5), variant)
    assert_same(case.triton(path_of("resident", 5), segment), case.loop())


@pytest.mark.parametrize("reverse", [False, True])
def test_chunks_of_time_give_the_same(kind, reverse, monkeypatch):
    """A chunk of two steps: forward through the projection, and backward."""
    case = Case((5, 3, 17, 5), "lengths reverse" if reverse else "lengths")
    monkeypatch.setattr(memory, "WORK_BYTES", 2 * memory.work_per_step(3, 5, False, 4))
    assert_same(case.triton(path_of(kind, 5)), case.loop())


def test_reduced_products(kind):
    """Operands in float16 and states in float32. The interpreter multiplies bfloat16 wrongly, so float16 stands in."""
    case = Case((4, 3, 2, 9))
    expected = case.loop(torch.float64)
    found = case.triton(path_of(kind, 9, torch.float16))
    assert_same(found, expected, "float16 products")
    with pytest.raises(AssertionError, match="values differ"):
        assert_same(found, expected)


@pytest.mark.parametrize("variant", ["plain", "clip mask lengths reverse", "single"])
def test_a_call_in_float16(kind, variant):
    case = Case((4, 3, 2, 9), variant, dtype=torch.float16)
    found = case.triton(path_of(kind, 9, torch.float16))
    assert {t.dtype for t in (*found.values, *found.gradients)} == {torch.float16}
    assert_same(found, case.loop(torch.float64), "float16 call")


def test_the_paper_says_the_same(kind):
    case = Case((6, 1, 3, 5))
    zero = np.zeros(5)
    case.state = [torch.zeros(1, 5), torch.zeros(1, 5)]
    expected, _ = paper.lem(paper_weights(case.cell.double()), case.u[:, 0].double().numpy(), zero, zero, case.cell.dt)
    case.cell.float()
    out, *_ = lem.forward(case.problem(), path_of(kind, 5), False)
    assert_close(out[:, 0], expected, "float32")


def test_a_transposed_input_and_a_strided_gradient(kind):
    case = Case((3, 4, 2, 5))
    case.u = torch.randn(4, 3, 2).transpose(0, 1)
    case.weights[0] = torch.randn(4, 3, 10)[..., ::2].transpose(0, 1)
    assert_same(case.triton(path_of(kind, 5)), case.loop())


@pytest.mark.parametrize("given", [(True, False, False), (False, True, True), (False, False, True)])
def test_gradients_that_are_missing_count_as_zero(kind, given):
    case = Case((3, 2, 2, 5))
    p, path = case.problem(), path_of(kind, 5)
    out, _, _, saved = lem.forward(p, path, True)
    grads = [weight if there else None for weight, there in zip(case.weights, given)]
    found = lem.backward(*grads, p, out, saved, path, None, False)
    case.weights = [weight if there else torch.zeros_like(weight) for weight, there in zip(case.weights, given)]
    expected = case.loop().gradients
    assert not found[0].numel()
    for a, b in zip(found[1:7], expected[1:], strict=True):
        assert_close(a, b, "float32 gradient")


@pytest.mark.parametrize("reverse", [False, True])
def test_padding_reaches_nothing(kind, reverse):
    case = Case((4, 3, 2, 5), "lengths reverse elapsed" if reverse else "lengths elapsed")
    case.lengths = torch.tensor([4, 1, 2])
    clean = case.triton(path_of(kind, 5))
    case.u[1:, 1] = float("nan")
    case.u[2:, 2] = float("inf")
    case.elapsed[2:, 2] = float("nan")
    dirty = case.triton(path_of(kind, 5))
    for a, b in zip((*dirty.values, *dirty.gradients), (*clean.values, *clean.gradients)):
        assert_close(a, b, "exact")
    assert not dirty.values[0][1:, 1].any()


def test_no_batch_and_twice_the_same_bits(kind):
    case = Case((3, 0, 2, 5))
    found = case.triton(path_of(kind, 5))
    assert found.values[0].shape == (3, 0, 5)
    case = Case((3, 2, 2, 5))
    first, second = case.triton(path_of(kind, 5)), case.triton(path_of(kind, 5))
    for a, b in zip((*first.values, *first.gradients), (*second.values, *second.gradients)):
        assert_close(a, b, "exact")


def test_extreme_inputs_stay_finite(kind):
    case = Case((3, 2, 2, 5), scale=1e4)
    with np.errstate(over="ignore"):
        assert_same(case.triton(path_of(kind, 5)), case.loop())


# What to break in each kernel, and a variant that shows it.
BROKEN = {
    "resident.forward: y from the old z": (resident, "tl.dot(z_new.to(PRODUCT)", "tl.dot(z.to(PRODUCT)", "plain"),
    "resident.forward: gates swapped": (resident, "load_weight(w_ptr, 1, n", "load_weight(w_ptr, 0, n", "plain"),
    "resident.forward: last row missing": (
        resident, "yn_ptr + at, y, mask=inside", "yn_ptr + at, y, mask=inside & (rows[:, None] < B - 1)", "plain",
    ),
    "resident.forward: mask ignored": (resident, "y_in = y * keep", "y_in = y", "mask"),
    "resident.forward: padding shown": (resident, "shown = tl.where(here, y_new, 0.0)", "shown = y_new", "lengths"),
    "resident.adjoint: gate of y missing": (resident, "(g * c_2)", "(0.0 * c_2)", "plain"),
    "resident.adjoint: state not passed on": (resident, "h = h * keep_z", "h = h * keep_y", "plain"),
    "streamed.forward: one block too few": (streamed, "tl.range(0, d, BLOCK", "tl.range(BLOCK, d, BLOCK", "plain"),
    "streamed.forward: y from the old z": (streamed, "tl.store(s_z, z_new", "tl.store(s_z, z", "plain"),
    "streamed.adjoint: target of z missing": (streamed, "(gz * c_z)", "(0.0 * c_z)", "plain"),
    "streamed.adjoint: mask ignored": (streamed, "back = back * tl", "back = back + 0.0 * tl", "mask"),
    "alternating: gate of y from the gate of z": (alternating, "time_step(a_2", "time_step(a_1", "plain"),
    "alternating: output not held": (alternating, "y_new = tl.where(here, y_new, y)", "y_new = y_new", "lengths"),
    "alternating: adjoint of y not finished": (alternating, "* keep_y + back", "+ back", "plain"),
    "alternating: adjoint of z forgets": (alternating, "h = h * keep_z", "h = h", "plain"),
    "coefficients: clipped gates keep a slope": (coefficients, "slope, 0.0)", "slope, slope)", "clip"),
    "coefficients: rows begin at the end": (coefficients, "first | (start", "first & (start", "lengths reverse"),
    "coefficients: bias missing": (coefficients, "a_z += tl.load(b_ptr", "a_z += 0.0 * tl.load(b_ptr", "plain"),
    "resident.forward: y not restarted": (resident, "y = tl.where(restart, y_start, y)", "y = y", "resets"),
    "resident.forward: time of z ignored": (resident, "dt_z = stretch(dt_z, elapsed)", "dt_z = dt_z", "elapsed"),
    "resident.adjoint: restart lets z through": (resident, "h = tl.where(restart, 0.0, h)", "h = h", "resets"),
    "resident.adjoint: start of y learns nothing": (resident, "own, g, restart", "own, 0.0 * g, restart", "resets"),
    "resident.adjoint: fixed step not stretched": (
        resident, "if ELAPSED else forget", "if False else forget", "single elapsed",
    ),
    "streamed.forward: restart a step late": (streamed, "t - 1 if REVERSE else t + 1", "t", "resets"),
    "streamed.forward: time of y ignored": (streamed, "dt_y = stretch(dt_y, elapsed)", "dt_y = dt_y", "elapsed"),
    "streamed.adjoint: restart lets y through": (streamed, "gy = tl.where(restart, 0.0, gy)", "gy = gy", "resets"),
    "streamed.adjoint: start of z learns twice": (streamed, "local, gz, restart", "local, 2.0 * gz, restart", "resets"),
    "alternating: z not restarted": (alternating, "z = tl.where(restart, tl", "z += 0*tl.where(restart, tl", "resets"),
    "alternating: time of y ignored": (alternating, "dt_y = stretch(dt_y, elapsed)", "dt_y = dt_y", "elapsed"),
    "alternating: adjoint of z passes a restart": (alternating, "h = tl.where(restart, 0.0, h)", "h = h", "resets"),
    "alternating: adjoints of z not kept": (alternating, "2 * at + 1, h,", "2 * at + 1, 0.0 * h,", "elapsed"),
    "coefficients: slope without the time": (coefficients, "elapsed * (1.0 - h) * dt", "(1.0 - h) * dt", "elapsed"),
    "coefficients: time without a slope": (coefficients, "(h - 1.0) * log_rest(g)", "0.0 * log_rest(g)", "elapsed"),
    "coefficients: restart forgotten": (coefficients, "tl.where(restart, ystart_ptr, y_from)", "y_from", "resets"),
    "deltas: gates swapped": (coefficients, "tl.store(to + d, (g", "tl.store(to + d, (h", "plain"),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_twin_is_caught(broken, tmp_path, monkeypatch):
    module, old, new, variant = BROKEN[broken]
    copy = twin(module, tmp_path, old, new)
    kind = "resident"
    if module is coefficients:
        monkeypatch.setattr(lem, "coefficients", copy.coefficients)
        monkeypatch.setattr(lem, "deltas", copy.deltas)
    else:
        kind = module.__name__.rpartition(".")[2]
        monkeypatch.setattr(lem, kind, copy)
    case = Case((4, 3, 2, 5), variant)
    case.lengths = None if case.lengths is None else torch.tensor([4, 1, 2])
    with pytest.raises(AssertionError, match="values differ"):
        assert_same(case.triton(path_of(kind, 5)), case.loop())
