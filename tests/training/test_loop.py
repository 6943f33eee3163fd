"""The loop: it learns, stops where it should, and an interrupted run is the run that was interrupted."""

import copy
import math

import pytest
import torch

from lem.nn.model import SequenceModel
from lem.tasks.adding import adding
from lem.training.data import ArraySplit
from lem.training.loop import evaluate, fit
from lem.training.schedule import rate
from lem.training.store import Memory
from tests.close import assert_close


def data(count=24, steps=6, nan=False):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, steps, 2, generator=generator)
    targets = (inputs[:, 0, :1] > 0).long()[:, 0]
    if nan:
        inputs[3, 2, 1] = math.nan
    return ArraySplit(inputs, targets)


def model(**options):
    torch.manual_seed(0)
    return SequenceModel("lem", 2, 8, 2, **options)


SETTINGS = {"loss": "cross_entropy", "metric": "accuracy", "batch_size": 8, "learning_rate": 0.02}


def test_it_learns_and_keeps_the_best():
    store, network = Memory(), model()
    records = []
    progress = fit(
        network, data(), data(), epochs=30, store=store, report=lambda e: records.append(e.record), **SETTINGS
    )
    figures = [record["valid"] for record in records if record]
    assert progress.best == max(figures) == 100.0
    assert figures.index(100.0) + 1 == progress.best_epoch
    network.load_state_dict(store.best)
    assert evaluate(network, data(), metric="accuracy", batch_size=5) == 100.0


@pytest.mark.parametrize("options", [{}, {"input_dropout": 0.3}])
@pytest.mark.parametrize("stop", [1, 2, 3, 7])
def test_an_interrupted_run_continues_to_the_same_weights(stop, options):
    whole, halted = model(**options), model(**options)
    settings = {**SETTINGS, "epochs": 4, "schedule": "cosine", "clip_norm": 1.0, "seed": 3}
    fit(whole, data(), data(), store=Memory(), **settings)

    store, calls = Memory(), []
    fit(halted, data(), data(), store=store, should_stop=lambda: calls.append(0) or len(calls) == stop, **settings)
    assert store.state["progress"]["updates"] == stop
    torch.manual_seed(1234)  # a new process starts with another random state
    resumed = SequenceModel("lem", 2, 8, 2, **options)
    progress = fit(resumed, data(), data(), store=store, **settings)
    assert progress.updates == 12
    for name, value in whole.state_dict().items():
        assert_close(resumed.state_dict()[name], value, "exact")


def test_evaluation_is_over_the_whole_split_whatever_the_batch():
    network = model()
    figures = {evaluate(network, data(), metric="accuracy", batch_size=size) for size in (1, 5, 24, 100)}
    assert len(figures) == 1


def test_clipping_bounds_the_step():
    network, before = model(), model()
    fit(network, data(), data(), epochs=1, optimizer="sgd", clip_norm=1e-3, **{**SETTINGS, "batch_size": 24})
    moved = torch.stack([(a - b).norm() for a, b in zip(network.parameters(), before.parameters())]).norm()
    assert_close(moved, SETTINGS["learning_rate"] * 1e-3, "float32")


def test_patience_and_minutes_end_early_and_say_so():
    progress = fit(model(), data(), data(), epochs=500, patience=3, **{**SETTINGS, "learning_rate": 0.0})
    assert progress.epoch == 4
    assert progress.stopped == "no improvement in 3 evaluations"
    progress = fit(model(), data(), data(), epochs=10**6, minutes=0.001, **SETTINGS)
    assert progress.stopped == "after 0.001 minutes"


def test_non_finite_input_and_loss_stop_and_keep_the_checkpoint():
    store = Memory()
    with pytest.raises(FloatingPointError, match=r"The training input must be finite; got NaN .* epoch 1, step"):
        fit(model(), data(nan=True), data(), epochs=1, store=store, **SETTINGS)
    network = model()
    fit(network, data(), data(), epochs=1, store=store, **SETTINGS)
    good = copy.deepcopy(store.state["model"])
    with torch.no_grad():
        store.state["model"]["readout.bias"][0] = math.inf
    for clip_norm, remedy in ((None, "set `clip_norm`"), (1.0, "`truncate`")):
        said = rf"loss and its gradient must be finite; got loss .* epoch 2, step 1.* or .*{remedy}\."
        with pytest.raises(FloatingPointError, match=said):
            fit(network, data(), data(), epochs=2, store=store, **{**SETTINGS, "clip_norm": clip_norm})
    assert good["readout.bias"].isfinite().all()


def test_schedules():
    assert rate("constant", 5, 0.5, None, 0.1) == 1.0
    assert [rate("step", epoch, 0.0, 100, 0.1) for epoch in (99, 100)] == [1.0, 0.1]
    assert_close([rate("cosine", 0, f, None, 0.1) for f in (0.0, 0.5, 1.0)], [1.0, 0.5, 0.0], "float64")
    cycle = [rate("one-cycle", 0, f / 100, None, 0.1) for f in range(101)]
    assert max(cycle) == cycle[30] == 1.0
    assert cycle[0] == pytest.approx(0.04)
    assert cycle[100] < 1e-12
    with pytest.raises(ValueError, match="`schedule` of fit"):
        rate("linear", 0, 0.0, None, 0.1)


@pytest.mark.slow
def test_adding_problem_of_200_steps_is_learned_within_3000_updates():
    task = adding(length=200)
    torch.manual_seed(0)
    network = SequenceModel("lem", 2, 128, 1, dt=1 / math.sqrt(200))
    settings = {"loss": "mse", "metric": "mse", "batch_size": 50, "epochs": 30, "learning_rate": 0.0026}
    reached = []
    fit(
        network,
        task.train,
        task.valid,
        report=lambda event: reached.append(event.record["valid"]) if event.record else None,
        should_stop=lambda: bool(reached) and reached[-1] < 0.008,
        **settings,
    )
    assert evaluate(network, task.test(), metric="mse", batch_size=250) < 0.01
