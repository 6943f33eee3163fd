"""All tasks by name: one file a task, one line here."""

from collections.abc import Callable

from lem.tasks.adding import adding
from lem.tasks.base import Task
from lem.tasks.fitzhugh_nagumo import fitzhugh_nagumo

__all__ = ["TASKS", "Task"]

TASKS: dict[str, Callable[..., Task]] = {
    "adding": adding,
    "fitzhugh_nagumo": fitzhugh_nagumo,
}
