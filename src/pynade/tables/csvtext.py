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
from typing import TYPE_CHECKING, Any

import numpy as np

from pynade.tables.frames import default_names

if TYPE_CHECKING:
    from polars import DataFrame, Series

MISSING = ("", "na", "n/a", "nan", "null", "none", "?")  # cells, in lower case, that mean "missing"
#: Patterns of texts that are numbers, and of dates with their formats.
WHOLE, NUMBER = r"^[+-]?[0-9]{1,18}$", r"^[+-]?(([0-9]+\.[0-9]*|\.?[0-9]+)(e[+-]?[0-9]+)?|inf(inity)?)$"
DAYS = {
    r"^\d{4}-\d\d?-\d\d?": "%Y-%m-%d",
    r"^\d{4}/\d\d?/\d\d?": "%Y/%m/%d",
    r"^\d\d?\.\d\d?\.\d{4}": "%d.%m.%Y",
}
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
        try:
            polars = import_polars(f"reading {self.path.name}")
        except ImportError:
            with suppress(ValueError):  # numpy reads numbers without gaps
                return np.array(self._rows(), dtype=np.float64)
            raise
        frame = self._frame(polars.Float64)
        if frame is None and (cells := self._frame(polars.String)) is not None:
            text = polars.all().str.strip_chars()
            missing = text.is_null() | text.str.to_lowercase().is_in(MISSING)
            number = text.cast(polars.Float64, strict=False)
            frame = cells.select(polars.when(~missing).then(number).otherwise(math.nan))
            frame = None if any(frame.null_count().row(0)) else frame
        if frame is not None and not np.isinf(found := frame.to_numpy(order="c")).any():
            return np.array(found, dtype=np.float64)
        return np.array(self._rows(numbers=True))

    def frame(self, missing: Sequence[str]) -> DataFrame:
        """Return the columns with the types they have; a ValueError names a row of another width."""
        import polars

        twice = [
            c for c, name in zip(self.cells, self.names or self.cells, strict=True) if c not in ("", name)
        ]
        if twice:
            raise ValueError(
                f"{self.path}: column name {twice[0]!r} occurs more than once; names must differ"
            )
        names, frame = self.names or default_names(len(self.cells)), self._frame(polars.String)
        if frame is None:
            frame = polars.DataFrame(self._rows(), [str(i) for i in range(len(names))], orient="row")
        return polars.DataFrame([typed(c.alias(n), missing) for c, n in zip(frame, names, strict=True)])

    def _frame(self, kind: Any) -> Any:
        """Return cells of one type; None where polars reads them in another way than Python, or cannot."""
        import polars

        width, quoted = len(self.cells), 0
        if width == 1:  # of which blank lines are no rows
            return None
        read: Any = {"has_header": False, "separator": self.delimiter}
        try:
            frame = polars.read_csv(self.body.encode(), schema={str(i): kind for i in range(width)}, **read)
        except polars.exceptions.PolarsError:
            return None
        if kind == polars.String:
            quoted = sum(
                frame.select(polars.all().str.count_matches(self.delimiter, literal=True).sum()).row(0)
            )
        # polars fills short rows and refuses long ones, so the number of delimiters says that all are full
        return frame if self.body.count(self.delimiter) - quoted == len(frame) * (width - 1) else None

    def _rows(self, numbers: bool = False) -> list[list[Any]]:
        """Return the cells as text or as numbers; a ValueError names the first fault."""
        rows: list[list[Any]] = []
        reader = csv.reader(io.StringIO(self.body), delimiter=self.delimiter)
        try:
            for cells in reader:
                where = f"{self.path}, line {self.line + reader.line_num - 1}"
                if not cells or (len(cells) == 1 and cells[0].isspace()):
                    continue
                if len(cells) != len(self.cells):
                    found = f"expected {len(self.cells)} columns, but {len(cells)} were found"
                    raise ValueError(f"{where}: {found}")
                rows.append(self._as_numbers(cells, where) if numbers else cells)
        except csv.Error as error:
            raise ValueError(f"{self.path}, line {self.line + reader.line_num - 1}: {error}") from None
        return rows

    def _as_numbers(self, cells: list[str], where: str) -> list[float]:
        row: list[float] = []
        for cell in map(str.strip, cells):
            number = is_number(cell)
            row.append(math.nan if not number or cell.lower() in MISSING else float(cell))
            if not number or math.isinf(row[-1]):
                column = repr(self.names[len(row) - 1]) if self.names else len(row)
                expected = "a finite number" if number else "a number"
                raise ValueError(f"{where}, column {column}: expected {expected}, but {cell!r} was found")
        return row


def typed(cells: Series, missing: Sequence[str]) -> Series:
    """Return a column of text with the type that all its cells have."""
    import polars

    text = cells.str.strip_chars()
    text = text.set(text.str.to_lowercase().is_in(missing), None)
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
    try:
        float(cell)
    except ValueError:
        return False
    return cell.isascii() and "_" not in cell


def unique_names(cells: Sequence[str]) -> tuple[str, ...]:
    """Return the names with "x3" for an empty third one, and with "_" after a name that occurs again."""
    names: list[str] = []
    for i, cell in enumerate(cells):
        name = cell or f"x{i + 1}"
        while name in names:
            name += "_"
        names.append(name)
    return tuple(names)


def import_polars(purpose: str) -> Any:
    """Import polars when it is needed; an ImportError says for what."""
    try:
        import polars
    except ImportError as error:
        raise ImportError(f"{purpose} needs polars; install it with `pip install polars`") from error
    return polars
