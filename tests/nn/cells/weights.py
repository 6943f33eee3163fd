"""The weights of a LEMCell under the paper's names, as NumPy arrays."""

import numpy as np


def paper_weights(cell):
    names = ("z", "y") if cell.single_scale else ("1", "2", "z", "y")
    arrays = {key: value.detach().double().numpy() for key, value in cell.named_parameters()}
    d_y, d_z = arrays["weight_z"].shape
    found, first = {}, 0
    for name in names:
        d = d_z if name in ("1", "z") else d_y
        rows = slice(first, first + d)
        first += d
        found["V" + name] = arrays["weight_u"][rows]
        found["b" + name] = arrays["bias"][rows] if "bias" in arrays else np.zeros(d)
        found["W" + name] = arrays["weight_y"][rows] if name != "y" else arrays["weight_z"]
    return found
