"""Files of series in every format, and what is wrong with them, by row and column."""

import numpy as np
import polars as pl
import pytest

from lem.tables import read, write

ROWS = {"t0": [1.0, 4.0], "t1": [2.0, 5.0], "t2": [3.0, 6.0], "label": ["a", "b"]}
TS = "@problemName x\n@univariate true\n@classLabel true a b\n@data\n1,2,3:a\n4,5,6:b\n"
ARFF = "@relation x\n" + "".join(f"@attribute t{t} numeric\n" for t in range(3))
ARFF += "@attribute label {a,b}\n@data\n1,2,3,a\n4,5,6,b\n"


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz", ".ts", ".arff"])
def test_every_format_gives_the_same_series(suffix, tmp_path):
    path = tmp_path / f"data{suffix}"
    if suffix in (".csv", ".parquet"):
        write(path, ROWS)
    elif suffix == ".npz":
        np.savez(path, X=np.array([[1.0, 2, 3], [4, 5, 6]]), y=np.array(["a", "b"]))
    else:
        path.write_text(TS if suffix == ".ts" else ARFF)
    X, y, names = read(path, target="label" if suffix in (".csv", ".parquet") else None)
    assert [np.ravel(x).tolist() for x in X] == [[1, 2, 3], [4, 5, 6]]
    assert y.tolist() == ["a", "b"]
    assert names == ["0", "1"]


def test_a_long_table_and_a_padded_array_give_unequal_series(tmp_path):
    pl.DataFrame({"id": ["p", "p", "q"], "v": [1, 2, 3], "w": [4, 5, 6], "y": [0.5, 0.5, 1.5]}).write_csv(
        tmp_path / "a.csv"
    )
    X, y, names = read(tmp_path / "a.csv", series="id", target="y")
    assert [x.tolist() for x in X] == [[[1, 2], [4, 5]], [[3], [6]]]
    assert y.astype(float).tolist() == [0.5, 1.5]
    assert names == ["p", "q"]
    np.savez(tmp_path / "b.npz", X=np.zeros((2, 1, 4)), lengths=[4, 2])
    assert [x.shape for x in read(tmp_path / "b.npz").X] == [(1, 4), (1, 2)]
    assert read(tmp_path / "a.csv", channels=["v"], long=True).X[0].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a,b\n1,2\n", {"target": "c"}, "`target` must be a column of data.csv, one of a, b; got 'c'"),
        ("a,b\n1,2\n3\n", {}, "Row 2 of data.csv must have 2 entries; got 1"),
        ("a,b\n1,2\n3,x\n", {}, "Column 'b' must hold numbers; got 'x' in row 2"),
        ("a,a\n1,2\n", {}, "'a' twice"),
        ("a,b\n", {}, "a header and at least one row"),
    ],
)
def test_a_wrong_csv_is_named(text, options, words, tmp_path):
    (tmp_path / "data.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        read(tmp_path / "data.csv", **options)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in .csv, .parquet, .npz, .ts, .arff; got data.xlsx"):
        read(tmp_path / "data.xlsx")
    with pytest.raises(FileNotFoundError, match="must exist"):
        read(tmp_path / "data.csv")
    np.savez(tmp_path / "c.npz", X=np.array([None, {}], dtype=object))
    with pytest.raises(ValueError, match="no objects"):
        read(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", Y=np.zeros(3))
    with pytest.raises(ValueError, match="must hold the arrays X"):
        read(tmp_path / "d.npz")
