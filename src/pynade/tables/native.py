"""Frames of pandas, polars and pyarrow, and arrays: their cells, and tables of the same types again."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np

from pynade.tables.frames import Names, check_names, default_names, is_missing

DATES = ("Date", "Datetime")
MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "nat", "<na>")  # texts, in lower case


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

    if isinstance(X, dict):
        import polars

        if len(lengths := {len(values) for values in X.values()}) > 1:
            raise ValueError(f"the columns of a table have one length, not {sorted(lengths)}")
        X = polars.DataFrame([_series(str(name), values) for name, values in X.items()])
    X = X.collect() if hasattr(X, "collect") else X  # a lazy frame
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
    rows = rows.astype("datetime64[us]") if rows.dtype.kind == "M" else rows
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
        columns[name] = _series(name, listed)
    return polars.DataFrame(columns)


def _series(name: str, values: Any) -> Any:
    """A polars series of values, of which some may be missing; numbers beside text become text."""
    import polars

    if not isinstance(values, list | tuple):
        return polars.Series(name, values)
    listed = [None if is_missing(v) else v for v in values]
    kinds = {type(v) for v in listed if v is not None}
    text = any(issubclass(kind, str) for kind in kinds) and len(kinds) > 1
    return polars.Series(name, [v if v is None or not text else str(v) for v in listed], strict=False)


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

    dtype, name, native = series.dtype, series.name, series.to_native()
    facts: dict[str, Any] = {"type": type(dtype).__name__ if not isinstance(dtype, type) else dtype.__name__}
    facts["native"] = str(getattr(native, "dtype", ""))
    arrow = getattr(getattr(native, "dtype", native), "pyarrow_dtype", getattr(native, "type", None))
    if arrow is not None:
        import pyarrow

        facts["arrow"] = base64.b64encode(pyarrow.schema([("", arrow)]).serialize()).decode()
    if dtype.is_numeric():
        if dtype == nw.Decimal and arrow is None:
            facts |= {"scale": native.dtype.scale, "precision": [native.dtype.precision, native.dtype.scale]}
        numbers = series.cast(nw.Float64).to_numpy().astype(np.float64)
        if np.isinf(numbers).any():
            raise ValueError(f"column {name!r} holds an infinite value; expected finite numbers")
        return numbers, "number", facts
    if dtype == nw.Boolean:
        return [None if is_missing(v) else v for v in series.to_list()], "boolean", facts
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
        levels = getattr(dtype, "categories", None)  # of an Enum
        levels = native.cat.categories if levels is None and hasattr(native, "iloc") else levels
        levels = series.drop_nulls().unique().sort().to_list() if levels is None else levels
        facts["categories"] = [_plain(level) for level in levels]
        facts["ordered"] = bool(getattr(getattr(native, "dtype", None), "ordered", dtype == nw.Enum))
    listed = [None if is_missing(v) else v for v in series.to_list()]
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
    facts = {name: types.get(name, {}) for name in columns}
    if kind == "numpy":
        arrays = [_array_column(values, facts[name]) for name, values in columns.items()]
        numeric = all(_numeric(a) for a in arrays)
        return np.stack([a.astype(np.float64) if numeric else a.astype(object) for a in arrays], axis=1)
    make = {"pandas": _pandas_column, "polars": _polars_column, "pyarrow": _arrow_column}[kind]
    made = {name: make(values, facts[name]) for name, values in columns.items()}
    if kind == "pandas":
        import pandas

        return pandas.DataFrame(made)
    if kind == "polars":
        import polars

        return polars.DataFrame(made)
    import pyarrow

    return pyarrow.table(made)


def _numeric(values: np.ndarray) -> bool:
    return values.dtype.kind in "iufb" or all(isinstance(v, int | float | np.number) for v in values)


def _array_column(values: np.ndarray, facts: dict[str, Any]) -> np.ndarray:
    """Values for an array: dates as Python's own."""
    if facts.get("type") not in DATES:
        return values
    made = np.empty(len(values), dtype=object)
    days = "D" if facts["type"] == "Date" else "us"
    made[:] = values.astype(np.int64).astype("datetime64[us]").astype(f"datetime64[{days}]").tolist()
    return made


def _pandas_column(values: np.ndarray, facts: dict[str, Any]) -> Any:
    import pandas

    if "arrow" in facts:
        return pandas.arrays.ArrowExtensionArray(_arrow_column(values, facts))
    if "categories" in facts:
        known = [*facts["categories"], *sorted(set(values.tolist()) - set(facts["categories"]), key=str)]
        return pandas.Categorical(values, categories=known, ordered=facts.get("ordered", False))
    native = facts.get("native")
    if facts.get("type") in DATES:
        stamps = pandas.Series(pandas.to_datetime(values, unit="us", utc=True))
        stamps = stamps if facts.get("zone") else stamps.dt.tz_localize(None)
        return stamps.astype(native)
    series = pandas.Series(values if values.dtype.kind != "O" else values.tolist())
    return series if native is None else series.astype(native)


def _polars_column(values: np.ndarray, facts: dict[str, Any]) -> Any:
    import polars

    kind = facts.get("type")
    if kind in DATES:
        stamps = polars.Series(values.astype(np.int64)).cast(polars.Datetime("us", "UTC"))
        zone = facts.get("zone")
        unit: Any = "ms" if facts.get("unit") == "s" else facts.get("unit", "us")
        stamps = stamps.dt.convert_time_zone(zone) if zone else stamps.dt.replace_time_zone(None)
        return stamps.cast(polars.Date if kind == "Date" else polars.Datetime(unit, zone))
    series = polars.Series(values if values.dtype.kind != "O" else values.tolist(), strict=False)
    if kind == "Enum":
        return series.cast(polars.Enum(facts["categories"]))
    if kind == "Decimal":
        return series.cast(polars.Decimal(38, facts["scale"])).cast(polars.Decimal(*facts["precision"]))
    wanted = getattr(polars, kind or "", None)
    return series if wanted is None else series.cast(wanted)


def _arrow_column(values: np.ndarray, facts: dict[str, Any]) -> Any:
    import pyarrow as pa

    listed: Any = values.tolist()
    stored, dates = facts.get("arrow"), facts.get("type") in DATES
    made = pa.array(values.astype(np.int64) if dates else listed)
    made = made.cast(pa.timestamp("us", facts.get("zone"))) if dates else made
    if stored is None:
        return made
    wanted = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored))).field(0).type
    if pa.types.is_dictionary(wanted):
        return pa.array(listed, wanted)
    if pa.types.is_decimal(wanted):
        unit = Decimal(1).scaleb(-wanted.scale)
        return pa.array([Decimal(str(v)).quantize(unit) for v in listed], wanted)
    return made.cast(wanted, safe=False)


def fill_cells(
    X: Any,
    places: dict[str, tuple[np.ndarray, np.ndarray]],
    types: dict[str, dict[str, Any]],
    order: Sequence[str],
) -> Any:
    """Return a copy of a table with new values in some cells; everything else, index and types, stays.

    Args:
        X: The table; it is not modified.
        places: By column name, the rows and their values (dates as microseconds since 1970).
        types: What `cells` said about the columns in training.
        order: The names of the columns of an array.
    """
    if isinstance(X, np.ndarray | list | tuple):
        return _fill_array(X, places, types, list(order))
    frame, kind = native_frame(X)
    native = X.copy(deep=False) if kind == "pandas" else frame.to_native()
    for name, (where, values) in places.items():
        facts, at = cells(frame[name])[2], frame.columns.index(name)
        untyped = facts["type"] in ("Null", "Unknown") or facts["native"] == "object"
        if untyped and "arrow" not in facts and frame[name].is_null().all():
            facts = types.get(name, {})
        if kind == "pandas":
            native.isetitem(at, _filled_pandas(X.iloc[:, at], where, values, facts))
        elif kind == "polars":
            made = _polars_column(values, facts)
            old = native.to_series(at)
            old = old.cast(made.dtype) if str(old.dtype) == "Null" else old
            native = native.with_columns(old.scatter(where.tolist(), made))
        else:
            import pyarrow as pa

            old, index = native.column(at), np.arange(len(native))
            index[where] = len(native) + np.arange(len(where))
            facts = types.get(name, {}) if pa.types.is_null(old.type) else facts
            made = _arrow_column(values, facts)
            both = pa.chunked_array([*old.cast(made.type).chunks, made], made.type).unify_dictionaries()
            native = native.set_column(at, native.field(at).with_type(made.type), both.take(pa.array(index)))
    return native


def _filled_pandas(column: Any, where: np.ndarray, values: np.ndarray, facts: dict[str, Any]) -> Any:
    """A copy of a pandas column with new values in some rows, of the column's own type."""
    import pandas

    made = pandas.Series(_pandas_column(values, facts))
    if "categories" in facts:
        column = column.astype(made.dtype)
    elif column.dtype == object:
        made = made.astype(object)
    column = column.copy()
    column.iloc[where] = made.array
    return column


def _fill_array(X: Any, places: dict[str, Any], types: dict[str, dict[str, Any]], order: list[str]) -> Any:
    """An array of the same type; of one that cannot hold a value, floats or objects."""
    rows = np.ma.getdata(X) if isinstance(X, np.ndarray) else _object_rows(X)
    made = {name: _array_column(values, types.get(name, {})) for name, (_, values) in places.items()}
    kind = rows.dtype.kind
    if kind in "iufb" and not all(_numeric(values) for values in made.values()):
        rows = rows.astype(object)
    elif kind in "iub" and any(not _whole(values) for values in made.values()):
        rows = rows.astype(np.float64)
    rows = rows.astype(object) if kind in "US" else rows.copy()
    for name, values in made.items():
        rows[places[name][0], order.index(name)] = values.astype("datetime64[us]") if kind == "M" else values
    return rows


def _whole(values: np.ndarray) -> bool:
    return values.dtype.kind in "iub" or all(float(v).is_integer() for v in values)
