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
    """A published file: its address, and its SHA-256 if it is known.

    Example:
        >>> Upstream("https://example.org/a5a").sha256 is None
        True
    """

    address: str
    sha256: str | None = None


@dataclass(frozen=True, eq=False)
class Form:
    """How a data set is stored that is not a table of packed bits: its file, and how it is read.

    Attributes:
        files: Paths of the prepared file in the data directory. The first that exists is read; downloads
            are written to the last, and users put their copies there.
        read: Makes the data set from the prepared file and a variant.
        check: Raises ValueError if a file is not the expected one.
        write: Makes the prepared file from the published ones; None if nothing is published.
        variants: What may follow the name after a slash, such as the number of a fold; the name alone means
            the first.

    Example:
        >>> form = Form(("toy/rows.csv",), lambda path, variant: None, lambda path: None)
        >>> form.variants
        ('',)
    """

    files: tuple[str, ...]
    read: Callable[[Path, str], Dataset]
    check: Callable[[Path], object]
    write: Callable[[Sequence[Path], Path], object] | None = None
    variants: tuple[str, ...] = ("",)


@dataclass(frozen=True, eq=False)
class Entry:
    """A named data set.

    A set of zeros and ones has a ``convert`` and is stored as packed bits; any other has a ``form``.

    Attributes:
        name: Its name, which is also the name of its prepared file.
        title: One line about it.
        D: Number of variables.
        sizes: Rows of each part of the loaded data set (of the first fold, where there are folds).
        citation: Where it comes from, and its licence as far as one is stated.
        upstream: The published files, in the order the converter expects.
        convert: Makes the parts from the published files.
        content: Order-free digests (see `packed.content_digest`) of parts, or of parts together
            (``"train+valid"``), that every copy must match.
        partitions: Digests of a train part, where more than one partition is in use, and a note on each.
        notes: What a user should know; part of the provenance of the loaded data set.
        image_shape: Shape of a row seen as an image.
        stored: Rows of each part in the prepared file, where it is cut differently from ``sizes``.
        kind: What every column holds.
        form: How the set is stored, if not as packed bits.
        by_hand: What to do where nothing can be downloaded, as the end of a sentence.
    """

    name: str
    title: str
    D: int
    sizes: Mapping[str, int]
    citation: str
    upstream: tuple[Upstream, ...]
    convert: Converter | None = None
    content: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    image_shape: tuple[int, ...] | None = None
    stored: Mapping[str, int] | None = None
    kind: Kind = "binary"
    form: Form | None = None
    by_hand: str = ""

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
