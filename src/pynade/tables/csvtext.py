"""CSV files: their cells as numbers or as columns of the types they have, and where the first fault is."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pynade.tables.frames import MISSING, default_names
from pynade.tables.modules import polars

#: Patterns of texts that are numbers, and of dates with their formats.
WHOLE, NUMBER = r"^[+-]?[0-9]{1,18}$", r"^[+-]?(([0-9]+\.[0-9]*|\.?[0-9]+)(e[+-]?[0-9]+)?|inf(inity)?)$"
DAYS = {r"^\d{4}(-\d\d?){2}": "%Y-%m-%d", r"^\d{4}(/\d\d?){2}": "%Y/%m/%d", r"^(\d\d?\.){2}\d{4}": "%d.%m.%Y"}
TIMES = ("", " %H:%M:%S%.f", "T%H:%M:%S%.f", " %H:%M", "T%H:%M", " %H:%M:%S%.f%#z", "T%H:%M:%S%.f%#z")


class CsvText:
    """The text of a CSV file: its delimiter, its column names, and the lines that follow them."""

    def __init__(self, path: Path) -> None:
        try:
            raw = path.read_bytes()
            text = (gzip.decompress(raw) if path.suffix.lower() == ".gz" else raw).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is no UTF-8 text ({error.reason} at byte {error.start})") from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is damaged ({error})") from error
        if (start := re.search(r"\S", text)) is None:
            raise ValueError(f"{path} is empty; expected rows and columns")
        begin = text.rfind("\n", 0, start.start()) + 1
        first = text[begin:].partition("\n")[0]
        self.path, self.delimiter = path, ";" if first.count(";") > first.count(",") else ","
        self.cells = [cell.strip() for cell in next(csv.reader([first], delimiter=self.delimiter))]
        self.names = None if all(map(is_number, self.cells)) else unique_names(self.cells)
        begin += len(first) + 1 if self.names else 0
        self.body, self.line = text[begin:].rstrip(), text.count("\n", 0, begin) + 1
        if not self.body:
            raise ValueError(f"{path} has column names but no rows")

    def numbers(self) -> np.ndarray:
        """Return the cells as numbers; a ValueError names the line and the column of the first fault."""
        frame = self._frame(polars.Float64)
        if frame is None and (cells := self._frame(polars.String)) is not None:
            texts = cells.select(_known(polars.all(), MISSING))
            frame = texts.cast(polars.Float64, strict=False)
            frame = frame if frame.null_count().equals(texts.null_count()) else None
        if frame is not None and not np.isinf(found := frame.to_numpy(order="c")).any():
            return np.array(found, dtype=np.float64)
        return np.array(self._rows(numbers=True))

    def frame(self, missing: Sequence[str]) -> polars.DataFrame:
        """Return the columns with the types they have; a ValueError names a row of another width."""
        for cell, name in zip(self.cells, self.names or self.cells, strict=True):
            if cell not in ("", name):
                again = f"column name {cell!r} occurs more than once"
                raise ValueError(f"{self.path}: {again}; names must differ")
        names, frame = self.names or default_names(len(self.cells)), self._frame(polars.String)
        frame = polars.DataFrame(self._rows(), names, orient="row") if frame is None else frame
        columns = frame.select(_known(polars.all(), missing))
        return polars.DataFrame([typed(c.alias(n)) for c, n in zip(columns, names, strict=True)])

    def _frame(self, kind: Any) -> Any:
        """Cells of one type; None where polars reads them in another way than Python, or cannot."""
        width, quoted = len(self.cells), 0
        if width == 1:  # of which blank lines are no rows
            return None
        options: Any = {"schema": {str(i): kind for i in range(width)}, "has_header": False}
        try:
            frame = polars.read_csv(self.body.encode(), separator=self.delimiter, **options)
        except polars.exceptions.PolarsError:
            return None
        if kind == polars.String:
            inside = polars.all().str.count_matches(self.delimiter, literal=True)
            quoted = sum(frame.select(inside.sum()).row(0))
        # polars fills short rows and refuses long ones, so the number of delimiters says that all are full
        return frame if self.body.count(self.delimiter) - quoted == len(frame) * (width - 1) else None

    def _rows(self, numbers: bool = False) -> list[list[Any]]:
        """The cells as text or as numbers; a ValueError names the first fault."""
        rows: list[list[Any]] = []
        columns = self.names or range(1, len(self.cells) + 1)
        reader = csv.reader(io.StringIO(self.body), delimiter=self.delimiter)
        try:
            for cells in reader:
                if not cells or (len(cells) == 1 and cells[0].isspace()):
                    continue
                if len(cells) != len(self.cells):
                    raise csv.Error(f"expected {len(self.cells)} columns, but {len(cells)} were found")
                rows.append([*map(self._number, cells, columns)] if numbers else cells)
        except (csv.Error, ValueError) as error:
            mark = "," if isinstance(error, ValueError) else ":"
            place = f"{self.path}, line {self.line + reader.line_num - 1}"
            raise ValueError(f"{place}{mark} {error}") from None
        return rows

    def _number(self, cell: str, column: str | int) -> float:
        number = is_number(cell := cell.strip())
        found = math.nan if not number or cell.lower() in MISSING else float(cell)
        if not number or math.isinf(found):
            expected = "a finite number" if number else "a number"
            raise ValueError(f"column {column!r}: expected {expected}, but {cell!r} was found")
        return found


def _known(cells: Any, missing: Sequence[str]) -> Any:
    """Texts without the blanks around them; null where they mean "missing"."""
    text = cells.str.strip_chars()
    return polars.when(~text.str.to_lowercase().is_in(missing)).then(text)


def typed(text: polars.Series) -> polars.Series:
    """Return a column of text with the type that all its cells have."""
    known = text.drop_nulls().unique()
    if known.is_empty():
        return text
    if known.is_in(["true", "false"]).all():
        return text == "true"
    if known.str.contains(WHOLE).all() and not known.str.contains(r"^[+-]?0\d").any():
        return text.cast(polars.Int64)
    if known.str.contains(f"(?i){NUMBER}").all() and not known.str.contains(r"^[+-]?(0\d|\d{19,}$)").any():
        return text.cast(polars.Float64)
    for pattern, day in DAYS.items():
        for time in TIMES if known.str.contains(pattern).all() else ():
            kind: Any = polars.Datetime("us") if time else polars.Date
            with suppress(polars.exceptions.PolarsError):
                return text.str.strptime(kind, day + time)
    return text


def is_number(cell: str) -> bool:
    """Return whether a cell reads as a number ("1_000" does not), or as missing."""
    if cell.lower() in MISSING:
        return True
    with suppress(ValueError):
        float(cell)
        return cell.isascii() and "_" not in cell
    return False


def unique_names(cells: Sequence[str]) -> tuple[str, ...]:
    """Return the names with "x3" for an empty third one, and with "_" after a name that occurs again."""
    names: list[str] = []
    for i, cell in enumerate(cells):
        name = cell or f"x{i + 1}"
        while name in names:
            name += "_"
        names.append(name)
    return tuple(names)
