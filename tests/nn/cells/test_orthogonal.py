"""expRNN, DTRIV and nnRNN: orthogonality, charts, eigenvalues."""

import pytest
import torch

from lem.nn.cells.skew import initial_rotations, skew_matrix
from lem.nn.recurrent import make_cell
from tests.close import TABLE, assert_close

D, M = 32, 2
CELLS = {
    "exprnn": {},
    "exprnn, henaff": {"init": "henaff"},
    "dtriv": {},
    "dtriv, rebased": {"rebase_every": 7},
    "dtriv, every step": {"rebase_every": 1, "project_every": 10},
}


def train(cell, steps, rate=0.02):
    optimizer = torch.optim.RMSprop(cell.param_groups(rate))
    u = torch.randn(6, 4, M, dtype=cell.weight_u.dtype)
    for _ in range(steps):
        optimizer.zero_grad()
        (cell.sequence(u)[0][-1] - 0.3).square().mean().backward()
        optimizer.step()
        cell.after_update()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", sorted(CELLS))
def test_the_matrix_is_orthogonal_after_a_hundred_updates(case, dtype):
    cell = make_cell(case.partition(",")[0], M, D, dtype=dtype, **CELLS[case])
    start = cell.recurrent_matrix().detach()
    train(cell, 100)
    W = cell.recurrent_matrix().detach()
    assert (W - start).abs().max() > 0.01
    assert_close(W.T @ W, torch.eye(D), "orthogonal")


def test_the_orthogonal_weights_learn_at_their_own_rate():
    cell = make_cell("exprnn", M, D, orthogonal_rate=0.05)
    others, skew = cell.param_groups(0.1)
    assert skew["params"] == [cell.skew]
    assert (others["lr"], skew["lr"]) == (0.1, pytest.approx(0.005))


@pytest.mark.parametrize("every", [1, 3])
def test_rebasing_changes_the_chart_and_not_the_matrix(every):
    """W before and after `after_update` is the same; the base has taken it over and A is zero."""
    cell = make_cell("dtriv", M, 6, rebase_every=every, dtype=torch.float64)
    for update in range(1, 7):
        with torch.no_grad():
            cell.skew += 0.1 * torch.randn_like(cell.skew)
        before, base = cell.recurrent_matrix(), cell.base.clone()
        cell.after_update()
        assert_close(cell.recurrent_matrix(), before, "float64")
        rebased = update % every == 0
        assert torch.equal(cell.base, base) != rebased
        assert (not cell.skew.any()) == rebased


def test_the_updates_survive_a_checkpoint():
    """The number of updates until the next rebasing is part of the weights."""
    first = make_cell("dtriv", M, 4, rebase_every=5)
    for _ in range(3):
        first.after_update()
    second = make_cell("dtriv", M, 4, rebase_every=5)
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        second.skew += 1.0
    second.after_update()
    assert second.skew.all()
    second.after_update()
    assert not second.skew.any()


def test_exprnn_and_dtriv_start_at_the_same_matrix():
    torch.manual_seed(3)
    static = make_cell("exprnn", M, 6, dtype=torch.float64)
    torch.manual_seed(3)
    dynamic = make_cell("dtriv", M, 6, dtype=torch.float64)
    assert_close(dynamic.recurrent_matrix(), static.recurrent_matrix(), "float64")


@pytest.mark.parametrize(("init", "largest"), [("henaff", torch.pi), ("cayley", 1.0)])
def test_the_first_angles_are_those_of_rotations(init, largest):
    S = skew_matrix(initial_rotations(400, init), 400)
    angles = S.diagonal(1)[::2]
    assert S.count_nonzero() == 2 * 200
    assert angles.abs().max() <= largest
    assert angles.abs().max() > 0.9 * largest
    assert angles.min() < 0
    assert (angles.max() > 0) == (init == "henaff")
    with pytest.raises(ValueError, match="henaff"):
        initial_rotations(4, "other")


def test_exprnn_does_not_amplify_a_gradient():
    """The Jacobian of the state over many steps has norm at most 1."""
    cell = make_cell("exprnn", M, 8, dtype=torch.float64)
    u = torch.randn(50, 1, M, dtype=torch.float64)

    def last(h):
        return cell.sequence(u, cell.state_type(h))[0][-1, 0]

    jacobian = torch.autograd.functional.jacobian(last, torch.randn(1, 8, dtype=torch.float64))[:, 0]
    assert torch.linalg.matrix_norm(jacobian, 2) <= 1.0 + TABLE["float64"].absolute


def test_nnrnn_has_the_eigenvalues_of_its_blocks():
    """The moduli of the eigenvalues of W are gamma, each twice, whatever T and P are."""
    cell = make_cell("nnrnn", M, 8, dtype=torch.float64)
    with torch.no_grad():
        cell.gamma.copy_(torch.tensor([0.7, 0.9, 1.1, 1.4]))
        cell.upper.normal_()
        cell.skew.normal_()
    moduli = torch.linalg.eigvals(cell.recurrent_matrix()).abs().sort().values
    assert_close(moduli, cell.gamma.repeat_interleave(2), "eigenvalues")


def test_nnrnn_is_not_normal_with_t_and_orthogonal_without():
    cell = make_cell("nnrnn", M, 8, dtype=torch.float64)
    W = cell.recurrent_matrix().detach()
    assert_close(W.T @ W, torch.eye(8), "float64")
    with torch.no_grad():
        cell.upper.fill_(0.5)
    W = cell.recurrent_matrix().detach()
    assert (W @ W.T - W.T @ W).abs().max() > 0.1


def test_nnrnn_penalises_moduli_other_than_one_and_decays_t():
    cell = make_cell("nnrnn", M, 4, delta=0.5, upper_decay=0.01, dtype=torch.float64)
    with torch.no_grad():
        cell.gamma.copy_(torch.tensor([1.0, 3.0]))
    assert_close(cell.penalty(), torch.tensor(2.0), "float64")
    decays = {id(p): group.get("weight_decay", 0.0) for group in cell.param_groups(0.1) for p in group["params"]}
    assert [decays[id(p)] for p in (cell.upper, cell.skew, cell.gamma)] == [0.01, 0.0, 0.0]
    assert make_cell("nnrnn", M, 4, delta=0.0).penalty() is None


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("exprnn", {"rebase_every": 3}, "`rebase_every` of ExpRNNCell must be None"),
        ("dtriv", {"rebase_every": 0}, "`rebase_every` of ExpRNNCell must be a number"),
    ],
)
def test_wrong_options_are_refused(name, options, words):
    with pytest.raises(ValueError, match=words):
        make_cell(name, M, 4, **options)


def test_nnrnn_needs_an_even_number_of_units():
    with pytest.raises(ValueError, match="must be even"):
        make_cell("nnrnn", M, 5)
