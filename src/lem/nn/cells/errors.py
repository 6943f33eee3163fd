"""Exceptions that handlers written for nn.LSTM catch too, and handlers of ValueError as everywhere in this library.

Messages about the arguments that nn.LSTM has begin with the words by which programs recognise its errors.
"""


class InputError(ValueError, RuntimeError):
    """An input or a state does not fit the layer; nn.LSTM raises RuntimeError for some of these mistakes."""


class KindError(TypeError, ValueError):
    """An argument of a layer has the wrong type."""
