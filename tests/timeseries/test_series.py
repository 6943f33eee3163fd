"""Every form of X gives the same padded array; everything wrong with it is named by its place."""

import hypothesis
import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import strategies as st

from lem.timeseries.series import as_series, from_table
from tests.close import assert_close

rng = np.random.default_rng(0)


def test_all_forms_of_equal_series_agree():
    X = rng.normal(size=(4, 3, 5))
    expected = as_series(X, "me")
    assert expected.values.shape == (4, 5, 3)
    for form in (list(X), X.astype(object), [x.tolist() for x in X], X.astype(np.float32).astype(np.float64)):
        assert_close(as_series(form, "me").values, expected.values, "float32")
    flat = as_series(X[:, 0], "me")
    for form in (X[:, 0].tolist(), list(X[:, 0]), pd.DataFrame(X[:, 0]), X[:, :1]):
        assert_close(as_series(form, "me").values, flat.values, "exact")


@hypothesis.given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 3))
def test_unequal_series_are_padded_with_zeros_behind_their_own_steps(lengths, channels):
    X = [rng.normal(size=(channels, length)) for length in lengths]
    series = as_series(X, "me")
    assert series.values.shape == (len(X), max(lengths), channels)
    assert series.lengths.tolist() == lengths
    for values, x in zip(series.values, X):
        assert_close(values[: x.shape[1]], x.T, "exact")
        assert not values[x.shape[1] :].any()


def _with(value):
    X = np.zeros((3, 2, 4))
    X[1, 0, 2] = value
    return X


@pytest.mark.parametrize(
    ("X", "missing", "words"),
    [
        (_with(np.nan), "error", "NaN in sample 1, channel 0, position 2. Set missing='mask'"),
        (_with(np.inf), "mask", r"infinity \(inf\) in sample 1, channel 0, position 2"),
        (np.zeros(4), "error", "got an array of shape \\(4,\\). Reshape your data"),
        ([1.0, 2.0], "error", "flat list"),
        (np.zeros((0, 4)), "error", "0 sample"),
        (np.zeros((2, 1, 0)), "error", "at least one channel and one time step"),
        ([], "error", "0 sample"),
        ([np.zeros((2, 3)), np.zeros((2, 0))], "error", "Sample 1 of `X` of me must have at least one time step"),
        ([np.zeros((2, 3)), np.zeros((3, 3))], "error", "as sample 0, 2; got 3 in sample 1"),
        ([np.zeros((1, 2, 3))], "error", "Sample 0 of `X` of me must be"),
        (np.zeros((2, 3), complex), "error", "Complex data not supported"),
        (np.array([["a", "b"]]), "error", "must be numbers"),
    ],
)
def test_wrong_series_are_named(X, missing, words):
    with pytest.raises(ValueError, match=words):
        as_series(X, "me", missing)


@pytest.mark.parametrize("X", [7, None])
def test_what_is_no_set_of_series_is_a_type_error(X):
    with pytest.raises(TypeError, match="`X` of me must be"):
        as_series(X, "me")


TABLE = {
    "who": ["b", "a", "b", "a", "b"],
    "when": [2, 1, 1, 2, 3],
    "v": [20.0, 1.0, 10.0, 2.0, 30.0],
    "w": [2, 1, 1, 2, 3],
    "label": ["x", "y", "x", "y", "x"],
}


@pytest.mark.parametrize("make", [dict, pd.DataFrame, pl.DataFrame])
def test_a_long_table_gives_series_in_order_of_appearance_sorted_by_time(make):
    X, y = from_table(make(TABLE), "who", time="when", target="label")
    assert [x.tolist() for x in X] == [[[10, 20, 30], [1, 2, 3]], [[1, 2], [1, 2]]]
    assert y.tolist() == ["x", "y"]
    whole, none = from_table(make(TABLE), None, channels=["v"])
    assert whole[0].shape == (1, 5)
    assert none is None


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({}, {"target": "lable"}, "must be one of who, when, v, w, label; got 'lable'. Did you mean 'label'"),
        ({"v": [1, 2, "three", 4, 5]}, {"target": "label"}, "Column 'v' must hold numbers; got 'three' in row 3"),
        ({"label": ["x", "y", "z", "y", "x"]}, {"target": "label"}, "`label` must not change within series b"),
        ({"when": [1, 1, 1, 2, 3]}, {"time": "when", "channels": ["v"]}, "`when` must not repeat within series b"),
        ({key: [] for key in TABLE}, {"channels": ["v"]}, "at least one row"),
    ],
)
def test_a_wrong_table_is_named(change, options, words):
    with pytest.raises(ValueError, match=words):
        from_table({**TABLE, **change}, "who", **options)


def test_an_empty_entry_is_a_missing_value():
    X, _ = from_table({"v": ["1", "", "3"]}, None)
    assert np.isnan(X[0]).tolist() == [[False, True, False]]


def test_tables_without_columns_or_with_unequal_ones_are_named():
    with pytest.raises(ValueError, match="at least one value column; got only nothing"):
        from_table({}, None)
    with pytest.raises(ValueError, match=r"must be equally long; got \{'a': 2, 'b': 1\}"):
        from_table({"a": [1, 2], "b": [1]}, None)
