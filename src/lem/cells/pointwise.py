"""Cells whose step is one product and an elementwise map, run over time without a tape.

Autograd records every operation of every step, and in a loop over thousands of short steps the recording costs several
times the arithmetic. Where all that mixes units is one product with the state, the chain rule is simple enough to be
applied here, for every such cell at once: the derivatives of the elementwise map are diagonal, so autograd gives them
for all steps in a handful of large operations, and the weights' gradients are one large product.
"""

from typing import Any

import torch
from torch import Tensor

from lem.cells.base import Cell, State
from lem.shapes import Float, Int

CHUNK = 256
"""Steps whose derivatives are held at once in the backward pass."""


class PointwiseCell(Cell):
    """A cell with `step(x, state, W, ...) = pointwise(x + read(state) W, state, ...)`.

    A subclass returns W, (width of what it reads, k d), as the first of `prepare`, and writes `pointwise`, which may
    mix no two units and works on (..., k d) of any leading shape.
    """

    reads: tuple[int, ...] = (0,)
    """The fields of the state that are multiplied by W, side by side."""

    def prepare(self, batch: int) -> tuple[Any, ...]:
        """Return W and whatever else `pointwise` takes."""
        raise NotImplementedError

    def pointwise(self, a: Float[Tensor, "*batch k"], state: State, *rest: Tensor) -> State:
        """Return the next state from `a`, the affine map of input and state, unit by unit."""
        raise NotImplementedError

    def step(self, x: Float[Tensor, "batch k"], state: State, *prepared: Any) -> State:
        """Advance the state by one time step."""
        W, *rest = prepared
        return self.pointwise(torch.addmm(x, self._read(state), W), state, *rest)

    def _read(self, state: State) -> Tensor:
        return state[self.reads[0]] if len(self.reads) == 1 else torch.cat([state[i] for i in self.reads], -1)

    def sequence(
        self,
        u: Float[Tensor, "time batch input"],
        state: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        reverse: bool = False,
    ) -> tuple[Float[Tensor, "time batch output"], State]:
        """Run over time without a tape; unequal rows, other precisions, tracing and transforms go by the loop."""
        device = u.device.type
        plain = not (torch.is_autocast_enabled(device) or torch.compiler.is_compiling() or _transformed())
        if lengths is not None or len(u) == 0 or not plain:
            return super().sequence(u, state, lengths, reverse)
        before = self.init_state(u.shape[1]) if state is None else state
        x = self.project(u)
        out, *after = _Sequence.apply(
            self, len(before), x.flip(0) if reverse else x, *before, *self.prepare(u.shape[1])
        )
        return out.flip(0) if reverse else out, self.state_type(*after)


def _transformed() -> bool:
    """Say whether torch.func is at work, whose transforms cannot see into an autograd function."""
    return bool(torch._C._are_functorch_transforms_active())


class _Sequence(torch.autograd.Function):
    """All steps of a PointwiseCell as one node of the graph."""

    @staticmethod
    def forward(ctx: Any, cell: PointwiseCell, fields: int, x: Tensor, *others: Any) -> tuple[Tensor, ...]:
        state, W, rest = cell.state_type(*others[:fields]), others[fields], others[fields + 1 :]
        states = [state]
        affine = torch.empty_like(x)
        for x_t, a in zip(x.unbind(0), affine.unbind(0)):
            torch.addmm(x_t, cell._read(state), W, out=a)
            state = cell.pointwise(a, state, *rest)
            states.append(state)
        history = [torch.stack(field) for field in zip(*states)]
        ctx.save_for_backward(x, W, *others[:fields], *rest, affine, *history)
        ctx.cell, ctx.fields = cell, fields
        return history[0][1:].clone(), *(h[-1].clone() for h in history)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Pull the gradient through all steps, from the last chunk of time to the first."""
        cell, n = ctx.cell, ctx.fields
        x, W, *others = ctx.saved_tensors
        initial, rest, affine, history = others[:n], others[n : -n - 1], others[-n - 1], others[-n:]
        if torch.is_grad_enabled():  # a derivative of this derivative is wanted: the loop has it
            return None, None, *_by_the_loop(cell, x, initial, W, rest, grads)
        d_out, d_state = grads[0].unbind(0), list(grads[1:])
        d_x, d_W, d_rest = torch.empty_like(x), torch.zeros_like(W), [torch.zeros_like(p) for p in rest]
        back = W.T.contiguous()
        for stop in range(len(x), 0, -CHUNK):
            part = slice(max(0, stop - CHUNK), stop)
            before = [h[part] for h in history]
            d_state, d_rest_part = _pull(cell, affine[part], before, rest, back, d_out[part], d_state, d_x[part])
            d_rest = [total if new is None else total + new for total, new in zip(d_rest, d_rest_part)]
            d_W += cell._read(before).flatten(0, 1).T @ d_x[part].flatten(0, 1)
        return None, None, d_x, *d_state, d_W, *d_rest


def _pull(
    cell: PointwiseCell,
    affine: Tensor,
    before: list[Tensor],
    rest: list[Tensor],
    back: Tensor,
    d_out: tuple[Tensor, ...],
    d_state: list[Tensor],
    d_affine: Tensor,
) -> tuple[list[Tensor], tuple[Tensor | None, ...]]:
    """Pull `d_state` through the steps of a chunk; fill `d_affine`; return it with the gradients of `rest`."""
    width = before[0].shape[-1]
    with torch.enable_grad():
        a, *states = (leaf.detach().requires_grad_() for leaf in (affine, *before))
        leaves = [p.detach().requires_grad_() for p in rest]
        after = cell.pointwise(a, cell.state_type(*states), *leaves)
        slopes = [torch.autograd.grad(s.sum(), (a, *states), retain_graph=True, allow_unused=True) for s in after]
    by_gate = (*affine.shape[:2], -1, width)
    to_affine = [None if row[0] is None else row[0].view(by_gate).unbind(0) for row in slopes]
    to_state = [[None if slope is None else slope.unbind(0) for slope in row[1:]] for row in slopes]
    rows, gates = d_affine.unbind(0), d_affine.view(by_gate).unbind(0)
    arrived = []
    for t in reversed(range(len(affine))):
        d_state = [d_state[0] + d_out[t], *d_state[1:]]
        arrived.append(d_state)
        first = True
        for g, slope in zip(d_state, to_affine):
            if slope is not None:
                g = g.unsqueeze(1)  # the same for every gate
                torch.mul(g, slope[t], out=gates[t]) if first else gates[t].addcmul_(g, slope[t])
                first = False
        pulled = []
        for j, old in enumerate(d_state):
            terms = [g * row[j][t] for g, row in zip(d_state, to_state) if row[j] is not None]
            pulled.append(sum(terms[1:], terms[0]) if terms else torch.zeros_like(old))
        for j, product in zip(cell.reads, torch.mm(rows[t], back).split(width, 1)):
            pulled[j] += product
        d_state = pulled
    if not leaves:
        return d_state, ()
    totals = [torch.stack(field[::-1]) for field in zip(*arrived)]
    return d_state, torch.autograd.grad(after, leaves, totals, allow_unused=True)


def _by_the_loop(
    cell: PointwiseCell, x: Tensor, state: list[Tensor], W: Tensor, rest: list[Tensor], grads: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """Return the gradients with a graph of their own."""
    inputs = [x, *state, W, *rest]
    outputs, now = [], cell.state_type(*state)
    for x_t in x.unbind(0):
        now = cell.step(x_t, now, W, *rest)
        outputs.append(now[0])
    wanted = [p for p in inputs if p.requires_grad]
    found = iter(torch.autograd.grad((torch.stack(outputs), *now), wanted, grads, create_graph=True, allow_unused=True))
    return tuple(next(found) if p.requires_grad else None for p in inputs)
