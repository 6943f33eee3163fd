"""LEM in place of the LSTM of pytorch-forecasting, which accepts rows of length zero.

Runs with pytorch-forecasting 1.8. Assign it to `model.rnn` of `DeepAR`, or to `model.lstm_encoder` and
`model.lstm_decoder` of `TemporalFusionTransformer`, before training.
"""

import torch

from lem import LEM


class Layer(LEM):
    def forward(self, x, hx=None, lengths=None, enforce_sorted=True):
        if lengths is None:
            return super().forward(x, hx)
        outputs, state = super().forward(x, hx, lengths.clamp(min=1))
        initial = self.init_hidden_state(x) if hx is None else hx
        return outputs, self.handle_no_encoding(state, (lengths == 0)[None, :, None], initial)

    def handle_no_encoding(self, state, empty, initial):
        return tuple(torch.where(empty, first, last) for first, last in zip(initial, state))

    def init_hidden_state(self, x):
        rows = x.shape[0 if self.batch_first else 1]
        return tuple(x.new_zeros(len(self.cells), rows, self.hidden_size) for _ in range(2))

    def repeat_interleave(self, state, n):
        return tuple(field.repeat_interleave(n, 1) for field in state)
