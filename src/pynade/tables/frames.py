"""Tables in Python: arrays and data frames as matrices of numbers, columns in the order of a model."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, time, timedelta
from typing import Any

import numpy as np

Names = Sequence[str] | None


def as_matrix(X: Any) -> tuple[Any, list[str] | None]:
    """Return the numbers of an array or a data frame, and its column names.

    Booleans become 0 and 1; None and the missing values of pandas, polars and pyarrow become NaN.

    Args:
        X: A NumPy array, a list of rows, or a frame of pandas, polars or pyarrow. Anything else (a sparse
            matrix, a tensor, a Series) is returned as it is.

    Returns:
        The array, and the column names: None for an array, and for a frame whose names are not all strings.

    Raises:
        ValueError: A column holds text or dates, or two columns have the same name; the sentence names it.

    Example:
        >>> import polars
        >>> as_matrix(polars.DataFrame({"a": [1, None], "b": [True, False]}))
        (array([[ 1.,  1.], [nan,  0.]]), ['a', 'b'])
    """
    if isinstance(X, list | tuple):
        rows = np.asarray(X)
        X = np.asarray(X, dtype=object) if rows.dtype.kind in "US" else rows  # a word turns all cells to text
    if isinstance(X, np.ndarray):
        if X.ndim == 2 and X.dtype.kind in "OUSMm":
            return _stack([_numbers(X[:, i], i) for i in range(X.shape[1])], len(X)), None
        return X, None
    if not hasattr(X, "collect_schema") and not hasattr(X, "columns"):
        return X, None
    import narwhals

    try:
        frame = narwhals.from_native(X, pass_through=True)
    except narwhals.exceptions.DuplicateError:
        check_names([str(name) for name in X.columns])
        raise
    if isinstance(frame, narwhals.LazyFrame):
        frame = frame.collect()
    if not isinstance(frame, narwhals.DataFrame):
        return X, None
    names = list(frame.columns)
    rows = _stack([_numbers(column.to_numpy(), column.name) for column in frame.iter_columns()], len(frame))
    return rows, names if all(isinstance(name, str) for name in names) else None


def _stack(columns: list[np.ndarray], n: int) -> np.ndarray:
    return np.stack(columns, axis=1) if columns else np.empty((n, 0))


def _numbers(cells: np.ndarray, name: str | int) -> np.ndarray:
    """Return the numbers of a column, or raise a sentence that names it and a value."""
    if cells.dtype.kind == "b":
        return cells.astype(np.uint8)
    if cells.dtype.kind not in "OUSMm":
        return cells
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


def is_missing(cell: Any) -> bool:
    """Whether a cell is None, NaN, or the missing value of pandas or NumPy."""
    return (
        cell is None
        or type(cell).__name__ in ("NAType", "NaTType")  # of pandas, which need not be installed
        or (isinstance(cell, float | np.floating) and bool(cell != cell))
        or (isinstance(cell, np.datetime64 | np.timedelta64) and bool(np.isnat(cell)))
    )


def check_names(names: Sequence[str]) -> None:
    """Raise a ValueError if a column name occurs twice."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"column name {twice!r} occurs more than once; column names must differ") from None


def default_names(n: int) -> list[str]:
    """Return the names of n columns that have none: ``x1``, ``x2``, …"""
    return [f"x{i + 1}" for i in range(n)]


def align(rows: np.ndarray, names: Names, wanted: Names, dropped: Sequence[str] = ()) -> np.ndarray:
    """Return the columns of a model, in its order.

    Columns are taken as they stand where one side has no names, or only ``x1``, ``x2``, …

    Args:
        rows: The table, (N, columns).
        names: The column names of the table; None if it has none.
        wanted: The column names of the model; None if it has none.
        dropped: Columns that were left out before training, and are left out here too.

    Raises:
        ValueError: Columns are missing, or the model does not know some; the sentence names them.

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
    missing = [name for name in wanted if name not in found]
    extra = [name for name in found if name not in wanted]
    faults = []
    if missing:
        faults.append(f"there {'is no column' if len(missing) == 1 else 'are no columns'} {_listed(missing)}")
    if extra:
        faults.append(f"{_listed(extra)} {'is not one' if len(extra) == 1 else 'are none'} of its columns")
    if faults:
        raise ValueError(f"the model was trained on other columns: {', and '.join(faults)}")
    return rows[:, [kept[found.index(name)] for name in wanted]]


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def frame_kind(X: Any) -> str | None:
    """Return what a frame is of: pandas, polars or pyarrow; None for anything else, such as an array.

    Example:
        >>> import polars
        >>> frame_kind(polars.DataFrame({"a": [1]}))
        'polars'
    """
    kind = type(X).__module__.partition(".")[0]
    return kind if kind in ("pandas", "polars", "pyarrow") and hasattr(X, "columns") else None
