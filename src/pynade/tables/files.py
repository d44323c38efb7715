"""Files of tables, ``.npy``, ``.npz``, ``.csv`` and ``.parquet``: read and written."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pynade.atomic import write_atomically
from pynade.tables.arrays import array_parts
from pynade.tables.dataset import PARTS, Dataset, Kind, Schema
from pynade.tables.frames import MISSING, as_matrix, default_names
from pynade.tables.modules import polars
from pynade.tables.parquet import check_parquet

SUFFIXES = (".npy", ".npz", ".csv", ".parquet", ".csv.gz")
TABLE_ENDINGS = (".csv", ".npy", ".parquet")  # of the files that `write_table` writes
DELIMITERS = ",;"
FRAME_ENDINGS = (".csv", ".parquet")  # likewise, of frames
Names = tuple[str, ...] | None
Words = Sequence[str] | None  # texts that mean "missing"
#: Patterns of texts that are numbers, and of dates with their formats.
WHOLE, NUMBER = r"^[+-]?[0-9]{1,18}$", r"^[+-]?(([0-9]+\.[0-9]*|\.?[0-9]+)(e[+-]?[0-9]+)?|inf(inity)?)$"
DAYS = {r"^\d{4}(-\d\d?){2}": "%Y-%m-%d", r"^\d{4}(/\d\d?){2}": "%Y/%m/%d", r"^(\d\d?\.){2}\d{4}": "%d.%m.%Y"}
TIMES = ("", " %H:%M:%S%.f", "T%H:%M:%S%.f", " %H:%M", "T%H:%M", " %H:%M:%S%.f%#z", "T%H:%M:%S%.f%#z")


def read_file(path: str | Path) -> tuple[np.ndarray, Names]:
    """Read a table from a file.

    A ``.csv`` file is UTF-8 text, delimited by commas or semicolons, whichever its first row has more of.
    That row holds the column names if a cell of it is neither a number nor missing.

    Args:
        path: A ``.npy`` file, an ``.npz`` file with one array, a ``.csv`` file (or ``.csv.gz``) or a
            ``.parquet`` file. Blank, ``NA``, ``NaN``, ``NaT``, ``null``, ``none`` and ``?`` become NaN.

    Returns:
        The rows, 2-D (``uint8`` if every value is 0 or 1, else ``float64``), and the column names or None.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "toy.csv"
        >>> _ = path.write_text("a;b\\n1;2.5\\nNA;3\\n")
        >>> read_file(path)
        (array([[1. , 2.5],
               [nan, 3. ]]), ('a', 'b'))
    """
    parts, names = _read_parts(Path(path))
    if list(parts) != ["train"]:
        raise ValueError(f"{path} holds the parts {', '.join(parts)}; expected a file with a single table")
    return parts["train"], names


def dataset_from_file(path: str | Path, frames: bool = False, missing: Words = None) -> Dataset:
    """Read a file as a data set: its parts if it has any, else all rows as ``train``.

    A column whose values are all 0 or 1, apart from missing ones, is binary in the schema; any other is real.

    Args:
        path: As in `read_file`; an ``.npz`` file may also hold ``train``, ``valid`` and ``test`` arrays. With
            a number ``n_features`` beside them they are zeros and ones packed into bytes by
            ``numpy.packbits(rows, axis=1)``.
        frames: Read a ``.csv`` or ``.parquet`` file as a polars frame, with columns of any type.
        missing: As in `read_frame`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "toy.npz"
        >>> np.savez(path, train=np.array([[0, 0.5], [1, 2.5]]), test=np.ones((1, 2)))
        >>> data = dataset_from_file(path)
        >>> data.sizes, data.schema.kinds
        ({'train': 2, 'test': 1}, ('binary', 'real'))
    """
    path = Path(path)
    suffix = ending(path)
    with path.open("rb") as stream:
        origin = {"source": path.name, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
    if frames and suffix in FRAME_ENDINGS:
        return Dataset.of_frame(stem(path), read_frame(path, missing), origin)
    parts, names = _read_parts(path)
    tables = parts.values()
    bits = np.all([np.all(np.isnan(rows) | (rows == 0) | (rows == 1), axis=0) for rows in tables], axis=0)
    seen = np.any([~np.isnan(rows).all(axis=0) for rows in tables], axis=0)
    kinds: list[Kind] = ["binary" if binary else "real" for binary in bits & seen]
    train, valid, test = map(parts.get, PARTS)
    return Dataset(stem(path), train, valid, test, Schema.from_kinds(kinds, names), origin)


def stem(path: Path) -> str:
    """The name of a file without its ending, ``.csv.gz`` among them."""
    return path.stem.removesuffix(".csv") if path.suffix.lower() == ".gz" else path.stem


def ending(path: Path) -> str:
    """The ending of a file that exists and can be read, in lower case and without ``.gz``."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    if not path.is_file():
        raise ValueError(f"{path} is a folder; expected a file ({', '.join(SUFFIXES)})")
    name = path.name.lower()
    if not name.endswith(SUFFIXES):
        raise ValueError(f"{path} has an unknown format; expected one of: {', '.join(SUFFIXES)}")
    return Path(name.removesuffix(".gz")).suffix


def _read_parts(path: Path) -> tuple[dict[str, np.ndarray], Names]:
    """The rows of each part of a file (a single table is all "train"), and the column names."""
    suffix, names = ending(path), None
    parts: dict[str, Any]
    if suffix == ".csv":
        text = CsvText(path)
        parts, names = {"train": text.numbers()}, text.names
    elif suffix == ".parquet":
        parts = {"train": _parquet_frame(path)}
        names = tuple(parts["train"].columns)
    else:
        parts = array_parts(path)
    parts = {part: _numbers(table, f"{path}, part {part!r}", names) for part, table in parts.items()}
    widths = {rows.shape[1] for rows in parts.values()}
    if len(widths) > 1:
        raise ValueError(f"the parts of {path} differ in their number of columns: {sorted(widths)}")
    bits = all(np.all((rows == 0) | (rows == 1)) for rows in parts.values())
    return {part: rows.astype(np.uint8 if bits else np.float64) for part, rows in parts.items()}, names


def _numbers(table: Any, where: str, names: Names) -> np.ndarray:
    """The numbers of an array or a frame, or one sentence about a table that has others."""
    if len(table.shape) != 2:
        raise ValueError(f"{where}: expected rows and columns, but an array of shape {table.shape} was found")
    if 0 in table.shape:
        raise ValueError(f"{where}: expected at least one row and one column, but it is empty")
    try:
        rows: np.ndarray = as_matrix(table)[0]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None
    if rows.dtype.kind not in "buif":
        raise ValueError(f"{where}: expected numbers, but values of type {rows.dtype} were found")
    if rows.dtype.kind == "f" and (infinite := np.abs(rows) > np.finfo(np.float64).max).any():
        row, place = (int(i) for i in np.argwhere(infinite)[0])
        column = place if names is None else repr(names[place])
        found = f"{rows[row, place]} was found in row {row}, column {column} (counted from 0)"
        raise ValueError(f"{where}: expected finite numbers, but {found}; missing values are marked by NaN")
    return rows


def _parquet_frame(path: Path) -> polars.DataFrame:
    try:
        read = polars.read_parquet
        check_parquet(path)
        return read(path)
    except (ImportError, PermissionError):
        raise
    except (Exception, polars.exceptions.PanicException) as error:  # polars has many, which change
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} could not be read as a parquet file ({reason})") from error


def read_frame(path: str | Path, missing: Words = None, raw: bytes | None = None) -> polars.DataFrame:
    """Read a table of columns of any type as a polars frame.

    The types of the columns of a ``.csv`` file follow from all of its cells: whole numbers, numbers, true and
    false, dates and times (2024-05-31, 2024-05-31 12:30), else text. Numbers with leading zeros, such as
    postal codes, stay text. What a file looks like otherwise is said at `read_file`.

    Args:
        path: A ``.csv``, ``.csv.gz`` or ``.parquet`` file.
        missing: Texts that mean "missing" in a ``.csv`` file, in upper or lower case; a blank cell always
            does. None takes ``NA``, ``N/A``, ``NaN``, ``null``, ``none``, ``?``, ``NaT`` and ``<NA>``.
        raw: The bytes of a CSV file that is not on disk; messages name it by its path.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "toy.csv"
        >>> _ = path.write_text("day,n,city\\n2024-05-31,3,Paris\\n2024-06-01,?,Rome\\n")
        >>> [str(kind) for kind in read_frame(path).dtypes]
        ['Date', 'Int64', 'String']
    """
    path = Path(path)
    is_csv = raw is not None or ending(path) == ".csv"
    tokens = MISSING if missing is None else ("", *(token.strip().lower() for token in missing))
    frame = CsvText(path, raw).frame(tokens) if is_csv else _parquet_frame(path)
    if not frame.height or not frame.width:
        raise ValueError(f"{path} has {'column names but no rows' if frame.width else 'no columns'}")
    return frame


def check_destination(path: Path, *endings: str) -> None:
    """Raise a ValueError if a file of one of these endings (none: any) cannot be written."""
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder")
    if endings and path.suffix not in endings:
        raise ValueError(f"cannot write {path.name}: its ending must be {' or '.join(endings)}")
    if path.suffix == ".json" and path.is_file() and b'"sha256:' in path.read_bytes():  # (it has a digest)
        raise ValueError(f"cannot write {path}: it belongs to a run, which would be lost")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path.name}: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"cannot write {path.name}: no permission to write to the folder {path.parent}")


def write_table(path: Path, header: Sequence[str] | None, rows: Any) -> None:
    """Write a table.

    Args:
        path: A ``.csv``, ``.parquet`` or ``.npy`` file, by its ending. An ``.npy`` file has no names.
        header: The column names; None takes ``x1``, ``x2``, …
        rows: Numbers, (N, columns) or (N,) of one column, for ``.npy`` of any shape; or a polars frame, whose
            columns keep their names and types.
    """
    check_destination(path, *(TABLE_ENDINGS if isinstance(rows, np.ndarray) else FRAME_ENDINGS))
    if path.suffix == ".npy":
        stream = io.BytesIO()  # np.save adds an ending to the name of a file without one
        np.save(stream, rows)
        return write_atomically(path, lambda file: file.write_bytes(stream.getbuffer()))
    if isinstance(rows, np.ndarray):  # float64, so that the text of a float32 number reads as the same number
        columns = np.atleast_2d(rows.T.astype(np.float64) if rows.dtype.kind == "f" else rows.T)
        names = unique_names(default_names(len(columns)) if header is None else [*map(str, header)])
        rows = polars.DataFrame(dict(zip(names, columns, strict=True)))
    write_atomically(path, rows.write_csv if path.suffix == ".csv" else rows.write_parquet)


class CsvText:
    """The text of a CSV file: its delimiter, its column names, and the lines that follow them.

    Args:
        path: the file, or how messages name the text.
        raw: its bytes, if they are not to be read from the file.
    """

    def __init__(self, path: Path, raw: bytes | None = None) -> None:
        try:
            raw = path.read_bytes() if raw is None else raw
            text = (gzip.decompress(raw) if path.suffix.lower() == ".gz" else raw).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is no UTF-8 text ({error.reason} at byte {error.start})") from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is damaged ({error})") from error
        if (nul := text.find("\0")) >= 0:
            raise ValueError(
                f"{path} is no text: there is a NUL byte in line {text[:nul].count(chr(10)) + 1}"
            )
        self.path, self.line, begin = path, 0, 0
        self.delimiter = max(DELIMITERS, key=lambda mark: len(next(_rows_of(text, mark, False), [()])[0]))
        try:
            first = next(_rows_of(text, self.delimiter), None)
        except csv.Error as error:
            raise self._fault(error, 0) from None
        if first is None:
            raise ValueError(f"{path} is empty; expected rows and columns")
        self.cells = [cell.strip() for cell in first[0]]
        self.names = None if all(map(is_number, self.cells)) else unique_names(self.cells)
        if self.names:
            _, self.line, begin = first
        self.body = text[begin:].rstrip()
        if not self.body:
            raise ValueError(f"{path} has column names but no rows")

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

    def frame(self, missing: Sequence[str]) -> polars.DataFrame:
        """Return the columns with the types they have; a ValueError names a row of another width."""
        for cell, name in zip(self.cells, self.names or self.cells, strict=True):
            if cell not in ("", name):
                again = f"column name {cell!r} occurs more than once"
                raise ValueError(f"{self.path}: {again}; names must differ")
        names, frame = self.names or default_names(len(self.cells)), self._frame(polars.String)
        if frame is None:
            frame = polars.DataFrame(self._rows(), dict.fromkeys(names, polars.String), orient="row")
        frame.columns = list(names)
        return polars.DataFrame([typed(_known(column, missing)) for column in frame])

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
            for row in _rows_of(self.body, self.delimiter):
                cells, line, _ = row
                if len(cells) != len(self.cells):
                    raise ValueError(f": expected {len(self.cells)} columns, but {len(cells)} were found")
                rows.append([*map(self._number, cells, columns)] if numbers else cells)
        except (csv.Error, ValueError) as error:
            raise self._fault(error, line) from None
        return rows

    def _fault(self, error: Exception, line: int) -> ValueError:
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


def _rows_of(text: str, delimiter: str, strict: bool = True) -> Iterator[tuple[list[str], int, int]]:
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
