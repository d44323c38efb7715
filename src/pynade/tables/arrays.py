"""Files of arrays, ``.npy`` and ``.npz``: what their headers claim is checked before memory is taken."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from pynade.tables.dataset import PARTS

#: What numpy and zipfile raise on a damaged file.
DAMAGE: tuple[type[Exception], ...] = (OSError, ValueError, EOFError, KeyError, TypeError, RuntimeError)
DAMAGE += (OverflowError, MemoryError, zipfile.BadZipFile, zlib.error, tokenize.TokenError)
#: Bytes that one byte of a zip archive can stand for, at most.
MOST_BYTES = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name (of ``.npy``: "train"), or a ValueError that names the file."""
    try:
        with path.open("rb") as stream:
            if not zipfile.is_zipfile(path):
                _claimed_shape(stream, path.stat().st_size)
            else:
                archive = zipfile.ZipFile(stream)
                for entry in archive.infolist():
                    ratio = MOST_BYTES.get(entry.compress_type)
                    with archive.open(entry) as member:
                        _claimed_shape(member, entry.compress_size * ratio if ratio else entry.file_size)
            stream.seek(0)
            loaded = np.load(stream, allow_pickle=False)
            return {"train": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except PermissionError:
        raise
    except DAMAGE as error:
        reason = str(error).split(" and header")[0].splitlines()[0][:100] if str(error) else "no reason given"
        raise ValueError(f"{path} is damaged or holds no plain arrays ({reason})") from error


def array_parts(path: Path) -> dict[str, np.ndarray]:
    """Return the parts of a data set in a file of arrays; a single array is "train"."""
    arrays = read_arrays(path)
    if len(arrays) == 1:
        return {"train": next(iter(arrays.values()))}
    parts = {part: arrays[part] for part in PARTS if part in arrays}
    if set(arrays) - {*PARTS, "n_features"} or "train" not in parts:
        expected = "expected a single array, or 'train' with 'valid' and 'test' as there are"
        raise ValueError(f"{path} holds the arrays {', '.join(sorted(arrays))}; {expected}")
    if "n_features" not in arrays:
        return parts
    n: Any = arrays["n_features"]
    if n.shape != () or n.dtype.kind not in "iu":
        raise ValueError(f"{path}: n_features is a whole number, not an array {n.shape} of type {n.dtype}")
    n = int(n)
    for part, rows in parts.items():
        if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != -(-n // 8):
            raise ValueError(f"{path}, part {part!r}: expected {n} columns packed into uint8 bytes")
    return {part: np.unpackbits(rows, axis=1, count=n) for part, rows in parts.items()}


def axes(path: Path) -> int:
    """Return the number of axes of an ``.npy`` file; 0 of one that is damaged."""
    try:
        with path.open("rb") as stream:
            return len(_claimed_shape(stream, path.stat().st_size))
    except DAMAGE:
        return 0


def _claimed_shape(stream: Any, room: int) -> tuple[int, ...]:
    """The shape in the header of an array; a ValueError if the file has too few bytes for it."""
    version = npy.read_magic(stream)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    if min(shape, default=0) < 0 or math.prod(shape) * max(dtype.itemsize, 1) > room:
        raise ValueError(f"its header claims {dtype} of shape {shape}, more than the file has room for")
    return tuple(shape)
