"""Whether the counts and sizes that a Parquet file claims fit each other and the file.

The reader allocates what the file claims, and a process cannot survive an allocation that fails; so a damaged
or hostile file has to be refused before it is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

HEADER = 2**16  # bytes read for the header of a page; more where that does not suffice
STOP, STRUCT = 0, 12


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
            facts = Compact(file.read(length)).struct()
            for group in facts[4]:
                for column in group[1]:
                    _check_column(file, column[3], group[3], size)
            parts = sum(group[3] for group in facts[4])
        except (LookupError, TypeError, AttributeError, RecursionError):
            raise ValueError("its metadata cannot be read") from None
    if parts != facts[3]:
        raise ValueError("its number of rows is not that of its parts")
    return int(parts)


def _check_column(file: BinaryIO, column: dict[int, Any], n_rows: int, size: int) -> None:
    """Walk over the headers of the pages of one column in one part of the rows."""
    values, unpacked, packed = column[5], column[6], column[7]
    at = min(filter(None, (column[9], column.get(11))), default=0)  # (no offset is 0: there the file begins)
    end = at + packed
    if min(values, unpacked, packed, at, n_rows) < 0 or end > size or values < n_rows:
        raise ValueError("a column claims more than the file has")
    found = 0
    while at < end:
        file.seek(at)
        text = file.read(min(HEADER, end - at))
        try:
            page, used = (reader := Compact(text)).struct(), reader.at
        except IndexError:
            text += file.read(end - at - len(text))
            page, used = (reader := Compact(text)).struct(), reader.at
        header = page.get(5) or page.get(8)
        counts = (header or page.get(7) or {1: 0})[1]
        if min(page[2], page[3], counts) < 0 or page[2] > unpacked or (not header and counts > page[2]):
            raise ValueError("a page claims more than its column has")
        found += counts if header else 0
        at += used + page[3]
    if at != end or found != values:
        raise ValueError("the pages of a column do not add up to it")


class Compact:
    """A reader of Thrift's compact protocol, in which Parquet writes its metadata.

    Args:
        text: Bytes that begin with a structure.

    Example:
        >>> Compact(bytes([0x15, 0x06, 0x18, 0x01, 0x61, 0x00])).struct()
        {1: 3, 2: b'a'}
    """

    def __init__(self, text: bytes) -> None:
        self.text, self.at = text, 0

    def byte(self) -> int:
        """The next byte."""
        self.at += 1
        return self.text[self.at - 1]

    def unsigned(self) -> int:
        """An integer in groups of seven bits."""
        value, shift = 0, 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("an integer has more than 64 bits")

    def signed(self) -> int:
        """An integer whose last bit is its sign."""
        value = self.unsigned()
        return value >> 1 ^ -(value & 1)

    def struct(self) -> dict[int, Any]:
        """The fields of a structure by their numbers."""
        fields, number = {}, 0
        while (head := self.byte()) != STOP:
            number = number + (head >> 4) if head >> 4 else self.signed()
            kind = head & 15
            fields[number] = kind == 1 if kind in (1, 2) else self.value(kind)
        return fields

    def value(self, kind: int) -> Any:
        """A value of a kind other than the boolean field, whose value is its kind."""
        if kind in (1, 2, 3):
            return self.byte()
        if kind in (4, 5, 6):
            return self.signed()
        if kind in (7, 8):
            length = 8 if kind == 7 else self.unsigned()
            if length > len(self.text) - self.at:
                raise IndexError("the text ends too early")
            self.at += length
            return self.text[self.at - length : self.at]
        if kind in (9, 10):
            head = self.byte()
            n = head >> 4 if head >> 4 < 15 else self.unsigned()
            return [self.struct() if head & 15 == STRUCT else self.value(head & 15) for _ in range(n)]
        if kind == STRUCT:
            return self.struct()
        raise ValueError(f"its metadata have a value of the unknown kind {kind}")
