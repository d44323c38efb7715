"""Files of tables, ``.npy``, ``.npz``, ``.csv`` and ``.parquet``: read and written."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pynade.atomic import write_atomically
from pynade.tables.arrays import array_parts
from pynade.tables.dataset import PARTS, Dataset, Kind, Schema
from pynade.tables.frames import MISSING, as_matrix, default_names
from pynade.tables.modules import polars
from pynade.tables.parquet import check_parquet
from pynade.tables.text import CsvText, unique_names

SUFFIXES = (".npy", ".npz", ".csv", ".parquet", ".csv.gz")
TABLE_ENDINGS = (".csv", ".npy", ".parquet")  # of the files that `write_table` writes
FRAME_ENDINGS = (".csv", ".parquet")  # likewise, of frames
Names = tuple[str, ...] | None
Words = Sequence[str] | None  # texts that mean "missing"


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
    empty = np.all([np.isnan(rows).all(axis=0) for rows in tables], axis=0)
    kinds: list[Kind] = ["binary" if binary else "real" for binary in bits & ~empty]
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
        kind = "a folder" if path.is_dir() else "no file"
        raise ValueError(f"{path} is {kind}; expected a file ({', '.join(SUFFIXES)})")
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
    parts = {part: numbers_of(table, f"{path}, part {part!r}", names) for part, table in parts.items()}
    widths = {rows.shape[1] for rows in parts.values()}
    if len(widths) > 1:
        raise ValueError(f"the parts of {path} differ in their number of columns: {sorted(widths)}")
    kind = np.uint8 if all(map(are_bits, parts.values())) else np.float64
    return {part: rows.astype(kind) for part, rows in parts.items()}, names


def are_bits(rows: np.ndarray) -> bool:
    """Whether every number is 0 or 1."""
    return bool(np.all((rows == 0) | (rows == 1)))


def numbers_of(table: Any, where: str, names: Names) -> np.ndarray:
    """Return the numbers of an array or a frame, or one sentence about a table that has others."""
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
        row, i = (int(index) for index in np.argwhere(infinite)[0])
        column = i if names is None else repr(names[i])
        fault = f"{rows[row, i]} was found in row {row}, column {column} (counted from 0)"
        raise ValueError(f"{where}: expected finite numbers, but {fault}; missing values are marked by NaN")
    return rows


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """In this block an error of the reader of a Parquet file is one sentence that names it."""
    try:
        yield
    except (ImportError, PermissionError):
        raise
    except (Exception, polars.exceptions.PanicException) as error:  # polars has many, which change
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} could not be read as a parquet file ({reason})") from error


def _parquet_frame(path: Path) -> polars.DataFrame:
    with parquet_errors(path):
        read = polars.read_parquet
        check_parquet(path)
        return read(path, glob=False)


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
    frame = CsvText(path, raw).frame(missing_words(missing)) if is_csv else _parquet_frame(path)
    if not frame.height or not frame.width:
        raise ValueError(f"{path} has {'column names but no rows' if frame.width else 'no columns'}")
    return frame


def missing_words(missing: Words) -> tuple[str, ...]:
    """The texts that mean "missing", in lower case; None takes the usual ones."""
    return MISSING if missing is None else ("", *(token.strip().lower() for token in missing))


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
    rows = as_frame(header, rows)
    write_by_polars(path, rows.write_csv if path.suffix == ".csv" else rows.write_parquet)


def write_by_polars(path: Path, write: Callable[[Path], object]) -> None:
    """`write_atomically` with a method of polars, whose errors (a full disk, for example) become OSError."""

    def attempt(temporary: Path) -> None:
        try:
            write(temporary)
        except (polars.exceptions.PolarsError, polars.exceptions.PanicException) as error:
            raise OSError(str(error).partition("\n")[0]) from error

    write_atomically(path, attempt)


def as_frame(header: Sequence[str] | None, rows: Any) -> polars.DataFrame:
    """Return an array of rows, or of one column, as a polars frame; a frame as it is."""
    if not isinstance(rows, np.ndarray):
        return rows
    # float64, so that the text of a float32 number reads as the same number
    columns = np.atleast_2d(rows.T.astype(np.float64) if rows.dtype.kind == "f" else rows.T)
    names = unique_names(default_names(len(columns)) if header is None else [*map(str, header)])
    return polars.DataFrame(dict(zip(names, columns, strict=True)))
