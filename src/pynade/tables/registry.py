"""Named data sets: the digits that scikit-learn brings, and what installed packages register.

A package registers data sets by an entry point of the group ``pynade.datasets`` that names a mapping from
names to `Entry` objects. An entry point of the group ``pynade.readers`` reads the folder after a colon:
``timit:FOLDER``.
"""

from __future__ import annotations

import difflib
import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pynade import datasets
from pynade.tables.dataset import Dataset, Kind, Schema
from pynade.tables.files import dataset_from_file
from pynade.tables.images import images_dataset, is_images

#: Called during a download as ``progress(done_bytes, total_bytes, file_name)``.
Progress = Callable[[int, int | None, str], None] | None
Folder = str | os.PathLike[str] | None


def data_directory(path: Folder = None) -> Path:
    """Return the folder where data sets are kept, which need not exist yet.

    It is the given one; without it, the environment variable ``PYNADE_DATA`` or the user's cache folder.

    Example:
        >>> data_directory("somewhere").name
        'somewhere'
    """
    from platformdirs import user_cache_path

    return Path(path or os.environ.get("PYNADE_DATA") or user_cache_path("pynade")).expanduser()


class Entry(Protocol):
    """A named data set."""

    name: str
    title: str  # one line about it
    D: int  # number of variables
    kind: Kind  # what its columns hold
    sizes: Mapping[str, int]  # rows of each part
    citation: str  # where it comes from, and its licence
    addresses: Sequence[str] = ()  # where it is published
    notes: Sequence[str] = ()  # what a user should know of it
    variants: Sequence[str] = ("",)  # what may follow the name after a slash; the name alone means the first
    by_hand: str = ""  # how to get it where it cannot be downloaded; empty where it can

    def here(self, data_dir: Folder = None) -> bool:
        """Whether it can be loaded without a download."""
        return True

    def load(
        self, variant: str = "", data_dir: Folder = None, download: bool = True, progress: Progress = None
    ) -> Dataset:
        """Load it, or a variant of it; the arguments are those of `pynade.tables.load`."""


class Digits(Entry):
    """Handwritten digits of 8 × 8 pixels that come with scikit-learn."""

    name = "digits"
    title = "Digits: scikit-learn's bundled handwritten digits, 8 × 8 pixels"
    D = 64
    kind = "binary"
    sizes = {"train": 1197, "valid": 300, "test": 300}  # noqa: RUF012
    citation = "Alpaydin and Kaynak (1998), UCI optical recognition of handwritten digits, CC BY 4.0"
    notes = (
        "a pixel of 8 or more (of 16) counts as 1",
        "shuffled with seed 0 and cut into parts: pynade's own split, not a benchmark of the paper",
    )

    def load(self, *args: Any, **kwargs: Any) -> Dataset:
        """The digits, in three parts."""
        from sklearn.datasets import load_digits

        pixels = (load_digits().data >= 8).astype(np.uint8)
        train, valid, test = np.split(pixels[shuffled(len(pixels), seed=0)], [1197, 1497])
        facts = {"source": self.name, "upstream": [], "citation": self.citation, "notes": list(self.notes)}
        return Dataset(self.name, train, valid, test, Schema.binary(self.D), facts, (8, 8))


class Penguins(Entry):
    """The Palmer penguins that come with pynade: columns of several kinds, with gaps."""

    name = "penguins"
    title = "Palmer penguins: 344 birds, 8 columns of several kinds, 19 missing cells"
    D = 8
    kind = "mixed"  # type: ignore[assignment]
    sizes = {"train": 344}  # noqa: RUF012
    citation = "Horst, Hill and Gorman (2020), palmerpenguins, doi:10.5281/zenodo.3960218, CC0 1.0"

    def load(self, *args: Any, **kwargs: Any) -> Dataset:
        """The penguins, as a polars frame."""
        facts = {"source": self.name, "upstream": [], "citation": self.citation, "notes": []}
        return Dataset.of_frames(self.name, {"train": datasets.penguins("polars")}, facts)


def shuffled(n: int, seed: int) -> np.ndarray:
    """The numbers 0 … n−1 in the order of Python 2's ``random.seed(seed)`` and ``random.shuffle``.

    Published splits were made with it. Python 3 has another ``shuffle``, but the same stream of ``random()``.

    Example:
        >>> sorted(shuffled(5, seed=1).tolist())
        [0, 1, 2, 3, 4]
    """
    stream, order = random.Random(seed), list(range(n))
    for i in range(n - 1, 0, -1):
        j = int(stream.random() * (i + 1))
        order[i], order[j] = order[j], order[i]
    return np.array(order, dtype=np.int64)


Known = Mapping[str, Entry] | None  # data sets by name


@cache
def entries() -> dict[str, Entry]:
    """All named data sets by name, in the order in which they were registered."""
    points = sorted(entry_points(group="pynade.datasets"), key=lambda point: point.name)
    known = {name: item for point in points for name, item in point.load().items()}
    return known | {"digits": Digits(), "penguins": Penguins()}


def _suggestion(name: str, known: Known) -> str:
    """The nearest known name, and all known names."""
    close = difflib.get_close_matches(name.lower(), known or entries(), n=1)
    return "".join(f"did you mean {c!r}? " for c in close) + f"(known: {', '.join(known or entries())})"


def entry(name: str, known: Known = None) -> Entry:
    """The data set of that name; a ValueError suggests the nearest one.

    Args:
        name: A name, perhaps with a variant such as ``"red_wine/3"``.
        known: The data sets by name; None takes `entries`.

    Example:
        >>> entry("digits").D
        64
    """
    base, _, variant = name.partition("/")
    found = (known or entries()).get(base)
    if found is None:
        raise ValueError(f"unknown data set {name!r}: {_suggestion(base, known)}")
    if name != base and variant not in filter(None, found.variants):
        others = ", ".join(f"{base}/{other}" for other in found.variants if other)
        expected = f"expected one of {others}" if others else f"{base!r} has no folds"
        raise ValueError(f"there is no {name!r}: {expected}")
    return found


def is_registered(data: str, known: Known = None) -> bool:
    """Whether a word means a registered data set rather than a file; `known` as in `entry`.

    A name has precedence, but a folder may have the name of a data set, and files in it.

    Example:
        >>> is_registered("digits"), is_registered("./digits")
        (True, False)
    """
    base, slash, variant = data.partition("/")
    variants = [v for v in (known or entries())[base].variants if v] if base in (known or entries()) else None
    return variants is not None and (not slash or variant in variants or not Path(data).exists())


def load(
    name: str, data_dir: Folder = None, download: bool = True, progress: Progress = None, known: Known = None
) -> Dataset:
    """Load a named data set, downloading it the first time.

    Args:
        name: One of `entries`, perhaps with a variant: ``"red_wine/3"`` is its third fold.
        data_dir: Folder of the data sets, see `data_directory`.
        download: Whether the published files may be downloaded if there is no prepared file yet.
        progress: Called as ``progress(done_bytes, total_bytes, file_name)`` during a download.
        known: As in `entry`.

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
    return tuple(filter(str.isdigit, item.variants))


def folds(name: str, data_dir: Folder = None, **options: Any) -> list[Dataset]:
    """Load all folds of a data set that has some, in order; each is a data set. Arguments as in `load`."""
    known = options.get("known") or entries()
    numbers = fold_names(entry(name, known))
    if not numbers:
        others = ", ".join(other for other, item in known.items() if fold_names(item))
        raise ValueError(f"data set {name!r} has no folds; those with folds are: {others or 'none'}")
    base = name.partition("/")[0]
    return [load(f"{base}/{number}", data_dir, **options) for number in numbers]


def resolve(
    data: str | os.PathLike[str],
    data_dir: Folder = None,
    *,
    frames: bool = False,
    missing: Sequence[str] | None = None,
    **options: Any,
) -> Dataset:
    """Return the data set that a name or a file stands for.

    Args:
        data: A registered name, as in `load`, which has precedence over a file (write ``./adult`` for a file
            of that name); a file (see `pynade.tables.read_file`); images, as a folder of PNG files or an
            ``.npy`` stack (see `pynade.tables.images`); or ``NAME:FOLDER``, for a registered reader.
        frames: Return polars frames; columns of a table file may then be of any type.
        missing: As in `pynade.tables.files.read_frame`.
        data_dir, **options: As in `load`.

    Example:
        >>> resolve("digits").n_variables
        64
    """
    if not isinstance(data, str | os.PathLike):
        raise TypeError(f"expected a data set's name or a file, but got {type(data).__name__}")
    name, known, path = data if isinstance(data, str) else "", options.get("known"), Path(data).expanduser()
    kind, _, folder = name.partition(":")
    readers = [*entry_points(group="pynade.readers", name=kind)] if folder else []
    if is_registered(name, known):
        found = load(name, data_dir, **options)
    elif readers:
        found = readers[0].load()(folder)
    elif path.exists():
        found = images_dataset(path) if is_images(path) else dataset_from_file(path, frames, missing)
    elif not name:
        raise FileNotFoundError(f"there is no file {path}")
    else:
        close = _suggestion(name, known)
        raise ValueError(f"no file {name!r} exists, and it is no registered data set: {close}")
    return found.as_frames() if frames else found
