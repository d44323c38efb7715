"""Tables read part by part: the same cells, types and codes as of the table read at once; faults by name."""

from __future__ import annotations

import csv
import gzip
import pickle
import re

import numpy as np
import polars
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pynade.tables import Schema, stream
from pynade.tables.files import read_file, read_frame
from pynade.tables.stream import check_unchanged, is_table, list_parts, read_part, read_parts
from tests.tables.test_csv import tables

DAYS = ["2024-05-31", "2024-05-31 12:30", "2024-05-31 12:30:05", "31.12.2024", "1234567890123456789"]
CELLS = st.sampled_from(
    [
        "1",
        "01",
        "2.5",
        "1e3",
        "x",
        "y, z",
        'a "b"',
        "two\nlines",
        "",
        "NA",
        "true",
        "false",
        "é",
        " 7 ",
        *DAYS,
    ]
)


@pytest.fixture
def folder(tmp_path):
    """An empty folder; a block of a CSV file is a few bytes, so that rows lie across its ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "BLOCK", 64)
        patch.setattr(stream, "_head", lambda file: stream.CsvText(file))
        yield tmp_path


def write(path, names, rows, quoting=csv.QUOTE_MINIMAL):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=quoting, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)


def whole(data, rows, **options):
    """A table that is read part by part, as one frame."""
    parts = list_parts(data, rows, **options)
    frames = [table for _, table in read_parts(parts)]
    assert [len(frame) for frame in frames] == [part.rows for part in parts]
    assert [part.first for part in parts] == [0, *np.cumsum([part.rows for part in parts])[:-1]]
    assert all(len(frame) <= rows for frame in frames)
    check_unchanged(parts)
    return polars.concat(frames)


@settings(max_examples=60, deadline=None)
@given(tables(CELLS), st.integers(1, 4), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
def test_a_csv_file_means_the_same_in_parts(tmp_path_factory, table, rows, quoting):
    (names, lines), names = table, [f"{i}c" for i in range(len(table[0]))]
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    write(path, names, lines, quoting)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "BLOCK", 16)
        patch.setattr(stream, "_head", lambda file: stream.CsvText(file))
        assert whole(path, rows).equals(read_frame(path))


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from('ab1", ;\n\r\té'), max_size=60), st.integers(1, 3))
@example('a\r" "', 1)
@example("a\n1\n\u00a0\n2\n", 1)
def test_any_text_means_the_same_in_parts_or_is_refused_too(tmp_path_factory, text, rows):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "BLOCK", 8)
        patch.setattr(stream, "_head", lambda file: stream.CsvText(file))
        try:
            expected = read_frame(path)
        except ValueError as error:
            with pytest.raises(ValueError, match=re.escape(str(error))):
                whole(path, rows)
        else:
            assert whole(path, rows).equals(expected)


@settings(max_examples=30, deadline=None)
@given(tables(CELLS), st.data(), st.integers(1, 3))
def test_files_cut_anywhere_are_one_table(tmp_path_factory, table, data, rows):
    (names, lines), names = table, [f"{i}c" for i in range(len(table[0]))]
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(lines) - 1)), max_size=3)))
    folder = tmp_path_factory.mktemp("csv")
    write(folder / "whole", names, lines)
    for k, (a, b) in enumerate(zip([0, *cuts], [*cuts, len(lines)], strict=True)):
        if a < b:
            write(folder / f"{k}.csv", names, lines[a:b])
    (folder / "whole").rename(folder / "_whole.csv")  # (hidden)
    expected = read_frame(folder / "_whole.csv")
    assert whole(folder, rows).equals(expected)
    assert whole(str(folder / "[0-9].csv"), rows).equals(expected)
    (folder / "parquet").mkdir()
    for k in range(2):
        some = expected[k * len(expected) // 2 : (k + 1) * len(expected) // 2]
        some.write_parquet(folder / f"parquet/{k}.parquet", row_group_size=2)
    assert whole(folder / "parquet", rows).equals(expected)
    if (expected.null_count() == len(expected)).sum_horizontal()[0] < expected.width:
        schema = Schema.inferred(expected.with_columns(polars.lit(1).alias("one")))  # (a column is left)
        for some in (folder / "parquet", str(folder / "?.csv")):
            frames = [
                f.with_columns(polars.lit(1).alias("one")) for _, f in read_parts(list_parts(some, rows))
            ]
            codes = zip(*map(schema.encode, frames), strict=True)
            whole_codes = schema.encode(expected.with_columns(polars.lit(1).alias("one")))
            for parts, at_once in zip(codes, whole_codes, strict=True):
                np.testing.assert_array_equal(np.concatenate(parts), at_once)


def test_numbers_packed_files_and_files_without_names(folder):
    rows = [[str(k), str(k / 4), "NA" if k % 3 else "1"] for k in range(50)]
    write(folder / "n.csv", ["01", "2", "3"], rows)
    (folder / "n.csv.gz").write_bytes(gzip.compress((folder / "n.csv").read_bytes()))
    for name in ("n.csv", "n.csv.gz"):
        made = whole(folder / name, 7, numbers=True)
        assert made.columns == ["x1", "x2", "x3"]
        np.testing.assert_array_equal(made.to_numpy(), read_file(folder / name)[0])
        assert whole(folder / name, 7).equals(read_frame(folder / name))
    parts = list_parts(folder / "n.csv.gz", 7)
    assert read_part(pickle.loads(pickle.dumps(parts[-1]))).equals(read_part(parts[-1]))


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_long_files_with_any_line_ends_are_read_to_the_end(folder, monkeypatch, end, numbers):
    monkeypatch.setattr(stream, "LONGEST", 100)
    text = "a,b" + end + "".join(f'{k},"{k}"{end}' for k in range(80))
    (folder / "t.csv").write_bytes(text.encode())
    assert whole(folder / "t.csv", 7, numbers=numbers)["b"].to_list() == [*range(80)]


@pytest.mark.parametrize("before", [0, 5])
def test_a_row_that_does_not_end_is_refused_before_it_fills_the_memory(folder, monkeypatch, before):
    monkeypatch.setattr(stream, "LONGEST", 300)
    (folder / "t.csv").write_text("a,b\n" + "1,2\n" * before + '1,"2\n' + "3,4\n" * 200)
    with pytest.raises(ValueError, match=rf"t\.csv, after line {before + 1}: a row has more than 300 bytes"):
        list_parts(folder / "t.csv", 1000)


def test_what_a_table_is(folder):
    for name in ("a.csv", "b.png", "c.parquet"):
        (folder / name).write_text("a\n1\n")
    (folder / "pictures").mkdir()
    assert all(map(is_table, (folder / "a.csv", folder, str(folder / "*.csv"))))
    assert not any(map(is_table, ("digits", "nothing.csv", folder / "pictures", folder / "b.png")))


def frame(n=40):
    rng = np.random.default_rng(0)
    return polars.DataFrame({"a": rng.normal(size=n), "b": rng.integers(0, 5, n), "c": ["x", "y"] * (n // 2)})


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_files_without_rows_are_part_of_a_table(tmp_path, kind):
    tables = [frame()[:0], frame(), frame()[:0], frame()[:3]]
    for k, table in enumerate(tables):
        path = tmp_path / f"{k}.{kind}"
        if kind == "parquet":
            table.write_parquet(path)
        else:
            text = table.write_csv().encode()
            path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    assert whole(tmp_path, 15).equals(polars.concat(tables))
    with pytest.raises(ValueError, match=f"0.{kind} has column names but no rows"):
        list_parts(tmp_path / f"0.{kind}")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_names_of_files_are_no_patterns(tmp_path, kind):
    tables = {name: frame()[at : at + 20] for at, name in enumerate(("a1", "a[1]", "b*", "bb"))}
    for name, table in tables.items():
        getattr(table, f"write_{kind}")(tmp_path / f"{name}.{kind}")
    for name, table in tables.items():
        assert whole(tmp_path / f"{name}.{kind}", 15).equals(table)
        assert read_frame(tmp_path / f"{name}.{kind}").equals(table)
    assert whole(tmp_path, 15).equals(polars.concat(tables.values()))


def test_a_link_to_no_file_is_named(tmp_path):
    frame().write_csv(tmp_path / "1.csv")
    (tmp_path / "2.csv").symlink_to(tmp_path / "nowhere.csv")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*2\.csv"):
        list_parts(tmp_path)


def test_a_packed_file_that_is_gone_before_it_is_opened_is_named(tmp_path):
    for name in "12":
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(frame().write_csv().encode()))
    read = read_parts(list_parts(tmp_path))
    next(read)
    (tmp_path / "2.csv.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"2\.csv\.gz has disappeared since its rows were counted"):
        next(read)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_faults_name_the_file(tmp_path, kind):
    def written(name, table):
        getattr(table, f"write_{kind}")(tmp_path / f"{name}.{kind}")
        return tmp_path / f"{name}.{kind}"

    first, second = written("1", frame()), written("2", frame().rename({"b": "other"}))
    with pytest.raises(
        ValueError, match=f"2.{kind} has other columns than .*1.{kind}: 'other'.* in place of 'b'"
    ):
        list_parts(tmp_path)
    written("2", frame().select("a", "b"))
    with pytest.raises(ValueError, match=f"2.{kind} has other columns than .*: no column in place of 'c'"):
        list_parts(tmp_path)
    written("2", frame())
    parts = list_parts(tmp_path, 10)
    assert len(parts) == 8
    second.write_bytes(second.read_bytes() + b"9,9,x\n")
    with pytest.raises(ValueError, match=f"2.{kind} has changed since its rows were counted"):
        read_part(parts[-1])
    second.unlink()
    for call in (lambda: read_part(parts[-1]), lambda: check_unchanged(parts)):
        with pytest.raises(FileNotFoundError, match=f"2.{kind} has disappeared"):
            call()
    assert len(read_part(parts[0])) == 10
    for text in (b"", b"a,b,c\n1,2\n" if kind == "csv" else b"PAR1"):
        first.write_bytes(text)
        with pytest.raises(ValueError, match=f"1.{kind}"):
            list_parts(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nowhere"):
        list_parts(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"there is no CSV or Parquet file \(.*\) in .*x\*\.csv"):
        list_parts(str(tmp_path / "x*.csv"))


def test_a_corrupt_row_group_names_the_file(tmp_path):
    path = tmp_path / "t.parquet"
    table = polars.DataFrame({"a": np.arange(4000) // 7, "b": ["some words"] * 4000})
    table.write_parquet(path, row_group_size=1000, compression="zstd")
    raw = path.read_bytes()
    at = raw.rindex(b"\x28\xb5\x2f\xfd", 0, len(raw) // 2)  # where a compressed page begins
    path.write_bytes(raw[: at + 6] + bytes(8) + raw[at + 14 :])
    with pytest.raises(ValueError, match=r"t\.parquet could not be read as a parquet file"):
        for _ in read_parts(list_parts(path, 1000)):
            pass


def test_parquet_columns_of_other_types_are_refused(tmp_path):
    frame().write_parquet(tmp_path / "1.parquet")
    frame().cast({"b": polars.Float64}).write_parquet(tmp_path / "2.parquet")
    with pytest.raises(
        ValueError, match=r"2\.parquet has other columns than .*: 'b' Float64 in place of 'b' Int64"
    ):
        list_parts(tmp_path)
    (tmp_path / "2.parquet").unlink()
    frame().write_csv(tmp_path / "2.csv")
    with pytest.raises(
        ValueError, match=r"2\.csv is a .csv file; expected all files of a table to be like 1"
    ):
        list_parts(tmp_path)
