"""The kernels that torch has for nn.LSTM, nn.GRU and nn.RNN, as kernels of our cells.

torch's functions have no `reverse` and no lengths for padded rows; both are added here, once for the three cells.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lem.kernels.choose import NOT_PREFERRED, Call, Kernel, Reason


class TorchKernel(Kernel):
    """One of `torch.lstm`, `torch.gru` and `torch.rnn_tanh`.

    The cell's method `torch_weights` returns [w_ih, w_hh, b_ih, b_hh], with None for a bias that the cell does not
    have, or None if torch cannot compute the cell with its present options.

    Args:
        function: torch's function.
        least_units: the number of units from which this entry of the list applies.
    """

    backend = "torch"
    computes = ("project", "prepare", "step", "torch_weights")

    def __init__(self, function: Callable[..., Any], least_units: int = 1) -> None:
        self.function = function
        self.least_units = least_units

    def refuse(self, call: Call) -> Reason | None:
        """Refuse options that torch's function does not have."""
        if call.cell.hidden_size < self.least_units:
            return Reason(NOT_PREFERRED, f"another kernel is faster below {self.least_units} units")
        if call.cell.torch_weights() is None:
            return Reason("options", f"torch has no kernel for these options of {type(call.cell).__name__}")
        return None

    def describe(self, call: Call) -> str:
        """Name the function."""
        return f"torch.{self.function.__name__}"

    def run(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run torch's function with each row reversed within its length and packed, as the call asks."""
        u, state, lengths = call.u, call.state, call.lengths
        steps = len(u)
        turn = _reversal(steps, lengths, u.device) if call.reverse else None
        if turn is not None:
            u = turn(u)
        # An absent bias is passed as zeros: the functions take both or none.
        weight_u, *others = call.cell.torch_weights()
        flat = [weight_u, *(weight_u.new_zeros(len(weight_u)) if w is None else w for w in others)]
        # cuDNN can go backwards only through a run in training mode, whatever `cell.training` says.
        settings = (True, 1, 0.0, torch.is_grad_enabled(), False)
        if lengths is None:
            out, *final = self.function(u, _stacked(state), flat, *settings, False)
        else:
            packed = pack_padded_sequence(u, lengths.cpu(), enforce_sorted=False)
            rows, back = packed.sorted_indices, packed.unsorted_indices
            assert rows is not None
            assert back is not None
            start = _stacked(tuple(s.index_select(0, rows) for s in state))
            data, *final = self.function(packed.data, packed.batch_sizes, start, flat, *settings)
            out, _ = pad_packed_sequence(PackedSequence(data, packed.batch_sizes, rows, back), total_length=steps)
            final = [s.index_select(1, back) for s in final]
        if turn is not None:
            out = turn(out)
        return out, tuple(s[0] for s in final)


def _stacked(state: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    fields = tuple(s[None].contiguous() for s in state)
    return fields[0] if len(fields) == 1 else fields


def _reversal(steps: int, lengths: Tensor | None, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return the function that reverses time within each row's own length and leaves its padding in place."""
    if lengths is None:
        return lambda x: x.flip(0)
    t = torch.arange(steps, device=device)[:, None]
    ends = lengths.to(device)
    order = torch.where(t < ends, ends - 1 - t, t)[:, :, None]
    return lambda x: x.gather(0, order.expand_as(x))
