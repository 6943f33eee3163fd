"""Run LEM over a whole sequence as the torch operator `lem::sequence`: one call forward, one for its adjoint.

The operator has a first derivative. Forward mode and torch.func transforms need the loop, which `backend="auto"`
chooses for them. A second derivative through the kernel runs the loop again from the inputs.
The library takes raw pointers, so the operators check every tensor they are given.
"""

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lem.kernels.choose import Call, Kernel, Reason, warn_once
from lem.kernels.cpu.buffers import empty
from lem.kernels.cpu.library import ITEM, KEEP, Problem, check, describe, library, refusal, run, stop_flag, threads
from lem.kernels.cpu.memory import plan
from lem.kernels.cpu.precision import converted, describe_precision, precision_of
from lem.shapes import Bool, Float, Int

BFLOAT16 = 8
"""Added to `keep` of the operator: the operands of the products are rounded to bfloat16."""

TEAM = 0
"""Threads that share the hidden units of one group of rows; 0: the library chooses. For tests and measurements."""


def readable(
    operator: str, name: str, given: Any, shape: tuple[int, ...], dtype: torch.dtype, contiguous: bool = True
) -> Tensor:
    """Return a tensor whose memory the kernel can read, or raise.

    It is on the CPU, dense, of this shape and type, without a pending negation, and contiguous; with
    `contiguous=False` the last axis alone is.
    """
    if not isinstance(given, Tensor):
        raise TypeError(f"`{name}` of {operator} must be a tensor; got {type(given).__name__}.")
    if (
        given.shape == shape and given.dtype is dtype and given.is_cpu and given.layout is torch.strided
        and given.is_contiguous() and not given.is_neg()
    ):  # fmt: skip
        return given  # by far the most frequent case, and the cheapest way to see it
    if tuple(given.shape) != shape:
        raise ValueError(f"`{name}` of {operator} must have shape {shape}; got {tuple(given.shape)}.")
    if given.dtype != dtype:
        raise TypeError(f"`{name}` of {operator} must be {dtype}; got {given.dtype}.")
    if given.device.type != "cpu" or given.layout != torch.strided:
        raise ValueError(f"`{name}` of {operator} must be a dense CPU tensor; got {given.layout} on {given.device}.")
    given = given.resolve_neg()
    if contiguous or (given.stride(-1) != 1 and given.shape[-1] != 1):
        given = given.contiguous()
    return given


def fill(
    operator: str,
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
    clip: list[float] | None,
    reverse: bool,
    keep: int,
    segment: int,
    elapsed: Tensor | None = None,
    resets: Tensor | None = None,
    y_start: Tensor | None = None,
    z_start: Tensor | None = None,
) -> tuple[Problem, list[Tensor]]:
    """Fill the struct; also return the tensors its pointers point to, which must outlive the call."""
    for name, given, axes in (("u", u, 3), ("weight_y", weight_y, 2), ("weight_z", weight_z, 2)):
        if given.dim() != axes:
            raise ValueError(f"`{name}` of {operator} must have {axes} axes; got shape {tuple(given.shape)}.")
    if u.dtype not in ITEM:
        raise TypeError(f"`u` of {operator} must be float32 or float64; got {u.dtype}.")
    (steps, batch, m), (d_y, d_z) = u.shape, weight_z.shape
    gated, rows = len(weight_y) != d_z, 2 * d_z + d_y if len(weight_y) != d_z else d_z
    if clip is not None and len(clip) != 2:
        raise ValueError(f"`clip` of {operator} must be two numbers; got {clip}.")
    p = Problem(ctypes.sizeof(Problem), u.dtype.itemsize, steps, batch, m, d_z, d_y, gated, clip is not None, reverse)
    p.threads, p.team, p.keep, p.segment, p.dt = threads(), TEAM, keep % BFLOAT16, segment, dt
    p.bfloat16 = keep // BFLOAT16
    p.stop = stop_flag()
    if clip is not None:
        p.clip_low, p.clip_high = clip
    u = readable(operator, "u", u, (steps, batch, m), u.dtype, contiguous=False)
    p.u, p.u_time, p.u_row = u.data_ptr(), u.stride(0), u.stride(1)
    alive = [u]
    for name, tensor, shape, dtype in (
        ("weight_u", weight_u, (rows + d_y, m), u.dtype),
        ("weight_y", weight_y, (rows, d_y), u.dtype),
        ("weight_z", weight_z, (d_y, d_z), u.dtype),
        ("bias", bias, (rows + d_y,), u.dtype),
        ("y_0", y_0, (batch, d_y), u.dtype),
        ("z_0", z_0, (batch, d_z), u.dtype),
        ("mask", mask, (batch, d_y), u.dtype),
        ("lengths", lengths, (batch,), torch.int64),
        ("elapsed", elapsed, (steps, batch), u.dtype),
        ("resets", resets, (steps, batch), torch.bool),
        ("y_start", y_start, (d_y,), u.dtype),
        ("z_start", z_start, (d_z,), u.dtype),
    ):
        if tensor is not None:
            alive.append(readable(operator, name, tensor, shape, dtype))
            setattr(p, name, alive[-1].data_ptr())
    return p, alive


def with_work(p: Problem, backward: bool) -> Tensor:
    """Give the call its scratch memory; return the tensor that owns it."""
    size = library().lem_work_bytes(p, backward)
    check(max(0, -size))
    work = empty((size,), torch.uint8)
    p.work, p.work_bytes = work.data_ptr(), size
    return work


_INPUTS = (
    "Tensor u, Tensor weight_u, Tensor weight_y, Tensor weight_z, Tensor? bias, Tensor y_0, Tensor z_0, "
    "Tensor? mask, Tensor? lengths"
)
_OPTIONS = "float dt, float[]? clip, bool reverse, int keep, int segment"
_TIMES = "Tensor? elapsed=None, Tensor? resets=None, Tensor? y_start=None, Tensor? z_start=None"  # last: added later
torch.library.define(
    "lem::sequence", f"({_INPUTS}, {_OPTIONS}, {_TIMES}) -> (Tensor out, Tensor y_n, Tensor z_n, Tensor saved)"
)
torch.library.define(
    "lem::sequence_backward",
    f"(Tensor? grad_out, Tensor? grad_y_n, Tensor? grad_z_n, {_INPUTS}, Tensor? out, Tensor saved, {_OPTIONS}, "
    f"bool input_gradient, {_TIMES}, bool elapsed_gradient=False) -> ({', '.join(['Tensor'] * 10)})",
)
_TENSORS = _INPUTS.count("Tensor")
_ALL = _TENSORS + len(_OPTIONS.split(","))
_ARGUMENTS = _ALL + len(_TIMES.split(","))


class _Options(NamedTuple):
    """The arguments of the operator after its first tensors, in the order of `_OPTIONS`."""

    dt: float
    clip: list[float] | None
    reverse: bool
    keep: int
    segment: int


@torch.library.impl("lem::sequence", "CPU")
def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    p, alive = fill("lem::sequence", *arguments)
    u = alive[0]
    out = empty((p.steps, p.batch, p.outputs), u.dtype)
    y_n, z_n = torch.empty(p.batch, p.outputs, dtype=u.dtype), torch.empty(p.batch, p.hidden, dtype=u.dtype)
    size = library().lem_saved_bytes(p)
    check(max(0, -size))
    saved = empty((size,), torch.uint8)
    p.out, p.y_n, p.z_n, p.saved, p.saved_bytes = (
        out.data_ptr(), y_n.data_ptr(), z_n.data_ptr(), saved.data_ptr(), size,
    )  # fmt: skip
    work = with_work(p, False)
    run(library().lem_forward, p)
    del work, alive
    return out, y_n, z_n, saved


def _saved(u: Tensor, widths: tuple[int, int], keep: int, segment: int, paced: bool) -> Tensor:
    (steps, batch), item = u.shape[:2], u.dtype.itemsize
    lanes = max(1, library().lem_target_vector_bytes(library().lem_target_chosen()) // item)
    y, z = (-(-d // lanes) * lanes for d in widths)
    keep %= BFLOAT16
    gates = (3 if paced else 2) * (y + z)
    kept = (0, steps * (z + gates), steps * z, (steps + segment - 1) // max(segment, 1) * (y + z))[keep]
    return u.new_empty((64 if keep else 0) + kept * item * batch, dtype=torch.uint8)


SAVED = {"cpu": _saved}
"""By kind of device: a tensor of the shape of what the forward pass leaves for the backward pass.

Called with the input, the widths of y and z, `keep`, `segment`, and whether the gates depend on elapsed times.
"""


def _no_meta(operator: str, *given: Any) -> None:
    if any(isinstance(x, Tensor) and x.device.type == "meta" for x in given):  # a fake tensor names a real device
        raise ValueError(f"tensors of {operator} must not be on the meta device: they have no values.")


@torch.library.register_fake("lem::sequence")
def _forward_shapes(u: Tensor, weight_u: Tensor, weight_y: Tensor, weight_z: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    _no_meta("lem::sequence", u, weight_u, weight_y, weight_z, *rest)
    keep, segment = rest[8:10]
    (steps, batch), (d_y, d_z) = u.shape[:2], weight_z.shape
    paced = len(rest) > 10 and rest[10] is not None and len(weight_y) != d_z
    states = u.new_empty(batch, d_y), u.new_empty(batch, d_z)
    saved = SAVED[u.device.type](u, (d_y, d_z), keep, segment, paced)
    return u.new_empty(steps, batch, d_y), *states, saved


@torch.library.impl("lem::sequence_backward", "CPU")
def _backward(
    grad_out: Tensor | None, grad_y_n: Tensor | None, grad_z_n: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    operator = "lem::sequence_backward"
    inputs, (out, saved), options = rest[:_TENSORS], rest[_TENSORS : _TENSORS + 2], rest[_TENSORS + 2 : _ALL + 2]
    input_gradient, *times = rest[_ALL + 2 :]
    elapsed_gradient = len(times) > 4 and times[4]
    p, alive = fill(operator, *inputs, *options, *times[:4])
    dtype, outputs = alive[0].dtype, (p.steps, p.batch, p.outputs)
    if not isinstance(saved, Tensor):
        raise TypeError(f"`saved` of {operator} must be a tensor; got {type(saved).__name__}.")
    saved = readable(operator, "saved", saved, (saved.numel(),), torch.uint8)
    if saved.data_ptr() % 64:
        saved = saved.clone()
    p.saved, p.saved_bytes = saved.data_ptr(), saved.numel()
    if out is not None:
        alive.append(readable(operator, "out", out, outputs, dtype))
        p.out = alive[-1].data_ptr()
    if grad_out is not None:
        grad_out = readable(operator, "grad_out", grad_out, outputs, dtype, contiguous=False)
        p.grad_out, p.grad_out_time, p.grad_out_row = grad_out.data_ptr(), grad_out.stride(0), grad_out.stride(1)
    for name, given, width in (("grad_y_n", grad_y_n, p.outputs), ("grad_z_n", grad_z_n, p.hidden)):
        if given is not None:
            alive.append(readable(operator, name, given, (p.batch, width), dtype))
            setattr(p, name, alive[-1].data_ptr())
    elapsed, resets, y_start, z_start = (times + [None] * 4)[:4]
    grads = {"u": empty(tuple(inputs[0].shape), dtype) if input_gradient else None}
    names = ("weight_u", "weight_y", "weight_z", "bias", "y_0", "z_0")
    grads |= {name: None if x is None else torch.empty(x.shape, dtype=dtype) for name, x in zip(names, inputs[1:7])}
    grads["elapsed"] = torch.empty(p.steps, p.batch, dtype=dtype) if elapsed_gradient and elapsed is not None else None
    # The kernel writes a gradient for each row; the first state is one for all rows.
    for name, width in (("y_start", p.outputs), ("z_start", p.hidden)):
        grads[name] = None if resets is None else torch.empty(p.batch, width, dtype=dtype)
    for name, grad in grads.items():
        setattr(p, f"grad_{name}", None if grad is None else grad.data_ptr())
    work = with_work(p, True)
    run(library().lem_backward, p)
    del work, alive
    for name, given in (("y_start", y_start), ("z_start", z_start)):
        rows = grads[name]
        if given is not None:
            grads[name] = torch.zeros_like(given) if rows is None else rows.sum(0)
        else:
            grads[name] = None
    return tuple(torch.empty(0, dtype=dtype) if grad is None else grad for grad in grads.values())


@torch.library.register_fake("lem::sequence_backward")
def _backward_shapes(
    grad_out: Tensor | None, grad_y_n: Tensor | None, grad_z_n: Tensor | None, u: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    _no_meta("lem::sequence_backward", grad_out, grad_y_n, grad_z_n, u, *rest)
    weights, (input_gradient, *times) = rest[:6], rest[_ALL + 1 :]
    elapsed, _, y_start, z_start, elapsed_gradient = (times + [None] * 5)[:5]
    like = [u if input_gradient else None, *weights, elapsed if elapsed_gradient else None, y_start, z_start]
    return tuple(u.new_empty(0) if x is None else x.new_empty(x.shape) for x in like)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.options = _Options(*inputs[_TENSORS:_ALL])
    # A bounded run does not hold on to the outputs: it computes them again.
    out = None if ctx.options.keep % BFLOAT16 == KEEP["bounded"] else output[0]
    ctx.save_for_backward(*inputs[:_TENSORS], *inputs[_ALL:], out, output[3])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    if ctx.options.keep % BFLOAT16 == KEEP["nothing"]:
        raise RuntimeError(
            "the forward pass of the LEM kernel ran without gradients and kept nothing for a backward pass."
        )
    # Trailing arguments that are None do not count among those of the call.
    needs = (*ctx.needs_input_grad, *[False] * _ARGUMENTS)[:_ARGUMENTS]
    *tensors, out, saved = ctx.saved_tensors
    inputs, times = tensors[:_TENSORS], tensors[_TENSORS:]
    result = torch.ops.lem.sequence_backward(
        *grads[:3], *inputs, out, saved, *ctx.options, needs[0], *times, elapsed_gradient=needs[_ALL]
    )
    places = (*range(7), _ALL, _ALL + 2, _ALL + 3)  # of the arguments that have a gradient
    every = dict(zip(places, result))
    return tuple(every[i] if needs[i] else None for i in range(len(ctx.needs_input_grad)))


LOOP: list[Callable[..., tuple[Tensor, Tensor, Tensor]]] = []
"""The loop of LEM as a function of the operator's tensors and options, which `lem.nn` puts here."""

_GRADIENTS = 3  # the gradients that stand before the other arguments of the adjoint


def _remember_adjoint(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    rest = inputs[_GRADIENTS:]
    tensors, options, times = rest[:_TENSORS], rest[_TENSORS + 2 : _ALL + 2], rest[_ALL + 3 :]
    ctx.options = _Options(*options)
    ctx.save_for_backward(*inputs[:_GRADIENTS], *tensors, *(*times, None, None, None, None)[:4])
    ctx.set_materialize_grads(False)


def _differentiate_again(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """Differentiate the gradient of the loop: it is the same function of the inputs."""
    warn_once("LEM", SECOND)
    # The kernel computes neither what it keeps nor gradients of lengths and masks.
    with torch.enable_grad():
        given = [
            None
            if t is None or not t.is_floating_point()
            else t.view_as(t)
            if t.requires_grad
            else t.detach().requires_grad_()
            for t in ctx.saved_tensors
        ]
        incoming, inputs = given[:_GRADIENTS], given[_GRADIENTS:]
        whole = [t if x is None else x for t, x in zip(ctx.saved_tensors[_GRADIENTS:], inputs)]
        options = ctx.options
        results = LOOP[0](*whole[:_TENSORS], options.dt, options.clip, options.reverse, *whole[_TENSORS:])
        wanted = [inputs[i] for i in (*range(7), _TENSORS, _TENSORS + 2, _TENSORS + 3)]
        seen = [(y, g) for y, g in zip(results, incoming) if g is not None]
        found = torch.autograd.grad(
            [y for y, _ in seen],
            [x for x in wanted if x is not None],
            [g for _, g in seen],
            create_graph=True,
            allow_unused=True,
        )
        some = iter(found)
        first = [None if x is None else next(some) for x in wanted]
    pairs = [(f, g) for f, g in zip(first, grads) if f is not None and g is not None and f.requires_grad]
    sources = [x for x in given if x is not None]
    second = iter(
        torch.autograd.grad(
            [f for f, _ in pairs],
            sources,
            [g for _, g in pairs],
            create_graph=torch.is_grad_enabled(),
            allow_unused=True,
        )
        if pairs
        else [None] * len(sources)
    )
    each = [None if x is None else next(second) for x in given]
    tensors, times = each[: _GRADIENTS + _TENSORS], each[_GRADIENTS + _TENSORS :]
    every = (*tensors, None, None, *[None] * len(_Options._fields), None, *times, None)
    return every[: len(ctx.needs_input_grad)]


SECOND = Reason(
    "second derivative",
    "the kernel has the first derivative only, and a second one is needed",
    "The result is the same; only its speed and memory are those of the loop.",
)


class _Sequence(torch.autograd.Function):
    """The operator with its adjoint.

    `torch.library.register_autograd` would do the same, but reads the schema at each call, which takes longer than
    everything else around a small problem.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        output = _below_autograd(*inputs)
        _remember(ctx, (*inputs, *[None] * _ARGUMENTS)[:_ARGUMENTS], output)
        return output

    backward = staticmethod(_differentiate)


def _below_autograd(*inputs: Any) -> tuple[Tensor, ...]:
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.lem.sequence.default(*inputs)


@torch.library.impl("lem::sequence", "Autograd")
def _autograd(*inputs: Any) -> tuple[Tensor, ...]:
    tensors = (x for x in inputs if isinstance(x, Tensor))
    differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return _Sequence.apply(*inputs) if differentiable else _below_autograd(*inputs)


torch.library.register_autograd("lem::sequence_backward", _differentiate_again, setup_context=_remember_adjoint)


def sequence(
    u: Float[Tensor, "time batch input"],
    weight_u: Float[Tensor, "rows_u input"],
    weight_y: Float[Tensor, "rows_y outputs"],
    weight_z: Float[Tensor, "outputs hidden"],
    bias: Float[Tensor, "rows_u"] | None,
    y_0: Float[Tensor, "batch outputs"],
    z_0: Float[Tensor, "batch hidden"],
    mask: Float[Tensor, "batch outputs"] | None = None,
    lengths: Int[Tensor, "batch"] | None = None,
    elapsed: Float[Tensor, "time batch"] | None = None,
    resets: Bool[Tensor, "time batch"] | None = None,
    start: tuple[Float[Tensor, "outputs"], Float[Tensor, "hidden"]] | None = None,
    *,
    dt: float = 1.0,
    clip: tuple[float, float] | None = None,
    reverse: bool = False,
    memory: str | int = "auto",
    bfloat16: bool = False,
) -> tuple[Float[Tensor, "time batch outputs"], Float[Tensor, "batch outputs"], Float[Tensor, "batch hidden"]]:
    """Run LEM over a sequence in one call; return the outputs and the final y and z.

    Parameters as in `LEMCell`; `start` is the learned initial state, which a reset returns to (zeros without it), and
    `bfloat16` rounds the operands of the matrix products.
    """
    tensors = (u, weight_u, weight_y, weight_z, bias, y_0, z_0, mask)
    times = (elapsed, resets, *((None, None) if start is None or resets is None else start))
    keep, segment = "nothing", 1
    tracing = (
        torch.jit.is_tracing()
    )  # what a trace keeps must not depend on the grad mode, which torch.jit.trace changes
    if (tracing or torch.is_grad_enabled()) and any(t is not None and t.requires_grad for t in (*tensors, *times)):
        d_y, d_z = weight_z.shape
        keep, segment = ("recompute", 1) if tracing else plan(
            u, d_z, len(weight_y) == d_z, memory,
            proj_size=d_y, elapsed=elapsed is not None, resets=resets is not None,
        )  # fmt: skip
    if lengths is not None:
        lengths = lengths.to(device="cpu", dtype=torch.int64)
    out, y_n, z_n, _ = torch.ops.lem.sequence(
        *tensors,
        lengths,
        dt,
        None if clip is None else list(clip),
        reverse,
        KEEP[keep] + BFLOAT16 * bfloat16,
        segment,
        *times,
    )
    return out, y_n, z_n


class LEMKernel(Kernel):
    """Run LEM on the CPU."""

    backend = "native"
    computes = ("project", "step", "time_steps")
    takes_timing = True

    def refuse(self, call: Call) -> Reason | None:
        """Refuse what the C++ kernel never runs."""
        cell = call.cell
        weights = cell.weight_u, cell.weight_y, cell.weight_z, cell.bias
        return refusal(call.u, *weights, *call.state, call.elapsed, converts=True)

    def describe(self, call: Call) -> str:
        """Return the instruction set, the number of threads and the precision."""
        return f"{describe()}, {describe_precision(call.u, call.cell.precision)}"

    def run(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run all steps in one call."""
        cell, types = call.cell, precision_of(call.u, call.cell.precision)
        (mask,) = cell.prepare(call.u.shape[1]) or (None,)
        tensors: list[Any] = [
            call.u, cell.weight_u, cell.weight_y, cell.weight_z, cell.bias, *call.state, mask, call.elapsed,
            cell.y_0, cell.z_0,
        ]  # fmt: skip
        # `refuse` has seen that all types are equal, except under autocast.
        as_it_is = types.computes == call.u.dtype == types.returns and not torch.is_autocast_enabled("cpu")
        if not as_it_is:
            tensors = [None if t is None else converted(t, types.computes) for t in tensors]
        u, weight_u, weight_y, weight_z, bias, y_0, z_0, mask, elapsed, y_start, z_start = tensors
        found = sequence(
            u, weight_u, weight_y, weight_z, bias, y_0, z_0, mask, call.lengths, elapsed, call.resets,
            None if y_start is None or z_start is None else (y_start, z_start),
            dt=cell.dt, clip=cell.clip, reverse=call.reverse, memory=cell.memory, bfloat16=types.bfloat16,
        )  # fmt: skip
        out, y, z = found if as_it_is else (converted(t, types.returns) for t in found)
        return out, (y, z)
