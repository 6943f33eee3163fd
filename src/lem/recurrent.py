"""Layers: a cell run over time, stacked, in one or both directions. `LEM` stands where `nn.LSTM` stood."""

import difflib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lem.cells import CELLS, Cell, LEMCell, State
from lem.cells.base import within
from lem.shapes import Float, Int

Sequences = TypeVar("Sequences", Tensor, PackedSequence)


def make_cell(name: str, input_size: int, hidden_size: int, **options: Any) -> Cell:
    """Build the cell registered as `name`; an unknown name or option is an error that says the nearest one."""
    if name not in CELLS:
        raise ValueError(f"`cell` must be one of {', '.join(sorted(CELLS))}; got {name!r}.{nearest(str(name), CELLS)}")
    known = [p for p in inspect.signature(CELLS[name]).parameters if p not in ("input_size", "hidden_size")]
    for option in options:
        if option not in known:
            raise TypeError(
                f"`{option}` is not an option of cell {name!r}; known: {', '.join(known)}.{nearest(option, known)}"
            )
    return CELLS[name](input_size, hidden_size, **options)


def nearest(name: str, known: Any) -> str:
    """Return ' Did you mean ...?' for a mistyped name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


class Recurrent(nn.Module):
    """Any registered cell as a layer with the arguments, shapes and returns of nn.LSTM.

    Returns `(outputs, state)`: the outputs of the last layer at all steps, (time, batch, directions * hidden), and the
    final state, a NamedTuple whose fields are (layers * directions, batch, hidden).

    Args:
        cell: a name in `lem.cells.CELLS`.
        input_size: the number of input channels.
        hidden_size: the number of units of each layer and direction.
        num_layers: how many layers are stacked.
        bias: whether the cell has biases.
        batch_first: whether input and outputs are (batch, time, channels).
        dropout: the probability of dropping a layer's output on its way to the next layer.
        bidirectional: whether a second set of cells runs backwards in time.
        shared_dropout: draw one dropout mask per sequence instead of one per step.
        layer_options: options of the cells of each layer, one mapping per layer, over the common ones.
        options: options of the cell; unknown ones are refused.
    """

    def __init__(
        self,
        cell: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        shared_dropout: bool = False,
        layer_options: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if not isinstance(num_layers, int) or isinstance(num_layers, bool) or num_layers < 1:
            raise ValueError(f"`num_layers` of {self._name} must be a positive integer; got {num_layers!r}.")
        self.dropout = within(self._name, "dropout", dropout, "[0, 1)")
        entries = -1 if not isinstance(layer_options, Sequence) else len(layer_options)
        if layer_options is not None and entries != num_layers:
            raise ValueError(
                f"`layer_options` of {self._name} must have one entry for each of {num_layers} layers; "
                f"got {layer_options if entries < 0 else entries}."
            )
        if not bias:
            options["bias"] = False
        each = [{**options, **own} for own in layer_options or [{}] * num_layers]
        self.cell = cell
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.bidirectional = bidirectional
        self.shared_dropout = shared_dropout
        directions = 2 if bidirectional else 1
        self.cells = nn.ModuleList(
            make_cell(cell, input_size if layer == 0 else directions * hidden_size, hidden_size, **each[layer])
            for layer in range(num_layers)
            for _ in range(directions)
        )
        widths = {self._cell(i).state_sizes for i in range(len(self.cells))}
        if len(widths) > 1:
            raise ValueError(
                f"`num_layers` of {self._name} must be 1 for cell {cell!r}: the width of its state "
                f"{self.state_type._fields} depends on its input, so that the layers' states cannot be stacked; "
                f"got {num_layers}."
            )

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def state_type(self) -> type[Any]:
        """The NamedTuple of the state."""
        return self._cell(0).state_type

    def _cell(self, index: int) -> Cell:
        cell = self.cells[index]
        assert isinstance(cell, Cell)
        return cell

    def forward(
        self, input: Sequences, hx: State | None = None, lengths: Int[Tensor, "batch"] | None = None
    ) -> tuple[Sequences, State]:
        """Run over a padded tensor, with `lengths` where rows differ, over an unbatched one or a PackedSequence."""
        if isinstance(input, PackedSequence):
            if lengths is not None:
                raise ValueError(f"`lengths` of {self._name} must be None for a PackedSequence, which has its own.")
            padded, lengths = pad_packed_sequence(input)
            outputs, state = self._layers(padded, hx, lengths)
            return _pack_like(input, outputs, lengths), state
        u, batched = self._time_major(input)
        outputs, state = self._layers(u, hx if batched else _add_batch(hx), lengths)
        if not batched:
            return outputs[:, 0], self.state_type(*(s[:, 0] for s in state))
        return outputs.transpose(0, 1) if self.batch_first else outputs, state

    def trajectory(self, input: Tensor, hx: State | None = None, lengths: Int[Tensor, "batch"] | None = None) -> State:
        """Return every field of every layer's state at all steps: (layers * directions, time, batch, hidden).

        Runs as `forward` does, without dropout between the layers; `batch_first` and unbatched input as there.
        """
        u, batched = self._time_major(input)
        initial = self._initial(hx if batched else _add_batch(hx), u, lengths)
        seen: list[State] = []
        for layer in range(self.num_layers):
            runs = [
                self._cell(i).trajectory(u, initial[i], lengths, reverse=bool(k))[0] for k, i in self._directions(layer)
            ]
            seen += runs
            u = torch.cat([run[0] for run in runs], dim=-1)
        stacked = (torch.stack(field) for field in zip(*seen))
        if not batched:
            return self.state_type(*(s[:, :, 0] for s in stacked))
        return self.state_type(*(s.transpose(1, 2) if self.batch_first else s for s in stacked))

    def _layers(self, u: Tensor, hx: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        initial = self._initial(hx, u, lengths)
        final: list[State] = []
        for layer in range(self.num_layers):
            if layer > 0:
                u = self._drop(u)
            outputs = []
            for k, i in self._directions(layer):
                out, state = self._cell(i).sequence(u, initial[i], lengths, reverse=bool(k))
                outputs.append(out)
                final.append(state)
            u = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
        return u, self.state_type(*(torch.stack(field) for field in zip(*final)))

    def _directions(self, layer: int) -> list[tuple[int, int]]:
        count = 2 if self.bidirectional else 1
        return [(k, layer * count + k) for k in range(count)]

    def _drop(self, u: Tensor) -> Tensor:
        if not self.training or self.dropout == 0.0:
            return u
        if not self.shared_dropout:
            return nn.functional.dropout(u, self.dropout)
        keep = 1.0 - self.dropout
        return u * (torch.empty_like(u[:1]).bernoulli_(keep) / keep)

    # --- what comes in --------------------------------------------------------------------------------------------

    def _time_major(self, input: Tensor) -> tuple[Tensor, bool]:
        if not isinstance(input, Tensor):
            raise TypeError(
                f"`input` of {self._name} must be a tensor or a PackedSequence; got {type(input).__name__}."
            )
        batched = input.dim() == 3
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            axes = f"(batch, time, {self.input_size})" if self.batch_first else f"(time, batch, {self.input_size})"
            raise ValueError(
                f"`input` of {self._name} must have shape {axes}, or (time, {self.input_size}) unbatched; "
                f"got {tuple(input.shape)}."
            )
        u = input[:, None] if not batched else input.transpose(0, 1) if self.batch_first else input
        if u.shape[0] == 0:
            raise ValueError(f"`input` of {self._name} must have at least one time step; got {tuple(input.shape)}.")
        return u, batched

    def _initial(self, hx: State | None, u: Tensor, lengths: Tensor | None) -> list[State | None]:
        steps, batch = u.shape[:2]
        self._check_kind("input", u)
        if lengths is not None:
            self._check_lengths(lengths, steps, batch)
        if hx is None:
            return [None] * len(self.cells)
        fields = self.state_type._fields
        expected = [(len(self.cells), batch, size) for size in self._cell(0).state_sizes]
        got = [tuple(s.shape) if isinstance(s, Tensor) else type(s).__name__ for s in hx]
        if got != expected:
            raise ValueError(f"`hx` {fields} of {self._name} must have shapes {expected}; got {got}.")
        for field in hx:
            self._check_kind("hx", field)
        return [self.state_type(*(s[i] for s in hx)) for i in range(len(self.cells))]

    def _check_kind(self, name: str, given: Tensor) -> None:
        """Refuse another type or device than the weights'; under autocast torch converts the type."""
        weight = next(self._cell(0).parameters())
        if given.device == weight.device and (
            given.dtype == weight.dtype or torch.is_autocast_enabled(given.device.type)
        ):
            return
        ours, theirs = ((str(t.device), t.dtype) for t in (weight, given))
        raise ValueError(
            f"`{name}` of {self._name} must be {ours[1]} on {ours[0]}, as its weights; got {theirs[1]} on {theirs[0]}. "
            f"Call .to{ours} on it, or .to{theirs} on the layer."
        )

    def _check_lengths(self, lengths: Tensor, steps: int, batch: int) -> None:
        if not isinstance(lengths, Tensor):
            raise TypeError(
                f"`lengths` of {self._name} must be a 1-D tensor of {batch} integers; got {type(lengths).__name__}."
            )
        whole = not (lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool)
        if not whole or tuple(lengths.shape) != (batch,):
            raise ValueError(
                f"`lengths` of {self._name} must be a 1-D tensor of {batch} integers; "
                f"got {lengths.dtype} of shape {tuple(lengths.shape)}."
            )
        wrong = ((lengths < 1) | (lengths > steps)).nonzero()
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(
                f"`lengths` of {self._name} must lie in [1, {steps}], the padded time axis; "
                f"got {int(lengths[row])} in row {row}."
            )

    # --- what users of nn.LSTM expect ------------------------------------------------------------------------------

    def flatten_parameters(self) -> None:
        """Do nothing: here so that code written for nn.LSTM runs unchanged."""

    def reset_parameters(self) -> None:
        """Draw all initial weights anew."""
        for cell in self.cells:
            cell.reset_parameters()  # type: ignore[operator]

    def extra_repr(self) -> str:
        """Show the sizes as nn.LSTM does."""
        text = f"{self.input_size}, {self.hidden_size}"
        for name, default in (
            ("num_layers", 1),
            ("bias", True),
            ("batch_first", False),
            ("dropout", 0.0),
            ("bidirectional", False),
        ):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text


class LEM(Recurrent):
    """Long Expressive Memory with the arguments, shapes and returns of nn.LSTM: change one word and run.

    Returns `(outputs, (y_n, z_n))` where nn.LSTM returns `(output, (h_n, c_n))`. It takes a padded tensor, with
    `lengths=` where rows differ, a PackedSequence (and returns one), or an unbatched sequence.

    Args:
        input_size: the number of input channels.
        hidden_size: the number of units of each layer and direction.
        num_layers: how many layers are stacked.
        bias: whether the affine maps have biases.
        batch_first: whether input and outputs are (batch, time, channels).
        dropout: the probability of dropping a layer's output on its way to the next layer.
        bidirectional: whether a second set of cells runs backwards in time.
        dt: the largest time step, in (0, 2]; 1 for short sequences, smaller for long ones.
        single_scale: fix both gates to `dt` (no gate parameters).
        clip: the interval (low, high) to which both gates are clipped.
        t_max: initialise by the chrono rule for memories of up to `t_max` steps.
        initial_dt: where both gates start, below `dt`; dt / 2 where not given.
        two_biases: train the biases as the authors' module does, with two per affine map.
        state_dropout: dropout of y where it enters the gates and z, one mask per sequence.
        learn_initial_state: make the state before the first step a parameter.
        shared_dropout: draw one mask per sequence for the dropout between layers too.
        backend: "auto", "native" (the fused CPU kernel or an error) or "loop"; see `LEMCell`.
        memory: what the kernel keeps for the backward pass; see `LEMCell`.
        device: where the parameters live.
        dtype: the type of the parameters.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        dt: float = 1.0,
        single_scale: bool = False,
        clip: tuple[float, float] | None = None,
        t_max: float | None = None,
        initial_dt: float | None = None,
        state_dropout: float = 0.0,
        learn_initial_state: bool = False,
        two_biases: bool = False,
        shared_dropout: bool = False,
        backend: str = "auto",
        memory: str | int = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            "lem",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            shared_dropout=shared_dropout,
            dt=dt,
            single_scale=single_scale,
            clip=clip,
            t_max=t_max,
            initial_dt=initial_dt,
            state_dropout=state_dropout,
            learn_initial_state=learn_initial_state,
            two_biases=two_biases,
            backend=backend,
            memory=memory,
            device=device,
            dtype=dtype,
        )

    @classmethod
    def from_official(cls, state_dict: dict[str, Tensor], dt: float = 1.0, batch_first: bool = False) -> "LEM":
        """Build a one-layer LEM from the weights of the authors' module (see `LEMCell.from_official`)."""
        cell = LEMCell.from_official(state_dict, dt)
        layer = cls(cell.input_size, cell.hidden_size, batch_first=batch_first, dt=dt)
        layer.cells[0] = cell
        return layer


def _add_batch(hx: State | None) -> State | None:
    return None if hx is None else tuple(s[:, None] for s in hx)


def _pack_like(packed: PackedSequence, outputs: Float[Tensor, "time batch output"], lengths: Tensor) -> PackedSequence:
    order = packed.sorted_indices
    if order is not None:
        outputs, lengths = outputs.index_select(1, order), lengths.index_select(0, order.to(lengths.device))
    data = pack_padded_sequence(outputs, lengths).data
    return PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
