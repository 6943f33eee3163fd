"""Run UnICORNN without storing its states: the backward pass computes them again, backwards in time."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lem.kernels.choose import NOT_PREFERRED, Call, Kernel, Reason
from lem.kernels.cpu.first_order import first_only, graph_edge

CHUNK = 64
"""Steps per product with V: large enough for an efficient product, and independent of the length."""


class ReconstructKernel(Kernel):
    """Run UnICORNN with `reconstruct=True`, on any device, with torch operations."""

    backend = "torch"
    computes = ("project", "prepare", "step")

    def refuse(self, call: Call) -> Reason | None:
        """Refuse a cell without `reconstruct`."""
        return None if call.cell.reconstruct else Reason(NOT_PREFERRED, "reconstruct=False")

    def describe(self, call: Call) -> str:
        """Return what is special about this kernel."""
        return "states are reconstructed in the backward pass"

    def run(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run forward and keep the final state only."""
        cell, u, alive = call.cell, call.u, None
        if call.lengths is not None:
            inside = torch.arange(len(u), device=u.device)[:, None] < call.lengths.to(u.device)
            u = u.masked_fill(~inside[:, :, None], 0.0)
            alive = inside[:, :, None].to(u.dtype)
        (s,) = cell.prepare(u.shape[1])
        tensors = (u, cell.weight_u, cell.bias, cell.weight_y, s, *call.state)
        out, *final = _Reversible.apply(graph_edge(*tensors), *tensors, alive, cell.alpha, call.reverse)
        return out, tuple(final)


class _Reversible(torch.autograd.Function):
    """The sequence of UnICORNN, with a backward pass that computes the states backwards from the final one.

    A step outside a row's length has s = 0, which leaves the state as it is, forwards and backwards.
    """

    @staticmethod
    def forward(
        ctx: Any,
        edge: Tensor,
        u: Tensor,
        V: Tensor,
        b: Tensor | None,
        w: Tensor,
        s: Tensor,
        y: Tensor,
        z: Tensor,
        alive: Tensor | None,
        alpha: float,
        reverse: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        out = u.new_empty(*u.shape[:2], len(w))
        for times in _chunks(len(u), reverse):
            x = functional.linear(u[times.start : times.stop], V, b)
            for t in reversed(times) if reverse else times:
                s_t = s if alive is None else s * alive[t]
                z = z - s_t * (torch.tanh(w * y + x[t - times.start]) + alpha * y)
                y = y + s_t * z
                out[t] = y if alive is None else y * alive[t]
        ctx.save_for_backward(u, V, b, w, s, y, z, alive)
        ctx.alpha, ctx.reverse, ctx.graph_edge = alpha, reverse, edge
        return out, y, z

    @staticmethod
    @first_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Undo the steps one by one and pull the gradient through each."""
        d_out, d_y, d_z = grads
        u, V, b, w, s, y, z, alive = ctx.saved_tensors
        alpha, reverse = ctx.alpha, ctx.reverse
        d_u, d_V = torch.empty_like(u), torch.zeros_like(V)
        d_b, d_w, d_s = (torch.zeros_like(w) for _ in range(3))
        for times in reversed(_chunks(len(u), reverse)):
            part = slice(times.start, times.stop)
            x = functional.linear(u[part], V, b)
            d_x = torch.empty_like(x)
            for t in times if reverse else reversed(times):
                on = 1.0 if alive is None else alive[t]
                s_t = s * on
                y_old = y - s_t * z
                force = torch.tanh(w * y_old + x[t - times.start])
                pull = force + alpha * y_old
                d_y = d_y + d_out[t] * on
                d_z = d_z + s_t * d_y
                d_s += ((d_y * z - d_z * pull) * on).sum(0)
                d_pre = -s_t * d_z * (1 - force**2)
                d_x[t - times.start] = d_pre
                d_w += (d_pre * y_old).sum(0)
                d_y = d_y + d_pre * w - s_t * d_z * alpha
                y, z = y_old, z + s_t * pull
            d_u[part] = d_x @ V
            d_V += d_x.flatten(0, 1).T @ u[part].flatten(0, 1)
            d_b += d_x.sum((0, 1))
        return None, d_u, d_V, None if b is None else d_b, d_w, d_s, d_y, d_z, None, None, None


def _chunks(steps: int, reverse: bool) -> list[range]:
    """Return the time axis in pieces, in the order in which they are run."""
    pieces = [range(start, min(start + CHUNK, steps)) for start in range(0, steps, CHUNK)]
    return pieces[::-1] if reverse else pieces
