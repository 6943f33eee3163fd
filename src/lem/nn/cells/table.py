"""What each registered cell is, in one line: its equation, its number of parameters and where it was published.

`lem models` prints it. The formulas are Python, so that the tests can hold them against the cells: d hidden units, m
inputs, and the cells' own options by name.
"""

from typing import NamedTuple

from lem.nn.cells import CELLS


class Entry(NamedTuple):
    """One cell of the table."""

    equation: str
    parameters: str
    reference: str


_LEM = "Rusch, Mishra, Erichson, Mahoney, ICLR 2022"
_LSTM = "4*d**2 + 4*d*m + 4*d"
_RECURRENT_SKEW = "d*(d - 1)//2 + d*m + d"

TABLE: dict[str, Entry] = {
    "lem": Entry("z += dt_z (tanh(W_z y + V_z u + b_z) - z), y += dt_y (tanh(W_y z + V_y u + b_y) - y)", _LSTM, _LEM),
    "lem-chrono": Entry("lem; b_1 = -log U[1, t_max dt - 1], other biases 0", _LSTM, _LEM),
    "lem-single-scale": Entry("lem; dt_z = dt_y = dt", "2*d**2 + 2*d*m + 2*d", _LEM),
    "lem-clipped": Entry("lem; dt_z, dt_y clipped to [low, high]", _LSTM, _LEM),
    "lstm": Entry("c = f c + i tanh(W_g h + V_g u + b_g), h = o tanh(c)", _LSTM, "Hochreiter, Schmidhuber, 1997"),
    "chrono-lstm": Entry(
        "lstm; b_f = -b_i = log U[1, t_max - 1], other biases 0", _LSTM, "Tallec, Ollivier, ICLR 2018"
    ),
    "dt-lstm-v1": Entry("lstm; f and i times dt", _LSTM, _LEM),
    "dt-lstm-v2": Entry("lstm; f times 1 - dt, i times dt", _LSTM, _LEM),
    "gru": Entry("h = (1 - s) tanh(V_n u + b_n + r W_n h) + s h", "3*d**2 + 3*d*m + 3*d", "Cho et al., EMNLP 2014"),
    "rnn": Entry("h = tanh(W h + V u + b)", "d**2 + d*m + d", "Elman, 1990"),
    "antisymmetric": Entry(
        "h += epsilon tanh((W - W' - gamma I) h + V u + b)", _RECURRENT_SKEW, "Chang, Chen, Haber, Chi, ICLR 2019"
    ),
    "antisymmetric-gated": Entry(
        "h += epsilon sigmoid(K h + V_g u + b_g) tanh(K h + V_h u + b_h), K = W - W' - gamma I",
        "d*(d - 1)//2 + 2*d*m + 2*d",
        "Chang, Chen, Haber, Chi, ICLR 2019",
    ),
    "lipschitz": Entry(
        "h' = A h + tanh(W h + V u + b)",
        "2*d**2 + d*m + d",
        "Erichson, Azencot, Queiruga, Hodgkinson, Mahoney, ICLR 2021",
    ),
    "exprnn": Entry(
        "h = modrelu(exp(A - A') h + V u, b)", _RECURRENT_SKEW, "Lezcano-Casado, Martinez-Rubio, ICML 2019"
    ),
    "dtriv": Entry("h = modrelu(B exp(A - A') h + V u, b)", _RECURRENT_SKEW, "Lezcano-Casado, NeurIPS 2019"),
    "cornn": Entry(
        "z += dt (tanh(W_y y + W_z z + V u + b) - gamma y - epsilon z), y += dt z",
        "2*d**2 + d*m + d",
        "Rusch, Mishra, ICLR 2021",
    ),
    "unicornn": Entry(
        "z -= s (tanh(w y + V u + b) + alpha y), y += s z, s = dt sigmoid(c)", "d*m + 3*d", "Rusch, Mishra, ICML 2021"
    ),
    "indrnn": Entry("h = relu(w h + V u + b)", "d*m + 2*d", "Li, Li, Cook, Zhu, Gao, CVPR 2018"),
    "fastrnn": Entry(
        "h = sigmoid(beta) h + sigmoid(alpha) tanh(W h + V u + b)",
        "d**2 + d*m + d + 2",
        "Kusupati et al., NeurIPS 2018",
    ),
    "fastgrnn": Entry(
        "h = (sigmoid(zeta) (1 - g) + sigmoid(nu)) tanh(p + b_h) + g h, g = sigmoid(p + b_g), p = W h + V u",
        "d**2 + d*m + 2*d + 2",
        "Kusupati et al., NeurIPS 2018",
    ),
    "nnrnn": Entry(
        "h = modrelu(P (blockdiag(gamma Rot(theta)) + T) P' h + V u, b)",
        "d*(d - 1)//2 + d*(d - 2)//2 + d + d*m + d",
        "Kerg, Goyette et al., NeurIPS 2019",
    ),
    "tarnn": Entry(
        "s = (1 - alpha) s + alpha (relu(U_1 s + a) - s - h + q), K times; h = (1 - g) h + g s",
        "4*d**2 + 4*d*m + 2*d + iterations*length",
        "Kag, Saligrama, CVPR 2021",
    ),
    "skiplstm": Entry(
        "lstm where g = round(pending) = 1, no change where 0", f"{_LSTM} + d + 1", "Campos et al., ICLR 2018"
    ),
    "nrde": Entry(
        "dh/ds = F(h) log-signature of a window of the input",
        "d*(m + 2) + inner_size*(d + 1) + (layers - 1)*inner_size*(inner_size + 1) + d*entries*(inner_size + 1)",
        "Morrill, Salvi, Kidger, Foster, ICML 2021",
    ),
}


def rows() -> list[tuple[str, str, str, str, str]]:
    """Return name, equation, state, parameters and reference of every registered cell."""
    found = []
    for name, build in CELLS.items():
        entry = TABLE[name]
        state = ", ".join(build(1, 2).state_type._fields)
        formula = entry.parameters.replace("**2", "²").replace("//", "/").replace("*", " ")
        found.append((name, entry.equation, state, formula, entry.reference))
    return found
