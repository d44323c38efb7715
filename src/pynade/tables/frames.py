"""Tables in Python, arrays and data frames: as numbers, as cells, and of the same types again."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from importlib import import_module
from typing import Any

import numpy as np

from pynade.tables.column import Type
from pynade.tables.modules import nw, pa, pandas, polars

MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "nat", "<na>")  # texts, in lower case
FRAMES = ("pandas", "polars", "pyarrow")
DATES = ("Date", "Datetime")
EXACT = 2**53  # up to this size float64 has all whole numbers
Names = Sequence[str] | None
#: Types of arrays, by their letters, that polars does not take, and those to use instead.
UNKNOWN = {"M": "datetime64[us]", "m": "timedelta64[us]", "g": "float64"}
Fillings = dict[str, tuple[np.ndarray, np.ndarray]]  # rows and their values, by column name


def as_matrix(X: Any) -> tuple[Any, list[str] | None]:
    """Return the numbers of an array or a data frame, and its column names.

    Booleans become 0 and 1; None, masked cells and the missing values of frames become NaN.

    Args:
        X: A NumPy array, a list of rows, or a frame of pandas, polars or pyarrow (names that are not all
            strings are none). Anything else (a sparse matrix, a tensor, a Series) is returned as it is.
    """
    X = rows_of(X) if isinstance(X, list | tuple | np.ma.MaskedArray) else X
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "OUSMmc":
        names, columns = None, [_numbers(X[:, i], i) for i in range(X.shape[1])]
    elif frame_kind(X) is None:
        return X, None
    else:
        X, _ = _to_narwhals(X)
        columns = [_numbers(column.to_numpy(), column.name) for column in X.iter_columns()]
        names = list(X.columns) if all(isinstance(name, str) for name in X.columns) else None
    return np.stack(columns, axis=1) if columns else np.empty((len(X), 0)), names


def _numbers(cells: np.ndarray, name: str | int) -> np.ndarray:
    """The numbers of a column, or a sentence that names it and a value."""
    if cells.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: column {name!r} holds complex numbers")
    if cells.dtype.kind not in "OUSMm":
        return cells.astype(np.uint8) if cells.dtype.kind == "b" else cells
    numbers = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells.tolist() if cells.dtype.kind in "US" else cells):
        if cells.dtype.kind not in "Mm" and is_missing(cell):
            continue
        text, day = isinstance(cell, str | bytes), isinstance(cell, date | time | np.datetime64)
        if text or day or isinstance(cell, timedelta | np.timedelta64):
            kind = "text" if text else "dates" if day else "durations"
            fault = f"column {name!r} holds {kind} such as {cell if text else str(cell)!r}"
            raise ValueError(f"{fault}; expected numbers: leave the column out or encode it as numbers")
        try:
            numbers[i] = float(cell)
        except (TypeError, OverflowError) as error:
            error_type: Any = TypeError if isinstance(error, TypeError) else ValueError
            raise error_type(f"column {name!r} holds {_shorten(cell)}: {error}") from None
    return numbers


def rows_of(X: Any) -> np.ndarray:
    """An array of rows, NaN (of no numbers: None) for masked cells; a list with words becomes one of objects,
    since a word turns all cells to text.
    """
    if np.ma.is_masked(X):
        gap: Any = np.nan if X.dtype.kind in "biuf" else None
        return np.asarray(np.where(np.ma.getmaskarray(X), gap, X.data))
    rows = np.asarray(X)
    return np.asarray(X, dtype=object) if rows.dtype.kind in "US" and isinstance(X, list | tuple) else rows


def is_missing(cell: Any) -> bool:
    """Whether a cell is None, NaN, or the missing value of pandas or NumPy."""
    if isinstance(cell, float | datetime | np.generic):
        return bool(cell != cell)
    return cell is None or type(cell).__name__ == "NAType"  # of pandas, which need not be installed


def frame_kind(X: Any) -> str | None:
    """Return what a frame is of: pandas, polars or pyarrow; None for anything else, such as an array."""
    packages = (base.__module__.partition(".")[0] for base in type(X).__mro__)
    return next((name for name in packages if name in FRAMES), None) if hasattr(type(X), "columns") else None


def native_frame(X: Any, names: Names = None) -> tuple[Any, str]:
    """Return a table as a frame of narwhals, and what it was: pandas, polars, pyarrow or numpy.

    It is a frame, a dictionary of columns, an array or a list of rows, whose columns have the `names`, or
    ``x1``, ``x2``, …; masked cells of an array are missing.
    """
    if isinstance(X, np.ndarray | list | tuple):
        rows: Any = rows_of(X)
        if rows.ndim != 2:
            raise ValueError(f"expected a table of rows and columns, not an array of shape {rows.shape}")
        if rows.dtype.kind in "cV":
            problem = "Complex data not supported" if rows.dtype.kind == "c" else f"an array of {rows.dtype}"
            raise ValueError(f"{problem}: expected real numbers, text or dates")
        names = default_names(rows.shape[1]) if names is None or len(names) != rows.shape[1] else names
        columns = zip(names, map(np.ascontiguousarray, rows.T), strict=True)
        return nw.from_native(polars.DataFrame([_series(*column) for column in columns])), "numpy"
    if isinstance(X, dict):
        if len(lengths := {len(values) for values in X.values()}) > 1:
            raise ValueError(f"the columns of a table have one length, not {sorted(lengths)}")
        X = polars.DataFrame([_series(str(name), values) for name, values in X.items()])
    frame, kind = _to_narwhals(X)
    if any(not isinstance(name, str) for name in frame.columns):
        frame = nw.from_native(X.set_axis([str(name) for name in X.columns], axis=1))
    return frame, kind


def _to_narwhals(X: Any) -> tuple[Any, str]:
    """A frame of narwhals with the names that X has, and its kind; a sentence about anything else."""
    X = X.collect() if hasattr(type(X), "collect") else X  # a lazy frame
    if frame_kind(X) == "pandas" and X.columns.nlevels > 1:
        advice = 'expected one: join them, as by X.columns.map("_".join)'
        raise ValueError(f"column names have {X.columns.nlevels} levels (a MultiIndex), {advice}")
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


def _series(name: str, values: Any) -> Any:
    """A polars series of values, of which some may be missing; a ValueError if it cannot hold one."""
    if type(values).__module__.startswith("pandas"):
        values = _to_dense(pandas.Series(values, name=name))
        cells(nw.from_native(values, series_only=True))  # refuses what polars takes for numbers
    if isinstance(values, np.ndarray):
        values = rows_of(values)
        values = values.astype(UNKNOWN.get(values.dtype.char, values.dtype))
        values = values.tolist() if values.dtype == object else values
    if not isinstance(values, list | tuple):
        return polars.Series(name, values, strict=False)
    values = unify_types([None if is_missing(v) else v for v in values])
    series = polars.Series(name, values, strict=False)
    if series.null_count() > values.count(None):
        lost = next(v for v, null in zip(values, series.is_null(), strict=True) if null and v is not None)
        raise ValueError(f"column {name!r} holds {_shorten(lost)}, which has no place among its other values")
    return series


def _to_dense(column: Any) -> Any:
    """A column of pandas that holds all of its cells."""
    return column.sparse.to_dense() if str(column.dtype).startswith("Sparse") else column


def _shorten(value: Any) -> str:
    """A value, in a message."""
    try:
        return f"{value!r:.40}"
    except ValueError:  # a whole number of more digits than Python prints
        return f"a number of {value.bit_length()} bits"


def unify_types(values: list[Any]) -> list[Any]:
    """The values, all as text where some are; None stays."""
    if len({isinstance(v, str) for v in values if v is not None}) > 1:
        return [None if v is None else str(v) for v in values]
    return values


def cells(series: Any, missing: Names = None) -> tuple[Any, str, Type]:
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
        if dtype.is_integer() and (np.abs(numbers) > EXACT).any():
            facts["inexact"] = True
        if np.isinf(numbers).any():
            raise ValueError(f"{column} holds an infinite value; expected finite numbers")
        return numbers, "number", facts
    if dtype in (nw.Datetime, nw.Date):
        if dtype == nw.Datetime:
            facts |= {"unit": dtype.time_unit, "zone": dtype.time_zone}
        stamps = series.dt.timestamp("us").cast(nw.Float64).to_numpy().astype(np.float64)
        return np.where(series.is_null().to_numpy(), np.nan, stamps), "date", facts
    if dtype in (nw.Duration, nw.Time, nw.List, nw.Struct, nw.Array, nw.Binary):
        advice = "turn them into numbers, or leave it out (drop)"
        raise ValueError(f"{column} holds values of type {facts['type'].lower()}; {advice}")
    if dtype in (nw.Categorical, nw.Enum):
        levels = native.cat.categories if hasattr(native, "iloc") else series.drop_nulls().unique().sort()
        facts["categories"] = list(getattr(dtype, "categories", levels.to_list()))
        facts["ordered"] = bool(getattr(getattr(native, "dtype", None), "ordered", dtype == nw.Enum))
    listed = series.to_list()
    if not {*map(type, listed)} <= {str, bool, type(None)}:
        listed = [None if is_missing(v) else v for v in listed]
    kinds = {*map(type, listed)} - {type(None)}

    def hold(*types: type) -> bool:
        return bool(kinds) and all(issubclass(kind, types) for kind in kinds)

    if dtype == nw.Boolean or hold(bool, np.bool_):
        return listed, "boolean", facts
    if hold(date, np.datetime64):
        advice = "turn it into a column of dates (to_datetime)"
        raise ValueError(f"{column} holds dates as Python objects; {advice}")
    if hold(int, float, np.number) and "categories" not in facts:
        if any(isinstance(v, int) and abs(v) > EXACT for v in listed):
            facts["inexact"] = True
        return _numbers(np.array(listed, dtype=object), series.name), "number", facts
    for kind in kinds:
        if not issubclass(kind, str | bool | int | float | np.generic):
            expected = "expected numbers, text or dates"
            raise ValueError(f"{column} holds values of type {kind.__name__}; {expected}")
    if hold(str) and facts["native"] == "object":
        facts["text"] = True
    tokens = MISSING if missing is None else missing
    if kinds == {str}:  # each text once
        texts = {v: None if v.strip().lower() in tokens else v for v in {*listed} - {None}}
        return list(map(texts.get, listed)), "text", facts
    plain = [v.item() if isinstance(v, np.generic) else v for v in listed]
    gaps = {v for v in plain if isinstance(v, str) and v.strip().lower() in tokens}
    return unify_types([None if v in gaps else v for v in plain]), "text", facts


def build_frame(columns: dict[str, Any], types: dict[str, Type], kind: str) -> Any:
    """Return a table (pandas, polars, pyarrow or numpy) of the types that `cells` described.

    The columns have no missing cells; dates are microseconds since 1970. Values of no type keep their own.
    """
    native = {name: _column(kind, values, types.get(name, {})) for name, values in columns.items()}
    if kind == "numpy":
        dtype: Any = np.float64 if all(map(_is_numeric, native.values())) else object
        return np.stack([values.astype(dtype) for values in native.values()], axis=1)
    frame = pa.table(native) if kind == "pyarrow" else import_module(kind).DataFrame(native)
    labels = [types.get(name, {}).get("label", name) for name in columns]
    return frame.set_axis(labels, axis=1) if kind == "pandas" else frame


def _is_numeric(values: np.ndarray) -> bool:
    return values.dtype.kind in "iufb" or all(isinstance(v, int | float | np.number) for v in values)


def _round(values: np.ndarray, facts: Type, name: str = "") -> tuple[np.ndarray, Type]:
    """Numbers rounded for a column of whole numbers, and its type, or none where that has no place for them.

    With the name of a column, whose type must stay, a ValueError.
    """
    kind = facts.get("type", "")
    if not re.fullmatch(r"U?Int(8|16|32|64)", kind) or values.dtype.kind not in "if" or not len(values):
        return values, facts
    values, limits = np.round(values), np.iinfo(kind.lower())
    if (outside := values[(values < limits.min) | (values > limits.max)]).size:
        if name:
            fault = f"column {name!r} is of type {facts['native'] or kind}"
            raise ValueError(f"{fault}, which has no place for {outside[0]:g}: give it a wider type")
        return values.astype(np.int64 if abs(values).max() < 2**63 else np.float64), {}
    return values, facts


def _column(kind: str, values: np.ndarray, facts: Type, name: str = "") -> Any:
    """A column of a table of this kind; the dates of an array are Python's own."""
    values, facts = (values, facts) if kind == "numpy" else _round(values, facts, name)
    if facts.get("type") in DATES:
        values = values.astype(np.int64).astype("datetime64[us]")
    if kind == "numpy":
        values = values.astype("datetime64[D]") if facts.get("type") == "Date" else values
        return values.astype(object) if values.dtype.kind == "M" else values
    if facts.get("text"):  # numbers that were written as text
        values = np.array([str(v) for v in values.tolist()], dtype=object)
    make = {"pandas": _to_pandas, "polars": _to_polars, "pyarrow": _to_arrow}[kind]
    return make(values.tolist() if values.dtype == object else values, facts)


def _to_pandas(values: Any, facts: Type) -> Any:
    if "arrow" in facts:
        return pandas.arrays.ArrowExtensionArray(_to_arrow(values, facts))
    if "categories" in facts:
        categories = [*facts["categories"], *sorted({*values} - {*facts["categories"]}, key=str)]
        return pandas.Categorical(values, categories=categories, ordered=facts.get("ordered", False))
    series = pandas.Series(values)
    series = series.dt.tz_localize("UTC") if facts.get("zone") else series
    return series.astype(facts["native"]) if "native" in facts else series


def _to_polars(values: Any, facts: Type) -> Any:
    kind, zone = facts.get("type"), facts.get("zone")
    series = polars.Series(values, strict=False)
    if kind == "Datetime":
        unit: Any = "ms" if facts.get("unit") == "s" else facts.get("unit", "us")
        series = series.dt.replace_time_zone("UTC").dt.convert_time_zone(zone) if zone else series
        return series.cast(polars.Datetime(unit, zone))
    if kind == "Enum":
        return series.cast(polars.Enum(facts["categories"]))
    if kind == "Decimal":
        return series.cast(polars.Decimal(38, facts["scale"])).cast(polars.Decimal(*facts["precision"]))
    dtype = getattr(polars, kind or "", None)
    return series if dtype is None else series.cast(dtype)


def _to_arrow(values: Any, facts: Type) -> Any:
    if "arrow" not in facts:
        array = pa.array(values)
        return array.cast(pa.timestamp("us", facts["zone"])) if facts.get("zone") else array
    dtype = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(facts["arrow"]))).field(0).type
    if pa.types.is_dictionary(dtype):
        return pa.array(values, dtype)
    if pa.types.is_decimal(dtype):
        unit = Decimal(1).scaleb(-dtype.scale)
        return pa.array([Decimal(str(v)).quantize(unit) for v in values], dtype)
    return pa.array(values).cast(dtype, safe=False)


def fill_cells(X: Any, fillings: Fillings, types: dict[str, Type], order: Sequence[str]) -> Any:
    """Return a copy of a table with new values in some cells; everything else, index and types, stays.

    For each column that is filled, `fillings` has the rows and their values (dates as microseconds since
    1970). A column without a type of its own takes that of training; `order` has the names of an array's
    columns.
    """
    if isinstance(X, np.ndarray | list | tuple):
        return _fill_array(X, fillings, types, {name: i for i, name in enumerate(order)})
    frame, kind = native_frame(X)
    native = X.copy(deep=False) if kind == "pandas" else frame.clone().to_native()
    columns = native.columns if kind == "pyarrow" else []
    positions = {name: i for i, name in enumerate(frame.columns)}
    for name, (rows, values) in fillings.items():
        facts, i = cells(frame[name])[2], positions[name]
        untyped = facts["type"] in ("Null", "Unknown") or facts["native"] == "object"
        if untyped and (kind == "pyarrow" or "arrow" not in facts) and frame[name].is_null().all():
            facts = types.get(name, {})
        new = _column(kind, values, facts, name)
        if kind == "pandas":
            new, old = pandas.Series(new), X.iloc[:, i]
            dtype, old = old.dtype, _to_dense(old)
            old = old.astype(new.dtype) if "categories" in facts else old.copy()
            old.iloc[rows] = _to_dense(new.astype(object) if old.dtype == object else new).array
            native.isetitem(i, old if "categories" in facts else old.astype(dtype))
        elif kind == "polars":
            old = native.to_series(i)
            old = old.cast(new.dtype) if old.dtype == polars.Null else old
            native.replace_column(i, old.scatter(rows.tolist(), new))
        else:
            old, index = native.column(i), np.arange(len(native))
            index[rows] = len(native) + np.arange(len(rows))
            joined = pa.chunked_array([*old.cast(new.type).chunks, new], new.type).unify_dictionaries()
            columns[i] = joined.take(pa.array(index))
    if kind != "pyarrow":
        return native
    fields = [field.with_type(c.type) for field, c in zip(native.schema, columns, strict=True)]
    return pa.table(columns, pa.schema(fields, native.schema.metadata))


def _fill_array(X: Any, fillings: Fillings, types: dict[str, Type], order: dict[str, int]) -> np.ndarray:
    """An array of the same type; of one that cannot hold a value, floats or objects."""
    table = np.ma.getdata(X) if isinstance(X, np.ndarray) else rows_of(X)
    columns = {name: _column("numpy", values, types.get(name, {})) for name, (_, values) in fillings.items()}
    kind, dtype = table.dtype.kind, table.dtype
    if kind in "US" or (kind in "iufb" and not all(map(_is_numeric, columns.values()))):
        dtype = np.dtype(object)
    elif kind in "iub" and not all(float(v).is_integer() for values in columns.values() for v in values):
        dtype = np.dtype(np.float64)
    table = table.astype(dtype)
    for name, values in columns.items():
        table[fillings[name][0], order[name]] = values.astype("datetime64[us]") if kind == "M" else values
    return table


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
    """
    if dropped and names is None:
        names = default_names(rows.shape[1])
    if names is None or wanted is None:
        return rows
    left_out, model_names = set(dropped), set(wanted)
    positions = {name: i for i, name in enumerate(names) if name not in left_out}
    kept, wanted = list(positions), list(wanted)
    if kept == wanted or any(side == default_names(len(side)) for side in (kept, wanted)):
        return rows[:, list(positions.values())] if len(kept) < len(names) else rows
    check_columns(kept, wanted, [name for name in kept if name not in model_names])
    return rows[:, [positions[name] for name in wanted]]


def check_columns(names: Sequence[str], wanted: Sequence[str], extra: Sequence[str] = ()) -> None:
    """Raise a ValueError that names missing columns and unexpected ones."""
    present, faults = set(names), []
    if lacking := [name for name in wanted if name not in present]:
        faults.append(f"there {'is no column' if len(lacking) == 1 else 'are no columns'} {_join(lacking)}")
    if extra:
        faults.append(f"{_join(extra)} {'is not one' if len(extra) == 1 else 'are none'} of its columns")
    if faults:
        raise ValueError(f"the model was trained on other columns: {', and '.join(faults)}")


def _join(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(map(repr, names[:most])) + f" and {len(names) - most} more" * (len(names) > most)
