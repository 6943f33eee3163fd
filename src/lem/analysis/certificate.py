"""A certificate for a LEM and a batch: will the gradient explode, go flat or arrive, and which dt to take.

`certify` measures how the gradient of a loss at the last step travels back in time, compares it with the bounds and
reports in words what that means; `advise_dt` turns the same measurement into a time step and an interval to search.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lem.analysis.bounds import adjoint, gain, growth, log10_product_bound, total_gradient_bound, violated
from lem.atomic import save_figure
from lem.extras import pyplot
from lem.nn.cells import LEMCell
from lem.nn.cells.timing import seen_by_steps
from lem.nn.model import SequenceModel
from lem.nn.recurrent import Recurrent
from lem.shapes import Float

FLAT = 1e-7
"""A gradient this far below its peak is lost to float32's rounding."""

EXPLODED = 1e3
"""A gradient this far above the one that arrives at the last step needs clipping."""


@dataclass(frozen=True)
class Certificate:
    """Measured gradients of one cell on one batch against the bounds; `str()` of it is the report.

    Examples:
        >>> import torch
        >>> from lem import LEM
        >>> from lem.analysis.certificate import certify
        >>> certificate = certify(LEM(2, 16, dt=0.05).cells[0], torch.rand(200, 4, 2))
        >>> 0 <= certificate.reach <= 1  # the share of the gradient's peak that reaches the first step
        True
    """

    steps: int
    dt: float
    eta: float
    gamma: float
    measured: list[float] = field(repr=False)
    """Median over the batch of |dE_n/dX_{n-lag}|_1 / |dE_n/dX_n|_1 for lag 0..n."""
    largest: list[float] = field(repr=False)
    along: list[float] = field(repr=False)
    """The same without cancellation, along this batch's states: a rigorous bound for this batch."""
    total: dict[str, tuple[float, float | None]]
    """Largest |dE_n/d theta| of W, V and b, and its bound if Proposition 2 applies."""
    violated: list[str]
    peak: float
    reach: float
    memory: int
    """Steps back to the last point at which the gradient is 1/e of its peak."""
    faint_memory: int
    """The same for 1/100 of its peak."""
    name: str = "LEM"
    timed: bool = False
    """Whether the steps have lengths of their own, for which the bound for any input does not hold."""

    @property
    def kind(self) -> str:
        """One word: explodes, vanishes, fades or remembers."""
        if not math.isfinite(self.peak) or self.peak > EXPLODED:
            return "explodes"
        if self.reach < FLAT:
            return "vanishes"
        return "remembers" if self.memory >= self.steps else "fades"

    @property
    def verdict(self) -> str:
        """What will happen to the gradient, in words."""
        if self.kind == "explodes":
            return (
                f"The gradient explodes: going back in time it grows to {self.peak:.2g} times what arrives at the last "
                "step. Lower dt, or clip the gradient norm."
            )
        if self.kind == "vanishes":
            return (
                f"The gradient goes flat: of its peak {self.reach:.1e} reaches the first step, below what float32 "
                f"resolves. {self._memory} If the task needs more, lower dt, start the gates below it (initial_dt), or "
                f"start from t_max = {self.steps}, which spreads the time scales (chrono initialisation)."
            )
        if self.kind == "fades":
            return (
                f"The gradient fades but arrives: {self.reach:.1e} of its peak reaches the first step. {self._memory}"
            )
        return f"Nothing is forgotten: {self.reach:.2f} of the gradient's peak reaches the first of {self.steps} steps."

    @property
    def _memory(self) -> str:
        return f"Effective memory: {self.memory} of {self.steps} steps to 1/e of the peak, {self.faint_memory} to 1 %."

    def bound(self, lag: int) -> float | None:
        """Return log10 of the paper's bound (grad11) at `lag`, or None with dt > 1 or elapsed times: there is none."""
        return log10_product_bound(self.eta, self.dt, lag) if self.dt <= 1.0 and not self.timed else None

    def __str__(self) -> str:
        last = self.bound(self.steps)
        lines = [
            f"{self.name}: {self.steps} steps, dt = {self.dt:g}, eta = {self.eta:.3g}, Gamma = {self.gamma:.4g}, "
            f"t_n = {self.steps * self.dt:.4g}",
            f"  {self.verdict}",
            f"  gradient at the first step, relative to the last:  measured {self.measured[-1]:.2e} (median), "
            f"{self.largest[-1]:.2e} (largest row)",
            f"  no larger, along these states, than                {self.along[-1]:.2e}",
            "  no larger, for any input (eq. grad11), than        "
            + (f"1e{last:.1f}" if last is not None else "- (needs dt <= 1 and steps of equal length)"),
        ]
        for name, (seen, limit) in self.total.items():
            shown = f"<= {limit:.3g} (Proposition 2)" if limit is not None else ""
            lines.append(f"  largest |dE/d{name}|: {seen:.3g} {shown}".rstrip())
        if self.violated:
            lines.append(f"  Proposition 2 does not apply: {'; '.join(self.violated)}.")
        return "\n".join(lines)

    def plot(self, path: str | Path) -> None:
        """Draw measured gradient and bounds over the steps back in time."""
        plt = pyplot()
        figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
        lag = range(self.steps + 1)
        axes.semilogy(lag, self.measured, color="C0", label="measured, median of the batch")
        axes.semilogy(lag, self.largest, color="C0", lw=0.8, ls=":", label="measured, largest row")
        top = max(*(x for x in self.largest if math.isfinite(x)), 1.0) * 1e4
        bottom = max(min(x for x in self.measured if x > 0), 1e-20)
        axes.semilogy(lag, [min(x, 10 * top) for x in self.along], color="C1", label="bound along these states")
        if self.bound(0) is not None:
            paper = [10 ** min(log10_product_bound(self.eta, self.dt, k), math.log10(top) + 1) for k in lag]
            axes.semilogy(lag, paper, color="C3", label=r"bound for any input, $(1+\Gamma\Delta t/2)^{n-k}$")
        if self.memory < self.steps:
            axes.axvline(self.memory, color="0.6", lw=0.8, ls="--")
            axes.annotate(f" memory {self.memory}", (self.memory, bottom), color="0.4", va="bottom")
        axes.set(xlabel="steps back in time, $n-k$", ylabel=r"$|\partial E_n/\partial X_k|_1$ (relative)")
        axes.set(ylim=(bottom / 3, top), xlim=(0, self.steps), title=f"{self.name}: the gradient {self.kind}")
        axes.legend(frameon=False, fontsize=8)
        save_figure(figure, path)
        plt.close(figure)


def certify(
    cell: LEMCell,
    u: Float[Tensor, "time batch input"],
    error: Float[Tensor, "batch hidden"] | None = None,
    name: str = "LEM",
    elapsed: Float[Tensor, "time batch"] | None = None,
) -> Certificate:
    """Measure, in float64, how the gradient of a loss at the last step travels back, and compare with the bounds.

    `error` is the gradient that arrives at y_n, one row a sequence; where it is not given, y_n itself is taken (the
    paper's loss |y_n - target|^2 / 2 with target zero). `elapsed` are the lengths of the steps, 1 where not given.

    Examples:
        >>> import torch
        >>> from lem import LEM
        >>> from lem.analysis.certificate import certify
        >>> layer, u = LEM(2, 16, dt=0.05), torch.rand(200, 4, 2)  # (time, batch, input)
        >>> certificate = certify(layer.cells[0], u)
        >>> certificate.steps, certificate.verdict
        (200, 'The gradient ...')
    """
    cell = copy.deepcopy(cell).double().eval()
    u, error, elapsed = (None if t is None else t.double() for t in (u, error, elapsed))  # type: ignore[assignment]
    steps = len(u)
    outputs, _ = cell.sequence(u, elapsed=elapsed)
    arriving = outputs[-1].detach() if error is None else error
    cell.zero_grad()
    ((outputs[-1] * arriving).sum() / u.shape[1]).backward()
    seen = {
        "W": max(float(p.grad.abs().max()) for p in (cell.weight_y, cell.weight_z) if p.grad is not None),
        "V": float(cell.weight_u.grad.abs().max()) if cell.weight_u.grad is not None else 0.0,
        "b": float(cell.bias.grad.abs().max()) if cell.bias is not None and cell.bias.grad is not None else 0.0,
    }
    norm, along = (adjoint(cell, u, arriving, flag, elapsed) / arriving.abs().sum(1) for flag in (False, True))
    median = norm.median(1).values
    wrong = violated(cell, steps) + ["the steps must be of equal length; there are elapsed times"] * (
        elapsed is not None
    )
    limits: dict[str, Any] = dict.fromkeys(seen)
    if not wrong:
        limits = total_gradient_bound(cell, steps, float(arriving.abs().sum(1).mean()), float(u.abs().max()))
    peak = float(median.max())
    memory, faint = (int((median >= peak * part).nonzero().max()) for part in (1 / math.e, 0.01))
    eta = gain(cell)
    return Certificate(
        steps=steps,
        dt=cell.dt,
        eta=eta,
        gamma=growth(eta),
        measured=median.tolist(),
        largest=norm.max(1).values.tolist(),
        along=along.max(1).values.tolist(),
        total={key: (seen[key], limits[key]) for key in seen},
        violated=wrong,
        peak=peak,
        reach=float(median[-1]) / peak,
        memory=memory,
        faint_memory=faint,
        name=name,
        timed=elapsed is not None,
    )


def certify_layers(
    layer: Recurrent,
    u: Float[Tensor, "time batch input"],
    error: Float[Tensor, "batch output"] | None = None,
    elapsed: Float[Tensor, "time batch"] | None = None,
) -> list[Certificate]:
    """Certify every cell of a layer of LEM, each on what it reads when `layer` runs over `u` (time-major).

    `error` is the gradient that arrives at the last output of the top layer; the layers below are taken alone.
    `elapsed` are the times since the previous observation, 1 where not given.

    Examples:
        >>> import torch
        >>> from lem import LEM
        >>> from lem.analysis.certificate import certify_layers
        >>> layer, u = LEM(2, 16, num_layers=2, dt=0.05), torch.rand(200, 4, 2)
        >>> [certificate.name for certificate in certify_layers(layer, u)]
        ['LEM, layer 0', 'LEM, layer 1']
    """
    cells, found = lem_cells(layer), []
    directions = 2 if layer.bidirectional else 1
    for number in range(layer.num_layers):
        outputs = []
        for k, cell in enumerate(cells[number * directions : (number + 1) * directions]):
            read, name = (u.flip(0) if k else u).detach(), f"LEM, layer {number}" + (", backwards" if k else "")
            arriving = error.chunk(directions, -1)[k] if error is not None and number == layer.num_layers - 1 else None
            gaps = seen_by_steps(elapsed, None, None, bool(k))[0]
            gaps = None if gaps is None else gaps[..., 0].flip(0) if k else gaps[..., 0]
            found.append(certify(cell, read, arriving, name, gaps))
            with torch.no_grad():
                outputs.append(cell.sequence(u, reverse=bool(k), elapsed=elapsed)[0])
        u = torch.cat(outputs, dim=-1)
    return found


# --- the time step ---------------------------------------------------------------------------------------------------

USUAL_RATE = 0.25
"""The gradient of an untrained LEM decays as e^(-0.25 n dt): the median of 81 models, 90 % within 0.21 and 0.32."""


@dataclass(frozen=True)
class Advice:
    """A time step to start from, the interval to search, and why.

    Examples:
        >>> from lem.analysis.certificate import advise_dt
        >>> print(advise_dt(1000).reason)
        over 1000 steps the gradient decays as exp(-0.25 n dt) ...
    """

    dt: float
    low: float
    high: float
    reason: str

    def __str__(self) -> str:
        return f"dt = {self.dt:.2g}, search [{self.low:.2g}, {self.high:.2g}] on a logarithmic scale: {self.reason}"


def advise_dt(
    length: int,
    cell: LEMCell | None = None,
    u: Float[Tensor, "time batch input"] | None = None,
    elapsed: Float[Tensor, "time batch"] | None = None,
) -> Advice:
    """Recommend `dt` and a search interval for sequences of `length` steps.

    The gradient of an untrained LEM decays as e^(-rate t_n), t_n = n dt. The recommended dt is the largest with which
    the first step still moves a float32 gradient; the interval runs from the dt that remembers the whole sequence
    (1/e of the gradient arrives) to 1, or to where the gradient explodes. With `cell` and a batch `u`, and its
    `elapsed` times if it has them, the rate is measured; without, that of the default initialisation is taken.

    Examples:
        >>> from lem.analysis.certificate import advise_dt
        >>> advice = advise_dt(5000)
        >>> round(advice.dt, 4), advice.low < advice.dt < advice.high
        (0.0129, True)
    """
    if length < 1:
        raise ValueError(f"`length` of advise_dt must be a positive number of steps; got {length!r}.")
    if (cell is None) != (u is None):
        raise ValueError("`cell` and `u` of advise_dt must be given together or not at all.")
    reachable = -math.log(FLAT)
    rate, exploded, source = USUAL_RATE, 2.0, "the usual rate of untrained weights"
    if cell is not None and u is not None:
        trial, u = copy.deepcopy(cell).double().eval(), u[:length].double()
        gaps = None if elapsed is None else elapsed[:length].double()
        dt = min(1.0, reachable / (rate * length))
        for _ in range(6):
            trial.dt = dt
            flow = adjoint(trial, u, elapsed=gaps).median(1).values
            peak, reach = float((flow / flow[0]).max()), float(flow[-1] / flow.max())
            if not math.isfinite(peak) or peak > EXPLODED:
                exploded, dt = dt, dt / 4
                continue
            rate = max(-math.log(max(reach, 1e-300)) / (len(u) * dt), 1e-3 / length)
            better = min(1.0, exploded / 2, reachable / (rate * length))
            if abs(math.log(better / dt)) < 0.1:
                break
            dt = better
        source = f"measured on this batch of {u.shape[1]}"
    high = min(1.0, exploded / 2)
    dt = min(high, reachable / (rate * length))
    low = min(dt, 1.0 / (rate * length))
    reason = (
        f"over {length} steps the gradient decays as exp(-{rate:.2g} n dt) ({source}); {dt:.2g} is the largest dt with "
        f"which the first step still reaches the loss in float32, {low:.2g} remembers the whole sequence"
    )
    if exploded < 2.0:
        reason += f"; from dt = {exploded:.2g} on the gradient explodes"
    return Advice(dt, low, high, reason)


def lem_cells(layer: Recurrent) -> list[LEMCell]:
    """Return the cells of a layer, which must be LEM's."""
    cells = [cell for cell in layer.cells if isinstance(cell, LEMCell)]
    if len(cells) != len(layer.cells):
        raise ValueError(f"`layer` of lem.analysis must be made of LEM cells; got {layer.cell!r}.")
    return cells


def certify_model(
    model: SequenceModel,
    u: Float[Tensor, "time batch input"],
    value: Callable[[Tensor], Tensor],
    elapsed: Float[Tensor, "time batch"] | None = None,
) -> tuple[list[Certificate], Advice]:
    """Certify every cell of a model that reads `u`, and advise on the first; `value` is what the gradient is of.

    A model that reads the last output and the mean of all is certified by the way through the last output.
    """
    lem_cells(model.recurrent)
    with torch.no_grad():
        outputs, final = model.recurrent(u, elapsed=elapsed)
    last = torch.cat(final[0][-2 if model.recurrent.bidirectional else -1 :].unbind(0), dim=-1).requires_grad_()
    read = torch.cat([last, outputs.mean(0)], dim=-1) if model.pool == "both" else last
    value(model.readout(read)).sum().backward()
    found = certify_layers(model.recurrent, u, last.grad, elapsed)
    return found, advise_dt(len(u), lem_cells(model.recurrent)[0], u, elapsed)
