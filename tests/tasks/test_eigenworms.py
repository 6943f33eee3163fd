"""EigenWorms: the split of the paper against scikit-learn's, duplicates, and files of the archive's format."""

import numpy as np
import pytest
import torch

from lem.tasks.eigenworms import eigenworms, groups, paper_split


def write(folder, counts, kind="ts", length=12, repeat=()):
    """Write files as the archive has them, each series different but for the (test, train) pairs of `repeat`."""
    folder = folder / "ucr_uea" / "EigenWorms"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    trained = []
    for part, count in zip(("TRAIN", "TEST"), counts):
        rows = []
        for i in range(count):
            values = rng.normal(size=(6, length)).round(4).tolist()
            for test, train in repeat:
                if part == "TEST" and i == test:
                    values = trained[train]
            if part == "TRAIN":
                trained.append(values)
            rows.append(([",".join(map(str, channel)) for channel in values], str(1 + i % 5)))
        if kind == "ts":
            head = "@problemName EigenWorms\n@timeStamps false\n@univariate false\n@classLabel true 1 2 3 4 5\n@data\n"
            text = "\n".join(":".join([*channels, label]) for channels, label in rows)
        else:
            head = (
                "@relation x\n@attribute r relational\n@attribute a numeric\n@end r\n@attribute c {1,2,3,4,5}\n@data\n"
            )
            text = "\n".join("'" + r"\n".join(channels) + f"',{label}" for channels, label in rows)
        (folder / f"EigenWorms_{part}.{kind}").write_text(head + text)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LEM_DATA", str(tmp_path))
    monkeypatch.setenv("LEM_OFFLINE", "1")
    return tmp_path


@pytest.mark.parametrize("count", [20, 37, 259])
def test_the_split_is_the_one_of_scikit_learn(count):
    selection = pytest.importorskip("sklearn.model_selection")
    train, rest = selection.train_test_split(np.arange(count), test_size=0.3, random_state=1234)
    valid, test = selection.train_test_split(rest, test_size=0.5, random_state=1234)
    for mine, theirs in zip(paper_split(count), (train, valid, test)):
        assert mine.tolist() == theirs.tolist()


def test_the_split_of_the_paper_is_181_39_39():
    train, valid, test = paper_split(259)
    assert (len(train), len(valid), len(test)) == (181, 39, 39)
    assert sorted([*train, *valid, *test]) == list(range(259))
    # As scikit-learn 1.9 gives them.
    assert train[:4].tolist() == [248, 188, 176, 150]
    assert valid[:4].tolist() == [95, 231, 48, 6]
    assert test[:4].tolist() == [212, 217, 182, 73]


@pytest.mark.parametrize("kind", ["ts", "arff"])
def test_both_formats_are_read(folder, kind):
    write(folder, (10, 10), kind)
    task = eigenworms()
    assert [len(s) for s in (task.train, task.valid, task.test())] == [14, 3, 3]
    assert task.train.batch(0, 4).inputs.shape == (12, 4, 6)
    assert (task.input_size, task.output_size) == (6, 5)
    assert (task.facts.test_seen, task.facts.test_samples) == (0, 3)


def test_a_repeated_series_is_found_across_splits(folder):
    # Of 20 series, 13 is a test one and 4 a training one; 13 is number 3 of the test file.
    write(folder, (10, 10), repeat=[(3, 4)])
    task = eigenworms()
    assert (task.facts.samples, task.facts.distinct) == (20, 19)
    assert (task.facts.test_seen, task.facts.test_samples) == (1, 3)


def test_the_other_protocol_has_no_duplicates_and_five_folds(folder):
    write(folder, (10, 12), repeat=[(3, 4), (5, 6)])
    tests = []
    for fold in range(5):
        task = eigenworms(protocol="deduplicated", fold=fold)
        splits = [task.train, task.valid, task.test()]
        assert [len(s) for s in splits] == [14, 3, 3]
        assert groups(torch.cat([s.inputs for s in splits])).unique().numel() == 20
        assert (task.facts.test_seen, task.facts.test_samples) == (0, 3)
        assert (task.facts.split, task.facts.fold, task.facts.folds) == ("deduplicated", fold, 5)
        tests.append(task.test().inputs.sum().item())
    assert len(set(tests)) == 5


def test_equal_series_get_the_number_of_the_first():
    x = torch.randn(4, 5, 2)
    x[2] = x[0]
    assert groups(x).tolist() == [0, 1, 0, 3]


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="`protocol` of eigenworms"):
        eigenworms(protocol="best")
    with pytest.raises(ValueError, match="`fold` of eigenworms must be 0 to 4; got 5"):
        eigenworms(protocol="deduplicated", fold=5)
