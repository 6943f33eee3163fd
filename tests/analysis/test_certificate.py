"""The certificate on models with a known answer, and the adviser."""

import math

import numpy as np
import pytest
import torch

from lem import LEM
from lem.analysis import certificate
from tests.analysis.test_bounds import cell
from tests.close import TABLE, assert_close


def chain(gate, units=3):
    """A linear chain: y forgets by 1 - gate a step and nothing else is connected."""
    made = cell(inputs=1, units=units, scale=0.0)
    with torch.no_grad():
        made.bias[: 2 * units] = math.log(gate / (1 - gate))
        made.bias[3 * units :] = 1.0
    return made


@pytest.mark.parametrize(("gate", "kind"), [(0.001, "remembers"), (0.05, "fades"), (0.2, "vanishes")])
def test_the_certificate_of_a_linear_chain(gate, kind):
    found = certificate.certify(chain(gate), torch.zeros(200, 2, 1))
    assert_close(found.measured, (1 - gate) ** np.arange(201), "float64")
    assert_close(found.along, (1 - gate) ** np.arange(201), "float64")
    assert found.kind == kind
    assert found.memory == min(200, math.floor(-1 / math.log(1 - gate)))
    assert_close(found.peak, 1.0, "float64")
    assert f"{found.memory}" in str(found) or kind == "remembers"
    for remedy in ("lower dt", "(initial_dt)", "start from t_max = 200"):
        assert (remedy in found.verdict) == (kind == "vanishes")


def test_elapsed_times_stretch_the_memory_of_a_linear_chain():
    elapsed = torch.exp(torch.randn(200, 1)).double()
    found = certificate.certify(chain(0.02), torch.zeros(200, 1, 1), elapsed=elapsed)
    forgotten = np.cumsum(elapsed[:, 0].numpy()[::-1])  # the last gap is the first on the way back
    assert_close(found.measured[1:], 0.98**forgotten, "float64")
    assert_close(found.along[1:], 0.98**forgotten, "float64")
    assert found.memory == int((0.98**forgotten >= 1 / math.e).sum())
    assert found.bound(3) is None
    assert "steps must be of equal length; there are elapsed times" in str(found)
    assert "needs dt <= 1 and steps of equal length" in str(found)


def test_the_backward_direction_is_certified_with_the_gaps_that_it_takes():
    torch.manual_seed(0)
    layer = LEM(1, 3, bidirectional=True).double()
    layer.cells[1] = chain(0.1)
    elapsed = torch.tensor([[1.0], [2.0], [5.0]]).double()
    found = certificate.certify_layers(layer, torch.zeros(3, 1, 1).double(), elapsed=elapsed)[1]
    # It reads 2, 1, 0 with gaps 1, 5, 2: going back, the gap of 2 comes first.
    assert_close(found.measured, 0.9 ** np.array([0.0, 2.0, 7.0, 8.0]), "float64")


def test_gates_that_start_lower_remember_as_a_smaller_dt_does():
    u, found = torch.randn(500, 4, 2), {}
    for name, options in {"open": {}, "lower": {"initial_dt": 0.01}, "capped": {"dt": 0.02}}.items():
        torch.manual_seed(0)
        (found[name],) = certificate.certify_layers(LEM(2, 16, **options).double(), u.double())
    assert found["open"].kind == "vanishes"
    assert found["lower"].kind == "fades"
    assert_close(found["lower"].memory, found["capped"].memory, "same start")


def test_the_certificate_sees_an_explosion():
    found = certificate.certify(cell(units=8, scale=8.0), torch.randn(200, 4, 2))
    assert found.kind == "explodes"
    assert "clip" in found.verdict
    assert max(a / b for a, b in zip(found.largest, found.along)) <= 1 + TABLE["float64"].relative


def test_the_certificate_compares_the_total_gradient_with_its_bound(tmp_path):
    made = cell(dt=1e-4)
    found = certificate.certify(made, torch.rand(20, 3, 2))
    assert not found.violated
    for seen, limit in found.total.values():
        assert limit is not None
        assert 0 < seen <= limit
    found.plot(tmp_path / "certificate.png")
    assert (tmp_path / "certificate.png").stat().st_size > 10_000
    outside = certificate.certify(cell(dt=1.5), torch.rand(20, 3, 2))
    assert outside.bound(3) is None
    assert "dt must be at most 1" in str(outside)


def test_every_layer_and_direction_is_certified():
    layer = LEM(2, 3, num_layers=2, bidirectional=True)
    names = [found.name for found in certificate.certify_layers(layer, torch.randn(6, 2, 2))]
    assert names == ["LEM, layer 0", "LEM, layer 0, backwards", "LEM, layer 1", "LEM, layer 1, backwards"]


# --- the adviser -----------------------------------------------------------------------------------------------------


def test_the_adviser_knows_the_linear_chain():
    # Gates at dt / 2: the gradient decays as (1 - dt/2)^n, so dt solves n log(1 - dt/2) = log(1e-7).
    advice = certificate.advise_dt(400, chain(0.5), torch.zeros(400, 2, 1))
    assert_close(advice.dt, 2 * (1 - math.exp(math.log(certificate.FLAT) / 400)), "estimate")
    assert_close(advice.dt / advice.low, -math.log(certificate.FLAT), "estimate")
    assert advice.high == 1.0


def test_the_adviser_lowers_the_range_where_the_gradient_explodes():
    wild = cell(units=8, scale=8.0)
    advice = certificate.advise_dt(500, wild, torch.randn(500, 4, 2))
    assert advice.high < 1.0
    assert "explodes" in advice.reason
    wild.dt = advice.dt
    assert certificate.certify(wild, torch.randn(500, 4, 2)).kind != "explodes"


def test_the_adviser_without_data_and_its_errors():
    assert certificate.advise_dt(10).dt == 1.0
    assert certificate.advise_dt(10_000).low < certificate.advise_dt(10_000).dt < 0.01
    with pytest.raises(ValueError, match="`length` of advise_dt"):
        certificate.advise_dt(0)
    with pytest.raises(ValueError, match="given together"):
        certificate.advise_dt(10, cell())
