"""Derivatives of derivatives through the kernel of LEM: they are those of the loop, in every variant."""

import subprocess
import sys
import warnings

import pytest
import torch

from lem import LEM, LEMCell
from lem.kernels import LoopWarning, loop_only
from lem.kernels.choose import forget_warnings
from tests.close import assert_close

M, D, STEPS, BATCH = 2, 3, 5, 3


def derivatives(model, given, order, **options):
    """Return the gradients of the sum of squared gradients, `order` times, for the input and all parameters."""
    sources = [x for x in (*given, *options.values(), *model.parameters()) if x is not None and x.requires_grad]
    outputs, state = model(*given, **options)
    value = sum(field.square().sum() for field in (outputs, *state))
    for k in range(order):
        found = torch.autograd.grad(value, sources, create_graph=k + 1 < order, allow_unused=True)
        value = sum(g.square().sum() for g in found if g is not None)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(sources, found)]


VARIANTS = {
    "plain": {},
    "stacked": {"num_layers": 2, "bidirectional": True, "proj_size": 2, "clip": (0.2, 0.7)},
    "single": {"single_scale": True, "bias": False, "dt": 0.3},
    "single and narrow": {"single_scale": True, "proj_size": 2},
    "learned": {"learn_initial_state": True},
    "bounded": {"memory": "bounded"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_second_and_third_derivatives_are_those_of_the_loop(variant):
    model = LEM(M, D, dtype=torch.float64, **VARIANTS[variant])
    u = torch.randn(STEPS, BATCH, M, dtype=torch.float64, requires_grad=True)
    options = {}
    if variant == "learned":
        resets = torch.zeros(STEPS, BATCH, dtype=torch.bool)
        resets[2, 0] = resets[1, 2] = True
        options["elapsed"] = torch.rand(STEPS, BATCH, dtype=torch.float64).add(0.5).requires_grad_()
        model_options = {"lengths": torch.tensor([5, 2, 4]), "resets": resets}
    else:
        model_options = {}
    for order in (2, 3):
        found = derivatives(lambda_model(model, model_options), (u,), order, **options)
        with loop_only():
            expected = derivatives(lambda_model(model, model_options), (u,), order, **options)
        for a, b in zip(found, expected):
            assert_close(a, b, "float64 gradient")
        assert any(bool(b.abs().max() > 0) for b in expected)


def lambda_model(model, fixed):
    """Bind arguments that have no gradient; keep the parameters in reach."""

    class Bound:
        def __call__(self, *given, **options):
            return model(*given, **fixed, **options)

        def parameters(self):
            return model.parameters()

    return Bound()


def test_finite_differences_of_the_kernels_gradient():
    model = LEM(M, D, dtype=torch.float64)
    u = torch.randn(3, 2, M, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda u: model(u)[0], (u,))


def test_state_dropout_keeps_its_mask():
    cell = LEMCell(M, D, state_dropout=0.5, dtype=torch.float64)
    u = torch.randn(STEPS, BATCH, M, dtype=torch.float64, requires_grad=True)
    mask = cell.prepare(BATCH)
    cell.prepare = lambda batch: mask
    found = derivatives(cell, (u,), 2)
    with loop_only():
        expected = derivatives(cell, (u,), 2)
    for a, b in zip(found, expected):
        assert_close(a, b, "float64 gradient")


def test_a_gradient_penalty_trains():
    model, u = LEM(M, D), torch.randn(STEPS, BATCH, M, requires_grad=True)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    penalties = []
    for _ in range(15):
        (slope,) = torch.autograd.grad(model(u)[0].sum(), u, create_graph=True)
        penalty = slope.square().mean()
        optimiser.zero_grad()
        penalty.backward()
        optimiser.step()
        penalties.append(float(penalty.detach()))
    assert penalties[-1] < 0.5 * penalties[0]


def test_the_note_is_given_once():
    forget_warnings()
    model, u = LEM(M, D), torch.randn(STEPS, BATCH, M, requires_grad=True)
    slopes = [torch.autograd.grad(model(u)[0].sum(), u, create_graph=True)[0].sum() for _ in range(2)]
    with pytest.warns(LoopWarning, match="first derivative only"):
        slopes[0].backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        slopes[1].backward()


FUNC = """
import torch
from torch.func import functional_call, grad, jacrev, jvp, vmap
from lem import LEM

torch.manual_seed(0)
model, rows = LEM(2, 3, batch_first=True, dtype=torch.float64), torch.randn(4, 6, 2, dtype=torch.float64)
weights = {name: p.detach() for name, p in model.named_parameters()}
loss = lambda w, row: functional_call(model, w, (row[None],))[0].square().sum()
each = vmap(grad(loss), (None, 0))(weights, rows)
for i, row in enumerate(rows):
    model.zero_grad()
    model(row[None])[0].square().sum().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(each[name][i], p.grad, rtol=1e-10, atol=1e-10)
value, slope = jvp(lambda x: model(x)[0].sum(), (rows,), (torch.ones_like(rows),))
x = rows.clone().requires_grad_()
(expected,) = torch.autograd.grad(model(x)[0].sum(), x)
torch.testing.assert_close(slope, expected.sum(), rtol=1e-10, atol=1e-10)
jacobian = jacrev(lambda x: model(x)[0].sum((1, 2)))(rows)
torch.testing.assert_close(jacobian.sum(0), expected, rtol=1e-10, atol=1e-10)
"""


def test_torch_func_works_without_an_option():
    """In a process of its own: the run-time check of shapes in the signatures cannot be vectorised."""
    done = subprocess.run([sys.executable, "-c", FUNC], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
