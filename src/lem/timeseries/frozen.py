"""A network that is drawn, not trained: random recurrent groups over many time scales, pooled over time.

Each group is one recurrent layer with random weights and its own longest time scale. Some groups read the series,
the others read random local kernels (`convolutions.py`). The features of a series are statistics over time of every
unit and every kernel: mostly the share of steps above a threshold, which is robust for few training series. All that a
fit estimates is thresholds and scales; a linear readout on the features does the rest.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lem.nn.cells import Cell, LEMCell, State
from lem.nn.recurrent import make_cell
from lem.shapes import Float, Int
from lem.timeseries.batches import in_batches, one_thread
from lem.timeseries.convolutions import ARRANGEMENTS, LENGTH, KernelBank, Workspace, above, quantiles
from lem.timeseries.series import Series

MOST_CHANNELS = 16
"""The most channels a group on the series itself reads; with more, each group reads a random choice."""
UNITS = 32
"""The units of a group: wide enough for the kernel's vectors, narrow enough that the recurrent product stays cheap."""
THRESHOLDS = 4
"""The number of thresholds of each kernel."""
SHARES = 4
"""The number of thresholds of each unit."""
ADAPTED = 64
"""The most training series from which thresholds are estimated."""
LONGEST_DILATION = 1 << 20
STATISTICS = ("share", "rise", "last", "mean", "max", "min")
SERIES = ("series", "series difference")
SIGNALS = ("value", "difference", *SERIES)


def sizes(n_features: int, causal: bool) -> dict[str, int]:
    """Return how many groups, kernels and dilations make about `n_features` features."""
    kernels_per_dilation = THRESHOLDS * (4 / 3 if causal else 11 / 6)
    groups = max(2, round(0.58 * n_features / (UNITS * (SHARES + len(STATISTICS) - 1))))
    raw = max(1, round(0.4 * groups))
    wanted = 0.42 * n_features / kernels_per_dilation
    dilations = max(1, min(8, round(wanted / 8)), round(wanted / ARRANGEMENTS))
    kernels = 4 * max(1, round(min(float(ARRANGEMENTS), wanted / dilations) / 4))
    return {"groups": raw, "kernel_groups": max(1, groups - raw), "kernels": kernels, "dilations": dilations}


def plan(
    channels: int, length: float, *, n_features: int, cell: str, causal: bool, masked: bool, random: Any
) -> dict[str, Any]:
    """Return the arguments of a `Frozen` network with about `n_features` features, for series of this length."""
    size = sizes(n_features, causal)
    longest = math.log2(max(1.0, (length - 1.0) / (LENGTH - 1)))
    dilations = [int(2.0**e) for e in np.linspace(0.0, longest, size["dilations"])]
    signals = SIGNALS[:2] if causal else SIGNALS
    # Multiples of four: one mixture of channels serves a quarter of the kernels of a block.
    shares = (1.0, 1 / 3, 1 / 3, 1 / 6)
    counts = [4 * max(1, round(share * size["kernels"] / 4)) for share, _ in zip(shares, signals)]
    total = sum(counts) * len(dilations)
    return {
        "cell": cell,
        "units": UNITS,
        "groups": size["groups"],
        "selected": [[int(i) for i in random.permutation(total)[:8]] for _ in range(size["kernel_groups"])],
        "dilations": dilations,
        "counts": counts,
        "thresholds": THRESHOLDS,
        "shares": SHARES,
        "causal": causal,
        "masked": masked,
    }


class Frozen(nn.Module):
    """Features of series from frozen recurrent groups, and a linear readout.

    `features` takes time-major standardised input, as `SequenceModel` does.

    Args:
        input_size: the channels of the input; with `masked`, as many again that mark missing values.
        output_size: the outputs of the readout; None for features alone.
        cell: the recurrent model, a name in `lem.CELLS`.
        units: the units of each group.
        groups: the number of groups that read the series itself.
        selected: for each further group, the kernels it reads.
        dilations: of the kernels.
        counts: the number of kernels per dilation, for each signal.
        thresholds: the number of thresholds of each kernel.
        shares: the number of thresholds of each unit.
        causal: run forwards only and scale nothing by the whole series, so that the features can follow a stream.
        masked: whether half of the input channels mark missing values; gaps hold the value before them.
    """

    read: Tensor
    threshold: Tensor
    feature_mean: Tensor
    feature_scale: Tensor

    def __init__(
        self,
        input_size: int,
        output_size: int | None,
        *,
        cell: str = "lem",
        units: int,
        groups: int,
        selected: list[list[int]],
        dilations: list[int],
        counts: list[int],
        thresholds: int,
        shares: int,
        causal: bool,
        masked: bool,
    ) -> None:
        super().__init__()
        self.channels = input_size // 2 if masked else input_size
        self.units = units
        self.groups = groups
        self.causal = causal
        self.masked = masked
        self.signals = SIGNALS[:2] if causal else SIGNALS
        if not all(isinstance(d, int) and 1 <= d <= LONGEST_DILATION for d in dilations):
            raise ValueError(f"`dilations` of Frozen must be whole numbers from 1 to {LONGEST_DILATION}.")
        if len(counts) != len(self.signals) or not all(isinstance(c, int) and c > 0 and c % 4 == 0 for c in counts):
            raise ValueError(
                f"`counts` of Frozen must be one multiple of four for each of {len(self.signals)} signals."
            )
        self.bank = KernelBank(self.channels, self.signals, dilations, counts, thresholds, causal)
        if not all(0 <= k < self.bank.total for row in selected for k in row):
            raise ValueError(f"`selected` of Frozen must hold kernels below {self.bank.total}.")
        self.selected = selected
        # Which rows of each block the groups read, and where each group finds its kernels among them.
        used = sorted({k for row in selected for k in row})
        of_block = [[k - b.start for k in used if b.start <= k < b.start + b.count] for b in self.bank.blocks]
        self._rows = of_block
        place = {
            k: (i, of_block[i].index(k - b.start))
            for i, b in enumerate(self.bank.blocks)
            for k in used
            if b.start <= k < b.start + b.count
        }
        self._places = [[place[k] for k in row] for row in selected]
        width = min(self.channels, MOST_CHANNELS)
        sizes = [(3 if masked else 2) * width] * groups + [len(row) for row in selected]
        self.layers = nn.ModuleList(make_cell(cell, size, units) for size in sizes).requires_grad_(False)
        self.register_buffer("read", torch.zeros(groups, width, dtype=torch.int64))
        self.register_buffer("threshold", torch.zeros(len(sizes), shares, units))
        per_unit = shares + len(STATISTICS) - 1
        self.size = self.bank.features + len(sizes) * units * per_unit
        self.register_buffer("feature_mean", torch.zeros(self.size))
        self.register_buffer("feature_scale", torch.ones(self.size))
        self.readout = nn.Linear(self.size, output_size) if output_size else nn.Identity()

    @property
    def cells(self) -> list[Cell]:
        """The groups: first those on the series, then those on kernels."""
        return [layer for layer in self.layers if isinstance(layer, Cell)]

    # --- drawing ----------------------------------------------------------------------------------------------------

    def draw(self, length: float, random: Any) -> None:
        """Draw all random weights, for series of about this length."""
        with torch.no_grad():
            self.bank.draw(self.channels, random)
            for g, cell in enumerate(self.cells):
                raw = g < self.groups
                longest = math.exp(random.uniform(math.log(3.0), math.log(max(4.0, length))))
                strength = math.exp(random.uniform(*(math.log(end) for end in ((0.7, 5.0) if raw else (0.4, 3.0)))))
                if raw:
                    self.read[g] = torch.as_tensor(random.permutation(self.channels)[: self.read.shape[1]])
                _draw(cell, longest, strength, random.uniform(0.0, 1.5), not raw, random)

    def adapt(self, inputs: Float[Tensor, "time batch input"], lengths: Int[Tensor, "batch"]) -> None:
        """Set thresholds and scales from training series."""
        signals = self._signals(inputs, lengths)
        outputs = []
        for k, block in enumerate(self.bank.blocks):
            found = self.bank.run(k, signals[block.signal])
            self.bank.adapt(k, found, lengths)
            outputs.append(found[:, self._rows[k]])
        inside = torch.arange(inputs.shape[0])[:, None] < lengths
        shares = self.threshold.shape[1]
        for g in range(len(self.layers)):
            y, _ = self._run(g, self._group_input(g, signals, outputs), None, lengths)
            self.threshold[g] = quantiles(y[inside], shares, g * self.units * shares)

    # --- whole series -----------------------------------------------------------------------------------------------

    def features(
        self,
        inputs: Float[Tensor, "time batch input"],
        state: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        every_step: bool = False,
    ) -> tuple[Tensor, State]:
        """Return the standardised features of each series, and the state that continues it.

        The state is empty unless `state` was given.
        """
        if state or every_step:
            return self._continued(inputs, state or self.init_state(inputs.shape[1]), every_step)
        ends = torch.full((inputs.shape[1],), inputs.shape[0], device=inputs.device) if lengths is None else lengths
        signals = self._signals(inputs, ends)
        found, outputs, space = [], [], Workspace()
        for k, block in enumerate(self.bank.blocks):
            kernel = self.bank.run(k, signals[block.signal], space=space)
            outputs.append(kernel[:, self._rows[k]])
            found.append(self.bank.shares(k, kernel, ends, space))
        for g in range(len(self.layers)):
            y, final = self._run(g, self._group_input(g, signals, outputs), None, lengths)
            found.append(self._pool(g, y, final[0], lengths, space))
        return (torch.cat(found, dim=1) - self.feature_mean) / self.feature_scale, ()

    def readings(
        self, inputs: Float[Tensor, "time batch input"], lengths: Int[Tensor, "batch"]
    ) -> Iterator[tuple[Cell, Float[Tensor, "time batch read"]]]:
        """Yield each group with what it reads, in the order of time in which it reads it."""
        signals = self._signals(inputs, lengths)
        outputs = [self.bank.run(k, signals[b.signal])[:, self._rows[k]] for k, b in enumerate(self.bank.blocks)]
        # Row by row the same steps from its own end to its beginning.
        flip = (lengths - 1 - torch.arange(inputs.shape[0])[:, None]).clamp_min(0)[:, :, None]
        for g, cell in enumerate(self.cells):
            read = self._group_input(g, signals, outputs)
            yield cell, torch.take_along_dim(read, flip, 0) if self._reversed(g) else read

    def _signals(self, inputs: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """Return all that groups and kernels read, each (batch, channel, time) and zero past each row's end."""
        steps = inputs.shape[0]
        inside = torch.arange(steps, device=inputs.device)[:, None] < lengths
        x = inputs[..., : self.channels]
        signals = {}
        if self.masked:
            absent = inputs[..., self.channels :]
            signals["absent"] = (absent * inside[:, :, None]).permute(1, 2, 0)
            x = _hold(x, absent)
        x = (x * inside[:, :, None]).permute(1, 2, 0).contiguous()
        inside = inside.t()[:, None].to(x.dtype)
        signals["value"] = x
        signals["difference"] = _difference(x) * inside
        if not self.causal:
            count = lengths.to(x.dtype)[:, None, None]
            centred = (x - x.sum(2, keepdim=True) / count) * inside
            spread = ((centred * centred).sum(2, keepdim=True) / count).sqrt()
            x = centred / torch.where(spread > 1e-6, spread, torch.ones_like(spread))
            signals["series"], signals["series difference"] = x, _difference(x) * inside
        return signals

    def _reversed(self, g: int) -> bool:
        return not self.causal and (g if g < self.groups else g - self.groups) % 2 == 1

    def _group_input(
        self, g: int, signals: dict[str, Tensor], outputs: list[Tensor]
    ) -> Float[Tensor, "time batch input"]:
        if g >= self.groups:
            read = [outputs[k][:, place] for k, place in self._places[g - self.groups]]
            scale = self.bank.scale[self.selected[g - self.groups]]
            return (torch.stack(read, dim=2) / scale).transpose(0, 1).contiguous()
        own = not self.causal and (g // 2) % 2 == 1
        value, difference = (signals[name][:, self.read[g]] for name in (SERIES if own else SIGNALS[:2]))
        parts = [value, 2.0 * difference]
        if self.masked:
            parts.append(signals["absent"][:, self.read[g]])
        return torch.cat(parts, dim=1).permute(2, 0, 1).contiguous()

    def _run(self, g: int, u: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        cell = self.layers[g]
        assert isinstance(cell, Cell)
        return cell.sequence(u, state, lengths, reverse=self._reversed(g))

    def _pool(
        self, g: int, y: Float[Tensor, "time batch unit"], last: Tensor, lengths: Tensor | None, space: Workspace
    ) -> Float[Tensor, "batch feature"]:
        """Return the statistics of one group; past a row's end y is zero, which is taken back out."""
        steps = y.shape[0]
        count = steps if lengths is None else lengths.to(y.dtype)[:, None]
        rest = 0.0 if lengths is None else steps - count
        limits = self.threshold[g]
        buffer = space.take("units", tuple(y.shape), y)
        shares = [(above(y, limit, buffer).sum(0) - rest * (limit < 0.0).to(y.dtype)) / count for limit in limits]
        rises = above(y[1:], y[:-1], None if buffer is None else buffer[1:]).sum(0)
        high, low = y, y
        if lengths is not None:
            beyond = (torch.arange(steps, device=y.device)[:, None] >= lengths)[:, :, None]
            high, low = y.masked_fill(beyond, -math.inf), y.masked_fill(beyond, math.inf)
            end = y[lengths - 1, torch.arange(len(lengths), device=y.device)]
            rises = rises - ((end < 0.0) & (rest > 0.0)).to(y.dtype)
        return torch.cat([*shares, rises / count, last, y.sum(0) / count, high.amax(0), low.amin(0)], dim=1)

    # --- streams ----------------------------------------------------------------------------------------------------

    def init_state(self, batch: int) -> State:
        """Return the state before the first step.

        Its fields, each (groups or 1, batch, size): the groups' states, the past of value and difference that the
        kernels read, the latest value, the sums, maxima and minima of the statistics, and the count of steps.
        """
        if not self.causal:
            return ()
        like = self.bank.taps
        states = [cell.init_state(batch) for cell in self.cells]
        fields = [torch.stack(field) for field in zip(*states)]
        units = len(self.layers) * self.units
        sums = self.bank.features + units * (self.threshold.shape[1] + 2)
        tallies = [like.new_zeros(1, batch, size) for size in (2 * self.channels * self.bank.reach, self.channels)]
        return (
            *fields,
            *tallies,
            like.new_zeros(1, batch, sums, dtype=torch.float64),
            like.new_full((1, batch, units), -math.inf),
            like.new_full((1, batch, units), math.inf),
            like.new_zeros(1, batch, 1),
        )

    def state_names(self) -> list[str]:
        """Return the names of the fields of the state."""
        fields = list(self.cells[0].state_type._fields)
        return [*fields, "past", "latest", "sums", "highest", "lowest", "count"] if self.causal else []

    def _continued(self, inputs: Tensor, state: State, every_step: bool) -> tuple[Tensor, State]:
        """Run on from `state`; the features are those of the whole series so far, after the last or every step."""
        *fields, past, latest, sums, high, low, count = state
        steps, batch = inputs.shape[:2]
        x = inputs[..., : self.channels]
        signals = {}
        if self.masked:
            absent = inputs[..., self.channels :]
            signals["absent"] = absent.permute(1, 2, 0)
            x = _hold(x, absent, latest[0])
        before = torch.where(count[0] > 0, latest[0], x[0])
        difference = torch.diff(torch.cat([before[None], x]), dim=0)
        latest = x[-1:]
        signals["value"], signals["difference"] = (s.permute(1, 2, 0).contiguous() for s in (x, difference))
        reach = self.bank.reach
        history = past[0].view(batch, 2, self.channels, reach)
        adds, outputs = [], []
        for k, block in enumerate(self.bank.blocks):
            kernel = self.bank.run(k, signals[block.signal], history[:, SIGNALS.index(block.signal)])
            limits = self.bank.threshold[:, block.rows]
            adds += [above(kernel, limit[:, None]).permute(2, 0, 1) for limit in limits]
            outputs.append(kernel[:, self._rows[k]])
        both = torch.stack([signals["value"], signals["difference"]], dim=1)
        past = torch.cat([history, both], dim=3)[..., both.shape[3] :].reshape(1, batch, -1)
        ys, final = [], []
        for g in range(len(self.layers)):
            own = tuple(field[g] for field in fields)
            y, after = self._run(g, self._group_input(g, signals, outputs), own, None)
            earlier = torch.cat([torch.where(count[0] > 0, own[0], y[0])[None], y[:-1]])
            adds += [above(y, limit) for limit in self.threshold[g]]
            adds += [above(y, earlier), y]
            ys.append(y)
            final.append(after)
        every = torch.cat(ys, dim=2)
        run = torch.arange(1, steps + 1, device=count.device, dtype=count.dtype)[:, None, None] + count
        found = [torch.cat(adds, dim=2).to(sums.dtype), every, every]
        if every_step:
            totals = found[0].cumsum(0) + sums
            highs, lows = torch.maximum(every.cummax(0)[0], high), torch.minimum(every.cummin(0)[0], low)
        else:
            run, every = run[-1:], every[-1:]
            totals = found[0].sum(0, keepdim=True) + sums
            highs = torch.maximum(found[1].amax(0, keepdim=True), high)
            lows = torch.minimum(found[2].amin(0, keepdim=True), low)
        features = self._ordered((totals / run).to(every.dtype), every, highs, lows)
        features = (features - self.feature_mean) / self.feature_scale
        after = (*(torch.stack(field) for field in zip(*final)), past, latest, totals[-1:], highs[-1:], lows[-1:])
        return features if every_step else features[0], (*after, run[-1:])

    def _ordered(self, means: Tensor, last: Tensor, high: Tensor, low: Tensor) -> Tensor:
        """Put the running statistics in the order of `_pool`."""
        kernels, groups = means.split([self.bank.features, means.shape[2] - self.bank.features], dim=2)
        parts = [kernels]
        shape = (len(self.layers), -1)
        each = zip(*(part.unflatten(2, shape).unbind(2) for part in (groups, last, high, low)))
        for mean, end, top, bottom in each:
            shares_and_rise, average = mean.split([mean.shape[2] - self.units, self.units], dim=2)
            parts += [shares_and_rise, end, average, top, bottom]
        return torch.cat(parts, dim=2)

    # --- what it is made of -----------------------------------------------------------------------------------------

    def origins(self) -> list[tuple[str, str]]:
        """Return for every feature the kernel or unit it is computed from, and the statistic it is."""
        found = []
        for block in self.bank.blocks:
            rows = range(block.start, block.start + block.count)
            found += [(f"kernel{row}", f"share{q}") for q in range(len(self.bank.threshold)) for row in rows]
        kinds = [f"share{s}" for s in range(self.threshold.shape[1])] + list(STATISTICS[1:])
        for g in range(len(self.layers)):
            found += [(f"group{g}_unit{unit}", kind) for kind in kinds for unit in range(self.units)]
        return found

    def count_parameters(self) -> dict[str, int]:
        """Count the numbers of cells and readout, for the model card."""
        return {"cell_and_readout": sum(p.numel() for p in self.parameters())}


@torch.inference_mode()
def adapt(
    model: Frozen,
    inputs: Callable[[Tensor], Tensor],
    series: Series,
    random: Any,
    tell: Callable[[float], None] | None = None,
) -> np.ndarray:
    """Set thresholds and units of a network from training series, and return their standardised features.

    `inputs` turns raw series into the network's input; `tell` is called with the share of the work that is done.
    """
    some = series.take(np.sort(random.permutation(len(series.lengths))[:ADAPTED]))
    # A window of long series is enough to estimate quantiles.
    longest = min(int(some.lengths.max()), max(4096, (1 << 20) // len(some.lengths)))
    with one_thread():
        u = inputs(torch.from_numpy(some.values[:, :longest]).transpose(0, 1))
        model.adapt(u, torch.from_numpy(np.minimum(some.lengths, longest)))
    found = in_batches(lambda u, state, lengths: model.features(inputs(u), state, lengths), series, tell, True)
    mean = found.mean(0, dtype=np.float64)
    spread = np.sqrt(np.maximum((found**2).mean(0, dtype=np.float64) - mean**2, 0.0))
    model.feature_mean.copy_(torch.from_numpy(mean))
    model.feature_scale.copy_(torch.from_numpy(np.where(spread > 1e-5, spread, 1.0)))
    found -= model.feature_mean.numpy()
    found /= model.feature_scale.numpy()
    return found


def _difference(x: Float[Tensor, "batch channel time"]) -> Float[Tensor, "batch channel time"]:
    return torch.diff(x, dim=2, prepend=x[:, :, :1])


def _hold(x: Tensor, absent: Tensor, before: Tensor | None = None) -> Tensor:
    """Fill gaps with the value before them: `before` at the start, or zero, which is the mean."""
    first = torch.zeros_like(x[:1]) if before is None else before[None]
    whole = torch.cat([first, x])
    t = torch.arange(1, whole.shape[0], device=x.device)[:, None, None].expand_as(x)
    known = torch.where(absent > 0, torch.zeros_like(t), t).cummax(0)[0]
    return whole.gather(0, known)


def _draw(cell: Cell, longest: float, strength: float, recurrent: float, sparse: bool, random: Any) -> None:
    """Draw the weights of one group: input weights of this strength, time scales up to `longest` steps.

    With `sparse`, every row reads one input only.
    """

    def normal(*shape: int) -> Tensor:
        return torch.as_tensor(random.standard_normal(shape), dtype=torch.float32)

    d = cell.hidden_size
    for parameter in cell.parameters():
        if parameter.dim() != 2:
            continue
        rows, columns = parameter.shape
        if columns == cell.input_size:
            parameter.copy_(strength * normal(rows, columns))
            if sparse:
                one = torch.as_tensor(random.integers(columns, size=rows))
                parameter.mul_(nn.functional.one_hot(one, columns))
            else:
                parameter.div_(math.sqrt(max(1.0, columns / 2.0)))
        elif columns == d:
            parameter.copy_(recurrent / math.sqrt(d) * normal(rows, columns))
    if not isinstance(cell, LEMCell) or cell.bias is None or cell.single_scale:
        return
    cell.weight_u[: 2 * d] *= 0.5
    uniform = torch.as_tensor(random.uniform(size=4 * d), dtype=torch.float32)
    # dt = sigmoid(bias) spreads the time scales 1 / dt up to `longest`: evenly, or evenly in the logarithm.
    spread = uniform[: 2 * d]
    if random.uniform() < 0.5:
        cell.bias[: 2 * d] = -torch.log(1.0 + spread * max(0.0, longest - 2.0))
    else:
        cell.bias[: 2 * d] = -spread * math.log(longest)
    cell.bias[2 * d :] = strength * (2.0 * uniform[2 * d :] - 1.0)
