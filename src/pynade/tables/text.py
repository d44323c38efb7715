"""The text of CSV files: their columns, the types of these, and what is wrong with a file."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from pynade.tables.frames import MISSING, default_names
from pynade.tables.modules import polars

DELIMITERS = ",;"
#: Patterns of texts that are numbers, and of dates with their formats.
WHOLE, NUMBER = r"^[+-]?[0-9]{1,18}$", r"^[+-]?(([0-9]+\.[0-9]*|\.?[0-9]+)(e[+-]?[0-9]+)?|inf(inity)?)$"
PATTERNS = {"whole": (WHOLE, r"^[+-]?0\d"), "number": (f"(?i){NUMBER}", r"^[+-]?(0\d|\d{19,}$)")}  # and not
DAYS = {r"^\d{4}(-\d\d?){2}": "%Y-%m-%d", r"^\d{4}(/\d\d?){2}": "%Y/%m/%d", r"^(\d\d?\.){2}\d{4}": "%d.%m.%Y"}
TIMES = ("", " %H:%M:%S%.f", "T%H:%M:%S%.f", " %H:%M", "T%H:%M", " %H:%M:%S%.f%#z", "T%H:%M:%S%.f%#z")
DATES = {day + time: pattern for pattern, day in DAYS.items() for time in TIMES}
TYPES = ("boolean", "whole", "number", *DATES, "text")  # of columns of text; the first that fits is taken


class CsvText:
    """The text of a CSV file: its delimiter, its column names, and the lines that follow them.

    Args:
        path: the file, or how messages name the text.
        raw: its bytes, if they are not to be read from the file.
        head: the beginning of the file, if the bytes are rows that come later, without the column names.
        at: then the byte and the line at which they begin.
        empty: whether there may be no rows.
    """

    delimiter: str
    cells: list[str]  # of the first row
    names: tuple[str, ...] | None  # of the columns; None if the file has none

    def __init__(
        self,
        path: Path,
        raw: bytes | None = None,
        head: CsvText | None = None,
        at: tuple[int, int] = (0, 0),
        empty: bool = False,
    ) -> None:
        self.path, (byte, self.line), begin = path, at, 0
        try:
            raw = _unpacked(path) if raw is None else raw
            text = raw.decode("utf-8" if head else "utf-8-sig")
        except UnicodeDecodeError as error:
            where = f"{error.reason} at byte {byte + error.start}"
            raise ValueError(f"{path} is no UTF-8 text ({where})") from error
        if (nul := text.find("\0")) >= 0:
            line = self.line + text[:nul].count(chr(10)) + 1
            raise ValueError(f"{path} is no text: there is a NUL byte in line {line}")
        if head is not None:
            self.delimiter, self.cells, self.names = head.delimiter, head.cells, head.names
        else:
            begin = self._read_head(text)
        self.start = len(text[:begin].encode()) + 3 * raw.startswith(BOM_UTF8)  # bytes before the first row
        self.body = text[begin:].rstrip()
        if not (self.body or empty):
            raise ValueError(f"{path} has column names but no rows")

    def _read_head(self, text: str) -> int:
        """Find the delimiter and the column names, if there are any; returns where the rows begin."""
        self.delimiter = max(DELIMITERS, key=lambda mark: len(next(rows_of(text, mark, False), [()])[0]))
        try:
            first = next(rows_of(text, self.delimiter), None)
        except csv.Error as error:
            raise self.fault(error, 0) from None
        if first is None:
            raise ValueError(f"{self.path} is empty; expected rows and columns")
        self.cells = [cell.strip() for cell in first[0]]
        self.names = None if all(map(is_number, self.cells)) else unique_names(self.cells)
        if not self.names:
            return 0
        _, self.line, begin = first
        return begin

    def numbers(self) -> np.ndarray:
        """Return the cells as numbers; a ValueError names the line and the column of the first fault."""
        frame = self._frame(polars.Float64)
        if frame is None and (cells := self._frame(polars.String)) is not None:
            texts = polars.DataFrame([_known(column, MISSING) for column in cells])
            frame = texts.cast(polars.Float64, strict=False)
            frame = frame if frame.null_count().equals(texts.null_count()) else None
        if frame is not None and not np.isinf(found := frame.to_numpy(order="c")).any():
            return np.array(found, dtype=np.float64)
        return np.array(self._rows(numbers=True))

    def texts(self, missing: Sequence[str]) -> list[polars.Series]:
        """Return the columns as text, null where a cell is missing; refuses a row of another width."""
        for cell, name in zip(self.cells, self.names or self.cells, strict=True):
            if cell not in ("", name):
                again = f"column name {cell!r} occurs more than once"
                raise ValueError(f"{self.path}: {again}; names must differ")
        names, frame = self.names or default_names(len(self.cells)), self._frame(polars.String)
        if frame is None:
            frame = polars.DataFrame(self._rows(), dict.fromkeys(names, polars.String), orient="row")
        frame.columns = list(names)
        return [_known(column, missing) for column in frame]

    def frame(self, missing: Sequence[str]) -> polars.DataFrame:
        """Return the columns with the types they have; a ValueError names a row of another width."""
        return polars.DataFrame([as_type(text, first_type(text)) for text in self.texts(missing)])

    def _frame(self, kind: Any) -> Any:
        """Cells of one type; None where polars reads them in another way than Python, or cannot."""
        width, quoted, raw = len(self.cells), 0, self.body.encode()
        if width == 1 or re.search("\r(?!\n)", self.body) or not _surround(raw, self.delimiter):
            return None
        options: Any = {"schema": {str(i): kind for i in range(width)}, "has_header": False}
        try:
            frame = polars.read_csv(raw, separator=self.delimiter, **options)
        except polars.exceptions.PolarsError:
            return None
        if kind == polars.String:
            inside = polars.all().str.count_matches(self.delimiter, literal=True)
            quoted = sum(frame.select(inside.sum()).row(0))
        # polars fills short rows and refuses long ones, so the number of delimiters says that all are full
        full = self.body.count(self.delimiter) - quoted == len(frame) * (width - 1)
        return frame if full and len(frame) == self.body.count("\n") + 1 else None

    def _rows(self, numbers: bool = False) -> list[list[Any]]:
        """The cells as text or as numbers; a ValueError names the first fault."""
        rows: list[list[Any]] = []
        columns, line = self.names or range(1, len(self.cells) + 1), 0
        try:
            for row in rows_of(self.body, self.delimiter):
                cells, line, _ = row
                if len(cells) != len(self.cells):
                    raise ValueError(f": expected {len(self.cells)} columns, but {len(cells)} were found")
                rows.append([*map(self._number, cells, columns)] if numbers else cells)
        except (csv.Error, ValueError) as error:
            raise self.fault(error, line) from None
        return rows

    def fault(self, error: Exception, line: int) -> ValueError:
        """The sentence about a fault in a row that ends in this line, or about quotes in the next row."""
        if isinstance(error, ValueError):
            return ValueError(f"{self.path}, line {self.line + line}{error}")
        rule = "a cell in quotes ends with its quote, and a quote inside it is doubled"
        return ValueError(f"{self.path}: quotes do not match from line {self.line + line + 1} on ({rule})")

    def _number(self, cell: str, column: str | int) -> float:
        number = is_number(cell := cell.strip())
        found = math.nan if not number or cell.lower() in MISSING else float(cell)
        if not number or math.isinf(found):
            expected = "a finite number" if number else "a number"
            raise ValueError(f", column {column!r:.60}: expected {expected}, but {cell[:60]!r} was found")
        return found


def _unpacked(path: Path) -> bytes:
    with packed_errors(path):
        return gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()


@contextmanager
def packed_errors(path: Path) -> Iterator[None]:
    """In this block an error of unpacking a file is one sentence that names it."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged ({error})") from error


def rows_of(text: str, delimiter: str, strict: bool = True) -> Iterator[tuple[list[str], int, int]]:
    """The cells of each row that is not blank, its last line (from 1), and where the next row begins."""
    stream = io.StringIO(text, newline="")
    reader = csv.reader(stream, delimiter=delimiter, strict=strict)
    while True:
        limit = csv.field_size_limit(2**31 - 1)  # a setting of the whole process
        try:
            cells = next(reader, None)
        finally:
            csv.field_size_limit(limit)
        if cells is None:
            return
        if cells and not (len(cells) == 1 and cells[0].isspace()):
            yield cells, reader.line_num, stream.tell()


def _surround(text: bytes, delimiter: str) -> bool:
    """Whether quotes stand around whole cells and nowhere else, where all readers of CSV agree."""
    data = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(data == ord('"'))
    ends, around = [ord(delimiter), ord("\n"), ord("\r")], np.pad(data, 1, constant_values=ord("\n"))
    if len(quotes) % 2 or not np.isin(around[quotes[::2]], ends).all():
        return False
    return bool(np.isin(around[quotes[1::2] + 2], ends).all())


def _known(cells: polars.Series, missing: Sequence[str]) -> polars.Series:
    """Texts without the blanks around them; null where they mean "missing"."""
    text = cells.str.strip_chars()
    return text.set(text.str.to_lowercase().is_in(missing), None)


def types_of(text: polars.Series, among: Sequence[str] = TYPES) -> Iterator[str]:
    """Those of some types that all known cells of a column of text have; all of them where none is known."""
    known = text.drop_nulls().unique()

    def like(pattern: str) -> bool:  # (few columns pass the first look)
        return all(bool(some.str.contains(pattern).all()) for some in (known.head(100), known))

    for kind in among:
        if known.is_empty() or kind == "text":
            yield kind
        elif kind == "boolean":
            if known.is_in(["true", "false"]).all():
                yield kind
        elif kind in ("whole", "number"):
            pattern, code = (
                (WHOLE, r"^[+-]?0\d") if kind == "whole" else (f"(?i){NUMBER}", r"^[+-]?(0\d|\d{19,}$)")
            )
            if like(pattern) and not known.str.contains(code).any():
                yield kind
        elif like(DATES[kind]):
            with suppress(polars.exceptions.PolarsError):
                as_type(known, kind)
                yield kind


def first_type(text: polars.Series) -> str:
    """The type of a column of text that all its cells have; "text" where all are missing."""
    return "text" if text.null_count() == len(text) else next(types_of(text))


def as_type(text: polars.Series, kind: str) -> polars.Series:
    """A column of text as this type, one of those that all its cells have."""
    if kind in DATES:
        made: Any = polars.Date if kind in DAYS.values() else polars.Datetime("us")
        return text.str.strptime(made, kind)
    if kind == "boolean":
        return text == "true"
    return text.cast({"whole": polars.Int64, "number": polars.Float64, "text": polars.String}[kind])


def is_number(cell: str) -> bool:
    """Return whether a cell reads as a number ("1_000" does not), or as missing."""
    if cell.lower() in MISSING:
        return True
    with suppress(ValueError):
        float(cell)
        return cell.isascii() and "_" not in cell
    return False


def unique_names(cells: Sequence[str]) -> tuple[str, ...]:
    """Return the names with "x3" for an empty third one, and with "_" after a name that occurs again.

    From the ninth repetition on the name has its number: "_9", "_10", …
    """
    names: dict[str, None] = {}
    again: Counter[str] = Counter()
    for i, cell in enumerate(cells):
        name = first = cell or f"x{i + 1}"
        while name in names:
            again[first] += 1
            name = first + (f"_{n}" if (n := again[first]) > 8 else "_" * n)
        names[name] = None
    return tuple(names)
