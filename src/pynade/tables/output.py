"""Writing tables: ``.csv``, ``.parquet`` and ``.npy`` files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pynade.atomic import write_atomically
from pynade.tables.delimited import import_polars, unique_names

#: Endings of the files that `write_table` writes.
TABLE_ENDINGS = (".csv", ".npy", ".parquet")


def check_destination(path: Path, *endings: str) -> None:
    """Raise a ValueError if a file cannot be written, before any work is done for it.

    Args:
        path: The file.
        *endings: The endings that are allowed, such as ``".csv"``; any if none is given.
    """
    if endings and path.suffix not in endings:
        raise ValueError(f"cannot write {path.name}: its ending must be {' or '.join(endings)}")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path.name}: the folder {path.parent} does not exist")


def write_table(path: Path, header: Sequence[str], rows: np.ndarray) -> None:
    """Write a table; the kind of file is taken from the ending.

    Args:
        path: A ``.csv``, ``.parquet`` or ``.npy`` file. An array in an ``.npy`` file has no names.
        header: The column names.
        rows: Numbers, (N, columns); for ``.npy`` of any shape.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "toy.csv"
        >>> write_table(path, ["a", "b"], np.array([[0.5, 1.0], [np.nan, 2.0]]))
        >>> path.read_text().split()
        ['a,b', '0.5,1.0', 'NaN,2.0']
    """
    check_destination(path, *TABLE_ENDINGS)
    if path.suffix == ".npy":
        write_atomically(path, lambda file: _save_array(file, rows))
        return
    polars = import_polars(f"writing {path.name}")
    if rows.dtype.kind == "f":
        rows = rows.astype(np.float64)  # so that the text of a float32 number reads as the same number
    names = unique_names([str(name) for name in header])
    frame = polars.DataFrame({name: rows[:, i] for i, name in enumerate(names)})
    write_atomically(path, frame.write_csv if path.suffix == ".csv" else frame.write_parquet)


def _save_array(path: Path, rows: np.ndarray) -> None:
    with path.open("wb") as stream:  # np.save adds an ending to a name without one
        np.save(stream, rows)
