"""Tables in Python, arrays and data frames: as matrices or frames of narwhals, columns in a model's order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

import numpy as np

from pynade.tables.modules import nw, polars

MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "nat", "<na>")  # texts, in lower case
FRAMES = ("pandas", "polars", "pyarrow")
Names = Sequence[str] | None


def as_matrix(X: Any) -> tuple[Any, list[str] | None]:
    """Return the numbers of an array or a data frame, and its column names.

    Booleans become 0 and 1; None and the missing values of pandas, polars and pyarrow become NaN.

    Args:
        X: A NumPy array, a list of rows, or a frame of pandas, polars or pyarrow (names that are not all
            strings are none). Anything else (a sparse matrix, a tensor, a Series) is returned as it is.

    Example:
        >>> import polars
        >>> as_matrix(polars.DataFrame({"a": [1, None], "b": [True, False]}))
        (array([[ 1.,  1.], [nan,  0.]]), ['a', 'b'])
    """
    X = rows_of(X) if isinstance(X, list | tuple) else X
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "OUSMm":
        names, columns, n = None, [_numbers(X[:, i], i) for i in range(X.shape[1])], len(X)
    elif frame_kind(X) is None:
        return X, None
    else:
        frame, _ = _eager(X)
        names, n = list(frame.columns), len(frame)
        columns = [_numbers(column.to_numpy(), column.name) for column in frame.iter_columns()]
        names = names if all(isinstance(name, str) for name in names) else None
    return np.stack(columns, axis=1) if columns else np.empty((n, 0)), names


def _numbers(cells: np.ndarray, name: str | int) -> np.ndarray:
    """The numbers of a column, or a sentence that names it and a value."""
    if cells.dtype.kind not in "OUSMm":
        return cells.astype(np.uint8) if cells.dtype.kind == "b" else cells
    numbers = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells.tolist() if cells.dtype.kind in "US" else cells):
        if is_missing(cell):
            continue
        text, day = isinstance(cell, str | bytes), isinstance(cell, date | time | np.datetime64)
        if text or day or isinstance(cell, timedelta | np.timedelta64):
            what = "text" if text else "dates" if day else "durations"
            held = f"column {name!r} holds {what} such as {cell if text else str(cell)!r}"
            raise ValueError(f"{held}; expected numbers: leave the column out or encode it as numbers")
        numbers[i] = float(cell)
    return numbers


def rows_of(X: Any) -> np.ndarray:
    """An array of rows; a list with words becomes one of objects, since a word turns all cells to text."""
    rows = np.asarray(X)
    return np.asarray(X, dtype=object) if rows.dtype.kind in "US" and isinstance(X, list | tuple) else rows


def is_missing(cell: Any) -> bool:
    """Whether a cell is None, NaN, or the missing value of pandas or NumPy."""
    if isinstance(cell, float | datetime | np.generic):
        return bool(cell != cell)
    return cell is None or type(cell).__name__ == "NAType"  # of pandas, which need not be installed


def frame_kind(X: Any) -> str | None:
    """Return what a frame is of: pandas, polars or pyarrow; None for anything else, such as an array.

    Example:
        >>> import polars
        >>> frame_kind(polars.DataFrame({"a": [1]}))
        'polars'
    """
    homes = (base.__module__.partition(".")[0] for base in type(X).__mro__)
    return next((home for home in homes if home in FRAMES), None) if hasattr(type(X), "columns") else None


def native_frame(X: Any, names: Names = None) -> tuple[Any, str]:
    """Return a table as a frame of narwhals, and what it was: pandas, polars, pyarrow or numpy.

    It is a frame, a dictionary of columns, an array or a list of rows, whose columns have the `names`, or
    ``x1``, ``x2``, …; a masked array has missing cells where its mask is set.
    """
    if isinstance(X, np.ndarray | list | tuple):
        return nw.from_native(_array_frame(X, names)), "numpy"
    if isinstance(X, dict):
        if len(lengths := {len(values) for values in X.values()}) > 1:
            raise ValueError(f"the columns of a table have one length, not {sorted(lengths)}")
        X = polars.DataFrame([_series(str(name), values) for name, values in X.items()])
    frame, kind = _eager(X)
    if any(not isinstance(name, str) for name in frame.columns):
        frame = nw.from_native(X.rename(columns={name: str(name) for name in X.columns}))
    return frame, kind


def _eager(X: Any) -> tuple[Any, str]:
    """A frame of narwhals with the names that X has, and its kind; a sentence about anything else."""
    X = X.collect() if hasattr(type(X), "collect") else X  # a lazy frame
    columns = "column_names" if frame_kind(X) == "pyarrow" else "columns"
    check_names([str(name) for name in getattr(X, columns, ())])
    try:
        frame: Any = nw.from_native(X)
    except TypeError:
        expected = "expected a data frame (pandas, polars, pyarrow) or an array"
        raise ValueError(f"{expected}, not {type(X).__name__}") from None
    kind = frame.implementation.name.lower()
    if kind not in FRAMES:
        raise ValueError(f"frames of {kind} are not supported; convert it to pandas, polars or pyarrow")
    return frame, kind


def _array_frame(X: Any, names: Names) -> Any:
    """A polars frame of an array's columns."""
    rows, hidden = rows_of(X), np.ma.getmask(X)
    if rows.ndim != 2:
        raise ValueError(f"expected a table of rows and columns, not an array of shape {rows.shape}")
    if rows.dtype.kind == "c":
        raise ValueError("Complex data not supported: expected real numbers, text or dates")
    rows = rows.astype("datetime64[us]") if rows.dtype.kind == "M" else rows
    rows = rows if hidden is np.ma.nomask else np.where(hidden, None, rows)
    names = default_names(rows.shape[1]) if names is None or len(names) != rows.shape[1] else names
    columns = [column.tolist() if rows.dtype == object else np.ascontiguousarray(column) for column in rows.T]
    return polars.DataFrame([_series(name, column) for name, column in zip(names, columns, strict=True)])


def _series(name: str, values: Any) -> Any:
    """A polars series of values, of which some may be missing."""
    if isinstance(values, list | tuple):
        values = one_type([None if is_missing(v) else v for v in values])
    return polars.Series(name, values, strict=False)


def one_type(values: list[Any]) -> list[Any]:
    """The values, all as text where some are; None stays."""
    if len({isinstance(v, str) for v in values if v is not None}) > 1:
        return [None if v is None else str(v) for v in values]
    return values


def check_names(names: Sequence[str]) -> None:
    """Raise a ValueError if a column name occurs twice."""
    for name, n in Counter(names).items():
        if n > 1:
            raise ValueError(f"column name {name!r} occurs more than once; column names must differ")


def default_names(n: int) -> list[str]:
    """Return the names of n columns that have none: ``x1``, ``x2``, …"""
    return [f"x{i + 1}" for i in range(n)]


def align(rows: np.ndarray, names: Names, wanted: Names, dropped: Sequence[str] = ()) -> np.ndarray:
    """Return the columns of a model, in its order.

    Columns are taken as they stand where `names` (of the table) or `wanted` (of the model) is None or ``x1``,
    ``x2``, … Columns that were left out before training are `dropped` here too.

    Example:
        >>> align(np.array([[1, 0]]), ["b", "a"], ["a", "b"]).tolist()
        [[0, 1]]
        >>> align(np.array([[1]]), ["b"], ["a", "b"])
        Traceback (most recent call last):
        ValueError: the model was trained on other columns: there is no column 'a'
    """
    if dropped and names is None:
        names = default_names(rows.shape[1])
    if names is None or wanted is None:
        return rows
    kept = [k for k, name in enumerate(names) if name not in dropped]
    found, wanted = [names[k] for k in kept], list(wanted)
    if found == wanted or any(side == default_names(len(side)) for side in (found, wanted)):
        return rows[:, kept] if len(kept) < len(names) else rows
    check_columns(found, wanted, [name for name in found if name not in wanted])
    return rows[:, [kept[found.index(name)] for name in wanted]]


def check_columns(found: Sequence[str], wanted: Sequence[str], extra: Sequence[str] = ()) -> None:
    """Raise a ValueError that names the wanted columns that were not found, and those that are none."""
    known, faults = set(found), []
    if lacking := [name for name in wanted if name not in known]:
        faults.append(f"there {'is no column' if len(lacking) == 1 else 'are no columns'} {_listed(lacking)}")
    if extra:
        faults.append(f"{_listed(extra)} {'is not one' if len(extra) == 1 else 'are none'} of its columns")
    if faults:
        raise ValueError(f"the model was trained on other columns: {', and '.join(faults)}")


def _listed(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(map(repr, names[:most])) + f" and {len(names) - most} more" * (len(names) > most)
