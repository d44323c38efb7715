"""Tables of every type: cells are read, and tables of the same types come out again."""

from __future__ import annotations

import datetime as dt
import decimal
import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from pynade.tables.frames import build_frame, cells, fill_cells, native_frame
from pynade.tables.schema import Schema

N = 60
RNG = np.random.default_rng(0)
WHOLE = RNG.integers(0, 40, N).tolist()
REAL = RNG.normal(size=N).tolist()
TEXT = RNG.choice(["a", "b", "c"], N).tolist()
BITS = (RNG.random(N) < 0.5).tolist()
TIME = [dt.datetime(2024, 1, 1) + dt.timedelta(hours=int(h)) for h in RNG.integers(0, 500, N)]
DAYS = [t.date() for t in TIME]


def gaps(values, hole=None):
    """The values with every seventh one missing."""
    return [hole if k % 7 == 0 else v for k, v in enumerate(values)]


PANDAS = {
    "int64": lambda: pd.Series(WHOLE),
    "Int64": lambda: pd.array(gaps(WHOLE), dtype="Int64"),
    "uint8": lambda: pd.Series(WHOLE, dtype="uint8"),
    "float": lambda: pd.Series(gaps(REAL)),
    "float32": lambda: pd.Series(gaps(REAL), dtype="float32"),
    "Float64": lambda: pd.array(gaps(REAL), dtype="Float64"),
    "object": lambda: pd.Series(gaps(TEXT), dtype=object),
    "string": lambda: pd.array(gaps(TEXT), dtype="string"),
    "str": lambda: pd.Series(gaps(TEXT), dtype="str"),
    "string-arrow": lambda: pd.array(gaps(TEXT), dtype="string[pyarrow]"),
    "arrow-string": lambda: pd.array(gaps(TEXT), dtype=pd.ArrowDtype(pa.string())),
    "arrow-int": lambda: pd.array(gaps(WHOLE), dtype="int64[pyarrow]"),
    "arrow-bool": lambda: pd.array(gaps(BITS), dtype="bool[pyarrow]"),
    "arrow-time": lambda: pd.array(gaps(TIME), dtype=pd.ArrowDtype(pa.timestamp("us", "UTC"))),
    "arrow-date": lambda: pd.array(gaps(DAYS), dtype=pd.ArrowDtype(pa.date32())),
    "category": lambda: pd.Categorical(gaps(TEXT), categories=["c", "a", "b", "unused"]),
    "ordered": lambda: pd.Categorical(gaps(TEXT), categories=["c", "a", "b"], ordered=True),
    "whole-category": lambda: pd.Categorical(gaps([v % 4 for v in WHOLE])),
    "bool": lambda: pd.Series(BITS),
    "boolean": lambda: pd.array(gaps(BITS), dtype="boolean"),
    "bool-object": lambda: pd.Series(gaps(BITS, pd.NA), dtype=object),
    "time": lambda: pd.Series(gaps(TIME, pd.NaT)),
    "seconds": lambda: pd.Series(gaps(TIME)).astype("datetime64[s]"),
    "zone": lambda: pd.to_datetime(pd.Series(gaps(TIME)), utc=True).dt.tz_convert("Europe/Paris"),
    "question-mark": lambda: pd.Series(gaps(TEXT, "?")),
    "number-text": lambda: pd.Series([str(v) for v in WHOLE]),
}
POLARS = {
    "Int64": lambda: pl.Series(gaps(WHOLE)),
    "Int8": lambda: pl.Series(gaps(WHOLE), dtype=pl.Int8),
    "UInt64": lambda: pl.Series(gaps(WHOLE), dtype=pl.UInt64),
    "Float32": lambda: pl.Series(gaps(REAL), dtype=pl.Float32),
    "Decimal": lambda: pl.Series(gaps(WHOLE)).cast(pl.Decimal(10, 2)),
    "String": lambda: pl.Series(gaps(TEXT, " NA ")),
    "Enum": lambda: pl.Series(gaps(TEXT), dtype=pl.Enum(["c", "a", "b", "unused"])),
    "Categorical": lambda: pl.Series(gaps(TEXT), dtype=pl.Categorical),
    "Boolean": lambda: pl.Series(gaps(BITS)),
    "Date": lambda: pl.Series(gaps(DAYS)),
    "Datetime": lambda: pl.Series(gaps(TIME)),
    "ms": lambda: pl.Series(gaps(TIME), dtype=pl.Datetime("ms")),
    "ns": lambda: pl.Series(gaps(TIME), dtype=pl.Datetime("ns")),
    "zone": lambda: pl.Series(gaps(TIME)).dt.replace_time_zone("Asia/Tokyo"),
}
ARROW = {
    "int64": lambda: pa.array(gaps(WHOLE)),
    "int16": lambda: pa.array(gaps(WHOLE), pa.int16()),
    "float": lambda: pa.array(gaps(REAL), pa.float32()),
    "decimal": lambda: pa.array(gaps([decimal.Decimal(v) / 4 for v in WHOLE]), pa.decimal128(9, 2)),
    "string": lambda: pa.array(gaps(TEXT)),
    "large-string": lambda: pa.array(gaps(TEXT), pa.large_string()),
    "dictionary": lambda: pa.array(gaps(TEXT)).dictionary_encode(),
    "bool": lambda: pa.array(gaps(BITS)),
    "date": lambda: pa.array(gaps(DAYS)),
    "seconds": lambda: pa.array(gaps(TIME), pa.timestamp("s")),
    "zone": lambda: pa.array(gaps(TIME), pa.timestamp("us", "Europe/Paris")),
}


def filled(X):
    """The table with its gaps filled by other values, a table of decoded values, and its gaps."""
    schema = Schema.inferred(X)
    codes, _ = schema.encode(X)
    missing = np.isnan(codes)
    full = np.where(missing, np.nanmedian(np.round(codes), axis=0), codes)
    places = {
        c.name: (np.flatnonzero(missing[:, i]), c.decode(full[missing[:, i], i]))
        for i, c in enumerate(schema.columns)
        if missing[:, i].any()
    }
    types = {c.name: c.dtype for c in schema.columns}
    again = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert again == schema
    assert str(again) == str(schema)
    return fill_cells(X, places, types, schema.order), again.decode(full), missing


@pytest.mark.parametrize("name", PANDAS)
def test_pandas(name):
    X = pd.DataFrame({name: PANDAS[name](), "other": REAL}).set_axis(range(900, 900 + N))
    before = X.copy(deep=True)
    out, made, missing = filled(X)
    pd.testing.assert_frame_equal(X, before)
    for one in (out, made):
        pd.testing.assert_series_equal(one.dtypes, X.dtypes)
        assert not one.isna().any().any()
    pd.testing.assert_index_equal(out.index, X.index)
    pd.testing.assert_frame_equal(out[~missing[:, 0]], X[~missing[:, 0]])
    assert missing[:, 0].sum() in (0, 9)
    exact = name not in ("float32", "float", "Float64")
    pd.testing.assert_series_equal(
        made[name][~missing[:, 0]].reset_index(drop=True),
        X[name][~missing[:, 0]].reset_index(drop=True),
        check_exact=exact,
    )


@pytest.mark.parametrize("name", POLARS)
def test_polars(name):
    X = pl.DataFrame({name: POLARS[name](), "other": REAL})
    before = X.clone()
    out, made, missing = filled(X)
    assert X.equals(before)
    assert out.schema == X.schema == made.schema
    known = pl.Series(~missing[:, 0])
    assert out.filter(known).equals(X.filter(known))
    assert missing[:, 0].sum() == 9
    for one in (out, made):
        assert sum(one.null_count().row(0)) == 0
    if name != "Float32":
        assert made[name].filter(known).equals(X[name].filter(known))


@pytest.mark.parametrize("name", ARROW)
def test_pyarrow(name):
    X = pa.table({name: ARROW[name](), "other": pa.array(REAL)})
    out, made, missing = filled(X)
    assert X.column(0).null_count == missing[:, 0].sum() == 9
    known = pa.array(~missing[:, 0])
    for one in (out, made):
        assert one.schema.equals(X.schema)
        assert one.column(0).null_count == 0
    assert out.filter(known).to_pylist() == X.filter(known).to_pylist()
    if name != "float":
        assert made.column(0).filter(known).to_pylist() == X.column(0).filter(known).to_pylist()


def test_masks_of_arrays_are_gaps_and_arrays_keep_their_type():
    rows = np.arange(80).reshape(40, 2) % 37
    masked = np.ma.masked_array(rows, rows % 5 == 0)
    out, _, missing = filled(masked)
    assert (missing == (rows % 5 == 0)).all()
    assert out.dtype == rows.dtype
    assert (out[~missing] == rows[~missing]).all()
    floats = np.where(missing, np.nan, rows * 0.25).astype(np.float32)
    out, _, same = filled(floats)
    assert (same == missing).all()
    assert out.dtype == np.float32
    assert np.isnan(floats).sum() == missing.sum()  # not modified
    assert filled(rows)[0].tolist() == rows.tolist()


def test_objects_lists_and_dates_in_arrays():
    rows = [[1.5 * k, TEXT[k], TIME[k], BITS[k]] for k in range(N)]
    rows[0][0] = rows[1][1] = rows[2][2] = rows[3][3] = None
    rows[4][1], rows[5][2], rows[6][0], rows[7][0] = "?", pd.NaT, np.nan, pd.NA
    for X in (np.array(rows, dtype=object), rows):
        out, made, missing = filled(X)
        assert missing.sum() == 8
        assert out.dtype == made.dtype == object
        for k, row in enumerate(rows):
            for i in range(4):
                assert missing[k, i] or out[k, i] == row[i]
                assert type(out[k, i]) in ((float,), (str,), (dt.datetime,), (bool,))[i]
    dates = np.array([TIME, TIME[::-1]], dtype="datetime64[s]").T
    dates[3, 1] = "NaT"
    out, _, missing = filled(dates)
    assert out.dtype == dates.dtype
    assert missing.sum() == 1
    assert not np.isnat(out).any()


def test_columns_without_a_value_get_the_type_of_training():
    types = {"a": cells(native_frame(pd.DataFrame({"a": TIME}))[0]["a"])[2]}
    moment = np.array([86_400_000_000])
    places = {"a": (np.array([1]), moment)}
    assert fill_cells(pl.DataFrame({"a": [None, None]}), places, types, ())["a"].to_list()[1] == dt.datetime(
        1970, 1, 2
    )
    table = fill_cells(pa.table({"a": pa.nulls(2)}), places, types, ())
    assert table.column("a").to_pylist() == [None, dt.datetime(1970, 1, 2)]
    assert fill_cells(pd.DataFrame({"a": [None, None]}), places, types, ())["a"][1] == pd.Timestamp(
        "1970-01-02"
    )


def test_names_of_columns_are_not_taken_for_methods():
    X = pd.DataFrame({"collect": gaps(REAL), "column_names": TEXT, "columns": WHOLE})
    assert native_frame(X)[0].columns == list(X)
    assert list(filled(X)[0]) == list(X)


def test_names_that_are_no_text_stay():
    X = pd.DataFrame({0: gaps(REAL), 1: TEXT})
    assert list(filled(X)[0].columns) == [0, 1]
    with pytest.raises(ValueError, match="column name '0' occurs more than once"):
        native_frame(pd.DataFrame([[1, 2]], columns=[0, "0"]))


def test_a_filled_category_that_the_table_does_not_list_is_added():
    X = pd.DataFrame({"a": pd.Categorical([None, "x"], categories=["x"])})
    out = fill_cells(X, {"a": (np.array([0]), np.array(["y"], dtype=object))}, {}, ())
    assert out["a"].tolist() == ["y", "x"]
    assert list(X["a"].cat.categories) == ["x"]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (
            pd.to_timedelta(range(4), unit="h"),
            "holds values of type duration; turn them into numbers, or leave",
        ),
        ([[1], [2], [3], [4]], "holds values of type list; expected numbers, text or dates"),
        ([1j, 2, 3, 4], "holds values of type complex; expected"),
        ([1.0, np.inf, 2.0, 3.0], "holds an infinite value; expected finite numbers"),
        (DAYS[:4], "holds dates as Python objects; turn it into a column of dates"),
    ],
)
def test_other_columns_are_refused_in_a_sentence(column, words):
    with pytest.raises(ValueError, match=f"^column 'a' {words}"):
        Schema.inferred(pd.DataFrame({"a": pd.Series(column), "b": range(4)}))


@pytest.mark.parametrize("X", [pd.Series([1]), 3, "text", {1, 2}])
def test_what_is_no_table_is_refused(X):
    with pytest.raises(ValueError, match="expected a data frame"):
        native_frame(X)


def test_tables_without_types_take_those_of_the_values():
    columns = {"a": np.array([1, 2]), "b": np.array(["x", "y"], dtype=object)}
    for kind, frame in (("pandas", pd.DataFrame), ("polars", pl.DataFrame), ("pyarrow", pa.Table)):
        made = build_frame(columns, {}, kind)
        assert isinstance(made, frame)
    assert made.to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
