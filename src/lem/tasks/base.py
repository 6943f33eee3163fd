"""What a task is: three splits and how answers are judged."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lem.training.data import Split
from lem.training.metrics import METRICS, Metric


@dataclass(frozen=True)
class DataFacts:
    """Facts about a task's data that a report states next to a score; None if a fact does not apply.

    Attributes:
        split: the name of the split, where the task offers several.
        fold: the number of the split among `folds`, from 0.
        folds: the number of splits of this kind.
        sizes: the number of samples for training, validation and test.
        subset_of: the published sizes, if the files hold only a part of the published set.
        samples: the number of samples in all splits.
        distinct: how many of them differ from each other.
        test_samples: the number of test samples.
        test_seen: how many of those are also in training or validation.
        source: the name of the source, where the task offers several.
        rebuilt: whether the data was rebuilt from raw recordings, since the published files were not used.
        shared_recordings: whether training and test share recordings.
        target_mean: the mean that was subtracted from the targets.
        target_scale: the standard deviation by which the targets were divided.
        cut_silence: the clips of silence added to training, validation and test.
        noise: "shared" if all samples have the same noise, "fresh" if each has its own.
        checksum: of the source files, where none is published.

    Examples:
        >>> from lem.tasks import DataFacts
        >>> DataFacts(split="random", sizes=(70, 15, 15)).known()
        {'split': 'random', 'sizes': [70, 15, 15]}
    """

    split: str | None = None
    fold: int | None = None
    folds: int | None = None
    sizes: tuple[int, ...] | None = None
    subset_of: tuple[int, ...] | None = None
    samples: int | None = None
    distinct: int | None = None
    test_samples: int | None = None
    test_seen: int | None = None
    source: str | None = None
    rebuilt: bool | None = None
    shared_recordings: bool | None = None
    target_mean: float | None = None
    target_scale: float | None = None
    cut_silence: tuple[int, ...] | None = None
    noise: str | None = None
    checksum: str | None = None

    def known(self) -> dict[str, Any]:
        """Return the facts that apply, as plain values for JSON."""
        found = {key: value for key, value in asdict(self).items() if value is not None}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}


@dataclass(frozen=True)
class Task:
    """A data set ready for a model.

    Attributes:
        train: what the model learns from.
        valid: what the best epoch is chosen on.
        test: a function that opens the test split: called once, after that choice.
        input_size: the channels of the input, or the number of symbols where `symbols` is set.
        output_size: the numbers the model answers with: classes or targets.
        loss: a name in `lem.training.metrics.LOSSES`.
        metric: a name in `lem.training.metrics.METRICS`.
        every_step: whether the model answers at every step or only after the last.
        symbols: whether the input is integers to be embedded.
        unit: what one unit of the targets is in the metric's, where a task hands out standardised targets.
        facts: what a report must state about the data, such as a shortened set or duplicates across splits.

    Examples:
        >>> from lem.tasks import TASKS
        >>> task = TASKS["adding"](length=50)
        >>> task.loss, task.metric, task.input_size
        ('mse', 'mse', 2)
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
    facts: DataFacts = field(default_factory=DataFacts)

    @property
    def judge(self) -> Metric:
        """The metric, in the task's own unit."""
        metric, unit = METRICS[self.metric], self.unit
        if unit == 1.0:
            return metric
        return replace(metric, each=lambda answer, target: metric.each(unit * answer, unit * target))
