"""Files of series in every format, and what is wrong with them, by row and column."""

import csv
import io
import zipfile

import numpy as np
import polars as pl
import pytest

from lem.timeseries.files import read
from lem.timeseries.formats import read_table, write

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
    assert read(tmp_path / "a.csv", channels=["v"], forecast=True).X[0].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a,b\n1,2\n", {"target": "c"}, "`target` must name columns of data.csv, which are a, b; got 'c'"),
        ("a,b\n1,2\n3\n", {}, "Row 2 of data.csv must have 2 entries, as the header has; got 1"),
        ("a,b\n1,2\n2,2\n1,4\n3,x\n", {"layout": "wide"}, "Column 'b' must hold numbers; got 'x' in row 4"),
        ("a,a\n1,2\n", {}, "'a' twice"),
        ("a,b\n", {}, "a header and at least one row"),
    ],
)
def test_a_wrong_csv_is_named(text, options, words, tmp_path):
    (tmp_path / "data.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        read(tmp_path / "data.csv", **options)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in .csv, .tsv, .parquet, .npz, .ts, .arff; got data.dat"):
        read(tmp_path / "data.dat")
    with pytest.raises(FileNotFoundError, match="must exist"):
        read(tmp_path / "data.csv")
    np.savez(tmp_path / "c.npz", X=np.array([None, {}], dtype=object))
    with pytest.raises(ValueError, match="no objects"):
        read(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", Y=np.zeros(3))
    with pytest.raises(ValueError, match="must hold the arrays X"):
        read(tmp_path / "d.npz")


def npz(path, method=zipfile.ZIP_STORED, **arrays):
    with zipfile.ZipFile(path, "w", method) as box:
        for name, array in arrays.items():
            out = io.BytesIO()
            np.save(out, array)
            box.writestr(f"{name}.npy", out.getvalue())
    return path


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i2", "i8"])
def test_lengths_of_any_integer_type(tmp_path, dtype):
    path = npz(tmp_path / "x.npz", X=np.arange(6.0).reshape(2, 3), lengths=np.array([1, 3], dtype=dtype))
    assert [len(x) for x in read(path).X] == [1, 3]


def test_npz_that_cannot_be_read_is_refused_in_a_sentence(tmp_path):
    X = np.arange(600.0).reshape(2, 300)
    path = npz(tmp_path / "x.npz", zipfile.ZIP_LZMA, X=X)
    with pytest.raises(ValueError, match="compressed in a way that"):
        read(path)
    content = bytearray(npz(tmp_path / "x.npz", X=X).read_bytes())
    place = content.rindex(b"PK\x01\x02")
    content[place + 8] |= 1  # the flag of an encrypted member
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="is encrypted"):
        read(path)


def test_texts_of_a_table_are_objects_and_columns_of_lists_are_refused(tmp_path):
    import pyarrow
    from pyarrow import parquet

    words = ["a", "b" * 1000, None, "a"]
    table = {"v": [1.0, 2.0, 3.0, 4.0], "y": words, "z": pyarrow.array(words).dictionary_encode()}
    parquet.write_table(pyarrow.table(table), tmp_path / "x.parquet", row_group_size=2)
    columns = read_table(tmp_path / "x.parquet")
    assert [columns[name].dtype for name in "yz"] == [object, object]
    assert [columns[name].tolist() for name in "yz"] == [words, words]
    parquet.write_table(pyarrow.table({"v": [[1.0], [2.0]]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"Column 'v' of x\.parquet is nested"):
        read(tmp_path / "x.parquet")


def test_formulas_are_quoted_on_request(tmp_path):
    columns = {"=1+1": ["=cmd()", "+1", "-x", "@a", "\ta", "a=b", -1.5], "n": [1, -2.0, None, "-3", "1e5", "-1e-5", 2]}
    plain = write(tmp_path / "plain.csv", columns).read_text()
    assert plain.startswith("=1+1,n\n=cmd(),1\n")
    safe = list(csv.reader(io.StringIO(write(tmp_path / "safe.csv", columns, spreadsheet=True).read_text())))
    assert safe[0] == ["'=1+1", "n"]
    assert [row[0] for row in safe[1:]] == ["'=cmd()", "+1", "'-x", "'@a", "'\ta", "a=b", "-1.5"]
    assert [row[1] for row in safe[1:]] == ["1", "-2.0", "", "-3", "1e5", "-1e-5", "2"]
