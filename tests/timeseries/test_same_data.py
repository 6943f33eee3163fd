"""Tables as pandas and spreadsheets write them: zones and units of times, types of columns, ids of every type.

Separators, encodings and orders are in `test_reading.py`.
"""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pandas
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lem.timeseries.files import load
from lem.timeseries.layout import Reading
from tests.close import assert_close

READ = Reading(target="fault", series="pump", time="when", missing="mask")
SETTINGS = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
STARTS = {"pump": 7, "when": datetime(2024, 3, 1, 8, tzinfo=UTC)}


def original():
    """Three series of two channels, one row a minute, as pandas would hold them."""
    random = np.random.default_rng(0)
    rows = []
    for k, length in enumerate((5, 7, 6)):
        for step in range(length):
            values = (round(random.normal(), 3), round(100.0 * random.uniform(), 2))
            rows.append((f"p{k}", STARTS["when"] + timedelta(minutes=step), *values, "aus" if k % 2 else "an"))
    return pandas.DataFrame(rows, columns=["pump", "when", "flow", "druck", "fault"])


def text(frame):
    return frame.to_csv(index=False).encode()


def compare(found, expected):
    """Compare series, targets, names and columns."""
    assert found.names == expected.names
    assert [str(y) for y in found.y] == [str(y) for y in expected.y]
    assert found.schema.series == expected.schema.series
    order = [found.schema.columns.index(name) for name in expected.schema.columns]
    for x, wanted in zip(found.X, expected.X):
        assert_close(x[order], wanted, "exact")


def reference(tmp_path, frame):
    frame = frame.assign(when=[moment.strftime("%Y-%m-%d %H:%M:%S") for moment in frame["when"]])
    path = tmp_path / "reference.csv"
    path.write_bytes(text(frame))
    return load(path, READ)


@SETTINGS
@given(
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kathmandu"]),
    how=st.sampled_from(["iso", "offset", "z", "seconds", "milliseconds"]),
)
def test_times_in_other_zones_and_units(tmp_path, zone, how):
    frame = original()
    expected = reference(tmp_path, frame)
    local = [moment.astimezone(ZoneInfo(zone)) for moment in frame["when"]]
    written = {
        "iso": lambda moment: moment.isoformat(),
        "offset": lambda moment: moment.strftime("%Y-%m-%d %H:%M:%S%z"),
        "z": lambda moment: moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": lambda moment: str(int(moment.timestamp())),
        "milliseconds": lambda moment: str(int(moment.timestamp() * 1000)),
    }[how]
    path = tmp_path / "zones.csv"
    path.write_bytes(text(frame.assign(when=[written(moment) for moment in local])))
    found = load(path, READ)
    compare(found, expected)
    assert found.schema.interval is not None
    assert found.schema.interval > 0


def test_the_hour_that_comes_twice_is_not_sorted_wrongly(tmp_path):
    """On 27 October 2024 at 3:00 the clocks of Berlin go back to 2:00: with offsets nothing is ambiguous."""
    start = datetime(2024, 10, 27, 0, 30, tzinfo=UTC)
    berlin = [(start + timedelta(minutes=20 * k)).astimezone(ZoneInfo("Europe/Berlin")) for k in range(9)]
    values = [float(k) for k in range(9)]
    path = tmp_path / "night.csv"
    for form, good in (("%Y-%m-%d %H:%M:%S%z", True), ("%Y-%m-%d %H:%M:%S", False)):
        rows = [f"a,{moment.strftime(form)},{value},1" for moment, value in zip(berlin, values)]
        path.write_text("\n".join(["pump,when,v,fault", *rows[::-1]]) + "\n")
        if good:
            assert load(path, READ).X[0].tolist() == [values]
        else:
            with pytest.raises(ValueError, match="repeats"):
                load(path, READ)


def test_rows_with_different_offsets_are_one_time_axis(tmp_path):
    """Rows of one series in zones that differ are sorted by the moment, not by what the clock shows."""
    moments = [STARTS["when"] + timedelta(minutes=10 * k) for k in range(6)]
    zones = [timezone(timedelta(hours=h)) for h in (0, 5, -8, 0, 5, -8)]
    rows = [f"a,{m.astimezone(z).isoformat()},{k},1" for k, (m, z) in enumerate(zip(moments, zones))]
    path = tmp_path / "mixed.csv"
    path.write_text("\n".join(["pump,when,v,fault", *rows[::-1]]) + "\n")
    assert load(path, READ).X[0].tolist() == [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]


@SETTINGS
@given(
    number=st.sampled_from(["float64", "float32", "Int64", "int32"]),
    label=st.sampled_from(["object", "category", "string"]),
    moment=st.sampled_from(["text", "datetime", "zone", "int64"]),
    order=st.permutations(["pump", "when", "flow", "druck", "fault"]),
)
def test_types_of_parquet_columns(tmp_path, number, label, moment, order):
    frame = original()
    frame["flow"] = (frame["flow"] * 100).round()
    expected = reference(tmp_path, frame)
    when = pandas.Series(pandas.DatetimeIndex(frame["when"]), index=frame.index)
    times = {
        "text": when.dt.strftime("%Y-%m-%d %H:%M:%S"),
        "datetime": when.dt.tz_localize(None),
        "zone": when.dt.tz_convert("Asia/Kathmandu"),
        "int64": pandas.Series([int(moment.timestamp()) for moment in frame["when"]], index=frame.index),
    }[moment]
    frame = frame.assign(flow=frame["flow"].astype(number), fault=frame["fault"].astype(label), when=times)
    path = Path(tmp_path / "types.parquet")
    frame[order].to_parquet(path)
    compare(load(path, READ), expected)


@pytest.mark.parametrize("ids", [[1, 2, 3], ["1", "2", "3"], [1.0, 2.0, 3.0], [9007199254740993, 9007199254740992, 3]])
def test_ids_of_any_type_keep_series_apart(tmp_path, ids):
    frame = original()
    expected = reference(tmp_path, frame)
    frame["pump"] = [ids[int(name[1:])] for name in frame["pump"]]
    for path in (tmp_path / "ids.csv", tmp_path / "ids.parquet"):
        if path.suffix == ".csv":
            path.write_bytes(text(frame.assign(when=frame["when"].dt.strftime("%Y-%m-%d %H:%M:%S"))))
        else:
            frame.to_parquet(path)
        found = load(path, READ)
        assert found.names == [str(int(name)) for name in ids]
        for x, wanted in zip(found.X, expected.X):
            assert_close(x, wanted, "exact")


def test_a_broken_reader_is_caught(tmp_path):
    frame = original()
    expected = reference(tmp_path, frame)
    path = tmp_path / "swapped.csv"
    swapped = frame.rename(columns={"flow": "druck", "druck": "flow"})
    path.write_bytes(text(swapped.assign(when=swapped["when"].dt.strftime("%Y-%m-%d %H:%M:%S"))))
    with pytest.raises(AssertionError):
        compare(load(path, READ), expected)
