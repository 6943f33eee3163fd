"""The universal approximation results of the paper, carried out: given the maps, build the LEM and measure its error.

Each function fits small tanh networks to the given maps, assembles them into LEM weights (dt = 1) and returns the layer
with a linear readout. The paper's assembly is followed, with the corrections that docs/misprints.md lists.
Everything is float64: the constructions pass signals through a scaled-down tanh, which float32 resolves less well.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from lem.nn.cells import LEMCell
from lem.nn.recurrent import LEM
from lem.shapes import Float

Map = Callable[..., Tensor]
"""A function of row-wise arguments: f(h, u) takes (rows, h) and (rows, u) and returns (rows, values)."""

OPEN = 40.0
"""A bias at which the sigmoid is exactly 1 in float64: the gate of size dt = 1 stays open."""

SMALL = 1e-4
"""The identity network tanh(SMALL x) / SMALL errs by SMALL^2 |x|^3 / 3: 3e-9 for |x| = 1."""


class Net(NamedTuple):
    """The tanh network N(x) = outer tanh(inner x + bias), with its largest error on points it was not fitted to.

    Examples:
        >>> import torch
        >>> from lem.analysis.construct import fit_tanh
        >>> fit_tanh(torch.sin, [1], width=40, radius=2.0).inner.shape
        torch.Size([40, 1])
    """

    inner: Float[Tensor, "width inputs"]
    bias: Float[Tensor, "width"]
    outer: Float[Tensor, "outputs width"]
    error: float

    def columns(self, sizes: Sequence[int]) -> list[Tensor]:
        """Split `inner` by the arguments of the fitted map."""
        return list(self.inner.split(list(sizes), dim=1))


def fit_tanh(f: Map, sizes: Sequence[int], width: int, radius: float, seed: int = 0, points: int = 6000) -> Net:
    """Fit f on the cube |x| <= `radius` by `width` random tanh features and ridge least squares.

    `sizes` are the widths of f's arguments. The error is the largest one on as many fresh points.

    Examples:
        >>> import torch
        >>> from lem.analysis.construct import fit_tanh
        >>> net = fit_tanh(torch.sin, [1], width=40, radius=2.0)
        >>> net.error < 1e-3
        True
    """
    generator = torch.Generator().manual_seed(seed)
    total = sum(sizes)

    def sample() -> Tensor:
        return radius * (2 * torch.rand(points, total, generator=generator, dtype=torch.float64) - 1)

    inner = torch.randn(width, total, generator=generator, dtype=torch.float64) * (1.2 / radius)
    bias = torch.randn(width, generator=generator, dtype=torch.float64)
    x, fresh = sample(), sample()
    features, values = torch.tanh(x @ inner.T + bias), f(*x.split(list(sizes), 1))
    # The ridge is solved by least squares of the stacked system: normal equations would lose half the digits.
    ridge = 1e-6 * torch.eye(width, dtype=torch.float64)
    stacked = torch.cat([values, values.new_zeros(width, values.shape[1])])
    outer = torch.linalg.lstsq(torch.cat([features, ridge]), stacked).solution.T
    missed = torch.tanh(fresh @ inner.T + bias) @ outer.T - f(*fresh.split(list(sizes), 1))
    return Net(inner, bias, outer, float(missed.abs().max()))


@dataclass(frozen=True)
class Construction:
    """A LEM that was built, not trained, its linear readouts by name, and the parts of its error bound.

    Examples:
        >>> import torch
        >>> from lem.analysis.construct import universal
        >>> f = lambda h, u: 0.9 * torch.tanh(0.7 * h + torch.sin(u))  # h_n = f(h_{n-1}, u_n)
        >>> built = universal(f, lambda h: h**2, states=1, inputs=1, width=40, radius=2.0)
        >>> u = 2 * torch.rand(100, 4, 1) - 1
        >>> built.run(u)["output"].shape, built.errors(u)["output"] < 0.1
        (torch.Size([100, 4, 1]), True)
    """

    layer: LEM
    readouts: dict[str, Tensor]
    parts: dict[str, float] = field(repr=False)
    """Largest fit error of each network, the error of the identity network, and Lipschitz constants if estimated."""
    radius: float
    """The cube on which the networks were fitted; `run` refuses a trajectory that leaves it."""
    system: Callable[[Tensor, dict[str, Tensor]], dict[str, Tensor]] = field(repr=False)
    """One step of the system that is imitated: (input, readouts before) -> readouts after."""

    def errors(self, u: Float[Tensor, "time batch input"]) -> dict[str, float]:
        """Return the largest error of every readout against the system itself, run over the same input from zero."""
        u = u.double()
        values = {name: u.new_zeros(u.shape[1], len(weight)) for name, weight in self.readouts.items()}
        worst = dict.fromkeys(self.readouts, 0.0)
        built = self.run(u)
        for n, row in enumerate(u):
            values = self.system(row, values)
            for name in worst:
                worst[name] = max(worst[name], float((built[name][n] - values[name]).abs().max()))
        return worst

    def run(self, u: Float[Tensor, "time batch input"]) -> dict[str, Tensor]:
        """Return every readout at all steps, each (time, batch, size)."""
        with torch.no_grad():
            y, _ = self.layer(u.double())
        found = {name: y @ weight.T for name, weight in self.readouts.items()}
        largest = max(float(u.abs().max()), *(float(v.abs().max()) for n, v in found.items() if n != "output"), 0.0)
        if largest > self.radius:
            raise ValueError(
                f"`u` of Construction.run must keep inputs and states within the fitted radius {self.radius:g}; "
                f"got {largest:.3g}. Build with a larger radius."
            )
        return found

    @property
    def largest_weight(self) -> float:
        """The largest |weight| of the layer and the readouts."""
        weights = [p.detach() for p in self.layer.parameters() if p.dim() > 1] + list(self.readouts.values())
        return max(float(w.abs().max()) for w in weights)


class _Blocks:
    """LEM weights of width d filled block by block, gates open (bias OPEN) unless set."""

    def __init__(self, width: int, inputs: int) -> None:
        self.layer = LEM(max(inputs, 1), width, dt=1.0, dtype=torch.float64)
        cell = self.layer.cells[0]
        assert isinstance(cell, LEMCell)
        assert cell.bias is not None
        with torch.no_grad():
            for p in cell.parameters():
                p.zero_()
        self.b_1, self.b_2, self.b_z, self.b_y = cell.bias.detach().chunk(4)
        self.b_1.fill_(OPEN)
        self.b_2.fill_(OPEN)
        self.v_z, self.v_y = cell.weight_u.detach().chunk(4)[2:]
        self.w_z, self.w_y = cell.weight_y.detach().chunk(3)[2], cell.weight_z.detach()

    def readout(self, **columns: tuple[int, Tensor]) -> dict[str, Tensor]:
        """Place each (first column, block) into zeros of the layer's width."""
        found = {}
        for name, (start, block) in columns.items():
            found[name] = torch.zeros(len(block), self.layer.hidden_size, dtype=torch.float64)
            found[name][:, start : start + block.shape[1]] = block
        return found


def _logit(p: float) -> float:
    return math.log(p / (1.0 - p)) if p < 1.0 else OPEN


def lipschitz(
    f: Map, sizes: Sequence[int], radius: float, over: Sequence[int], seed: int = 0, points: int = 500
) -> float:
    """Estimate the Lipschitz constant of f in its arguments `over`, in the largest-entry norm, from sampled Jacobians.

    A sampled constant bounds the true one from below; error bounds made of it are estimates.

    Examples:
        >>> import torch
        >>> from lem.analysis.construct import lipschitz
        >>> round(lipschitz(lambda x: 3 * torch.sin(x), [1], radius=1.0, over=[0]), 1)
        3.0
    """
    generator = torch.Generator().manual_seed(seed)
    x = radius * (2 * torch.rand(points, sum(sizes), generator=generator, dtype=torch.float64) - 1)
    jacobians = torch.func.vmap(torch.func.jacrev(lambda row: f(*row[None].split(list(sizes), 1))[0]))(x)
    parts = jacobians.split(list(sizes), dim=2)
    return float(torch.cat([parts[i] for i in over], 2).abs().sum(2).max())


def universal(
    f: Map, o: Map, states: int, inputs: int, width: int, radius: float, output_width: int | None = None, seed: int = 0
) -> Construction:
    """Build the LEM of the universal approximation result: h_n = f(h_{n-1}, u_n), o_n = o(h_n), h_0 = 0.

    `width` is that of the network for f, `output_width` that of the network for o (the same unless given).
    Parts: `f` and `o` (fit errors), `identity`, `lipschitz_f`, `lipschitz_o`; `error_bound` combines them.

    Examples:
        >>> import torch
        >>> from lem.analysis.construct import universal
        >>> f = lambda h, u: 0.9 * torch.tanh(0.7 * h + torch.sin(u))  # h_n = f(h_{n-1}, u_n)
        >>> built = universal(f, lambda h: h**2, states=1, inputs=1, width=40, radius=2.0)
        >>> built.errors(2 * torch.rand(100, 4, 1) - 1)["output"] < 0.1
        True
    """
    of, oo = (
        fit_tanh(f, (states, inputs), width, radius, seed),
        fit_tanh(o, (states,), output_width or width, radius, seed),
    )
    w_h, w_u = of.columns((states, inputs))
    blocks = _Blocks(max(width, states + len(oo.bias)), inputs)
    blocks.w_z[:width, :states], blocks.v_z[:width], blocks.b_z[:width] = w_h / SMALL, w_u, of.bias
    rows = slice(states, states + len(oo.bias))
    blocks.w_y[:states, :width] = SMALL * of.outer
    blocks.w_y[rows, :width], blocks.b_y[rows] = oo.inner @ of.outer, oo.bias
    parts = {
        "f": of.error,
        "o": oo.error,
        "identity": SMALL**2 * radius**3 / 3,
        "lipschitz_f": lipschitz(f, (states, inputs), radius, over=(0,), seed=seed),
        "lipschitz_o": lipschitz(o, (states,), radius, over=(0,), seed=seed),
    }
    identity = torch.eye(states, dtype=torch.float64) / SMALL

    def system(u: Tensor, old: dict[str, Tensor]) -> dict[str, Tensor]:
        state = f(old["state"], u)
        return {"output": o(state), "state": state}

    readouts = blocks.readout(output=(states, oo.outer), state=(0, identity))
    return Construction(blocks.layer, readouts, parts, radius, system)


def error_bound(parts: dict[str, float], steps: int) -> float:
    """Return the bound on |o_n - omega_n| after `steps` steps for the parts of `universal`.

    It is eps_o + Lip(o) (eps_f + eps_identity) (1 + Lip(f) + ... + Lip(f)^(n-1)), and far from sharp where Lip(f) > 1.

    Examples:
        >>> import torch
        >>> from lem.analysis.construct import error_bound, universal
        >>> f = lambda h, u: 0.9 * torch.tanh(0.7 * h + torch.sin(u))  # h_n = f(h_{n-1}, u_n)
        >>> built = universal(f, lambda h: h**2, states=1, inputs=1, width=40, radius=2.0)
        >>> built.errors(2 * torch.rand(100, 4, 1) - 1)["output"] <= error_bound(built.parts, 100)
        True
    """
    powers = sum(parts["lipschitz_f"] ** k for k in range(steps))
    return parts["o"] + parts["lipschitz_o"] * (parts["f"] + parts["identity"]) * powers


def two_scale(
    f: Map, g: Map, tau: float, states: int, inputs: int, width: int, radius: float, seed: int = 0
) -> Construction:
    """Build the paper's LEM for h_n = f(h_{n-1}, c_{n-1}, u_n), c_n = tau g(h_n, c_{n-1}, u_n), both of size `states`.

    Its size does not depend on tau, but its largest weight grows as 1/tau; that of `two_scale_bounded` does not.
    Readouts: `slow` (c) and `fast` (h).

    Examples:
        >>> import torch
        >>> from lem.analysis.construct import two_scale
        >>> fast = lambda h, c, u: 0.6 * torch.tanh(0.5 * h + c + 0.5 * u)
        >>> slow = lambda h, c, u: torch.cos(h) - 0.2 * c
        >>> built = two_scale(fast, slow, tau=0.01, states=1, inputs=1, width=40, radius=2.0)
        >>> sorted(built.readouts)
        ['fast', 'slow']
    """
    sizes = (states, states, inputs)
    nf, ng = fit_tanh(f, sizes, width, radius, seed), fit_tanh(g, sizes, width, radius, seed + 1)
    f_h, f_c, f_u = nf.columns(sizes)
    g_h, g_c, g_u = ng.columns(sizes)
    one = torch.eye(states, dtype=torch.float64)
    # G = g + (1 - 1/tau) c: the identity features are appended to the network of g, so that its size stays.
    g_h, g_u = torch.cat([g_h, 0 * one]), torch.cat([g_u, g_u.new_zeros(states, inputs)])
    g_c, g_b = torch.cat([g_c, SMALL * one]), torch.cat([ng.bias, ng.bias.new_zeros(states)])
    g_out = torch.cat([ng.outer, (1 - 1 / tau) / SMALL * one], 1)
    star = width + states
    blocks = _Blocks(star + states, inputs)
    blocks.b_2[:star] = _logit(tau)
    blocks.w_z[:width, :star], blocks.w_z[:width, star:] = f_c @ g_out, f_h / SMALL
    blocks.w_z[star:, :star] = SMALL * g_out
    blocks.v_z[:width], blocks.b_z[:width] = f_u, nf.bias
    blocks.w_y[:star, :width], blocks.w_y[:star, star:] = g_h @ nf.outer, g_c / SMALL
    blocks.w_y[star:, :width] = SMALL * nf.outer
    blocks.v_y[:star], blocks.b_y[:star] = g_u, g_b
    parts = {"f": nf.error, "g": ng.error, "identity": SMALL**2 * radius**3 / 3}
    readouts = blocks.readout(slow=(0, g_out), fast=(star, one / SMALL))
    return Construction(blocks.layer, readouts, parts, radius, _two_scale_system(f, g, tau))


def _two_scale_system(f: Map, g: Map, tau: float) -> Callable[[Tensor, dict[str, Tensor]], dict[str, Tensor]]:
    def system(u: Tensor, old: dict[str, Tensor]) -> dict[str, Tensor]:
        fast = f(old["fast"], old["slow"], u)
        scaled = g(fast, old["slow"], u)
        return {"fast": fast, "slow": tau * scaled, "scaled": scaled}

    return system


def two_scale_constants(lip_f: float, lip_g: float) -> tuple[float, float]:
    """Return (C, D) of the two-scale error bound |W_c| eps D (1 + C + ... + C^(n-1)), from the proof's inequalities."""
    c = max((3 + lip_g) * lip_f, lip_f + (3 + lip_g) * (1 + lip_f))
    return c, 2 + 2 * lip_f + (2 + lip_g) * (2 + 2 * lip_f)


def two_scale_bounded(
    f: Map, g: Map, tau: float, states: int, inputs: int, width: int, radius: float, seed: int = 0
) -> Construction:
    """Build a LEM for the same two-scale system with size and weights bounded for every tau.

    It applies the general result to the joint map (h, c / tau) -> (f(h, c), g(f(h, c), c)): the slow state is carried
    in units of tau, and tau enters only as a factor of the readout. Readouts: `slow`, `fast`, `scaled` (slow / tau).

    Examples:
        >>> import torch
        >>> from lem.analysis.construct import two_scale_bounded
        >>> fast = lambda h, c, u: 0.6 * torch.tanh(0.5 * h + c + 0.5 * u)
        >>> slow = lambda h, c, u: torch.cos(h) - 0.2 * c
        >>> built = two_scale_bounded(fast, slow, tau=0.01, states=1, inputs=1, width=40, radius=3.0)
        >>> sorted(built.readouts)
        ['fast', 'scaled', 'slow']
    """

    def joint(h: Tensor, scaled: Tensor, u: Tensor) -> Tensor:
        c = tau * scaled
        fast = f(h, c, u)
        return torch.cat([fast, g(fast, c, u)], 1)

    sizes = (states, states, inputs)
    net = fit_tanh(joint, sizes, width, radius, seed)
    w_h, w_c, w_u = net.columns(sizes)
    blocks = _Blocks(max(width, 2 * states), inputs)
    blocks.w_z[:width, : 2 * states] = torch.cat([w_h, w_c], 1) / SMALL
    blocks.v_z[:width], blocks.b_z[:width] = w_u, net.bias
    blocks.w_y[: 2 * states, :width] = SMALL * net.outer
    one = torch.eye(states, dtype=torch.float64) / SMALL
    parts = {"joint": net.error, "identity": SMALL**2 * radius**3 / 3}
    readouts = blocks.readout(fast=(0, one), slow=(states, tau * one), scaled=(states, one))
    return Construction(blocks.layer, readouts, parts, radius, _two_scale_system(f, g, tau))


def many_scale(
    maps: Sequence[Map], taus: Sequence[float], states: int, inputs: int, width: int, radius: float, seed: int = 0
) -> Construction:
    """Build the LEM for r scales: h^i_n = tau_i f^i(h^1_{n-1}, ..., h^r_{n-1}, u_n), each of size `states`.

    Readouts: `h0`, `h1`, ... The width is that of every fitted network; the size does not depend on the taus.

    Examples:
        >>> import torch
        >>> from lem.analysis.construct import many_scale
        >>> maps = [lambda a, b, u: torch.tanh(a - b + u), lambda a, b, u: torch.tanh(a + b)]
        >>> built = many_scale(maps, taus=[1.0, 0.1], states=1, inputs=1, width=40, radius=2.0)
        >>> sorted(built.readouts)
        ['h0', 'h1']
    """
    if len(maps) != len(taus) or not all(0.0 < tau <= 1.0 for tau in taus):
        raise ValueError(f"`taus` of many_scale must be {len(maps)} numbers in (0, 1], one a map; got {list(taus)}.")
    r, sizes = len(maps), (states,) * len(maps) + (inputs,)
    nets = [fit_tanh(f, sizes, width, radius, seed + i) for i, f in enumerate(maps)]
    one, copies = torch.eye(states, dtype=torch.float64), r * states
    block = width + states
    blocks = _Blocks(max(copies, r * block), inputs)
    outs = {}
    for i, (net, tau) in enumerate(zip(nets, taus)):
        rows, *_, w_u = slice(i * block, i * block + width), *net.columns(sizes)
        blocks.w_y[rows, :copies] = net.inner[:, :copies] / SMALL
        blocks.v_y[rows], blocks.b_y[rows] = w_u, net.bias
        identity = slice(i * block + width, (i + 1) * block)
        blocks.w_y[identity, i * states : (i + 1) * states] = one
        blocks.b_2[i * block : (i + 1) * block] = _logit(tau)
        out = torch.cat([net.outer, (1 - 1 / tau) / SMALL * one], 1)
        outs[f"h{i}"] = (i * block, out)
        blocks.w_z[i * states : (i + 1) * states, i * block : (i + 1) * block] = SMALL * out
    parts = {f"f{i}": net.error for i, net in enumerate(nets)} | {"identity": SMALL**2 * radius**3 / 3}

    def system(u: Tensor, old: dict[str, Tensor]) -> dict[str, Tensor]:
        state = [old[f"h{i}"] for i in range(r)]
        return {f"h{i}": tau * f(*state, u) for i, (f, tau) in enumerate(zip(maps, taus))}

    return Construction(blocks.layer, blocks.readout(**outs), parts, radius, system)


def heterogeneous(
    f: Map, g: Map, macro: float, leak: float, states: int, width: int, radius: float, seed: int = 0
) -> Construction:
    """Build the LEM for the heterogeneous multiscale method of a fast-slow ODE, started at zero.

    h_n = leak h_{n-1} + (1 - leak) f(c_{n-1}), c_n = c_{n-1} + macro g(h_n, c_{n-1}), where leak = (1 - micro step)^K.
    It has no input: run it on zeros of size one. Readouts: `slow` (c) and `fast` (h).

    Examples:
        >>> import torch
        >>> from lem.analysis.construct import heterogeneous
        >>> f, g = torch.sin, lambda h, c: 1 - h - 0.5 * c
        >>> built = heterogeneous(f, g, macro=0.1, leak=0.2, states=1, width=40, radius=3.0)
        >>> sorted(built.readouts)
        ['fast', 'slow']
    """
    if not (0.0 < macro <= 1.0 and 0.0 <= leak < 1.0):
        raise ValueError(f"`macro` must be in (0, 1] and `leak` in [0, 1) of heterogeneous; got {macro!r}, {leak!r}.")
    nf = fit_tanh(f, (states,), width, radius, seed)
    ng = fit_tanh(lambda h, c: g(h, c) + c, (states, states), width, radius, seed + 1)
    g_h, g_c = ng.columns((states, states))
    one = torch.eye(states, dtype=torch.float64)
    blocks = _Blocks(width + states, 1)
    blocks.b_1[:width], blocks.b_2[:width] = _logit(1 - leak), _logit(macro)
    blocks.w_z[:width, :width], blocks.b_z[:width] = nf.inner @ ng.outer, nf.bias
    blocks.w_z[width:, :width] = SMALL * ng.outer
    blocks.w_y[:width, :width], blocks.w_y[:width, width:] = g_h @ nf.outer, g_c / SMALL
    blocks.w_y[width:, :width], blocks.b_y[:width] = SMALL * nf.outer, ng.bias
    parts = {"f": nf.error, "g": ng.error, "identity": SMALL**2 * radius**3 / 3}

    def system(u: Tensor, old: dict[str, Tensor]) -> dict[str, Tensor]:
        fast = leak * old["fast"] + (1 - leak) * f(old["slow"])
        return {"fast": fast, "slow": old["slow"] + macro * g(fast, old["slow"])}

    readouts = blocks.readout(slow=(0, ng.outer), fast=(width, one / SMALL))
    return Construction(blocks.layer, readouts, parts, radius, system)
