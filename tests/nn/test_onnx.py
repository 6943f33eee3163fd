"""ONNX files and programs of a module with a LEM inside: other lengths and batches, and no lem to run them."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils import _pytree

from lem import LEM, Recurrent
from lem.kernels import portable
from tests.close import assert_close

ROOT = Path(__file__).parents[2]

M, D = 3, 6
FREE = torch.export.Dim.DYNAMIC
BOTH = {0: FREE, 1: FREE}
SIZES = ((2, 7), (3, 12), (1, 1))  # batch, steps; the first are those of the export


class Plain(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.rnn = LEM(M, D, **options)

    def forward(self, x):
        return self.rnn(x)


class Everything(Plain):
    def forward(self, x, y, z, lengths, elapsed, resets):
        return self.rnn(x, (y, z), lengths, elapsed, resets)


class Lengths(Plain):
    def forward(self, x, lengths):
        outputs, (y, _) = self.rnn(x, lengths=lengths)
        return outputs, y


def series(batch, steps):
    return (torch.randn(steps, batch, M),)


def everything(batch, steps):
    lengths = torch.randint(1, steps + 1, (batch,))
    resets = (torch.rand(steps, batch) < 0.3) & (torch.arange(steps)[:, None] < lengths)
    state = torch.randn(2, batch, 4), torch.randn(2, batch, D)
    return *series(batch, steps), *state, lengths, torch.rand(steps, batch) + 0.5, resets


def ragged(batch, steps):
    return *series(batch, steps), torch.randint(1, steps + 1, (batch,))


def plain(**options):
    return Plain(**options), series, (BOTH,)


def other(cell):
    model = Plain()
    model.rnn = Recurrent(cell, M, D)
    return model, series, (BOTH,)


def every_argument():
    model = Everything(bidirectional=True, proj_size=4, clip=(0.1, 0.9), learn_initial_state=True)
    row = {1: FREE}
    return model, everything, (BOTH, row, row, {0: FREE}, BOTH, BOTH)


CASES = {
    "plain": plain,
    "every argument": every_argument,
    "single": lambda: plain(single_scale=True),
    "no bias": lambda: plain(bias=False, dt=0.3),
    "stacked": lambda: plain(num_layers=2, bidirectional=True, dropout=0.2, state_dropout=0.1),
    "loop": lambda: plain(backend="loop"),
    "chrono": lambda: plain(t_max=30.0, proj_size=2),
    "lengths": lambda: (Lengths(num_layers=2, bidirectional=True), ragged, (BOTH, {0: FREE})),
    **{cell: functools.partial(other, cell) for cell in ("gru", "lstm", "cornn", "unicornn")},
}


def check(name, folder):
    """Export for the first of SIZES; compare onnxruntime with torch, with the kernel, for all of them."""
    import onnxruntime

    torch.manual_seed(0)
    model, inputs, shapes = CASES[name]()
    model, path = model.eval(), f"{folder}/{name}.onnx"
    torch.onnx.export(model, inputs(*SIZES[0]), path, dynamo=True, dynamic_shapes=shapes, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch, steps in SIZES:
        given = inputs(batch, steps)
        feeds = {i.name: x.numpy() for i, x in zip(session.get_inputs(), given)}
        found = session.run(None, feeds)
        with torch.no_grad():
            expected = _pytree.tree_leaves(model(*given))
        assert len(found) == len(expected)
        for a, e in zip(found, expected):
            assert_close(a, e, "export")


def in_a_process(names, folder):
    """Check in a process of its own: the run-time check of shapes in the signatures cannot be traced."""
    for library in ("onnxruntime", "onnxscript"):
        pytest.importorskip(library, reason=f"{library} is not installed: pip install '.[export]'")
    program = f"from tests.nn.test_onnx import check\nfor name in {names!r}: check(name, {str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_users_module_has_a_free_time_axis_in_onnx(tmp_path):
    in_a_process(["every argument"], tmp_path)


@pytest.mark.slow
def test_variants_and_other_cells_in_onnx(tmp_path):
    in_a_process([name for name in CASES if name != "every argument"], tmp_path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_the_old_exporter_is_refused_in_words(tmp_path):
    with pytest.raises(RuntimeError, match=r"dynamo=False\) cannot export LEMCell.*dynamo=True"):
        torch.onnx.export(Plain().eval(), series(2, 7), tmp_path / "old.onnx", dynamo=False)


# --- programs ---------------------------------------------------------------------------------------------------------

ALONE = """
import sys

sys.modules["lem"] = None  # importing lem raises ImportError
import torch

try:
    import lem
except ImportError:
    pass
else:
    raise AssertionError("lem can be imported")
folder = sys.argv[1]
program = torch.export.load(f"{folder}/model.pt2").module()
cases = torch.load(f"{folder}/cases.pt", weights_only=True)
for inputs, (outputs, y) in cases:
    found = program(*inputs)
    torch.testing.assert_close(found[0], outputs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1], y, rtol=1e-5, atol=1e-5)
"""


WRITE = """
import sys

import torch

from lem.kernels import portable
from tests.nn.test_onnx import BOTH, FREE, SIZES, Lengths, ragged

torch.manual_seed(0)
folder = sys.argv[1]
model = Lengths(bidirectional=True).eval()
with torch.no_grad(), portable():
    program = torch.export.export(model, ragged(*SIZES[0]), dynamic_shapes=(BOTH, {0: FREE}))
targets = {str(node.target) for node in program.graph.nodes}
assert "scan" in targets and not any("lem" in target for target in targets), targets
torch.export.save(program, f"{folder}/model.pt2")
with torch.no_grad():
    cases = [(given, tuple(model(*given))) for given in (ragged(*sizes) for sizes in SIZES)]
    kernel = torch.export.export(model, ragged(*SIZES[0]), dynamic_shapes=(BOTH, {0: FREE}))
    for given, (outputs, y) in cases:
        torch.testing.assert_close(kernel.module()(*given), (outputs, y), rtol=0, atol=0)
torch.save(cases, f"{folder}/cases.pt")
assert "lem.sequence.default" in {str(node.target) for node in kernel.graph.nodes}
"""


def test_a_portable_program_runs_where_lem_cannot_be_imported(tmp_path):
    for program in (WRITE, ALONE):
        call = [sys.executable, "-c", program, str(tmp_path)]
        done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_portable_block_leaves_calls_alone():
    model, given = Plain().eval(), series(2, 7)
    with portable():
        assert model.rnn.backend_for(given[0])[0] == "native"
        inside = model(*given)[0]
    assert torch.equal(inside, model(*given)[0])
