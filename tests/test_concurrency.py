"""One model used by many threads, and data loader workers forked after the kernel ran."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lem import LEM
from lem.kernels.cpu import buffers
from lem.timeseries.predictor import Predictor
from tests.close import assert_close


@pytest.mark.parametrize("cell", ["lem", "lstm", "exprnn"])  # the kernel, torch's own, a parametrised matrix
def test_one_model_answers_many_threads(cell):
    model = Predictor("regressor", 2, 1, {"cell": cell, "hidden_size": 8, "output_dropout": 0.5}).eval()
    sets = [np.random.default_rng(seed).normal(size=(3, 2, 40)) for seed in range(24)]
    alone = [model.predict(X) for X in sets]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(model.predict, sets))
    for a, b in zip(together, alone):
        assert_close(a, b, "exact")


class Features(Dataset):
    """Items that a worker computes with the kernel, as a data set of features would."""

    def __init__(self, layer, inputs):
        self.layer, self.inputs = layer, inputs

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, item):
        with torch.no_grad():
            return self.layer(self.inputs[item])[0][-1]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker")  # torch's advice on a single processor
def test_loader_workers_forked_after_the_kernel_ran():
    layer, inputs = LEM(2, 16), torch.randn(8, 30, 2)
    layer(inputs.transpose(0, 1))[0].sum().backward()  # threads and buffers exist now
    data = Features(layer, inputs)
    expected = torch.stack([data[i] for i in range(len(data))])
    loader = DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=300)
    for _ in range(2):
        assert_close(torch.cat(list(loader)), expected, "exact")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_forked_while_the_lock_of_the_buffers_is_held_can_use_the_kernel():
    layer, u = LEM(2, 64), torch.randn(200, 32, 2)  # large enough for kept buffers
    layer(u)
    with buffers._cache.lock:
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            with torch.no_grad():
                layer(u)
            os._exit(0)
        deadline = time.monotonic() + 300
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        if ended[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert ended == (child, 0), "the child hangs"
