"""Training on a device without waiting for it: on torch's "meta" device, whose numbers cannot be read at all."""

import math

import pytest
import torch
from torch import nn

from lem.nn.model import SequenceModel
from lem.training import watch
from lem.training.data import ArraySplit
from lem.training.loop import check_device, evaluate, fit
from lem.training.watch import Watch

OPTIONS = {"loss": "mse", "metric": "mse", "batch_size": 2, "learning_rate": 1e-3, "clip_norm": 1.0}


def split(count=12, steps=5):
    lengths = torch.randint(1, steps + 1, (count,))
    return ArraySplit(torch.randn(count, steps, 2), torch.randn(count, steps, 1), lengths, every_step=True)


def model(device):
    return SequenceModel("lem", 2, 4, 1, every_step=True, backend="loop").to(device)


@pytest.fixture
def readings(monkeypatch):
    """How many numbers were read, each time."""
    found = []

    def read(numbers):
        found.append(len(numbers))
        return [1.0] * len(numbers)

    monkeypatch.setattr(watch, "read", read)
    monkeypatch.setattr("lem.training.loop.read", read)
    return found


@pytest.mark.parametrize("updates", [1, 5])
def test_an_update_does_not_wait_for_the_device(updates, readings):
    """Every read of a number on the meta device raises; so do masks that must be counted, and copies to the host."""
    done = []

    def stop():
        done.append(1)
        return len(done) == updates

    fit(model("meta"), split(), split(), epochs=1, device="meta", should_stop=stop, **OPTIONS)
    assert readings == [2 * updates]  # once, at the stop


def test_numbers_are_read_together_every_so_many_updates(readings, monkeypatch):
    monkeypatch.setattr(watch, "EVERY", 2)
    done = []

    def stop():
        done.append(1)
        return len(done) == 5

    fit(model("meta"), split(), split(), epochs=1, device="meta", should_stop=stop, **OPTIONS)
    assert readings == [4, 4, 2]


def test_an_evaluation_waits_once(readings):
    evaluate(model("meta"), split(), metric="mse", batch_size=2, device="meta")
    assert readings == [6]


class Reads(nn.Module):
    """A model that reads a number from the device in every update."""

    def __init__(self):
        super().__init__()
        self.inner = model("meta")

    def forward(self, inputs, state, lengths):
        prediction, state = self.inner(inputs, state, lengths)
        return prediction * (1.0 if prediction.sum().item() > 0 else 2.0), state


def test_a_model_that_waits_is_caught():
    with pytest.raises(RuntimeError, match=r"meta"):
        fit(Reads(), split(), split(), epochs=1, device="meta", **OPTIONS)


def test_the_losses_of_a_late_reading_are_all_counted():
    each, late = Watch("cpu", ""), Watch("cpu", "")
    late.every = 3
    losses = [torch.tensor(float(k)) for k in range(5)]
    assert sum(each.add(loss, loss, "") for loss in losses) == 10.0
    assert [late.add(loss, loss, "") for loss in losses] == [0.0, 0.0, 3.0, 0.0, 0.0]
    assert late.flush() == 7.0
    assert late.latest == each.latest == 4.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_late_reading_names_the_update(bad):
    late = Watch("cpu", "set `clip_norm`")
    late.every = 50
    late.add(torch.tensor(1.0), torch.tensor(1.0), "update 1")
    late.add(torch.tensor(1.0), torch.tensor(bad), "update 2")
    with pytest.raises(FloatingPointError, match=r"update 2\. The last good checkpoint .* set `clip_norm`"):
        late.flush()


@pytest.mark.parametrize(("there", "device"), [(False, "cpu"), (True, "cuda")])
def test_auto_takes_a_gpu_if_there_is_one(there, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch, "empty", lambda *shape, device: None)
    assert check_device("auto", "fit") == device
