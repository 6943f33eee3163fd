"""Run cells whose units do not see each other (UnICORNN, IndRNN): one call for the sequence, one for its adjoint.

A step of such a layer is so little work that the loop spends most of its time between operations. Only the first
derivative is available; for higher ones use `lem.kernels.loop_only`.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from lem.kernels.choose import NOT_PREFERRED, Call, Kernel, Reason
from lem.kernels.cpu import library as cpu
from lem.kernels.cpu.buffers import empty
from lem.kernels.cpu.first_order import first_only, graph_edge
from lem.shapes import Float

OSCILLATOR, RELU = 0, 1
"""The kinds, numbered as in native/lem.h."""


class Units(ctypes.Structure):
    """The struct `lem_units` of native/lem.h, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("struct_bytes", "item_bytes", "kind", "steps", "count", "threads")),
        ("keep", ctypes.c_int64),
        ("alpha", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("x", "w", "s", "y_0", "z_0", "y", "z", "force")),
        *((name, ctypes.c_void_p) for name in ("grad_y", "grad_y_n", "grad_z_n")),
        *((name, ctypes.c_void_p) for name in ("grad_x", "grad_w", "grad_s", "grad_y_0", "grad_z_0", "stop")),
    ]


def refuse_call(call: Call) -> Reason | None:
    """Return why the kernels of cells other than LEM cannot run this call, or None if they can."""
    if call.lengths is not None:
        return Reason("lengths", f"the kernel of {type(call.cell).__name__} needs rows of equal length")
    return refuse_tensors(call.u, call.cell.any_parameter(), *call.state)


def refuse_tensors(*tensors: Tensor | None) -> Reason | None:
    """Return why these kernels cannot run on these tensors, or None if they can."""
    if torch.compiler.is_compiling():
        return Reason("tracing", "only the kernel of LEM can be compiled or exported")
    return cpu.refusal(*tensors)


class _UnitsKernel(Kernel):
    backend = "native"
    computes = ("step",)

    def refuse(self, call: Call) -> Reason | None:
        """Refuse unequal lengths, tracing, and what the C++ kernel never runs."""
        return refuse_call(call)

    def describe(self, call: Call) -> str:
        """Return the instruction set and the number of threads."""
        return cpu.describe()


class UnICORNNKernel(_UnitsKernel):
    """Run UnICORNN."""

    def refuse(self, call: Call) -> Reason | None:
        """Refuse `reconstruct`, which runs on the loop."""
        if call.cell.reconstruct:
            return Reason(NOT_PREFERRED, "reconstruct=True does not store the states")
        return super().refuse(call)

    def run(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run all steps in one call."""
        cell = call.cell
        x, (s,) = cell.project(call.u), cell.prepare(call.u.shape[1])
        y, z = call.state
        out, *final = oscillate(x.flip(0) if call.reverse else x, cell.weight_y, s, y, z, cell.alpha)
        return out.flip(0) if call.reverse else out, tuple(final)


class IndRNNKernel(_UnitsKernel):
    """Run IndRNN."""

    def run(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run all steps in one call."""
        x = call.cell.project(call.u)
        out, h = rectify(x.flip(0) if call.reverse else x, call.cell.weight_h, call.state[0])
        return out.flip(0) if call.reverse else out, (h,)


def oscillate(
    x: Float[Tensor, "time batch hidden"],
    w: Float[Tensor, "hidden"],
    s: Float[Tensor, "hidden"],
    y_0: Float[Tensor, "batch hidden"],
    z_0: Float[Tensor, "batch hidden"],
    alpha: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run UnICORNN's step over x = V u + b; return y at all steps, and the last y and z."""
    y_0, z_0 = (state.expand(x.shape[1:]) for state in (y_0, z_0))  # one state for all rows, as the loop takes it
    y, y_n, z_n = _Run.apply(
        graph_edge(x, w, s, y_0, z_0), OSCILLATOR, alpha, _kept(x, w, s, y_0, z_0), x, w, s, y_0, z_0
    )
    return y, y_n, z_n


def rectify(
    x: Float[Tensor, "time batch hidden"], w: Float[Tensor, "hidden"], h_0: Float[Tensor, "batch hidden"]
) -> tuple[Tensor, Tensor]:
    """Run IndRNN's step over x = V u + b; return h at all steps, and the last."""
    h_0 = h_0.expand(x.shape[1:])
    h, h_n = _Run.apply(graph_edge(x, w, h_0), RELU, 0.0, _kept(x, w, h_0), x, w, None, h_0, None)
    return h, h_n


def _kept(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _call(kind: int, alpha: float, keep: bool, shape: torch.Size, run: str, **tensors: Tensor | None) -> None:
    """Call the library with all tensors by the names of the struct."""
    steps, batch, d = shape
    dtype = next(t.dtype for t in tensors.values() if t is not None)
    p = Units(ctypes.sizeof(Units), cpu.ITEM[dtype], kind, steps, batch * d, cpu.threads(), keep, alpha)
    # A view may carry the sign that its memory lacks; contiguous() leaves it so.
    plain = {name: tensor.resolve_neg() for name, tensor in tensors.items() if tensor is not None}
    for name, tensor in plain.items():
        assert tensor.is_contiguous()
        assert tensor.dtype == dtype
        setattr(p, name, tensor.data_ptr())
    p.stop = cpu.stop_flag()
    cpu.run(getattr(cpu.library(), run), ctypes.byref(p))


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        edge: Tensor,
        kind: int,
        alpha: float,
        keep: bool,
        x: Tensor,
        w: Tensor,
        s: Tensor | None,
        y_0: Tensor,
        z_0: Tensor | None,
    ) -> tuple[Tensor, ...]:
        shape, item = x.shape, tuple(x.shape[1:])
        # Each unit of each row is a separate column, with its own copy of w and s.
        tensors: dict[str, Tensor | None] = {
            "w": w.expand(item).contiguous(),
            "s": None if s is None else s.expand(item).contiguous(),
            "y_0": y_0.contiguous(),
            "z_0": None if z_0 is None else z_0.contiguous(),
        }
        y, z, force = empty(tuple(shape), x.dtype), None, None
        if z_0 is not None:
            z = empty((shape[0] if keep else 1, *item), x.dtype)
            force = empty(tuple(shape), x.dtype) if keep else None
        tensors |= {"y": y, "z": z, "force": force}
        _call(kind, alpha, keep, shape, "lem_units_forward", x=x.contiguous(), **tensors)
        if keep:
            ctx.save_for_backward(*tensors.values())
            ctx.kind, ctx.alpha, ctx.names, ctx.graph_edge = kind, alpha, tuple(tensors), edge
            ctx.set_materialize_grads(False)
        return (y, y[-1].clone()) if z is None else (y, y[-1].clone(), z[-1].clone())

    @staticmethod
    @first_only
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Run the adjoint; what a unit's copies of w and s received is added up over the batch."""
        tensors = dict(zip(ctx.names, ctx.saved_tensors))
        y, oscillates = tensors["y"], tensors["s"] is not None
        found = {name: torch.empty_like(tensors["y_0"]) for name in ("grad_w", "grad_y_0")}
        if oscillates:
            found |= {name: torch.empty_like(tensors["y_0"]) for name in ("grad_s", "grad_z_0")}
        found["grad_x"] = empty(tuple(y.shape), y.dtype)
        given = {
            name: None if g is None else g.contiguous() for name, g in zip(("grad_y", "grad_y_n", "grad_z_n"), grads)
        }
        _call(ctx.kind, ctx.alpha, True, y.shape, "lem_units_backward", **tensors, **given, **found)
        back = [found["grad_w"].sum(0), found["grad_s"].sum(0) if oscillates else None]
        return None, None, None, None, found["grad_x"], *back, found["grad_y_0"], found.get("grad_z_0")
