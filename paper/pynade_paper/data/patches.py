"""Small patches of grey images, drawn at random places: the paper's section on natural image patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Generator, Tensor

from pynade_paper.data.places import Places

#: Side of the paper's patches, in pixels.
SIZE = 8

#: Grey values run from 0 to 255; with a noise below 1 added, division by this gives values in [0, 1).
LEVELS = 256


@dataclass(frozen=True, eq=False)
class Patches(Places):
    """A source of patches from a set of grey images, in which an image counts by its number of places.

    A row is a patch of ``size × size`` pixels, plus noise uniform in [0, 1) on every pixel, divided by 256,
    less the mean of the patch, in raster order and without its last pixel, which the others determine.

    Example:
        >>> image = np.arange(20 * 30).reshape(20, 30).astype(np.uint8)
        >>> source = Patches.of([image, image.T])
        >>> source.n_variables, source.n_places
        (63, 598)
        >>> source.draw(5, torch.Generator().manual_seed(0)).shape
        torch.Size([5, 63])
    """

    pixels: Tensor  # of all images, one image after the other, row by row; uint8
    offsets: Tensor  # where each image begins in `pixels`
    heights: Tensor  # rows of each image
    widths: Tensor  # columns of each image
    size: int = SIZE  # side of a patch

    @classmethod
    def of(cls, images: Sequence[np.ndarray], size: int = SIZE) -> Self:
        """Return a source of patches of grey images, 2-D uint8, of any shapes not smaller than a patch."""
        if len(images) == 0:
            raise ValueError("patches need at least one image, but none was given")
        for number, image in enumerate(images):
            if image.ndim != 2 or image.dtype != np.uint8 or min(image.shape) < size:
                raise ValueError(
                    f"image {number} has shape {image.shape} and type {image.dtype};"
                    f" expected a grey uint8 image of at least {size} × {size} pixels"
                )
        heights, widths = np.array([image.shape for image in images], dtype=np.int64).T.copy()
        areas = heights * widths
        ends = np.cumsum((heights - size + 1) * (widths - size + 1))
        pixels = np.concatenate([image.reshape(-1) for image in images])
        arrays = {"pixels": pixels, "offsets": np.cumsum(areas) - areas, "heights": heights, "widths": widths}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return cls(torch.from_numpy(ends), int(ends[-1]), **tensors, size=size)

    @property
    def n_variables(self) -> int:
        """Number of columns of a row: all pixels of a patch but the last."""
        return self.size**2 - 1

    def rows(self, places: Tensor, generator: Generator) -> Tensor:
        """Return the patches at places as rows, (n, size² − 1) float32."""
        grey = self.at(places)
        noise = torch.rand(len(places), self.size**2, generator=generator, device=grey.device)
        values = noise.add_(grey).div_(LEVELS)
        return (values - values.mean(dim=1, keepdim=True))[:, :-1].contiguous()

    def at(self, places: Tensor) -> Tensor:
        """Return the grey values of whole patches, (n, size²) uint8, at places row by row, image after image.

        Example:
            >>> source = Patches.of([np.arange(12, dtype=np.uint8).reshape(3, 4)], size=2)
            >>> source.at(torch.tensor([0, 5])).tolist()
            [[0, 1, 4, 5], [6, 7, 10, 11]]
        """
        image = self.origin(places)
        width = self.widths[image]
        columns = width - self.size + 1
        before = (self.heights[image] - self.size + 1) * columns
        place = places - (self.ends[image] - before)
        corner = self.offsets[image] + place // columns * width + place % columns
        step = torch.arange(self.size, device=places.device)
        index = (corner[:, None] + step * width[:, None])[:, :, None] + step
        return self.pixels[index.flatten(1)]


def whole_patches(rows: np.ndarray | Tensor) -> np.ndarray:
    """Put the last pixel back: patches of mean zero, shape (N, size, size), from rows of size² − 1 columns.

    Example:
        >>> whole_patches(np.array([[1.0, 2.0, -4.0]])).tolist()
        [[[1.0, 2.0], [-4.0, 1.0]]]
    """
    rows = np.asarray(rows)
    size = round((rows.shape[1] + 1) ** 0.5)
    if size**2 != rows.shape[1] + 1:
        raise ValueError(f"expected rows of size² − 1 columns, such as 63, but {rows.shape[1]} were given")
    last = -rows.sum(axis=1, keepdims=True)
    return np.concatenate([rows, last], axis=1).reshape(-1, size, size)
