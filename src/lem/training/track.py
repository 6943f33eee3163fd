"""A run's curves for TensorBoard, for those who watch many runs there; `metrics.jsonl` is written always."""

from collections.abc import Callable
from pathlib import Path

from lem.extras import extra
from lem.training.loop import Event


def tensorboard(folder: Path) -> Callable[[Event], None]:
    """Return what `fit` takes as `report`: it writes the records of all evaluations to a TensorBoard folder."""
    extra("tensorboard", "TensorBoard curves need")
    from torch.utils.tensorboard.writer import SummaryWriter

    writer = SummaryWriter(str(folder))

    def tell(event: Event) -> None:
        if event.record is not None:
            for name in ("loss", "valid", "best", "learning_rate"):
                if event.record[name] is not None:
                    writer.add_scalar(name, event.record[name], event.record["updates"])
            writer.flush()

    return tell
