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

    Args:
        path: The text file.
        n_features: Number of columns, which is not in the file.

    Returns:
        Rows of zeros and ones, ``uint8``.

    Raises:
        ValueError: A line has another format; the message has the file and the line.

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
                raise ValueError(
                    f"{path}, line {number}: expected a label first, but {_show(tokens[0])} was found"
                )
            start = n_rows * n_features - 1
            for token in tokens[1:]:
                index, colon, value = token.partition(b":")
                if not colon or not index.isdigit():
                    raise ValueError(
                        f"{path}, line {number}: expected index:value, but {_show(token)} was found"
                    )
                if not 1 <= int(index) <= n_features:
                    raise ValueError(
                        f"{path}, line {number}: index {int(index)} is outside 1 to {n_features}"
                    )
                if value == b"1" or _zero_or_one(value, path, number, token):
                    ones.append(start + int(index))
            n_rows += 1
    if n_rows == 0:
        raise ValueError(f"{path} has no rows")
    rows = np.zeros(n_rows * n_features, dtype=np.uint8)
    rows[ones] = 1
    return rows.reshape(n_rows, n_features)


def read_amat(path: Path, drop_last: bool = False) -> np.ndarray:
    """Read a dense text matrix of zeros and ones, one row per line, values separated by spaces.

    Args:
        path: The text file.
        drop_last: Leave out the last value of each line, a label or a dummy.

    Returns:
        Rows of zeros and ones, ``uint8``.

    Raises:
        ValueError: A line has another format; the message has the file and the line.

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
            if len(tokens) != width:
                raise ValueError(
                    f"{path}, line {number}: expected {width} values, but {len(tokens)} were found"
                )
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
    """Read the OCR letters file: tab-separated text, compressed with gzip or plain.

    A line is id, letter, next id, word id, position, fold, and 128 pixels.

    Args:
        path: ``letter.data.gz`` or its decompressed text.

    Returns:
        The pixels, ``uint8`` with 128 columns, and the fold of each row.

    Raises:
        ValueError: A line has another format, or the compressed file is damaged; the message has the file.

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
        expected = LETTER_FIELDS + LETTER_PIXELS
        if len(tokens) != expected:
            raise ValueError(
                f"{path}, line {number}: expected {expected} values, but {len(tokens)} were found"
            )
        row = b"".join(tokens[LETTER_FIELDS:])
        if len(row) != LETTER_PIXELS or row.strip(b"01"):
            raise ValueError(f"{path}, line {number}: expected pixels that are 0 or 1")
        if not tokens[5].isdigit():
            raise ValueError(
                f"{path}, line {number}: expected a fold number, but {_show(tokens[5])} was found"
            )
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
        raise ValueError(f"{path}, line {number}: expected a value of 0 or 1, but {_show(token)} was found")
    return parsed == 1.0


def _show(token: bytes) -> str:
    text = token.decode("utf-8", errors="replace")
    return repr(text if len(text) <= 40 else text[:40] + "…")
