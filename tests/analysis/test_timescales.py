"""The microscope on gates whose distribution is known."""

import math

import numpy as np
import pytest
import torch

from lem import LEM, Recurrent
from lem.analysis import timescales
from lem.analysis.timescales import Histogram, clip_ablation, clipped, fit_tail, time_scales
from tests import paper
from tests.close import assert_close
from tests.nn.cells.weights import paper_weights


def test_a_streamed_histogram_equals_the_direct_one():
    values = np.random.default_rng(0).uniform(-0.1, 1.2, 10_000)
    values[:3] = 0.0, 1.0, 0.5  # on the edges
    streamed = Histogram(np.linspace(0, 1, 33))
    for part in np.split(values, 25):
        streamed.add(part)
    assert_close(streamed.counts, np.histogram(values, streamed.edges)[0], "exact")
    assert (streamed.below, streamed.above) == ((values < 0).sum(), (values > 1).sum())
    assert streamed.total == len(values)


def test_quantiles_of_a_histogram():
    histogram = Histogram(np.linspace(0, 1, 101))
    histogram.add(np.linspace(0.0, 1.0, 10_001)[:-1])
    assert_close([histogram.quantile(q) for q in (0.25, 0.5, 1.0)], [0.25, 0.5, 1.0], "float64")
    with pytest.raises(ValueError, match="increasing"):
        Histogram([1.0, 0.5])


def gates_of(layer, u):
    """All gates of a one-layer LEM by the paper's equations: (time, batch, hidden) for dt_z and dt_y."""
    w = paper_weights(layer.cells[0])
    found = []
    for row in u.double().numpy().transpose(1, 0, 2):
        d = layer.hidden_size
        y, _ = paper.lem(w, row, np.zeros(d), np.zeros(d), layer.cells[0].dt)
        before = np.concatenate([np.zeros((1, d)), y[:-1]])
        found.append(
            [layer.cells[0].dt * paper.sigmoid(before @ w["W" + k].T + row @ w["V" + k].T + w["b" + k]) for k in "12"]
        )
    return np.array(found).transpose(1, 2, 0, 3)


def test_the_gates_of_a_layer_are_counted_exactly(monkeypatch):
    monkeypatch.setattr(timescales, "CHUNK", 7)
    layer, u = LEM(2, 5, t_max=100).double(), torch.randn(40, 6, 2).double()
    expected = gates_of(layer, u)
    scales = time_scales(layer, [u[:, :4], u[:, 4:]])
    for gate, values in zip(scales.gates, expected):
        assert gate.log.total == values.size
        assert_close(gate.log.counts, np.histogram(values, gate.log.edges)[0], "exact")
        assert_close(gate.linear.counts, np.histogram(values, gate.linear.edges)[0], "exact")
        per_unit = np.stack([np.histogram(values[:, :, i], gate.spectrum_edges)[0] for i in range(5)])
        assert_close(gate.spectra[:, 1:-1], per_unit, "exact")
        assert_close(gate.time_constants, np.exp(-np.log(values).mean((0, 1))), "float64")


def test_rows_of_unequal_length_count_their_own_steps_only():
    layer = LEM(2, 5, num_layers=2, bidirectional=True).double()
    u, lengths = torch.randn(30, 3, 2).double(), torch.tensor([30, 12, 7])
    padded = u.clone()
    padded[12:, 1], padded[7:, 2] = math.nan, math.nan
    together = time_scales(layer, [(padded, lengths)])
    apart = time_scales(layer, [u[:n, i : i + 1] for i, n in enumerate(lengths)])
    assert len(together.gates) == 8
    for a, b in zip(together.gates, apart.gates):
        assert a.count == 49
        assert_close(a.time_constants, b.time_constants, "float64")
        assert_close(a.linear.counts, b.linear.counts, "exact")


@pytest.mark.parametrize("batch_first", [False, True])
def test_gates_are_those_of_the_usual_step_along_the_way_of_the_elapsed_times(monkeypatch, batch_first):
    monkeypatch.setattr(timescales, "CHUNK", 4)
    layer, u = LEM(2, 5, bidirectional=True).double(), torch.randn(9, 2, 2).double()
    lengths, elapsed = torch.tensor([9, 6]), torch.exp(torch.randn(9, 2).double())
    elapsed[6:, 1] = math.nan
    layer.batch_first = batch_first
    given = (u.transpose(0, 1), lengths, elapsed.T) if batch_first else (u, lengths, elapsed)
    scales = time_scales(layer, [given])
    for k, cell in enumerate(layer.cells):
        w, sums = paper_weights(cell), np.zeros((2, 5))
        for row, n in enumerate(lengths):
            inputs, gaps = u[:n, row].numpy(), elapsed[:n, row].numpy()
            if k:
                inputs, gaps = inputs[::-1], np.append(gaps[1:], 1.0)[::-1]
            y, _ = paper.lem(w, inputs, np.zeros(5), np.zeros(5), 1.0, elapsed=gaps)
            before = np.concatenate([np.zeros((1, 5)), y[:-1]])
            sums += [
                np.log(paper.sigmoid(before @ w["W" + g].T + inputs @ w["V" + g].T + w["b" + g])).sum(0) for g in "12"
            ]
        for gate, total in zip(scales.gates[2 * k :], sums):
            assert gate.count == 15
            assert_close(gate.time_constants, np.exp(-total / 15), "float64")
    assert not np.allclose(scales.gates[0].time_constants, time_scales(layer, [given[:2]]).gates[0].time_constants)


@pytest.mark.parametrize(("law", "verdict"), [("power", "power law"), ("exponential", "exponential")])
def test_the_law_of_a_synthetic_tail_is_found(law, verdict):
    generator = np.random.default_rng(1)
    body = generator.uniform(1.0, 5.0, 100_000)
    tail = (
        5 * (1 - generator.random(100_000)) ** (-1 / 1.5) if law == "power" else 5 + generator.exponential(20, 100_000)
    )
    histogram = Histogram(timescales.LOG_EDGES)
    histogram.add(1 / np.concatenate([body, tail]))
    found = fit_tail(histogram, 0.4)
    assert found.verdict == verdict
    assert (found.log_ratio > 0) is (law == "power")
    assert min(found.power_distance, found.exponential_distance) < 0.02
    assert_close(found.exponent if law == "power" else 1 / found.rate, 2.5 if law == "power" else 20.0, "estimate")


def test_clusters_of_gates_are_found():
    gate = timescales.GateScales("dt_y", 2)
    generator = torch.Generator().manual_seed(0)
    for centre, count in ((0.02, 4000), (1.0, 6000)):
        gate.add(centre * torch.exp(0.15 * torch.randn(count, 2, generator=generator)))
    assert_close(gate.modes, [1.0, 0.02], "estimate")


def test_a_tail_of_neither_law_is_said_to_be_so():
    histogram = Histogram(timescales.LOG_EDGES)
    histogram.add(np.concatenate([np.full(10_000, 1.0), np.full(5_000, 0.1), np.full(5_000, 1e-4)]))
    histogram.add(np.full(10, 0.02))
    assert fit_tail(histogram, 0.5).verdict == "neither"


def test_a_constant_gate_has_no_tail():
    histogram = Histogram(timescales.LOG_EDGES)
    histogram.add(np.full(100, 0.3))
    with pytest.raises(ValueError, match="constant gate has no tail"):
        fit_tail(histogram)


def test_units_are_ranked_and_time_constants_given_in_seconds(tmp_path):
    layer = LEM(1, 3).double()
    cell = layer.cells[0]
    with torch.no_grad():
        for p in cell.parameters():
            p.zero_()
        gates = torch.tensor([0.5, 0.01, 0.1])
        cell.bias[:3] = torch.logit(gates.double())
    scales = time_scales(layer, [torch.zeros(20, 2, 1).double()], sampling_interval=0.25)
    assert [unit for unit, _ in scales.ranking(0)] == [1, 2, 0]
    assert_close([steps for _, steps in scales.ranking(0)], [100.0, 10.0, 2.0], "float32")
    assert "slowest unit of dt_z: 1, time constant 100 steps = 25 s" in str(scales)
    scales.plot(tmp_path / "scales.png")
    assert (tmp_path / "scales.png").stat().st_size > 10_000


def test_clipping_at_evaluation_time_is_undone():
    layer, u = LEM(2, 4).double(), torch.randn(10, 3, 2).double()
    with torch.no_grad():
        whole = layer(u)[0]
        with clipped(layer, 1.0, 1.0):
            inside = layer(u)[0]
        w = paper_weights(layer.cells[0])
        y, _ = paper.lem(w, u[:, 0].numpy(), np.zeros(4), np.zeros(4), 1.0, clip=(1.0, 1.0))
        assert_close(inside[:, 0], y, "float64")
        assert_close(layer(u)[0], whole, "exact")
        scores = clip_ablation(layer, lambda: float((layer(u)[0] - whole).abs().max()), lows=(1.0, 0.25))
    assert [low for low, _ in scores] == [1.0, 0.25, 0.0]
    assert scores[0][1] > scores[-1][1] == 0.0
    assert layer.cells[0].clip is None


def test_other_cells_and_fixed_gates_are_refused():
    with pytest.raises(ValueError, match="learned gates"), clipped(LEM(1, 2, single_scale=True), 0.1, 1.0):
        pass
    with pytest.raises(ValueError, match="at least one sequence"):
        time_scales(LEM(1, 2), [])
    layer = Recurrent("lem", 1, 2)
    layer.cells[0] = torch.nn.Identity()
    with pytest.raises(ValueError, match="made of LEM cells"):
        time_scales(layer, [torch.zeros(3, 1, 1)])
