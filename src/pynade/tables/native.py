"""Frames of pandas, polars and pyarrow, and arrays: their cells, and tables of the same types again."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from importlib import import_module
from typing import Any

import numpy as np

from pynade.tables.frames import MISSING, is_missing, native_frame, one_type, rows_of
from pynade.tables.modules import nw, pa, pandas, polars

DATES = ("Date", "Datetime")
Type = dict[str, Any]  # what is known of a column's type, as JSON values


def cells(series: Any, missing: Sequence[str] | None = None) -> tuple[Any, str, Type]:
    """Return the values of a column of a frame, what they are, and the type of the column.

    Values are float64 with NaN of a "number" and a "date" (microseconds since 1970), a list with None of a
    "boolean" and a "text", where `missing` (None: the usual ones) has the texts, in lower case, that mean
    missing. From the type `build_frame` makes the column again.
    """
    dtype, native, column = series.dtype, series.to_native(), f"column {series.name!r}"
    facts: Type = {"type": type(dtype).__name__, "native": str(getattr(native, "dtype", ""))}
    arrow = getattr(getattr(native, "dtype", native), "pyarrow_dtype", getattr(native, "type", None))
    if arrow is not None:
        facts["arrow"] = base64.b64encode(pa.schema([("", arrow)]).serialize()).decode()
    if dtype.is_numeric():
        if dtype == nw.Decimal and arrow is None:
            facts |= {"scale": native.dtype.scale, "precision": [native.dtype.precision, native.dtype.scale]}
        numbers = series.cast(nw.Float64).to_numpy().astype(np.float64)
        if np.isinf(numbers).any():
            raise ValueError(f"{column} holds an infinite value; expected finite numbers")
        return numbers, "number", facts
    if dtype in (nw.Datetime, nw.Date):
        if dtype == nw.Datetime:
            facts |= {"unit": dtype.time_unit, "zone": dtype.time_zone}
        stamps = series.dt.timestamp("us").cast(nw.Float64).to_numpy().astype(np.float64)
        return np.where(series.is_null().to_numpy(), np.nan, stamps), "date", facts
    if dtype in (nw.Duration, nw.Time, nw.List, nw.Struct, nw.Array, nw.Binary):
        held = f"{column} holds values of type {facts['type'].lower()}"
        raise ValueError(f"{held}; turn them into numbers, or leave it out (drop)")
    if dtype in (nw.Categorical, nw.Enum):
        levels = native.cat.categories if hasattr(native, "iloc") else series.drop_nulls().unique().sort()
        facts["categories"] = list(getattr(dtype, "categories", levels.to_list()))
        facts["ordered"] = bool(getattr(getattr(native, "dtype", None), "ordered", dtype == nw.Enum))
    listed = [None if is_missing(v) else v for v in series.to_list()]
    kinds = {type(v) for v in listed if v is not None}

    def hold(*types: type) -> bool:
        return bool(kinds) and all(issubclass(kind, types) for kind in kinds)

    if dtype == nw.Boolean or hold(bool, np.bool_):
        return listed, "boolean", facts
    if hold(date, np.datetime64):
        raise ValueError(
            f"{column} holds dates as Python objects; turn it into a column of dates (to_datetime)"
        )
    if hold(int, float, np.number) and "categories" not in facts:
        return np.array([np.nan if v is None else float(v) for v in listed]), "number", facts
    for kind in kinds:
        if not issubclass(kind, str | bool | int | float | np.generic):
            raise ValueError(
                f"{column} holds values of type {kind.__name__}; expected numbers, text or dates"
            )
    tokens = MISSING if missing is None else missing
    gaps = (v is None or (isinstance(v, str) and v.strip().lower() in tokens) for v in listed)
    plain = [v.item() if isinstance(v, np.generic) else v for v in listed]
    return one_type([None if gap else v for v, gap in zip(plain, gaps, strict=True)]), "text", facts


def build_frame(columns: dict[str, Any], types: dict[str, Type], kind: str) -> Any:
    """Return a table (pandas, polars, pyarrow or numpy) of the types that `cells` described.

    The columns have no missing cells; dates are microseconds since 1970. Values of no type keep their own.
    """
    made = {name: _column(kind, values, types.get(name, {})) for name, values in columns.items()}
    if kind == "numpy":
        dtype: Any = np.float64 if all(map(_numeric, made.values())) else object
        return np.stack([values.astype(dtype) for values in made.values()], axis=1)
    return pa.table(made) if kind == "pyarrow" else import_module(kind).DataFrame(made)


def _numeric(values: np.ndarray) -> bool:
    return values.dtype.kind in "iufb" or all(isinstance(v, int | float | np.number) for v in values)


def _column(kind: str, values: np.ndarray, facts: Type) -> Any:
    """A column of a table of this kind."""
    if facts.get("type") in DATES:
        values = values.astype(np.int64).astype("datetime64[us]")
    make = {"numpy": _to_numpy, "pandas": _to_pandas, "polars": _to_polars, "pyarrow": _to_arrow}
    return make[kind](values, facts)


def _to_numpy(values: np.ndarray, facts: Type) -> np.ndarray:
    """Values of an array, of which dates are Python's own."""
    values = values.astype("datetime64[D]") if facts.get("type") == "Date" else values
    return values.astype(object) if values.dtype.kind == "M" else values


def _to_pandas(values: np.ndarray, facts: Type) -> Any:
    if "arrow" in facts:
        return pandas.arrays.ArrowExtensionArray(_to_arrow(values, facts))
    if "categories" in facts:
        known = [*facts["categories"], *sorted(set(values.tolist()) - set(facts["categories"]), key=str)]
        return pandas.Categorical(values, categories=known, ordered=facts.get("ordered", False))
    series = pandas.Series(values if values.dtype.kind != "O" else values.tolist())
    series = series.dt.tz_localize("UTC") if facts.get("zone") else series
    return series.astype(facts["native"]) if "native" in facts else series


def _to_polars(values: np.ndarray, facts: Type) -> Any:
    kind, zone = facts.get("type"), facts.get("zone")
    series = polars.Series(values if values.dtype.kind != "O" else values.tolist(), strict=False)
    if kind == "Datetime":
        unit: Any = "ms" if facts.get("unit") == "s" else facts.get("unit", "us")
        series = series.dt.replace_time_zone("UTC").dt.convert_time_zone(zone) if zone else series
        return series.cast(polars.Datetime(unit, zone))
    if kind == "Enum":
        return series.cast(polars.Enum(facts["categories"]))
    if kind == "Decimal":
        return series.cast(polars.Decimal(38, facts["scale"])).cast(polars.Decimal(*facts["precision"]))
    wanted = getattr(polars, kind or "", None)
    return series if wanted is None else series.cast(wanted)


def _to_arrow(values: np.ndarray, facts: Type) -> Any:
    listed: Any = values if values.dtype.kind == "M" else values.tolist()
    if "arrow" not in facts:
        made = pa.array(listed)
        return made.cast(pa.timestamp("us", facts["zone"])) if facts.get("zone") else made
    wanted = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(facts["arrow"]))).field(0).type
    if pa.types.is_dictionary(wanted):
        return pa.array(listed, wanted)
    if pa.types.is_decimal(wanted):
        unit = Decimal(1).scaleb(-wanted.scale)
        return pa.array([Decimal(str(v)).quantize(unit) for v in listed], wanted)
    return pa.array(listed).cast(wanted, safe=False)


def fill_cells(
    X: Any, places: dict[str, tuple[np.ndarray, np.ndarray]], types: dict[str, Type], order: Sequence[str]
) -> Any:
    """Return a copy of a table with new values in some cells; everything else, index and types, stays.

    For each column that is filled, `places` has the rows and their values (dates as microseconds since 1970).
    A column without a type of its own takes that of training; `order` has the names of an array's columns.
    """
    if isinstance(X, np.ndarray | list | tuple):
        return _fill_array(X, places, types, list(order))
    frame, kind = native_frame(X)
    native = X.copy(deep=False) if kind == "pandas" else frame.to_native()
    for name, (where, values) in places.items():
        facts, at = cells(frame[name])[2], frame.columns.index(name)
        untyped = facts["type"] in ("Null", "Unknown") or facts["native"] == "object"
        if untyped and (kind == "pyarrow" or "arrow" not in facts) and frame[name].is_null().all():
            facts = types.get(name, {})
        made = _column(kind, values, facts)
        if kind == "pandas":
            made, old = pandas.Series(made), X.iloc[:, at]
            old = old.astype(made.dtype) if "categories" in facts else old.copy()
            old.iloc[where] = (made.astype(object) if old.dtype == object else made).array
            native.isetitem(at, old)
        elif kind == "polars":
            old = native.to_series(at)
            old = old.cast(made.dtype) if old.dtype == polars.Null else old
            native = native.with_columns(old.scatter(where.tolist(), made))
        else:
            old, index = native.column(at), np.arange(len(native))
            index[where] = len(native) + np.arange(len(where))
            both = pa.chunked_array([*old.cast(made.type).chunks, made], made.type).unify_dictionaries()
            native = native.set_column(at, native.field(at).with_type(made.type), both.take(pa.array(index)))
    return native


def _fill_array(X: Any, places: dict[str, Any], types: dict[str, Type], order: list[str]) -> np.ndarray:
    """An array of the same type; of one that cannot hold a value, floats or objects."""
    rows = np.ma.getdata(X) if isinstance(X, np.ndarray) else rows_of(X)
    made = {name: _column("numpy", values, types.get(name, {})) for name, (_, values) in places.items()}
    kind, wanted = rows.dtype.kind, rows.dtype
    if kind in "US" or (kind in "iufb" and not all(map(_numeric, made.values()))):
        wanted = np.dtype(object)
    elif kind in "iub" and not all(float(v).is_integer() for values in made.values() for v in values):
        wanted = np.dtype(np.float64)
    rows = rows.astype(wanted)
    for name, values in made.items():
        rows[places[name][0], order.index(name)] = values.astype("datetime64[us]") if kind == "M" else values
    return rows
