"""Named data sets: list them, and load them from the data directory or from where they are published."""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pynade.data.catalogue import Entry
from pynade.data.convert import cut, shuffled
from pynade.data.dataset import Dataset
from pynade.data.digests import file_digest
from pynade.data.download import Progress
from pynade.data.entries import ENTRIES
from pynade.data.folder import data_directory
from pynade.data.packed import content_digest, read_packed, unpack
from pynade.data.prepare import packed_parts, prepare, verify
from pynade.data.schema import Schema


def names() -> list[str]:
    """Return the names of all registered data sets.

    Example:
        >>> "adult" in names()
        True
    """
    return list(ENTRIES)


def suggestion(name: str) -> str:
    """Return the words that help somebody who wrote an unknown name.

    Example:
        >>> suggestion("mushroms")[:27]
        "did you mean 'mushrooms'? ("
    """
    close = difflib.get_close_matches(name.lower(), names(), n=1)
    return (f"did you mean {close[0]!r}? " if close else "") + f"(known: {', '.join(names())})"


def split_name(name: str) -> tuple[str, str]:
    """Return the name of a data set, and what follows it after a slash.

    Example:
        >>> split_name("red_wine/3"), split_name("adult")
        (('red_wine', '3'), ('adult', ''))
    """
    base, _, variant = name.partition("/")
    return base, variant


def entry(name: str) -> Entry:
    """Return what is known of a named data set, or of a variant of it such as ``"red_wine/3"``.

    Raises:
        ValueError: There is no data set of that name (the sentence suggests the nearest), or no such variant.

    Example:
        >>> entry("dna").D
        180
    """
    base, variant = split_name(name)
    if base not in ENTRIES:
        raise ValueError(f"unknown data set {name!r}: {suggestion(base)}")
    item = ENTRIES[base]
    if name != base and variant not in filter(None, item.variants):
        known = ", ".join(f"{base}/{other}" for other in item.variants if other)
        raise ValueError(
            f"there is no {name!r}: " + (f"expected one of {known}" if known else f"{base!r} has no folds")
        )
    return item


def is_registered(data: str) -> bool:
    """Return whether a word means a registered data set rather than a file.

    A name wins over a file, but a folder may have the name of a data set, and files in it.

    Example:
        >>> is_registered("red_wine"), is_registered("red_wine/3"), is_registered("./red_wine")
        (True, True, False)
    """
    base, variant = split_name(data)
    if base not in ENTRIES:
        return False
    return data == base or variant in filter(None, ENTRIES[base].variants) or not Path(data).exists()


def prepared_path(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return where the prepared file of a data set is, or would be.

    Example:
        >>> prepared_path("dna", "somewhere").as_posix()
        'somewhere/binary/dna.npz'
    """
    base, _ = split_name(name)
    files = ENTRIES[base].files if base in ENTRIES else (f"binary/{base}.npz",)
    return _first_of(files, data_dir)


def _first_of(files: tuple[str, ...], data_dir: str | os.PathLike[str] | None) -> Path:
    """Return the first file that exists in the data directory, or the last of them."""
    places = [data_directory(data_dir) / file for file in files]
    return next((place for place in places if place.exists()), places[-1])


def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    progress: Progress | None = None,
) -> Dataset:
    """Load a named data set, downloading it the first time.

    Args:
        name: One of `names`, perhaps with a variant: ``"red_wine/3"`` is the third fold of red wine, and
            ``"red_wine"`` the first.
        data_dir: Folder of the data sets, see `data_directory`.
        download: Whether the published files may be downloaded if there is no prepared file yet.
        progress: Called as ``progress(done_bytes, total_bytes, file_name)`` during a download.

    Raises:
        ValueError: The name is unknown, or the prepared file is damaged.
        FileNotFoundError: There is no prepared file, and ``download`` is False.
        DownloadError: The published files could not be had or are not those expected.

    Example:
        >>> load("digits").sizes
        {'train': 1197, 'valid': 300, 'test': 300}
    """
    return load_entry(entry(name), data_dir, download, progress, split_name(name)[1])


def folds(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    progress: Progress | None = None,
) -> list[Dataset]:
    """Load all folds of a data set, in order.

    Each is a data set of its own: ``train`` and ``valid`` are the 90 % of the rows to learn from,
    ``test`` the others. See `pynade.data.uci` for how they are cut and normalised.

    Args:
        name: The name of a data set with folds: ``red_wine``, ``white_wine`` or ``parkinsons``.
        data_dir: Folder of the data sets, see `data_directory`.
        download: Whether the published files may be downloaded, as in `load`.
        progress: As in `load`.

    Raises:
        ValueError: The data set has no folds.

    Example:
        >>> try:
        ...     folds("digits")
        ... except ValueError as error:
        ...     print(error)
        data set 'digits' has no folds; those with folds are: red_wine, white_wine, parkinsons
    """
    item = entry(name)
    if not item.folds:
        known = ", ".join(other.name for other in ENTRIES.values() if other.folds)
        raise ValueError(f"data set {name!r} has no folds; those with folds are: {known}")
    return [load_entry(item, data_dir, download, progress, fold) for fold in item.folds]


def load_entry(
    item: Entry,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    progress: Progress | None = None,
    variant: str = "",
) -> Dataset:
    """Load the data set an entry describes: as `load`, for entries that are not registered.

    Example:
        >>> load_entry(entry("digits")).image_shape
        (8, 8)
    """
    provenance: dict[str, Any] = {
        "source": item.name,
        "upstream": [file.address for file in item.upstream],
        "citation": item.citation,
        "notes": list(item.notes),
    }
    path = _first_of(item.files, data_dir)
    if not item.bundled:
        if not path.exists():
            prepare(item, path, download, progress)
        provenance |= {"file": path.name, "sha256": file_digest(path)}
    if item.form is None:
        return _packed_dataset(item, path, provenance)
    try:
        item.form.check(path)
    except ValueError as error:
        raise ValueError(f"the data file {path} is not data set {item.name!r}: {error}") from error
    variant = variant or item.form.variants[0]
    dataset = item.form.read(path, variant)
    name = f"{item.name}/{variant}" if variant else item.name
    return replace(dataset, name=name, provenance=provenance | dataset.provenance)


def _packed_dataset(item: Entry, path: Path, provenance: dict[str, Any]) -> Dataset:
    """Return a data set of zeros and ones, from its file of packed bits or from an installed package."""
    if item.bundled:
        packed = packed_parts(item, [])
    else:
        packed, n_features = read_packed(path)
        try:
            verify(item, packed, n_features)
        except ValueError as error:
            raise ValueError(f"the data file {path} is not data set {item.name!r}: {error}") from error
    if item.partitions:
        other = f"train and valid as in the files at {item.upstream[0].address.rsplit('/', 1)[0]}"
        provenance["partition"] = item.partitions.get(content_digest([packed["train"]], item.D), other)
    if item.stored is not None:
        rows = np.concatenate(list(packed.values()))
        packed = cut(rows[shuffled(len(rows), seed=0)], item.sizes)
    parts = {part: unpack(rows, item.D) for part, rows in packed.items()}
    return Dataset(
        item.name,
        parts["train"],
        parts.get("valid"),
        parts.get("test"),
        Schema.binary(item.D),
        provenance,
        item.image_shape,
    )
