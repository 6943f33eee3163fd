"""LEM: equation (3) of the paper, and its variants as arguments.

This file is the definition. It is never made faster at the cost of reading; what is faster lives elsewhere and is
tested against it.
"""

import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from lem import native
from lem.cells.base import Cell, State, within
from lem.shapes import Float, Int


class LEMState(NamedTuple):
    """The slow state `y`, which is the output, and the fast state `z`."""

    y: Tensor
    z: Tensor


class LEMCell(Cell):
    """Long Expressive Memory, one step: equation (3) of Rusch, Mishra, Erichson and Mahoney (ICLR 2022)::

        dt_z = dt * sigmoid(W_1 y + V_1 u + b_1)
        dt_y = dt * sigmoid(W_2 y + V_2 u + b_2)
        z    = (1 - dt_z) * z + dt_z * tanh(W_z y + V_z u + b_z)
        y    = (1 - dt_y) * y + dt_y * tanh(W_y z + V_y u + b_y)      with the new z

    The two gates are learned time steps: `dt_z` (the paper's Delta t_n) drives z, `dt_y` (its bar Delta t_n) drives y.
    Called as `cell(u, (y, z)) -> (y, z)`, like nn.LSTMCell.

    Its weights, with rows in the order of the equation (d hidden units, m inputs)::

        weight_u  (4d, m)  V_1, V_2, V_z, V_y      what acts on the input
        weight_y  (3d, d)  W_1, W_2, W_z           what acts on y
        weight_z  (d, d)   W_y                     what acts on z
        bias      (4d,)    b_1, b_2, b_z, b_y

    With `single_scale` the rows of both gates are absent.

    Differs from the paper: none. (The authors' code has two biases where the equation has one; see `from_official`.)

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d.
        bias: whether the affine maps have biases.
        dt: the largest time step, in (0, 2]. States are bounded by 1 for dt <= 1.
        single_scale: fix both gates to `dt`; the gates then have no parameters.
        clip: the interval (low, high) to which both gates are clipped.
        t_max: initialise by the chrono rule for memories of up to `t_max` steps.
        initial_dt: where both gates start, below `dt`, which they can learn to reach; dt / 2 where not given. Small for
            long memories at the start, with a large `dt` for units that can open wide when it matters.
        two_biases: train the biases as the authors' module does, which has two per affine map: they start as the sum
            of two draws and learn at twice the rate. The function and the parameters stay those of equation (3).
        init: "uniform" in +-1/sqrt(d), or "language", as in the authors' language-model trainer: each matrix a normal
            distribution cut off at two deviations, of variance 1 / its inputs, likewise the biases, b_1 around 1.
        state_dropout: the probability of dropping a unit of y where it enters the gates and z; one mask is drawn per
            sequence.
        learn_initial_state: make the state before the first step a parameter (it starts at zero).
        backend: "native" runs sequences on the fused CPU kernel or raises with the reason, "loop" steps through them in
            Python (any device and type, second derivatives, forward mode), "auto" takes the kernel where it can serve.
        memory: what the kernel keeps for the backward pass: "store" (fastest), "recompute" (a fifth), "bounded"
            (a square root of the steps), a budget in bytes, or "auto", which fits into half of the free memory. The
            results are the same to the bit.
        device: where the parameters live.
        dtype: the type of the parameters.
    """

    state_type = LEMState

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        dt: float = 1.0,
        single_scale: bool = False,
        clip: tuple[float, float] | None = None,
        t_max: float | None = None,
        initial_dt: float | None = None,
        two_biases: bool = False,
        init: str = "uniform",
        state_dropout: float = 0.0,
        learn_initial_state: bool = False,
        backend: str = "auto",
        memory: str | int = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.dt = within("LEMCell", "dt", dt, "(0, 2]")
        self.state_dropout = within("LEMCell", "state_dropout", state_dropout, "[0, 1)")
        if clip is not None and not _is_interval(clip):
            raise ValueError(f"`clip` of LEMCell must be (low, high) with 0 <= low <= high <= 2; got {clip!r}.")
        if t_max is not None and not (isinstance(t_max, int | float) and t_max > 0):
            raise ValueError(f"`t_max` of LEMCell must be a positive number of steps; got {t_max!r}.")
        if initial_dt is not None:
            within("LEMCell", "initial_dt", initial_dt, f"(0, {self.dt})")
            if t_max is not None:
                raise ValueError(
                    "`initial_dt` of LEMCell must be None where `t_max` is given: both set how gates start."
                )
        if init not in ("uniform", "language"):
            raise ValueError(f"`init` of LEMCell must be 'uniform' or 'language'; got {init!r}.")
        if single_scale and any(option is not None for option in (clip, t_max, initial_dt)):
            raise ValueError(
                "`single_scale` of LEMCell must be False where `clip`, `t_max` or `initial_dt` is set: it has no gates."
            )
        if not bias and (t_max is not None or initial_dt is not None):
            raise ValueError(
                "`bias` of LEMCell must be True where `t_max` or `initial_dt` is given: they set the gates' biases."
            )
        native.check_options(backend, memory)
        self.backend = backend
        self.memory = memory
        self.bias_enabled = bias
        self.single_scale = single_scale
        self.clip = None if clip is None else (float(clip[0]), float(clip[1]))
        self.t_max = t_max
        self.initial_dt = initial_dt
        self.init = init
        self.two_biases = two_biases

        d, m, gates = hidden_size, input_size, 0 if single_scale else 2
        self.weight_u = nn.Parameter(torch.empty((gates + 2) * d, m, device=device, dtype=dtype))
        self.weight_y = nn.Parameter(torch.empty((gates + 1) * d, d, device=device, dtype=dtype))
        self.weight_z = nn.Parameter(torch.empty(d, d, device=device, dtype=dtype))
        self.bias: nn.Parameter | None
        if bias:
            self.bias = nn.Parameter(torch.empty((gates + 2) * d, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.y_0: nn.Parameter | None
        self.z_0: nn.Parameter | None
        if learn_initial_state:
            self.y_0 = nn.Parameter(torch.empty(d, device=device, dtype=dtype))
            self.z_0 = nn.Parameter(torch.empty(d, device=device, dtype=dtype))
        else:
            self.register_parameter("y_0", None)
            self.register_parameter("z_0", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial weights as `init` says; `t_max` and `initial_dt` then set the biases of the gates."""
        d, m = self.hidden_size, self.input_size
        with torch.no_grad():
            for p, inputs in ((self.weight_u, m), (self.weight_y, d), (self.weight_z, d), (self.bias, d)):
                if p is None:
                    continue
                if self.init == "uniform":
                    p.uniform_(-1.0 / math.sqrt(d), 1.0 / math.sqrt(d))
                else:
                    # 1.3 makes up for the tails that are cut off.
                    deviation = math.sqrt(1.3 / inputs)
                    nn.init.trunc_normal_(p, std=deviation, a=-2.0 * deviation, b=2.0 * deviation)
            if self.two_biases and self.bias is not None:
                self.bias.add_(torch.empty_like(self.bias).uniform_(-1.0 / math.sqrt(d), 1.0 / math.sqrt(d)))
            if self.initial_dt is not None and self.bias is not None:
                # A gate of bias b starts at dt sigmoid(b) = initial_dt.
                self.bias[: 2 * d] += math.log(self.initial_dt / (self.dt - self.initial_dt))
            elif self.init == "language" and self.bias is not None and not self.single_scale:
                self.bias[:d] += 1.0
            for p in (self.y_0, self.z_0):
                if p is not None:
                    p.zero_()
            if self.t_max is not None and self.bias is not None:
                self.bias.zero_()
                # 1 / dt_z = (1 + U) / dt then spreads over [2 / dt, t_max] steps.
                longest = self.t_max * self.dt - 1.0
                if longest > 1.0:
                    self.bias[: self.hidden_size].uniform_(1.0, longest).log_().neg_()
                else:
                    warnings.warn(
                        f"`t_max` * `dt` of LEMCell must exceed 2 for the chrono rule; got {self.t_max} * {self.dt}. "
                        "The biases start at zero, its limit.",
                        stacklevel=2,
                    )

    def param_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Return the optimiser's groups: with `two_biases` the biases' own, at twice the rate."""
        if not self.two_biases or self.bias is None:
            return super().param_groups(learning_rate)
        others = [p for p in self.parameters() if p is not self.bias]
        return [{"params": others, "lr": learning_rate}, {"params": [self.bias], "lr": 2.0 * learning_rate}]

    def init_state(self, batch: int) -> State:
        """Return the state before the first step: zeros, or the learned one."""
        if self.y_0 is None or self.z_0 is None:
            return super().init_state(batch)
        return LEMState(self.y_0.expand(batch, -1), self.z_0.expand(batch, -1))

    def prepare(self, batch: int) -> tuple[Tensor, ...]:
        """Draw the state-dropout mask of one sequence."""
        if not self.training or self.state_dropout == 0.0:
            return ()
        keep = 1.0 - self.state_dropout
        return (self.weight_y.new_empty(batch, self.hidden_size).bernoulli_(keep) / keep,)

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Compute V u + b of all four lines."""
        return functional.linear(u, self.weight_u, self.bias)

    def step(self, x: Float[Tensor, "batch k"], state: State, *mask: Tensor) -> State:
        """Advance (y, z) by equation (3)."""
        y, z = state
        *gates_u, z_u, y_u = x.chunk(2 if self.single_scale else 4, dim=-1)
        y_in = y * mask[0] if mask else y
        *gates_y, z_y = functional.linear(y_in, self.weight_y).chunk(len(gates_u) + 1, dim=-1)

        dt_z, dt_y = self.time_steps(gates_u, gates_y)
        z = (1 - dt_z) * z + dt_z * torch.tanh(z_y + z_u)
        y = (1 - dt_y) * y + dt_y * torch.tanh(functional.linear(z, self.weight_z) + y_u)
        return LEMState(y, z)

    def time_steps(self, gates_u: list[Tensor], gates_y: list[Tensor]) -> tuple[Tensor | float, Tensor | float]:
        """Return (dt_z, dt_y), the first two lines of equation (3), from both gates' input and recurrent parts."""
        if self.single_scale:
            return self.dt, self.dt
        dt_z, dt_y = (self.dt * torch.sigmoid(from_u + from_y) for from_u, from_y in zip(gates_u, gates_y))
        return (dt_z, dt_y) if self.clip is None else (dt_z.clamp(*self.clip), dt_y.clamp(*self.clip))

    def sequence(
        self,
        u: Float[Tensor, "time batch input"],
        state: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        reverse: bool = False,
    ) -> tuple[Float[Tensor, "time batch output"], State]:
        """Run over time as the loop does; by the kernel where `backend` allows."""
        if self.backend == "loop" or (reason := self._refusal(u, state or ())) is not None:
            if self.backend == "native":
                raise RuntimeError(f"`backend` of LEMCell must be 'auto' or 'loop' here: {reason}.")
            return super().sequence(u, state, lengths, reverse)
        y_0, z_0 = self.init_state(u.shape[1]) if state is None else state
        (mask,) = self.prepare(u.shape[1]) or (None,)
        weights = self.weight_u, self.weight_y, self.weight_z, self.bias
        out, y, z = native.sequence(
            u, *weights, y_0, z_0, mask, lengths, dt=self.dt, clip=self.clip, reverse=reverse, memory=self.memory
        )
        return out, LEMState(y, z)

    def _refusal(self, u: Tensor, state: State = (), lengths: Tensor | None = None) -> str | None:
        changed = [name for name in _DEFINING if getattr(type(self), name) is not getattr(LEMCell, name)]
        if changed:
            return f"{type(self).__name__} defines its own {changed[0]}"
        return native.refusal(u, self.weight_u, self.weight_y, self.weight_z, self.bias, *state)

    def backend_for(self, u: Float[Tensor, "time batch input"]) -> tuple[str, str]:
        """Return which backend a sequence like `u` would run on, "native" or "loop", and why."""
        if self.backend == "loop":
            return "loop", "backend='loop' was asked for"
        reason = self._refusal(u)
        if reason is not None:
            return "loop", reason
        return "native", f"target {native.target()}, {native.threads()} threads"

    @classmethod
    def from_official(cls, state_dict: Mapping[str, Tensor], dt: float = 1.0) -> "LEMCell":
        """Convert the weights of the authors' module (keys `inp2hid.*`, `hid2hid.*`, `transform_z.*`).

        The authors' code orders its rows [V_2, V_1, V_y, V_z] and [W_2, W_1, W_z], and has two biases per affine map,
        which add. A prefix before the keys is accepted.
        """
        names = [f"{part}.{kind}" for part in ("inp2hid", "hid2hid", "transform_z") for kind in ("weight", "bias")]
        prefixes = {key[: -len(names[0])] for key in state_dict if key.endswith(names[0])}
        if len(prefixes) != 1 or any(prefixes.copy().pop() + name not in state_dict for name in names):
            raise ValueError(f"`state_dict` of LEMCell.from_official must hold {names}; got {sorted(state_dict)}.")
        prefix = prefixes.pop()
        u, u_bias, y, y_bias, z, z_bias = (state_dict[prefix + name] for name in names)
        d, m = u.shape[0] // 4, u.shape[1]
        expected = [(4 * d, m), (4 * d,), (3 * d, d), (3 * d,), (d, d), (d,)]
        got = [tuple(t.shape) for t in (u, u_bias, y, y_bias, z, z_bias)]
        if got != expected:
            raise ValueError(f"{names} of LEMCell.from_official must have shapes {expected}; got {got}.")
        cell = cls(m, d, dt=dt, device=u.device, dtype=u.dtype)
        v_2, v_1, v_y, v_z = u.chunk(4)
        w_2, w_1, w_z = y.chunk(3)
        b_2, b_1, b_y, b_z = u_bias.chunk(4)
        c_2, c_1, c_z = y_bias.chunk(3)
        with torch.no_grad():
            cell.weight_u.copy_(torch.cat([v_1, v_2, v_z, v_y]))
            cell.weight_y.copy_(torch.cat([w_1, w_2, w_z]))
            cell.weight_z.copy_(z)
            assert cell.bias is not None
            cell.bias.copy_(torch.cat([b_1 + c_1, b_2 + c_2, b_z + c_z, b_y + z_bias]))
        return cell

    def extra_repr(self) -> str:
        """Show the sizes and what differs from the defaults."""
        parts = [f"{self.input_size}, {self.hidden_size}, dt={self.dt:g}"]
        parts += ["bias=False"] * (not self.bias_enabled) + ["single_scale=True"] * self.single_scale
        parts += [f"clip={self.clip}"] * (self.clip is not None) + [f"t_max={self.t_max}"] * (self.t_max is not None)
        parts += [f"initial_dt={self.initial_dt}"] * (self.initial_dt is not None)
        parts += [f"state_dropout={self.state_dropout}"] * (self.state_dropout > 0)
        return ", ".join(parts)


def _is_interval(clip: Any) -> bool:
    pair = isinstance(clip, tuple | list) and len(clip) == 2 and all(isinstance(end, int | float) for end in clip)
    return pair and 0.0 <= clip[0] <= clip[1] <= 2.0


# What the kernel computes: a subclass that changes one of these runs on the loop.
_DEFINING = ("project", "step", "time_steps")
