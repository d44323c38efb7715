"""From published files to the parts of a data set."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from pynade.data.formats import read_amat, read_letters, read_libsvm

#: Makes parts of zeros and ones from published files, given the number of columns and the rows of each part.
Converter = Callable[[Sequence[Path], int, Mapping[str, int]], dict[str, np.ndarray]]

#: Seed with which Larochelle's mlpython shuffles the OCR letters.
LETTERS_SEED = 12345

#: Pixels of scikit-learn's digits run from 0 to 16; from this value on a pixel counts as ink.
DIGITS_THRESHOLD = 8


def shuffled(n: int, seed: int) -> np.ndarray:
    """Return the numbers 0 … n−1 in the order of Python 2's ``random.seed(seed)`` and ``random.shuffle``.

    The published splits were made with it; newer Pythons draw differently in ``shuffle``, but their
    ``random()`` still gives the same stream, from which the old exchange of elements is rebuilt here.

    Example:
        >>> sorted(shuffled(5, seed=1).tolist())
        [0, 1, 2, 3, 4]
    """
    stream = random.Random(seed)
    order = list(range(n))
    for i in range(n - 1, 0, -1):
        j = int(stream.random() * (i + 1))
        order[i], order[j] = order[j], order[i]
    return np.array(order, dtype=np.int64)


def cut(rows: np.ndarray, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Cut rows into consecutive parts of the given sizes.

    Example:
        >>> {part: rows.tolist() for part, rows in cut(np.arange(3), {"train": 2, "test": 1}).items()}
        {'train': [0, 1], 'test': [2]}
    """
    if len(rows) != sum(sizes.values()):
        raise ValueError(f"expected {sum(sizes.values())} rows, but {len(rows)} were found")
    ends = np.cumsum(list(sizes.values()))[:-1]
    return dict(zip(sizes, np.split(rows, ends), strict=True))


def libsvm_parts(files: Sequence[Path], n_features: int, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Read one LIBSVM file for each part."""
    return {part: read_libsvm(file, n_features) for part, file in zip(sizes, files, strict=True)}


def amat_parts(files: Sequence[Path], n_features: int, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Read one dense text file for each part."""
    return {part: read_amat(file) for part, file in zip(sizes, files, strict=True)}


def amat_parts_with_target(
    files: Sequence[Path], n_features: int, sizes: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Read one dense text file for each part, without the target in the last column."""
    return {part: read_amat(file, drop_last=True) for part, file in zip(sizes, files, strict=True)}


def letters_parts(files: Sequence[Path], n_features: int, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Read the OCR letters, shuffle them as mlpython does, and cut them into parts."""
    pixels, _ = read_letters(files[0])
    return cut(pixels[shuffled(len(pixels), LETTERS_SEED)], sizes)


def digits_parts(files: Sequence[Path], n_features: int, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Take scikit-learn's own 8 × 8 digits, make them black and white, shuffle and cut them."""
    from sklearn.datasets import load_digits

    pixels = (load_digits().data >= DIGITS_THRESHOLD).astype(np.uint8)
    return cut(pixels[shuffled(len(pixels), seed=0)], sizes)
