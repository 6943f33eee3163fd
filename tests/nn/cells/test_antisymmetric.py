"""Anti-symmetric and Lipschitz RNN: the spectrum of their matrices, the order of their solvers."""

import numpy as np
import pytest
import torch

from lem.nn.recurrent import make_cell
from tests.close import assert_close

D, M = 10, 3


@pytest.mark.parametrize("name", ["antisymmetric", "antisymmetric-gated"])
def test_every_eigenvalue_has_the_real_part_minus_gamma(name):
    cell = make_cell(name, M, D, gamma=0.03, sigma_w=4.0, dtype=torch.float64)
    K = cell.prepare(1)[0][:, :D].T
    values = torch.linalg.eigvals(K)
    assert_close(values.real, np.full(D, -0.03), "eigenvalues")
    assert values.imag.abs().max() > 1.0


@pytest.mark.parametrize("name", ["antisymmetric", "antisymmetric-gated"])
def test_the_state_grows_by_at_most_epsilon_a_step(name):
    cell = make_cell(name, M, D, epsilon=0.2, sigma_w=16.0)
    outputs, _ = cell.sequence(100.0 * torch.randn(30, 2, M))
    steps = torch.arange(1, 31)[:, None, None]
    assert (outputs.abs() <= 0.2 * steps + 1e-5).all()


def test_lipschitz_between_a_skew_and_a_symmetric_matrix():
    """beta = 1 gives eigenvalues of real part -gamma, beta = 0 real ones."""
    skew = make_cell("lipschitz", M, D, beta=1.0, gamma=0.2, init_std=10.0, dtype=torch.float64)
    for matrix in skew.prepare(1):
        assert_close(torch.linalg.eigvals(matrix).real, np.full(D, -0.2), "eigenvalues")
    symmetric = make_cell("lipschitz", M, D, beta=0.0, init_std=10.0, dtype=torch.float64)
    for matrix in symmetric.prepare(1):
        assert_close(matrix, matrix.T, "exact")


@pytest.mark.parametrize(("solver", "order"), [("euler", 1.0), ("midpoint", 2.0)])
def test_the_solvers_have_their_order(solver, order):
    """Halving the step with the input held divides the error at time 1 by 2, or by 4."""
    u = torch.randn(1, 1, M, dtype=torch.float64)
    start = torch.randn(1, D, dtype=torch.float64)

    def solve(steps, solver):
        torch.manual_seed(7)
        cell = make_cell("lipschitz", M, D, epsilon=1.0 / steps, solver=solver, init_std=5.0, dtype=torch.float64)
        return cell.sequence(u.expand(steps, 1, M), cell.state_type(start))[0][-1]

    exact = solve(1024, "midpoint")
    errors = [(solve(steps, solver) - exact).norm() for steps in (32, 64)]
    assert_close(torch.log2(errors[0] / errors[1]), torch.tensor(order), "solver order")


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="`solver` of LipschitzCell"):
        make_cell("lipschitz", M, D, solver="rk4")
    with pytest.raises(ValueError, match="`epsilon` of AntisymmetricCell"):
        make_cell("antisymmetric", M, D, epsilon=0.0)
