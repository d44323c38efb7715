"""The three UCI tables of the paper's section on low-dimensional data, in ten folds each.

A fold is nine training parts and a test part. The ninth training part is for validation: it is used to choose
hyperparameters, and a final model is fitted to train and valid together, 90 % of the rows. Every column is
normalised by the mean and the (population) standard deviation of these 90 %, and never by the test rows. The
paper's numbers are densities of the normalised values, without a correction for the change of units.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pynade.tables.dataset import Dataset, Schema

#: Number of folds.
FOLDS = 10

#: Seed of the permutation that cuts white wine and parkinsons into ten pieces.
FOLD_SEED = 0

#: Of two columns with a correlation above this (in absolute value), the earlier is dropped.
MAX_CORRELATION = 0.98

#: The columns of the wine files, apart from the last, ``quality``; the authors' folds do not name theirs.
WINE_COLUMNS = ["fixed acidity", "volatile acidity", "citric acid", "residual sugar", "chlorides"]
WINE_COLUMNS += ["free sulfur dioxide", "total sulfur dioxide", "density", "pH", "sulphates", "alcohol"]

#: Nine training parts, the last of which is for validation, and the test part.
Fold = tuple[list[np.ndarray], np.ndarray]


def continuous_columns(rows: np.ndarray, limit: float = MAX_CORRELATION) -> np.ndarray:
    """Return the numbers of the columns that the paper's rule keeps.

    Columns that hold whole numbers only are dropped, and of every remaining pair with a Pearson correlation
    beyond ``limit`` in absolute value the earlier column. (The paper drops "an attribute from every pair";
    that it is the earlier one is what leaves its 15 columns of parkinsons.)

    Example:
        >>> a = np.array([0.5, 1.5, 1.0, 3.5])
        >>> continuous_columns(np.stack([[1, 0, 1, 0], a, 3 * a, a**3], axis=1)).tolist()
        [2, 3]
    """
    kept = np.flatnonzero(np.any(rows != np.rint(rows), axis=0))
    correlation = np.abs(np.corrcoef(rows[:, kept], rowvar=False)).reshape(len(kept), len(kept))
    return kept[~np.any(np.triu(correlation, k=1) > limit, axis=1)]


def cut_folds(rows: np.ndarray, seed: int = FOLD_SEED, n: int = FOLDS) -> list[Fold]:
    """Cut rows into folds by a seeded permutation.

    The rows are permuted (NumPy's PCG64 with the seed) and cut into ``n`` pieces whose sizes differ by one at
    most. Piece k is the test part of fold k; its training parts are the pieces after it, in a circle, so that
    piece k−1 is its ninth and serves for validation.

    Example:
        >>> training, test = cut_folds(np.arange(20.0)[:, None])[0]
        >>> len(training), len(test)
        (9, 2)
    """
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(rows))
    pieces = [rows[part] for part in np.array_split(order, n)]
    return [([pieces[(k + i) % n] for i in range(1, n)], pieces[k]) for k in range(n)]


def fold_dataset(fold: Fold, names: Sequence[str], number: str, seed: int | None) -> Dataset:
    """Return a fold of raw parts as a data set, normalised by its nine training parts.

    Its number counts from ``"1"``; the seed made the permutation behind the folds, None for published ones.

    Example:
        >>> rows = np.random.default_rng(0).normal(5.0, 2.0, (40, 2))
        >>> data = fold_dataset(cut_folds(rows)[2], ["a", "b"], "3", seed=0)
        >>> data.sizes, bool(np.allclose(np.concatenate([data.train, data.valid]).std(axis=0), 1.0))
        ({'train': 32, 'valid': 4, 'test': 4}, True)
    """
    training, test = [np.asarray(part, dtype=np.float64) for part in fold[0]], np.asarray(fold[1], np.float64)
    both = np.concatenate(training)
    mean, std = both.mean(axis=0), both.std(axis=0)
    if np.any(std == 0):
        column = names[int(np.flatnonzero(std == 0)[0])]
        raise ValueError(f"column {column!r} is constant in the training rows of fold {number}")
    train, valid, test = ((rows - mean) / std for rows in (np.concatenate(training[:-1]), training[-1], test))
    provenance = {"units": "normalised: these are the data", "fold": int(number), "folds": FOLDS}
    provenance |= {"fold_seed": seed, "mean": mean.tolist(), "std": std.tolist()}
    return Dataset("fold", train, valid, test, Schema.uniform("real", len(names), names), provenance)


def table_fold(path: Path, number: str) -> Dataset:
    """Read a published table and return one of its seeded folds, of the columns the paper's rule keeps."""
    with path.open(encoding="utf-8") as stream:
        head = stream.readline()
        delimiter = ";" if ";" in head else ","
        names = [name.strip() for name in next(csv.reader([head], delimiter=delimiter))]
        rows = np.loadtxt(stream, delimiter=delimiter)
    kept = continuous_columns(rows)
    fold = cut_folds(rows[:, kept])[int(number) - 1]
    return fold_dataset(fold, [names[i] for i in kept], number, FOLD_SEED)


def published_fold(path: Path, number: str) -> Dataset:
    """Read one of the authors' own folds of red wine, rows of raw values."""
    try:
        import h5py
    except ImportError as error:
        raise ImportError(f"reading {path.name} needs h5py; install it with `pip install h5py`") from error
    places = [f"folds/{number}/training/{i}/data" for i in range(1, FOLDS)] + [f"folds/{number}/tests/1/data"]
    try:
        with h5py.File(path, "r") as file:
            parts = [np.asarray(file[place], dtype=np.float64) for place in places]
    except (OSError, KeyError) as error:
        raise ValueError(f"the data file {path} is damaged or holds no folds ({error})") from error
    for place, part in zip(places, parts, strict=True):
        if part.ndim != 2 or part.shape[1] != len(WINE_COLUMNS):
            raise ValueError(
                f"the data file {path} has an array of shape {part.shape} at {place};"
                f" expected rows of {len(WINE_COLUMNS)} columns"
            )
    return fold_dataset((parts[:-1], parts[-1]), WINE_COLUMNS, number, seed=None)


def copy_file(files: Sequence[Path], path: Path) -> None:
    """Take the one published file as the prepared file."""
    path.write_bytes(files[0].read_bytes())
