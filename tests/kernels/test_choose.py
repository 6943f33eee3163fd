"""The one place that chooses a kernel: order, refusals, overrides, warnings, and that layers call cells as modules."""

import warnings

import pytest
import torch
from torch import nn

from lem import LEM, LEMCell, Recurrent
from lem.kernels import LoopWarning, choose, loop_only
from lem.kernels.choose import Call, Kernel, Reason
from lem.nn.cells import CELLS, Cell
from lem.nn.cells.base import Hidden
from tests.close import assert_close

U = torch.zeros(3, 2, 4)


class Recorder(Kernel):
    """A kernel that returns ones, unless it has a reason not to."""

    computes = ("step",)

    def __init__(self, backend="native", reason=None):
        self.backend, self.reason = backend, reason

    def refuse(self, call):
        return self.reason

    def run(self, call):
        return torch.ones(*call.u.shape[:2], 5), tuple(torch.ones(call.u.shape[1], 5) for _ in call.state)

    def describe(self, call):
        return "a recorder"


class Sum(Cell):
    """h = h + the sum of the inputs."""

    def __init__(self, input_size, hidden_size, backend="auto"):
        super().__init__(input_size, hidden_size, backend)
        self.weight = nn.Parameter(torch.zeros(1))

    def project(self, u):
        return u.sum(-1, keepdim=True).expand(*u.shape[:-1], self.hidden_size)

    def step(self, x, state, *prepared):
        return Hidden(state[0] + x)


def with_kernels(*kernels, backend="auto"):
    return type("Listed", (Sum,), {"kernels": kernels})(4, 5, backend)


def test_the_first_kernel_that_does_not_refuse_runs():
    refusing = Recorder("triton", Reason("device", "it is not there"))
    cell = with_kernels(refusing, Recorder("native"), Recorder("torch"))
    assert cell.backend_for(U) == ("native", "a recorder")
    assert_close(cell.sequence(U)[0], torch.ones(3, 2, 5), "exact")


def test_the_loop_runs_if_all_refuse_and_the_first_reason_is_given():
    second = Reason("b", "second", "Do this.")
    cell = with_kernels(Recorder("triton", Reason("a", "first")), Recorder("native", second))
    assert cell.backend_for(U) == ("loop", "first")
    assert_close(cell.sequence(U)[0], torch.zeros(3, 2, 5), "exact")


def test_a_kernel_that_leaves_the_call_to_a_faster_one_gives_no_reason():
    cell = with_kernels(
        Recorder("torch", Reason(choose.NOT_PREFERRED, "small")), Recorder("native", Reason("x", "real"))
    )
    assert cell.backend_for(U) == ("loop", "real")


@pytest.mark.parametrize("backend", ["native", "triton", "torch"])
def test_a_named_backend_runs_or_raises_with_the_reason(backend):
    cell = with_kernels(Recorder("native"), Recorder("torch"), backend=backend)
    if backend == "triton":
        with pytest.raises(RuntimeError, match="backend='triton' cannot run this call: Listed has no kernel for"):
            cell.sequence(U)
    else:
        assert cell.backend_for(U)[0] == backend
    with loop_only(), pytest.raises(RuntimeError, match="loop_only"):
        cell.sequence(U)


def test_a_subclass_that_overrides_the_equation_loses_the_kernel():
    base = type("Listed", (Sum,), {"kernels": (Recorder(),)})

    class Other(base):
        def step(self, x, state, *prepared):
            return Hidden(state[0] + 2.0)

    class Same(base):
        def init_state(self, batch):
            return Hidden(torch.full((batch, 5), 7.0))

    assert Same(4, 5).backend_for(U)[0] == "native"
    assert Other(4, 5).backend_for(U) == ("loop", "Other overrides `step`")
    assert_close(Other(4, 5).sequence(U)[1][0], torch.full((2, 5), 6.0), "exact")


@pytest.mark.parametrize("name", sorted(CELLS))
def test_every_cell_takes_a_backend(name):
    options = {"inner_size": 3} if name == "nrde" else {}
    cell = CELLS[name](4, 6, backend="loop", **options)
    assert cell.backend_for(U) == ("loop", "backend='loop'")
    with pytest.raises(ValueError, match=r"`backend` of .* must be one of 'auto', .*; got 'fast'"):
        CELLS[name](4, 6, backend="fast", **options)


def test_a_layer_answers_for_all_its_cells():
    layer = LEM(4, 5, 2, bidirectional=True, batch_first=True)
    name, how = layer.backend_for(U)
    assert name == "native"
    assert "threads" in how
    layer.cells[3].backend = "loop"
    name, how = layer.backend_for(U)
    assert name == "mixed"
    assert "cells[3]: loop (backend='loop')" in how


def test_one_warning_for_each_reason_that_the_user_can_change():
    choose.forget_warnings()
    layer = Recurrent("cornn", 4, 5).to(torch.float16)  # LEM's kernel converts
    with pytest.warns(
        LoopWarning, match=r"does not support torch\.float16\. Convert the layer and its input to float32"
    ):
        layer(U.to(torch.float16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(U.to(torch.float16))  # the same reason again
        Recurrent("cornn", 4, 5, backend="loop").to(torch.float16)(U.to(torch.float16))
        with loop_only():
            LEM(4, 5)(U)
        Recurrent("skiplstm", 4, 5)(U)  # has no kernel, and there is nothing the user could do
    choose.forget_warnings()


def test_layers_call_their_cells_as_modules_once_a_sequence():
    layer, seen = LEM(4, 5, 2, bidirectional=True), []
    for cell in layer.cells:
        cell.register_forward_hook(lambda module, given, result: seen.append((module, len(result[0]))))
    layer(U)
    assert [module for module, _ in seen] == list(layer.cells)
    assert {steps for _, steps in seen} == {3}


def test_a_cell_is_a_step_or_a_sequence_by_the_shape_of_its_input():
    cell = LEMCell(4, 5)
    outputs, state = cell(U)
    assert outputs.shape == (3, 2, 5)
    y, _ = cell(U[0])
    assert_close(outputs[0], y, "float32")
    assert_close(cell(U, reverse=True)[1].y, state.y, "float32")
    with pytest.raises(ValueError, match="`lengths`, `resets` and `reverse` of LEMCell need a sequence"):
        cell(U[0], reverse=True)
    with pytest.raises(ValueError, match=r"or \(time, batch, 4\) for a sequence; got \(1, 3, 2, 4\)"):
        cell(U[None])


def test_a_cell_subclass_makes_a_layer():
    outputs, state = Recurrent(Sum, 4, 5, 2)(torch.ones(3, 2, 4))
    assert outputs.shape == (3, 2, 5)
    assert state[0].shape == (2, 2, 5)
    with pytest.raises(TypeError, match=r"`dt` is not an option of Sum. Its options are backend"):
        Recurrent(Sum, 4, 5, dt=0.5)


def test_lem_and_its_cell_take_the_same_options():
    import inspect

    layer_only = {"num_layers", "batch_first", "dropout", "bidirectional", "shared_dropout"}
    assert set(inspect.signature(LEM).parameters) - layer_only == set(inspect.signature(LEMCell).parameters)


def test_a_call_holds_what_kernels_need():
    assert Call._fields[:5] == ("cell", "u", "state", "lengths", "reverse")
