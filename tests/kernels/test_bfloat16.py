"""Products of bfloat16 numbers in the kernel: against equation (3) with rounded operands, and the types of a call."""

import copy

import pytest
import torch
from torch import nn

from lem import LEM, LEMCell
from lem.kernels import cpu
from lem.kernels.cpu import precision
from lem.kernels.cpu.library import all_targets, library
from tests.close import TABLE, assert_close

ALL = cpu.targets()
ROUNDING = [name for i, name in enumerate(all_targets()) if name in ALL and library().lem_target_bfloat16(i)]
OTHERS = [name for name in ALL if name not in ROUNDING]
VARIANTS = {
    "plain": {},
    "no bias": {"bias": False},
    "single scale": {"single_scale": True},
    "clipped": {"clip": (0.2, 0.6)},
    "state dropout": {"state_dropout": 0.4},
    "learned start": {"learn_initial_state": True},
}
SIZES = [(1, 1, 1, 1), (3, 3, 3, 7), (140, 2, 1, 8), (9, 7, 17, 33), (5, 66, 2, 16), (4, 2, 300, 17), (3, 9, 2, 129)]


@pytest.fixture(params=ROUNDING)
def target(request):
    with cpu.using_target(request.param):
        yield request.param


class Product(torch.autograd.Function):
    """x W^T in float64 with every operand rounded to bfloat16, in the backward pass too."""

    @staticmethod
    def forward(ctx, x, weight):
        x, weight = (t.to(torch.bfloat16).to(torch.float64) for t in (x, weight))
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = grad.to(torch.bfloat16).to(torch.float64)
        return grad @ weight, grad.T @ x


def rounded(cell, u, lengths=None, reverse=False):
    """Run equation (3) in float64 with rounded operands; one row after the other, without `Cell`."""
    d, gates = cell.hidden_size, 0 if cell.single_scale else 2
    mask = cell.prepare(u.shape[1])
    bias = torch.zeros((gates + 2) * d, dtype=u.dtype) if cell.bias is None else cell.bias
    rows, finals = [], []
    for row in range(u.shape[1]):
        steps = int(lengths[row]) if lengths is not None else len(u)
        y, z = (s[row] for s in cell.init_state(u.shape[1]))
        kept = [torch.zeros(d, dtype=u.dtype)] * len(u)
        for t in reversed(range(steps)) if reverse else range(steps):
            y_in = y * mask[0][row] if mask else y
            from_u = Product.apply(u[t, row][None], cell.weight_u)[0] + bias
            from_y = Product.apply(y_in[None], cell.weight_y)[0]
            a = from_u[: (gates + 1) * d] + from_y
            steps_of = [cell.dt * torch.sigmoid(a[i * d : (i + 1) * d]) for i in range(gates)] or [cell.dt, cell.dt]
            dt_z, dt_y = (s.clamp(*cell.clip) for s in steps_of) if cell.clip is not None else steps_of
            z = z + dt_z * (torch.tanh(a[gates * d :]) - z)
            y = y + dt_y * (torch.tanh(Product.apply(z[None], cell.weight_z)[0] + from_u[(gates + 1) * d :]) - y)
            kept[t] = y
        rows.append(torch.stack(kept))
        finals.append((y, z))
    return torch.stack(rows, 1), tuple(torch.stack(states) for states in zip(*finals))


def everything(run, cell, u, *rest):
    """Return outputs, final states and all gradients in float64."""
    torch.manual_seed(2)  # the dropout mask
    u = u.detach().requires_grad_()
    outputs, final = run(u, *rest)
    weight = torch.rand(outputs.shape, generator=torch.Generator().manual_seed(3)).to(outputs.dtype) - 0.3
    loss = (outputs * weight).sum() / len(u) + (final[0] * 0.7).sum() - (final[1] ** 2).sum()
    gradients = torch.autograd.grad(loss, [u, *cell.parameters()])
    return [t.detach().double() for t in (outputs, *final, *gradients)]


def build(m, d, **options):
    torch.manual_seed(1)
    cell = LEMCell(m, d, dt=0.9, backend="native", precision="bfloat16", **options)
    with torch.no_grad():
        for p in cell.parameters():
            p.mul_(2.0)
    return cell


def assert_rounds_alike(ours, theirs, floats):
    """The mean distance from the rounded equation is a fraction of that of the kernel in float32.

    A last bit may decide how an operand is rounded, so that single values differ; on the whole they must not.
    """
    for a, b in zip(ours, theirs):
        assert_close(a, b, "rounded operands")
    distance = [sum(float((x - b).abs().sum() / b.abs().max().clamp(min=1e-9)) for x, b in zip(xs, theirs))
                for xs in (ours, floats)]  # fmt: skip
    assert distance[0] <= TABLE["rounded alike"].relative * distance[1] + TABLE["rounded alike"].absolute


def compare(cell, u, *rest):
    exact = copy.deepcopy(cell).double()
    floats = copy.deepcopy(cell)
    floats.precision = "float32"
    ours = everything(lambda *a: run_cell(cell, *a), cell, u, *rest)
    theirs = everything(lambda *a: rounded(exact, *a), exact, u.double(), *rest)
    plain = everything(lambda *a: run_cell(floats, *a), floats, u, *rest)
    return ours, theirs, plain


def run_cell(cell, u, lengths=None, reverse=False):
    return cell.sequence(u, None, lengths, reverse)


def inputs(steps, batch, m):
    return torch.randn(steps, batch, m, generator=torch.Generator().manual_seed(4))


def test_a_target_of_this_machine_rounds():
    assert "scalar" in ROUNDING


@pytest.mark.parametrize("size", SIZES)
def test_every_target_equals_the_rounded_equation(target, size):
    steps, batch, m, d = size
    assert_rounds_alike(*compare(build(m, d), inputs(steps, batch, m)))


@pytest.mark.parametrize(("reverse", "unequal"), [(False, False), (True, True), (False, True)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_equals_the_rounded_equation(target, variant, reverse, unequal):
    lengths = torch.tensor([13, 1, 7, 7, 12]) if unequal else None
    assert_rounds_alike(*compare(build(3, 11, **VARIANTS[variant]), inputs(13, 5, 3), lengths, reverse))


def test_products_that_do_not_round_are_caught(target):
    _, theirs, floats = compare(build(3, 33), inputs(30, 5, 3))
    with pytest.raises(AssertionError):
        assert_rounds_alike(floats, theirs, floats)


def test_what_is_kept_changes_nothing(target):
    u, lengths = inputs(300, 3, 2), torch.tensor([300, 17, 120])
    for given in (None, lengths):
        runs = []
        for memory in ("store", "recompute", "bounded"):
            cell = build(2, 9, memory=memory)
            runs.append(everything(lambda *a, cell=cell: run_cell(cell, *a), cell, u, given))
        for other in runs[1:]:
            for a, b in zip(other, runs[0]):
                assert_close(a, b, "exact")


def test_rows_do_not_depend_on_threads(target):
    cell, u, before = build(2, 40), inputs(60, 7, 2), torch.get_num_threads()
    try:
        runs = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            runs.append(everything(lambda *a: run_cell(cell, *a), cell, u))
    finally:
        torch.set_num_threads(before)
    for other in runs[1:]:
        for a, b in zip(other[:4], runs[0][:4]):  # outputs, states and the gradient of the input
            assert_close(a, b, "exact")
        for a, b in zip(other[4:], runs[0][4:]):
            assert_close(a, b, "float32 gradient")


@pytest.mark.parametrize("steps", [784, pytest.param(5000, marks=pytest.mark.slow)])
def test_the_stated_error_at_128_units(steps):
    """What docs/kernel.md says of fresh weights: the error of outputs and gradients against float64."""
    torch.manual_seed(0)
    cell, u = LEMCell(2, 128, precision="bfloat16"), inputs(steps, 2, 2)
    exact = copy.deepcopy(cell).double()
    ours = everything(lambda *a: run_cell(cell, *a), cell, u)
    theirs = everything(lambda *a: run_cell(exact, *a), exact, u.double())
    scaled = [(a / b.abs().max(), b / b.abs().max()) for a, b in zip(ours, theirs)]
    for a, b in scaled[:3]:
        assert_close(a, b, "bfloat16 output")
    for a, b in scaled[3:]:
        assert_close(a, b, "bfloat16 gradient")


@pytest.fixture(scope="module")
def trained():
    """A cell of 128 units after 150 updates of the adding problem, with gates that have opened."""
    torch.manual_seed(0)
    layer, readout = LEM(2, 128, dt=1.0, initial_dt=0.05), nn.Linear(128, 1)
    optimizer = torch.optim.Adam([*layer.parameters(), *readout.parameters()], lr=0.005)
    generator, errors = torch.Generator().manual_seed(5), []
    for _ in range(150):
        u = adding(60, 32, generator)
        error = (readout(layer(u)[0][-1])[:, 0] - (u[:, :, 0] * u[:, :, 1]).sum(0)).square().mean()
        optimizer.zero_grad()
        error.backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        errors.append(error.item())
    assert sum(errors[-20:]) < 0.5 * sum(errors[:20])
    return layer.cells[0]


def adding(steps, rows, generator):
    """Numbers, and marks at two of them."""
    u = torch.rand(steps, rows, 2, generator=generator)
    u[:, :, 1] = 0.0
    for half_way in (0, steps // 2):
        u[half_way + torch.randint(steps // 2, (rows,), generator=generator), torch.arange(rows), 1] = 1.0
    return u


@pytest.mark.slow
@pytest.mark.parametrize("steps", [784, 5000])
def test_the_stated_error_of_trained_weights(trained, steps):
    cell, u = copy.deepcopy(trained), adding(steps, 2, torch.Generator().manual_seed(6))
    exact = copy.deepcopy(cell).double()
    cell.precision = "bfloat16"
    ours = everything(lambda *a: run_cell(cell, *a), cell, u)
    theirs = everything(lambda *a: run_cell(exact, *a), exact, u.double())
    scaled = [(a / b.abs().max(), b / b.abs().max()) for a, b in zip(ours, theirs)]
    for a, b in scaled[:3]:
        assert_close(a, b, "trained bfloat16 output")
    for a, b in scaled[3:]:
        assert_close(a, b, "trained bfloat16 gradient")
    if precision.has_bfloat16():  # rounding is there at all
        with pytest.raises(AssertionError):
            assert_close(ours[0], theirs[0], "float32")


# --- types ------------------------------------------------------------------------------------------------------


def types_of(layer, u, **options):
    with torch.autocast("cpu", enabled=False) if not options else torch.autocast("cpu", **options):
        outputs, final = layer(u)
        outputs.float().sum().backward()
    return outputs.dtype, {s.dtype for s in final}, {p.grad.dtype for p in layer.parameters()}


@pytest.mark.parametrize("layer", [LEM, nn.LSTM])
def test_autocast_gives_the_types_of_nn_lstm(layer):
    u = torch.randn(6, 2, 3)
    found = types_of(layer(3, 5), u, dtype=torch.bfloat16)
    assert found == (torch.bfloat16, {torch.bfloat16}, {torch.float32})
    assert types_of(layer(3, 5), u.bfloat16(), dtype=torch.bfloat16) == found
    assert types_of(layer(3, 5).bfloat16(), u.bfloat16()) == (torch.bfloat16, {torch.bfloat16}, {torch.bfloat16})
    assert types_of(layer(3, 5).double(), u.double(), dtype=torch.bfloat16)[0] == torch.float64


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_modules_of_half_precision_run_on_the_kernel(kind):
    torch.manual_seed(0)
    model, u = LEM(3, 20, num_layers=2, bidirectional=True), torch.randn(10, 2, 3)
    expected, _ = model(u)
    half = copy.deepcopy(model).to(kind)
    assert half.backend_for(u.to(kind))[0] == "native"
    assert_close(half(u.to(kind))[0], expected, "bfloat16")
    with torch.autocast("cpu", kind):
        assert model.backend_for(u)[0] == "native"
        outputs, _ = model(u)
    assert outputs.dtype == kind
    assert_close(outputs, expected, "bfloat16")


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_long_sequences_go_through_kept_buffers(kind):
    """Above a quarter of a megabyte the results are in memory that is reused."""
    torch.manual_seed(0)
    layer, u = LEM(2, 64), torch.randn(600, 8, 2, requires_grad=True)
    gradient = torch.randn(600, 8, 64)
    layer(u)[0].backward(gradient)
    expected = [u.grad.clone(), *(p.grad.clone() for p in layer.parameters())]
    u.grad = None
    layer.zero_grad()
    with torch.autocast("cpu", kind):
        outputs, _ = layer(u)
    assert outputs.dtype == kind
    assert outputs.numel() * outputs.itemsize > 1 << 18
    outputs.backward(gradient.to(kind))
    for p, e in zip([u, *layer.parameters()], expected):
        assert_close(p.grad / e.abs().max(), e / e.abs().max(), "bfloat16 gradient")


def test_the_option_rounds_in_float32_code():
    torch.manual_seed(0)
    cell, u = LEMCell(3, 40, precision="bfloat16"), torch.randn(30, 4, 3)
    outputs, _ = cell.sequence(u)
    assert outputs.dtype == torch.float32
    cell.precision = "float32"
    floats, _ = cell.sequence(u)
    assert torch.equal(outputs, floats) != precision.has_bfloat16()
    with pytest.raises(
        ValueError, match="`precision` of LEMCell must be one of 'auto', 'float32', 'bfloat16'; got 'half'"
    ):
        LEMCell(2, 3, precision="half")


@pytest.mark.parametrize("name", OTHERS)
def test_processors_without_the_instructions_compute_in_float32(name):
    cell, u = LEMCell(3, 20, precision="bfloat16"), torch.randn(12, 4, 3)
    with cpu.using_target(name):
        backend, how = cell.backend_for(u)
        assert (backend, "float32, because this processor has no AVX512-BF16" in how) == ("native", True)
        outputs, _ = cell.sequence(u)
        cell.precision = "float32"
        assert torch.equal(cell.sequence(u)[0], outputs)


def test_backend_for_names_the_precision(target):
    cell, u = LEMCell(3, 4), torch.zeros(5, 2, 3)
    assert cell.backend_for(u)[1].endswith(", float32")
    assert cell.double().backend_for(u.double())[1].endswith(", float64")
    cell.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert cell.backend_for(u)[1].endswith(", products of bfloat16 numbers, sums in float32")
    with torch.autocast("cpu", torch.float16):
        assert cell.backend_for(u)[1].endswith(", float32, results rounded to float16")


def test_mixed_types_outside_of_autocast_are_refused():
    backend, why = LEMCell(3, 4).backend_for(torch.zeros(5, 2, 3, dtype=torch.bfloat16))
    assert (backend, "different types" in why) == ("loop", True)
