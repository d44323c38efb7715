"""Tables in and out of commands: columns brought into a model's order, rows written as .csv or .npy."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pynade.atomic import write_atomically


def check_destination(path: Path, *endings: str) -> None:
    """Refuse a file that could not be written, before any work is done for it."""
    if endings and path.suffix not in endings:
        raise ValueError(f"cannot write {path.name}: its ending must be {' or '.join(endings)}")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path.name}: the folder {path.parent} does not exist")


def default_names(n: int) -> list[str]:
    """What columns without names are called: x1, x2, …"""
    return [f"x{i + 1}" for i in range(n)]


def align(
    rows: np.ndarray,
    names: Sequence[str] | None,
    wanted: Sequence[str] | None,
    dropped: Sequence[str] = (),
) -> np.ndarray:
    """Rows with the model's columns in the model's order, where both sides have names.

    Columns that were dropped before training are dropped here too.

    Example:
        >>> align(np.array([[1, 0]]), ["b", "a"], ["a", "b"]).tolist()
        [[0, 1]]
    """
    if dropped and wanted is not None:
        names = default_names(rows.shape[1]) if names is None else names
        kept = [k for k, name in enumerate(names) if name not in dropped]
        rows, names = rows[:, kept], [names[k] for k in kept]
        if list(names) == list(wanted):
            return rows
    for side in (names, wanted):
        if side is None or list(side) == default_names(len(side)):
            return rows
    assert names is not None
    assert wanted is not None
    if list(names) == list(wanted):
        return rows
    missing = [name for name in wanted if name not in names]
    if missing or len(names) != len(wanted):
        extra = [name for name in names if name not in wanted]
        what = f"there is no column {missing[0]!r}" if missing else f"the column {extra[0]!r} is too many"
        raise ValueError(f"the model was trained on other columns: {what}")
    return rows[:, [list(names).index(name) for name in wanted]]


def write_table(path: Path, header: Sequence[str], rows: np.ndarray) -> None:
    """Rows (…, columns) as .csv with a header, or as .npy."""
    check_destination(path, ".csv", ".npy")
    if path.suffix == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, rows)
        write_atomically(path, lambda p: p.write_bytes(buffer.getvalue()))
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows.tolist())
    write_atomically(path, lambda p: p.write_text(text.getvalue(), encoding="utf-8"))
