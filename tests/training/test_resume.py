"""A run continued from a checkpoint is the run that was interrupted, bit for bit, with every option of `fit`.

Checkpoints are read into memory that is not aligned as torch aligns it (28 bytes past a multiple of 64, as safetensors
may leave it): whoever continues to compute in that memory rounds differently.
"""

import inspect
import multiprocessing
import random
import time
from dataclasses import fields

import pytest
import torch

from lem.nn.model import SequenceModel
from lem.training.averaging import Average
from lem.training.checkpoint import load_tree, save_tree
from lem.training.data import ArraySplit, Batch
from lem.training.distributed import Processes
from lem.training.loop import fit
from lem.training.options import Options

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["lem.training.loop", "torch._dynamo", "tests.training.test_resume"])
COMMON = {"loss": "mse", "metric": "mse", "batch_size": 6, "epochs": 4, "learning_rate": 0.02, "seed": 3}
KINDS = {
    "averaging": {"average_from": 0},
    "averaging late": {"average_after": 1, "average_from": 2, "clip_norm": 0.5},
    "carried": {"carried": True},
    "carried, averaging": {"carried": True, "average_from": 1},
    "carried, truncation": {"carried": True, "truncate": 3},
    "carried, accumulation": {"carried": True, "accumulate": 3, "average_from": 0},
    "dropout": {"dropout": True, "schedule": "cosine"},
    "rmsprop": {"optimizer": "rmsprop", "weight_decay": 0.01},
    "sgd": {"optimizer": "sgd", "l2": 0.01},
    "subsample": {"subsample": 5, "average_from": 0},
}


class Streams:
    """Six parallel streams cut into windows: each batch continues the one before, but for the first."""

    windows, length = 4, 7

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(self.windows * self.length, 6, 3, generator=generator)
        self.targets = self.inputs.cumsum(0)[:, :, :1]

    def steps(self, batch_size):
        return self.windows

    def batch(self, step, batch_size, epoch=None, seed=0):
        here = slice(step * self.length, (step + 1) * self.length)
        return Batch(self.inputs[here], self.targets[here], carry=step > 0, every_step=True)


def misaligned(tree):
    """Copy every tensor to memory 28 bytes past a multiple of 64."""
    if isinstance(tree, torch.Tensor):
        room = torch.empty(64 * 2 + tree.numel() * tree.element_size(), dtype=torch.uint8)
        start = (28 - room.data_ptr()) % 64
        copy = room[start : start + tree.numel() * tree.element_size()].view(tree.dtype).view(tree.shape)
        return copy.copy_(tree)
    if isinstance(tree, dict):
        return {key: misaligned(value) for key, value in tree.items()}
    return [misaligned(value) for value in tree] if isinstance(tree, list | tuple) else tree


class Files:
    """A store in a folder, read into badly aligned memory."""

    def __init__(self, folder):
        self.path = folder / "last.ckpt"

    def save(self, state):
        save_tree(self.path, state)

    def save_best(self, weights):
        pass

    def record(self, record):
        pass

    def load(self):
        return misaligned(load_tree(self.path)) if self.path.is_file() else None


def trained(kind, store, should_stop=None, processes=None):
    """Train; return the bits of everything the last checkpoint holds but the times."""
    torch.set_num_threads(1)
    options = {**COMMON, **KINDS[kind]}
    carried, dropout = options.pop("carried", False), options.pop("dropout", False)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(18, 11, 3, generator=generator)
    data = Streams() if carried else ArraySplit(inputs, inputs.cumsum(1)[:, :, :1], every_step=True)
    torch.manual_seed(0)
    network = SequenceModel("lem", 3, 13, 1, every_step=True, input_dropout=0.3 if dropout else 0.0)
    processes = processes or Processes()
    fit(
        network,
        data,
        data,
        store=store,
        should_stop=should_stop,
        processes=processes,
        checkpoint_minutes=0.0,
        **options,
    )
    return without_times(load_tree(store.path))


def without_times(tree):
    if isinstance(tree, torch.Tensor):
        return tree.contiguous().view(torch.uint8).tolist() if tree.dim() else tree.item()
    if isinstance(tree, dict):
        return {key: without_times(value) for key, value in tree.items() if key != "seconds"}
    return [without_times(value) for value in tree] if isinstance(tree, list) else tree


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_continues_bit_for_bit(kind, tmp_path):
    whole = trained(kind, Files(tmp_path))
    for stop in (1, 4, 6, 9, 11):
        (tmp_path / str(stop)).mkdir()
        store, calls = Files(tmp_path / str(stop)), []
        trained(kind, store, lambda calls=calls, stop=stop: calls.append(0) or len(calls) == stop)
        assert load_tree(store.path)["progress"]["updates"] == stop
        torch.manual_seed(4321)
        assert trained(kind, store) == whole, f"stopped after {stop} updates"


def test_averages_left_in_badly_aligned_memory_are_noticed(tmp_path, monkeypatch):
    """The broken twin: the loaded mean is used where it lies, and the validation scores change in their last bits.

    On some processors rounding does not depend on the place in memory; there only the places tell the two apart.
    """

    def left(self, state, model):
        self.count, self.mean = state["count"], state["mean"]

    places = {}

    def continued(load, folder):
        """Return the runs that were stopped and continued with this `load`."""
        places[load] = set()

        def watched(self, state, model):
            load(self, state, model)
            places[load] |= {mean.data_ptr() % 64 for mean in self.mean.values()}

        monkeypatch.setattr(Average, "load", watched)
        for stop in (1, 4, 6, 9, 11):
            (folder / str(stop)).mkdir(parents=True)
            store, calls = Files(folder / str(stop)), []
            trained("averaging", store, lambda calls=calls, stop=stop: calls.append(0) or len(calls) == stop)
            yield trained("averaging", store)

    aligned = Average.load
    whole = trained("averaging", Files(tmp_path))
    assert all(run == whole for run in continued(aligned, tmp_path / "aligned"))
    differs = [run != whole for run in continued(left, tmp_path / "left")]
    assert places[aligned] == {0}
    assert any(differs) or places[left] != {0}


def test_the_options_are_the_arguments_of_fit():
    given = set(inspect.signature(fit).parameters)
    others = {"model", "train", "valid", "store", "report", "should_stop", "processes"}
    assert given - others == {field.name for field in fields(Options)}


# --- kills ------------------------------------------------------------------------------------------------------------


def _child(kind, folder, rank, size, meeting):
    if size > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    trained(kind, Files(folder), processes=Processes(rank, size))
    (folder / f"done{rank}").touch()
    if size > 1:
        torch.distributed.destroy_process_group()


def in_children(kind, folder, size, seconds=None, attempt=0):
    """Train in child processes; after `seconds` kill them all. Return whether they finished."""
    folder.mkdir(exist_ok=True)
    meeting = folder / f"meet{attempt}"
    children = [CONTEXT.Process(target=_child, args=(kind, folder, rank, size, meeting)) for rank in range(size)]
    for child in children:
        child.start()
    deadline = time.monotonic() + (seconds or 300.0)
    while time.monotonic() < deadline and any(child.is_alive() for child in children):
        time.sleep(0.01)
    for child in children:
        child.kill()
        child.join()
    return all((folder / f"done{rank}").exists() for rank in range(size))


def killed(kind, folder, size, moments, seed):
    began = time.monotonic()
    assert in_children(kind, folder / "whole", size)
    seconds, chance = time.monotonic() - began, random.Random(seed)
    expected, kills, number = without_times(load_tree(folder / "whole" / "last.ckpt")), 0, 0
    while kills < moments:
        place, attempt = folder / str(number), 0
        while not in_children(kind, place, size, 0.1 + chance.random() * seconds, attempt) and attempt < 4:
            kills, attempt = kills + 1, attempt + 1
        assert in_children(kind, place, size, attempt=attempt + 1)
        assert without_times(load_tree(place / "last.ckpt")) == expected
        number += 1
        if number > 4 * moments:
            break  # the machine is too fast for kills; what ran was compared


@pytest.mark.parametrize(
    "kind",
    [
        "carried, averaging",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "carried, averaging"),
    ],
)
def test_a_killed_run_continues_bit_for_bit(kind, tmp_path):
    killed(kind, tmp_path, size=1, moments=3, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["carried, averaging", "averaging late"])
def test_two_killed_processes_continue_bit_for_bit(kind, tmp_path):
    killed(kind, tmp_path, size=2, moments=3, seed=2)
