"""Hooks on the cells, which own the weights: offloading, sharding, checkpointing and data parallelism."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lem import LEM, LEMCell
from tests.close import assert_close

M, D = 3, 5


def gradients(model, u, run=None):
    model.zero_grad()
    outputs, state = (run or model)(u)
    sum(x.square().sum() for x in (outputs, *state)).backward()
    return [outputs.detach(), *(p.grad.clone() for p in model.parameters())]


def test_hooks_of_every_cell_fire_forwards_and_backwards():
    model, seen = LEM(M, D, 2, bidirectional=True), []
    for i, cell in enumerate(model.cells):
        cell.register_forward_pre_hook(lambda module, given, i=i: seen.append(("before", i)))
        cell.register_forward_hook(lambda module, given, result, i=i: seen.append(("after", i)))
        cell.register_full_backward_hook(lambda module, given, result, i=i: seen.append(("backward", i)))
    model(torch.randn(4, 2, M, requires_grad=True))[0].sum().backward()
    assert seen[:8] == [(when, i) for i in range(4) for when in ("before", "after")]
    assert sorted(seen[8:]) == [("backward", i) for i in range(4)]


def test_weights_that_are_offloaded_until_their_cell_runs():
    """What accelerate's cpu_offload does: parameters are on the meta device but while their module runs."""
    model, u = nn.Sequential(LEM(M, D, 2, bidirectional=True)), torch.randn(6, 2, M)
    expected, _ = model(u)
    most = [0]

    def offload(cell):
        kept = {name: p.detach().clone() for name, p in cell.named_parameters()}

        def place(device):
            for name, value in kept.items():
                setattr(cell, name, nn.Parameter(value.to(device), requires_grad=False))

        def here(module, given):
            place("cpu")
            most[0] = max(most[0], sum(p.device.type == "cpu" for p in model.parameters()))

        cell.register_forward_pre_hook(here)
        cell.register_forward_hook(lambda module, given, result: place("meta"))
        place("meta")

    for module in model.modules():
        if isinstance(module, LEMCell):
            offload(module)
    found, state = model(u)
    assert_close(found, expected, "exact")
    assert most[0] == 4  # the parameters of one cell at a time
    assert_close(
        model(
            u,
        )[0],
        expected,
        "exact",
    )
    assert state.y.shape == (4, 2, D)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant):
    model, u = LEM(M, D, 2, bidirectional=True), torch.randn(6, 2, M, requires_grad=True)
    expected = gradients(model, u, lambda u: (model(u)[0], ()))
    # A reentrant checkpoint sees the gradients of tensors, not those inside a tuple.
    found = gradients(model, u, lambda u: (checkpoint(lambda u: model(u)[0], u, use_reentrant=reentrant), ()))
    for a, e in zip(found, expected):
        assert_close(a, e, "exact")


SHARDED = """
import copy
import sys

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from lem import LEM

distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meeting", rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
torch.manual_seed(0)
plain, u = nn.Sequential(LEM(3, 5, 2, bidirectional=True)), torch.randn(6, 2, 3)


def shard_cells(model):
    for cell in model[0].cells:
        fully_shard(cell, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def shard_layers(model):
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(model):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        model(u)[0].square().sum().backward()
        optimiser.step()
    return [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in model.parameters()]


expected = train(copy.deepcopy(plain))
for wrap in (shard_cells, shard_layers, DistributedDataParallel):
    for a, e in zip(train(wrap(copy.deepcopy(plain))), expected):
        torch.testing.assert_close(a, e, rtol=1e-6, atol=1e-6)
distributed.destroy_process_group()
"""


def test_sharded_and_data_parallel_training(tmp_path):
    done = subprocess.run([sys.executable, "-c", SHARDED, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_copy_has_hooks_of_its_own():
    model, seen = LEM(M, D), []
    model.cells[0].register_forward_hook(lambda *_: seen.append(1))
    copy.deepcopy(model)(torch.randn(4, 2, M))
    assert seen == [1]
