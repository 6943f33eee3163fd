"""What a task is: three splits and how answers are judged."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from lem.data import Split
from lem.metrics import METRICS, Metric


@dataclass(frozen=True)
class Task:
    """A data set ready for a model.

    Attributes:
        train: what the model learns from.
        valid: what the best epoch is chosen on.
        test: a function that opens the test split: called once, after that choice.
        input_size: the channels of the input, or the number of symbols where `symbols` is set.
        output_size: the numbers the model answers with: classes or targets.
        loss: a name in `lem.metrics.LOSSES`.
        metric: a name in `lem.metrics.METRICS`.
        every_step: whether the model answers at every step or only after the last.
        symbols: whether the input is integers to be embedded.
        unit: what one unit of the targets is in the metric's, where a task hands out standardised targets.
        notes: what a report must say of the data, such as a shortened set or a duplicate found across splits.
    """

    train: Split
    valid: Split
    test: Callable[[], Split]
    input_size: int
    output_size: int
    loss: str
    metric: str
    every_step: bool = False
    symbols: bool = False
    unit: float = 1.0
    notes: tuple[str, ...] = ()

    @property
    def judge(self) -> Metric:
        """The metric, in the task's own unit."""
        metric, unit = METRICS[self.metric], self.unit
        if unit == 1.0:
            return metric
        return replace(metric, each=lambda answer, target: metric.each(unit * answer, unit * target))
