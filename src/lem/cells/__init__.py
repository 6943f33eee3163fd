"""All cells by name: one file a family, one line a cell."""

from collections.abc import Callable

from lem.cells.base import Cell, Hidden, State
from lem.cells.lem import LEMCell, LEMState

__all__ = ["CELLS", "Cell", "Hidden", "LEMCell", "LEMState", "State"]

CELLS: dict[str, Callable[..., Cell]] = {
    "lem": LEMCell,
}
