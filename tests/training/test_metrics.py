"""Losses and metrics against values computed by hand."""

import math

import pytest
import torch

from lem.training.data import IGNORE
from lem.training.metrics import LOSSES, METRICS
from tests.close import assert_close


def test_cross_entropy_by_hand():
    prediction = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]], dtype=torch.float64))
    losses = LOSSES["cross_entropy"](prediction, torch.tensor([0, 2]))
    assert_close(losses, [-math.log(0.5), -math.log(0.1)], "float64")
    mean = float(losses.mean())
    assert_close(METRICS["perplexity"].finish(mean), math.sqrt(1 / (0.5 * 0.1)), "float64")
    assert_close(METRICS["bpc"].finish(mean), -0.5 * math.log2(0.05), "float64")


def test_every_step_gives_an_answer_but_padding_does_not_count():
    targets = torch.zeros(5, 2, dtype=torch.int64)
    assert_close(LOSSES["cross_entropy"](torch.zeros(5, 2, 4), targets), torch.full((10,), math.log(4.0)), "float32")
    targets[3:, 1] = IGNORE
    assert_close(LOSSES["cross_entropy"](torch.zeros(5, 2, 4), targets), torch.full((8,), math.log(4.0)), "float32")


def test_accuracy_and_errors_by_hand():
    correct = METRICS["accuracy"].each(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([1, 1]))
    assert METRICS["accuracy"].finish(float(correct.mean())) == 50.0
    squares = METRICS["rmse"].each(torch.tensor([[3.0], [0.0]]), torch.tensor([[0.0], [4.0]]))
    assert_close(METRICS["rmse"].finish(float(squares.mean())), math.sqrt(12.5), "float64")


def test_a_broadcast_would_be_a_mistake():
    with pytest.raises(ValueError, match=r"must have the target's shape \(4, 1\); got \(4,\)"):
        LOSSES["mse"](torch.zeros(4), torch.zeros(4, 1))


@pytest.mark.parametrize(
    ("name", "better"), [("accuracy", 2.0), *((name, 0.5) for name in sorted(METRICS) if name != "accuracy")]
)
def test_direction_of_improvement(name, better):
    metric = METRICS[name]
    assert metric.better(1.0, None)
    assert metric.better(better, 1.0)
    assert not metric.better(1.0, better)
    assert not metric.better(1.0, 1.0)
    assert not metric.better(math.nan, None)


def test_what_is_no_class_is_named():
    with pytest.raises(ValueError, match="must be classes from 0 to 3, one for each output; got 0 to 4"):
        LOSSES["cross_entropy"](torch.zeros(2, 4), torch.tensor([0, 4]))
    with pytest.raises(ValueError, match=r"must be classes, whole numbers from 0; got torch.float32"):
        METRICS["bpc"].each(torch.zeros(2, 4), torch.zeros(2))
