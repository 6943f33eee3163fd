"""`proj_size`, the paper's d_y below d_z: the shapes of nn.LSTM, and equation (3) with both widths."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from lem import LEM, LEMCell
from lem.nn.model import SequenceModel
from lem.nn.recurrent import Recurrent
from tests import paper
from tests.close import assert_close
from tests.nn.cells.weights import paper_weights

STEPS, BATCH, INPUT, HIDDEN, PROJ = 8, 3, 2, 7, 4
LENGTHS = torch.tensor([8, 5, 1])


def draw(*shape, seed=2):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_shapes_of_nn_lstm(num_layers, bidirectional, batch_first):
    options = {"num_layers": num_layers, "bidirectional": bidirectional, "batch_first": batch_first, "proj_size": PROJ}
    u = torch.randn(STEPS, BATCH, INPUT)
    ours, theirs = LEM(INPUT, HIDDEN, **options), nn.LSTM(INPUT, HIDDEN, **options)
    (out, (y, z)), (expected, (h, c)) = ours(u), theirs(u)
    assert (out.shape, y.shape, z.shape) == (expected.shape, h.shape, c.shape)
    again, _ = ours(u, (y[:, :STEPS], z[:, :STEPS]))
    assert again.shape == expected.shape
    alone, (y_1, z_1) = ours(u[:, 0])
    expected, (h_1, c_1) = theirs(u[:, 0])
    assert (alone.shape, y_1.shape, z_1.shape) == (expected.shape, h_1.shape, c_1.shape)


def test_the_attribute_is_there_always():
    assert LEM(2, 3).proj_size == 0
    assert LEM(2, 3, proj_size=0).proj_size == 0
    assert LEM(2, 3, 1, True, False, 0.0, False, 2).proj_size == 2  # the position it has in nn.LSTM
    assert LEMCell(2, 3, proj_size=1).proj_size == 1
    assert Recurrent("gru", 2, 3).proj_size == 0
    assert "proj_size=2" in repr(LEM(2, 3, proj_size=2))


@pytest.mark.parametrize("options", [{}, {"single_scale": True}, {"clip": (0.2, 0.6)}, {"bias": False}])
@pytest.mark.parametrize("backend", ["loop", "native"])
def test_equal_to_the_transcription(backend, options):
    torch.manual_seed(1)
    cell = LEMCell(INPUT, HIDDEN, proj_size=PROJ, dt=0.9, backend=backend, dtype=torch.float64, **options)
    u, state = draw(STEPS, BATCH, INPUT), cell.state_type(draw(BATCH, PROJ), draw(BATCH, HIDDEN, seed=3))
    outputs, final = cell.sequence(u, state, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        y, z = paper.lem(
            paper_weights(cell), u[:length, row].numpy(), state[0][row].numpy(), state[1][row].numpy(), cell.dt,
            cell.clip, cell.single_scale,
        )  # fmt: skip
        assert_close(outputs[:length, row], y, "float64")
        assert_close(final.z[row], z[-1], "float64")
        assert_close(final.y[row], y[-1], "float64")


class GateOfZAsCandidate(LEMCell):
    """Exchange the rows of W_1 and W_z: as long as each other, so that only the numbers can tell."""

    def project(self, u):
        a, b, c, d = super().project(u).split(self._rows, -1)
        return torch.cat([c, b, a, d], -1)


def test_swapped_rows_are_caught():
    torch.manual_seed(1)
    cell = LEMCell(INPUT, HIDDEN, proj_size=PROJ, dtype=torch.float64, backend="loop")
    u = draw(STEPS, 1, INPUT)
    expected, _ = paper.lem(paper_weights(cell), u[:, 0].numpy(), np.zeros(PROJ), np.zeros(HIDDEN), cell.dt)
    assert_close(cell.sequence(u)[0][:, 0], expected, "float64")
    cell.__class__ = GateOfZAsCandidate
    with pytest.raises(AssertionError):
        assert_close(cell.sequence(u)[0][:, 0], expected, "float64")


@pytest.mark.parametrize("backend", ["loop", "native"])
def test_gradients_by_finite_differences(backend):
    torch.manual_seed(1)
    cell = LEMCell(INPUT, 3, proj_size=2, backend=backend, dtype=torch.float64, learn_initial_state=True)
    u = draw(4, 2, INPUT).requires_grad_()
    names = dict(cell.named_parameters())

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def forward(self, u):
            outputs, final = self.cell.sequence(u)
            return outputs, *final

    def run(u, *weights):
        return torch.func.functional_call(Whole(), {f"cell.{k}": w for k, w in zip(names, weights)}, (u,))

    assert gradcheck(run, (u, *cell.parameters()))


def test_parameters_are_those_of_the_equation():
    d, p, m = HIDDEN, PROJ, INPUT
    count = sum(w.numel() for w in LEM(m, d, proj_size=p).parameters())
    assert count == (2 * d + 2 * p) * (m + 1) + (2 * d + p) * p + p * d
    assert sum(w.numel() for w in LEM(m, d).parameters()) == 4 * d * (m + d + 1)


def test_states_stay_bounded_by_one():
    cell = LEMCell(INPUT, HIDDEN, proj_size=PROJ, dtype=torch.float64)
    with torch.no_grad():
        for w in cell.parameters():
            w.mul_(30.0)
        outputs, final = cell.sequence(20.0 * draw(200, BATCH, INPUT))
    assert float(outputs.abs().max()) <= 1.0
    assert float(final.z.abs().max()) <= 1.0


def test_where_gates_start():
    cell = LEMCell(INPUT, HIDDEN, proj_size=PROJ, initial_dt=0.01)
    assert (cell.bias[: HIDDEN + PROJ] < -3.0).all()
    assert (cell.bias[HIDDEN + PROJ :] > -3.0).all()
    chrono = LEMCell(INPUT, HIDDEN, proj_size=PROJ, t_max=100.0)
    assert (chrono.bias[:HIDDEN] < 0.0).all()
    assert not chrono.bias[HIDDEN:].any()


def test_a_model_reads_the_projected_outputs():
    for pool in ("last", "both"):
        model = SequenceModel("lem", INPUT, HIDDEN, 3, proj_size=PROJ, num_layers=2, bidirectional=True, pool=pool)
        answers, state = model(torch.randn(STEPS, BATCH, INPUT))
        assert answers.shape == (BATCH, 3)
        assert model(torch.randn(STEPS, BATCH, INPUT), state)[0].shape == (BATCH, 3)


@pytest.mark.parametrize("proj_size", [-1, HIDDEN, HIDDEN + 1, 1.5, True])
def test_what_is_refused(proj_size):
    with pytest.raises(ValueError, match=r"^proj_size (should be|has to be)"):
        LEM(INPUT, HIDDEN, proj_size=proj_size)


def test_other_cells_have_none():
    with pytest.raises(TypeError, match="`proj_size` is not an option of cell 'gru'"):
        Recurrent("gru", INPUT, HIDDEN, proj_size=PROJ)
