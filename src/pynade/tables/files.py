"""Tables that users bring: ``.npy``, ``.npz``, ``.csv`` and ``.parquet`` files."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pynade.tables.dataset import PARTS, Dataset
from pynade.tables.delimited import import_polars, is_number, read_csv
from pynade.tables.schema import Kind, Schema

#: What numpy and zipfile raise on a damaged archive.
DAMAGE = (OSError, ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error)

SUFFIXES = (".npy", ".npz", ".csv", ".parquet")

Table = tuple[np.ndarray, tuple[str, ...] | None]


def read_file(path: str | Path) -> Table:
    """Read a table from a file.

    Args:
        path: A ``.npy`` file, an ``.npz`` file with one array, a ``.csv`` file (comma or semicolon, with or
            without a line of names) or a ``.parquet`` file. Blank, ``NA`` and ``nan`` cells become NaN.

    Returns:
        The rows, 2-D, and the column names or None. The rows are ``uint8`` if every value is 0 or 1, and
        ``float64`` otherwise.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file holds no table of numbers; the sentence says where it goes wrong.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "toy.csv"
        >>> _ = path.write_text("rain,wind\\n0,1\\n1,1\\n")
        >>> rows, names = read_file(path)
        >>> rows.tolist(), names
        ([[0, 1], [1, 1]], ('rain', 'wind'))
    """
    parts, names = read_parts(path)
    if list(parts) != ["train"]:
        raise ValueError(f"{path} holds the parts {', '.join(parts)}; expected a file with a single table")
    return parts["train"], names


def read_parts(path: str | Path) -> tuple[dict[str, np.ndarray], tuple[str, ...] | None]:
    """Read a file as the parts of a data set; a single table is all ``train``.

    An ``.npz`` file may hold ``train``, ``valid`` and ``test`` arrays. With a number ``n_features`` beside
    them they are zeros and ones packed into bytes by ``numpy.packbits(rows, axis=1)``.

    Args:
        path: As in `read_file`.

    Returns:
        The rows of each part, and the column names or None.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "toy.npz"
        >>> np.savez(path, train=np.eye(2), test=np.ones((1, 2)))
        >>> {part: rows.shape for part, rows in read_parts(path)[0].items()}
        {'train': (2, 2), 'test': (1, 2)}
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    if not path.is_file():
        raise ValueError(f"{path} is a folder; expected a file ({', '.join(SUFFIXES)})")
    names: tuple[str, ...] | None = None
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        parts = _read_numpy(path)
    elif suffix in (".csv", ".parquet"):
        rows, names = read_csv(path) if suffix == ".csv" else _read_parquet(path)
        parts = {"train": rows}
    else:
        raise ValueError(f"{path} has an unknown format; expected one of: {', '.join(SUFFIXES)}")
    parts = {part: _as_table(rows, f"{path}, part {part!r}", names) for part, rows in parts.items()}
    widths = {rows.shape[1] for rows in parts.values()}
    if len(widths) > 1:
        raise ValueError(f"the parts of {path} differ in their number of columns: {sorted(widths)}")
    bits = all(np.all((rows == 0) | (rows == 1)) for rows in parts.values())
    return {part: rows.astype(np.uint8 if bits else np.float64) for part, rows in parts.items()}, names


def dataset_from_file(path: str | Path) -> Dataset:
    """Read a file as a data set: its parts if it has any, else all rows as ``train``.

    A column whose values are all 0 or 1, apart from missing ones, is binary in the schema; any other is real.

    Args:
        path: As in `read_file`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "toy.npy"
        >>> np.save(path, np.array([[0, 0.5], [1, 2.5]]))
        >>> dataset_from_file(path).schema.kinds
        ('binary', 'real')
    """
    path = Path(path)
    parts, names = read_parts(path)
    kinds = _kinds(list(parts.values()))
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    provenance = {"source": path.name, "sha256": digest}
    schema = Schema.from_kinds(kinds, names)
    return Dataset(path.stem, parts["train"], parts.get("valid"), parts.get("test"), schema, provenance)


def _kinds(parts: Sequence[np.ndarray]) -> list[Kind]:
    n = parts[0].shape[1]
    fits, seen = np.ones(n, dtype=bool), np.zeros(n, dtype=bool)
    for rows in parts:
        missing = np.isnan(rows)
        fits &= np.all(missing | (rows == 0) | (rows == 1), axis=0)
        seen |= ~np.all(missing, axis=0)
    return ["binary" if fit else "real" for fit in fits & seen]


def _as_table(rows: np.ndarray, where: str, names: tuple[str, ...] | None) -> np.ndarray:
    if rows.dtype.kind not in "buif":
        words = (place for place, cell in np.ndenumerate(rows) if not is_number(str(cell)))
        place = next(words, None)
        example = "" if place is None else f", such as {str(rows[place])!r} {_place(place, names)}"
        raise ValueError(f"{where}: expected numbers, but values of type {rows.dtype} were found{example}")
    if rows.ndim != 2:
        raise ValueError(f"{where}: expected rows and columns, but an array of shape {rows.shape} was found")
    if rows.size == 0:
        raise ValueError(f"{where}: expected at least one row and one column, but it is empty")
    if rows.dtype.kind == "f" and np.isinf(rows).any():
        place = tuple(int(i) for i in np.argwhere(np.isinf(rows))[0])
        raise ValueError(
            f"{where}: expected finite numbers, but {rows[place]} was found {_place(place, names)};"
            " missing values are marked by NaN"
        )
    return rows


def _place(place: tuple[int, ...], names: tuple[str, ...] | None) -> str:
    """Say where a cell is."""
    if len(place) != 2:
        return f"at {place}"
    row, column = place
    return f"in row {row}, column {column if names is None else repr(names[column])} (counted from 0)"


def _read_numpy(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as stream:
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"train": loaded}
            with loaded as archive:
                arrays = {name: archive[name] for name in archive.files}
    except PermissionError:
        raise
    except DAMAGE as error:
        raise ValueError(f"{path} is damaged or holds no plain arrays ({error})") from error
    if len(arrays) == 1:
        return {"train": next(iter(arrays.values()))}
    parts = {part: arrays[part] for part in PARTS if part in arrays}
    unknown = sorted(set(arrays) - set(PARTS) - {"n_features"})
    if unknown or "train" not in parts:
        raise ValueError(
            f"{path} holds the arrays {', '.join(sorted(arrays))}; expected a single array, or 'train' with"
            " 'valid' and 'test' as there are"
        )
    if "n_features" not in arrays:
        return parts
    n_features = int(arrays["n_features"])
    for part, rows in parts.items():
        if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != -(-n_features // 8):
            raise ValueError(f"{path}, part {part!r}: expected {n_features} columns packed into uint8 bytes")
    return {part: np.unpackbits(rows, axis=1, count=n_features) for part, rows in parts.items()}


def _read_parquet(path: Path) -> Table:
    polars = import_polars(f"reading {path.name}")
    try:
        frame = polars.read_parquet(path)
    except Exception as error:  # polars has its own family of errors, which changes between versions
        raise ValueError(f"{path} could not be read as a parquet file ({error})") from error
    for name, kind in frame.schema.items():
        if not (kind.is_numeric() or kind in (polars.Boolean, polars.Null)):
            cells = frame[name].to_list()
            row = next((i for i, cell in enumerate(cells) if not is_number(str(cell))), None)
            example = "" if row is None else f", such as {cells[row]!r} in row {row} (counted from 0)"
            raise ValueError(
                f"{path}, column {name!r}: expected numbers, but values of type {kind} were found{example}"
            )
    rows = frame.select(polars.all().cast(polars.Float64)).to_numpy(order="c")
    return np.array(rows, dtype=np.float64), tuple(frame.columns)
