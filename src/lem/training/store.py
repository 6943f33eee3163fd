"""Where a run keeps its checkpoints: the interface that `fit` uses, and a store in memory."""

from typing import Any, Protocol

from torch import Tensor


class Store(Protocol):
    """Where a run keeps its checkpoints and the records of its evaluations.

    Examples:
        >>> from lem.training.store import Memory, Store
        >>> store: Store = Memory()
        >>> store.load() is None  # nothing to continue
        True
    """

    def save(self, state: dict[str, Any]) -> None:
        """Keep the state of the run as the newest checkpoint."""
        ...

    def save_best(self, weights: dict[str, Tensor]) -> None:
        """Keep the weights of the best validation epoch."""
        ...

    def record(self, record: dict[str, Any]) -> None:
        """Keep the record of one evaluation; the checkpoint that follows holds it as well."""
        ...

    def load(self) -> dict[str, Any] | None:
        """Return the newest readable checkpoint, or None."""
        ...


class Memory:
    """A store in memory, with which a later call of `fit` continues the run.

    Attributes:
        state: the newest checkpoint, or None.
        best: the weights of the best validation epoch, or None.

    Examples:
        >>> import torch
        >>> from lem.nn import SequenceModel
        >>> from lem.training.data import ArraySplit
        >>> from lem.training.loop import fit
        >>> from lem.training.store import Memory
        >>> split = ArraySplit(torch.randn(40, 30, 3), torch.arange(40) % 2)
        >>> model = SequenceModel("lem", input_size=3, hidden_size=8, output_size=2)
        >>> goal = {"loss": "cross_entropy", "metric": "accuracy", "batch_size": 10, "learning_rate": 0.01}
        >>> store = Memory()
        >>> stopped = fit(model, split, split, **goal, epochs=3, store=store, should_stop=lambda: True)
        >>> fit(model, split, split, **goal, epochs=3, store=store).epoch  # continues
        3
    """

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = None
        self.best: dict[str, Tensor] | None = None

    def save(self, state: dict[str, Any]) -> None:
        """Keep a copy of the state."""
        self.state = _copy(state)

    def save_best(self, weights: dict[str, Tensor]) -> None:
        """Keep a copy of the best weights."""
        self.best = _copy(weights)

    def record(self, record: dict[str, Any]) -> None:
        """Keep nothing: the state holds all records."""

    def load(self) -> dict[str, Any] | None:
        """Return a copy of the state, or None."""
        return _copy(self.state)


def _copy(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return {key: _copy(value) for key, value in tree.items()}
    return [_copy(value) for value in tree] if isinstance(tree, list | tuple) else tree
