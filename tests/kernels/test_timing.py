"""The kernel with elapsed times, resets and a narrower y against the loop: every target, memory mode and direction."""

import itertools

import pytest
import torch

from lem import LEMCell
from lem.kernels import cpu
from lem.nn.cells import Cell
from tests.close import assert_close
from tests.kernels.test_cpu import KIND, inputs, target, thread_count  # noqa: F401

OPTIONS = {
    "plain": {},
    "single scale": {"single_scale": True},
    "clipped": {"clip": (0.2, 0.6)},
    "masked": {"state_dropout": 0.4},
    "learned": {"learn_initial_state": True},
    "no bias": {"bias": False},
}
# (steps, batch, inputs, hidden, proj_size): around the vector widths and the chunks of the backward pass
SIZES = [
    (3, 2, 1, 1, 0),
    (7, 3, 3, 9, 8),
    (140, 2, 1, 17, 3),
    (9, 7, 17, 33, 16),
    (5, 66, 2, 40, 39),
    (4, 2, 30, 130, 1),
]


def build(m, d, proj, dtype=torch.float64, dt=0.9, **options):
    torch.manual_seed(1)
    cell = LEMCell(m, d, proj_size=proj, dt=dt, dtype=dtype, backend="native", **options)
    with torch.no_grad():
        for p in cell.parameters():
            p.mul_(2.0).add_(0.01)
    return cell


def timing(steps, batch, dtype, which, seed=5):
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(steps, batch, dtype=torch.float64, generator=generator)
    elapsed = torch.where(uniform < 0.2, 1.0, torch.exp(4.0 * uniform - 2.5)).to(dtype)
    resets = torch.rand(steps, batch, generator=generator) < 0.3
    given = {}
    if "elapsed" in which:
        given["elapsed"] = elapsed.requires_grad_()
    if "resets" in which:
        given["resets"] = resets
    return given


def everything(cell, u, lengths, reverse, given, loop=False):
    torch.manual_seed(2)  # the dropout mask
    run = Cell.loop if loop else type(cell).sequence
    u = u.detach().requires_grad_()
    generator = torch.Generator().manual_seed(6)
    state = cell.state_type(
        *(
            torch.rand(u.shape[1], size, dtype=u.dtype, generator=generator).requires_grad_()
            for size in cell.state_sizes
        )
    )
    outputs, final = run(cell, u, state, lengths, reverse, **given)
    weight = (torch.rand(outputs.shape, generator=torch.Generator().manual_seed(3)) - 0.3).to(u.dtype)
    loss = (outputs * weight).sum() / len(u) + (final[0] * 0.7).sum() - (final[1] ** 2).sum()
    leaves = [u, *state, *(e for e in given.values() if e.is_floating_point()), *cell.parameters()]
    return [outputs, *final], torch.autograd.grad(loss, leaves, materialize_grads=True)


def compare(cell, u, lengths, reverse, given):
    forward, backward = KIND[u.dtype]
    ours, theirs = everything(cell, u, lengths, reverse, given), everything(cell, u, lengths, reverse, given, loop=True)
    for a, b in zip(ours[0], theirs[0]):
        assert_close(a, b, forward)
    for a, b in zip(ours[1], theirs[1]):
        assert_close(a, b, backward)


def rows(steps, batch):
    return torch.randint(1, steps + 1, (batch,), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_every_target_equals_the_loop(target, size, dtype):  # noqa: F811
    steps, batch, m, d, proj = size
    for reverse, which in itertools.product((False, True), ((), ("elapsed", "resets"))):
        given = timing(steps, batch, dtype, which)
        compare(build(m, d, proj, dtype), inputs(steps, batch, m, dtype), rows(steps, batch), reverse, given)


@pytest.mark.parametrize("which", [("elapsed",), ("resets",), ("elapsed", "resets")], ids="+".join)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_every_option_equals_the_loop(reverse, unequal, options, which):
    steps, batch, m, d = 12, 5, 3, 21
    for proj, dt in ((0, 1.0), (6, 0.8)):
        cell = build(m, d, proj, dt=dt, **OPTIONS[options])
        given = timing(steps, batch, torch.float64, which)
        compare(cell, inputs(steps, batch, m), rows(steps, batch) if unequal else None, reverse, given)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("single_scale", [False, True])
def test_what_is_kept_changes_no_bit(reverse, single_scale):
    steps, batch, m, d = 300, 3, 2, 19
    given = timing(steps, batch, torch.float32, ("elapsed", "resets"))
    found = []
    for memory in ("store", "recompute", "bounded"):
        cell = build(m, d, 7, torch.float32, memory=memory, single_scale=single_scale)
        found.append(everything(cell, inputs(steps, batch, m, torch.float32), rows(steps, batch), reverse, given))
    for other in found[1:]:
        for a, b in zip([*found[0][0], *found[0][1]], [*other[0], *other[1]]):
            assert torch.equal(a, b)


def test_threads_change_sums_over_rows_alone(thread_count):  # noqa: F811
    given = timing(60, 6, torch.float64, ("elapsed", "resets"))
    cell, u = build(2, 40, 24), inputs(60, 6, 2)
    thread_count(1)
    one = everything(cell, u, rows(60, 6), False, given)
    thread_count(2)
    two = everything(cell, u, rows(60, 6), False, given)
    for a, b in zip([*one[0], *one[1][:4]], [*two[0], *two[1][:4]]):  # outputs, states, gradients of u, state, elapsed
        assert torch.equal(a, b)
    for a, b in zip(one[1][4:], two[1][4:]):
        assert_close(a, b, "float64 gradient")


@pytest.mark.parametrize("memory", ["store", "recompute", "bounded"])
def test_sizes_are_those_that_tracing_forecasts(memory):
    cell = build(2, 9, 4, memory=memory, learn_initial_state=True)
    given = timing(7, 3, torch.float64, ("elapsed", "resets"))
    state = (s.detach() for s in cell.init_state(3))
    weights = (cell.weight_u, cell.weight_y, cell.weight_z, cell.bias)
    keep = {"store": 1, "recompute": 2, "bounded": 3}[memory]
    arguments = (
        inputs(7, 3, 2).requires_grad_(), *weights, *state, None, None, 0.9, None, True, keep, 3,
        given["elapsed"], given["resets"], cell.y_0, cell.z_0,
    )  # fmt: skip
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(torch.ops.lem.sequence, arguments, test_utils=tests)


def test_compiled_as_written(shapes_unchecked):
    cell, given = build(2, 9, 4), timing(7, 3, torch.float64, ("elapsed", "resets"))
    u = inputs(7, 3, 2)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def run(u, elapsed, resets):
        return cell.sequence(u, None, None, False, elapsed, resets)[0]

    assert torch.equal(run(u, **given), cell.sequence(u, **given)[0])


def test_the_forecast_knows_elapsed_times_and_projections():
    plain = cpu.memory_forecast(500, 8, 2, 64)
    assert cpu.memory_forecast(500, 8, 2, 64, elapsed=True).kept > 1.3 * plain.kept
    assert cpu.memory_forecast(500, 8, 2, 64, proj_size=16).kept < plain.kept
    assert cpu.memory_forecast(500, 8, 2, 64, proj_size=16).outputs == plain.outputs // 4
    assert cpu.memory_forecast(500, 8, 2, 64, resets=True).peak < 1.05 * plain.peak
    with pytest.raises(ValueError, match="`proj_size` at most `hidden_size`"):
        cpu.memory_forecast(5, 8, 2, 64, proj_size=65)


# --- single steps ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"proj_size": 5}, {"single_scale": True}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stepper_takes_elapsed_times(target, dtype, options):  # noqa: F811
    torch.manual_seed(0)
    cell = LEMCell(3, 17, dt=0.9, dtype=dtype, backend="native", **options)
    u, given = inputs(6, 2, 3, dtype), timing(6, 2, dtype, ("elapsed",))
    elapsed = given["elapsed"].detach()
    with torch.no_grad():
        outputs, final = cell.sequence(u, elapsed=elapsed)
    stepper = cpu.Stepper(cell, batch=2)
    y, z = (s.clone() for s in cell.init_state(2))
    for t in range(6):
        stepper.advance(u[t].contiguous(), y, z, elapsed[t].contiguous())
        assert torch.equal(y, outputs[t])
    assert torch.equal(z, final.z)
    alone = cpu.Stepper(cell)
    alone.u.copy_(u[0, :1])
    for gap in (2.5, None, 1.0):
        before = alone.y.clone(), alone.z.clone()
        alone.step(gap)
        timed = {} if gap is None else {"elapsed": torch.full((1, 1), gap, dtype=dtype)}
        with torch.no_grad():
            assert torch.equal(alone.y, cell.sequence(u[:1, :1], cell.state_type(*before), **timed)[0][0])


def test_a_stepper_refuses_what_it_cannot_step():
    u, y, z = torch.zeros(2, 3), torch.zeros(2, 5), torch.zeros(2, 5)
    stepper = cpu.Stepper(LEMCell(3, 5, dt=0.5), batch=2)
    with pytest.raises(ValueError, match="must be positive"):
        stepper.advance(u, y, z, torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match="must be positive"):
        stepper.step(-1.0)
    with pytest.raises(ValueError, match=r"`elapsed` of Stepper.advance must be a contiguous"):
        stepper.advance(u, y, z, torch.ones(3))
    with pytest.raises(ValueError, match="`dt` <= 1"):
        cpu.Stepper(LEMCell(3, 5, dt=1.5)).step(2.0)
    with pytest.raises(ValueError, match=r"`y` of Stepper.advance must be a contiguous"):
        stepper.advance(u, torch._neg_view(y), z)


@pytest.mark.skipif(len(cpu.targets()) < 3, reason="needs two vector targets")
def test_weights_packed_for_another_target_are_refused():
    cell = LEMCell(3, 5)
    with cpu.using_target("baseline"):
        stepper = cpu.Stepper(cell)
    with cpu.using_target(cpu.targets()[-1]):
        with pytest.raises(ValueError, match="packed for another problem or another target; call `reload`"):
            stepper.step()
        stepper.reload()
        stepper.step()
