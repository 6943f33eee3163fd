"""LEM in the LSTMModule of TorchRL: the steps at which episodes begin (`is_init`) restart the state in one call.

Runs with torchrl 0.14; it overrides a private method of that version. Sequences give the state after their last step
only; at the other steps it is zero.
"""

import torch
from torchrl.modules import LSTMModule


class LEMModule(LSTMModule):
    def __init__(self, layer, **keys):
        super().__init__(lstm=layer, **keys)
        self.recurrent_backend = "scan"  # pass on where episodes begin instead of cutting rows into episodes

    def _lstm_scan_with_resets(self, input, h, c, hx, is_init):
        outputs, last = self.lstm(input, hx, resets=is_init)
        ends = (s.transpose(0, 1).unsqueeze(1) for s in last)  # (batch, 1, layers, units)
        return outputs, *(torch.cat([torch.zeros_like(s[:, 1:]), end], 1) for s, end in zip((h, c), ends))
