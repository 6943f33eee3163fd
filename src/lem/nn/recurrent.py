"""Layers: a cell run over time, stacked, in one or both directions. `LEM` is a drop-in replacement for `nn.LSTM`."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lem.nn.cells import CELLS, Cell, LEMCell, State
from lem.nn.cells.errors import InputError
from lem.nn.cells.timing import check_elapsed, check_resets
from lem.nn.like_lstm import LikeLSTM, dropout_rate, projection, size, switch
from lem.shapes import Float, Int
from lem.spelling import nearest

Sequences = TypeVar("Sequences", Tensor, PackedSequence)


def make_cell(cell: str | type[Cell], input_size: int, hidden_size: int, **options: Any) -> Cell:
    """Build a cell from its registered name or its class; raise with the closest match if a name is unknown."""
    if isinstance(cell, type) and issubclass(cell, Cell):
        build, title = cell, cell.__name__
    elif isinstance(cell, str) and cell in CELLS:
        build, title = CELLS[cell], f"cell {cell!r}"  # type: ignore[assignment]
    else:
        known = ", ".join(sorted(CELLS))
        raise ValueError(f"`cell` must be a Cell subclass or one of {known}; got {cell!r}.{nearest(str(cell), CELLS)}")
    names = [p for p in inspect.signature(build).parameters if p not in ("input_size", "hidden_size")]
    for option in options:
        if option not in names:
            raise TypeError(
                f"`{option}` is not an option of {title}. Its options are {', '.join(names)}.{nearest(option, names)}"
            )
    return build(input_size, hidden_size, **options)


class Recurrent(LikeLSTM):
    """Any registered cell as a layer with the arguments, shapes and returns of nn.LSTM.

    Returns `(outputs, state)`: the outputs of the last layer at all steps, (time, batch, directions * hidden), and the
    final state, a NamedTuple whose fields are (layers * directions, batch, hidden). With `proj_size`, the outputs and
    the first field of the state have that width per direction.

    Args:
        cell: a name in `lem.nn.cells.CELLS`, or a `Cell` subclass.
        input_size: the number of input channels.
        hidden_size: the number of units of each layer and direction.
        num_layers: how many layers are stacked.
        bias: whether the cell has biases.
        batch_first: whether input and outputs are (batch, time, channels).
        dropout: the probability of dropping a layer's output on its way to the next layer.
        bidirectional: whether a second set of cells runs backwards in time.
        proj_size: the width of each direction's outputs, below `hidden_size`, for cells that have it (LEM); 0 means
            `hidden_size`.
        shared_dropout: draw one dropout mask per sequence instead of one per step.
        layer_options: options of the cells of each layer, one mapping per layer, over the common ones.
        options: options of the cell; unknown ones are refused.

    Examples:
        >>> import torch
        >>> from lem import Recurrent
        >>> layer = Recurrent("cornn", input_size=3, hidden_size=16, bidirectional=True, dt=0.05)
        >>> outputs, state = layer(torch.randn(100, 4, 3))
        >>> outputs.shape, state._fields
        (torch.Size([100, 4, 32]), ('y', 'z'))
    """

    def __init__(
        self,
        cell: str | type[Cell],
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        shared_dropout: bool = False,
        layer_options: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        input_size, hidden_size = (
            size(self._name, name, n) for name, n in (("input_size", input_size), ("hidden_size", hidden_size))
        )
        num_layers = size(self._name, "num_layers", num_layers)
        proj_size = projection(self._name, proj_size, hidden_size)
        self.dropout = dropout_rate(self._name, dropout, num_layers)
        entries = -1 if not isinstance(layer_options, Sequence) else len(layer_options)
        if layer_options is not None and entries != num_layers:
            raise ValueError(
                f"`layer_options` of {self._name} must have one entry for each of {num_layers} layers; "
                f"got {layer_options if entries < 0 else entries}."
            )
        if not switch(self._name, "bias", bias):
            options["bias"] = False
        if proj_size:
            options["proj_size"] = proj_size
        each = [{**options, **own} for own in layer_options or [{}] * num_layers]
        self.cell = cell
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = switch(self._name, "batch_first", batch_first)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self.shared_dropout = shared_dropout
        directions = 2 if bidirectional else 1
        self.cells = nn.ModuleList(
            make_cell(
                cell, input_size if layer == 0 else directions * (proj_size or hidden_size), hidden_size, **each[layer]
            )
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
        self,
        input: Sequences,
        hx: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        elapsed: Tensor | PackedSequence | None = None,
        resets: Tensor | PackedSequence | None = None,
    ) -> tuple[Sequences, State]:
        """Run over a padded tensor, with `lengths` if rows differ, over an unbatched one or a PackedSequence.

        `elapsed` and `resets` have one value for each step and row, in the layout of the input without its channels:
        (time, batch), (batch, time) with `batch_first`, (time,) unbatched, or packed like a packed input.

        Args:
            input: the sequences.
            hx: the state before the first step of each layer and direction; the cells' own if not given.
            lengths: the steps of each row.
            elapsed: the time from the previous observation to each one, positive, in units of the usual step. The
                first observation has none before it: give 1. The reverse direction takes the gap after each
                observation, and 1 at a row's end. For cells with a time step, LEM among them (with dt <= 1).
            resets: True where a new piece begins. The state restarts there from zero or the learned initial state,
                never from `hx`, and no gradient crosses; the reverse direction restarts before the last step of the
                piece that ends there.
        """
        if isinstance(input, PackedSequence):
            if lengths is not None:
                raise ValueError(f"`lengths` of {self._name} must be None for a PackedSequence, which has its own.")
            padded, lengths = pad_packed_sequence(input)
            timing = {
                "elapsed": self._padded("elapsed", elapsed, input),
                "resets": self._padded("resets", resets, input),
            }
            outputs, state = self._layers(padded, hx, lengths, timing)
            return _pack_like(input, outputs, lengths), state
        if not isinstance(input, Tensor):
            leaf = self.traced_as_leaf(input, hx, lengths, elapsed, resets)
            if leaf is not None:
                return leaf
        u, batched = self._time_major(input)
        timing = {
            "elapsed": self._timing("elapsed", elapsed, batched),
            "resets": self._timing("resets", resets, batched),
        }
        outputs, state = self._layers(u, hx if batched else _add_batch(hx), lengths, timing)
        if not batched:
            return outputs[:, 0], self.state_type(*(s[:, 0] for s in state))
        return outputs.transpose(0, 1) if self.batch_first else outputs, state

    def trajectory(
        self,
        input: Tensor,
        hx: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        elapsed: Tensor | None = None,
        resets: Tensor | None = None,
    ) -> State:
        """Return every field of every layer's state at all steps: (layers * directions, time, batch, hidden).

        Runs as `forward` does, without dropout between the layers; `batch_first` and unbatched input as there. With
        `proj_size`, the first field is that wide.
        """
        u, batched = self._time_major(input)
        timing = {
            "elapsed": self._timing("elapsed", elapsed, batched),
            "resets": self._timing("resets", resets, batched),
        }
        initial = self._initial(hx if batched else _add_batch(hx), u, lengths, timing)
        seen: list[State] = []
        for layer in range(self.num_layers):
            runs = [
                self._cell(i).trajectory(u, initial[i], lengths, bool(k), **timing)[0]
                for k, i in self._directions(layer)
            ]
            seen += runs
            u = torch.cat([run[0] for run in runs], dim=-1)
        stacked = (torch.stack(field) for field in zip(*seen))
        if not batched:
            return self.state_type(*(s[:, :, 0] for s in stacked))
        return self.state_type(*(s.transpose(1, 2) if self.batch_first else s for s in stacked))

    def backend_for(self, input: Tensor) -> tuple[str, str]:
        """Return the backend that input like this would run on, and how it runs or why no kernel can run it.

        If the cells of the layer run on different backends, the answer is "mixed" with a line for each.
        """
        u, _ = self._time_major(input)
        self._check_kind("input", u)
        found = []
        for i, cell in enumerate(self.cells):
            assert isinstance(cell, Cell)
            like = u if i < self._per_layer else u.new_zeros(1).expand(*u.shape[:2], cell.input_size)
            found.append(cell.backend_for(like))
        if len(set(found)) == 1:
            return found[0]
        return "mixed", "; ".join(f"cells[{i}]: {name} ({why})" for i, (name, why) in enumerate(found))

    def _layers(
        self, u: Tensor, hx: State | None, lengths: Tensor | None, timing: dict[str, Tensor | None]
    ) -> tuple[Tensor, State]:
        initial = self._initial(hx, u, lengths, timing)
        cells = list(self.cells)  # the many times faster way to reach each
        final: list[State] = []
        for layer in range(self.num_layers):
            if layer > 0:
                u = self._drop(u)
            outputs = []
            for k, i in self._directions(layer):
                out, state = cells[i](u, initial[i], lengths, bool(k), **timing)
                outputs.append(out)
                final.append(state)
            u = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
        return u, cells[0].state_type(*(torch.stack(field) for field in zip(*final)))  # type: ignore[operator]

    @property
    def _per_layer(self) -> int:
        return 2 if self.bidirectional else 1

    def _directions(self, layer: int) -> list[tuple[int, int]]:
        return [(k, layer * self._per_layer + k) for k in range(self._per_layer)]

    def _drop(self, u: Tensor) -> Tensor:
        if not self.training or self.dropout == 0.0:
            return u
        if not self.shared_dropout:
            return nn.functional.dropout(u, self.dropout)
        return u * nn.functional.dropout(torch.ones_like(u[:1]), self.dropout)

    # --- what comes in --------------------------------------------------------------------------------------------

    def _time_major(self, input: Tensor) -> tuple[Tensor, bool]:
        if not isinstance(input, Tensor):
            raise TypeError(
                f"`input` of {self._name} must be a tensor or a PackedSequence; got {type(input).__name__}."
            )
        batched = input.dim() == 3
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            axes = f"(batch, time, {self.input_size})" if self.batch_first else f"(time, batch, {self.input_size})"
            wrong = "Expected input to be 2D or 3D"
            if input.dim() in (2, 3):
                wrong = f"input.size(-1) must be equal to input_size. Expected {self.input_size}"
            raise InputError(
                f"{wrong}: `input` of {self._name} must have shape {axes}, or (time, {self.input_size}) unbatched; "
                f"got {tuple(input.shape)}."
            )
        u = input[:, None] if not batched else input.transpose(0, 1) if self.batch_first else input
        if u.shape[0] == 0:
            raise InputError(
                "Expected sequence length to be larger than 0 in RNN: "
                f"`input` of {self._name} must have at least one time step; got {tuple(input.shape)}."
            )
        return u, batched

    def _timing(self, name: str, given: Any, batched: bool) -> Any:
        """Return `elapsed` or `resets` as (time, batch), whatever the layout of the input."""
        if not isinstance(given, Tensor):
            if given is not None:
                raise TypeError(f"`{name}` of {self._name} must be a tensor; got {type(given).__name__}.")
            return None
        if given.dim() != (2 if batched else 1):
            axes = "(time,)" if not batched else "(batch, time)" if self.batch_first else "(time, batch)"
            raise ValueError(f"`{name}` of {self._name} must have shape {axes}; got {tuple(given.shape)}.")
        return given[:, None] if not batched else given.T if self.batch_first else given

    def _padded(self, name: str, given: Any, packed: PackedSequence) -> Any:
        if given is None:
            return None
        if not isinstance(given, PackedSequence) or not torch.equal(given.batch_sizes, packed.batch_sizes):
            raise TypeError(f"`{name}` of {self._name} must be packed like the input, with the same lengths.")
        return pad_packed_sequence(given._replace(data=given.data.reshape(len(given.data))))[0]

    def _initial(
        self, hx: State | None, u: Tensor, lengths: Tensor | None, timing: dict[str, Tensor | None]
    ) -> list[State | None]:
        steps, batch = u.shape[:2]
        elapsed, resets = timing["elapsed"], timing["resets"]
        self._check_kind("input", u)
        if lengths is not None:
            self._check_lengths(lengths, steps, batch)
        if elapsed is not None:
            if (reason := self._cell(0).refuse_elapsed()) is not None:
                raise ValueError(f"`elapsed` of {self._name} must be None: {reason}.")
            check_elapsed(self._name, elapsed, steps, batch, lengths)
            self._check_kind("elapsed", elapsed)
        if resets is not None:
            check_resets(self._name, resets, steps, batch, lengths)
            if resets.device != u.device:
                raise ValueError(f"`resets` of {self._name} must be on {u.device}; got {resets.device}.")
        if hx is None:
            return [None] * len(self.cells)
        fields = self.state_type._fields
        expected = [(len(self.cells), batch, size) for size in self._cell(0).state_sizes]
        got = [tuple(s.shape) if isinstance(s, Tensor) else type(s).__name__ for s in hx]
        if got != expected:
            raise InputError(
                f"Expected hidden state of other sizes: `hx` {fields} of {self._name} must have shapes {expected}; "
                f"got {got}."
            )
        for field in hx:
            self._check_kind("hx", field)
        return [self.state_type(*(s[i] for s in hx)) for i in range(len(self.cells))]

    def _check_kind(self, name: str, given: Tensor) -> None:
        """Refuse another type or device than the weights'; under autocast torch converts the type."""
        weight = next(iter(self.cells)).any_parameter()  # type: ignore[operator]
        # Offloaded weights are on "meta" until a hook of the cell brings them.
        if (given.device == weight.device or weight.device.type == "meta") and (
            given.dtype == weight.dtype or torch.is_autocast_enabled(given.device.type)
        ):
            return
        ours, theirs = ((str(t.device), t.dtype) for t in (weight, given))
        if given.dtype != weight.dtype:
            wrong = (
                f"RNN input dtype ({theirs[1]}) does not match weight dtype ({ours[1]}). "
                f"Convert input: input.to({ours[1]}), or convert model: model.to({theirs[1]})"
            )
        else:
            other = "parameter" if name == "input" else "hidden"
            wrong = f"Input and {other} tensors are not at the same device"
        raise InputError(
            f"{wrong}. `{name}` of {self._name} must be {ours[1]} on {ours[0]}, as its weights; "
            f"got {theirs[1]} on {theirs[0]}. Call .to{ours} on it, or .to{theirs} on the layer."
        )

    def _check_lengths(self, lengths: Tensor, steps: int, batch: int) -> None:
        if not isinstance(lengths, Tensor):
            raise TypeError(
                f"`lengths` of {self._name} must be a 1-D tensor of {batch} integers; got {type(lengths).__name__}."
            )
        # torch cannot compare the wider unsigned types.
        whole = lengths.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
        if not whole or tuple(lengths.shape) != (batch,):
            raise ValueError(
                f"`lengths` of {self._name} must be a 1-D tensor of {batch} integers, such as int64; "
                f"got {lengths.dtype} of shape {tuple(lengths.shape)}."
            )
        if lengths.device.type != "cpu" or torch.compiler.is_compiling():
            return  # To look at their values, the host would have to wait for the device.
        wrong = ((lengths < 1) | (lengths > steps)).nonzero()
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(
                f"`lengths` of {self._name} must lie in [1, {steps}], the padded time axis; "
                f"got {int(lengths[row])} in row {row}."
            )

    # --- what users of nn.LSTM expect ------------------------------------------------------------------------------

    def reset_parameters(self) -> None:
        """Draw all initial weights again."""
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
            ("proj_size", 0),
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
        proj_size: the width of y and of the outputs, below `hidden_size`; 0 means `hidden_size`. z always has
            `hidden_size` units.
        dt: the largest time step, in (0, 2]; 1 for short sequences, smaller for long ones.
        single_scale: fix both gates to `dt` (no gate parameters).
        clip: the interval (low, high) to which both gates are clipped.
        t_max: initialise by the chrono rule for memories of up to `t_max` steps.
        initial_dt: where both gates start, below `dt`; dt / 2 where not given.
        two_biases: train the biases as the authors' module does, with two per affine map.
        state_dropout: dropout of y where it enters the gates and z, one mask per sequence.
        learn_initial_state: make the state before the first step a parameter.
        shared_dropout: draw one mask per sequence for the dropout between layers too.
        init: how the weights are drawn, "uniform" or "language"; see `LEMCell`.
        backend: "auto", "native" (the C++ kernel), "triton" (the GPU kernel) or "loop"; see `LEMCell`.
        memory: what the kernel keeps for the backward pass; see `LEMCell`.
        precision: the type of the operands of the kernel's matrix products; see `LEMCell`.
        device: where the parameters live.
        dtype: the type of the parameters.

    Examples:
        >>> import torch
        >>> from lem import LEM
        >>> layer = LEM(input_size=3, hidden_size=16, num_layers=2, batch_first=True)
        >>> outputs, (y_n, z_n) = layer(torch.randn(4, 100, 3))
        >>> outputs.shape, y_n.shape
        (torch.Size([4, 100, 16]), torch.Size([2, 4, 16]))
        >>> outputs, _ = layer(torch.randn(4, 100, 3), lengths=torch.tensor([100, 20, 50, 3]))  # rows of unequal length
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
        proj_size: int = 0,
        *,
        dt: float = 1.0,
        single_scale: bool = False,
        clip: tuple[float, float] | None = None,
        t_max: float | None = None,
        initial_dt: float | None = None,
        state_dropout: float = 0.0,
        learn_initial_state: bool = False,
        two_biases: bool = False,
        init: str = "uniform",
        shared_dropout: bool = False,
        backend: str = "auto",
        memory: str | int = "auto",
        precision: str = "auto",
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
            proj_size,
            shared_dropout=shared_dropout,
            dt=dt,
            single_scale=single_scale,
            clip=clip,
            t_max=t_max,
            initial_dt=initial_dt,
            state_dropout=state_dropout,
            learn_initial_state=learn_initial_state,
            two_biases=two_biases,
            init=init,
            backend=backend,
            memory=memory,
            precision=precision,
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
