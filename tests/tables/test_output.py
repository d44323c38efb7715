"""Tables that are written are read as the same tables."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from pynade.tables import read_file
from pynade.tables.files import check_destination, write_table

ROWS = np.array([[0.1, 1e-7, 1e22], [np.nan, -0.0, 1 / 3]])


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".npy"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8])
def test_round_trip(tmp_path, ending, dtype):
    rows = ROWS.astype(dtype) if np.dtype(dtype).kind == "f" else np.arange(6, dtype=dtype).reshape(2, 3)
    path = tmp_path / f"t{ending}"
    write_table(path, ["a", "b; c", 'd "e", f'], rows)
    found, names = read_file(path)
    np.testing.assert_array_equal(found, rows.astype(np.float64))
    assert names == (None if ending == ".npy" else ("a", "b; c", 'd "e", f'))
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_whole_numbers_are_written_as_such_and_equal_names_differ(tmp_path):
    path = tmp_path / "t.csv"
    write_table(path, ["a", "a"], np.array([[0, 1]], dtype=np.uint8))
    assert path.read_text() == "a,a_\n0,1\n"


def test_an_array_of_any_shape_needs_no_polars(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    write_table(tmp_path / "t.npy", [], np.zeros((2, 3, 4)))
    assert np.load(tmp_path / "t.npy").shape == (2, 3, 4)
    with pytest.raises(ImportError, match="polars"):
        write_table(tmp_path / "t.csv", ["a"], np.zeros((1, 1)))


def test_destinations_are_checked(tmp_path):
    with pytest.raises(
        ValueError, match=r"cannot write t\.doc: its ending must be \.csv or \.npy or \.parquet"
    ):
        write_table(tmp_path / "t.doc", ["a"], np.zeros((1, 1)))
    with pytest.raises(ValueError, match=r"the folder .*none does not exist"):
        check_destination(tmp_path / "none" / "t.csv")
