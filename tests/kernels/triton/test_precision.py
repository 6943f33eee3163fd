"""What reduced products do to LEM over many steps, emulated: float32 states, rounded operands, exact accumulation.

The interpreter ignores how float32 is multiplied, and there is no GPU here: the modes of `paths.mode_of` are emulated
on the loop. The bounds are rows of the tolerance table.
"""

import pytest
import torch
from torch.nn import functional

from lem import LEM, LEMCell
from lem.nn.cells import LEMState
from lem.tasks import TASKS
from tests.close import TABLE, assert_close
from tests.tasks.real import needs

MODES = {"tf32x3": (10, 2), "tf32": (10, 1), "bfloat16": (7, 1)}
"""The explicit bits of an operand's mantissa, and of how many such parts it is made."""


def rounded(x, bits):
    """Round float32 numbers to so many explicit bits of mantissa, to nearest even."""
    drop = 23 - bits
    i = x.contiguous().view(torch.int32)
    i = (i + ((1 << (drop - 1)) - 1) + ((i >> drop) & 1)) & ~((1 << drop) - 1)
    return i.view(torch.float32)


class Product(torch.autograd.Function):
    """x @ w.T with rounded operands; its backward pass rounds the operands of the recurrent product too."""

    @staticmethod
    def forward(ctx, x, w, mode):
        ctx.mode = mode
        ctx.save_for_backward(x, w)
        return emulated(x, w.T, mode)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return emulated(grad, w, ctx.mode), grad.T @ x, None


def emulated(a, b, mode):
    bits, parts = MODES[mode]
    a_high, b_high = rounded(a, bits), rounded(b, bits)
    if parts == 1:
        return a_high @ b_high
    a_low, b_low = rounded(a - a_high, bits), rounded(b - b_high, bits)
    return a_low @ b_high + a_high @ b_low + a_high @ b_high


class Emulated(LEMCell):
    """LEM whose recurrent products are those of a mode."""

    mode = "tf32x3"

    def step(self, x, state, *mask):
        y, z = state
        *gates_u, z_u, y_u = x.chunk(4, dim=-1)
        *gates_y, z_y = Product.apply(y, self.weight_y, self.mode).chunk(3, dim=-1)
        dt_z, dt_y = self.time_steps(gates_u, gates_y)
        z = z + dt_z * (torch.tanh(z_y + z_u) - z)
        y = y + dt_y * (torch.tanh(Product.apply(z, self.weight_z, self.mode) + y_u) - y)
        return LEMState(y, z)


def errors(cell, u, mode, gradient):
    """Return outputs (and the gradient of weight_y for a loss at the last step) of a mode, and those of float64."""
    found = []
    for kind in (Emulated, LEMCell):
        exact = kind is LEMCell
        twin = kind(cell.input_size, cell.hidden_size, dt=cell.dt, backend="loop")
        twin.load_state_dict(cell.state_dict())
        twin.mode = mode
        twin.to(torch.float64 if exact else torch.float32)
        with torch.set_grad_enabled(gradient):
            outputs, _ = twin.sequence(u.double() if exact else u)
        if gradient:
            outputs[-1].sum().backward()
        found.append((outputs.detach(), twin.weight_y.grad))
    return found


def assert_within(cell, u, mode, gradient=False, kind=""):
    (outputs, slope), (exact, exact_slope) = errors(cell, u, mode, gradient)
    assert_close(outputs, exact, f"{kind}{mode} products")
    if gradient:
        assert_close(slope / exact_slope.norm(), exact_slope / exact_slope.norm(), f"{mode} products gradient")


@pytest.mark.parametrize("mode", MODES)
def test_fresh_weights(mode):
    assert_within(LEMCell(2, 128), torch.rand(100, 2, 2), mode, gradient=True)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_the_error_does_not_grow_with_time(mode):
    assert_within(LEMCell(2, 128), torch.rand(5000, 2, 2), mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_worse_mode_is_caught(mode):
    """Each mode's bound refuses operands with five bits fewer."""
    bits, parts = MODES[mode]
    cell, u = LEMCell(2, 128), torch.rand(50, 2, 2)
    before = dict(MODES)
    MODES[mode] = bits - 5, parts
    try:
        with pytest.raises(AssertionError, match="values differ"):
            assert_within(cell, u, mode)
    finally:
        MODES.update(before)


def trained(u, target, d, updates, dt=1.0, every_step=True):
    """Return the cell of a small model after some updates."""
    model, readout = LEM(u.shape[2], d, dt=dt), torch.nn.Linear(d, target.shape[-1])
    optimizer = torch.optim.Adam([*model.parameters(), *readout.parameters()], 1e-2)
    for _ in range(updates):
        outputs = readout(model(u)[0] if every_step else model(u)[0][-1])
        loss = functional.mse_loss(outputs, target) if every_step else functional.cross_entropy(outputs, target)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.cells[0], loss.item()


@pytest.mark.slow
def test_weights_trained_on_fitzhugh_nagumo():
    split = TASKS["fitzhugh_nagumo"](sizes=(32, 2, 2)).train
    u, target = (x.transpose(0, 1) for x in (split.inputs, split.targets))
    cell, loss = trained(u, target, 16, 150)
    assert loss < 0.01
    for mode in MODES:
        assert_within(cell, u[:, :4], mode, kind="trained ")


@needs("smnist")
@pytest.mark.slow
def test_weights_trained_on_smnist():
    split = TASKS["smnist"]().train
    u, target = split.read(split.inputs[:100]), split.targets[:100]
    cell, loss = trained(u, target, 64, 40, every_step=False)
    assert loss < 2.3
    for mode in MODES:
        assert_within(cell, u[:, :4], mode, kind="trained ")


def test_the_bounds_are_in_order():
    for kind in ("", "trained "):
        limits = [TABLE[f"{kind}{mode} products"].absolute for mode in MODES]
        assert limits == sorted(limits)
