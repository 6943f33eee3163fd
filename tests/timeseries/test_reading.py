"""Tables in every order, type, encoding and time zone: the same series, or a refusal; never other series."""

import datetime
import math

import hypothesis
import numpy as np
import pyarrow
import pytest
from hypothesis import strategies as st
from pyarrow import parquet

from lem.timeseries.files import load, read
from lem.timeseries.formats import as_csv
from lem.timeseries.layout import Reading
from lem.timeseries.schema import Schema
from lem.timeseries.scores import score_classes, score_numbers, wilson
from lem.timeseries.times import parse_times, show_span
from lem.wording import InputError

READING = Reading(series="gerät", time="zeit", target="zustand", missing="mask")
START = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)


def rows(count=6, steps=4):
    rng = np.random.default_rng(0)
    return [
        {
            "gerät": f"p{k}",
            "zeit": START + datetime.timedelta(minutes=j),
            "druck": round(float(rng.normal()), 3),
            "fluss": None if (k, j) == (2, 1) else round(float(rng.normal()), 3),
            "zustand": "größer" if k % 2 else "kleiner",
        }
        for k in range(count)
        for j in range(steps)
    ]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The series of the plainest file, which the schema is taken from."""
    path = tmp_path_factory.mktemp("plain") / "plain.csv"
    columns = {name: [row[name] for row in rows()] for name in rows()[0]}
    columns["zeit"] = [moment.isoformat() for moment in columns["zeit"]]
    columns["fluss"] = ["" if value is None else value for value in columns["fluss"]]
    path.write_text(as_csv(columns))
    return load(path, READING)


@hypothesis.settings(
    max_examples=60, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(data=st.data())
def test_the_same_table_in_another_form_is_the_same_series(data, expected, tmp_path):
    table = rows()
    order = data.draw(st.permutations(list(table[0])))
    shuffled = data.draw(st.permutations(range(len(table)))) if data.draw(st.booleans()) else range(len(table))
    table = [table[row] for row in shuffled]
    zone = datetime.timezone(datetime.timedelta(hours=data.draw(st.integers(-12, 12))))
    if data.draw(st.booleans()):
        path = tmp_path / "data.parquet"
        columns = {name: [row[name] for row in table] for name in order}
        if data.draw(st.booleans()):
            columns["druck"] = pyarrow.array(columns["druck"], pyarrow.float64())
        parquet.write_table(pyarrow.table(columns), path)
    else:
        path = tmp_path / "data.csv"
        comma = data.draw(st.booleans())
        missing = data.draw(st.sampled_from(["", "NA", "nan", "NULL"]))
        delimiter = ";" if comma else data.draw(st.sampled_from([",", ";", "\t"]))

        def write(value):
            if value is None:
                return missing
            if isinstance(value, datetime.datetime):
                return value.astimezone(zone).isoformat()
            return str(value).replace(".", ",") if comma and isinstance(value, float) else str(value)

        lines = [delimiter.join(order), *(delimiter.join(write(row[name]) for name in order) for row in table)]
        ending = data.draw(st.sampled_from(["\n", "\r\n"]))
        encoding = data.draw(st.sampled_from(["utf-8", "utf-8-sig", "latin-1", "utf-16"]))
        path.write_bytes(ending.join(lines).encode(encoding))
    found = load(path, schema=expected.schema)
    places = [found.names.index(name) for name in expected.names]
    for k, place in enumerate(places):
        np.testing.assert_array_equal(found.X[place], expected.X[k])
        assert found.y[place] == expected.y[k]


def test_a_swapped_order_without_a_schema_would_be_noticed(expected, tmp_path):
    """The broken twin: a reader that goes by position gives other series for another order of columns."""
    columns = {name: [row[name] for row in rows()] for name in ("gerät", "zeit", "fluss", "druck", "zustand")}
    columns["zeit"] = [moment.isoformat() for moment in columns["zeit"]]
    columns["fluss"] = ["" if value is None else value for value in columns["fluss"]]
    (tmp_path / "x.csv").write_text(as_csv(columns))
    by_position, by_name = load(tmp_path / "x.csv", READING), load(tmp_path / "x.csv", schema=expected.schema)
    assert not np.array_equal(by_position.X[0], expected.X[0])
    assert np.array_equal(by_name.X[0], expected.X[0])


@hypothesis.given(st.lists(st.sampled_from(["a", "b", "c", "d", "e", "f", "id", "time"]), unique=True, max_size=8))
def test_a_schema_takes_all_its_columns_or_refuses(present):
    schema = Schema("long", ("a", "b"), ("a", "b"), series="id", time="time", target="y")
    if {"a", "b", "id", "time"} <= set(present):
        assert schema.match(present, "x.csv") == [name for name in present if name in ("c", "d", "e", "f")]
    else:
        with pytest.raises(InputError, match="which the model was trained on"):
            schema.match(present, "x.csv")


def test_a_schema_survives_the_model_file_and_a_false_one_is_refused():
    schema = Schema("long", ("a", "b"), ("a", "b"), ("c",), "id", "t", "y", ("z",), "text", "datetime", None, 60.0)
    assert Schema.from_plain(schema.plain(), 3) == schema
    assert Schema.from_plain({**schema.plain(), "of a later version": 1}, 3) == schema
    wrong = [
        ("layout", "round"),
        ("channels", [1]),
        ("channels", ["a"]),
        ("interval", -1.0),
        ("interval", float("nan")),
    ]
    wrong += [("series", 3), ("gaps", "some"), ("columns", ["a", "c"]), ("time_kind", "clock")]
    for name, value in wrong:
        with pytest.raises(ValueError):
            Schema.from_plain({**schema.plain(), name: value}, 3)
    for broken in (None, [], {}):
        with pytest.raises(ValueError):
            Schema.from_plain(broken, 3)


@pytest.mark.parametrize(
    ("entries", "kind", "seconds"),
    [
        (["2024-01-31 12:00:05", "2024-01-31T12:00:06.5"], "datetime", 1.5),
        (["2024-01-31T12:00:00Z", "2024-01-31T14:00:01+02:00"], "datetime", 1.0),
        (["31.01.2024", "01.02.2024"], "datetime", 86400.0),
        (["12/31/2024 23:59", "01/01/2025 0:00"], "datetime", 60.0),
        (["00:01:30", "00:01:31.25"], "duration", 1.25),
        (["1 days 00:00:00", "1 days 00:00:02"], "duration", 2.0),
        (["90 s", "2 min"], "duration", 30.0),
        (["250ms", "1 s"], "duration", 0.75),
        (["1700000000", "1700000060"], "number", 60.0),
        (["0.5", "0.75"], "number", 0.25),
    ],
)
def test_times_of_every_form(entries, kind, seconds):
    times = parse_times(np.array(entries, dtype=object), "t")
    assert times.kind == kind
    assert np.diff(times.values)[0] / times.unit == seconds


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (["2024-01-31", "soon"], "got 'soon' in row 2"),
        (["2024-01-31T12:00Z", "2024-01-31T12:01"], "time zone in every row or in none; row 1 and row 2 differ"),
        (["01/02/2024", "03/04/2024"], "cannot be told apart"),
        (["13/02/2024", "02/13/2024"], "cannot be told apart"),
        (["1", ""], "row 2 has none"),
        (["10 s", "20 parsec"], "must hold durations"),
        (["1500-01-01", "1500-01-02"], "between the years 1678 and 2261"),
    ],
)
def test_times_that_cannot_be_read_are_named(entries, words):
    with pytest.raises(InputError, match=words):
        parse_times(np.array(entries, dtype=object), "t")


def test_a_format_settles_dates_that_can_be_read_in_two_ways():
    entries = np.array(["01/02/2024", "03/02/2024"], dtype=object)
    assert np.diff(parse_times(entries, "t", "%d/%m/%Y").values)[0] == 2 * 86400 * 10**9
    with pytest.raises(InputError, match="must have the form of `time_format`"):
        parse_times(entries, "t", "%Y-%m-%d")


@pytest.mark.parametrize(
    ("span", "text"), [(0.001, "1 ms"), (1.0, "1 s"), (90.0, "90 s"), (3600.0, "1 h"), (86400.0, "1 d")]
)
def test_spans_are_written_in_the_unit_a_reader_would_use(span, text):
    assert show_span(span, "datetime") == text


def test_wide_tables_sort_their_steps_and_know_channels(tmp_path):
    (tmp_path / "x.csv").write_text("flow_1,flow_10,flow_2,p_1,p_2,p_10,y\n1,3,2,4,5,6,a\n7,9,8,0,1,2,b\n")
    found = load(tmp_path / "x.csv", Reading(target="y"))
    assert found.schema.channels == ("flow", "p")
    assert found.X[0].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert found.describe() == "2 series of 3 steps, 2 channels (flow, p), target y: a 1, b 1"
    (tmp_path / "more.csv").write_text("flow_1,flow_2,flow_10,flow_11,p_1,p_2,p_10\n1,2,3,4,5,6,7\n")
    with pytest.raises(InputError, match=r"more steps than the model was trained on: flow_11.*ignore=\['flow_11'\]"):
        load(tmp_path / "more.csv", schema=found.schema, targets=False)
    (tmp_path / "age.csv").write_text("t1,t2,t3,age,y\n1,2,3,40,a\n4,5,6,50,b\n")
    with pytest.raises(InputError, match=r"static=\['age'\]"):
        read(tmp_path / "age.csv", target="y")
    X, _, _ = read(tmp_path / "age.csv", target="y", static=("age",))
    assert X[1].tolist() == [[4, 5, 6], [50, 50, 50]]


def test_resampling_interpolates_onto_the_usual_interval(tmp_path):
    (tmp_path / "x.csv").write_text(
        "id,t,v,y\n" + "".join(f"a,{t},{2 * t},0\n" for t in (0, 1, 2, 5, 6)) + "b,0,1,1\nb,1,3,1\n"
    )
    found = load(tmp_path / "x.csv", Reading(series="id", time="t", target="y", gaps="resample"))
    assert found.X[0].tolist() == [[0, 2, 4, 6, 8, 10, 12]]
    assert found.X[1].tolist() == [[1, 3]]
    assert found.notes == ["1 irregular steps of time: interpolated at every 1"]


@pytest.mark.filterwarnings("ignore:A single label was found")
@hypothesis.settings(deadline=None)  # the first example imports scikit-learn
@hypothesis.given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_scores_agree_with_scikit_learn(truth, random):
    from sklearn import metrics

    answer = [random.choice("abc") for _ in truth]
    scores = score_classes(np.array(truth), np.array(answer))
    labels = sorted({*truth, *answer})
    assert list(scores.classes) == labels
    assert scores.confusion == metrics.confusion_matrix(truth, answer, labels=labels).tolist()
    found = metrics.precision_recall_fscore_support(truth, answer, labels=labels, zero_division=0)
    for k, label in enumerate(labels):
        each = scores.classes[label]
        theirs = [column[k] for column in found]
        assert [each["precision"], each["recall"], each["f1"], each["support"]] == pytest.approx(theirs)
    assert scores.values["accuracy"] == pytest.approx(metrics.accuracy_score(truth, answer))
    recalls = [scores.classes[label]["recall"] for label in set(truth)]
    assert scores.values["balanced_accuracy"] == pytest.approx(np.mean(recalls))
    assert 0.0 <= scores.values["accuracy_low"] <= scores.values["accuracy"] <= scores.values["accuracy_high"] <= 1.0


def test_scores_of_probabilities_agree_with_plain_loops():
    random = np.random.default_rng(0)
    names = np.array(["a", "b", "c"])
    chances = random.dirichlet([0.5, 1.0, 2.0], 200)
    answer = names[chances.argmax(1)]
    truth = np.where(random.uniform(size=200) < 0.6, answer, "b")
    truth[0] = "d"  # which the model does not know
    values = score_classes(truth, answer, chances, names).values
    logs, bins = [], {}
    for label, row, said in zip(truth, chances, answer):
        logs.append(-math.log(max(dict(zip(names, row)).get(label, 0.0), 1e-12)))
        bins.setdefault(min(int(10 * max(row)), 9), []).append((said == label) - max(row))
    assert values["log_loss"] == pytest.approx(np.mean(logs))
    assert values["calibration_error"] == pytest.approx(sum(abs(sum(gaps)) for gaps in bins.values()) / 200)
    wrong = score_classes(truth, answer, chances[:, ::-1], names).values
    assert wrong["log_loss"] != pytest.approx(values["log_loss"])
    assert "calibration error" in "\n".join(score_classes(truth, answer, chances, names).lines())


def test_wilsons_interval_and_the_baseline_of_numbers():
    # statsmodels: proportion_confint(8, 10, method="wilson")
    assert wilson(8, 10) == pytest.approx((0.490162, 0.943318), abs=1e-6)
    assert wilson(0, 5)[0] == 0.0
    assert wilson(5, 5)[1] == 1.0
    truth = np.array([1.0, 2.0, 6.0])
    scores = score_numbers("regressor", truth, truth + 1.0, np.array(3.0), "three")
    assert scores.values["mae"] == scores.values["rmse"] == 1.0
    assert scores.values["r2"] == pytest.approx(1 - 3 / 14)
    assert scores.values["baseline_r2"] == pytest.approx(0.0)
    assert score_numbers("regressor", truth * 0, truth, np.array(0.0), "").values["r2"] is None
