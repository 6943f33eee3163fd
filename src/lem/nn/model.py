"""Models: an encoder, recurrent layers and a readout."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lem.nn.cells import Cell, State
from lem.nn.recurrent import Recurrent
from lem.shapes import Float, Int


class SequenceModel(nn.Module):
    """Recurrent layers between an optional embedding and a linear readout.

    Called with time-major input; returns `(prediction, state)`, where the state continues the sequence.

    Args:
        cell: a name in `lem.nn.cells.CELLS`.
        input_size: the channels of the input, or the number of symbols with `symbols`.
        hidden_size: the number of units of each layer.
        output_size: the numbers the readout gives: classes or targets.
        num_layers: how many layers are stacked.
        bidirectional: whether each layer also runs backwards.
        dropout: the probability of dropping a layer's output on its way to the next layer.
        shared_dropout: draw one dropout mask per sequence instead of one per step.
        every_step: read out every step, instead of only after the last.
        pool: what the readout reads: the "last" output, or "both" the last one and the mean of all so far, which the
            returned state carries along.
        symbols: embed integer input.
        embedding_size: the width of the embedding; the hidden size by default.
        tied: use the embedding's matrix as the readout's weight.
        input_dropout: dropout of the layers' input, after the embedding.
        output_dropout: dropout of what the readout reads.
        conv_channels: put a convolution over time with this many channels, and a ReLU, before the layers; with the cell
            "lstm" and `bidirectional` this is the BiLSTM with 1-d convolution of the paper's EigenWorms table.
        conv_kernel: the number of steps the convolution sees.
        conv_stride: the number of steps between two of its outputs.
        layer_options: options of the cells of each layer, one mapping per layer, over the common ones.
        readout_init: "kaiming" (the authors: normal weights, std sqrt(2 / hidden)) or "torch" (nn.Linear's default).
        options: options of the cell; unknown ones are refused.

    Examples:
        >>> import torch
        >>> from lem.nn import SequenceModel
        >>> model = SequenceModel("lem", input_size=3, hidden_size=16, output_size=5)
        >>> prediction, state = model(torch.randn(100, 4, 3))
        >>> prediction.shape, model.count_parameters()["all"]
        (torch.Size([4, 5]), 1365)
    """

    def __init__(
        self,
        cell: str,
        input_size: int,
        hidden_size: int,
        output_size: int,
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        shared_dropout: bool = False,
        every_step: bool = False,
        pool: str = "last",
        symbols: bool = False,
        embedding_size: int | None = None,
        tied: bool = False,
        input_dropout: float = 0.0,
        output_dropout: float = 0.0,
        conv_channels: int | None = None,
        conv_kernel: int = 8,
        conv_stride: int = 1,
        layer_options: Sequence[Mapping[str, Any]] | None = None,
        readout_init: str = "kaiming",
        **options: Any,
    ) -> None:
        super().__init__()
        if pool not in ("last", "both"):
            raise ValueError(f"`pool` of SequenceModel must be 'last' or 'both'; got {pool!r}.")
        if readout_init not in ("kaiming", "torch"):
            raise ValueError(f"`readout_init` of SequenceModel must be 'kaiming' or 'torch'; got {readout_init!r}.")
        if not isinstance(output_size, int) or output_size < 1:
            raise ValueError(f"`output_size` of SequenceModel must be a positive integer; got {output_size!r}.")
        if embedding_size is not None and not symbols:
            raise ValueError(
                f"`embedding_size` of SequenceModel must be None if `symbols` is False; got {embedding_size}."
            )
        width = (embedding_size or hidden_size) if symbols else input_size
        self.input_size = input_size
        self.every_step = every_step
        self.pool = pool
        self.embedding = None
        if symbols:
            self.embedding = nn.Embedding(input_size, width)
            # Vectors of length one, so that a readout tied to them starts with small answers.
            nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.conv = None
        if conv_channels is not None:
            if every_step:
                raise ValueError(
                    "`conv_channels` of SequenceModel must be None if every step is read out: the convolution "
                    f"shortens time; got {conv_channels}."
                )
            self.conv = nn.Conv1d(width, conv_channels, conv_kernel, conv_stride)
            width = conv_channels
        self.input_dropout = nn.Dropout(input_dropout)
        self.output_dropout = nn.Dropout(output_dropout)
        self.recurrent = Recurrent(
            cell,
            width,
            hidden_size,
            num_layers,
            dropout=dropout,
            bidirectional=bidirectional,
            shared_dropout=shared_dropout,
            layer_options=layer_options,
            **options,
        )
        features = (
            (self.recurrent.proj_size or hidden_size) * (2 if bidirectional else 1) * (2 if pool == "both" else 1)
        )
        self.readout = nn.Linear(features, output_size)
        if readout_init == "kaiming":
            nn.init.kaiming_normal_(self.readout.weight)
        if tied:
            if self.embedding is None or (input_size, width) != (output_size, features):
                raise ValueError(
                    "`tied` of SequenceModel needs symbols as input and output and an embedding as wide as the "
                    f"readout's input; got input {input_size} x {width} and output {output_size} x {features}."
                )
            self.readout.weight = self.embedding.weight

    def forward(
        self,
        inputs: Tensor,
        state: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        elapsed: Float[Tensor, "time batch"] | None = None,
    ) -> tuple[Tensor, State]:
        """Return the prediction, at every step or after the last one, and the final state."""
        shown, state = self.features(inputs, state, lengths, self.every_step, elapsed)
        return self.readout(self.output_dropout(shown)), state

    def features(
        self,
        inputs: Tensor,
        state: State | None,
        lengths: Int[Tensor, "batch"] | None,
        every_step: bool,
        elapsed: Float[Tensor, "time batch"] | None = None,
    ) -> tuple[Tensor, State]:
        """Return what the readout reads, at every step or after the last one, and the final state.

        `elapsed` is the time since the previous observation, in units of the usual step; see `Recurrent.forward`.
        """
        if self.conv is not None and elapsed is not None:
            raise ValueError(
                "`elapsed` of a SequenceModel with a convolution must be None: its steps are not observations."
            )
        if self.conv is not None and state is not None:
            raise ValueError("`state` of a SequenceModel with a convolution must be None: it sees whole sequences.")
        u, lengths = self.encode(inputs, lengths)
        pooled: State | None = None
        if self.pool == "both" and state is not None:
            state, pooled = state[:-2], state[-2:]
        outputs, state = self.recurrent(self.input_dropout(u), state, lengths, elapsed)
        last = outputs if every_step else self._last(state)
        if self.pool == "last":
            return last, state
        steps, batch = outputs.shape[:2]
        total, count = pooled or (outputs.new_zeros(1, batch, outputs.shape[2]), outputs.new_zeros(1, batch, 1))
        seen = torch.full_like(count, steps) if lengths is None else lengths.to(count)[None, :, None]
        # Past a row's end the outputs are zero: its total stays, and its count is cut at its length.
        if every_step:
            totals = total + outputs.cumsum(0)
            counts = torch.arange(1, steps + 1, device=count.device, dtype=count.dtype)[:, None, None]
            mean, total = totals / (count + torch.minimum(counts, seen)), totals[-1:]
        else:
            total = total + outputs.sum(0, keepdim=True)
            mean = (total / (count + seen))[0]
        return torch.cat([last, mean], dim=-1), (*state, total, count + seen)

    def init_state(self, batch: int) -> State:
        """Return the state before the first step, as `forward` takes it."""
        fields = zip(*(cell.init_state(batch) for cell in self.cells))
        state = self.recurrent.state_type(*(torch.stack(field) for field in fields))
        if self.pool == "last":
            return state
        weight = self.readout.weight
        return (*state, weight.new_zeros(1, batch, weight.shape[1] // 2), weight.new_zeros(1, batch, 1))

    def encode(self, inputs: Tensor, lengths: Int[Tensor, "batch"] | None = None) -> tuple[Tensor, Tensor | None]:
        """Return what the layers read, and the lengths of its rows: the input, embedded and convolved if set."""
        u = inputs if self.embedding is None else self.embedding(inputs)
        return (u, lengths) if self.conv is None else self._convolve(self.conv, u, lengths)

    def _convolve(self, conv: nn.Conv1d, u: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Convolve over time; a row keeps the outputs that do not depend on its padding."""
        kernel, stride = conv.kernel_size[0], conv.stride[0]
        shortest = len(u) if lengths is None else int(lengths.min())
        if shortest < kernel:
            raise ValueError(
                f"`inputs` of a SequenceModel with a convolution over {kernel} steps must be as long; got {shortest}."
            )
        if lengths is not None:
            inside = torch.arange(len(u), device=u.device)[:, None] < lengths.to(u.device)
            u = u.masked_fill(~inside[:, :, None], 0.0)
            lengths = (lengths - kernel) // stride + 1
        return functional.relu(conv(u.permute(1, 2, 0))).permute(2, 0, 1), lengths

    def _last(self, state: State) -> Tensor:
        """Return what the top layer shows at the end of each row: in both directions if there are two."""
        top = state[0][-2:] if self.recurrent.bidirectional else state[0][-1:]
        return torch.cat(top.unbind(0), dim=-1)

    # --- what training asks of a model: passed on to the cells -----------------------------------------------------

    @property
    def cells(self) -> list[Cell]:
        """All cells of all layers."""
        return [cell for cell in self.recurrent.cells if isinstance(cell, Cell)]

    def param_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Return the optimiser's groups: the cells' own, and all else at the given rate."""
        groups = [group for cell in self.cells for group in cell.param_groups(learning_rate)]
        grouped = {id(p) for group in groups for p in group["params"]}
        rest = [p for p in self.parameters() if id(p) not in grouped]
        return [*groups, {"params": rest, "lr": learning_rate}]

    def penalty(self) -> Tensor | None:
        """Return the sum of what the cells add to the loss, or None."""
        terms = [term for cell in self.cells if (term := cell.penalty()) is not None]
        return torch.stack(terms).sum() if terms else None

    def after_update(self) -> None:
        """Let the cells restore their constraints after an optimiser step."""
        for cell in self.cells:
            cell.after_update()

    def count_parameters(self) -> dict[str, int]:
        """Count the parameters as the paper's tables do: of the cells, with the readout, and all there are."""
        cells = sum(p.numel() for p in self.recurrent.parameters())
        readout = sum(p.numel() for p in self.readout.parameters())
        return {
            "cell": cells,
            "cell_and_readout": cells + readout,
            "all": sum(p.numel() for p in self.parameters()),
        }
