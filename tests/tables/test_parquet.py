"""Counts and sizes in Parquet files: what whole files claim is accepted, what damaged ones claim is not."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pynade.tables.files import read_frame
from pynade.tables.parquet import check_parquet, read_struct

FRAME = pl.DataFrame(
    {
        "number": [0.5, None, 2.0] * 400,
        "level": ["a", "b", None] * 400,
        "same": [1] * 1200,
        "text": [f"name {k}" for k in range(1200)],
        "list": [[1, 2], [], None] * 400,
        "none": [None] * 1200,
    }
)


@pytest.mark.parametrize("rows", [0, 1, 1200])
@pytest.mark.parametrize("compression", ["uncompressed", "snappy", "zstd", "gzip"])
@pytest.mark.parametrize("group", [None, 500])
def test_files_of_polars_are_accepted(tmp_path: Path, rows: int, compression: str, group: int | None) -> None:
    path = tmp_path / "some.parquet"
    FRAME.head(rows).write_parquet(path, compression=compression, row_group_size=group)  # type: ignore[arg-type]
    check_parquet(path)


@pytest.mark.parametrize("rows", [0, 1, 1200])
@pytest.mark.parametrize("pages", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_files_of_pyarrow_are_accepted(tmp_path: Path, rows: int, pages: str, dictionary: bool) -> None:
    parquet, path = pytest.importorskip("pyarrow.parquet"), tmp_path / "some.parquet"
    options = {"data_page_version": pages, "use_dictionary": dictionary, "write_page_checksum": True}
    parquet.write_table(FRAME.head(rows).to_arrow(), path, row_group_size=500, data_page_size=256, **options)
    check_parquet(path)


def test_a_changed_bit_of_a_header_is_refused_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    frame = FRAME.select("number", "level")
    frame.write_parquet(path)
    whole, well = path.read_bytes(), 0
    for place in range(4 * 8, 40 * 8):  # the header of the first page
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found = read_frame(path)
        except ValueError as error:
            message = str(error)
            well += "some.parquet" in message and "\n" not in message
        else:
            assert found.shape == frame.shape
            well += 1
    assert well == 36 * 8


def test_contradicting_numbers_of_rows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    FRAME.write_parquet(path)
    text = path.read_bytes()
    length = int.from_bytes(text[-8:-4], "little")
    footer = text[-8 - length : -8]
    n_rows = read_struct(io.BytesIO(footer))[3]
    number = bytes([0x16]) + _zigzag(n_rows)  # a field after the one before it, of 64 bits
    assert footer.count(number) > 1
    changed = footer.replace(number, bytes([0x16]) + _zigzag(2**40), 1)
    path.write_bytes(text[: -8 - length] + changed + len(changed).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ValueError, match=r"some\.parquet could not be read as a parquet file"):
        read_frame(path)


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_any_bytes_end_in_a_structure_or_a_known_error(text: bytes) -> None:
    with contextlib.suppress(ValueError, IndexError, RecursionError):
        assert isinstance(read_struct(io.BytesIO(text)), dict)


def _zigzag(value: int) -> bytes:
    value, found = 2 * value, bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])
