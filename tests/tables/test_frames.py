"""Arrays and data frames as matrices, and columns in the order of a model."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pytest

from pynade.tables.frames import align, as_matrix

DAY = dt.date(2024, 1, 31)


def arrow(columns):
    return pytest.importorskip("pyarrow", reason="pyarrow is not installed").table(columns)


@pytest.fixture(
    params=[pd.DataFrame, pl.DataFrame, pl.LazyFrame, arrow], ids=["pandas", "polars", "lazy", "arrow"]
)
def frame(request):
    return request.param


def test_frames_give_numbers_and_names(frame):
    rows, names = as_matrix(frame({"a": [1.5, None, 3.0], "b": [True, False, True], "c": [1, 2, 3]}))
    assert names == ["a", "b", "c"]
    np.testing.assert_array_equal(rows, [[1.5, 1, 1], [np.nan, 0, 2], [3, 1, 3]])
    assert rows.dtype == np.float64


def test_whole_numbers_and_booleans_stay_whole(frame):
    rows, _ = as_matrix(frame({"a": [1, 0], "b": [True, False]}))
    assert rows.dtype.kind in "iu"
    assert rows.tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["Paris", "Rome"], "text such as 'Paris'"),
        ([None, "Rome"], "text such as 'Rome'"),
        ([DAY, DAY], "dates such as '2024-01-31"),
        ([dt.timedelta(days=2), None], "durations such as '"),
    ],
)
def test_columns_of_text_and_dates_are_named(frame, cells, words):
    X = frame({"size": [1, 2], "city": cells})
    with pytest.raises(
        ValueError, match=rf"^column 'city' holds {words}.*; expected numbers: leave"
    ) as caught:
        as_matrix(X)
    assert "\n" not in str(caught.value)


def test_a_column_without_any_value_is_missing(frame):
    rows, _ = as_matrix(frame({"a": [None, None], "b": [1, 2]}))
    np.testing.assert_array_equal(rows, [[np.nan, 1], [np.nan, 2]])


def test_missing_values_and_categories_of_pandas():
    X = pd.DataFrame(
        {
            "int": pd.array([1, None], dtype="Int64"),
            "float": pd.array([None, 0.5], dtype="Float64"),
            "bool": pd.array([True, None], dtype="boolean"),
            "object": np.array([2, pd.NA], dtype=object),
            "category": pd.Categorical([3, 4]),
        }
    )
    rows, names = as_matrix(X)
    np.testing.assert_array_equal(rows, [[1, np.nan, 1, 2, 3], [np.nan, 0.5, np.nan, np.nan, 4]])
    assert names == list(X)
    with pytest.raises(ValueError, match="column 'kind' holds text such as 'low'"):
        as_matrix(pd.DataFrame({"kind": pd.Categorical(["low", "high"])}))


def test_decimals_and_nulls_of_polars():
    X = pl.DataFrame({"a": pl.Series([1, 2]).cast(pl.Decimal(10, 2)), "b": [True, None]})
    np.testing.assert_array_equal(as_matrix(X)[0], [[1, 1], [2, np.nan]])


def test_names_that_are_no_strings_are_no_names():
    rows, names = as_matrix(pd.DataFrame(np.eye(2)))
    np.testing.assert_array_equal(rows, np.eye(2))
    assert names is None
    with pytest.raises(ValueError, match="column 1 holds text such as 'x'"):
        as_matrix(pd.DataFrame([[1, "x"]]))


def test_two_columns_of_one_name_are_refused():
    with pytest.raises(ValueError, match="column name 'a' occurs more than once"):
        as_matrix(pd.DataFrame(np.eye(2), columns=["a", "a"]))


def test_a_frame_without_columns_keeps_its_rows():
    assert as_matrix(pd.DataFrame(index=range(3)))[0].shape == (3, 0)


def test_arrays_and_lists():
    X = np.eye(2, dtype=np.float32)
    assert as_matrix(X) == (X, None)
    assert as_matrix([[1, 2], [3, 4]])[0].tolist() == [[1, 2], [3, 4]]
    np.testing.assert_array_equal(as_matrix([[1, None]])[0], [[1, np.nan]])
    np.testing.assert_array_equal(as_matrix(np.array([[1, pd.NA]], dtype=object))[0], [[1, np.nan]])
    for X in (
        [[1, "Paris"]],
        np.array([["x", "Paris"]])[:, [1, 1]],
        np.array([[2.5, "Paris"]], dtype=object),
    ):
        with pytest.raises(ValueError, match=r"column [01] holds text such as 'Paris'"):
            as_matrix(X)
    with pytest.raises(ValueError, match=r"column 0 holds dates such as '2024-01-31'"):
        as_matrix(np.array([["2024-01-31"]], dtype="datetime64[D]"))
    with pytest.raises(TypeError, match="not 'dict'"):
        as_matrix(np.array([[{}]], dtype=object))


def test_other_objects_are_left_alone():
    import scipy.sparse

    for X in (pd.Series([1, 2]), scipy.sparse.eye(2), "text", 3, np.zeros(3)):
        assert as_matrix(X)[0] is X


@pytest.mark.parametrize(
    ("names", "wanted", "positions"),
    [
        (["a", "b"], ["a", "b"], None),
        (["b", "a"], ["a", "b"], [1, 0]),
        (None, ["a", "b"], None),
        (["a", "b"], None, None),
        (["x1", "x2"], ["a", "b"], None),
        (["a", "b"], ["x1", "x2"], None),
        (["x2", "x1"], ["x1", "x2"], None),
    ],
)
def test_positions_of_columns(names, wanted, positions):
    rows = np.arange(2)[None]
    aligned = align(rows, names, wanted)
    assert (None if aligned is rows else aligned[0].tolist()) == positions


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a"], "there are no columns 'b', 'c'$"),
        (["c", "b", "a", "d"], "'d' is not one of its columns$"),
        (["a", "b", "d", "e"], "there is no column 'c', and 'd', 'e' are none of its columns$"),
        (["a", "b", "c", *"defghij"], "'d', 'e', 'f', 'g', 'h' and 2 more are none of its columns$"),
    ],
)
def test_other_columns_are_named(names, message):
    with pytest.raises(ValueError, match=f"^the model was trained on other columns: .*{message}"):
        align(np.zeros((1, len(names))), names, ["a", "b", "c"])


def test_columns_left_out_before_training_are_left_out_again():
    rows = np.array([[1, 2, 3]])
    assert align(rows, ["c", "a", "b"], ["b", "c"], dropped=["a"]).tolist() == [[3, 1]]
    assert align(rows, ["a", "b", "c"], ["b", "c"], dropped=["a"]).tolist() == [[2, 3]]
    assert align(rows, None, ["x1", "x3"], dropped=["x2"]).tolist() == [[1, 3]]
    assert align(rows[:, :2], ["c", "b"], ["b", "c"], dropped=["a"]).tolist() == [[2, 1]]
