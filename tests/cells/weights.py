"""The weights of a LEMCell under the paper's names, as NumPy arrays."""

import numpy as np


def paper_weights(cell):
    names = ("z", "y") if cell.single_scale else ("1", "2", "z", "y")
    arrays = {key: value.detach().double().numpy() for key, value in cell.named_parameters()}
    d = cell.hidden_size
    found = {}
    for k, name in enumerate(names):
        rows = slice(k * d, (k + 1) * d)
        found["V" + name] = arrays["weight_u"][rows]
        found["b" + name] = arrays["bias"][rows] if "bias" in arrays else np.zeros(d)
        found["W" + name] = arrays["weight_y"][rows] if name != "y" else arrays["weight_z"]
    return found
