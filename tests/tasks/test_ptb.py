"""Penn Treebank: a tiny corpus worked out by hand, and the real text."""

import pytest
import torch

from lem.tasks.ptb import TextSplit, ptb_char, ptb_word, read_symbols, text_task
from lem.training.data import IGNORE, DataError
from lem.training.loop import evaluate
from lem.training.metrics import METRICS
from tests.close import assert_close
from tests.tasks.real import needs


@pytest.fixture
def files(tmp_path):
    texts = {"train": " a b a \n c a b \n", "valid": " a b \n", "test": " c c \n a"}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
    return {name: tmp_path / f"{name}.txt" for name in texts}


def test_symbols(files):
    assert read_symbols(files["train"]) == ["a", "b", "a", "<eos>", "c", "a", "b", "<eos>"]
    # A last line that does not end is no sentence that ends.
    assert read_symbols(files["test"]) == ["c", "c", "<eos>", "a"]


def test_windows_by_hand(files):
    task = text_task(files, "perplexity", window=2, turn=None)
    # Sorted: <eos> 0, a 1, b 2, c 3. Eight symbols in two rows of four, windows of two.
    assert (task.input_size, task.output_size) == (4, 4)
    assert task.train.steps(2) == 2
    first, second = task.train.batch(0, 2, 0), task.train.batch(1, 2, 0)
    assert first.inputs.tolist() == [[0, 0], [1, 3]]
    assert first.targets.tolist() == [[1, 3], [2, 1]]
    assert second.inputs.tolist() == [[2, 1], [1, 2]]
    assert second.targets.tolist() == [[1, 2], [0, 0]]
    assert (first.carry, second.carry) == (False, True)


def test_every_symbol_counts_once_whatever_the_batch_size():
    text = torch.arange(1, 24)
    for rows in (1, 2, 3, 5, 7, 23, 30):
        split = TextSplit(text, 0, window=4)
        batches = [split.batch(step, rows) for step in range(split.steps(rows))]
        targets = torch.cat([b.targets for b in batches]).t().flatten()
        inputs = torch.cat([b.inputs for b in batches]).t().flatten()
        kept = targets != IGNORE
        assert targets[kept].tolist() == text.tolist()
        assert torch.equal(inputs[kept], targets[kept] - 1)
        assert [b.carry for b in batches] == [False] + [True] * (len(batches) - 1)


def test_turns_go_on_where_the_last_one_stopped():
    whole, turns = (TextSplit(torch.arange(1, 21), 0, window=2, turn=turn) for turn in (None, 3))
    assert (whole.steps(2), turns.steps(2)) == (5, 3)
    for done in range(12):
        epoch, step = divmod(done, 3)
        a, b = turns.batch(step, 2, epoch, 9), whole.batch(done % 5, 2)
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.targets, b.targets)
        assert a.carry == b.carry == (done % 5 > 0)


def test_metrics_by_hand():
    # Three answers with probabilities 1/2, 1/4 and 1/8, and one that does not count.
    logits = torch.log(torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.125, 0.875], [0.9, 0.1]]))[:, None]
    targets = torch.tensor([[0], [0], [0], [IGNORE]])
    for name, expected in (("bpc", 2.0), ("perplexity", 4.0)):
        metric = METRICS[name]
        values = metric.each(logits, targets)
        assert values.numel() == 3
        assert_close(metric.finish(float(values.mean())), expected, "float32")


class _Bigrams(torch.nn.Module):
    """Answers from the last symbol alone: after <eos>, a, b and c the right symbol has 1/2, 1/4, 1/8 and 1/2."""

    def forward(self, inputs, state, lengths):
        right = torch.tensor([1, 2, 0, 3])[inputs]
        chance = torch.tensor([0.5, 0.25, 0.125, 0.5])[inputs]
        others = ((1.0 - chance) / 3.0)[..., None].expand(*inputs.shape, 4)
        return others.scatter(-1, right[..., None], chance[..., None]).log(), (torch.zeros(1, inputs.shape[1], 1),)


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_evaluation_by_hand(files, rows):
    # "a b <eos>" from <eos>: 1/2 * 1/4 * 1/8 is 2^-6 over three symbols, so 2 bits each and a perplexity of 4.
    for metric, expected in (("bpc", 2.0), ("perplexity", 4.0)):
        task = text_task(files, metric, window=2, turn=None)
        figure = evaluate(_Bigrams(), task.valid, metric=metric, batch_size=rows)
        assert_close(figure, expected, "float32")


class _Counter(torch.nn.Module):
    """Counts the steps of each row, and finds each symbol likely by the count it carries."""

    def forward(self, inputs, state, lengths):
        before = torch.zeros(1, inputs.shape[1], 1) if state is None else state[0]
        count = before[0, :, 0] + torch.arange(1, len(inputs) + 1)[:, None]
        return torch.stack([torch.zeros_like(count), torch.log(count)], -1), (count[None, -1, :, None],)


def test_the_state_is_carried_from_window_to_window():
    # The n-th symbol has the chance n / (n + 1): the mean of the logarithms over 5 is log(1/6) / 5.
    split = TextSplit(torch.ones(5, dtype=torch.int64), 0, window=2)
    assert_close(evaluate(_Counter(), split, metric="perplexity", batch_size=1), 6.0 ** (1 / 5), "float32")
    # In two rows, of three and two: 1/4 * 1/3.
    assert_close(evaluate(_Counter(), split, metric="perplexity", batch_size=2), 12.0 ** (1 / 5), "float32")


def test_unknown_symbols_are_refused(files):
    files["valid"].write_text("a z\n")
    with pytest.raises(DataError, match=r"valid\.txt must use the symbols of the training text only; got 'z'"):
        text_task(files, "bpc", 2, None)


@needs("ptb_word")
def test_real_words():
    task = ptb_word()
    assert [len(s) for s in (task.train, task.valid, task.test())] == [929_589, 73_760, 82_430]
    assert (task.input_size, task.output_size) == (10_000, 10_000)
    assert task.train.steps(64) == 200
    assert task.train.batch(0, 64, 0).inputs.shape == (70, 64)


@needs("ptb_char")
def test_real_characters():
    task = ptb_char(turn=None)
    assert [len(s) for s in (task.train, task.valid, task.test())] == [5_017_482, 393_042, 442_423]
    assert (task.input_size, task.output_size) == (50, 50)
    assert task.train.batch(1, 128, 0).inputs.shape == (150, 128)
    assert task.train.batch(1, 128, 0).carry
