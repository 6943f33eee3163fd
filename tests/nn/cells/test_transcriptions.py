"""Each model's step against its plain transcription in tests/paper.py, with random parameters, in float64."""

import numpy as np
import pytest
import torch

from lem.nn.cells import CoRNNCell, LSTMCell
from lem.nn.recurrent import make_cell
from tests import paper
from tests.close import assert_close

D, M, STEPS = 6, 3, 12


def blocks(array, names):
    return dict(zip(names, np.split(array, len(names))))


def gates(arrays, order):
    """Return W, V, b of each gate under the paper's names; a second bias adds."""
    found = {}
    bias = arrays["bias"] + arrays.get("bias_h", 0.0)
    for letter, array in (("W", arrays["weight_h"]), ("V", arrays["weight_u"]), ("b", bias)):
        found |= {letter + gate: part for gate, part in blocks(array, order).items()}
    return found


def plain(arrays, **renamed):
    return {name: arrays[key] for name, key in renamed.items()}


def upper(free, d=D):
    """Return the strictly upper triangular matrix that holds `free` row by row."""
    matrix, entries = np.zeros((d, d)), iter(free)
    for i in range(d):
        for j in range(i + 1, d):
            matrix[i, j] = next(entries)
    return matrix


def gru_weights(a):
    w = gates({key: value for key, value in a.items() if key != "bias_h"}, "rsn")
    if "bias_h" in a:
        r, s, n = np.split(a["bias_h"], 3)
        return w | {"br": w["br"] + r, "bs": w["bs"] + s, "bhn": n}
    return w | {"bhn": np.zeros(D)}


def antisymmetric_weights(a):
    parts = ["", "g"] if len(a["bias"]) == 2 * D else [""]
    inputs, biases = (
        blocks(a["weight_u"], ["V" + part for part in parts]),
        blocks(a["bias"], ["b" + part for part in parts]),
    )
    return {"W": upper(a["skew"]), **inputs, **biases}


def tarnn_weights(a):
    return {
        **blocks(a["weight_u"], ["Wg", "W1", "W2", "B1"]),
        **blocks(a["weight_h"], ["Ug", "U2", "B2"]),
        **blocks(a["bias"], ["bg", "b1"]),
        "U1": a["weight_s"],
        "alpha": a["alpha"],
    }


def exprnn_weights(a):
    base = a.get("base", np.eye(D))
    return {"A": upper(a["skew"]), "B": base, **plain(a, V="weight_u", b="bias")}


def nnrnn_weights(a):
    return {"A": upper(a["skew"]), **plain(a, V="weight_u", b="bias", gamma="gamma", theta="theta", T="upper")}


# name, options of the cell, how its arrays get the paper's names, the transcription and the options of that.
CASES = [
    ("lstm", {}, lambda a: gates(a, "ifgo"), paper.lstm_step, {}),
    ("lstm", {"two_biases": True}, lambda a: gates(a, "ifgo"), paper.lstm_step, {}),
    ("chrono-lstm", {"t_max": 50.0}, lambda a: gates(a, "ifgo"), paper.lstm_step, {}),
    ("dt-lstm-v1", {"dt": 0.3}, lambda a: gates(a, "ifgo"), paper.lstm_step, {"forget_scale": 0.3, "input_scale": 0.3}),
    ("dt-lstm-v2", {"dt": 0.3}, lambda a: gates(a, "ifgo"), paper.lstm_step, {"forget_scale": 0.7, "input_scale": 0.3}),
    ("gru", {}, gru_weights, paper.gru_step, {}),
    ("gru", {"two_biases": True}, gru_weights, paper.gru_step, {}),
    ("rnn", {}, lambda a: plain(a, W="weight_h", V="weight_u", b="bias"), paper.rnn_step, {}),
    (
        "antisymmetric",
        {"epsilon": 0.2, "gamma": 0.05},
        antisymmetric_weights,
        paper.antisymmetric_step,
        {"epsilon": 0.2, "gamma": 0.05, "gated": False},
    ),
    (
        "antisymmetric-gated",
        {"epsilon": 0.2, "gamma": 0.05},
        antisymmetric_weights,
        paper.antisymmetric_step,
        {"epsilon": 0.2, "gamma": 0.05, "gated": True},
    ),
    *(
        (
            "lipschitz",
            {"beta": 0.6, "gamma": 0.02, "epsilon": 0.3, "solver": solver},
            lambda a: plain(a, MA="weight_a", MW="weight_w", V="weight_u", b="bias"),
            paper.lipschitz_step,
            {"beta": 0.6, "gamma": 0.02, "epsilon": 0.3, "midpoint": solver == "midpoint"},
        )
        for solver in ("euler", "midpoint")
    ),
    ("exprnn", {"init": "henaff"}, exprnn_weights, paper.exprnn_step, {}),
    ("dtriv", {}, exprnn_weights, paper.exprnn_step, {}),
    ("nnrnn", {}, nnrnn_weights, paper.nnrnn_step, {}),
    (
        "cornn",
        {"dt": 0.2, "gamma": 3.0, "epsilon": 4.0},
        lambda a: plain(a, V="weight_u", Wy="weight_y", Wz="weight_z", b="bias"),
        paper.cornn_step,
        {"dt": 0.2, "gamma": 3.0, "epsilon": 4.0},
    ),
    *(
        (
            "unicornn",
            {"dt": 0.3, "alpha": 2.0, "reconstruct": reconstruct},
            lambda a: plain(a, V="weight_u", w="weight_y", c="scale", b="bias"),
            paper.unicornn_step,
            {"dt": 0.3, "alpha": 2.0},
        )
        for reconstruct in (False, True)
    ),
    ("indrnn", {}, lambda a: plain(a, V="weight_u", w="weight_h", b="bias"), paper.indrnn_step, {}),
    (
        "fastrnn",
        {},
        lambda a: plain(a, V="weight_u", W="weight_h", b="bias", alpha="alpha", beta="beta"),
        paper.fastrnn_step,
        {},
    ),
    (
        "fastgrnn",
        {},
        lambda a: plain(a, V="weight_u", W="weight_h", zeta="zeta", nu="nu") | blocks(a["bias"], ["bg", "bh"]),
        paper.fastgrnn_step,
        {},
    ),
    *(
        (
            "tarnn",
            {"iterations": 2, "length": 5, "gate_outside": outside},
            tarnn_weights,
            paper.tarnn_step,
            {"gate_outside": outside},
        )
        for outside in (True, False)
    ),
    (
        "skiplstm",
        {},
        lambda a: gates(a, "ifgo") | plain(a, wp="weight_gate", bp="bias_gate"),
        paper.skiplstm_step,
        {},
    ),
]
STARTS = {"tarnn": (np.zeros(D), None, 0), "skiplstm": (np.zeros(D), np.zeros(D), 1.0, 0.0, 0.0)}


def randomised(cell):
    """Add noise to every parameter, so that none is at a special value."""
    with torch.no_grad():
        for p in cell.parameters():
            p += 0.3 * torch.randn_like(p)
    return cell


def compare(cell, weights, step, options, start):
    u = torch.randn(STEPS, 1, M, dtype=torch.float64)
    arrays = {key: value.numpy() for key, value in cell.state_dict().items()}
    expected = paper.run(step, weights(arrays), u[:, 0].numpy(), start, **options)
    outputs, final = cell.sequence(u)
    assert_close(outputs[:, 0], expected[0], "float64")
    for got, want in zip(final, expected):
        if got.shape[1:] == want.shape[1:]:  # TARNN carries W_2 u where the transcription carries u
            assert_close(got[0], want[-1], "float64")


@pytest.mark.parametrize(
    ("name", "options", "weights", "step", "told"), CASES, ids=[f"{name} {options}" for name, options, *_ in CASES]
)
def test_a_step_is_its_transcription(name, options, weights, step, told):
    cell = randomised(make_cell(name, M, D, dtype=torch.float64, **options))
    start = STARTS.get(name, (np.zeros(D),) * len(cell.state_type._fields))
    compare(cell, weights, step, told, start)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(("window", "solver"), [(1, "rk4"), (4, "rk4"), (5, "midpoint")])
def test_nrde_is_its_transcription(depth, window, solver):
    options = {"depth": depth, "window": window, "solver": solver, "inner_size": 5, "layers": 2, "length": STEPS}
    cell = make_cell("nrde", M, D, dtype=torch.float64, **options)
    u = torch.randn(STEPS, 1, M, dtype=torch.float64)
    with torch.no_grad():
        weights = {
            "L": cell.start.weight.numpy(),
            "b": cell.start.bias.numpy(),
            "F": [(linear.weight.numpy(), linear.bias.numpy()) for linear in cell.field],
        }
    expected = paper.nrde(weights, u[:, 0].numpy(), window, depth, 1 / (STEPS - 1), solver == "midpoint")
    assert_close(cell.sequence(u)[0][:, 0], expected, "float64")


# --- broken twins, which the comparison must catch ---


class PositionFromTheOldVelocity(CoRNNCell):
    def pointwise(self, a, state, *rest):
        _, z = super().pointwise(a, state)
        return self.state_type(state[0] + self.dt * state[1], z)


class GatesSwapped(LSTMCell):
    def project(self, u):
        i, f, g, o = super().project(u).chunk(4, dim=-1)
        return torch.cat([f, i, g, o], dim=-1)

    kernels = ()


@pytest.mark.parametrize("twin", [PositionFromTheOldVelocity, GatesSwapped])
def test_a_broken_twin_is_caught(twin):
    name = "cornn" if twin is PositionFromTheOldVelocity else "lstm"
    _, options, weights, step, told = next(case for case in CASES if case[0] == name)
    cell = randomised(twin(M, D, dtype=torch.float64, **options))
    with pytest.raises(AssertionError, match="values differ"):
        compare(cell, weights, step, told, (np.zeros(D), np.zeros(D)))
