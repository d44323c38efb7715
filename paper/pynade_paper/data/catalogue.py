"""The entry of a named data set: where it is published, how it is stored and checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pynade.tables.dataset import Dataset, Kind
from pynade.tables.registry import Progress, data_directory
from pynade_paper.data.convert import Converter


@dataclass(frozen=True)
class Upstream:
    """A published file."""

    address: str
    sha256: str | None = None  # if it is known


@dataclass(frozen=True, eq=False)
class Form:
    """How a data set is stored that is not a table of packed bits: its file, and how it is read."""

    # paths of the prepared file in the data directory: the first that exists is read, the last is written
    files: tuple[str, ...]
    read: Callable[[Path, str], Dataset]  # makes the data set from the prepared file and a variant
    check: Callable[[Path], object]  # raises ValueError if a file is not the expected one
    # makes the prepared file from the published ones; None if nothing is published
    write: Callable[[Sequence[Path], Path], object] | None = None
    # what may follow the name after a slash, such as the number of a fold; the name alone means the first
    variants: tuple[str, ...] = ("",)


@dataclass(frozen=True, eq=False)
class Entry:
    """A named data set: of zeros and ones with a `convert`, stored as packed bits; others have a `form`."""

    name: str  # also of its prepared file
    title: str  # one line about it
    D: int  # number of variables
    sizes: Mapping[str, int]  # rows of each part of the loaded data set (of the first fold, if any)
    citation: str  # where it comes from, and its licence as far as one is stated
    upstream: tuple[Upstream, ...]  # the published files, in the order the converter expects
    convert: Converter | None = None  # makes the parts from the published files
    # digests that every copy must match, of parts or of parts together ("train+valid")
    content: Mapping[str, str] = field(default_factory=dict)
    # digests of a train part, where more than one partition is in use, and a note on each
    partitions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what a user should know; part of the provenance of the loaded data set
    image_shape: tuple[int, ...] | None = None  # of a row seen as an image
    stored: Mapping[str, int] | None = None  # rows in the prepared file, where it is cut differently
    kind: Kind = "binary"  # what every column holds
    form: Form | None = None  # how the set is stored, if not as packed bits
    by_hand: str = ""  # what to do where nothing can be downloaded, as the end of a sentence

    def __post_init__(self) -> None:
        if (self.convert is None) == (self.form is None):
            raise ValueError(f"data set {self.name!r} needs either a converter or a form")

    @property
    def stored_sizes(self) -> Mapping[str, int]:
        """Rows of each part in the prepared file."""
        return self.sizes if self.stored is None else self.stored

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the prepared file in the data directory, see `Form`."""
        return (f"binary/{self.name}.npz",) if self.form is None else self.form.files

    @property
    def variants(self) -> tuple[str, ...]:
        """What may follow the name after a slash; the name alone means the first."""
        return ("",) if self.form is None else self.form.variants

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the files are published."""
        return tuple(file.address for file in self.upstream)

    def path(self, data_dir: str | os.PathLike[str] | None = None) -> Path:
        """Path of the prepared file: the first of `files` that exists, or else the last."""
        places = [data_directory(data_dir) / file for file in self.files]
        return next((place for place in places if place.exists()), places[-1])

    def here(self, data_dir: str | os.PathLike[str] | None = None) -> bool:
        """Whether the prepared file is in the data directory."""
        return self.path(data_dir).is_file()

    def load(
        self,
        variant: str = "",
        data_dir: str | os.PathLike[str] | None = None,
        download: bool = True,
        progress: Progress | None = None,
    ) -> Dataset:
        """Load it, preparing its file from the published ones the first time (see `pynade.tables.load`)."""
        from pynade_paper.data.loading import load_entry

        return load_entry(self, data_dir, download, progress, variant)
