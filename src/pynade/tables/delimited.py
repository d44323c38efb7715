"""CSV files of numbers: polars reads them, and the line and column of a cell that is no number are named."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

#: Cells, in lower case, that mean "missing".
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")


def import_polars(purpose: str) -> Any:
    """Import polars when it is needed; an ImportError says for what."""
    try:
        import polars
    except ImportError as error:
        raise ImportError(f"{purpose} needs polars; install it with `pip install polars`") from error
    return polars


def read_csv(path: str | Path) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Read a CSV file of numbers.

    The delimiter is a comma or a semicolon, whichever the first line has more of. The first line is taken for
    column names if a cell of it is neither a number nor missing. Blank lines are skipped.

    Args:
        path: The file, UTF-8 text with or without a byte order mark.

    Returns:
        The rows as ``float64``, with NaN where a cell is blank, ``NA``, ``nan``, ``null``, ``none`` or ``?``,
        and the column names or None.

    Raises:
        ValueError: A cell is no number or an infinite one, a row is too short or too long, or there are no
            rows; the sentence names the file, the line and the column.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "toy.csv"
        >>> _ = path.write_text("a;b\\n1;2.5\\nNA;3\\n")
        >>> read_csv(path)
        (array([[1. , 2.5],
               [nan, 3. ]]), ('a', 'b'))
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text ({error.reason} at byte {error.start})") from error
    start = re.search(r"\S", text)
    if start is None:
        raise ValueError(f"{path} is empty; expected rows of numbers")
    begin = text.rfind("\n", 0, start.start()) + 1
    first = text[begin:].partition("\n")[0]
    delimiter = ";" if first.count(";") > first.count(",") else ","
    cells = [cell.strip() for cell in next(csv.reader([first], delimiter=delimiter))]
    names = None if all(map(is_number, cells)) else unique_names(cells)
    if names is not None:
        begin += len(first) + 1
    body = text[begin:]
    if not body or body.isspace():
        raise ValueError(f"{path} has column names but no rows")
    rows = _parse(body, delimiter, len(cells), path.name)
    if rows is None or np.isinf(rows).any():
        where = _first_fault(body, delimiter, len(cells), names, text.count("\n", 0, begin) + 1)
        raise ValueError(f"{path}, {where}")
    return rows, names


def _parse(body: str, delimiter: str, width: int, name: str) -> np.ndarray | None:
    """Return the numbers of a text, or None if it holds something else."""
    try:
        polars = import_polars(f"reading {name}")
    except ImportError:
        try:  # numpy reads a table without gaps
            rows = np.loadtxt(io.StringIO(body), delimiter=delimiter, comments=None, ndmin=2, quotechar='"')
        except ValueError:
            rows = None
        if rows is None or rows.shape[1] != width:
            raise
        return rows
    frame = _as_frame(polars, body, delimiter, width) if width > 1 else None
    if frame is None:
        body = re.sub(r"\n[ \t]*(?=\n|\Z)", "", "\n" + body)[1:]  # without blank lines
        frame = _as_frame(polars, body, delimiter, width)
    if frame is not None and frame.dtypes[0] == polars.String:
        text = polars.all().str.strip_chars()
        missing = text.is_null() | text.str.to_lowercase().is_in(MISSING)
        number = text.cast(polars.Float64, strict=False)
        frame = frame.select(polars.when(~missing).then(number).otherwise(math.nan))
        if any(frame.null_count().row(0)):
            return None
    return None if frame is None else np.array(frame.to_numpy(order="c"), dtype=np.float64)


def _as_frame(polars: Any, body: str, delimiter: str, width: int) -> Any:
    """Return a frame of numbers, or of text where a cell is no number; None where rows differ in width."""
    for kind in (polars.Float64, polars.String):
        schema = {str(i): kind for i in range(width)}
        try:
            frame = polars.read_csv(body.encode(), has_header=False, separator=delimiter, schema=schema)
        except polars.exceptions.PolarsError:
            continue
        # polars fills short rows and refuses long ones, so the number of delimiters says that all are full
        return frame if body.count(delimiter) == len(frame) * (width - 1) else None
    return None


def _first_fault(body: str, delimiter: str, width: int, names: Sequence[str] | None, start: int) -> str:
    """Return where the first row is that cannot be read, and why."""
    reader = csv.reader(io.StringIO(body), delimiter=delimiter)
    for cells in reader:
        line = start + reader.line_num - 1
        if not cells or (len(cells) == 1 and not cells[0].strip()):
            continue
        if len(cells) != width:
            return f"line {line}: expected {width} columns, but {len(cells)} were found"
        for i, cell in enumerate(map(str.strip, cells)):
            if cell and (not is_number(cell) or (cell.lower() not in MISSING and math.isinf(float(cell)))):
                expected = "a finite number" if is_number(cell) else "a number"
                column = repr(names[i]) if names else str(i + 1)
                return f"line {line}, column {column}: expected {expected}, but {cell!r} was found"
    return "the rows could not be read as numbers"


def is_number(cell: str) -> bool:
    """Return whether a cell reads as a number, or as missing.

    Example:
        >>> is_number("1e3"), is_number("NA"), is_number("high"), is_number("1_000")
        (True, True, False, False)
    """
    if cell.lower() in MISSING:
        return True
    try:
        float(cell)
    except ValueError:
        return False
    return cell.isascii() and "_" not in cell


def unique_names(cells: Sequence[str]) -> tuple[str, ...]:
    """Return the names with ``x3`` for an empty third one, and with ``_`` after a name that occurs again.

    Example:
        >>> unique_names(["a", "a", ""])
        ('a', 'a_', 'x3')
    """
    names: list[str] = []
    for i, cell in enumerate(cells):
        name = cell or f"x{i + 1}"
        while name in names:
            name += "_"
        names.append(name)
    return tuple(names)
