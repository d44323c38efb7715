"""The prepared file of a data set: made once from the published files, and checked before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from pynade.atomic import write_atomically
from pynade.tables.registry import Progress
from pynade_paper.data.catalogue import Entry, Form
from pynade_paper.data.download import DownloadError, fetch
from pynade_paper.data.packed import content_digest, pack, write_packed


def prepare(item: Entry, path: Path, download: bool, progress: Progress | None) -> None:
    """Download the published files, convert them and write the prepared file."""
    hint = ""
    if item.name == "rcv1" and path.with_name("rcv1_valid_only.npz").exists():
        hint = (
            "; the file rcv1_valid_only.npz beside it is its validation part alone, which loads as"
            " 'rcv1_valid_only' and is not comparable"
        )
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
            write_packed(path, packed_parts(item, files), item.D)
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


def packed_parts(item: Entry, files: list[Path]) -> dict[str, np.ndarray]:
    """Make the packed parts from published files, or from an installed package, and verify them."""
    assert item.convert is not None
    packed = {part: pack(rows) for part, rows in item.convert(files, item.D, item.stored_sizes).items()}
    verify(item, packed, item.D)
    return packed


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
