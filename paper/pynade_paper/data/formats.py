"""Readers of the text formats in which the binary data sets are published."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

#: Columns of a line of the OCR letters file: six of description, then 16 × 8 pixels.
LETTER_FIELDS, LETTER_PIXELS = 6, 128


def read_libsvm(path: Path, n_features: int) -> np.ndarray:
    """Read a sparse LIBSVM file of zeros and ones; the labels are dropped.

    A line is ``label index:value …`` with indexes counted from 1. A line with a label alone is a row of
    zeros; an empty line is skipped.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "toy"
        >>> _ = path.write_text("+1 1:1 3:1\\n-1 2:1\\n")
        >>> read_libsvm(path, 3).tolist()
        [[1, 0, 1], [0, 1, 0]]
    """
    ones: list[int] = []
    n_rows = 0
    with Path(path).open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            tokens = line.split(b"#", 1)[0].split()
            if not tokens:
                continue
            if b":" in tokens[0]:
                raise _unexpected(path, number, "a label first", tokens[0])
            start = n_rows * n_features - 1
            for token in tokens[1:]:
                index, colon, value = token.partition(b":")
                if not colon or not index.isdigit():
                    raise _unexpected(path, number, "index:value", token)
                if not 1 <= int(index) <= n_features:
                    where = f"{path}, line {number}"
                    raise ValueError(f"{where}: index {int(index)} is outside 1 to {n_features}")
                if value == b"1" or _zero_or_one(value, path, number, token):
                    ones.append(start + int(index))
            n_rows += 1
    if n_rows == 0:
        raise ValueError(f"{path} has no rows")
    rows = np.zeros(n_rows * n_features, dtype=np.uint8)
    rows[ones] = 1
    return rows.reshape(n_rows, n_features)


def read_amat(path: Path, drop_last: bool = False) -> np.ndarray:
    """Read a dense text matrix of zeros and ones, one row per line, perhaps without the last value of each.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "toy.amat"
        >>> _ = path.write_text("0 1 1 7\\n1 0 1 7\\n")
        >>> read_amat(path, drop_last=True).tolist()
        [[0, 1, 1], [1, 0, 1]]
    """
    rows: list[bytes] = []
    width = 0
    with Path(path).open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            tokens = line.split()
            if not tokens or tokens[0].startswith(b"#"):
                continue
            width = width or len(tokens)
            _check_width(path, number, width, tokens)
            kept = tokens[:-1] if drop_last else tokens
            row = b"".join(kept)
            if len(row) != len(kept) or row.strip(b"01"):  # such as 1.0, which is rare and may be slow
                row = b"".join(b"1" if _zero_or_one(token, path, number, token) else b"0" for token in kept)
            rows.append(row)
    if not rows or not rows[0]:
        raise ValueError(f"{path} has no values")
    values = np.frombuffer(b"".join(rows), dtype=np.uint8) - np.uint8(ord("0"))
    return values.reshape(len(rows), -1)


def read_letters(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the pixels and the fold of each row of the OCR letters file: text, compressed with gzip or plain.

    A line is id, letter, next id, word id, position, fold, and 128 pixels, separated by tabs.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "letter.data"
        >>> _ = path.write_text("\\t".join(["1", "o", "-1", "1", "1", "4"] + ["1"] * 128))
        >>> pixels, fold = read_letters(path)
        >>> pixels.shape, fold.tolist()
        ((1, 128), [4])
    """
    data = Path(path).read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is damaged: it does not decompress ({error})") from error
    pixels, folds = bytearray(), []
    for number, line in enumerate(data.splitlines(), start=1):
        tokens = line.strip(b"\t ").split(b"\t")
        if tokens == [b""]:
            continue
        _check_width(path, number, LETTER_FIELDS + LETTER_PIXELS, tokens)
        row = b"".join(tokens[LETTER_FIELDS:])
        if len(row) != LETTER_PIXELS or row.strip(b"01"):
            raise ValueError(f"{path}, line {number}: expected pixels that are 0 or 1")
        if not tokens[5].isdigit():
            raise _unexpected(path, number, "a fold number", tokens[5])
        pixels += row
        folds.append(int(tokens[5]))
    if not folds:
        raise ValueError(f"{path} has no rows")
    values = np.frombuffer(bytes(pixels), dtype=np.uint8) - np.uint8(ord("0"))
    return values.reshape(-1, LETTER_PIXELS), np.array(folds)


def _zero_or_one(value: bytes, path: Path, number: int, token: bytes) -> bool:
    try:
        parsed = float(value)
    except ValueError:
        parsed = float("nan")
    if parsed not in (0.0, 1.0):
        raise _unexpected(path, number, "a value of 0 or 1", token)
    return parsed == 1.0


def _check_width(path: Path, number: int, width: int, tokens: list[bytes]) -> None:
    if len(tokens) != width:
        raise ValueError(f"{path}, line {number}: expected {width} values, but {len(tokens)} were found")


def _unexpected(path: Path, number: int, expected: str, token: bytes) -> ValueError:
    text = token.decode("utf-8", errors="replace")
    shown = repr(text if len(text) <= 40 else text[:40] + "…")
    return ValueError(f"{path}, line {number}: expected {expected}, but {shown} was found")
