"""All cells by name: one file a family, one line a cell."""

from collections.abc import Callable
from functools import partial

from lem.nn.cells.antisymmetric import AntisymmetricCell
from lem.nn.cells.base import Cell, Hidden, State
from lem.nn.cells.cornn import CoRNNCell, OscillatorState
from lem.nn.cells.exprnn import ExpRNNCell
from lem.nn.cells.fastrnn import FastGRNNCell, FastRNNCell
from lem.nn.cells.gru import GRUCell
from lem.nn.cells.indrnn import IndRNNCell
from lem.nn.cells.lem import LEMCell, LEMState
from lem.nn.cells.lipschitz import LipschitzCell
from lem.nn.cells.lstm import LSTMCell, LSTMState, dt_lstm_v1, dt_lstm_v2
from lem.nn.cells.nnrnn import NNRNNCell
from lem.nn.cells.nrde import NRDECell, NRDEState
from lem.nn.cells.rnn import RNNCell
from lem.nn.cells.skiplstm import SkipLSTMCell, SkipLSTMState
from lem.nn.cells.tarnn import TARNNCell, TARNNState
from lem.nn.cells.unicornn import UnICORNNCell

__all__ = [
    "CELLS",
    "AntisymmetricCell",
    "Cell",
    "CoRNNCell",
    "ExpRNNCell",
    "FastGRNNCell",
    "FastRNNCell",
    "GRUCell",
    "Hidden",
    "IndRNNCell",
    "LEMCell",
    "LEMState",
    "LSTMCell",
    "LSTMState",
    "LipschitzCell",
    "NNRNNCell",
    "NRDECell",
    "NRDEState",
    "OscillatorState",
    "RNNCell",
    "SkipLSTMCell",
    "SkipLSTMState",
    "State",
    "TARNNCell",
    "TARNNState",
    "UnICORNNCell",
]

CELLS: dict[str, Callable[..., Cell]] = {
    "lem": LEMCell,
    "lem-chrono": partial(LEMCell, t_max=1000.0),
    "lem-single-scale": partial(LEMCell, single_scale=True),
    "lem-clipped": partial(LEMCell, clip=(2**-7, 1.0)),
    "lstm": LSTMCell,
    "chrono-lstm": partial(LSTMCell, t_max=1000.0),
    "dt-lstm-v1": dt_lstm_v1,
    "dt-lstm-v2": dt_lstm_v2,
    "gru": GRUCell,
    "rnn": RNNCell,
    "antisymmetric": AntisymmetricCell,
    "antisymmetric-gated": partial(AntisymmetricCell, gated=True),
    "lipschitz": LipschitzCell,
    "exprnn": ExpRNNCell,
    "dtriv": partial(ExpRNNCell, dynamic=True),
    "cornn": CoRNNCell,
    "unicornn": UnICORNNCell,
    "indrnn": IndRNNCell,
    "fastrnn": FastRNNCell,
    "fastgrnn": FastGRNNCell,
    "nnrnn": NNRNNCell,
    "tarnn": TARNNCell,
    "skiplstm": SkipLSTMCell,
    "nrde": NRDECell,
}
