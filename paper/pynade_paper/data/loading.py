"""Loading a data set of the paper from its prepared file, which is made from the published files once."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pynade.tables.dataset import Dataset, Schema
from pynade.tables.registry import Progress, shuffled
from pynade_paper.data.catalogue import Entry
from pynade_paper.data.convert import cut
from pynade_paper.data.digests import file_digest
from pynade_paper.data.packed import content_digest, read_packed, unpack
from pynade_paper.data.prepare import prepare, verify


def load_entry(
    item: Entry,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    progress: Progress | None = None,
    variant: str = "",
) -> Dataset:
    """Load the data set of an entry; the arguments are those of `pynade.tables.load`."""
    provenance: dict[str, Any] = {
        "source": item.name,
        "upstream": list(item.addresses),
        "citation": item.citation,
        "notes": list(item.notes),
    }
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
