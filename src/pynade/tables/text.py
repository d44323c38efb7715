"""The text of CSV files: their columns, the types of these, and what is wrong with a file."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from pynade.tables.frames import MISSING, default_names
from pynade.tables.modules import polars

DELIMITERS = ",;"
DAYS = {r"^\d{4}(-\d\d?){2}": "%Y-%m-%d", r"^\d{4}(/\d\d?){2}": "%Y/%m/%d", r"^(\d\d?\.){2}\d{4}": "%d.%m.%Y"}
TIMES = ("", " %H:%M:%S%.f", "T%H:%M:%S%.f", " %H:%M", "T%H:%M", " %H:%M:%S%.f%#z", "T%H:%M:%S%.f%#z")
DATES = {day + time: pattern for pattern, day in DAYS.items() for time in TIMES}
WHOLE, NUMBER = r"^[+-]?[0-9]{1,18}$", r"(?i)^[+-]?(([0-9]+\.[0-9]*|\.?[0-9]+)(e[+-]?[0-9]+)?|inf(inity)?)$"
#: Types of columns of text, of which the first that fits is taken, with patterns of their cells. A type of
#: dates is their format, which also decides.
PATTERNS = {"boolean": "^(true|false)$", "whole": WHOLE, "number": NUMBER, **DATES, "text": ""}
CODES = {"whole": r"^[+-]?0\d", "number": r"^[+-]?(0\d|\d{19,}$)"}  # patterns of digits that are no numbers
TYPES = tuple(PATTERNS)


class CsvText:
    """The text of a CSV file: its delimiter, its column names, and the lines that follow them.

    Args:
        path: the file, or how messages name the text.
        raw: its bytes, if they are not to be read from the file.
    """

    def __init__(self, path: Path, raw: bytes | None = None) -> None:
        self.path, self.line = path, 0  # the line: how many come before the rows
        if raw is None:
            with packed_errors(path), open_csv(path) as stream:
                raw = stream.read()
        text = self._decode(raw)
        marked = text.startswith("\ufeff")
        text = text[marked:]
        self.delimiter = max(DELIMITERS, key=lambda mark: len(next(rows_of(text, mark, False), [()])[0]))
        try:
            first = next(rows_of(text, self.delimiter), None)
        except csv.Error:
            raise self._unmatched_quotes(0) from None
        if first is None:
            raise ValueError(f"{path} is empty; expected rows and columns")
        cells, line, begin = first
        self.cells = [cell.strip() for cell in cells]  # of the first row
        self.names = None if all(map(is_number, self.cells)) else unique_names(self.cells)
        self.line, begin = (line, begin) if self.names else (0, 0)
        self.start = len(text[:begin].encode()) + 3 * marked  # bytes before the rows
        self.body = text[begin:].rstrip()

    def part(self, raw: bytes, byte: int, line: int) -> CsvText:
        """Return the text of later rows, which begin at this byte of the file, after so many lines."""
        part = copy(self)
        part.line = line
        part.body = part._decode(raw, byte).rstrip()
        return part

    def _decode(self, raw: bytes, byte: int = 0) -> str:
        """The text of the bytes from a byte of the file on; a ValueError says where there is none."""
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            where = f"{error.reason} at byte {byte + error.start}"
            raise ValueError(f"{self.path} is no UTF-8 text ({where})") from error
        if (nul := text.find("\0")) >= 0:
            line = self.line + text[:nul].count("\n") + 1
            raise ValueError(f"{self.path} is no text: there is a NUL byte in line {line}")
        return text

    def numbers(self) -> np.ndarray:
        """Return the cells as numbers; a ValueError names the line and the column of the first fault."""
        self._check_rows()
        frame = self._frame(polars.Float64)
        if frame is None and (texts := self._frame(polars.String)) is not None:
            with suppress(polars.exceptions.PolarsError):
                frame = polars.DataFrame([_strip(text, MISSING).cast(polars.Float64) for text in texts])
        if frame is not None and not np.isinf(numbers := frame.to_numpy(order="c")).any():
            return np.array(numbers, dtype=np.float64)
        columns = self.names or range(1, len(self.cells) + 1)
        return np.array([[*map(self._number, cells, columns, repeat(line))] for cells, line in self._rows()])

    def texts(self, missing: Sequence[str]) -> list[polars.Series]:
        """Return the columns as text, null where a cell is missing; refuses a row of another width."""
        for cell, name in zip(self.cells, self.names or self.cells, strict=True):
            if cell not in ("", name):
                repeated = f"column name {cell!r} occurs more than once"
                raise ValueError(f"{self.path}: {repeated}; names must differ")
        names, frame = self.names or default_names(len(self.cells)), self._frame(polars.String)
        if frame is None:
            rows = [cells for cells, _ in self._rows()]
            frame = polars.DataFrame(rows, dict.fromkeys(names, polars.String), orient="row")
        frame.columns = list(names)
        return [_strip(text, missing) for text in frame]

    def frame(self, missing: Sequence[str]) -> polars.DataFrame:
        """Return the columns with the types they have; a ValueError names a row of another width."""
        self._check_rows()
        return polars.DataFrame([as_type(text, first_type(text)) for text in self.texts(missing)])

    def _check_rows(self) -> None:
        if not self.body:
            raise ValueError(f"{self.path} has column names but no rows")

    def _frame(self, dtype: Any) -> Any:
        """Cells of one type; None where polars reads them in another way than Python, or cannot."""
        width, quoted, raw = len(self.cells), 0, self.body.encode()
        if width == 1 or re.search("\r(?!\n)", self.body) or not _quotes_surround_cells(raw, self.delimiter):
            return None
        options: Any = {"schema": {str(i): dtype for i in range(width)}, "has_header": False}
        try:
            frame = polars.read_csv(raw, separator=self.delimiter, **options)
        except polars.exceptions.PolarsError:
            return None
        if dtype == polars.String:
            inside = polars.all().str.count_matches(self.delimiter, literal=True)
            quoted = sum(frame.select(inside.sum()).row(0))
        # polars fills short rows and refuses long ones, so the number of delimiters says that all are full
        full = self.body.count(self.delimiter) - quoted == len(frame) * (width - 1)
        return frame if full and len(frame) == self.body.count("\n") + 1 else None

    def _rows(self) -> Iterator[tuple[list[str], int]]:
        """The cells of each row, and its last line; a ValueError names the first fault."""
        line = self.line
        try:
            for cells, lines, _ in rows_of(self.body, self.delimiter):
                line = self.line + lines
                if len(cells) != (width := len(self.cells)):
                    fault = f"expected {width} columns, but {len(cells)} were found"
                    raise ValueError(f"{self.path}, line {line}: {fault}")
                yield cells, line
        except csv.Error:
            raise self._unmatched_quotes(line) from None

    def _unmatched_quotes(self, line: int) -> ValueError:
        """The error message about quotes in the row after this line."""
        rule = "a cell in quotes ends with its quote, and a quote inside it is doubled"
        return ValueError(f"{self.path}: quotes do not match from line {line + 1} on ({rule})")

    def _number(self, cell: str, column: str | int, line: int) -> float:
        is_valid = is_number(cell := cell.strip())
        number = math.nan if not is_valid or cell.lower() in MISSING else float(cell)
        if not is_valid or math.isinf(number):
            expected = "a finite number" if is_valid else "a number"
            where = f"{self.path}, line {line}, column {column!r:.60}"
            raise ValueError(f"{where}: expected {expected}, but {cell[:60]!r} was found")
        return number


def open_csv(path: Path) -> Any:
    """A CSV file as a stream of bytes, which are unpacked."""
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")


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


def _quotes_surround_cells(text: bytes, delimiter: str) -> bool:
    """Whether quotes stand around whole cells and nowhere else, where all readers of CSV agree."""
    data = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(data == ord('"'))
    ends, around = [ord(delimiter), ord("\n"), ord("\r")], np.pad(data, 1, constant_values=ord("\n"))
    if len(quotes) % 2 or not np.isin(around[quotes[::2]], ends).all():
        return False
    return bool(np.isin(around[quotes[1::2] + 2], ends).all())


def _strip(cells: polars.Series, missing: Sequence[str]) -> polars.Series:
    """Texts without the blanks around them; null where they mean "missing"."""
    text = cells.str.strip_chars()
    return text.set(text.str.to_lowercase().is_in(missing), None)


def types_of(text: polars.Series, among: Sequence[str] = TYPES) -> Iterator[str]:
    """Those of some types that all known cells of a column of text have; all of them where none is known."""
    known = text.drop_nulls().unique()
    for kind in among:
        # few columns pass the first look
        fits = all(cells.str.contains(PATTERNS[kind]).all() for cells in (known.head(100), known))
        if fits and not (kind in CODES and known.str.contains(CODES[kind]).any()):
            with suppress(polars.exceptions.PolarsError):
                if kind in DATES:
                    as_type(known, kind)
                yield kind


def first_type(text: polars.Series) -> str:
    """The type of a column of text that all its cells have; "text" where all are missing."""
    return "text" if text.null_count() == len(text) else next(types_of(text))


def as_type(text: polars.Series, kind: str) -> polars.Series:
    """A column of text as this type, one of those that all its cells have."""
    if kind in DATES:
        dtype: Any = polars.Date if kind in DAYS.values() else polars.Datetime("us")
        return text.str.strptime(dtype, kind)
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
    repetitions: Counter[str] = Counter()
    for i, cell in enumerate(cells):
        name = first = cell or f"x{i + 1}"
        while name in names:
            repetitions[first] += 1
            name = first + (f"_{n}" if (n := repetitions[first]) > 8 else "_" * n)
        names[name] = None
    return tuple(names)
