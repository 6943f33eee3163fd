"""Long Expressive Memory: the layer, the models it is measured against, and what surrounds them."""

from lem.cells import CELLS, LEMCell
from lem.data import DataError
from lem.recurrent import LEM, Recurrent

__all__ = ["CELLS", "LEM", "DataError", "LEMCell", "Recurrent", "__version__"]
__version__ = "0.1.0"
