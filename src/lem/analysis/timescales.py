"""The time-scale microscope: which time steps dt_z, dt_y a trained LEM takes on a data set, and which of them matter.

A gate of value g forgets its state over 1/g steps, so the gates of a trained model are its time scales. They are
counted into histograms as the data stream by; never are all gates of a data set in memory at once.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lem.analysis.bounds import parts
from lem.analysis.certificate import lem_cells
from lem.atomic import save_figure
from lem.extras import pyplot
from lem.nn.cells.timing import seen_by_steps
from lem.nn.recurrent import Recurrent
from lem.shapes import Float

LOG_EDGES = np.logspace(-8, math.log10(2.0), 333)  # 40 bins a decade
LINEAR_EDGES = np.linspace(0.0, 2.0, 401)
CHUNK = 256
POWERS = tuple(2.0**-i for i in range(8))


class Histogram:
    """Counts in bins [edge_i, edge_i+1), the last bin closed, filled as values stream by; equal to numpy's.

    Values below the first edge or above the last are counted in `below` and `above`, never dropped.
    """

    def __init__(self, edges: Sequence[float] | np.ndarray) -> None:
        self.edges = np.asarray(edges, dtype=np.float64)
        if self.edges.ndim != 1 or len(self.edges) < 2 or not (np.diff(self.edges) > 0).all():
            raise ValueError(f"`edges` of Histogram must be an increasing list of two or more numbers; got {edges!r}.")
        self.counts = np.zeros(len(self.edges) - 1, dtype=np.int64)
        self.below = self.above = 0

    def add(self, values: Tensor | np.ndarray) -> None:
        """Count `values`."""
        flat = torch.as_tensor(values).detach().reshape(-1).double().cpu().numpy()
        self.counts += np.histogram(flat, self.edges)[0]
        self.below += int((flat < self.edges[0]).sum())
        self.above += int((flat > self.edges[-1]).sum())

    @property
    def total(self) -> int:
        """How many values were counted."""
        return int(self.counts.sum()) + self.below + self.above

    def quantile(self, fraction: float) -> float:
        """Return the upper edge of the bin in which the cumulated count passes `fraction`."""
        passed = self.below + np.cumsum(self.counts) >= fraction * self.total
        return float(self.edges[1:][passed][0]) if passed.any() else float(self.edges[-1])


class Tail(NamedTuple):
    """Two laws fitted to the slow tail of the time constants, with their Kolmogorov-Smirnov distances."""

    start: float
    """Time constant, in steps, from which the tail counts."""
    samples: int
    exponent: float
    """Power law: density of the time constant ~ tau^-exponent."""
    power_distance: float
    rate: float
    """Exponential law: density ~ exp(-rate tau)."""
    exponential_distance: float
    log_ratio: float
    """Mean log-likelihood of a value under the power law minus that under the exponential."""

    @property
    def verdict(self) -> str:
        """Which law describes the tail: 'power law', 'exponential', or 'neither' if both miss by over 0.1."""
        if min(self.power_distance, self.exponential_distance) > 0.1:
            return "neither"
        return "power law" if self.power_distance < self.exponential_distance else "exponential"

    def densities(self, gate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return both fitted laws as densities of the gate 1 / tau, of the tail alone."""
        tau = 1.0 / gate
        power = (self.exponent - 1) / self.start * (tau / self.start) ** -self.exponent
        return power * tau**2, self.rate * np.exp(-self.rate * (tau - self.start)) * tau**2


def fit_tail(histogram: Histogram, tail: float = 0.5) -> Tail:
    """Fit a power law and an exponential to the slowest `tail` of the time constants 1 / gate.

    Both are maximum-likelihood fits to the binned counts from the same starting point, which is a quantile and not
    chosen by the fit: a starting point tuned to one law would favour it.

    Examples:
        >>> import torch
        >>> from lem import LEM
        >>> from lem.analysis.timescales import fit_tail, time_scales
        >>> gates = time_scales(LEM(2, 16, t_max=100.0), [torch.rand(200, 4, 2)]).gates[0]
        >>> tail = fit_tail(gates.log)
        >>> tail.samples > 0
        True
    """
    if not 0.0 < tail <= 1.0:
        raise ValueError(f"`tail` of fit_tail must be a fraction in (0, 1]; got {tail!r}.")
    if histogram.edges[0] <= 0.0:
        raise ValueError("`histogram` of fit_tail must have positive edges: the logarithmic one.")
    last = int(np.searchsorted(histogram.edges, histogram.quantile(tail)))
    # Bins of the time constant, ascending; the last one is open and holds what was below the first edge.
    edges = 1.0 / histogram.edges[: last + 1][::-1]
    counts = np.append(histogram.counts[:last][::-1], histogram.below).astype(float)
    start, total = float(edges[0]), float(counts.sum())
    if total == 0 or (counts > 0).sum() < 3:
        raise ValueError(
            "`histogram` of fit_tail must fill at least three bins of its tail; a constant gate has no tail."
        )

    def survival(law: str, value: float) -> np.ndarray:
        scaled = edges / start if law == "power" else edges - start
        return np.append(scaled ** (1.0 - value) if law == "power" else np.exp(-value * scaled), 0.0)

    def likelihood(law: str, value: float) -> float:
        return float(counts @ np.log(np.maximum(-np.diff(survival(law, value)), 1e-300))) / total

    exponent = 1.0 + _maximise(lambda x: likelihood("power", 1.0 + x), 1e-3, 1e3)
    rate = _maximise(lambda x: likelihood("exponential", x), 1e-9, 1e3)
    seen = 1.0 - np.append(0.0, np.cumsum(counts)) / total
    distances = [float(np.abs(seen - survival(*law)).max()) for law in (("power", exponent), ("exponential", rate))]
    ratio = likelihood("power", exponent) - likelihood("exponential", rate)
    return Tail(start, int(total), exponent, distances[0], rate, distances[1], ratio)


def _maximise(function: Callable[[float], float], low: float, high: float) -> float:
    """Find the maximum of a unimodal function of a positive number by golden section on its logarithm."""
    a, b = math.log(low), math.log(high)
    golden = (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(60):
        c, d = b - golden * (b - a), a + golden * (b - a)
        if function(math.exp(c)) < function(math.exp(d)):
            a = c
        else:
            b = d
    return math.exp((a + b) / 2)


# --- the gates of a model over a data set ----------------------------------------------------------------------------


class GateScales:
    """What was seen of one gate (dt_z or dt_y of one cell): two histograms, and a spectrum of every unit.

    Examples:
        >>> import torch
        >>> from lem import LEM
        >>> from lem.analysis.timescales import time_scales
        >>> layer = LEM(2, 16, t_max=100.0)
        >>> gates = time_scales(layer, [torch.rand(200, 4, 2)]).gates[0]
        >>> gates.name, gates.time_constants.shape  # one time constant per unit
        ('dt_z', (16,))
    """

    def __init__(self, name: str, units: int) -> None:
        self.name = name
        self.log = Histogram(LOG_EDGES)
        self.linear = Histogram(LINEAR_EDGES)
        self.spectrum_edges = LOG_EDGES[::4].copy()
        """Edges of the units' bins, ten a decade."""
        self.spectra = np.zeros((units, len(self.spectrum_edges) + 1), dtype=np.int64)
        self.log_sum = np.zeros(units)
        self.count = 0

    def add(self, values: Float[Tensor, "count hidden"]) -> None:
        """Count the gates of some steps."""
        flat = values.detach().double().cpu()
        self.log.add(flat)
        self.linear.add(flat)
        bins = torch.bucketize(flat, torch.from_numpy(self.spectrum_edges), right=True)
        columns = self.spectra.shape[1]
        bins += columns * torch.arange(len(self.spectra))
        self.spectra += torch.bincount(bins.reshape(-1), minlength=self.spectra.size).numpy().reshape(-1, columns)
        self.log_sum += flat.clamp_min(1e-300).log().sum(0).numpy()
        self.count += len(flat)

    @property
    def time_constants(self) -> np.ndarray:
        """The typical time constant of every unit, in steps: 1 / geometric mean of its gate."""
        return np.exp(-self.log_sum / self.count)

    @property
    def modes(self) -> list[float]:
        """The values around which the gates gather: peaks of its histogram, smoothed, the highest first."""
        smooth = np.convolve(self.log.counts, np.ones(9), "same")
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(smooth, 10), 21)
        peaks = np.flatnonzero((smooth == windows.max(1)) & (smooth > 0.05 * smooth.max()))
        centres = np.sqrt(self.log.edges[1:] * self.log.edges[:-1])
        # A flat top is one peak.
        apart = [p for k, p in enumerate(peaks) if k == 0 or p - peaks[k - 1] > 10]
        return [float(centres[p]) for p in sorted(apart, key=lambda p: -smooth[p])]


@dataclass(frozen=True)
class Scales:
    """The time scales of a model on a data set; `str()` of it is the table, `plot` the figure.

    Examples:
        >>> import torch
        >>> from lem import LEM
        >>> from lem.analysis.timescales import time_scales
        >>> layer = LEM(2, 16, t_max=100.0)
        >>> scales = time_scales(layer, [torch.rand(200, 4, 2)])
        >>> len(scales.ranking(0))  # the units of the first gate, the slowest first
        16
    """

    gates: list[GateScales]
    sampling_interval: float | None = None
    """The time between two steps, or that of the usual step of a model with elapsed times, if known."""
    time_unit: str = "s"
    """What `sampling_interval` is given in."""

    def ranking(self, gate: int = 0) -> list[tuple[int, float]]:
        """Return (unit, time constant in steps) of one gate, the slowest first."""
        constants = self.gates[gate].time_constants
        return [(int(i), float(constants[i])) for i in np.argsort(-constants)]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a gate: quantiles of the gate, time constants of its units, and the law of its tail."""
        table = []
        for k, gate in enumerate(self.gates):
            ranking = self.ranking(k)
            row: dict[str, Any] = {"gate": gate.name, "values": gate.log.total}
            row |= {f"q{round(100 * q):02d}": gate.log.quantile(q) for q in (0.01, 0.1, 0.5, 0.9, 0.99)}
            row["modes"] = gate.modes
            row["decades"] = math.log10(row["q99"] / row["q01"])
            row["slowest"], row["fastest"] = ranking[0], ranking[-1]
            try:
                row["tail"] = fit_tail(gate.log)
            except ValueError:
                row["tail"] = None
            table.append(row)
        return table

    def __str__(self) -> str:
        width = max(len(gate.name) for gate in self.gates)
        lines = [f"{'gate':{width}}" + "".join(f"{q:>10}" for q in ("1 %", "10 %", "50 %", "90 %", "99 %"))]
        lines[0] += "  decades  slow tail"
        rows = self.rows()
        for row in rows:
            tail: Tail | None = row["tail"]
            law = "none (constant gate)"
            if tail is not None:
                law = f"{tail.verdict} (exponent {tail.exponent:.2f}, distance {tail.power_distance:.3f}; "
                law += f"exponential {tail.exponential_distance:.3f})"
            quantiles = "  ".join(f"{row[q]:8.2e}" for q in ("q01", "q10", "q50", "q90", "q99"))
            lines.append(f"{row['gate']:{width}}  {quantiles}  {row['decades']:7.2f}  {law}")
        for row in rows:
            lines.append(f"{row['gate']} gathers around {', '.join(f'{mode:.2g}' for mode in row['modes'])}")
            for word in ("slowest", "fastest"):
                unit, steps = row[word]
                lines.append(f"{word} unit of {row['gate']}: {unit}, time constant {self.duration(steps)}")
        return "\n".join(lines)

    def duration(self, steps: float) -> str:
        """Write a time constant in steps and, if the sampling interval is known, in its unit."""
        given = self.sampling_interval
        return f"{steps:.3g} steps" + ("" if given is None else f" = {steps * given:.3g} {self.time_unit}")

    def plot(self, path: str | Path) -> None:
        """Draw, for every gate, the histogram on both scales, the fitted tail and the units' spectra."""
        plt = pyplot()
        figure, axes = plt.subplots(
            len(self.gates), 3, figsize=(11, 2.9 * len(self.gates)), squeeze=False, layout="constrained"
        )
        for k, ((linear, log, spectra), gate, row) in enumerate(zip(axes, self.gates, self.rows())):
            linear.stairs(gate.linear.counts / gate.linear.total, gate.linear.edges, fill=True, color="C0")
            linear.set(xlabel=gate.name, ylabel="share of all gates", xlim=(0, gate.linear.quantile(1.0)))
            linear.set_title("linear scale", fontsize=9)

            density = gate.log.counts / gate.log.total / np.diff(gate.log.edges)
            filled = density > 0
            log.stairs(np.where(filled, density, np.nan), gate.log.edges, color="C0")
            tail: Tail | None = row["tail"]
            if tail is not None:
                g = np.geomspace(gate.log.edges[1:][filled].min(), 1 / tail.start, 100)
                power, exponential = (tail.samples / gate.log.total * law for law in tail.densities(g))
                log.plot(g, power, "C3", label=f"power law, distance {tail.power_distance:.3f}")
                log.plot(g, exponential, "C1--", label=f"exponential, distance {tail.exponential_distance:.3f}")
                log.legend(frameon=False, fontsize=7)
            log.set(xscale="log", yscale="log", xlabel=gate.name, ylabel="density")
            left = gate.log.quantile(0.001) / 2
            seen = density[filled & (gate.log.edges[1:] > left)]
            log.set(xlim=(left, 2.1), ylim=(seen.min() / 3, seen.max() * 3))
            log.set_title(f"slow tail: {tail.verdict if tail else 'none'}", fontsize=9)

            order = [unit for unit, _ in self.ranking(k)]
            shares = gate.spectra[order, 1:-1] / gate.count
            mesh = spectra.pcolormesh(gate.spectrum_edges, np.arange(len(order) + 1), shares, cmap="magma_r")
            spectra.set(xscale="log", xlim=log.get_xlim(), xlabel=gate.name, ylabel="units, slowest at the bottom")
            spectra.yaxis.get_major_locator().set_params(integer=True)
            spectra.set_title("every unit's spectrum", fontsize=9)
            figure.colorbar(mesh, ax=spectra, label="share of its steps")
        save_figure(figure, path)
        plt.close(figure)


def time_scales(
    layer: Recurrent,
    batches: Iterable[Tensor | tuple[Tensor | None, ...]],
    sampling_interval: float | None = None,
    time_unit: str = "s",
) -> Scales:
    """Run `layer` over `batches` and count every gate it takes.

    A gate is counted as what it is for a step of the usual length, so 1 / gate is a time also where steps differ.

    Args:
        layer: a layer of LEM.
        batches: inputs, or tuples of inputs, their lengths and their elapsed times, both of which may be None.
        sampling_interval: the time between two steps, or that of the usual step where there are elapsed times.
        time_unit: what it is given in.

    Examples:
        >>> import torch
        >>> from lem import LEM
        >>> from lem.analysis.timescales import time_scales
        >>> layer = LEM(2, 16, t_max=100.0)
        >>> scales = time_scales(layer, [torch.rand(200, 4, 2)])
        >>> [gates.name for gates in scales.gates]
        ['dt_z', 'dt_y']
    """
    directions = 2 if layer.bidirectional else 1
    names = [
        f"{gate} layer {layer_number}{' backwards' if k else ''}" if layer.num_layers * directions > 1 else gate
        for layer_number in range(layer.num_layers)
        for k in range(directions)
        for gate in ("dt_z", "dt_y")
    ]
    seen = [GateScales(name, layer.hidden_size) for name in names]
    was_training = layer.training
    layer.eval()
    try:
        with torch.no_grad():
            for batch in batches:
                u, *timing = batch if isinstance(batch, tuple) else (batch,)
                lengths, elapsed = (*timing, None, None)[:2]
                assert u is not None
                if layer.batch_first:
                    u, elapsed = u.transpose(0, 1), None if elapsed is None else elapsed.T
                _count(layer, u, lengths, elapsed, directions, seen)
    finally:
        layer.train(was_training)
    if not seen[0].count:
        raise ValueError("`batches` of time_scales must hold at least one sequence; got none.")
    return Scales(seen, sampling_interval, time_unit)


def _count(layer: Recurrent, u: Tensor, lengths: Any, elapsed: Any, directions: int, seen: list[GateScales]) -> None:
    cells = lem_cells(layer)
    steps, batch = u.shape[:2]
    ends = torch.full((batch,), steps) if lengths is None else lengths
    inside = torch.arange(steps)[:, None] < ends
    u = u.masked_fill(~inside[:, :, None].to(u.device), 0.0)
    # Row by row the same steps from its own end to its beginning: a backward cell then reads forwards.
    flip = (ends - 1 - torch.arange(steps)[:, None]).clamp_min(0).to(u.device)
    gaps: list[Tensor] = []
    if elapsed is not None:
        for reverse in (False, True):
            timed, _ = seen_by_steps(elapsed.to(u), None, lengths, reverse)
            assert timed is not None
            gaps.append(torch.take_along_dim(timed[..., 0], flip, 0) if reverse else timed[..., 0])
    for number in range(layer.num_layers):
        outputs = []
        for k in range(directions):
            index = number * directions + k
            cell = cells[index]
            read = torch.take_along_dim(u, flip[:, :, None], 0) if k else u
            state, written = cell.init_state(batch), []
            for start in range(0, steps, CHUNK):
                part, valid = read[start : start + CHUNK], inside[start : start + CHUNK]
                y, after = cell.sequence(part, state, elapsed=gaps[k][start : start + CHUNK] if gaps else None)
                taken = parts(cell, part, torch.cat([state[0][None], y[:-1]]))
                for gate, values in zip(seen[2 * index :], (taken.dt_z, taken.dt_y)):
                    gate.add(values[valid.to(values.device)])
                state = after
                written.append(y)
            out = torch.cat(written)
            outputs.append(torch.take_along_dim(out, flip[:, :, None], 0) if k else out)
        u = torch.cat(outputs, dim=-1).masked_fill(~inside[:, :, None].to(u.device), 0.0)


# --- which scales matter ---------------------------------------------------------------------------------------------


@contextmanager
def clipped(layer: Recurrent, low: float, high: float) -> Iterator[Recurrent]:
    """Clip the gates of a trained layer to [low, high] inside the `with` block; afterwards it is as it was.

    Examples:
        >>> import torch
        >>> from lem import LEM
        >>> from lem.analysis.timescales import clipped
        >>> layer = LEM(2, 16)
        >>> with clipped(layer, 0.25, 1.0):
        ...     outputs, _ = layer(torch.rand(200, 4, 2))  # no gate is below 1/4 here
    """
    cells = lem_cells(layer)
    if any(cell.single_scale for cell in cells):
        raise ValueError("`layer` of clipped must have learned gates; a single-scale LEM has none.")
    before = [cell.clip for cell in cells]
    try:
        for cell in cells:
            cell.clip = (low, high)
        yield layer
    finally:
        for cell, clip in zip(cells, before):
            cell.clip = clip


def clip_ablation(
    layer: Recurrent, evaluate: Callable[[], float], lows: Sequence[float] = POWERS
) -> list[tuple[float, float]]:
    """Return (low, score) with the gates clipped to [low, max(1, dt)] at evaluation time; last, low = 0: unclipped.

    The paper's study clips during training; this one asks a finished model which of its scales it relies on.

    Examples:
        >>> import torch
        >>> from lem import LEM
        >>> from lem.analysis.timescales import clip_ablation
        >>> layer, u = LEM(2, 16), torch.rand(200, 4, 2)
        >>> scores = clip_ablation(layer, lambda: layer(u)[0].std().item(), lows=(1.0, 0.5))
        >>> [low for low, score in scores]
        [1.0, 0.5, 0.0]
    """
    high = max(1.0, *(cell.dt for cell in lem_cells(layer)))
    scores = []
    for low in (*lows, 0.0):
        with clipped(layer, low, high):
            scores.append((low, float(evaluate())))
    return scores
