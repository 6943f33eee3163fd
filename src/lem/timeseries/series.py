"""What people call a set of time series, turned into one padded array: (sample, time, channel) and lengths.

Accepted are (n, length), (n, channels, length) as aeon, sktime and tslearn have it, a list of (channels, length) or
(length,) arrays of unequal lengths, lists and frames of sktime (`unpacked`), and a long table with one row per time
step (`from_table`).
"""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from lem.spelling import nearest
from lem.training.data import check_padding

SHAPES = "(n, length), (n, channels, length) or a list of (channels, length) arrays"


class Series(NamedTuple):
    """Padded series: `values` (sample, time, channel) in float64, zero past each of `lengths`.

    `elapsed` (sample, time) is the time since the previous observation, in units of the usual step, 1 in the padding;
    None where all steps are equal.
    """

    values: np.ndarray
    lengths: np.ndarray
    elapsed: np.ndarray | None = None

    def take(self, rows: np.ndarray) -> "Series":
        """Return some of the samples."""
        elapsed = None if self.elapsed is None else self.elapsed[rows]
        return Series(self.values[rows], self.lengths[rows], elapsed)


def as_series(X: Any, whose: str, missing: str = "error") -> Series:
    """Read X in any accepted form; what is wrong is named by sample, channel and position.

    Args:
        X: the series.
        whose: the name of the caller, for messages.
        missing: "error" refuses NaN, "mask" lets it pass; infinity is always refused.

    Examples:
        >>> import numpy as np
        >>> from lem.timeseries.series import as_series
        >>> series = as_series([np.zeros((2, 30)), np.zeros((2, 50))], "example")  # (channels, length) each
        >>> series.values.shape, series.lengths.tolist()  # (sample, time, channel)
        ((2, 50, 2), [30, 50])
    """
    if hasattr(X, "toarray"):
        raise TypeError(f"`X` of {whose} must be a dense array; got a sparse one: pass X.toarray().")
    if _is_frame(X):
        X = X.to_numpy()
    plain = isinstance(X, np.ndarray) and X.dtype != object
    series = _from_array(X, whose) if plain else _from_list(X, whose)
    _check_finite(series, whose, missing)
    return series


def unpacked(X: Any) -> Any:
    """Turn containers of sktime and aeon into a list of (channels, length) arrays; return anything else as it is.

    These are a frame whose cells hold series, a frame with an index of two levels (series, time), and a list of frames,
    whose rows are time.
    """
    if isinstance(X, list) and X and all(_is_frame(item) for item in X):
        return [np.asarray(item.to_numpy()).T for item in X]
    if not _is_frame(X):
        return X
    if getattr(getattr(X, "index", None), "nlevels", 1) == 2:
        values = np.asarray(X.to_numpy())
        keys, first, which = np.unique(np.asarray(X.index.get_level_values(0)), return_index=True, return_inverse=True)
        return [values[which == k].T for k in np.argsort(first)] if len(keys) else X
    cells = np.asarray(X.to_numpy())
    if cells.dtype == object and cells.size and all(np.ndim(cell) == 1 for cell in cells.flat):
        return [np.stack([np.asarray(cell, dtype=np.float64) for cell in row]) for row in cells]
    return X


def question_axes(series: Series, whose: str) -> None:
    """Warn if there are more channels than time steps, since the axes are then often swapped."""
    length, channels = series.values.shape[1:]
    if channels > length > 1:
        warnings.warn(
            f"`X` of {whose} has {channels} channels of {length} time steps each: series are (n, channels, length). If "
            "time comes second, pass X.transpose(0, 2, 1).",
            stacklevel=5,
        )


def _is_frame(X: Any) -> bool:
    return hasattr(X, "to_numpy") and hasattr(X, "columns")


def _from_array(X: np.ndarray, whose: str) -> Series:
    values = _numbers(X, whose, "")
    if values.ndim == 2:
        values = values[:, None, :]
    if values.ndim != 3:
        hint = (
            " Reshape your data: one series is X[None, :], n series of one step are X[:, None]."
            if values.ndim == 1
            else ""
        )
        raise ValueError(f"`X` of {whose} must be {SHAPES}; got an array of shape {X.shape}.{hint}")
    n, channels, length = values.shape
    if n == 0:
        raise ValueError(f"`X` of {whose} must have at least one series; got 0 sample(s) (shape={X.shape}).")
    if channels == 0 or length == 0:
        raise ValueError(
            f"`X` of {whose} must have at least one channel and one time step; got 0 feature(s) (shape={X.shape}) "
            "while a minimum of 1 is required."
        )
    return Series(np.ascontiguousarray(values.transpose(0, 2, 1)), np.full(n, length, dtype=np.int64))


def _from_list(X: Any, whose: str) -> Series:
    try:
        items = list(X)
    except TypeError:
        raise TypeError(f"`X` of {whose} must be {SHAPES}; got {type(X).__name__}.") from None
    if not items:
        raise ValueError(f"`X` of {whose} must have at least one series; got 0 sample(s).")
    if all(np.ndim(item) == 0 for item in items):
        raise ValueError(f"`X` of {whose} must be {SHAPES}; got a flat list. Reshape your data: one series is [[...]].")
    arrays: list[np.ndarray] = []
    for i, item in enumerate(items):
        array = _numbers(item, whose, f" of sample {i}")
        if _is_frame(item):  # a data frame has time in its rows
            array = array.T
        array = array[None] if array.ndim == 1 else array
        if array.ndim != 2:
            raise ValueError(f"Sample {i} of `X` of {whose} must be (channels, length); got shape {array.shape}.")
        if array.shape[1] == 0 or array.shape[0] == 0:
            raise ValueError(f"Sample {i} of `X` of {whose} must have at least one time step; got {array.shape}.")
        if array.shape[0] != arrays[0].shape[0] if arrays else False:
            raise ValueError(
                f"All samples of `X` of {whose} must have as many channels as sample 0, {arrays[0].shape[0]}; "
                f"got {array.shape[0]} in sample {i}. Series are (channels, length): transpose if time comes first."
            )
        arrays.append(array)
    lengths = np.array([array.shape[1] for array in arrays], dtype=np.int64)
    check_padding(lengths.tolist(), arrays[0].shape[0])
    values = np.zeros((len(arrays), int(lengths.max()), arrays[0].shape[0]))
    for row, array in zip(values, arrays):
        row[: array.shape[1]] = array.T
    return Series(values, lengths)


def _numbers(values: Any, whose: str, where: str) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: `X`{where} of {whose} must be real; got {array.dtype}.")
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        # scikit-learn's checks ask for TypeError where an entry is no number at all (a dict, say).
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"`X`{where} of {whose} must be numbers: every argument must be a string or a number; {error}."
        ) from error


def _check_finite(series: Series, whose: str, missing: str) -> None:
    bad = np.isinf(series.values) if missing == "mask" else ~np.isfinite(series.values)
    if not bad.any():
        return
    sample, position, channel = (int(i) for i in np.argwhere(bad)[0])
    nan = np.isnan(series.values[sample, position, channel])
    fix = " Set missing='mask' to let the model know what is missing." if nan else ""
    raise ValueError(
        f"`X` of {whose} must be finite; got {'NaN' if nan else 'infinity (inf)'} in sample {sample}, "
        f"channel {channel}, position {position}.{fix}"
    )


# --- long tables --------------------------------------------------------------------------------------------------


def from_table(
    table: Any,
    series: str | None,
    *,
    time: str | None = None,
    channels: list[str] | None = None,
    target: str | None = None,
) -> tuple[list[np.ndarray], np.ndarray | None]:
    """Turn a long table, one row per time step, into (list of (channels, length) arrays, targets or None).

    Args:
        table: a pandas or polars frame, or a mapping of columns.
        series: the column that names the series of a row; None where all rows are one series.
        time: the column to sort by within each series; the order of the rows by default.
        channels: the value columns; by default all others.
        target: the column of the target, which must not change within a series.

    Examples:
        >>> from lem.timeseries.series import from_table
        >>> table = {"machine": ["a", "a", "b"], "heat": [1.0, 2.0, 3.0], "broken": [0, 0, 1]}
        >>> X, y = from_table(table, "machine", target="broken")
        >>> X, y
        ([array([[1., 2.]]), array([[3.]])], array([0, 1]))
    """
    names = [str(name) for name in (table.columns if hasattr(table, "columns") else table)]
    for name in (series, time, target, *(channels or ())):
        if name is not None and name not in names:
            raise ValueError(
                f"A column of the table must be one of {', '.join(names)}; got {name!r}.{nearest(name, names)}"
            )
    chosen = channels or [name for name in names if name not in (series, time, target)]
    if not chosen:
        raise ValueError(f"The table must have at least one value column; got only {', '.join(names) or 'nothing'}.")
    counts = {name: len(table[name]) for name in names}
    if len(set(counts.values())) > 1:
        raise ValueError(f"The columns of the table must be equally long; got {counts}.")
    values = np.stack([_column(table, name) for name in chosen])
    if values.shape[1] == 0:
        raise ValueError("The table must have at least one row; got none.")
    if series is None:
        groups = [("the table", np.arange(values.shape[1]))]
    else:
        keys = np.asarray(table[series])
        unique, first, which = np.unique(keys, return_index=True, return_inverse=True)
        rows = np.argsort(which, kind="stable")
        parts = np.split(rows, np.cumsum(np.bincount(which))[:-1])
        groups = [(f"series {unique[k]}", parts[k]) for k in np.argsort(first)]
    X, y = [], []
    for name, rows in groups:
        if time is not None:
            moments = np.asarray(table[time])[rows]
            order = np.argsort(moments, kind="stable")
            rows, moments = rows[order], moments[order]
            repeated = np.flatnonzero(moments[1:] == moments[:-1])
            if len(repeated):
                raise ValueError(f"`{time}` must not repeat within {name}; got {moments[repeated[0]]} twice.")
        X.append(values[:, rows])
        if target is not None:
            labels = np.asarray(table[target])[rows]
            if not (labels == labels[0]).all():
                other = labels[labels != labels[0]][0]
                raise ValueError(f"`{target}` must not change within {name}; got {labels[0]} and {other}.")
            y.append(labels[0])
    return X, as_labels(y) if target is not None else None


def as_labels(values: Any) -> np.ndarray:
    """Return labels as an array; texts as objects, since an array of texts gives each the room of the longest."""
    if isinstance(values, list | tuple) and any(isinstance(value, str) for value in values):
        labels = np.empty(len(values), dtype=object)
        labels[:] = values
        return labels
    return np.asarray(values)


def _column(table: Mapping[str, Any], name: str) -> np.ndarray:
    """Return a column as numbers; the first entry that is none is named by its row."""
    column = np.asarray(table[name])
    try:
        return column.astype(np.float64)
    except (TypeError, ValueError):
        for row, entry in enumerate(column):
            try:
                float(np.nan if entry is None or entry == "" else entry)
            except (TypeError, ValueError):
                raise ValueError(f"Column {name!r} must hold numbers; got {str(entry)!r} in row {row + 1}.") from None
        return np.array([np.nan if entry is None or entry == "" else float(entry) for entry in column])
