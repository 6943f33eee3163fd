"""Units that see each other through one product a step (LSTM, coRNN, FastGRNN, expRNN): whole sequences in one call.

The kernel runs the steps and their adjoint. The products that need no state, with the input and for the gradient of
the recurrent matrix, are torch's: one each for the whole sequence. There is a first derivative only.
"""

import ctypes
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lem.kernels.choose import Call, Kernel, Reason
from lem.kernels.cpu import library as cpu
from lem.kernels.cpu.buffers import empty
from lem.kernels.cpu.first_order import first_only, graph_edge
from lem.kernels.cpu.units import refuse_call
from lem.shapes import Float

OSCILLATOR, RESIDUAL, GATED, MODRELU, LSTM = range(5)
"""The kinds, numbered as in native/lem.h, where their equations are."""


class Traits(NamedTuple):
    """How many of everything a unit of one kind has, in the order of `lem_coupled_trait` in native/lem.h."""

    constants: int
    kept: int  # values of every step that the adjoint needs in addition to the states
    states: int
    reads: int  # states that are multiplied by W
    maps: int  # parts of a


@cache
def traits_of(kind: int) -> Traits:
    """Return the traits of a kind, as the library states them."""
    return Traits(*(cpu.library().lem_coupled_trait(kind, which) for which in range(len(Traits._fields))))


class Coupled(ctypes.Structure):
    """The struct `lem_coupled` of native/lem.h, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("struct_bytes", "item_bytes", "kind", "steps", "batch", "hidden")),
        *((name, ctypes.c_int64) for name in ("threads", "keep")),
        *((name, ctypes.c_void_p) for name in ("x", "weight", "weight_back", "c", "y_0", "z_0", "y", "z", "kept")),
        ("work", ctypes.c_void_p),
        ("work_bytes", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("grad_y", "grad_y_n", "grad_z_n")),
        *((name, ctypes.c_void_p) for name in ("grad_x", "grad_c", "grad_y_0", "grad_z_0", "stop")),
    ]


class CoupledKernel(Kernel):
    """Run a cell with `step(x, state, W, ...) = pointwise(x + read(state) W, state, ...)`, a `PointwiseCell`.

    Args:
        kind: the name of the map `pointwise` in this module.
        unless: an option of the cell that changes the map, so that the kernel does not compute it.
    """

    backend = "native"
    computes = ("step", "pointwise", "reads")

    def __init__(self, kind: int, unless: str = "") -> None:
        self.kind = kind
        self.unless = unless

    def refuse(self, call: Call) -> Reason | None:
        """Refuse unequal lengths, tracing, and what the C++ kernel never runs."""
        if self.unless and getattr(call.cell, self.unless):
            return Reason("options", f"{type(call.cell).__name__} has no kernel with {self.unless}=True")
        return refuse_call(call)

    def describe(self, call: Call) -> str:
        """Return the instruction set and the number of threads."""
        return cpu.describe()

    def run(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Compute V u + b and what is fixed for the sequence in torch, then all steps in one call."""
        cell = call.cell
        x, (W, *rest) = cell.project(call.u), cell.prepare(call.u.shape[1])
        out, final = coupled_sequence(self.kind, x.flip(0) if call.reverse else x, W, cell.constants(*rest), call.state)
        return out.flip(0) if call.reverse else out, final


def coupled_sequence(
    kind: int,
    x: Float[Tensor, "time batch k"],
    W: Float[Tensor, "read k"],
    c: Float[Tensor, "constants hidden"],
    state: tuple[Tensor, ...],
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run `kind` over x = V u + b and the matrix W of `a = x + read(state) W`; return all y, and the last state."""
    traits, batch = traits_of(kind), x.shape[1]
    d = x.shape[2] // traits.maps
    shapes = [
        ("x", x, (len(x), batch, traits.maps * d)),
        ("W", W, (traits.reads * d, traits.maps * d)),
        ("c", c, (traits.constants, d)),
        *(("state", s, (batch, d)) for s in state),
    ]
    for name, given, shape in shapes:
        if tuple(given.shape) != shape:  # the library could not know: it would read what lies behind
            raise ValueError(f"`{name}` of coupled_sequence must have shape {shape}; got {tuple(given.shape)}.")
    tensors = (x, W, c, *state)
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    way = graph_edge(*tensors) if keep else None
    y, *final = _Run.apply(way, kind, keep, x, W, c, state[0], state[1] if traits.states == 2 else None)
    return y, tuple(final)


def _call(kind: int, keep: bool, shape: tuple[int, ...], backward: bool, **tensors: Tensor | None) -> None:
    """Call the library with all tensors by the names of the struct."""
    dtype = next(t.dtype for t in tensors.values() if t is not None)
    p = Coupled(ctypes.sizeof(Coupled), cpu.ITEM[dtype], kind, *shape, cpu.threads(), keep)
    size = cpu.library().lem_coupled_work_bytes(ctypes.byref(p), backward)
    cpu.check(max(0, -size))
    work = empty((size,), torch.uint8)
    p.work, p.work_bytes = work.data_ptr(), size
    # A view may carry the sign that its memory lacks; contiguous() leaves it so.
    plain = {name: tensor.resolve_neg() for name, tensor in tensors.items() if tensor is not None}
    for name, tensor in plain.items():
        assert tensor.is_contiguous()
        assert tensor.dtype == dtype
        setattr(p, name, tensor.data_ptr())
    p.stop = cpu.stop_flag()
    cpu.run(cpu.library().lem_coupled_backward if backward else cpu.library().lem_coupled_forward, ctypes.byref(p))


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        edge: Tensor | None,
        kind: int,
        keep: bool,
        x: Tensor,
        W: Tensor,
        c: Tensor,
        y_0: Tensor,
        z_0: Tensor | None,
    ) -> tuple[Tensor, ...]:
        shape = (*x.shape[:2], y_0.shape[1])
        y, z, kept = empty(shape, x.dtype), None, None
        if z_0 is not None:
            z, z_0 = empty((shape[0] if keep else 1, *shape[1:]), x.dtype), z_0.contiguous()
        if keep and traits_of(kind).kept:
            kept = empty((traits_of(kind).kept, *shape), x.dtype)
        same = {"c": c.contiguous(), "y_0": y_0.contiguous(), "z_0": z_0, "y": y, "z": z, "kept": kept}
        _call(kind, keep, shape, False, x=x.contiguous(), weight=W.contiguous(), **same)
        if keep:
            ctx.save_for_backward(W, *same.values())
            ctx.kind, ctx.names, ctx.graph_edge, ctx.wide = kind, tuple(same), edge, tuple(x.shape)
            ctx.set_materialize_grads(False)
        return (y, y[-1].clone()) if z is None else (y, y[-1].clone(), z[-1].clone())

    @staticmethod
    @first_only
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Run the adjoint; then the gradient of W from that of a and the states before each step."""
        W, *same = ctx.saved_tensors
        tensors = dict(zip(ctx.names, same))
        y, z = tensors["y"], tensors["z"]
        _, batch, d = y.shape
        found = {"grad_x": empty(ctx.wide, y.dtype), "grad_y_0": torch.empty_like(tensors["y_0"])}
        if z is not None:
            found["grad_z_0"] = torch.empty_like(tensors["z_0"])
        elif ctx.needs_input_grad[5]:
            found["grad_c"] = y.new_empty(len(tensors["c"]), batch, d)
        given = {
            name: None if g is None else g.contiguous() for name, g in zip(("grad_y", "grad_y_n", "grad_z_n"), grads)
        }
        reads = traits_of(ctx.kind).reads
        back = W.reshape(reads, d, -1).transpose(1, 2).contiguous()
        _call(ctx.kind, True, tuple(y.shape), True, weight_back=back, **tensors, **given, **found)
        grad_W = None
        if ctx.needs_input_grad[4]:
            seen = [(tensors["y_0"], y), (tensors["z_0"], z)][:reads]
            grad_W = torch.cat([_outer(first, rest, found["grad_x"]) for first, rest in seen])
        grad_c = found["grad_c"].sum(1) if "grad_c" in found else None
        return None, None, None, found["grad_x"], grad_W, grad_c, found["grad_y_0"], found.get("grad_z_0")


def _outer(first: Tensor, states: Tensor, grad: Tensor) -> Tensor:
    """Add up state^T grad over all steps and rows, where the state before the first step is `first`."""
    return torch.addmm(first.T @ grad[0], states[:-1].flatten(0, 1).T, grad[1:].flatten(0, 1))
