"""The options of the loop, each against the same thing written out by hand."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from lem.nn.model import SequenceModel
from lem.training.data import ArraySplit, Batch, at_steps, even_steps, mix, random_steps, rows
from lem.training.loop import evaluate, fit
from tests.close import assert_close


def split(count=12, steps=9, lengths=None, every_step=False):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, steps, 2, generator=generator)
    targets = inputs.cumsum(1)[:, :, :1] if every_step else inputs.sum(1)[:, :1]
    return ArraySplit(inputs, targets, lengths, every_step)


def model(every_step=False, **options):
    torch.manual_seed(0)
    return SequenceModel("lem", 2, 5, 1, every_step=every_step, **options).double()


class Double:
    """The same split in float64, so that two orders of addition agree closely."""

    def __init__(self, inner):
        self.inner = inner

    def steps(self, batch_size):
        return self.inner.steps(batch_size)

    def batch(self, *where, **options):
        batch = self.inner.batch(*where, **options)
        targets = batch.targets.double() if batch.targets.is_floating_point() else batch.targets
        return batch._replace(inputs=batch.inputs.double(), targets=targets)


class Text:
    """Three parallel streams cut into windows: each batch continues the one before, but for the first."""

    def __init__(self, windows=4, length=5):
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(windows * length, 3, 2, generator=generator, dtype=torch.float64)
        self.targets = self.inputs.cumsum(0)[:, :, :1]
        self.windows, self.length = windows, length

    def steps(self, batch_size):
        return self.windows

    def batch(self, step, batch_size, epoch=None, seed=0):
        here = slice(step * self.length, (step + 1) * self.length)
        return Batch(self.inputs[here], self.targets[here], carry=step > 0, every_step=True)


SETTINGS = {"loss": "mse", "metric": "mse", "batch_size": 12, "epochs": 1, "learning_rate": 0.1, "optimizer": "sgd"}


def moved(network, before):
    """Return what one step of plain gradient descent at rate 0.1 went along: the gradient it used."""
    return [(b - a) / 0.1 for a, b in zip(network.parameters(), before.parameters())]


def gradient_of(network, objective):
    return torch.autograd.grad(objective, list(network.parameters()))


def all_close(actual, expected, kind="float64 gradient"):
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, kind)


def test_sum_over_time_l2_and_clipping_as_language_models_are_trained():
    data, network, before = Double(split(every_step=True)), model(every_step=True), model(every_step=True)
    fit(network, data, data, loss_over_time="sum", l2=0.3, clip_norm=0.7, **SETTINGS)
    batch = data.batch(0, 12)
    prediction, _ = before(batch.inputs)
    squares = sum((p**2).sum() for p in before.parameters())
    objective = ((prediction - batch.targets) ** 2).sum(0).mean() + 0.5 * 0.3 * squares
    gradient = gradient_of(before, objective)
    norm = torch.stack([g.norm() for g in gradient]).norm()
    assert norm > 0.7
    # torch divides by norm + 1e-6, hence the row for float32
    all_close(moved(network, before), [g * 0.7 / norm for g in gradient], "float32")


def test_sum_over_time_needs_an_answer_per_step():
    with pytest.raises(ValueError, match="`loss_over_time` of fit must be 'mean'"):
        fit(model(), Double(split()), Double(split()), loss_over_time="sum", **SETTINGS)


@pytest.mark.parametrize("parts", [2, 3, 12, 20])
@pytest.mark.parametrize("lengths", [None, torch.tensor([9, 1, 4, 5, 9, 2, 2, 7, 8, 3, 9, 6])])
def test_a_batch_in_parts_gives_the_gradient_of_the_whole(parts, lengths):
    data = Double(split(lengths=lengths, every_step=True))
    whole, pieces = model(every_step=True), model(every_step=True)
    fit(whole, data, data, **SETTINGS)
    fit(pieces, data, data, accumulate=parts, **SETTINGS)
    all_close(pieces.parameters(), whole.parameters())


def test_padding_is_neither_learned_nor_judged():
    lengths = torch.tensor([4, 9, 2])
    clean, dirty = split(3, lengths=lengths, every_step=True), split(3, lengths=lengths, every_step=True)
    for row, length in enumerate(lengths):
        dirty.inputs[row, length:] = math.nan
        dirty.targets[row, length:] = math.nan
    networks = [model(every_step=True), model(every_step=True)]
    for network, data in zip(networks, (clean, dirty)):
        fit(network, Double(data), Double(data), **SETTINGS)
    all_close(networks[1].parameters(), networks[0].parameters(), "exact")
    figures = [evaluate(networks[0], Double(data), metric="mse", batch_size=2) for data in (clean, dirty)]
    assert figures[0] == figures[1]


def test_truncation_back_propagates_through_the_last_steps_only():
    data, network, before = Double(split()), model(), model()
    fit(network, data, data, truncate=3, **SETTINGS)
    batch = data.batch(0, 12)
    with torch.no_grad():
        _, state = before(batch.inputs[:6])
    prediction, _ = before(batch.inputs[6:], state)
    gradient = gradient_of(before, ((prediction - batch.targets) ** 2).mean())
    all_close(moved(network, before), gradient)
    whole = model()
    fit(whole, data, data, truncate=9, **SETTINGS)  # as long as the sequence: nothing is cut off
    reference = model()
    fit(reference, data, data, **SETTINGS)
    all_close(whole.parameters(), reference.parameters(), "exact")


def test_subsampling_draws_steps_to_train_on_and_evaluates_on_an_even_grid():
    data, network, before = Double(split()), model(), model()
    progress = fit(network, data, data, subsample=4, seed=5, **SETTINGS)
    chosen = random_steps(9, 4, mix(5, 2, 0))
    assert len(set(chosen.tolist())) == 4
    assert chosen.tolist() == sorted(chosen.tolist())
    batch = data.batch(0, 12)
    prediction, _ = before(batch.inputs[chosen])
    all_close(moved(network, before), gradient_of(before, ((prediction - batch.targets) ** 2).mean()))
    grid = even_steps(9, 4)
    assert grid.tolist() == [0, 3, 5, 8]
    prediction, _ = network(data.batch(0, 12).inputs[grid])
    assert_close(progress.best, ((prediction - batch.targets) ** 2).mean(), "float64")
    assert even_steps(3, 7).tolist() == [0, 1, 2]
    assert random_steps(3, 7, 0).tolist() == [0, 1, 2]


def test_truncation_and_subsampling_refuse_unequal_lengths():
    data = Double(split(lengths=torch.full((12,), 5)))
    for option in ("truncate", "subsample"):
        with pytest.raises(ValueError, match="need sequences of one length"):
            fit(model(), data, data, **{option: 3}, **SETTINGS)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_carried_batches_start_where_the_last_one_ended(accumulate):
    data, network, by_hand = Text(), model(every_step=True), model(every_step=True)
    fit(network, data, data, accumulate=accumulate, **{**SETTINGS, "epochs": 2})
    for _ in range(2):
        state = None
        for step in range(4):
            batch = data.batch(step, 12)
            prediction, state = by_hand(batch.inputs, state)
            state = tuple(s.detach() for s in state)
            gradient = gradient_of(by_hand, ((prediction - batch.targets) ** 2).mean())
            with torch.no_grad():
                for parameter, g in zip(by_hand.parameters(), gradient):
                    parameter -= 0.1 * g
    best = fit(copy.deepcopy(network), data, data, **{**SETTINGS, "learning_rate": 1e-12}).best
    assert_close(best, ((by_hand(data.inputs)[0] - data.targets) ** 2).mean(), "float32")
    all_close(network.parameters(), by_hand.parameters())


class Stalled:
    """A validation split whose targets make the figure worse and worse: the first evaluation stays the best."""

    def __init__(self):
        self.calls = 0

    def steps(self, batch_size):
        return 1

    def batch(self, step, batch_size, epoch=None, seed=0):
        self.calls += 1
        inputs = torch.zeros(1, 1, 2, dtype=torch.float64)
        return Batch(inputs, torch.full((1, 1), 100.0 * self.calls, dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "first"),
    [({"average_after": 2}, 4), ({"average_from": 2}, 3), ({"average_from": 0}, 1), ({"average_after": 99}, None)],
)
def test_averaging_starts_when_validation_stalls_or_at_the_latest(options, first):
    """The first epoch whose weights are averaged: after evaluation 3 the figure was worse twice."""
    data, weights = Double(split()), []
    network = model()
    take = {"report": lambda event: weights.append(copy.deepcopy(network.state_dict())) if not event.record else None}
    settings = {**SETTINGS, "epochs": 6, "patience": 6}
    progress = fit(network, data, Stalled(), **settings, **options, **take)
    counts = [record["averaged"] for record in progress.history]
    assert counts == [0 if first is None else max(0, epoch - first + 1) for epoch in range(1, 7)]


def test_the_average_is_the_mean_and_is_what_is_evaluated_and_kept():
    data, weights = Double(split()), []
    network = model()

    def take(event):
        if event.record is None:
            weights.append([p.detach().clone() for p in network.parameters()])

    progress = fit(network, data, data, average_from=0, report=take, **{**SETTINGS, "epochs": 5})
    mean = [torch.stack(p).mean(0) for p in zip(*weights)]
    assert progress.best_epoch == 5  # the mean follows the descent
    all_close(network.parameters(), mean)
    assert_close(evaluate(network, data, metric="mse", batch_size=12), progress.best, "float64")


def test_bfloat16_is_close_to_float32_and_keeps_the_weights_in_float32():
    data = split(every_step=True)
    networks = [model(every_step=True).float(), model(every_step=True).float()]
    fit(networks[0], data, data, **SETTINGS)
    fit(networks[1], data, data, autocast="bfloat16", **SETTINGS)
    all_close(networks[1].parameters(), networks[0].parameters(), "bfloat16")
    assert networks[1].readout.weight.dtype == torch.float32
    assert not torch.equal(networks[1].readout.weight, networks[0].readout.weight)


def test_fit_trains_any_module_of_the_same_form():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 3)

        def forward(self, inputs, state=None, lengths=None):
            return self.linear(inputs.sum(0)), ()

    generator = torch.Generator().manual_seed(0)
    data = ArraySplit(torch.randn(30, 4, 2, generator=generator), torch.randint(3, (30,), generator=generator))
    network = Plain()
    before = functional.cross_entropy(network(data.batch(0, 30).inputs)[0], data.targets)
    settings = {**SETTINGS, "loss": "cross_entropy", "epochs": 5}
    progress = fit(network, data, data, **{**settings, "metric": "perplexity"})
    assert math.log(progress.best) < before


def test_parts_of_a_batch_are_all_of_it_once():
    batch = split(every_step=True).batch(0, 7)
    for parts in (1, 2, 3, 7, 9):
        pieces = [rows(batch, part, parts) for part in range(parts)]
        assert_close(torch.cat([piece.inputs for piece in pieces], dim=1), batch.inputs, "exact")
        assert_close(torch.cat([piece.targets for piece in pieces], dim=1), batch.targets, "exact")
    assert_close(at_steps(batch, torch.tensor([1, 4])).targets, batch.targets[[1, 4]], "exact")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate": 0}, "`accumulate` of fit must be a positive integer; got 0"),
        ({"epochs": 0}, "`epochs` of fit must be a positive integer; got 0"),
        ({"loss_over_time": "max"}, "`loss_over_time` of fit must be one of 'mean', 'sum'; got 'max'"),
        (
            {"optimizer": "adma"},
            "`optimizer` of fit must be one of 'adam', 'rmsprop', 'sgd'; got 'adma'. Did you mean 'adam'?",
        ),
        ({"autocast": "float16"}, "`autocast` of fit must be one of None, 'bfloat16'; got 'float16'"),
        ({"metric": "auc"}, "`metric` of fit must be one of 'accuracy',"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        fit(model(), Double(split()), Double(split()), **{**SETTINGS, **options})


def test_a_figure_that_is_never_a_number_is_an_error():
    class Undefined(Double):
        def batch(self, *where, **options):
            batch = super().batch(*where, **options)
            return batch._replace(targets=batch.targets * math.nan)

    with pytest.raises(FloatingPointError, match="validation mse was NaN or infinite; got nan in all 2"):
        fit(model(), Double(split()), Undefined(split()), **{**SETTINGS, "epochs": 2})


def test_as_many_targets_as_steps_and_rows_are_still_one_answer_a_row():
    """Shapes alone would not tell (time, batch) from (batch, targets) here."""
    torch.manual_seed(0)
    inputs, targets, lengths = torch.randn(6, 6, 2), torch.randn(6, 6), torch.tensor([6, 1, 2, 3, 4, 5])
    data, network = ArraySplit(inputs, targets, lengths), SequenceModel("lem", 2, 5, 6)
    answer, _ = network(inputs.transpose(0, 1), None, lengths)
    expected = (answer - targets).square().mean().item()
    assert_close(evaluate(network, data, metric="mse", batch_size=6), expected, "float32")
    part = rows(data.batch(0, 6), 1, 3)
    assert torch.equal(part.targets, targets[2:4])


@pytest.mark.parametrize(("every_step", "must"), [(False, "with `every_step`; got (5, 3, 1)"), (True, "got (3, 1)")])
def test_targets_on_other_axes_are_refused(every_step, must):
    targets = torch.zeros(3, 1) if every_step else torch.zeros(5, 3, 1)

    class Wrong:
        def steps(self, batch_size):
            return 1

        def batch(self, step, batch_size, epoch=None, seed=0):
            return Batch(torch.zeros(5, 3, 2), targets, every_step=every_step)

    with pytest.raises(ValueError, match="`targets` of a Batch must be") as error:
        evaluate(SequenceModel("lem", 2, 4, 1), Wrong(), metric="mse", batch_size=3)
    assert must in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2.5}, "`batch_size` of fit must be a positive integer; got 2.5"),
        ({"learning_rate": -1.0}, "`learning_rate` of fit must be a number of at least 0; got -1.0"),
        ({"learning_rate": "a"}, "`learning_rate` of fit must be a number of at least 0; got 'a'"),
        ({"clip_norm": -1.0}, "`clip_norm` of fit must be a positive number"),
        ({"minutes": 0.0}, "`minutes` of fit must be a positive number"),
        ({"l2": -1.0}, "`l2` of fit must be a number of at least 0"),
        ({"weight_decay": math.nan}, "`weight_decay` of fit must be a number of at least 0"),
        ({"device": "gpu"}, "`device` of fit must be one that torch has here; got 'gpu': "),
        ({"metric": "acc"}, "`metric` of fit must be one of 'accuracy'"),
    ],
)
def test_senseless_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        fit(model(), Double(split()), Double(split()), **{**SETTINGS, **options})


def test_nothing_to_learn_from_or_to_judge_by_is_refused():
    some, none = Double(split()), ArraySplit(torch.zeros(0, 9, 2), torch.zeros(0, 1))
    with pytest.raises(ValueError, match="`train` of fit is empty"):
        fit(model(), none, some, **SETTINGS)
    with pytest.raises(ValueError, match="`split` of evaluate is empty"):
        fit(model(), some, none, **SETTINGS)
    with pytest.raises(ValueError, match="`metric` of evaluate must be one of 'accuracy'"):
        evaluate(model(), some, metric="acc", batch_size=3)
