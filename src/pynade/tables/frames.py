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
        if _is_missing(cell):
            continue
        text, day = isinstance(cell, str | bytes), isinstance(cell, date | time | np.datetime64)
        if text or day or isinstance(cell, timedelta | np.timedelta64):
            what = "text" if text else "dates" if day else "durations"
            held = f"column {name!r} holds {what} such as {cell if text else str(cell)!r}"
            raise ValueError(f"{held}; expected numbers: leave the column out or encode it as numbers")
        numbers[i] = float(cell)
    return numbers


def _is_missing(cell: Any) -> bool:
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


MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "nat", "<na>")  # texts, in lower case


def frame_kind(X: Any) -> str | None:
    """Return what a frame is of: pandas, polars or pyarrow; None for anything else, such as an array.

    Example:
        >>> import polars
        >>> frame_kind(polars.DataFrame({"a": [1]}))
        'polars'
    """
    kind = type(X).__module__.partition(".")[0]
    return kind if kind in ("pandas", "polars", "pyarrow") and hasattr(X, "columns") else None


def native_frame(X: Any, names: Names = None) -> tuple[Any, str]:
    """Return a table as a frame of narwhals, and what it was: pandas, polars, pyarrow or numpy.

    Args:
        X: A frame of pandas, polars or pyarrow, a dictionary of columns, an array or a list of rows; a masked
            array has missing cells where its mask is set.
        names: The names of the columns of an array; ``x1``, ``x2``, … when left out.

    Raises:
        ValueError: It is no table, or two columns have the same name.
    """
    import narwhals
    import polars

    if isinstance(X, dict):
        X = polars.DataFrame(X)
    if isinstance(X, np.ndarray | list | tuple):
        return narwhals.from_native(_array_frame(X, names)), "numpy"
    if hasattr(X, "columns"):
        check_names([str(name) for name in getattr(X, "column_names", X.columns)])
    try:
        frame = narwhals.from_native(X)
    except TypeError:
        raise ValueError(
            f"expected a data frame (pandas, polars, pyarrow) or an array, not {type(X).__name__}"
        ) from None
    if isinstance(frame, narwhals.LazyFrame):
        frame = frame.collect()
    kind = frame.implementation.name.lower()
    if kind not in ("pandas", "polars", "pyarrow"):
        raise ValueError(f"frames of {kind} are not supported; convert it to pandas, polars or pyarrow")
    if any(not isinstance(name, str) for name in frame.columns):
        frame = narwhals.from_native(X.rename(columns={name: str(name) for name in X.columns}))
    return frame, kind


def _array_frame(X: Any, names: Names) -> Any:
    """A polars frame of an array's columns."""
    import polars

    mask = np.ma.getmaskarray(X) if isinstance(X, np.ma.MaskedArray) else None
    rows = np.asarray(X) if not isinstance(X, list | tuple) else _object_rows(X)
    if rows.ndim != 2:
        raise ValueError(f"expected a table of rows and columns, not an array of shape {rows.shape}")
    if rows.dtype.kind == "c":
        raise ValueError("Complex data not supported: expected real numbers, text or dates")
    names = default_names(rows.shape[1]) if names is None or len(names) != rows.shape[1] else list(names)
    columns = {}
    for i, name in enumerate(names):
        column = rows[:, i]
        listed = column.tolist()
        if mask is not None and mask[:, i].any():
            listed = [None if hidden else v for v, hidden in zip(listed, mask[:, i], strict=True)]
        elif column.dtype.kind != "O":
            columns[name] = polars.Series(name, np.ascontiguousarray(column))
            continue
        listed = [None if _is_missing(v) else v for v in listed]
        kinds = {type(v) for v in listed if v is not None}
        text = any(issubclass(kind, str) for kind in kinds) and len(kinds) > 1
        listed = [v if v is None or not text else str(v) for v in listed]
        columns[name] = polars.Series(name, listed, strict=False)
    return polars.DataFrame(columns)


def _object_rows(X: Any) -> np.ndarray:
    rows = np.asarray(X)
    return np.asarray(X, dtype=object) if rows.dtype.kind in "US" else rows


def cells(series: Any, missing: Sequence[str] | None = None) -> tuple[Any, str, dict[str, Any]]:
    """Return the values of a column of a frame, what they are, and the type of the column.

    Args:
        series: A series of narwhals.
        missing: Texts, in lower case, that mean "missing"; None takes the usual ones.

    Returns:
        Numbers as float64 with NaN, dates as microseconds since 1970 likewise, anything else as a list with
        None; "number", "date", "boolean" or "text"; and the type, from which `build_frame` makes it again.

    Raises:
        ValueError: The column holds durations, lists or other things that are no single values.
    """
    import narwhals as nw

    dtype, name = series.dtype, series.name
    facts: dict[str, Any] = {"type": type(dtype).__name__ if not isinstance(dtype, type) else dtype.__name__}
    facts["native"] = str(getattr(series.to_native(), "dtype", getattr(series.to_native(), "type", "")))
    if dtype.is_numeric():
        return series.cast(nw.Float64).to_numpy().astype(np.float64), "number", facts
    if dtype == nw.Boolean:
        return series.to_list(), "boolean", facts
    if dtype in (nw.Datetime, nw.Date):
        if dtype == nw.Datetime:
            facts |= {"unit": dtype.time_unit, "zone": dtype.time_zone}
        stamps = series.dt.timestamp("us").cast(nw.Float64).to_numpy().astype(np.float64)
        return np.where(series.is_null().to_numpy(), np.nan, stamps), "date", facts
    if dtype in (nw.Duration, nw.Time, nw.List, nw.Struct, nw.Array, nw.Binary):
        what = facts["type"].lower()
        raise ValueError(
            f"column {name!r} holds values of type {what}; turn them into numbers, or leave it out (drop)"
        )
    if dtype in (nw.Categorical, nw.Enum):
        facts["categories"] = series.cat.get_categories().to_list()
        facts["ordered"] = bool(
            getattr(getattr(series.to_native(), "dtype", None), "ordered", dtype == nw.Enum)
        )
    listed = [None if _is_missing(v) else v for v in series.to_list()]
    kinds = {type(v) for v in listed if v is not None}
    if kinds and all(issubclass(k, date | np.datetime64) for k in kinds):
        raise ValueError(
            f"column {name!r} holds dates as Python objects; turn it into a column of dates (to_datetime)"
        )
    if kinds and all(issubclass(k, bool | np.bool_) for k in kinds):
        return listed, "boolean", facts
    if kinds and all(issubclass(k, int | float | np.number) for k in kinds) and "categories" not in facts:
        return np.array([np.nan if v is None else float(v) for v in listed]), "number", facts
    odd = next((k for k in kinds if not issubclass(k, str | bool | int | float | np.generic)), None)
    if odd is not None:
        raise ValueError(
            f"column {name!r} holds values of type {odd.__name__}; expected numbers, text or dates"
        )
    tokens = MISSING if missing is None else missing
    listed = [
        None if v is None or (isinstance(v, str) and v.strip().lower() in tokens) else _plain(v)
        for v in listed
    ]
    if len({isinstance(v, str) for v in listed if v is not None}) > 1:
        listed = [v if v is None else str(v) for v in listed]
    return listed, "text", facts


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def build_frame(columns: dict[str, Any], types: dict[str, dict[str, Any]], kind: str) -> Any:
    """Return a table from arrays of values, of the kind and with the types that `cells` described.

    Args:
        columns: The values by column name: dates as microseconds since 1970, no missing cells.
        types: What `cells` said about each column; an empty one leaves the type to the values.
        kind: pandas, polars, pyarrow or numpy.
    """
    import polars

    if kind == "numpy":
        arrays = list(columns.values())
        numeric = all(a.dtype.kind in "iufb" or all(_is_real(v) for v in a) for a in arrays)
        return np.stack([a.astype(np.float64) if numeric else a.astype(object) for a in arrays], axis=1)
    if kind == "pandas":
        import pandas

        made = {name: _pandas_column(values, types.get(name, {})) for name, values in columns.items()}
        return pandas.DataFrame(made)
    made = {name: _polars_column(name, values, types.get(name, {})) for name, values in columns.items()}
    frame = polars.DataFrame(made)
    return frame if kind == "polars" else _arrow_table(frame, types)


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float | np.number)


def _pandas_column(values: np.ndarray, facts: dict[str, Any]) -> Any:
    import pandas

    if "categories" in facts:
        return pandas.Categorical(values, categories=facts["categories"], ordered=facts.get("ordered", False))
    kind, native = facts.get("type"), facts.get("native")
    if kind in ("Datetime", "Date"):
        stamps = pandas.Series(pandas.to_datetime(values, unit="us", utc=True))
        if facts.get("zone") is None:
            stamps = stamps.dt.tz_localize(None)
        return stamps.astype(native) if native else stamps
    series = pandas.Series(values if values.dtype.kind != "O" else values.tolist())
    return series if native is None else series.astype(native)


def _polars_column(name: str, values: np.ndarray, facts: dict[str, Any]) -> Any:
    import polars

    kind = facts.get("type")
    if kind in ("Datetime", "Date"):
        stamps = polars.Series(name, values.astype(np.int64)).cast(polars.Datetime("us", "UTC"))
        zone = facts.get("zone")
        stamps = stamps.dt.convert_time_zone(zone) if zone else stamps.dt.replace_time_zone(None)
        return stamps.cast(polars.Date if kind == "Date" else polars.Datetime(facts.get("unit", "us"), zone))
    series = polars.Series(name, values if values.dtype.kind != "O" else values.tolist(), strict=False)
    if kind == "Enum":
        return series.cast(polars.Enum(facts["categories"]))
    wanted = getattr(polars, kind or "", None)
    return series if wanted is None else series.cast(wanted)


def _arrow_table(frame: Any, types: dict[str, dict[str, Any]]) -> Any:
    """A pyarrow table whose columns have their own types again, where pyarrow knows their names."""
    import pyarrow

    table = frame.to_arrow()
    for k, name in enumerate(table.column_names):
        native = types.get(name, {}).get("native", "")
        try:
            wanted = pyarrow.type_for_alias(native)
        except ValueError:
            continue
        table = table.set_column(k, name, table.column(k).cast(wanted))
    return table


def fill_cells(
    X: Any,
    places: dict[str, tuple[np.ndarray, np.ndarray]],
    types: dict[str, dict[str, Any]],
    order: Sequence[str],
    add: bool = False,
) -> Any:
    """Return a copy of a table with new values in some cells; everything else, index and types, stays.

    Args:
        X: The table; it is not modified.
        places: By column name, the rows and their values (dates as microseconds since 1970).
        types: What `cells` said about the columns in training.
        order: The names of the columns of an array.
        add: Add the columns that the table does not have, with every cell missing.
    """
    if isinstance(X, np.ndarray | list | tuple):
        rows = np.ma.getdata(X) if isinstance(X, np.ma.MaskedArray) else np.array(X, copy=True)
        whole = all(v.dtype.kind in "iufb" or all(_is_real(c) for c in v) for _, v in places.values())
        rows = rows.astype(np.float64) if rows.dtype.kind in "iufb" and whole else rows.astype(object)
        for name, (where, values) in places.items():
            rows[where, list(order).index(name)] = values
        return rows
    import narwhals as nw

    frame, kind = native_frame(X)
    for name, (where, values) in places.items():
        if add and name not in frame.columns:
            frame = frame.with_columns(nw.lit(None).alias(name))
        if not len(where):
            continue
        facts = cells(frame[name])[2]
        if kind == "pandas":
            frame = nw.from_native(_fill_pandas(frame.to_native(), name, where, values, facts))
            continue
        if facts["type"] in ("Null", "Unknown"):
            facts = types[name]
        built = build_frame({name: values}, {name: facts}, "polars")[name]
        column = nw.from_native(frame[name].to_native(), series_only=True)
        import polars

        old: Any = (
            polars.Series(name, column.to_list())
            if column.dtype == nw.Unknown
            else polars.from_arrow(column.to_arrow())
        )
        new = (
            polars.Series(name, old).cast(built.dtype)
            if old.dtype != built.dtype
            else polars.Series(name, old)
        )
        new = new.scatter(where.tolist(), built)
        native = new if kind == "polars" else new.to_arrow()
        if kind == "pyarrow":
            import pyarrow

            native = pyarrow.chunked_array([native]).cast(column.to_native().type)
        frame = frame.with_columns(nw.from_native(native, series_only=True).alias(name))
    return frame.to_native()


def _fill_pandas(X: Any, name: str, where: np.ndarray, values: np.ndarray, facts: dict[str, Any]) -> Any:
    """A copy of a pandas frame with new values in some rows of one column, of the column's own type."""
    import pandas

    column = X[name].copy()
    made = _pandas_column(values, facts | ({"native": None} if "categories" not in facts else {}))
    if facts["type"] in ("Datetime", "Date") and facts.get("zone"):
        made = made.dt.tz_convert(facts["zone"]) if made.dt.tz is not None else made
    new = pandas.Series(made).to_numpy() if facts["type"] not in ("Datetime",) else made.array
    if column.dtype.kind in "iu" and values.dtype.kind == "f":
        column = column.astype("float64")
    column.iloc[where] = new
    return X.assign(**{name: column}) if name.isidentifier() else X.assign(**{str(name): column})
