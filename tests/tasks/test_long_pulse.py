"""Long pulse: windows cut by hand, thirds, and both splits of generated recordings."""

import numpy as np
import pytest
import torch

from lem.tasks import TASKS
from lem.tasks.long_pulse import cut, thirds
from lem.training.data import DataError

make = TASKS["long_pulse"]
STEPS = 120 * 125


def test_windows_by_hand():
    signals = np.arange(480 * 125 + 1)[:, None] * np.array([1.0, -1.0])
    rates = np.arange(481.0)
    rates[5] = np.nan
    windows, means = cut(signals, rates)
    assert windows.shape == (31, STEPS, 2)
    assert windows[1, 0].tolist() == [12 * 125, -12 * 125]
    assert windows[30, -1].tolist() == [480 * 125 - 1, -(480 * 125 - 1)]
    assert means[0] == pytest.approx((119 * 120 / 2 - 5) / 119)  # a reading that is missing does not count
    assert means[1] == pytest.approx(12 + 119 / 2)
    assert means[30] == pytest.approx(360 + 119 / 2)  # nor one past the end
    with pytest.raises(DataError, match="must have 480 s of signals and heart rates; got 479 s and 481"):
        cut(signals[:-2], rates)
    rates[120:240] = np.nan
    with pytest.raises(DataError, match="a window without one"):
        cut(signals, rates)


def test_a_third_of_the_rates_falls_into_each_class():
    rates = torch.tensor([50.0, 90.0, 60.0, 100.0, 70.0, 80.0])
    assert thirds(rates).tolist() == [0, 2, 0, 2, 1, 1]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """53 recordings, in which each window's first value tells its number; the pulse rises with it."""
    folder = tmp_path_factory.mktemp("long-pulse")
    (folder / "bidmc_csv").mkdir()
    for n in range(1, 54):
        stem = folder / "bidmc_csv" / f"bidmc_{n:02d}"
        stem.with_name(f"{stem.name}_Signals.csv").write_text("Time [s], II, PLETH\n" + f"0,1,{n}\n0,2,{n}\n" * 30000)
        stem.with_name(f"{stem.name}_Numerics.csv").write_text("Time [s], HR\n" + f"0,{n + 40}\n" * 480)
    return folder


@pytest.mark.parametrize(("split", "sizes"), [("random", [1150, 246, 247]), ("recording", [1147, 248, 248])])
def test_a_task_of_windows_and_thirds(split, sizes, recordings, monkeypatch):
    monkeypatch.setenv("LEM_DATA", str(recordings))
    monkeypatch.setenv("LEM_OFFLINE", "1")
    task = make(split)
    parts = [task.train, task.valid, task.test()]
    assert [len(part) for part in parts] == sizes
    assert task.train.batch(0, 8).inputs.shape == (STEPS, 8, 2)
    # Standardised by the training windows alone: undone, the numbers of the recordings come back.
    torch.testing.assert_close(task.train.inputs.mean((0, 1)), torch.zeros(2), rtol=0, atol=1e-3)
    torch.testing.assert_close(task.train.inputs.std((0, 1)), torch.ones(2), rtol=0, atol=1e-3)
    values = torch.cat([part.inputs[:, 0, 0] for part in parts])
    labels = torch.cat([part.targets for part in parts])
    assert len(values.unique()) == 53
    assert labels[values.argsort()].diff().min() == 0  # faster recordings, higher classes
    assert labels.bincount().tolist() == [558, 558, 527]  # 18, 18 and 17 recordings
    shared = set(parts[0].inputs[:, 0, 0].tolist()) & set(parts[2].inputs[:, 0, 0].tolist())
    assert bool(shared) == (split == "random")
    assert (task.facts.split, task.facts.shared_recordings) == (split, split == "random")


def test_a_wrong_split_is_refused():
    with pytest.raises(ValueError, match="`split` of long_pulse must be 'random' or 'recording'; got 'x'"):
        make(split="x")
