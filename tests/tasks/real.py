"""Where tests find the real data: in the folder LEM_DATA names, and nowhere else."""

import os

import pytest

from lem.tasks import SOURCES


def needs(name: str):
    """Mark a test that needs the data of a task; it is skipped, with the reason, where LEM_DATA does not hold it."""

    def mark(test):
        missing = not os.environ.get("LEM_DATA") or not SOURCES[name].present()
        return pytest.mark.data(pytest.mark.skipif(missing, reason=f"LEM_DATA does not hold the data of {name}")(test))

    return mark
