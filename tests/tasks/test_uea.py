"""The `.ts` and `.arff` readers: files written by hand, the archive's own, and noise."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lem.tasks.uea import class_numbers, padded, read_series
from lem.training.data import DataError

TS = """# a comment
@problemName Toy
@timeStamps false
@missing true
@univariate false
@equalLength false
@classLabel true walk run
@data
1.0,2.5,-3e-1:4,5,6:walk
7,?:8,9:run
"""

ARFF = r"""% a comment
@relation 'Toy'
@attribute relationalAtt relational
@attribute att0 numeric
@attribute att1 numeric
@end relationalAtt
@attribute activity {walk,run}

@data
'1.0,2.5\n4,5',walk
'7,?\n8,9',run
"""


def read(tmp_path: Path, text: str | bytes, suffix: str = ".ts"):
    path = tmp_path / f"toy{suffix}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_series(path)


def test_ts_by_hand(tmp_path):
    series = read(tmp_path, TS)
    assert series.classes == ("walk", "run")
    assert series.labels == ["walk", "run"]
    np.testing.assert_array_equal(series.values[0], np.float32([[1.0, 4], [2.5, 5], [-0.3, 6]]))
    np.testing.assert_array_equal(series.values[1], np.float32([[7, 8], [np.nan, 9]]))
    stacked, lengths = padded(series.values)
    assert stacked.shape == (2, 3, 2)
    assert lengths is not None
    assert lengths.tolist() == [3, 2]
    assert stacked[1, 2].tolist() == [0.0, 0.0]
    numbers, names = class_numbers(series.labels)
    assert names == ("run", "walk")
    assert numbers.tolist() == [1, 0]


def test_arff_by_hand(tmp_path):
    series = read(tmp_path, ARFF, ".arff")
    assert series.classes == ("walk", "run")
    np.testing.assert_array_equal(series.values[0], np.float32([[1.0, 4], [2.5, 5]]))
    np.testing.assert_array_equal(series.values[1], np.float32([[7, 8], [np.nan, 9]]))
    assert padded(series.values)[1] is None
    flat = read(tmp_path, "@relation x\n@attribute a numeric\n@attribute target {0,1}\n@data\n1,2,3,0\n", ".arff")
    np.testing.assert_array_equal(flat.values[0], np.float32([[1], [2], [3]]))


def test_targets_to_predict(tmp_path):
    series = read(tmp_path, "@problemname x\n@targetlabel true\n@data\n1,2:0.25\n")
    assert series.classes == ()
    assert series.labels == ["0.25"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("@timeStamps false", "@timeStamps true", "line 8: time stamps are not supported"),
        (":walk", ":swim", "line 9: the label must be one of walk, run; got 'swim'"),
        ("-3e-1", "three", "line 9: a value must be a number"),
        ("-3e-1", "", "line 9: a value must be a number"),
        ("-3e-1", "1e39", "line 9: a value must be finite"),
        ("4,5,6", "4,5", r"line 9: the channels of a series must be equally long; got \[3, 2\]"),
        (":8,9", "", "line 10: a series must have 2 channels"),
        ("7,?:8,9:run", "7", "line 10: a series must have values and a label"),
        ("@data", "@dat", "line 9: a header line must start with '@'"),
        ("@classLabel true walk run", "@classLabel true", "must be followed by the labels"),
        ("@classLabel true walk run", "@classLabel", "the header must have"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, old, new, message):
    assert old in TS
    with pytest.raises(DataError, match=message):
        read(tmp_path, TS.replace(old, new))


def test_empty_files_and_other_kinds(tmp_path):
    with pytest.raises(DataError, match="must have a line '@data'"):
        read(tmp_path, "")
    with pytest.raises(DataError, match="at least one series"):
        read(tmp_path, "@targetLabel true\n@data\n")
    with pytest.raises(DataError, match="UTF-8"):
        read(tmp_path, b"\xff\xfe")
    with pytest.raises(DataError, match=r"must end in \.ts or \.arff"):
        read(tmp_path, "", ".csv")
    with pytest.raises(DataError, match="finite number"):
        read(tmp_path, "@targetLabel true\n@data\n1:nan\n")
    with pytest.raises(DataError, match="in quotes"):
        read(tmp_path, ARFF.replace("'7,?\\n8,9'", "7,8"), ".arff")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
@given(data=st.data())
def test_damage_gives_a_data_error_or_a_series(tmp_path, data):
    suffix = data.draw(st.sampled_from([".ts", ".arff"]))
    text = TS if suffix == ".ts" else ARFF
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 12))
        text = text[:at] + data.draw(st.text("@:,?'\"\\n {}-+.eE019x\n\x00é", max_size=8)) + text[at + cut :]
    try:
        series = read(tmp_path, text, suffix)
    except DataError:
        return
    assert len(series.values) == len(series.labels) > 0
    assert len({v.shape[1] for v in series.values}) == 1
    assert not any(np.isinf(v).any() for v in series.values)


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.none()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    series=st.integers(1, 3).flatmap(
        lambda channels: st.lists(
            st.integers(1, 5).flatmap(
                lambda n: st.lists(st.lists(numbers, min_size=n, max_size=n), min_size=channels, max_size=channels)
            ),
            min_size=1,
            max_size=4,
        )
    ),
    suffix=st.sampled_from([".ts", ".arff"]),
)
def test_what_is_written_is_read(tmp_path, series, suffix):
    text = [[",".join("?" if v is None else repr(v) for v in channel) for channel in one] for one in series]
    if suffix == ".ts":
        lines = ["@classLabel true a", "@data", *(":".join([*one, "a"]) for one in text)]
    else:
        lines = [
            "@attribute r relational",
            "@attribute c {a}",
            "@data",
            *("'" + r"\n".join(one) + "',a" for one in text),
        ]
    back = read(tmp_path, "\n".join(lines), suffix).values
    for one, values in zip(series, back):
        expected = np.array([[np.nan if v is None else v for v in channel] for channel in one], dtype=np.float32).T
        np.testing.assert_array_equal(values, expected)


ARCHIVE = Path(os.environ.get("LEM_DATA", "")) / "ucr_uea"


@pytest.mark.data
@pytest.mark.skipif(not (os.environ.get("LEM_DATA") and ARCHIVE.is_dir()), reason="LEM_DATA has no ucr_uea folder")
class TestArchive:
    @pytest.mark.parametrize(
        ("name", "count", "channels", "shortest", "longest", "classes"),
        [
            ("ArrowHead/ArrowHead_TRAIN.ts", 36, 1, 251, 251, 3),
            ("ArrowHead/ArrowHead_TEST.ts", 175, 1, 251, 251, 3),
            ("BasicMotions/BasicMotions_TRAIN.ts", 40, 6, 100, 100, 4),
            ("ACSF1/ACSF1_TRAIN.ts", 100, 1, 1460, 1460, 10),
            ("GunPoint/GunPoint_TEST.ts", 150, 1, 150, 150, 2),
            ("JapaneseVowels/JapaneseVowels_TRAIN.ts", 270, 12, 7, 26, 9),
            ("JapaneseVowels/JapaneseVowels_TEST.ts", 370, 12, 7, 29, 9),
            ("PickupGestureWiimoteZ/PickupGestureWiimoteZ_TRAIN.ts", 50, 1, 29, 361, 10),
            ("Covid3Month/Covid3Month_TRAIN.ts", 140, 1, 84, 84, 0),
        ],
    )
    def test_known_sizes(self, name, count, channels, shortest, longest, classes):
        series = read_series(ARCHIVE / name)
        assert (len(series.values), len(series.classes)) == (count, classes)
        assert {v.shape[1] for v in series.values} == {channels}
        assert min(len(v) for v in series.values) == shortest
        assert max(len(v) for v in series.values) == longest

    @pytest.mark.parametrize("name", ["BasicMotions/BasicMotions_TRAIN", "GunPoint/GunPoint_TRAIN"])
    def test_both_formats_agree(self, name):
        ts, arff = read_series(ARCHIVE / f"{name}.ts"), read_series(ARCHIVE / f"{name}.arff")
        assert [float(a) if a[0].isdigit() else a.lower() for a in ts.labels] == [
            float(a) if a[0].isdigit() else a.lower() for a in arff.labels
        ]
        for a, b in zip(ts.values, arff.values):
            np.testing.assert_allclose(a, b, rtol=1e-6)

    def test_time_stamps_are_refused_with_a_reason(self):
        with pytest.raises(DataError, match="equally spaced"):
            read_series(ARCHIVE / "UnitTest/UnitTestTimeStamps_TRAIN.ts")
