"""Users' own files, and the word that says which data to take."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pynade.tables import dataset_from_file, read_file, resolve

cells = st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1.0, float("nan")])
tables = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 4)), elements=cells)


def pack(rows):
    return np.packbits(rows, axis=1)


BITS = np.array([[0, 1, 1], [1, 0, 0]], dtype=np.uint8)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "toy.csv"
    path.write_text(text, encoding="utf-8")
    return path


@given(
    tables,
    st.sampled_from([",", ";"]),
    st.booleans(),
    st.sampled_from(["", "NA", "nan", " ? ", '""', "None"]),
)
def test_csv_round_trip(tmp_path_factory, table, delimiter, named, gap):
    if table.shape[1] == 1 and not gap.strip():
        gap = "NA"  # a blank line in a table of one column is no row
    lines = [delimiter.join(gap if np.isnan(v) else repr(float(v)) for v in row) for row in table]
    names = tuple(f"size {i}" for i in range(table.shape[1]))
    text = "\n".join([delimiter.join(f'"{name}"' for name in names)] * named + lines)
    rows, found = read_file(written(tmp_path_factory.mktemp("csv"), text))
    np.testing.assert_array_equal(rows, table)
    assert found == (names if named else None)


@pytest.mark.parametrize(
    ("text", "rows", "names"),
    [
        ("1,2\r\n3,4\r\n", [[1, 2], [3, 4]], None),
        ("\ufeffa,b\n\n1,2\n", [[1, 2]], ("a", "b")),
        ('"a;b";c\n1;"2"\n', [[1, 2]], ("a;b", "c")),
        ("x,,x\n1,2,3\n", [[1, 2, 3]], ("x", "x2", "x_")),
        ("5\n7\n", [[5], [7]], None),
        ("5\n\n \n7\n\n", [[5], [7]], None),
        ("\n \na\n5", [[5]], ("a",)),
        ("+1, 2 \n 3,.5\n", [[1, 2], [3, 0.5]], None),
        ("a,b\n1,2\nNaT,<NA>\n", [[1, 2], [None, None]], ("a", "b")),
        ("1,#\n".replace("#", "1e3"), [[1, 1000]], None),
    ],
)
def test_csv_forms(tmp_path, text, rows, names):
    found = read_file(written(tmp_path, text))
    np.testing.assert_array_equal(found[0], np.array(rows, dtype=float))
    assert found[1] == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n\n3,x\n", r"toy.csv, line 4, column 'b': expected a number, but 'x' was found"),
        ("1,2\n3,x\n", r"line 2, column 2: expected a number, but 'x' was found"),
        ("1,2\n3\n", r"line 2: expected 2 columns, but 1 were found"),
        ("a,b\n1,2,3\n", r"line 2: expected 2 columns, but 3 were found"),
        ("1,\n3\n,4\n", r"line 2: expected 2 columns, but 1 were found"),
        ('1,2\n3,"2,5"\n4\n', r"line 2, column 2: expected a number, but '2,5' was found"),
        ("1,2\n3,1_000\n", r"line 2, column 2: expected a number, but '1_000' was found"),
        ("1,\n3,4,5\n", r"line 2: expected 2 columns, but 3 were found"),
        ("a,b\n1,2\n\n3,inf\n", r"line 4, column 'b': expected a finite number, but 'inf' was found"),
        ("1,2\n-Infinity,x\n", r"line 2, column 1: expected a finite number, but '-Infinity' was found"),
        ("1,1e999\n,3\n", r"line 1, column 2: expected a finite number, but '1e999' was found"),
        ("", r"toy.csv is empty"),
        ("\n\n", r"toy.csv is empty"),
        ("a,b\n", r"toy.csv has column names but no rows"),
    ],
)
def test_csv_errors_name_line_and_column(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_file(written(tmp_path, text))


def test_csv_that_is_no_text(tmp_path):
    path = tmp_path / "toy.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"toy.csv is no UTF-8 text"):
        read_file(path)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float32])
def test_zeros_and_ones_come_as_uint8(tmp_path, dtype):
    np.save(tmp_path / "toy.npy", BITS.astype(dtype))
    rows, names = read_file(tmp_path / "toy.npy")
    assert rows.dtype == np.uint8
    np.testing.assert_array_equal(rows, BITS)
    assert names is None


def test_other_numbers_come_as_float64(tmp_path):
    np.save(tmp_path / "toy.npy", BITS * np.uint8(3))
    rows, _ = read_file(tmp_path / "toy.npy")
    assert rows.dtype == np.float64
    assert rows.max() == 3


def test_npz_forms(tmp_path):
    path = tmp_path / "toy.npz"
    np.savez(path, anything=BITS)
    assert dataset_from_file(path).sizes == {"train": 2}
    np.savez(path, train=BITS, test=BITS[:1])
    assert dataset_from_file(path).sizes == {"train": 2, "test": 1}
    with pytest.raises(ValueError, match="holds the parts train, test; expected a file with a single table"):
        read_file(path)
    np.savez(path, train=pack(BITS), valid=pack(BITS[:1]), n_features=3)
    data = dataset_from_file(path)
    np.testing.assert_array_equal(data.train, BITS)
    assert data.test is None
    np.savez(path, train=BITS, test=BITS * 0.5)
    assert dataset_from_file(path).train.dtype == np.float64


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": BITS, "b": BITS}, r"holds the arrays a, b; expected a single array, or 'train'"),
        ({"valid": BITS, "test": BITS}, r"holds the arrays test, valid; expected"),
        ({"train": BITS, "test": BITS[:, :2]}, r"differ in their number of columns: \[2, 3\]"),
        ({"train": pack(BITS), "n_features": 30}, r"part 'train': expected 30 columns packed"),
        ({"train": BITS[0]}, r"expected rows and columns, but an array of shape \(3,\)"),
        ({"train": BITS[:0]}, r"it is empty"),
        ({"train": np.array([["a"]])}, r"part 'train': column 0 holds text such as 'a'; expected numbers"),
        (
            {"train": np.array([["1", "2"]])},
            r"column 0 holds text such as '1'; expected numbers",
        ),
        ({"train": np.array([[1j]])}, r"toy.npz, part 'train': Complex data not supported: column 0 holds"),
        ({"train": np.zeros((2, 1), "V3")}, r"expected numbers, but values of type \|V3 were found$"),
        ({"train": np.array(["a"])}, r"expected rows and columns, but an array of shape \(1,\)"),
        (
            {"train": BITS * 0.5, "test": np.array([[1, 2, 3], [4, -np.inf, np.nan]])},
            r"part 'test': expected finite numbers, but -inf was found in row 1, column 1 \(counted from 0\)",
        ),
        ({"train": np.array([[None]])}, r"toy.npz is damaged or holds no plain arrays"),
    ],
)
def test_npz_errors(tmp_path, arrays, message):
    np.savez(tmp_path / "toy.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        dataset_from_file(tmp_path / "toy.npz")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet"])
@pytest.mark.parametrize("content", [b"", b"nonsense"])
def test_damaged_files_are_named(tmp_path, suffix, content):
    path = tmp_path / f"toy{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"toy{suffix} (is damaged|could not be read)"):
        read_file(path)


def test_parquet(tmp_path):
    path = tmp_path / "toy.parquet"
    polars.DataFrame({"a": [1, None, 3], "b": [True, False, True]}).write_parquet(path)
    data = dataset_from_file(path)
    np.testing.assert_array_equal(data.train, [[1, 1], [np.nan, 0], [3, 1]])
    assert data.schema.names == ("a", "b")
    assert data.schema.kinds == ("real", "binary")
    polars.DataFrame({"a": [1], "b": ["x"]}).write_parquet(path)
    with pytest.raises(ValueError, match=r"toy.parquet, part 'train': column 'b' holds text such as 'x'"):
        read_file(path)
    polars.DataFrame({"a": [[1], [2]]}).write_parquet(path)
    with pytest.raises(ValueError, match=r"toy.parquet, part 'train': column 'a' holds "):
        read_file(path)
    polars.DataFrame({"a": [1, None, 2], "b": [0.5, None, float("inf")]}).write_parquet(path)
    with pytest.raises(ValueError, match=r"finite numbers, but inf was found in row 2, column 'b' \(counted"):
        read_file(path)


def test_a_parquet_file_on_which_polars_panics_is_named(tmp_path):
    path = tmp_path / "toy.parquet"
    polars.DataFrame({"n": np.arange(60) % 40, "city": ["Rome", "Oslo", "Bonn"] * 20}).write_parquet(path)
    content, panics = path.read_bytes(), 0
    for place in range(4, len(content) - 8):  # every byte but those around it all
        path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        try:
            polars.read_parquet(path)
        except polars.exceptions.PanicException:
            panics += 1
            with pytest.raises(ValueError, match=r"toy.parquet could not be read as a parquet file"):
                read_file(path)
        except polars.exceptions.PolarsError:
            pass
        if panics == 3:
            break
    if not panics:
        pytest.skip("this version of polars does not panic")


def test_arrays_are_read_without_polars(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    np.save(tmp_path / "toy.npy", BITS)
    assert read_file(tmp_path / "toy.npy")[0].tolist() == BITS.tolist()
    (tmp_path / "toy.parquet").write_bytes(b"PAR1")
    with pytest.raises(ImportError, match="polars"):
        read_file(tmp_path / "toy.parquet")


def test_missing_and_unknown_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_file(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="is a folder; expected a file"):
        read_file(tmp_path)
    (tmp_path / "toy.xls").write_text("1")
    with pytest.raises(ValueError, match=r"unknown format; expected one of: .npy, .npz, .csv, .parquet"):
        read_file(tmp_path / "toy.xls")


def test_kinds_of_columns_and_provenance(tmp_path):
    path = written(tmp_path, "a,b,c\n0,0.5,\n1,2,\n,3,\n")
    data = resolve(str(path))
    assert data.schema.kinds == ("binary", "real", "real")
    assert data.schema.names == ("a", "b", "c")
    assert data.name == "toy"
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert data.provenance == {"source": "toy.csv", "sha256": sha256}


def test_one_table_has_one_checksum_whatever_its_format(tmp_path):
    path = written(tmp_path, "a,b,c\n0,1,1\n1,0,0\n")
    np.save(tmp_path / "toy.npy", BITS.astype(float))
    np.savez(tmp_path / "toy.npz", train=pack(BITS), n_features=3)
    polars.DataFrame(BITS, schema=["a", "b", "c"]).write_parquet(tmp_path / "toy.parquet")
    sums = {resolve(file).checksum for file in (path, *tmp_path.glob("toy.[np]*"))}
    assert len(list(tmp_path.iterdir())) == 4
    assert len(sums) == 1


def test_resolve(tmp_path, monkeypatch):
    assert resolve("digits").name == "digits"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"no file './digits' exists"):
        resolve("./digits")
    message = r"no file 'adlt' exists, and it is no registered data set: did you mean 'adult'\?"
    with pytest.raises(ValueError, match=message):
        resolve("adlt")
    with pytest.raises(FileNotFoundError, match="there is no file adult"):
        resolve(Path("adult"))
    with pytest.raises(FileNotFoundError, match="pynade data get adult"):
        resolve("adult", tmp_path, download=False)
    with pytest.raises(TypeError, match="expected a data set's name or a file, but got int"):
        resolve(3)
