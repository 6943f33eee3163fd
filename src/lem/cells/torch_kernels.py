"""Torch's own kernels (`torch.lstm`, `torch.gru`, `torch.rnn_tanh`) behind the contract of `Cell.sequence`.

They know neither a direction per call nor lengths of padded rows: both are added here, once for the three cells.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lem.cells.base import Cell, State


def run_kernel(
    kernel: Callable[..., Any],
    weights: Sequence[Tensor | None],
    cell: Cell,
    u: Tensor,
    state: State | None,
    lengths: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, State]:
    """Run `kernel` as `cell.sequence` must run; `weights` are torch's [w_ih, w_hh, b_ih, b_hh], None where absent."""
    steps, batch = u.shape[:2]
    state = cell.init_state(batch) if state is None else state
    order = _reversed_rows(steps, lengths, u.device) if reverse else None
    if order is not None:
        u = _take(u, order)
    # An absent bias is passed as zeros: the kernels take both or none.
    weight_u, *others = weights
    assert weight_u is not None
    flat = [weight_u, *(weight_u.new_zeros(len(weight_u)) if w is None else w for w in others)]
    # cuDNN can go backwards only through a run in training mode, whatever `cell.training` says.
    settings = (True, 1, 0.0, torch.is_grad_enabled(), False)
    if lengths is None:
        out, *final = kernel(u, _start(state), flat, *settings, False)
    else:
        packed = pack_padded_sequence(u, lengths.cpu(), enforce_sorted=False)
        rows, back = packed.sorted_indices, packed.unsorted_indices
        assert rows is not None
        assert back is not None
        start = _start(tuple(s.index_select(0, rows) for s in state))
        data, *final = kernel(packed.data, packed.batch_sizes, start, flat, *settings)
        out, _ = pad_packed_sequence(PackedSequence(data, packed.batch_sizes, rows, back), total_length=steps)
        final = [s.index_select(1, back) for s in final]
    if order is not None:
        out = _take(out, order)
    return out, cell.state_type(*(s[0] for s in final))


def _start(state: State) -> Tensor | tuple[Tensor, ...]:
    fields = tuple(s[None].contiguous() for s in state)
    return fields[0] if len(fields) == 1 else fields


def _reversed_rows(steps: int, lengths: Tensor | None, device: torch.device) -> Tensor:
    """Return the permutation of time that turns each row's own part around and leaves its padding in place."""
    t = torch.arange(steps, device=device)[:, None]
    if lengths is None:
        return t.flip(0)
    ends = lengths.to(device)
    return torch.where(t < ends, ends - 1 - t, t)


def _take(u: Tensor, order: Tensor) -> Tensor:
    if order.shape[1] == 1:
        return u.flip(0)
    return u.gather(0, order[:, :, None].expand_as(u))
