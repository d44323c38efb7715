"""Whether the counts and sizes that a Parquet file claims fit each other and the file.

The reader allocates what the file claims, and a process cannot survive an allocation that fails; so a damaged
or hostile file has to be refused before it is read. Parquet writes its metadata in Thrift's compact protocol.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, BinaryIO

STOP, STRUCT = 0, 12
LONGEST = 1 << 31  # bytes of a text, in this protocol


def check_parquet(path: Path) -> int:
    """Return the number of rows; a ValueError if counts or sizes of a Parquet file contradict each other.

    Args:
        path: The file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 8))
        length = int.from_bytes(file.read(4), "little")
        if file.read(4) != b"PAR1" or length + 12 > size:
            raise ValueError("it does not end as one")
        file.seek(size - 8 - length)
        try:
            metadata = read_struct(io.BytesIO(file.read(length)))
            for group in metadata[4]:
                for column in group[1]:
                    _check_column(file, column[3], group[3], size)
            n_rows = sum(group[3] for group in metadata[4])
        except (LookupError, TypeError, AttributeError, RecursionError):
            raise ValueError("its metadata cannot be read") from None
    if n_rows != metadata[3]:
        raise ValueError("its number of rows is not that of its parts")
    return int(n_rows)


def _check_column(file: BinaryIO, column: dict[int, Any], n_rows: int, size: int) -> None:
    """Walk over the headers of the pages of one column in one part of the rows."""
    values, unpacked, packed = column[5], column[6], column[7]
    at = min(filter(None, (column[9], column.get(11))), default=0)  # (no offset is 0: there the file begins)
    end, n_values = at + packed, 0
    if min(values, unpacked, packed, at, n_rows) < 0 or end > size or values < n_rows:
        raise ValueError("a column claims more than the file has")
    while at < end:
        file.seek(at)
        page = read_struct(file)
        header = page.get(5) or page.get(8)
        count = (header or page.get(7) or {1: 0})[1]
        if min(page[2], page[3], count) < 0 or page[2] > unpacked or (not header and count > page[2]):
            raise ValueError("a page claims more than its column has")
        n_values += count if header else 0
        at = file.tell() + page[3]
    if at != end or n_values != values:
        raise ValueError("the pages of a column do not add up to it")


def read_struct(stream: BinaryIO) -> dict[int, Any]:
    """The fields by number of the structure that begins at the stream's position; texts are skipped.

    Example:
        >>> read_struct(io.BytesIO(bytes([0x15, 0x06, 0x18, 0x01, 0x61, 0x00])))
        {1: 3, 2: 'text'}
    """
    fields, number = {}, 0
    while (head := _byte(stream)) != STOP:
        number = number + (head >> 4) if head >> 4 else _signed(stream)
        kind = head & 15
        fields[number] = kind == 1 if kind in (1, 2) else _value(stream, kind)
    return fields


def _value(stream: BinaryIO, kind: int) -> Any:
    """A value of any type but boolean (the type of a boolean field is its value)."""
    if kind in (1, 2, 3):
        return _byte(stream)
    if kind in (4, 5, 6):
        return _signed(stream)
    if kind in (7, 8):
        length = 8 if kind == 7 else _unsigned(stream)
        if length > LONGEST:
            raise IndexError("the text ends too early")
        stream.seek(length, os.SEEK_CUR)
        return "text"
    if kind in (9, 10):
        head = _byte(stream)
        n = head >> 4 if head >> 4 < 15 else _unsigned(stream)
        return [_value(stream, head & 15) for _ in range(n)]
    if kind == STRUCT:
        return read_struct(stream)
    raise ValueError(f"its metadata have a value of the unknown kind {kind}")


def _byte(stream: BinaryIO) -> int:
    return stream.read(1)[0]


def _unsigned(stream: BinaryIO) -> int:
    """An integer in groups of seven bits."""
    value, shift = 0, 0
    while True:
        byte = _byte(stream)
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value
        if shift > 63:
            raise ValueError("an integer has more than 64 bits")


def _signed(stream: BinaryIO) -> int:
    """An integer whose last bit is its sign."""
    value = _unsigned(stream)
    return value >> 1 ^ -(value & 1)
