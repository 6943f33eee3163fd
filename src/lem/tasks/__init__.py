"""All tasks by name: one file a task, one line here."""

from collections.abc import Callable

from lem.tasks.adding import adding
from lem.tasks.base import DataFacts, Task
from lem.tasks.eigenworms import SOURCE as EIGENWORMS
from lem.tasks.eigenworms import eigenworms
from lem.tasks.fetch import Source
from lem.tasks.fitzhugh_nagumo import fitzhugh_nagumo
from lem.tasks.google12 import SOURCE as SPEECH_COMMANDS
from lem.tasks.google12 import google12
from lem.tasks.heart_rate import ARCHIVE, RECORDED, heart_rate
from lem.tasks.long_pulse import long_pulse
from lem.tasks.mnist import SOURCE as MNIST
from lem.tasks.mnist import psmnist, smnist
from lem.tasks.ncifar10 import SOURCE as CIFAR10
from lem.tasks.ncifar10 import ncifar10
from lem.tasks.physionet2012 import SOURCE as PHYSIONET2012
from lem.tasks.physionet2012 import physionet2012
from lem.tasks.ptb import CHARACTERS, WORDS, ptb_char, ptb_word

__all__ = ["METRIC_BY_TASK", "SOURCES", "TASKS", "DataFacts", "Task"]

TASKS: dict[str, Callable[..., Task]] = {
    "adding": adding,
    "smnist": smnist,
    "psmnist": psmnist,
    "ncifar10": ncifar10,
    "eigenworms": eigenworms,
    "heart_rate": heart_rate,
    "fitzhugh_nagumo": fitzhugh_nagumo,
    "google12": google12,
    "ptb_char": ptb_char,
    "ptb_word": ptb_word,
    "long_pulse": long_pulse,
    "physionet2012": physionet2012,
}

METRIC_BY_TASK = {
    "adding": "mse",
    "smnist": "accuracy",
    "psmnist": "accuracy",
    "ncifar10": "accuracy",
    "eigenworms": "accuracy",
    "heart_rate": "rmse",
    "fitzhugh_nagumo": "rmse",
    "google12": "accuracy",
    "ptb_char": "bpc",
    "ptb_word": "perplexity",
    "long_pulse": "accuracy",
    "physionet2012": "log_loss",
}
"""The metric of each task, for a search that must know its direction before any data is read."""

SOURCES: dict[str, Source] = {
    "smnist": MNIST,
    "psmnist": MNIST,
    "ncifar10": CIFAR10,
    "eigenworms": EIGENWORMS,
    "heart_rate": ARCHIVE,
    "heart_rate_recordings": RECORDED,
    "google12": SPEECH_COMMANDS,
    "ptb_char": CHARACTERS,
    "ptb_word": WORDS,
    "long_pulse": RECORDED,
    "physionet2012": PHYSIONET2012,
}
"""What `lem fetch` can fetch: the data of a task, by the task's name; the heart rate's also from another source."""
