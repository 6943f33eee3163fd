"""THEORY S8 to S11: LEMs that are built, not trained, at two widths; what depends on the time scale and what not."""

import math

import numpy as np
import pytest
import torch

from lem.analysis import construct
from lem.analysis.relations import multiscale_solver
from tests.close import assert_close

TURN = torch.tensor([[0.5, -0.4], [0.3, 0.6]]).double()


def f(h, u):
    return 0.9 * torch.tanh(h @ TURN.T + 0.5 * torch.sin(u))


def o(h):
    return h[:, :1] * h[:, 1:] + torch.cos(h[:, :1])


def fast(h, c, u):
    return 0.6 * torch.tanh(0.5 * h + c + 0.5 * u)


def slow(h, c, u):
    return torch.cos(h) + 0.3 * c * u - 0.2 * c


def inputs(steps=200):
    return 2 * torch.rand(steps, 2, 1, generator=torch.Generator().manual_seed(4), dtype=torch.float64) - 1


def test_wider_networks_fit_better():
    errors = [construct.fit_tanh(f, (2, 1), width, 2.0).error for width in (30, 120)]
    assert errors[1] < errors[0] / 3


def test_the_general_system_at_two_widths():
    small, large = (construct.universal(f, o, 2, 1, width, radius=2.0) for width in (40, 160))
    errors = [built.errors(inputs())["output"] for built in (small, large)]
    assert errors[1] < errors[0] / 5 < 0.02
    for built, error in zip((small, large), errors):
        assert error <= construct.error_bound(built.parts, 200)


def test_the_lem_equals_the_composed_networks():
    built = construct.universal(f, o, 2, 1, 30, radius=2.0, output_width=20, seed=1)
    net, out = construct.fit_tanh(f, (2, 1), 30, 2.0, 1), construct.fit_tanh(o, (2,), 20, 2.0, 1)
    state, composed = np.zeros((2, 2)), []
    for u in inputs(50).numpy():
        hidden = np.tanh(np.concatenate([state, u], 1) @ net.inner.numpy().T + net.bias.numpy()) @ net.outer.numpy().T
        composed.append(np.tanh(hidden @ out.inner.numpy().T + out.bias.numpy()) @ out.outer.numpy().T)
        state = np.tanh(construct.SMALL * hidden) / construct.SMALL
    assert built.layer.hidden_size == 30
    assert_close(built.run(inputs(50))["output"], np.array(composed), "construction")


def test_leaving_the_fitted_ball_is_refused():
    built = construct.universal(f, o, 2, 1, 20, radius=0.5)
    with pytest.raises(ValueError, match=r"within the fitted radius 0.5"):
        built.run(3 * inputs(20))


def test_the_size_of_the_two_scale_lem_does_not_depend_on_tau_but_its_weights_do():
    taus = (0.1, 1e-3, 1e-5)
    built = [construct.two_scale(fast, slow, tau, 1, 1, 120, 2.0) for tau in taus]
    assert len({b.layer.hidden_size for b in built}) == 1
    relative = [b.errors(inputs())["slow"] / tau for b, tau in zip(built, taus)]
    assert max(relative) < 0.2
    assert max(relative) < 2 * min(relative)
    # False as printed: "weights, biases and size are independent of tau".
    assert built[2].largest_weight / built[0].largest_weight > 1e3
    assert len({float(b.layer.cells[0].bias[b.layer.hidden_size].detach()) for b in built}) == 3


def test_the_bounded_alternative_has_the_same_weights_for_every_tau():
    taus = (0.1, 1e-3, 1e-5)
    built = [construct.two_scale_bounded(fast, slow, tau, 1, 1, 120, 2.0) for tau in taus]
    assert len({b.layer.hidden_size for b in built}) == 1
    assert max(b.largest_weight for b in built) == min(b.largest_weight for b in built)
    relative = [b.errors(inputs())["slow"] / tau for b, tau in zip(built, taus)]
    assert max(relative) < 0.15


@pytest.mark.parametrize("tau", [1e-3, 1e-5])
def test_the_papers_construction_still_works_in_float32(tau):
    built = construct.two_scale(fast, slow, tau, 1, 1, 120, 2.0)
    exact = built.run(inputs())["slow"]
    with torch.no_grad():
        y, _ = built.layer.float()(inputs().float())
    rounded = y @ built.readouts["slow"].float().T
    assert float((rounded - exact).abs().max()) < 0.05 * tau


def test_two_scales_at_two_widths():
    for build in (construct.two_scale, construct.two_scale_bounded):
        errors = [build(fast, slow, 0.01, 1, 1, width, 2.0).errors(inputs())["slow"] for width in (60, 240)]
        assert errors[1] < errors[0] / 3


def test_the_error_constants_are_larger_than_printed():
    lip_f, lip_g = 0.7, 1.3
    c, d = construct.two_scale_constants(lip_f, lip_g)
    # The sum of the proof's two inequalities, e = |h - z| and r = |c - y| before the step:
    #   |h - z| <= Lf (e + r) + (1 + 2 Lf) eps;  |c - y| <= r + (2 + Lg)(|h - z| + r) + (2 + Lg) eps ...
    assert_close(c, max((3 + lip_g) * lip_f, lip_f + (3 + lip_g) * (1 + lip_f)), "exact")
    assert c > max((3 + lip_g) * lip_f, lip_f * (3 + lip_g) * (1 + lip_f))
    assert d > 1 + (2 + lip_g) * (2 + 2 * lip_f)


MAPS = [
    lambda a, b, c, u: torch.sin(a + b) + 0.5 * c + 0.3 * u,
    lambda a, b, c, u: torch.cos(c + u) - 0.2 * b,
    lambda a, b, c, u: 0.5 * torch.tanh(0.5 * c + b + 0.5 * u),
]


def test_three_scales_at_two_widths():
    taus = [1e-3, 1e-1, 1.0]
    errors = [construct.many_scale(MAPS, taus, 1, 1, width, 2.0).errors(inputs(100)) for width in (60, 240)]
    for i, tau in enumerate(taus):
        assert errors[1][f"h{i}"] < 0.1 * tau
        assert errors[1][f"h{i}"] < errors[0][f"h{i}"]
    with pytest.raises(ValueError, match="3 numbers in"):
        construct.many_scale(MAPS, [0.1], 1, 1, 10, 2.0)


def relax(c):
    return torch.sin(c)


def drive(h, c):
    return 1 - h - 0.5 * c


def test_the_multiscale_solver_as_a_lem():
    macro, micro, count = 0.05, 0.1, 20
    built = construct.heterogeneous(relax, drive, macro, (1 - micro) ** count, 1, 60, 2.0)
    h, c = multiscale_solver(relax, drive, macro, micro, count, 400)
    found = built.run(torch.zeros(400, 1, 1))
    assert_close(found["fast"][:, 0], h, "fitted")
    assert_close(found["slow"][:, 0], c, "fitted")
    errors = built.errors(torch.zeros(400, 1, 1))
    assert max(errors.values()) < 1e-3
    # False as printed: the gate of the fast unit set to the leak instead of 1 - leak.
    with torch.no_grad():
        leak = (1 - micro) ** count
        built.layer.cells[0].bias[:60] = math.log(leak / (1 - leak))
    assert built.errors(torch.zeros(400, 1, 1))["fast"] > 0.1


def test_one_lem_serves_every_tau_of_the_stiff_system():
    """The constructed LEM against the ODE itself: the error is the macro step's, for tau over four decades."""
    macro, steps = 0.05, 200
    built = construct.heterogeneous(relax, drive, macro, 0.9**40, 1, 60, 2.0)
    c_lem = built.run(torch.zeros(steps, 1, 1))["slow"][:, 0, 0].numpy()
    from scipy.integrate import solve_ivp

    errors = []
    for tau in (1e-2, 1e-4, 1e-6):
        solution = solve_ivp(
            lambda _, x, tau=tau: [(math.sin(x[1]) - x[0]) / tau, 1 - x[0] - 0.5 * x[1]],
            (0, macro * steps),
            [0.0, 0.0],
            method="LSODA",
            t_eval=macro * np.arange(1, steps + 1),
            rtol=1e-9,
            atol=1e-12,
        )
        errors.append(np.abs(solution.y[1] - c_lem).max())
    assert max(errors) < macro
    assert max(errors) < 2 * min(errors)
