"""From a name or a path to a data set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from pynade.tables.dataset import Dataset
from pynade.tables.files import dataset_from_file
from pynade.tables.images import images_dataset, is_images
from pynade.tables.registry import Entry, Progress, is_registered, load, suggestion

#: Entry points of this group read the folder after a colon: ``timit:FOLDER``.
READERS = "pynade.readers"


def resolve(
    data: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    progress: Progress | None = None,
    known: Mapping[str, Entry] | None = None,
) -> Dataset:
    """Return the data set that a name or a file stands for.

    Args:
        data: The name of a registered data set, such as ``"adult"`` or ``"red_wine/3"`` (its third fold), or
            a file (see `pynade.tables.read_file`), or images: a folder of PNG files or an ``.npy`` stack (see
            `pynade.tables.images`). A registered name wins over a file of the same name; write
            ``./adult`` for the file. ``NAME:FOLDER`` is read by what a package has
            registered for that name, such as ``timit:FOLDER``.
        data_dir: Folder of the registered data sets.
        download: Whether a registered data set may be downloaded.
        progress: Called during a download, see `pynade.tables.load`.
        known: The registered data sets; those of `pynade.tables.entries` when left out.

    Raises:
        ValueError: It is neither, or the file holds no table of numbers.

    Example:
        >>> resolve("digits").n_variables
        64
    """
    if not isinstance(data, str | os.PathLike):
        raise TypeError(f"expected a data set's name or a file, but got {type(data).__name__}")
    if isinstance(data, str) and is_registered(data, known):
        return load(data, data_dir, download, progress, known)
    if isinstance(data, str) and ":" in data:
        kind, _, folder = data.partition(":")
        for point in entry_points(group=READERS, name=kind):
            dataset: Dataset = point.load()(folder)
            return dataset
    path = Path(data).expanduser()
    if path.exists():
        return images_dataset(path) if is_images(path) else dataset_from_file(path)
    if isinstance(data, str):
        hint = suggestion(data, known)
        raise ValueError(f"no file {data!r} exists, and it is no registered data set: {hint}")
    raise FileNotFoundError(f"there is no file {path}")
