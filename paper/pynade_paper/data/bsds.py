"""BSDS300: patches of 8 × 8 pixels from Berkeley's 300 photographs."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pynade.tables.dataset import Dataset, Schema
from pynade_paper.data.digests import read_tar

#: How many of the training images are kept for validation, and the seed that chooses them.
N_VALID_IMAGES, SPLIT_SEED = 20, 0

#: Rows of the fixed parts, and the seeds they are drawn with.
ROWS = {"train": 200_000, "valid": 10_000, "test": 1_000_000}
SEEDS = {"train": 0, "valid": 1, "test": 2}

#: The variant that trains on all 200 images, as Zoran and Weiss did.
ALL_IMAGES = "all"


def grey(colours: np.ndarray) -> np.ndarray:
    """Return the grey image of a colour image: (299 R + 587 G + 114 B + 500) // 1000.

    Example:
        >>> grey(np.array([[[255, 255, 255], [255, 0, 0]]], dtype=np.uint8)).tolist()
        [[255, 76]]
    """
    weighted = colours.astype(np.uint32) @ np.array([299, 587, 114], dtype=np.uint32)
    return ((weighted + 500) // 1000).astype(np.uint8)


def read_images(path: Path) -> dict[str, dict[int, np.ndarray]]:
    """Return the grey images of the prepared tar archive, by part (``train``, ``test``) and by number."""
    from PIL import Image

    parts: dict[str, dict[int, np.ndarray]] = {"train": {}, "test": {}}
    for name, content in read_tar(path).items():
        found = re.fullmatch(r"(train|test)/(\d+)\.jpg", name)
        if found is None:
            raise ValueError(f"the data file {path} holds {name!r}; expected train/<number>.jpg or test/…")
        try:
            with Image.open(io.BytesIO(content)) as picture:
                colours = np.asarray(picture.convert("RGB"))
        except OSError as error:
            raise ValueError(f"{name} in the data file {path} is no picture ({error})") from error
        parts[found[1]][int(found[2])] = grey(colours)
    return {part: dict(sorted(images.items())) for part, images in parts.items()}


def split_images(numbers: Sequence[int], n_valid: int = N_VALID_IMAGES) -> tuple[list[int], list[int]]:
    """Return the training and the validation images among the training images' numbers, by a fixed seed.

    Example:
        >>> train, valid = split_images(range(200))
        >>> len(train), len(valid)
        (180, 20)
    """
    numbers = sorted(numbers)
    order = np.random.Generator(np.random.PCG64(SPLIT_SEED)).permutation(len(numbers))
    valid = {numbers[i] for i in order[:n_valid]}
    return [number for number in numbers if number not in valid], sorted(valid)


def read_patches(path: Path, variant: str = "") -> Dataset:
    """Return fixed draws of patches as the parts, and a source of fresh training patches.

    With the variant ``"all"`` the validation patches are of images that are also trained on.
    """
    from pynade_paper.data.patches import Patches
    from pynade_paper.data.places import fixed_rows

    images = read_images(path)
    train, valid = split_images(list(images["train"]))
    if variant == ALL_IMAGES:
        train = list(images["train"])
    sources = {
        "train": Patches.of([images["train"][number] for number in train]),
        "valid": Patches.of([images["train"][number] for number in valid]),
        "test": Patches.of(list(images["test"].values())),
    }
    rows, images_of = {}, {}
    for part, source in sources.items():
        rows[part], images_of[part] = fixed_rows(source, ROWS[part], SEEDS[part])
    provenance = {
        "row": (
            "a patch of 8 × 8 grey pixels in raster order, plus uniform noise in [0, 1), divided by 256,"
            " mean of the patch removed, last pixel dropped"
        ),
        "licence": "non-commercial research and education",
        "images": {"train": len(train), "valid": len(valid), "test": len(images["test"])},
        "valid_images": valid,
        "valid_images_are_trained_on": variant == ALL_IMAGES,
        "split_seed": SPLIT_SEED,
        "draw_seeds": SEEDS,
    }
    schema = Schema.uniform("real", sources["train"].n_variables)
    parts = rows["train"], rows["valid"], rows["test"]
    groups: dict[str, Any] = {"test_groups": images_of["test"], "grouped_by": "image"}
    return Dataset("bsds300", *parts, schema, provenance, source=sources["train"], **groups)


def write_archive(files: Sequence[Path], path: Path) -> None:
    """Make the prepared archive from Berkeley's ``BSDS300-images.tgz``: its pictures, under shorter names."""
    published = {
        found[1]: content
        for name, content in read_tar(files[0]).items()
        if (found := re.search(r"(?:^|/)images/((?:train|test)/\d+\.jpg)$", name))
    }
    with tarfile.open(path, "w") as archive:
        for name in sorted(published):
            member = tarfile.TarInfo(name)
            member.size = len(published[name])
            archive.addfile(member, io.BytesIO(published[name]))
