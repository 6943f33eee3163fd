"""What programs written for nn.LSTM use of it besides the call: its attributes, its checks and its tracers."""

import numbers
import warnings
from typing import Any

from torch import Tensor, fx, nn

from lem.nn.cells.errors import InputError, KindError


def size(owner: str, name: str, value: object) -> int:
    """Return a size, which may be a NumPy integer, as an int; raise as nn.LSTM does."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise KindError(f"{name} should be of type int, got: {type(value).__name__} ({owner} got {value!r}).")
    if int(value) <= 0:
        raise ValueError(f"{name} must be greater than zero ({owner} got {value!r}).")
    return int(value)


def switch(owner: str, name: str, value: object) -> bool:
    """Return a value that must be True or False; raise as nn.LSTM does."""
    if not isinstance(value, bool):
        raise KindError(f"{name} should be of type bool, got: {type(value).__name__} ({owner} got {value!r}).")
    return value


def projection(owner: str, value: object, hidden_size: int) -> int:
    """Return `proj_size` as an int; raise as nn.LSTM does."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise KindError(f"proj_size should be of type int, got: {type(value).__name__} ({owner} got {value!r}).")
    if int(value) < 0:
        raise ValueError(f"proj_size should be a positive integer or zero to disable projections ({owner}: {value}).")
    if int(value) >= hidden_size:
        raise ValueError(f"proj_size has to be smaller than hidden_size ({owner} got {value} and {hidden_size}).")
    return int(value)


def dropout_rate(owner: str, value: object, num_layers: int) -> float:
    """Return `dropout` as a float; raise, or warn if there is no layer to drop from, as nn.LSTM does."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0.0 <= float(value) <= 1.0:
        raise ValueError(f"dropout should be a number in range [0, 1], the probability to drop ({owner}: {value!r}).")
    if float(value) > 0.0 and num_layers == 1:
        warnings.warn(
            f"dropout acts between layers, so that dropout={value} of {owner} has no effect with num_layers=1.",
            stacklevel=5,
        )
    return float(value)


class LikeLSTM(nn.Module):
    """The part of nn.LSTM's interface that is the same for every recurrent layer."""

    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    bidirectional: bool
    proj_size: int
    cells: nn.ModuleList

    @property
    def mode(self) -> str:
        """The kind of layer: "LEM", where nn.LSTM has "LSTM"."""
        return type(self).__name__

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """The parameters of each layer and direction, one list for each."""
        return [list(cell.parameters()) for cell in self.cells]

    def flatten_parameters(self) -> None:
        """Do nothing: here so that code written for nn.LSTM runs unchanged."""

    # --- checks ---------------------------------------------------------------------------------------------------

    def check_input(self, input: Tensor, batch_sizes: Tensor | None) -> None:
        """Raise InputError if the input, or the data of a PackedSequence, has wrong axes or channels."""
        axes = 3 if batch_sizes is None else 2
        if input.dim() != axes:
            raise InputError(f"input must have {axes} dimensions, got {input.dim()}")
        if input.shape[-1] != self.input_size:
            raise InputError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.shape[-1]}"
            )

    def get_expected_hidden_size(self, input: Tensor, batch_sizes: Tensor | None) -> tuple[int, int, int]:
        """Return the shape of the first field of the state, which is the output's."""
        layers, batch, _ = self.get_expected_cell_size(input, batch_sizes)
        return layers, batch, self.proj_size or self.hidden_size

    def get_expected_cell_size(self, input: Tensor, batch_sizes: Tensor | None) -> tuple[int, int, int]:
        """Return the shape of the fields of the state that `proj_size` does not concern."""
        batch = int(batch_sizes[0]) if batch_sizes is not None else input.shape[0 if self.batch_first else 1]
        return len(self.cells), batch, self.hidden_size

    def check_hidden_size(
        self, hx: Tensor, expected_hidden_size: tuple[int, int, int], msg: str = "Expected hidden size {}, got {}"
    ) -> None:
        """Raise InputError if a field of the state has another shape."""
        if tuple(hx.shape) != tuple(expected_hidden_size):
            raise InputError(msg.format(expected_hidden_size, list(hx.shape)))

    def check_forward_args(self, input: Tensor, hidden: tuple[Tensor, ...], batch_sizes: Tensor | None) -> None:
        """Raise InputError if the input or the state has a wrong shape."""
        self.check_input(input, batch_sizes)
        sizes = self.get_expected_hidden_size(input, batch_sizes), self.get_expected_cell_size(input, batch_sizes)
        for k, field in enumerate(hidden):
            self.check_hidden_size(field, sizes[min(k, 1)], f"Expected hidden[{k}] size {{}}, got {{}}")

    def permute_hidden(self, hx: tuple[Tensor, ...], permutation: Tensor | None) -> tuple[Tensor, ...]:
        """Return the state with its rows in another order."""
        if permutation is None:
            return hx
        fields = (field.index_select(1, permutation) for field in hx)
        return type(hx)(*fields) if hasattr(hx, "_fields") else tuple(fields)

    # --- tracers --------------------------------------------------------------------------------------------------

    def traced_as_leaf(self, *arguments: Any) -> Any:
        """Return the node of a call in a `torch.fx` graph if an argument is one's Proxy, else None.

        `torch.fx` traces into modules that it does not know; nn.LSTM is a leaf for it.
        """
        proxy = next((a for a in arguments if isinstance(a, fx.Proxy)), None)
        if proxy is None:
            return None
        while arguments[-1] is None:
            arguments = arguments[:-1]
        tracer: Any = proxy.tracer
        return tracer.create_proxy("call_module", tracer.path_of_module(self), arguments, {})

    @property
    def qconfig(self) -> Any:
        """Not there: the layer has no quantized form."""
        raise AttributeError(f"{type(self).__name__} has no `qconfig`: it cannot be quantized.")

    @qconfig.setter
    def qconfig(self, value: Any) -> None:
        name = type(self).__name__
        if value is not None:
            raise NotImplementedError(
                f"{name} cannot be quantized by torch.ao.quantization: there is no int8 version of it. Leave {name} "
                "out of the modules to quantize; precision='bfloat16' makes it faster on processors with AVX512-BF16."
            )
        warnings.warn(f"{name} stays in floating point: torch.ao.quantization has no int8 version of it.", stacklevel=3)

    @qconfig.deleter
    def qconfig(self) -> None:
        pass
