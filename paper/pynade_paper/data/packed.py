"""The prepared file of a binary data set: bits packed into bytes, in one ``.npz``.

``train``, ``valid`` and ``test`` (those that exist) are ``numpy.packbits(rows, axis=1)``, and ``n_features``
is the number of columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from pynade.atomic import write_atomically
from pynade.tables.arrays import DAMAGE as DAMAGE
from pynade.tables.dataset import PARTS


def pack(rows: np.ndarray) -> np.ndarray:
    """Return rows of zeros and ones with eight columns to a byte."""
    return np.packbits(rows, axis=1)


def unpack(packed: np.ndarray, n_features: int) -> np.ndarray:
    """Return the zeros and ones that `pack` packed."""
    return np.unpackbits(packed, axis=1, count=n_features)


def read_packed(path: Path) -> tuple[dict[str, np.ndarray], int]:
    """Read a prepared file: its packed parts and the number of columns.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "toy.npz"
        >>> write_packed(path, {"train": pack(np.eye(3, dtype=np.uint8))}, 3)
        >>> read_packed(path)[0]["train"].tolist()
        [[128], [64], [32]]
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            n_features = int(archive["n_features"])
            parts = {part: archive[part] for part in PARTS if part in archive.files}
    except (FileNotFoundError, PermissionError):
        raise
    except DAMAGE as error:
        raise ValueError(
            f"the data file {path} is damaged or no prepared data set ({error}); delete it to make it anew"
        ) from error
    width = -(-n_features // 8)
    for part, rows in parts.items():
        if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != width:
            raise ValueError(
                f"the data file {path} is damaged: its {part!r} part has shape {rows.shape} and type"
                f" {rows.dtype}, but {n_features} columns need uint8 rows of {width} bytes"
            )
    return parts, n_features


def write_packed(path: Path, parts: Mapping[str, np.ndarray], n_features: int) -> None:
    """Write a prepared file of packed parts; a reader sees either the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def write(file: Path) -> None:
        with file.open("wb") as stream:
            np.savez_compressed(stream, **dict(parts), n_features=np.int64(n_features))  # type: ignore[arg-type]

    write_atomically(path, write)


def content_digest(packed: Iterable[np.ndarray], n_features: int) -> str:
    """Return the SHA-256 of the line ``"<n_features>\\n"`` and the packed rows, sorted byte by byte.

    Example:
        >>> rows = pack(np.eye(3, dtype=np.uint8))
        >>> content_digest([rows], 3) == content_digest([rows[2:], rows[:2]], 3)
        True
    """
    rows = np.ascontiguousarray(np.concatenate(list(packed)))
    keys = rows.view(f"S{rows.shape[1]}").ravel() if rows.size else rows
    digest = hashlib.sha256(f"{n_features}\n".encode("ascii"))
    digest.update(np.sort(keys, axis=0).tobytes())
    return digest.hexdigest()
