"""The running mean of a model's weights, to be evaluated in their place."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Average:
    """The mean of the parameters over all calls of `add`; buffers stay as they are."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, model: nn.Module) -> None:
        """Take the parameters as they stand into the mean."""
        self.count += 1
        for name, parameter in model.named_parameters():
            if name in self.mean:
                self.mean[name].lerp_(parameter, 1.0 / self.count)
            else:
                self.mean[name] = parameter.detach().clone()

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Lend the model the mean as its weights; before the first `add` it keeps its own."""
        own = {name: parameter.data for name, parameter in model.named_parameters()}
        try:
            for name, parameter in model.named_parameters():
                parameter.data = self.mean.get(name, parameter.data)
            yield
        finally:
            for name, parameter in model.named_parameters():
                parameter.data = own[name]

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"count": self.count, "mean": self.mean}

    @torch.no_grad()
    def load(self, state: dict[str, Any], model: nn.Module) -> None:
        """Continue from a checkpoint, in memory laid out as `add` makes it: another alignment rounds differently."""
        own = dict(model.named_parameters())
        self.count = state["count"]
        self.mean = {name: torch.empty_like(own[name]).copy_(mean) for name, mean in state["mean"].items()}
