"""From published files to the parts of a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from pynade.tables.registry import shuffled
from pynade_paper.data.formats import read_amat, read_letters, read_libsvm

#: Makes parts of zeros and ones from published files, given the number of columns and the rows of each part.
Converter = Callable[[Sequence[Path], int, Mapping[str, int]], dict[str, np.ndarray]]

#: Seed with which Larochelle's mlpython shuffles the OCR letters.
LETTERS_SEED = 12345


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


def amat_parts(
    files: Sequence[Path], n_features: int, sizes: Mapping[str, int], target: bool = False
) -> dict[str, np.ndarray]:
    """Read one dense text file for each part, without the target in the last column if there is one."""
    return {part: read_amat(file, drop_last=target) for part, file in zip(sizes, files, strict=True)}


amat_parts_with_target: Converter = partial(amat_parts, target=True)


def letters_parts(files: Sequence[Path], n_features: int, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Read the OCR letters, shuffle them as mlpython does, and cut them into parts."""
    pixels, _ = read_letters(files[0])
    return cut(pixels[shuffled(len(pixels), LETTERS_SEED)], sizes)
