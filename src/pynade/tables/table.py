"""Reading a table of numbers from a CSV file: fast where it is clean, exact about where it is not."""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path

import numpy as np

#: Cells, in lower case, that mean "missing".
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})


def read_csv(path: str | Path) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Read a CSV file of numbers.

    The delimiter is a comma or a semicolon, whichever the first line has more of. The first line is taken for
    column names if a cell of it is neither a number nor missing. Empty lines are skipped.

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
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    skipped = len(text) - len(text.lstrip("\n"))
    first = text[skipped:].split("\n", 1)[0]
    if not first.strip():
        raise ValueError(f"{path} is empty; expected rows of numbers")
    delimiter = ";" if first.count(";") > first.count(",") else ","
    cells = [cell.strip() for cell in next(csv.reader([first], delimiter=delimiter))]
    names = _unique(cells) if any(not is_number(cell) for cell in cells) else None
    body = text[skipped + len(first) + 1 :] if names else text[skipped:]
    if not body.strip():
        raise ValueError(f"{path} has column names but no rows")
    start = text.count("\n", 0, len(text) - len(body)) + 1
    rows = _parse(body, delimiter)
    if rows is None:
        rows = _parse(_fill_missing(body, delimiter), delimiter)
    if rows is None or rows.shape[1] != len(cells) or np.isinf(rows).any():
        raise ValueError(f"{path}, {_first_fault(body, delimiter, len(cells), names, start)}")
    return rows, names


def _parse(body: str, delimiter: str) -> np.ndarray | None:
    """Parse clean rows with numpy's own reader, or return None if it stumbles."""
    try:
        return np.loadtxt(io.StringIO(body), delimiter=delimiter, comments=None, ndmin=2, quotechar='"')
    except ValueError:
        return None


def _fill_missing(body: str, delimiter: str) -> str:
    """Write ``nan`` into every missing cell, quoted or not."""
    words = "|".join(re.escape(word) for word in sorted(MISSING, key=len, reverse=True) if word)
    blank = rf'[ \t]*"?[ \t]*(?:{words})?[ \t]*"?[ \t]*'
    after = re.compile(rf"(?<={delimiter}){blank}(?=[{delimiter}\n]|\Z)", re.IGNORECASE)
    before = re.compile(rf"^{blank}(?={delimiter})", re.IGNORECASE | re.MULTILINE)
    quoted = rf'"[ \t]*(?:{words})?[ \t]*"'  # of a table of one column: an empty line is no row, "" is a gap
    alone = re.compile(rf"^[ \t]*(?:{quoted}|{words})[ \t]*$", re.IGNORECASE | re.MULTILINE)
    return alone.sub("nan", before.sub("nan", after.sub("nan", body)))


def _first_fault(body: str, delimiter: str, width: int, names: tuple[str, ...] | None, start: int) -> str:
    """Say where the first row is that cannot be read, and why."""
    reader = csv.reader(io.StringIO(body), delimiter=delimiter)
    for cells in reader:
        line = start + reader.line_num - 1
        if not cells:
            continue
        if len(cells) != width:
            return f"line {line}: expected {width} columns, but {len(cells)} were found"
        for i, cell in enumerate(cells):
            text = cell.strip()
            expected = "a number" if not is_number(text) else "a finite number" if _is_infinite(text) else ""
            if expected:
                column = repr(names[i]) if names else str(i + 1)
                return f"line {line}, column {column}: expected {expected}, but {text!r} was found"
    return "the rows could not be read as numbers"


def is_number(cell: str) -> bool:
    """Return whether a cell reads as a number, or as missing.

    Example:
        >>> is_number("1e3"), is_number("NA"), is_number("high")
        (True, True, False)
    """
    if cell.lower() in MISSING:
        return True
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_infinite(cell: str) -> bool:
    return cell.lower() not in MISSING and math.isinf(float(cell))


def _unique(cells: list[str]) -> tuple[str, ...]:
    """Give nameless columns a name, and tell columns of the same name apart."""
    names: list[str] = []
    for i, cell in enumerate(cells):
        name = cell or f"x{i + 1}"
        while name in names:
            name += "_"
        names.append(name)
    return tuple(names)
