"""Named data sets: those that come with pynade or scikit-learn, and what installed packages register.

Entry points of the group ``pynade.datasets`` name mappings from names to `Entry` objects; those of the group
``pynade.readers`` read the folder after a colon: ``timit:FOLDER``."""

from __future__ import annotations

import difflib
import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from pynade import datasets
from pynade.tables.dataset import Dataset, Schema
from pynade.tables.files import Words, dataset_from_file
from pynade.tables.images import images_dataset, is_images

Progress = Callable[[int, int | None, str], None] | None  # of (done_bytes, total_bytes, file_name)
Place = str | os.PathLike[str]
Folder = Place | None


def data_directory(path: Folder = None) -> Path:
    """The folder of the data sets: `path`, else the variable ``PYNADE_DATA``, else the user's cache."""
    from platformdirs import user_cache_path

    return Path(os.path.expanduser(path or os.environ.get("PYNADE_DATA") or user_cache_path("pynade")))


class Entry(Protocol):
    """A named data set."""

    name: str
    title: str  # one line about it
    D: int  # number of variables
    kind: str  # what its columns hold: binary, real or mixed
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

    name, D, kind = "digits", 64, "binary"
    title = "Digits: scikit-learn's bundled handwritten digits, 8 × 8 pixels"
    sizes = MappingProxyType({"train": 1197, "valid": 300, "test": 300})
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
        return Dataset(self.name, train, valid, test, Schema.binary(self.D), _provenance(self), (8, 8))


class Penguins(Entry):
    """The Palmer penguins that come with pynade: columns of several kinds, with gaps."""

    name, D, kind = "penguins", 8, "mixed"
    title = "Palmer penguins: 344 birds, 8 columns of several kinds, 19 missing cells"
    sizes = MappingProxyType({"train": 344})
    citation = "Horst, Hill and Gorman (2020), palmerpenguins, doi:10.5281/zenodo.3960218, CC0 1.0"

    def load(self, *args: Any, **kwargs: Any) -> Dataset:
        """The penguins, as a polars frame."""
        return Dataset.of_frame(self.name, datasets.penguins("polars"), _provenance(self))


def _provenance(item: Entry) -> dict[str, Any]:
    return {"source": item.name, "upstream": [], "citation": item.citation, "notes": list(item.notes)}


def shuffled(n: int, seed: int) -> np.ndarray:
    """The numbers 0 … n−1 in the order of Python 2's ``random.shuffle``, which made published splits."""
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
    """The end of a sentence: the nearest known name, and all known names."""
    close = difflib.get_close_matches(name.lower(), known or entries(), n=1)
    return "".join(f": did you mean {c!r}?" for c in close) + f" (known: {', '.join(known or entries())})"


def entry(name: str, known: Known = None) -> Entry:
    """The data set of that name; a ValueError suggests the nearest one.

    Args:
        name: A name, perhaps with a variant such as ``"red_wine/3"``.
        known: The data sets by name; None takes `entries`.
    """
    base, _, variant = name.partition("/")
    item = (known or entries()).get(base)
    if item is None:
        raise ValueError(f"unknown data set {name!r}{_suggestion(base, known)}")
    if name != base and variant not in filter(None, item.variants):
        variants = ", ".join(f"{base}/{variant}" for variant in item.variants if variant)
        expected = f"expected one of {variants}" if variants else f"{base!r} has no folds"
        raise ValueError(f"there is no {name!r}: {expected}")
    return item


def is_registered(data: str, known: Known = None) -> bool:
    """Whether a word means a registered data set rather than a file in a folder of that name."""
    base, slash, variant = data.partition("/")
    item = (known or entries()).get(base)
    if item is None:
        return False
    return not slash or (variant != "" and variant in item.variants) or not Path(data).exists()


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
        folded = ", ".join(other for other, item in known.items() if fold_names(item))
        raise ValueError(f"data set {name!r} has no folds; those with folds are: {folded or 'none'}")
    base = name.partition("/")[0]
    return [load(f"{base}/{number}", data_dir, **options) for number in numbers]


def resolve(
    data: Place, data_dir: Folder = None, *, frames: bool = False, missing: Words = None, **options: Any
) -> Dataset:
    """Return the data set that a name or a file stands for.

    Args:
        data: A registered name, as in `load`, which has precedence over a file (write ``./adult`` for a file
            of that name); a file (see `pynade.tables.read_file`); images, as a folder of PNG files or an
            ``.npy`` stack (see `pynade.tables.images`); or ``NAME:FOLDER``, for a registered reader.
        frames: Return polars frames; columns of a table file may then be of any type.
        missing: As in `pynade.tables.files.read_frame`.
        data_dir: As in `load`.
        **options: As in `load`.
    """
    if not isinstance(data, str | os.PathLike):
        raise TypeError(f"expected a data set's name or a file, but got {type(data).__name__}")
    name, known = data if isinstance(data, str) else "", options.get("known")
    path = Path(os.path.expanduser(data))  # (that of pathlib has a RuntimeError for a file called ~)
    kind, _, folder = name.partition(":")
    readers = [*entry_points(group="pynade.readers", name=kind)] if folder else []
    if is_registered(name, known):
        dataset = load(name, data_dir, **options)
    elif readers:
        dataset = readers[0].load()(folder)
    elif path.exists():
        dataset = images_dataset(path) if is_images(path) else dataset_from_file(path, frames, missing)
    elif not name:
        raise FileNotFoundError(f"there is no file {path}")
    else:
        suggestion = _suggestion(name, known)
        raise ValueError(f"no file {name!r} exists, and it is no registered data set{suggestion}")
    return dataset.as_frames() if frames else dataset
