"""The named data sets of the paper: the binary ones from `binary.toml`, then those of `real_entries`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from pynade_paper.data import convert
from pynade_paper.data.catalogue import Entry, Upstream
from pynade_paper.data.real_entries import REAL_ENTRIES


def binary_entries() -> list[Entry]:
    """The entries of `binary.toml`."""
    content = tomllib.loads(files("pynade_paper.data").joinpath("binary.toml").read_text("utf-8"))
    return [_entry(**fields) for fields in content["entry"]]


def _entry(
    sizes: list[int],
    upstream: list[dict[str, str]],
    convert: str,
    notes: tuple[str, ...] = (),
    image_shape: list[int] | None = None,
    **fields: Any,
) -> Entry:
    return Entry(
        sizes=dict(zip(("train", "valid", "test"), sizes, strict=True)),
        upstream=tuple(Upstream(**file) for file in upstream),
        convert=CONVERTERS[convert],
        notes=tuple(notes),
        image_shape=None if image_shape is None else tuple(image_shape),
        **fields,
    )


CONVERTERS: Mapping[str, convert.Converter] = {
    function.__name__: function
    for function in (
        convert.amat_parts,
        convert.amat_parts_with_target,
        convert.letters_parts,
        convert.libsvm_parts,
    )
}

#: All by name.
ENTRIES: Mapping[str, Entry] = {entry.name: entry for entry in (*binary_entries(), *REAL_ENTRIES)}
