"""Images that users bring: folders of PNG files and ``.npy`` stacks; grey levels made black and white."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pynade.tables.arrays import axes, read_arrays
from pynade.tables.dataset import PARTS, Dataset, Schema

LEVELS = 256  # grey levels of an 8-bit image
MOST_PIXELS = 4096 * 4096  # of a PNG file; every pixel is a variable


def is_images(path: Path) -> bool:
    """Whether this is a folder, or an ``.npy`` file with three or four axes."""
    # (reading a damaged file as a table says what is wrong with it)
    return path.is_dir() or (path.suffix.lower() == ".npy" and axes(path) > 2)


def images_dataset(path: str | Path) -> Dataset:
    """Read images as rows, in the order (channels, height, width).

    Where every pixel is black or white they are zeros and ones, else grey levels 0 … 255 (see `binarized`).

    Args:
        path: A folder of PNG files of one size, taken in the order of their names, or with such files in
            sub-folders ``train``, ``valid`` and ``test``; or an ``.npy`` file of shape (N, H, W) or
            (N, H, W, C), with whole numbers 0 … 255 or shares of white from 0 to 1 (rounded to 256 levels).
    """
    path = Path(path)
    folders = {part: path / part for part in PARTS if (path / part).is_dir()} or {"train": path}
    if "train" not in folders:
        raise ValueError(f"{path} has the folders {', '.join(folders)}, but no folder train")
    read = _read_pngs if path.is_dir() else _read_stack
    stacks = {part: read(folder) for part, folder in folders.items()}
    shapes = {stack.shape[1:] for stack in stacks.values()}
    if len(shapes) > 1:
        raise ValueError(f"the parts of {path} differ in the size of their images: {sorted(shapes)}")
    height, width, *colours = shapes.pop()
    binary = all(np.isin(stack, (0, LEVELS - 1)).all() for stack in stacks.values())
    parts: dict[str, Any] = dict.fromkeys(PARTS)
    for part, stack in stacks.items():
        rows = np.moveaxis(stack, 3, 1) if colours else stack
        parts[part] = np.ascontiguousarray(rows.reshape(len(rows), -1)) // (LEVELS - 1 if binary else 1)
    schema = Schema.uniform("binary" if binary else "real", parts["train"].shape[1])
    facts: dict[str, Any] = {"source": path.name} | ({} if binary else {"levels": LEVELS})
    shape = (height, width) if colours in ([], [1]) else (*colours, height, width)
    return Dataset(path.stem or "images", **parts, schema=schema, provenance=facts, image_shape=shape)


def is_grey(dataset: Dataset) -> bool:
    """Whether these are images of grey levels 0 … 255."""
    return dataset.image_shape is not None and dataset.provenance.get("levels") == LEVELS


def binarized(dataset: Dataset, rule: float | str | None) -> Dataset:
    """Return images of grey levels as black and white ones; other data are returned as they are.

    Args:
        dataset: The images.
        rule: A number, the share of white above which a pixel becomes 1; or ``"random"``: each pixel becomes
            1 with a probability of its share of white, drawn once with seed 0 (``"random:7"``: 7); None
            leaves grey levels.
    """
    if rule is None:
        return dataset
    rng = None
    if isinstance(rule, str):
        word, _, seed = rule.partition(":")
        if word != "random" or not (seed.isdigit() or rule == "random"):
            raise ValueError(f"binarize is a threshold between 0 and 1, random or random:SEED, not {rule!r}")
        rng = np.random.Generator(np.random.PCG64(int(seed or 0)))
    elif not 0 <= rule < 1:
        raise ValueError(f"the threshold of images is a share of white, from 0 to below 1, not {rule:g}")
    if not is_grey(dataset):
        return dataset
    parts: dict[str, Any] = {}
    for part, rows in dataset.parts.items():
        limits = rng.integers(0, LEVELS - 1, rows.shape, np.uint8) if rng else float(rule) * (LEVELS - 1)
        parts[part] = (rows > limits).astype(np.uint8)
    facts = {k: v for k, v in dataset.provenance.items() if k != "levels"} | {"binarize": rule}
    return replace(dataset, **parts, schema=Schema.binary(dataset.n_variables), provenance=facts, source=None)


def _read_pngs(folder: Path) -> np.ndarray:
    """Grey levels (N, H, W) or colours (N, H, W, 3), 0 … 255, of the images of a folder."""
    from PIL import Image

    files = sorted(f for f in folder.iterdir() if f.suffix.lower() == ".png")
    if not files:
        raise ValueError(f"{folder} holds no tables (CSV or Parquet files) and no images (PNG files)")
    images: list[np.ndarray] = []
    for file in files:
        try:
            with file.open("rb") as stream:
                head = stream.read(24)  # a signature, the name of the first part, width and height
            width, height = (int.from_bytes(head[k : k + 4]) for k in (16, 20))
            if head[12:16] == b"IHDR" and width * height > MOST_PIXELS:
                raise ValueError(f"it has {width} x {height} pixels; expected at most {MOST_PIXELS:,}")
            with Image.open(file) as image:
                if image.mode.startswith("I"):  # 16 bits a pixel; 65535 = 257 * 255
                    images.append(np.rint(np.asarray(image, dtype=np.float64) / 257).astype(np.uint8))
                else:
                    images.append(np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")))
        except Exception as error:  # Pillow has many kinds
            raise ValueError(f"{file} cannot be read as a PNG image ({error})") from None
        if images[-1].shape != images[0].shape:
            sizes = [f"{len(i)}x{i.shape[1]}{' in colour' * (i.ndim == 3)}" for i in (images[0], images[-1])]
            listed = f"{files[0].name} is {sizes[0]}, {file.name} is {sizes[1]}"
            raise ValueError(f"the images of {folder} differ in size: {listed}")
    return np.stack(images)


def _read_stack(path: Path) -> np.ndarray:
    """Grey levels 0 … 255 (0 and 255 of zeros and ones) from a stack of numbers."""
    stack = read_arrays(path)["train"]
    if stack.ndim not in (3, 4) or stack.size == 0:
        raise ValueError(f"{path}: expected images (N, H, W) or (N, H, W, C), found shape {stack.shape}")
    if stack.dtype.kind not in "buif":
        raise ValueError(f"{path}: expected numbers, found values of type {stack.dtype}")
    if not np.isfinite(stack).all():
        raise ValueError(f"{path}: images have no gaps, found NaN or infinite values (give a table (N, D))")
    least, most = stack.min(), stack.max()
    if least >= 0 and most <= 1:  # zeros and ones, or shares of white
        return np.rint(stack.astype(np.float64) * (LEVELS - 1)).astype(np.uint8)
    if least < 0 or most > LEVELS - 1 or (stack.dtype.kind == "f" and (stack != np.rint(stack)).any()):
        expected = f"whole grey levels from 0 to {LEVELS - 1}, or numbers from 0 to 1"
        raise ValueError(f"{path}: expected {expected}, found numbers from {least:g} to {most:g}")
    return stack.astype(np.uint8)
