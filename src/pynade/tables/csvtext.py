"""The text of CSV files: cells, faults, and the types of columns."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polars import Series

MISSING = ("", "na", "n/a", "nan", "null", "none", "?")  # cells, in lower case, that mean "missing"
#: Patterns of texts that are numbers, and of dates with their formats.
WHOLE, NUMBER = r"^[+-]?\d{1,18}$", r"^[+-]?((\d+\.\d*|\.?\d+)(e[+-]?\d+)?|inf(inity)?)$"
DAYS = {
    r"^\d{4}-\d\d?-\d\d?": "%Y-%m-%d",
    r"^\d{4}/\d\d?/\d\d?": "%Y/%m/%d",
    r"^\d\d?\.\d\d?\.\d{4}": "%d.%m.%Y",
}
TIMES = ("", " %H:%M:%S%.f", "T%H:%M:%S%.f", " %H:%M", "T%H:%M", " %H:%M:%S%.f%#z", "T%H:%M:%S%.f%#z")


class CsvText:
    """The text of a CSV file: its delimiter, the cells of its first line, and what follows the names."""

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
        self.delimiter = ";" if first.count(";") > first.count(",") else ","
        self.cells = [cell.strip() for cell in next(csv.reader([first], delimiter=self.delimiter))]
        self.named = not all(map(is_number, self.cells))
        begin += len(first) + 1 if self.named else 0
        self.body, self.line = text[begin:], text.count("\n", 0, begin) + 1
        if not self.body or self.body.isspace():
            raise ValueError(f"{path} has column names but no rows")


def text_frame(polars: Any, text: CsvText) -> Any:
    """Return the cells as text; None where polars reads them in another way than Python, or cannot."""
    schema = {str(i): polars.String for i in range(len(text.cells))}
    if len(schema) == 1:  # of which blank lines are no rows
        return None
    try:
        read: Any = {"has_header": False, "separator": text.delimiter, "schema": schema}
        frame = polars.read_csv(text.body.encode(), **read)
    except polars.exceptions.PolarsError:
        return None
    quoted = sum(frame.select(polars.all().str.count_matches(text.delimiter, literal=True).sum()).row(0))
    full = text.body.count(text.delimiter) - quoted == len(frame) * (
        len(schema) - 1
    )  # polars fills short rows
    return frame if full else None


def csv_rows(text: CsvText, path: Path) -> list[list[str]]:
    """Return the cells as text; a ValueError names the line of a longer or shorter row."""
    rows, reader = [], csv.reader(io.StringIO(text.body), delimiter=text.delimiter)
    try:
        for cells in reader:
            line, width = text.line + reader.line_num - 1, len(text.cells)
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue
            if len(cells) != width:
                found = f"expected {width} columns, but {len(cells)} were found"
                raise ValueError(f"{path}, line {line}: {found}")
            rows.append(cells)
    except csv.Error as error:
        raise ValueError(f"{path}, line {text.line + reader.line_num - 1}: {error}") from None
    return rows


def typed(cells: Series, tokens: Sequence[str]) -> Series:
    """Return a column of text with the type that all its cells have."""
    import polars

    text = cells.str.strip_chars()
    text = text.set(text.str.to_lowercase().is_in(tokens), None)
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
