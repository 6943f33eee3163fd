"""PhysioNet 2012: stays read and prepared by hand, the folds, and the real files."""

import numpy as np
import pytest
import torch

from lem.tasks import physionet2012 as make
from lem.tasks.physionet2012 import PARAMETERS, STATIC, carried, folds, hourly, read_outcomes, read_stay
from lem.training.data import DataError
from tests.close import assert_close
from tests.tasks.real import needs

STAY = """Time,Parameter,Value
00:00,RecordID,132539
00:00,Age,54
00:00,Gender,0
00:00,Height,-1
00:00,ICUType,4
00:00,Weight,-1
00:07,HR,73
00:07,Temp,35.1
00:37,HR,77
00:37,HR,79
02:07,HR,81
48:00,pH,7.4
"""
HR, TEMP, PH = (PARAMETERS.index(name) for name in ("HR", "Temp", "pH"))


def test_a_stay_by_hand(tmp_path):
    (tmp_path / "132539.txt").write_text(STAY)
    stay = read_stay(tmp_path / "132539.txt")
    assert stay.record == 132539
    np.testing.assert_array_equal(stay.general, [54.0, 0.0, np.nan, 4.0])
    assert stay.minutes.tolist() == [0, 7, 37, 127, 2880]
    assert stay.values.shape == (5, 37)
    # The unknown weight is missing, and of two values at one time the last is kept.
    np.testing.assert_array_equal(stay.values[:, HR], [np.nan, 73.0, 79.0, 81.0, np.nan])
    np.testing.assert_array_equal(stay.values[:, TEMP], [np.nan, 35.1, np.nan, np.nan, np.nan])
    assert np.isfinite(stay.values).sum() == 5
    bins = hourly(stay)
    assert bins.minutes.tolist() == [60 * hour for hour in range(48)]
    assert bins.values[[0, 2], HR].tolist() == [76.0, 81.0]  # the mean of 73 and 79; that of 02:07
    assert bins.values[47, PH] == 7.4  # at 48:00
    assert np.isfinite(bins.values).sum() == 4


def test_values_are_carried_forward_by_hand():
    values = np.array([[np.nan, 1.0, np.nan, 3.0], [2.0, np.nan, np.nan, np.nan]])[..., None]
    assert carried(values)[..., 0].tolist() == [[0.0, 1.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Time,Parameter,Value", "a,b,c", "must start with the line 'Time,Parameter,Value'"),
        ("00:00,RecordID,132539\n", "", "must have a line with its RecordID"),
        ("00:07,HR,73", "00:07,HR", "line 8: a line must be HH:MM,PARAMETER,NUMBER; got '00:07,HR'"),
        ("00:07,HR,73", "7,HR,73", "line 8: a line must be HH:MM"),
        ("00:07,HR,73", "00:07,HR,fast", "line 8: a line must be HH:MM"),
        ("00:07,HR,73", "00:07,HR,inf", "line 8: the value must be finite"),
        ("00:07,HR,73", "00:07,Mood,3", "line 8: 'Mood' is not a parameter of the challenge"),
        ("48:00", "48:01", "line 13: the time must lie between 00:00 and 48:00; got 48:01"),
        ("02:07", "00:36", "line 12: the times must not decrease; got 00:36"),
    ],
)
def test_damaged_stays_are_named_with_the_line(old, new, message, tmp_path):
    (tmp_path / "1.txt").write_text(STAY.replace(old, new))
    with pytest.raises(DataError, match=message):
        read_stay(tmp_path / "1.txt")


def test_damaged_outcomes_are_named_with_the_line(tmp_path):
    path = tmp_path / "Outcomes-a.txt"
    path.write_text("RecordID,SAPS-I,In-hospital_death\n1,6,0\n2,7,1\n")
    assert read_outcomes(path) == {1: 0, 2: 1}
    for text, message in (
        ("RecordID,SAPS-I\n1,6\n", "must have the columns RecordID and In-hospital_death"),
        ("RecordID,In-hospital_death\n1,2\n", "line 2: expected 2 numbers and an outcome of 0 or 1"),
        ("", "must have the columns"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            read_outcomes(path)


def test_folds_are_disjoint_cover_all_and_share_the_outcomes_evenly():
    outcomes = (np.arange(400) % 8 == 0).astype(int)
    tests = []
    for fold in range(5):
        train, valid, test = folds(outcomes, fold)
        assert sorted([*train, *valid, *test]) == list(range(400))
        assert (len(train), len(valid), len(test)) == (280, 40, 80)
        assert [int(outcomes[part].sum()) for part in (train, valid, test)] == [35, 5, 10]
        tests.append(set(test.tolist()))
    assert len(set.union(*tests)) == 400
    assert set(folds(outcomes, 0, data_seed=1)[2].tolist()) != tests[0]


@pytest.fixture
def stays(tmp_path, monkeypatch):
    """Forty stays; that of number n has its only heart rates 60 + n and 62 + n, at the minutes 10 and 10 + n."""
    monkeypatch.setenv("LEM_DATA", str(tmp_path))
    monkeypatch.setenv("LEM_OFFLINE", "1")
    folder = tmp_path / "timeseries" / "physionet2012" / "set-a"
    folder.mkdir(parents=True)
    lines = ["RecordID,SAPS-I,In-hospital_death"]
    for n in range(1, 41):
        name = 132539 if n == 1 else 200000 + n
        later = f"{(10 + n) // 60:02}:{(10 + n) % 60:02}"
        text = f"Time,Parameter,Value\n00:00,RecordID,{name}\n00:00,Age,{n}\n00:00,ICUType,2\n"
        (folder / f"{name}.txt").write_text(f"{text}00:10,HR,{60 + n}\n{later},HR,{62 + n}\n")
        lines.append(f"{name},5,{int(n % 4 == 0)}")
    (folder.parent / "Outcomes-a.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_a_task_from_small_files(stays):
    task = make("elapsed", fold=1)
    parts = [task.train, task.valid, task.test()]
    assert [len(part) for part in parts] == [28, 4, 8]
    assert (task.facts.samples, task.facts.subset_of, task.facts.sizes) == (40, (4000,), (28, 4, 8))
    assert task.input_size == 2 * 37 + STATIC == parts[0].inputs.shape[2]
    numbers = [torch.round(20 * part.inputs[:, 0, 74] + 60).int() for part in parts]  # the age tells the stay
    assert sorted(torch.cat(numbers).tolist()) == list(range(1, 41))
    for part, n in zip(parts, numbers):
        assert part.targets.tolist() == (n % 4 == 0).int().tolist()
        assert part.lengths.tolist() == [3] * len(part)
        assert part.inputs[0, :, 37 + HR].tolist() == [0.0, 1.0, 1.0]  # what was measured
        assert part.inputs[0, :, 74 + 5 + 1].tolist() == [1.0, 1.0, 1.0]  # the unit of type 2
        gap = float(np.median(np.concatenate([np.full(28, 10.0), numbers[0].numpy()])))
        expected = torch.stack([torch.ones(len(n)), torch.full((len(n),), 10.0 / gap), n / gap], dim=1)
        assert_close(part.elapsed, expected, "float32")
    n = numbers[0].numpy()
    rates = np.concatenate([60.0 + n, 62.0 + n])
    low, high = np.quantile(rates, [0.005, 0.995])
    cut = np.clip(rates, low, high)
    expected = (np.clip(60.0 + n, low, high) - cut.mean()) / cut.std()
    assert_close(parts[0].inputs[:, 1, HR].numpy(), expected.astype(np.float32), "float32")
    assert (parts[0].inputs[:, 0, HR] == 0.0).all()


def test_the_ways_to_show_the_times(stays):
    elapsed, channel, ignored, bins = (make(times).train for times in ("elapsed", "channel", "ignore", "hourly"))
    assert torch.equal(channel.inputs[..., -1], elapsed.elapsed)
    assert torch.equal(channel.inputs[..., :-1], ignored.inputs)
    assert torch.equal(elapsed.inputs, ignored.inputs)
    assert channel.elapsed is ignored.elapsed is bins.elapsed is None
    assert bins.inputs.shape[1] == 48
    assert bins.inputs[:, 1:, 37 + HR].sum() == 0.0 or bins.inputs[:, 2:, 37 + HR].sum() == 0.0  # within two hours
    carried_on = bins.inputs[:, 2:, HR]
    assert torch.equal(carried_on, carried_on[:, :1].expand_as(carried_on))
    for options in ({"times": "daily"}, {"fold": 5}):
        with pytest.raises(ValueError, match="of physionet2012 must"):
            make(**options)


def test_a_stay_without_an_outcome_is_named(stays):
    (stays / "200041.txt").write_text("Time,Parameter,Value\n00:00,RecordID,200041\n")
    with pytest.raises(DataError, match=r"Outcomes-a.txt must have an outcome for record 200041"):
        make()


@needs("physionet2012")
def test_the_real_files():
    task = make()
    assert task.facts.subset_of is None
    parts = [task.train, task.valid, task.test()]
    assert [len(part) for part in parts] == [2800, 400, 800]
    assert sum(int(part.targets.sum()) for part in parts) == 554
    assert all(part.inputs.isfinite().all() and (part.elapsed > 0).all() for part in parts)
