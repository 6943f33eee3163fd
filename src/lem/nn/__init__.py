"""What a network is: cells, layers that run them over sequences, and models with a readout.

Importing it registers the torch operators of the kernels.
"""

from lem.nn.cells import CELLS, Cell, LEMCell
from lem.nn.model import SequenceModel
from lem.nn.recurrent import LEM, Recurrent

__all__ = ["CELLS", "LEM", "Cell", "LEMCell", "Recurrent", "SequenceModel"]
