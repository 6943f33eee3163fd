"""coRNN's stability and UnICORNN's geometry: volume, reversal, reconstruction in constant memory."""

import math

import pytest
import torch

from lem import Recurrent
from lem.kernels import loop_only
from lem.nn.cells import Cell
from lem.nn.recurrent import make_cell
from tests.close import assert_close

D, M = 5, 3
# dt, gamma, epsilon of the authors' scripts for coRNN.
AUTHORS = [(0.06, 66, 15), (0.042, 2.7, 4.7), (0.076, 0.4, 8), (0.034, 1.3, 12.7), (0.1, 0.2, 6.4), (0.054, 4.9, 4.8)]


def radius(dt, gamma, epsilon):
    """Return the largest modulus of an eigenvalue of coRNN's linear part, by its matrix on (y, z)."""
    cell = make_cell("cornn", 1, 1, bias=False, dtype=torch.float64)
    cell.dt, cell.gamma, cell.epsilon = dt, gamma, epsilon
    with torch.no_grad():
        for p in cell.parameters():
            p.zero_()
    images = [
        cell(torch.zeros(1, 1, dtype=torch.float64), torch.tensor([[[y]], [[z]]], dtype=torch.float64).unbind())
        for y, z in ((1.0, 0.0), (0.0, 1.0))
    ]
    matrix = torch.tensor([[field.item() for field in image] for image in images], dtype=torch.float64)
    return float(torch.linalg.eigvals(matrix).abs().max())


@pytest.mark.parametrize(("dt", "gamma", "epsilon"), AUTHORS)
def test_the_authors_settings_are_stable(dt, gamma, epsilon):
    make_cell("cornn", M, D, dt=dt, gamma=gamma, epsilon=epsilon)
    assert radius(dt, gamma, epsilon) < 1.0


@pytest.mark.parametrize(("dt", "gamma", "epsilon"), [(1.0, 0.1, 2.1), (1.0, 2.1, 1.0), (0.5, 20.0, 0.1)])
def test_unstable_oscillators_are_refused_with_the_numbers(dt, gamma, epsilon):
    assert radius(dt, gamma, epsilon) > 1.0
    numbers = f"epsilon dt = {epsilon * dt:.4g} and gamma dt\\^2 = {gamma * dt**2:.4g}"
    with pytest.raises(ValueError, match=numbers):
        make_cell("cornn", M, D, dt=dt, gamma=gamma, epsilon=epsilon)


def test_the_condition_is_sharp():
    """Just inside the region the linear part contracts, just outside it does not, all along its border."""
    for damping in (0.1, 0.9, 1.5, 1.9):
        border = 4.0 - 2.0 * damping
        assert radius(1.0, 0.999 * border, damping) < 1.0 < radius(1.0, 1.001 * border, damping)


def test_unicornn_keeps_volume():
    """The determinant of the Jacobian of one step is 1."""
    cell = make_cell("unicornn", M, D, dt=0.7, alpha=2.0, dtype=torch.float64)
    x = cell.project(torch.randn(1, 1, M, dtype=torch.float64))[0]
    prepared = cell.prepare(1)

    def step(flat):
        state = cell.state_type(flat[None, :D], flat[None, D:])
        return torch.cat(cell.step(x, state, *prepared), dim=-1)[0]

    jacobian = torch.autograd.functional.jacobian(step, torch.randn(2 * D, dtype=torch.float64))
    assert_close(torch.linalg.det(jacobian), torch.tensor(1.0), "float64")
    assert (jacobian - torch.eye(2 * D)).abs().max() > 0.1


def test_gradients_along_reconstructed_states():
    """Over 2,000 steps, gradients along the reconstructed states agree with those along the stored ones."""
    cell = make_cell("unicornn", M, D, dt=0.0343, alpha=0.0, dtype=torch.float64)
    u = torch.randn(2000, 1, M, dtype=torch.float64)
    found = []
    for reconstruct in (True, False):
        cell.reconstruct = reconstruct
        start = cell.state_type(*(torch.ones(1, D, dtype=torch.float64).requires_grad_() for _ in range(2)))
        _, final = cell.sequence(u, start)
        found.append(torch.autograd.grad(sum(s.square().sum() for s in final), [*start, *cell.parameters()]))
    for a, b in zip(*found):
        assert_close(a, b, "reconstructed gradient")


def test_a_second_derivative_along_reconstructed_states_is_the_loops():
    cell = make_cell("unicornn", M, D, reconstruct=True, dtype=torch.float64)
    u = torch.randn(6, 2, M, dtype=torch.float64, requires_grad=True)
    assert cell.backend_for(u)[0] == "torch"
    (first,) = torch.autograd.grad(cell.sequence(u)[0].sum(), u, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no second derivative.*loop_only"):
        torch.autograd.grad(first.sum(), u)
    with loop_only():
        assert cell.backend_for(u)[0] == "loop"
        (again,) = torch.autograd.grad(cell.sequence(u)[0].sum(), u, create_graph=True)
        (second,) = torch.autograd.grad(again.sum(), u)
    assert_close(first, again, "float64 gradient")
    assert second.abs().max() > 0


def test_unicornn_can_be_undone_over_the_length_of_eigenworms():
    """17,984 steps forwards and backwards by the inverse of the step arrive at the start."""
    cell = make_cell("unicornn", M, D, dt=0.1, alpha=1.0, dtype=torch.float64)
    with torch.no_grad():
        x = cell.project(torch.randn(17984, 1, M, dtype=torch.float64))
        (s,) = cell.prepare(1)
        start = cell.state_type(*torch.randn(2, 1, D, dtype=torch.float64))
        state = start
        for step in x:
            state = cell.step(step, state, s)
        y, z = state
        for step in x.flip(0):
            y = y - s * z
            z = z + s * (torch.tanh(cell.weight_y * y + step) + cell.alpha * y)
    assert_close(y, start.y, "undone")
    assert_close(z, start.z, "undone")
    assert (state[0] - start.y).abs().max() > 0.1


def test_float32_reconstruction_is_good_enough_to_train():
    cell = make_cell("unicornn", M, D, dt=0.1, alpha=1.0)
    u = torch.randn(2000, 2, M)
    found = []
    for reconstruct in (True, False):
        cell.reconstruct = reconstruct
        outputs, _ = cell.sequence(u)
        found.append(torch.autograd.grad(outputs[-1].square().sum(), list(cell.parameters())))
    for a, b in zip(*found):
        assert_close(a / b.abs().max(), b / b.abs().max(), "reconstructed float32")


@pytest.mark.parametrize("reconstruct", [True, False])
def test_the_memory_of_the_backward_pass(reconstruct):
    """With `reconstruct`, what is kept besides the input does not depend on the number of steps."""
    kept = {}
    for steps in (100, 800):
        cell = make_cell("unicornn", M, D, reconstruct=reconstruct)
        u = torch.randn(steps, 2, M)
        seen = {}

        def keep(tensor, seen=seen, u=u):
            if tensor.data_ptr() != u.data_ptr():
                seen[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs, _ = cell.sequence(u)
        kept[steps] = sum(seen.values())
        outputs.sum().backward()
    assert (kept[800] == kept[100]) == reconstruct


def test_each_layer_of_unicornn_has_its_own_step():
    layer = Recurrent("unicornn", M, D, 2, alpha=0.5, layer_options=[{"dt": 2.81e-5}, {"dt": 0.0343}])
    assert [(cell.dt, cell.alpha) for cell in layer.cells] == [(2.81e-5, 0.5), (0.0343, 0.5)]
    with pytest.raises(ValueError, match="one entry for each of 3 layers"):
        Recurrent("unicornn", M, D, 3, layer_options=[{"dt": 1.0}])


def test_unicornn_refuses_an_unstable_step():
    with pytest.raises(ValueError, match=r"alpha dt\^2 < 4; got 5"):
        make_cell("unicornn", M, D, dt=1.0, alpha=5.0)
    assert isinstance(make_cell("unicornn", M, D, dt=1.0, alpha=3.99), Cell)


def test_unicornns_first_weights():
    cell = make_cell("unicornn", M, 2000)
    bound = math.sqrt(6 / (65 * M))
    assert bound * 0.99 < cell.weight_u.abs().max() <= bound
    assert cell.weight_y.min() >= 0.0
    assert cell.weight_y.max() <= 1.0
    assert cell.scale.abs().max() <= 0.1
    assert not cell.bias.any()
