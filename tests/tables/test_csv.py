"""CSV files of any shape: the table that Python's csv module reads, or one sentence that names the file."""

from __future__ import annotations

import csv
import io
import re

import numpy as np
import polars
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pynade.tables import files
from pynade.tables.files import read_file, read_frame
from pynade.tables.text import CsvText, is_number

texts = st.text(st.sampled_from("ab1 \",;\n\r\t'\\é"), max_size=6)
shapes = st.tuples(st.integers(1, 4), st.integers(1, 5))


@st.composite
def tables(draw, cells=texts):
    """Names of columns and rows of cells."""
    width, n = draw(shapes)
    names = [f"{re.sub('[,;]', '', draw(texts)).strip()}{i}x" for i in range(width)]
    return names, draw(st.lists(st.lists(cells, min_size=width, max_size=width), min_size=n, max_size=n))


@given(
    tables(),
    st.sampled_from(",;"),
    st.sampled_from([(csv.QUOTE_ALL, end) for end in ("\n", "\r\n", "\r")] + [(csv.QUOTE_MINIMAL, "\r\n")]),
    st.booleans(),
)
def test_every_table_that_csv_writes_is_read_whole(tmp_path_factory, table, delimiter, style, bom):
    (names, rows), (quoting, end) = table, style
    stream = io.StringIO(newline="")
    if len(names) == 1:  # the delimiter does not show
        delimiter = ","
    writer = csv.writer(stream, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerows([names, *rows])
    path = tmp_path_factory.mktemp("csv") / "toy.csv"
    path.write_bytes(b"\xef\xbb\xbf" * bom + stream.getvalue().encode())
    kept = [row for row in rows if len(row) > 1 or not row[0].isspace()]  # blank lines are no rows
    assume(kept)
    text = CsvText(path)
    assert text.delimiter == delimiter
    assert list(text.names) == [name.strip() for name in names]
    found = text._frame(polars.String)
    found = [row for row, _ in text._rows()] if found is None else found.rows()
    assert [[(c or "").strip() for c in row] for row in found] == [[c.strip() for c in row] for row in kept]
    assert read_frame(path).height == len(kept)


@given(st.text(st.sampled_from('a1",\n\r ;'), min_size=1, max_size=40))
def test_any_text_is_read_as_by_csv_or_refused_with_the_name_of_the_file(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("csv") / "toy.csv"
    path.write_bytes(text.encode())
    try:
        found = CsvText(path)
        rows = read_frame(path, ())
    except ValueError as error:
        assert "toy.csv" in str(error)  # noqa: PT017
        assert "\n" not in str(error).replace(repr("\n")[1:-1], "")  # noqa: PT017
        return
    text = text.rstrip()  # blanks at the end of a file say nothing
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=found.delimiter, strict=True)
    kept = [row for row in reader if row and not (len(row) == 1 and row[0].isspace())]
    kept = kept[found.names is not None :]
    assert rows.shape == (len(kept), len(kept[0]))
    missing = sum(not cell.strip() for row in kept for cell in row)
    assert sum(rows.null_count().row(0)) == missing


@given(st.lists(st.text(st.sampled_from("019.eE+-_nafi x"), max_size=7), min_size=2, max_size=6))
def test_numbers_are_those_of_python(tmp_path_factory, cells):
    path = tmp_path_factory.mktemp("csv") / "toy.csv"
    path.write_text("a,b\n" + "".join(f"0,{cell}\n" for cell in cells))

    def number(cell):
        return np.nan if cell.strip().lower() in files.MISSING else float(cell)

    if all(is_number(c.strip()) and not np.isinf(number(c)) for c in cells):
        np.testing.assert_array_equal(read_file(path)[0][:, 1], [number(c) for c in cells])
    else:
        with pytest.raises(ValueError, match=r"toy\.csv, line \d+, column 'b': expected a (finite )?number"):
            read_file(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'a,b\n1,"x\n2,y\n3,z\n', "quotes do not match from line 2 on"),
        (b'a,b\n1,x\n"y,2\n', "quotes do not match from line 3 on"),
        (b'"a,b\n1,2\n', "quotes do not match from line 1 on"),
        (b'a,b\n1,"x"y\n', "quotes do not match from line 2 on"),
        (b'a,b\n1,"x\\"y"\n', "quotes do not match from line 2 on"),
        (b'a\n"x\nb\n', "quotes do not match from line 2 on"),
        (b"a,b\n1,x\x00y\n", "is no text: there is a NUL byte in line 2"),
        (b"PK\x03\x04" + bytes(50), "is no text: there is a NUL byte"),
        ("a,b\n1,2\n".encode("utf-16"), "is no UTF-8 text"),
        ("a,b\n1,é\n".encode("latin-1"), "is no UTF-8 text"),
        (b"\x89PNG\r\n\x1a\n", "is no UTF-8 text"),
        (b"", "is empty"),
        (b'\n " " \n', "is empty|no rows"),
        (b"a,b\r\n", "has column names but no rows"),
        (b"a,b,c\n1,2,3\n4,5\n", "line 3: expected 3 columns, but 2 were found"),
        (b'a,b\n"1\n2",3\n4,5,6\n', "line 4: expected 2 columns, but 3 were found"),
        (b"a,a\n1,2\n", "column name 'a' occurs more than once"),
    ],
)
def test_faults_are_named(tmp_path, content, message):
    (tmp_path / "toy.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_frame(tmp_path / "toy.csv")
    assert "toy.csv" in str(error.value)


@pytest.mark.parametrize("cell", ["q" * 131_073, '"' + "q," * 70_000 + '"', '"' + 'q""' * 70_000 + '"'])
def test_a_long_cell_is_read_whole(tmp_path, cell):
    limit = csv.field_size_limit()
    (tmp_path / "toy.csv").write_text(f"a,{cell}\n1,x\n2,{cell}\n")
    frame = read_frame(tmp_path / "toy.csv")
    whole = cell if cell[0] == "q" else cell[1:-1].replace('""', '"')
    assert frame.shape == (2, 2)
    assert frame.columns[1] == frame[1, 1] == whole
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("digits", ["9" * 300_000, "0." + "9" * 300_000, "1" + "0" * 300_000 + "e-300000"])
def test_a_number_of_many_digits(tmp_path, digits):
    (tmp_path / "toy.csv").write_text(f"a,b\n{digits},1\n2,3\n")
    frame = read_frame(tmp_path / "toy.csv")
    assert frame.shape == (2, 2)
    if digits[0] == "9":
        with pytest.raises(
            ValueError, match=r"line 2, column 'a': expected a finite number, but '999"
        ) as error:
            read_file(tmp_path / "toy.csv")
        assert len(str(error.value)) < 400
    else:
        assert read_file(tmp_path / "toy.csv")[0].tolist() == [[1, 1], [2, 3]]


def test_a_quoted_line_break_in_the_header(tmp_path):
    (tmp_path / "toy.csv").write_text('"height\n(cm)";b\n1;2\n3;x\n')
    assert read_frame(tmp_path / "toy.csv").columns == ["height\n(cm)", "b"]
    with pytest.raises(ValueError, match=r"line 4, column 'b': expected a number, but 'x'"):
        read_file(tmp_path / "toy.csv")
