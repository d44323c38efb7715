"""Loading a data set of the paper from its prepared file, which is made from the published files once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pynade.atomic import write_atomically
from pynade.tables.dataset import Dataset, Schema
from pynade.tables.registry import Progress, shuffled
from pynade_paper.data.catalogue import Entry, Form
from pynade_paper.data.convert import cut
from pynade_paper.data.digests import file_digest
from pynade_paper.data.download import DownloadError, fetch
from pynade_paper.data.packed import content_digest, pack, read_packed, unpack, write_packed


def load_entry(
    item: Entry,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    progress: Progress | None = None,
    variant: str = "",
) -> Dataset:
    """Load the data set of an entry; the arguments are those of `pynade.tables.load`."""
    provenance: dict[str, Any] = {"source": item.name, "upstream": list(item.addresses)}
    provenance |= {"citation": item.citation, "notes": list(item.notes)}
    path = item.path(data_dir)
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
    """Return a data set of zeros and ones from its file of packed bits."""
    packed, n_features = read_packed(path)
    try:
        verify(item, packed, n_features)
    except ValueError as error:
        raise ValueError(f"the data file {path} is not data set {item.name!r}: {error}") from error
    if item.partitions:
        other = f"train and valid as in the files at {item.upstream[0].address.rsplit('/', 1)[0]}"
        provenance["partition"] = item.partitions.get(content_digest([packed["train"]], item.D), other)
    if item.stored is not None:
        pool = np.concatenate(list(packed.values()))
        packed = cut(pool[shuffled(len(pool), seed=0)], item.sizes)
    parts = {part: unpack(rows, item.D) for part, rows in packed.items()}
    rows = parts["train"], parts.get("valid"), parts.get("test")
    return Dataset(item.name, *rows, Schema.binary(item.D), provenance, item.image_shape)


def prepare(item: Entry, path: Path, download: bool, progress: Progress | None) -> None:
    """Download the published files, convert them and write the prepared file."""
    hint = ""
    if item.name == "rcv1" and path.with_name("rcv1_valid_only.npz").exists():
        hint = "; the file rcv1_valid_only.npz beside it is its validation part alone, which loads as"
        hint += " 'rcv1_valid_only' and is not comparable"
    if item.by_hand:
        raise FileNotFoundError(f"data set {item.name!r} is not at {path}: {item.by_hand}")
    if not download:
        raise FileNotFoundError(
            f"data set {item.name!r} is not at {path}; run `pynade data get {item.name}` to download it{hint}"
        )
    folder = path.parent.parent / "upstream" / item.name
    try:
        files = [fetch(file.address, folder, file.sha256, progress) for file in item.upstream]
    except DownloadError as error:
        raise DownloadError(f"data set {item.name!r} is not at {path}, and {error}{hint}") from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if item.form is not None:
            write_atomically(path, partial(_write_checked, item.form, files))
        else:
            assert item.convert is not None
            rows = item.convert(files, item.D, item.stored_sizes)
            packed = {part: pack(own) for part, own in rows.items()}
            verify(item, packed, item.D)
            write_packed(path, packed, item.D)
    except ValueError as error:
        for file in files:  # so that the next attempt downloads them again
            file.replace(file.with_name(file.name + ".rejected"))
        raise DownloadError(
            f"the published files of data set {item.name!r} are not those expected: {error};"
            f" they were renamed to *.rejected in {folder}"
        ) from error
    except OSError as error:
        raise DownloadError(f"cannot write {path}: {error.strerror or error}") from error


def _write_checked(form: Form, files: list[Path], draft: Path) -> None:
    """Make the prepared file of a form, and check it before it gets its name."""
    assert form.write is not None
    form.write(files, draft)
    form.check(draft)


def verify(item: Entry, packed: Mapping[str, np.ndarray], n_features: int) -> None:
    """Raise ValueError unless the packed parts have the sizes and the content of the entry."""
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
