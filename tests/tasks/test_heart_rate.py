"""Heart rate: windows cut by hand, the authors' split, and the real recordings."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import random_split as torch_random_split

from lem.tasks import heart_rate as make
from lem.tasks.heart_rate import ARCHIVE, cut_windows, random_split, read_columns, recording_split
from lem.training.data import DataError
from lem.training.loop import evaluate
from tests.tasks.real import needs


class _Constant(nn.Module):
    """A model that gives one answer."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, inputs, state, lengths):
        return torch.full((inputs.shape[1], 1), self.value), None


def test_the_split_is_the_one_of_the_authors_code():
    whole = list(range(7949))
    seeded = lambda: torch.Generator().manual_seed(123456)  # noqa: E731
    train, rest = torch_random_split(whole, [5565, 2384], generator=seeded())
    test, valid = torch_random_split(rest, [1192, 1192], generator=seeded())
    for mine, theirs in zip(random_split(7949), (train, valid, test)):
        assert mine.tolist() == list(theirs)


def test_recordings_stay_together():
    recordings = torch.arange(1, 54).repeat_interleave(3)
    splits = recording_split(recordings, 0)
    numbers = [set(recordings[s].tolist()) for s in splits]
    assert [len(n) for n in numbers] == [37, 8, 8]
    assert len(set.union(*numbers)) == 53
    assert [s.tolist() for s in recording_split(recordings, 0)] == [s.tolist() for s in splits]
    assert recording_split(recordings, 1)[2].tolist() != splits[2].tolist()


def test_recordings_become_a_task_without_a_recording_in_two_splits(tmp_path, monkeypatch):
    monkeypatch.setenv("LEM_DATA", str(tmp_path))
    monkeypatch.setenv("LEM_OFFLINE", "1")
    (tmp_path / "bidmc_csv").mkdir()
    for n in range(1, 54):  # one window each, of which every value tells the recording
        stem = tmp_path / "bidmc_csv" / f"bidmc_{n:02d}"
        stem.with_name(f"{stem.name}_Signals.csv").write_text("Time [s], II, PLETH\n" + f"0,{-n},{n}\n" * 4000)
        stem.with_name(f"{stem.name}_Numerics.csv").write_text("Time [s], HR\n" + f"0,{n + 40}\n" * 33)
    task = make("recording")
    parts = [task.train, task.valid, task.test()]
    assert [len(part) for part in parts] == [37, 8, 8]
    assert len(torch.cat([part.targets for part in parts]).unique()) == 53
    for part in parts:
        assert torch.equal(part.inputs[:, 0, 0] + 40, part.targets[:, 0])
        assert torch.equal(part.inputs[:, -1, 1], -part.inputs[:, -1, 0])
    plain, standard = make("random"), make("random", standardised=True)
    assert plain.train.targets[:, 0].tolist() == (random_split(53)[0] + 41.0).tolist()
    assert standard.train.targets.mean().abs() < 1e-6
    assert (standard.train.targets.std() - 1.0).abs() < 1e-6
    # Always answering the mean is as wrong, in beats per minute, whatever the targets' unit.
    mean = float(plain.train.targets.mean())
    errors = [
        evaluate(_Constant(value), task.test(), metric=task.judge, batch_size=3)
        for value, task in ((mean, plain), (0.0, standard))
    ]
    by_hand = float((plain.test().targets - mean).square().mean().sqrt())
    assert errors == pytest.approx([by_hand, by_hand], rel=1e-6)
    assert standard.facts.target_scale == standard.unit


def test_windows_by_hand():
    signals = np.arange(41 * 125 + 1)[:, None] * np.array([1.0, -1.0])
    rates = np.arange(42.0)
    rates[34] = np.nan
    windows, targets = cut_windows(signals, rates)
    # Windows start at 0, 3, 6 and 9 s; their last seconds are 31, 34, 37 and 40, and 34 has no reading.
    assert targets.tolist() == [31.0, 37.0, 40.0]
    assert windows.shape == (3, 4000, 2)
    assert windows[1, 0].tolist() == [6 * 125, -6 * 125]
    assert windows[2, -1].tolist() == [41 * 125 - 1, -(41 * 125 - 1)]


def test_columns_are_read_by_name(tmp_path):
    (tmp_path / "x.csv").write_text("Time [s], RESP, II, PLETH\n0,1,2,3\n1,4,nan,6\n")
    np.testing.assert_array_equal(read_columns(tmp_path / "x.csv", "PLETH", "II"), [[3, 2], [6, np.nan]])
    with pytest.raises(DataError, match="must have the columns HR; got Time"):
        read_columns(tmp_path / "x.csv", "HR")
    (tmp_path / "x.csv").write_text("HR\nfast\n")
    with pytest.raises(DataError, match="table of numbers"):
        read_columns(tmp_path / "x.csv", "HR")


def test_the_archives_files_are_read(tmp_path, monkeypatch):
    monkeypatch.setenv("LEM_DATA", str(tmp_path))
    (tmp_path / "BIDMC32HR").mkdir()
    for part, count in (("TRAIN", 12), ("TEST", 8)):
        lines = [",".join([str(i)] * 6) + ":" + ",".join(["0.5"] * 6) + f":{60 + i}.5" for i in range(count)]
        head = "@problemName BIDMC32HR\n@timeStamps false\n@univariate false\n@targetlabel true\n@data\n"
        (tmp_path / f"BIDMC32HR/BIDMC32HR_{part}.ts").write_text(head + "\n".join(lines))
    assert ARCHIVE.present()
    task = make(split="random")
    assert [len(s) for s in (task.train, task.valid, task.test())] == [14, 3, 3]
    batch = task.train.batch(0, 4)
    assert batch.inputs.shape == (6, 4, 2)
    assert torch.equal(batch.targets[:, 0], 60.5 + batch.inputs[0, :, 0])
    assert (task.facts.source, task.facts.rebuilt, task.facts.samples) == ("archive", False, 20)


def test_wrong_options_are_refused():
    for options in ({"split": "x"}, {"source": "x"}, {"split": "recording", "source": "archive"}):
        with pytest.raises(ValueError, match="of heart_rate must be"):
            make(**options)


@needs("heart_rate_recordings")
def test_the_real_recordings_give_as_many_windows_as_the_archive_has():
    task = make(source="recordings")
    assert [len(s) for s in (task.train, task.valid, task.test())] == [5565, 1192, 1192]
    batch = task.train.batch(0, 8, 0, 0)
    assert batch.inputs.shape == (4000, 8, 2)
    assert batch.inputs.isfinite().all()
    targets = task.train.targets
    assert 40 < float(targets.min()) < 70 < float(targets.mean()) < 100 < float(targets.max()) < 160
    assert (task.facts.source, task.facts.rebuilt, task.facts.samples) == ("recordings", True, 7949)
    apart = make(split="recording")
    assert sum(len(s) for s in (apart.train, apart.valid, apart.test())) == 7949
    assert (apart.facts.split, apart.facts.shared_recordings) == ("recording", False)
