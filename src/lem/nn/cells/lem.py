"""LEM: equation (3) of the paper, and its variants as arguments.

This file is the definition. It is never made faster at the cost of reading; what is faster lives elsewhere and is
tested against it.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from lem.kernels.cpu.lem import LOOP, LEMKernel
from lem.kernels.cpu.memory import check_memory
from lem.kernels.cpu.precision import PRECISIONS
from lem.kernels.triton.kernel import TritonLEM
from lem.nn.cells.base import Cell, State, within
from lem.nn.cells.timing import stretch
from lem.shapes import Float
from lem.wording import check_choice


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

    Its weights, with rows in the order of the equation (d units of z, p of y, m inputs; p = d without `proj_size`)::

        weight_u  (2d + 2p, m)  V_1, V_2, V_z, V_y      what acts on the input
        weight_y  (2d + p, p)   W_1, W_2, W_z           what acts on y
        weight_z  (p, d)        W_y                     what acts on z
        bias      (2d + 2p,)    b_1, b_2, b_z, b_y

    With `single_scale` the rows of both gates are absent.

    A step of another length, `elapsed` times the usual one, replaces each gate g by 1 - (1 - g)^elapsed: the step
    repeated `elapsed` times with gate and target held.

    Differs from the paper: none. (The authors' code has two biases where the equation has one; see `from_official`.)

    Args:
        input_size: the number of input channels m.
        hidden_size: the number of units d.
        bias: whether the affine maps have biases.
        proj_size: the number of units p of y, below `hidden_size`, as in nn.LSTM; 0 means `hidden_size`. The paper's
            d_y, which it sets equal to d_z for simplicity.
        dt: the largest time step, in (0, 2]. States are bounded by 1 for dt <= 1.
        single_scale: fix both gates to `dt`; the gates then have no parameters.
        clip: the interval (low, high) to which both gates are clipped.
        t_max: initialise by the chrono rule for memories of up to `t_max` steps.
        initial_dt: where both gates start, below `dt`, which they can learn to reach; dt / 2 where not given. Small for
            long memories at the start, with a large `dt` for units that can open wide when it matters.
        two_biases: train the biases as the authors' module does, which has two per affine map: they start as the sum
            of two draws and learn at twice the rate. The function and the parameters stay those of equation (3).
        init: "uniform" in +-1/sqrt(d), or "language", as in the authors' language-model trainer: each matrix a normal
            distribution cut off at two deviations, of variance 1 / its inputs, as are the biases, b_1 around 1.
        state_dropout: the probability of dropping a unit of y where it enters the gates and z; one mask is drawn per
            sequence.
        learn_initial_state: make the state before the first step a parameter (it starts at zero).
        backend: what runs whole sequences: "auto" (the fastest kernel that can run the call, else the loop), "native"
            (the C++ kernel on the CPU), "triton" (the GPU kernel) or "loop" (Python; any device and type, every
            derivative). A kernel that is named and cannot run the call raises an error with the reason.
        memory: what the kernel keeps for the backward pass: "store" (fastest), "recompute" (a fifth), "bounded"
            (a square root of the steps), a budget in bytes, or "auto", which fits into half of the free memory. On
            the CPU the results are the same to the bit. On a GPU "store" is the same as "recompute".
        precision: the type of the operands of the kernel's matrix products: "auto" (bfloat16 under autocast with
            bfloat16 and for bfloat16 tensors, else float32), "float32" or "bfloat16". Sums, gates and states are
            float32 in any case. bfloat16 needs a processor with AVX512-BF16; on others the products are float32. On
            a GPU, float32 products follow `torch.set_float32_matmul_precision`, and float16 is supported as well.
        device: where the parameters live.
        dtype: the type of the parameters.

    Examples:
        >>> import torch
        >>> from lem import LEMCell
        >>> cell = LEMCell(3, 16)
        >>> y, z = cell(torch.randn(4, 3))  # one step from the zero state
        >>> y, z = cell(torch.randn(4, 3), (y, z))
        >>> y.shape
        torch.Size([4, 16])
    """

    state_type = LEMState
    kernels = (TritonLEM(), LEMKernel())

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        proj_size: int = 0,
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
        precision: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, backend)
        if not isinstance(proj_size, int) or isinstance(proj_size, bool) or not 0 <= proj_size < hidden_size:
            raise ValueError(
                f"`proj_size` of LEMCell must be 0 or a positive integer below `hidden_size` = {hidden_size}; "
                f"got {proj_size!r}."
            )
        self.proj_size = proj_size
        self.dt = within("LEMCell", "dt", dt, "(0, 2]")
        self.state_dropout = within("LEMCell", "state_dropout", state_dropout, "[0, 1)")
        if clip is not None and not _is_interval(clip):
            raise ValueError(f"`clip` of LEMCell must be (low, high) with 0 <= low <= high <= 2; got {clip!r}.")
        if t_max is not None and not (isinstance(t_max, int | float) and t_max > 0):
            raise ValueError(f"`t_max` of LEMCell must be a positive number of steps; got {t_max!r}.")
        if initial_dt is not None:
            within("LEMCell", "initial_dt", initial_dt, f"(0, {self.dt})")
            if t_max is not None:
                raise ValueError("`initial_dt` of LEMCell must be None if `t_max` is given: both set how gates start.")
        if init not in ("uniform", "language"):
            raise ValueError(f"`init` of LEMCell must be 'uniform' or 'language'; got {init!r}.")
        if single_scale and any(option is not None for option in (clip, t_max, initial_dt)):
            raise ValueError(
                "`single_scale` of LEMCell must be False if `clip`, `t_max` or `initial_dt` is set: it has no gates."
            )
        if not bias and (t_max is not None or initial_dt is not None):
            raise ValueError(
                "`bias` of LEMCell must be True if `t_max` or `initial_dt` is given: they set the gates' biases."
            )
        check_memory(memory)
        self.memory = memory
        check_choice("LEMCell", "precision", precision, PRECISIONS)
        self.precision = precision
        self.bias_enabled = bias
        self.single_scale = single_scale
        self.clip = None if clip is None else (float(clip[0]), float(clip[1]))
        self.t_max = t_max
        self.initial_dt = initial_dt
        self.init = init
        self.two_biases = two_biases

        m, rows = input_size, sum(self._rows)
        p, d = self.state_sizes
        self.weight_u = nn.Parameter(torch.empty(rows, m, device=device, dtype=dtype))
        self.weight_y = nn.Parameter(torch.empty(rows - p, p, device=device, dtype=dtype))
        self.weight_z = nn.Parameter(torch.empty(p, d, device=device, dtype=dtype))
        self.bias: nn.Parameter | None
        if bias:
            self.bias = nn.Parameter(torch.empty(rows, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.y_0: nn.Parameter | None
        self.z_0: nn.Parameter | None
        if learn_initial_state:
            self.y_0 = nn.Parameter(torch.empty(p, device=device, dtype=dtype))
            self.z_0 = nn.Parameter(torch.empty(d, device=device, dtype=dtype))
        else:
            self.register_parameter("y_0", None)
            self.register_parameter("z_0", None)
        self.reset_parameters()

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The widths of y and z."""
        return self.proj_size or self.hidden_size, self.hidden_size

    @property
    def _rows(self) -> list[int]:
        """The rows of each affine map in `weight_u`: those of the gates, if there are any, of z and of y."""
        p, d = self.state_sizes
        return [d, p] if self.single_scale else [d, p, d, p]

    def refuse_elapsed(self) -> str | None:
        """Return why the cell cannot take elapsed times: a gate above 1 would go past its target."""
        if self.dt > 1.0:
            return f"it needs `dt` <= 1; got {self.dt:g}"
        if self.clip is not None and self.clip[0] > 1.0:
            return f"it needs a `clip` that begins at 1 or below; got {self.clip}"
        return super().refuse_elapsed()

    def reset_parameters(self) -> None:
        """Draw the initial weights by the rule `init`; `t_max` and `initial_dt` then set the biases of the gates."""
        (d_y, d), m = self.state_sizes, self.input_size
        with torch.no_grad():
            for p, inputs in ((self.weight_u, m), (self.weight_y, d_y), (self.weight_z, d), (self.bias, d)):
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
                self.bias[: d + d_y] += math.log(self.initial_dt / (self.dt - self.initial_dt))
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
        return (self.weight_y.new_empty(batch, self.state_sizes[0]).bernoulli_(keep) / keep,)

    def project(self, u: Float[Tensor, "time batch input"]) -> Float[Tensor, "time batch k"]:
        """Compute V u + b of all four lines."""
        return functional.linear(u, self.weight_u, self.bias)

    def step(
        self,
        x: Float[Tensor, "batch k"],
        state: State,
        *mask: Tensor,
        elapsed: Float[Tensor, "batch 1"] | None = None,
    ) -> State:
        """Advance (y, z) by equation (3)."""
        y, z = state
        *gates_u, z_u, y_u = x.split(self._rows, dim=-1)
        y_in = y * mask[0] if mask else y
        *gates_y, z_y = functional.linear(y_in, self.weight_y).split(self._rows[:-1], dim=-1)

        dt_z, dt_y = self.time_steps(gates_u, gates_y)
        if elapsed is not None:
            dt_z, dt_y = stretch(dt_z, elapsed), stretch(dt_y, elapsed)
        z = (1 - dt_z) * z + dt_z * torch.tanh(z_y + z_u)
        y = (1 - dt_y) * y + dt_y * torch.tanh(functional.linear(z, self.weight_z) + y_u)
        return LEMState(y, z)

    def time_steps(self, gates_u: list[Tensor], gates_y: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return (dt_z, dt_y), the first two lines of equation (3), from both gates' input and recurrent parts."""
        if self.single_scale:
            dt = self.weight_z.new_full((), self.dt)
            return dt, dt
        dt_z, dt_y = (self.dt * torch.sigmoid(from_u + from_y) for from_u, from_y in zip(gates_u, gates_y))
        return (dt_z, dt_y) if self.clip is None else (dt_z.clamp(*self.clip), dt_y.clamp(*self.clip))

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
        parts += [f"proj_size={self.proj_size}"] * (self.proj_size > 0)
        parts += ["bias=False"] * (not self.bias_enabled) + ["single_scale=True"] * self.single_scale
        parts += [f"clip={self.clip}"] * (self.clip is not None) + [f"t_max={self.t_max}"] * (self.t_max is not None)
        parts += [f"initial_dt={self.initial_dt}"] * (self.initial_dt is not None)
        parts += [f"state_dropout={self.state_dropout}"] * (self.state_dropout > 0)
        return ", ".join(parts)


def _loop(
    u: Tensor,
    weight_u: Tensor,
    weight_y: Tensor,
    weight_z: Tensor,
    bias: Tensor | None,
    y_0: Tensor,
    z_0: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    dt: float,
    clip: Sequence[float] | None,
    reverse: bool,
    elapsed: Tensor | None,
    resets: Tensor | None,
    y_start: Tensor | None,
    z_start: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the loop on the tensors of the operator `lem::sequence`, whose second derivative needs it."""
    p, d = weight_z.shape
    cell = LEMCell(
        u.shape[-1],
        d,
        bias is not None,
        proj_size=p if p < d else 0,
        dt=dt,
        single_scale=len(weight_y) == d,
        clip=None if clip is None else (clip[0], clip[1]),
        learn_initial_state=y_start is not None,
        backend="loop",
        device="meta",
    )
    if mask is not None:
        cell.prepare = lambda batch: (mask,)  # type: ignore[method-assign]
    weights = {"weight_u": weight_u, "weight_y": weight_y, "weight_z": weight_z, "bias": bias}
    given = {k: w for k, w in (weights | {"y_0": y_start, "z_0": z_start}).items() if w is not None}
    outputs, (y, z) = torch.func.functional_call(
        cell, given, (u, LEMState(y_0, z_0), lengths, reverse, elapsed, resets)
    )
    return outputs, y, z


LOOP[:] = [_loop]


def _is_interval(clip: Any) -> bool:
    pair = isinstance(clip, tuple | list) and len(clip) == 2 and all(isinstance(end, int | float) for end in clip)
    return pair and 0.0 <= clip[0] <= clip[1] <= 2.0
