"""Named data sets: list them, and load them from the data directory or from where they are published."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pynade.data.convert import cut, shuffled
from pynade.data.dataset import Dataset
from pynade.data.download import DownloadError, Progress, fetch
from pynade.data.entries import ENTRIES, Entry
from pynade.data.packed import content_digest, pack, read_packed, unpack, write_packed
from pynade.data.schema import Schema

#: The environment variable that says where data sets are kept.
DATA_VARIABLE = "PYNADE_DATA"


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


def entry(name: str) -> Entry:
    """Return what is known of a named data set.

    Raises:
        ValueError: There is no data set of that name; the sentence suggests the nearest.

    Example:
        >>> entry("dna").D
        180
    """
    if name not in ENTRIES:
        raise ValueError(f"unknown data set {name!r}: {suggestion(name)}")
    return ENTRIES[name]


def data_directory(path: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder where data sets are kept; it need not exist yet.

    Args:
        path: The folder, if the caller knows it. Otherwise it is the environment variable ``PYNADE_DATA``,
            and failing that the user's cache folder.

    Example:
        >>> data_directory("somewhere").name
        'somewhere'
    """
    chosen = path or os.environ.get(DATA_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    import pooch

    return Path(pooch.os_cache("pynade"))


def prepared_path(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return where the prepared file of a data set is, or would be.

    Example:
        >>> prepared_path("dna", "somewhere").as_posix()
        'somewhere/binary/dna.npz'
    """
    return data_directory(data_dir) / "binary" / f"{name}.npz"


def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    progress: Progress | None = None,
) -> Dataset:
    """Load a named data set, downloading it the first time.

    Args:
        name: One of `names`.
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
    return load_entry(entry(name), data_dir, download, progress)


def load_entry(
    item: Entry,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    progress: Progress | None = None,
) -> Dataset:
    """Load the data set an entry describes: as `load`, for entries that are not registered.

    Example:
        >>> load_entry(entry("digits")).image_shape
        (8, 8)
    """
    provenance = {
        "source": item.name,
        "upstream": [file.address for file in item.upstream],
        "citation": item.citation,
        "notes": list(item.notes),
    }
    if item.bundled:
        packed = {part: pack(rows) for part, rows in item.convert((), item.D, item.sizes).items()}
        _verify(item, packed, item.D)
    else:
        path = prepared_path(item.name, data_dir)
        if not path.exists():
            _prepare(item, path, download, progress)
        packed, n_features = read_packed(path)
        try:
            _verify(item, packed, n_features)
        except ValueError as error:
            raise ValueError(f"the data file {path} is not data set {item.name!r}: {error}") from error
        provenance |= {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
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


def _prepare(item: Entry, path: Path, download: bool, progress: Progress | None) -> None:
    """Download the published files, convert them and write the prepared file."""
    trap = ""
    if item.name == "rcv1" and path.with_name("rcv1_valid_only.npz").exists():
        trap = (
            "; the file rcv1_valid_only.npz beside it is its validation part alone, which loads as"
            " 'rcv1_valid_only' and is not comparable"
        )
    if not download:
        raise FileNotFoundError(
            f"data set {item.name!r} is not at {path}; run `pynade data get {item.name}` to download it{trap}"
        )
    folder = path.parent.parent / "upstream" / item.name
    try:
        files = [fetch(file.address, folder, file.sha256, progress) for file in item.upstream]
    except DownloadError as error:
        raise DownloadError(f"data set {item.name!r} is not at {path}, and {error}{trap}") from error
    try:
        packed = {part: pack(rows) for part, rows in item.convert(files, item.D, item.stored_sizes).items()}
        _verify(item, packed, item.D)
    except ValueError as error:
        for file in files:  # out of the way of the next try, but not lost
            file.replace(file.with_name(file.name + ".rejected"))
        raise DownloadError(
            f"the published files of data set {item.name!r} are not those expected: {error};"
            f" they were renamed to *.rejected in {folder}"
        ) from error
    try:
        write_packed(path, packed, item.D)
    except OSError as error:
        raise DownloadError(f"cannot write {path}: {error.strerror or error}") from error


def _verify(item: Entry, packed: Mapping[str, np.ndarray], n_features: int) -> None:
    """Raise ValueError unless the packed parts have the sizes and the content the entry says."""
    if n_features != item.D:
        raise ValueError(f"expected {item.D} columns, but {n_features} were found")
    sizes = {part: len(rows) for part, rows in packed.items()}
    if sizes != dict(item.stored_sizes):
        raise ValueError(f"expected the rows {dict(item.stored_sizes)}, but {sizes} were found")
    width = -(-n_features // 8)
    for key, expected in item.content.items():
        rows = [packed[part] for part in key.split("+")]
        if any(part.shape[1] != width for part in rows) or content_digest(rows, n_features) != expected:
            raise ValueError(f"the rows of {key} are not the recorded ones")
