"""Named data sets: the digits that scikit-learn brings, and what installed packages register.

A package registers data sets by an entry point of the group ``pynade.datasets`` that names a mapping from
names to `Entry` objects.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

import numpy as np

from pynade.tables.dataset import Dataset
from pynade.tables.schema import Kind, Schema

GROUP = "pynade.datasets"

#: Called during a download as ``progress(done_bytes, total_bytes, file_name)``.
Progress = Callable[[int, int | None, str], None]


class Entry(Protocol):
    """A named data set."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def title(self) -> str:
        """One line about it."""

    @property
    def D(self) -> int:
        """Number of variables."""

    @property
    def kind(self) -> Kind:
        """What its columns hold."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Rows of each part."""

    @property
    def citation(self) -> str:
        """Where it comes from, and its licence."""

    @property
    def addresses(self) -> Sequence[str]:
        """Where it is published."""

    @property
    def notes(self) -> Sequence[str]:
        """What a user should know of it."""

    @property
    def variants(self) -> Sequence[str]:
        """What may follow the name after a slash; the first is what the bare name stands for."""

    @property
    def by_hand(self) -> str:
        """How to get it where it cannot be downloaded; empty where it can."""

    def here(self, data_dir: str | os.PathLike[str] | None = None) -> bool:
        """Whether it can be loaded without a download."""

    def load(
        self,
        variant: str = "",
        data_dir: str | os.PathLike[str] | None = None,
        download: bool = True,
        progress: Progress | None = None,
    ) -> Dataset:
        """Load it, or a variant of it."""


class Digits:
    """Handwritten digits of 8 × 8 pixels that come with scikit-learn."""

    name = "digits"
    title = "Digits: scikit-learn's bundled handwritten digits, 8 × 8 pixels"
    D = 64
    kind: Kind = "binary"
    sizes = {"train": 1197, "valid": 300, "test": 300}  # noqa: RUF012
    citation = "Alpaydin and Kaynak (1998), UCI optical recognition of handwritten digits, CC BY 4.0"
    addresses = ()
    notes = (
        "a pixel of 8 or more (of 16) counts as 1",
        "shuffled with seed 0 and cut into parts: pynade's own split, not a benchmark of the paper",
    )
    variants = ("",)
    by_hand = ""

    def here(self, data_dir: str | os.PathLike[str] | None = None) -> bool:
        """Always: it comes with scikit-learn."""
        return True

    def load(
        self,
        variant: str = "",
        data_dir: str | os.PathLike[str] | None = None,
        download: bool = True,
        progress: Progress | None = None,
    ) -> Dataset:
        """The digits, in three parts."""
        from sklearn.datasets import load_digits

        pixels = (load_digits().data >= 8).astype(np.uint8)
        rows = pixels[shuffled(len(pixels), seed=0)]
        train, valid, test = np.split(rows, [1197, 1497])
        facts = {"source": self.name, "upstream": [], "citation": self.citation, "notes": list(self.notes)}
        return Dataset(self.name, train, valid, test, Schema.binary(self.D), facts, (8, 8))


def shuffled(n: int, seed: int) -> np.ndarray:
    """The numbers 0 … n−1 in the order of Python 2's ``random.seed(seed)`` and ``random.shuffle``.

    Published splits were made with it. Newer versions of Python draw differently in ``shuffle``, but their
    ``random()`` gives the same stream, from which the old exchange of elements is computed here.

    Example:
        >>> sorted(shuffled(5, seed=1).tolist())
        [0, 1, 2, 3, 4]
    """
    import random

    stream = random.Random(seed)
    order = list(range(n))
    for i in range(n - 1, 0, -1):
        j = int(stream.random() * (i + 1))
        order[i], order[j] = order[j], order[i]
    return np.array(order, dtype=np.int64)


@cache
def entries() -> dict[str, Entry]:
    """All named data sets by name, in the order in which they were registered."""
    found: dict[str, Entry] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        found.update(point.load())
    return {**found, "digits": Digits()}


def suggestion(name: str, known: Mapping[str, Entry] | None = None) -> str:
    """The end of an error message about an unknown name: the nearest known name, and all known names.

    Args:
        name: The unknown name.
        known: The named data sets; those of `entries` when left out.

    Example:
        >>> suggestion("digit")[:24]
        "did you mean 'digits'? ("
    """
    names = list(entries() if known is None else known)
    close = difflib.get_close_matches(name.lower(), names, n=1)
    return (f"did you mean {close[0]!r}? " if close else "") + f"(known: {', '.join(names)})"


def entry(name: str, known: Mapping[str, Entry] | None = None) -> Entry:
    """The data set of that name, or of a variant of it such as ``"red_wine/3"``.

    Args:
        name: A name, perhaps with a variant.
        known: The named data sets; those of `entries` when left out.

    Raises:
        ValueError: There is no data set of that name (the sentence suggests the nearest), or no such variant.

    Example:
        >>> entry("digits").D
        64
    """
    known = entries() if known is None else known
    base, _, variant = name.partition("/")
    if base not in known:
        raise ValueError(f"unknown data set {name!r}: {suggestion(base, known)}")
    item = known[base]
    if name != base and variant not in filter(None, item.variants):
        others = ", ".join(f"{base}/{other}" for other in item.variants if other)
        raise ValueError(
            f"there is no {name!r}: " + (f"expected one of {others}" if others else f"{base!r} has no folds")
        )
    return item


def is_registered(data: str, known: Mapping[str, Entry] | None = None) -> bool:
    """Whether a word means a registered data set rather than a file.

    A name has precedence over a file, but a folder may have the name of a data set, and files in it.

    Args:
        data: A name, perhaps with a variant, or a path.
        known: The named data sets; those of `entries` when left out.

    Example:
        >>> is_registered("digits"), is_registered("./digits")
        (True, False)
    """
    known = entries() if known is None else known
    base, _, variant = data.partition("/")
    if base not in known:
        return False
    return data == base or variant in filter(None, known[base].variants) or not Path(data).exists()


def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    progress: Progress | None = None,
    known: Mapping[str, Entry] | None = None,
) -> Dataset:
    """Load a named data set, downloading it the first time.

    Args:
        name: One of `entries`, perhaps with a variant: ``"red_wine/3"`` is the third fold of red wine.
        data_dir: Folder of the data sets, see `data_directory`.
        download: Whether the published files may be downloaded if there is no prepared file yet.
        progress: Called as ``progress(done_bytes, total_bytes, file_name)`` during a download.
        known: The named data sets; those of `entries` when left out.

    Raises:
        ValueError: The name is unknown, or the prepared file is damaged.
        FileNotFoundError: There is no prepared file, and ``download`` is False.
        OSError: The published files are not available or are not those expected.

    Example:
        >>> load("digits").sizes
        {'train': 1197, 'valid': 300, 'test': 300}
    """
    return entry(name, known).load(name.partition("/")[2], data_dir, download, progress)


def fold_names(item: Entry) -> tuple[str, ...]:
    """The numbers of the folds of a data set, from ``"1"``; empty if it has none."""
    return tuple(variant for variant in item.variants if variant.isdigit())


def folds(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    progress: Progress | None = None,
    known: Mapping[str, Entry] | None = None,
) -> list[Dataset]:
    """Load all folds of a data set, in order; each is a data set of its own.

    Args:
        name: The name of a data set with folds.
        data_dir: Folder of the data sets, see `data_directory`.
        download: As in `load`.
        progress: As in `load`.
        known: As in `load`.

    Raises:
        ValueError: The data set has no folds.
    """
    known = entries() if known is None else known
    item = entry(name, known)
    if not fold_names(item):
        others = ", ".join(other for other in known if fold_names(known[other]))
        raise ValueError(f"data set {name!r} has no folds; those with folds are: {others or 'none'}")
    return [item.load(fold, data_dir, download, progress) for fold in fold_names(item)]
