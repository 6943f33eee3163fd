"""LEM over a whole sequence as the torch operator `lem::sequence`: one call forward, one for its adjoint.

The operator has a first derivative only. Second derivatives, forward mode and torch.func transforms need the loop;
`backend="auto"` takes it where it can know, and a second derivative through the kernel raises an error that says so.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from lem.native.library import KEEP, Problem, check, library, threads
from lem.native.memory import plan
from lem.native.pages import empty
from lem.shapes import Float, Int

TEAM = 0
"""Threads that share the hidden units of one group of rows; 0: the library chooses. For tests and measurements."""


def _inner(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def fill(
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
) -> tuple[Problem, list[Tensor]]:
    """Fill the struct; also return the tensors its pointers point to, which must outlive the call."""
    (steps, batch, m), d = u.shape, weight_z.shape[0]
    maps = weight_y.shape[0] // d + 1
    shapes = {
        "weight_u": (weight_u, (maps * d, m)),
        "weight_y": (weight_y, ((maps - 1) * d, d)),
        "weight_z": (weight_z, (d, d)),
        "bias": (bias, (maps * d,)),
        "y_0": (y_0, (batch, d)),
        "z_0": (z_0, (batch, d)),
        "mask": (mask, (batch, d)),
        "lengths": (lengths, (batch,)),
    }
    p = Problem(ctypes.sizeof(Problem), u.dtype.itemsize, steps, batch, m, d, maps == 4, clip is not None, reverse)
    p.threads, p.team, p.keep, p.segment, p.dt = threads(), TEAM, keep, segment, dt
    if clip is not None:
        p.clip_low, p.clip_high = clip
    u = _inner(u)
    p.u, p.u_time, p.u_row = u.data_ptr(), u.stride(0), u.stride(1)
    alive = [u]
    for name, (tensor, shape) in shapes.items():
        if tensor is None:
            continue
        wanted = torch.int64 if name == "lengths" else u.dtype
        if tuple(tensor.shape) != shape or maps not in (2, 4) or tensor.device.type != "cpu":
            raise ValueError(f"`{name}` of lem::sequence must have shape {shape}; got {tuple(tensor.shape)}.")
        if tensor.dtype != wanted:
            raise TypeError(f"`{name}` of lem::sequence must be {wanted}; got {tensor.dtype}.")
        tensor = tensor.contiguous()
        alive.append(tensor)
        setattr(p, name, tensor.data_ptr())
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
torch.library.define("lem::sequence", f"({_INPUTS}, {_OPTIONS}) -> (Tensor out, Tensor y_n, Tensor z_n, Tensor saved)")
torch.library.define(
    "lem::sequence_backward",
    f"(Tensor? grad_out, Tensor? grad_y_n, Tensor? grad_z_n, {_INPUTS}, Tensor? out, Tensor saved, {_OPTIONS}, "
    "bool input_gradient) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@torch.library.impl("lem::sequence", "CPU")
def _forward(u: Tensor, weight_u: Tensor, weight_y: Tensor, weight_z: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    p, alive = fill(u, weight_u, weight_y, weight_z, *rest)
    d = weight_z.shape[0]
    out = empty((p.steps, p.batch, d), u.dtype)
    y_n, z_n = u.new_empty(p.batch, d), u.new_empty(p.batch, d)
    size = library().lem_saved_bytes(p)
    check(max(0, -size))
    saved = empty((size,), torch.uint8)
    p.out, p.y_n, p.z_n, p.saved, p.saved_bytes = (
        out.data_ptr(), y_n.data_ptr(), z_n.data_ptr(), saved.data_ptr(), size,
    )  # fmt: skip
    work = with_work(p, False)
    check(library().lem_forward(p))
    del work, alive
    return out, y_n, z_n, saved


@torch.library.register_fake("lem::sequence")
def _forward_shapes(u: Tensor, weight_u: Tensor, weight_y: Tensor, weight_z: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    keep, segment = rest[-2:]
    (steps, batch), d = u.shape[:2], weight_z.shape[0]
    lanes = library().lem_target_vector_bytes(library().lem_target_chosen()) // u.dtype.itemsize
    item = -(-d // max(lanes, 1)) * max(lanes, 1) * u.dtype.itemsize * batch
    header = 64 if keep else 0
    kept = (0, 5 * steps, steps, 2 * ((steps + segment - 1) // max(segment, 1)))[keep]
    states = u.new_empty(batch, d), u.new_empty(batch, d)
    return u.new_empty(steps, batch, d), *states, u.new_empty(header + kept * item, dtype=torch.uint8)


@torch.library.impl("lem::sequence_backward", "CPU")
def _backward(
    grad_out: Tensor | None, grad_y_n: Tensor | None, grad_z_n: Tensor | None, u: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    inputs, (out, saved), options, input_gradient = rest[:8], rest[8:10], rest[10:-1], rest[-1]
    weight_u, weight_y, weight_z, bias, y_0, z_0 = inputs[:6]
    p, alive = fill(u, *inputs, *options)
    if saved.data_ptr() % 64:
        saved = saved.clone()
    p.saved, p.saved_bytes = saved.data_ptr(), saved.numel()
    if out is not None:
        out = out.contiguous()
        p.out = out.data_ptr()
    if grad_out is not None:
        grad_out = _inner(grad_out)
        p.grad_out, p.grad_out_time, p.grad_out_row = grad_out.data_ptr(), grad_out.stride(0), grad_out.stride(1)
    for name, given in (("grad_y_n", grad_y_n), ("grad_z_n", grad_z_n)):
        if given is not None:
            alive.append(given.contiguous())
            setattr(p, name, alive[-1].data_ptr())
    grad_u = empty(tuple(u.shape), u.dtype) if input_gradient else u.new_empty(0)
    grads = [torch.empty(w.shape, dtype=u.dtype) for w in (weight_u, weight_y, weight_z)]
    grads.append(u.new_empty(0) if bias is None else torch.empty(bias.shape, dtype=u.dtype))
    grads += [torch.empty(s.shape, dtype=u.dtype) for s in (y_0, z_0)]
    names = ("weight_u", "weight_y", "weight_z", "bias", "y_0", "z_0")
    for name, grad in zip(("u", *names), (grad_u, *grads)):
        setattr(p, f"grad_{name}", grad.data_ptr() if grad.numel() else None)
    work = with_work(p, True)
    check(library().lem_backward(p))
    del work, alive
    return grad_u, *grads


@torch.library.register_fake("lem::sequence_backward")
def _backward_shapes(
    grad_out: Tensor | None, grad_y_n: Tensor | None, grad_z_n: Tensor | None, u: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    weight_u, weight_y, weight_z, bias, y_0, z_0 = rest[:6]
    like = [u if rest[-1] else None, weight_u, weight_y, weight_z, bias, y_0, z_0]
    return tuple(u.new_empty(0) if x is None else u.new_empty(x.shape) for x in like)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.options, keep = inputs[9:], inputs[12]
    # A bounded run does not hold on to the outputs: it computes them again.
    out = None if keep == KEEP["bounded"] else output[0]
    ctx.save_for_backward(*inputs[:9], out, output[3])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    if ctx.options[3] == KEEP["nothing"]:
        raise RuntimeError("the LEM kernel kept nothing for a backward pass; call it where gradients are enabled.")
    result = torch.ops.lem.sequence_backward(
        *grads[:3], *ctx.saved_tensors, *ctx.options, input_gradient=ctx.needs_input_grad[0]
    )
    needed = [g if need else None for g, need in zip(result, ctx.needs_input_grad)]
    return (*needed, *(None,) * (len(ctx.needs_input_grad) - len(needed)))


def _no_second(ctx: Any, *grads: Any) -> Any:
    raise RuntimeError("the LEM kernel has no second derivative; build the layer with backend='loop' for it.")


torch.library.register_autograd("lem::sequence", _differentiate, setup_context=_remember)
torch.library.register_autograd("lem::sequence_backward", _no_second)


def sequence(
    u: Float[Tensor, "time batch input"],
    weight_u: Float[Tensor, "rows_u input"],
    weight_y: Float[Tensor, "rows_y hidden"],
    weight_z: Float[Tensor, "hidden hidden"],
    bias: Float[Tensor, "rows_u"] | None,
    y_0: Float[Tensor, "batch hidden"],
    z_0: Float[Tensor, "batch hidden"],
    mask: Float[Tensor, "batch hidden"] | None = None,
    lengths: Int[Tensor, "batch"] | None = None,
    *,
    dt: float = 1.0,
    clip: tuple[float, float] | None = None,
    reverse: bool = False,
    memory: str | int = "auto",
) -> tuple[Float[Tensor, "time batch hidden"], Float[Tensor, "batch hidden"], Float[Tensor, "batch hidden"]]:
    """Run LEM over a sequence in one call; return the outputs and the final y and z. Parameters as in `LEMCell`."""
    tensors = (u, weight_u, weight_y, weight_z, bias, y_0, z_0, mask)
    keep, segment = "nothing", 1
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        keep, segment = plan(u, weight_z.shape[0], len(weight_y) == len(weight_z), memory)
    if lengths is not None:
        lengths = lengths.to(device="cpu", dtype=torch.int64)
    out, y_n, z_n, _ = torch.ops.lem.sequence(
        *tensors, lengths, dt, None if clip is None else list(clip), reverse, KEEP[keep], segment
    )
    return out, y_n, z_n
