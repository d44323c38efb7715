"""Tables of many columns: steps over their names are linear."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars
import pytest

from pynade.runs.run import _drop_constant
from pynade.tables import Dataset, Schema
from pynade.tables.column import Column
from pynade.tables.files import read_file, read_frame, unique_names
from pynade.tables.frames import align, fill_cells

N = 2000


class Name(str):
    """A column name that counts how often names are compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)

    def __ne__(self, other):
        return not self == other


@pytest.fixture
def names():
    Name.compared = 0
    return [Name(f"c{i}") for i in range(N)]


def copies(names):
    return [Name(name) for name in names]


def test_names_of_a_header(names):
    assert unique_names(names) == tuple(names)
    assert Name.compared < 10 * N


def test_equal_names_of_a_header_differ_and_stay_short():
    found = unique_names(["a"] * N)
    assert found[:3] == ("a", "a_", "a__")
    assert len(set(found)) == N
    assert max(map(len, found)) < 12
    assert len(set(unique_names(["a", "a_", "a", "", "x4", "a_9"] * 9))) == 54


def test_columns_are_put_in_order(names):
    rows = np.arange(N)[None]
    np.testing.assert_array_equal(align(rows, names, copies(names)[::-1]), rows[:, ::-1])
    np.testing.assert_array_equal(align(rows, names, copies(names)[:1:-1], copies(names)[:2]), rows[:, :1:-1])
    with pytest.raises(ValueError, match="no column 'other'"):
        align(rows, names, [*copies(names)[1:], Name("other")])
    assert Name.compared < 40 * N


def test_places_of_columns(names):
    schema = Schema(tuple(Column(name, "real") for name in names))
    assert [schema.index(name) for name in copies(names)] == list(range(N))
    assert schema.names is schema.names
    assert Name.compared < 10 * N


def test_constant_columns_are_dropped(names):
    rows = np.stack([np.zeros(N), np.arange(N) % 2])
    schema = Schema(tuple(Column(name, "binary") for name in names))
    left = _drop_constant(Dataset("toy", rows, None, None, schema), True)
    assert left.provenance["dropped_columns"] == names[::2]
    assert Name.compared < 10 * N


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_cells_of_many_columns_are_filled_at_once(kind, monkeypatch):
    X = np.where(np.eye(30, dtype=bool), np.nan, np.arange(30.0))
    names = [f"c{i}" for i in range(30)]
    frame = pd.DataFrame(X, columns=names) if kind == "pandas" else polars.DataFrame(X, names)
    table = frame.to_arrow().replace_schema_metadata({"a": "b"}) if kind == "pyarrow" else frame
    calls = []
    whole = polars.DataFrame.with_columns
    monkeypatch.setattr(polars.DataFrame, "with_columns", lambda *args: calls.append(1) or whole(*args))
    filled = fill_cells(
        table, {n: (np.array([i]), np.array([float(i)])) for i, n in enumerate(names)}, {}, ()
    )
    numbers = filled.to_pandas().to_numpy() if kind == "pyarrow" else filled.to_numpy()
    np.testing.assert_array_equal(numbers, np.tile(np.arange(30.0), (30, 1)))
    assert not calls  # each would make a new frame
    if kind == "pyarrow":
        assert filled.schema.metadata == {b"a": b"b"}
        assert filled.column_names == names


def test_a_wide_file(tmp_path):
    (tmp_path / "wide.csv").write_text(
        "\n".join(",".join(f"{c}{i}" for i in range(N)) for c in ("c", "", "1"))
    )
    assert read_file(tmp_path / "wide.csv")[0].shape == (2, N)
    assert read_frame(tmp_path / "wide.csv").shape == (2, N)
