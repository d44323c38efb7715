"""Sources of rows that have places, such as patches of images: uniform draws, and a fixed sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Generator, Tensor

#: Rows made at a time, so that index tensors stay small.
CHUNK = 1 << 16


@dataclass(frozen=True, eq=False)
class Places(ABC):
    """What sources of rows share (see `pynade.tables.dataset.RowSource`): places, numbered from 0.

    Everything happens on one device, with shapes that depend on the number of rows alone.
    """

    ends: Tensor  # number of places in each image or recording and those before it
    n_places: int  # altogether

    def to(self, device: torch.device | str) -> Self:
        """Return the source on another device."""
        moved: dict[str, Any] = {n: t.to(device) for n, t in vars(self).items() if isinstance(t, Tensor)}
        return replace(self, **moved)

    @property
    @abstractmethod
    def n_variables(self) -> int:
        """Number of columns of a row."""

    @abstractmethod
    def rows(self, places: Tensor, generator: Generator) -> Tensor:
        """Return the rows at places, (n, n_variables) float32; the generator is for their noise."""

    def draw(self, n: int, generator: Generator) -> Tensor:
        """Return ``n`` rows at places uniform over all there are, (n, n_variables) float32."""
        return self.rows(self.places(n, generator), generator)

    def places(self, n: int, generator: Generator) -> Tensor:
        """Return ``n`` places, uniform over all there are."""
        return uniform_places(n, self.n_places, generator, self.ends.device)

    def origin(self, places: Tensor) -> Tensor:
        """Return the number, from 0, of the image or recording that each place is in."""
        return torch.searchsorted(self.ends, places, right=True)


def uniform_places(n: int, total: int, generator: Generator, device: torch.device) -> Tensor:
    """Return ``n`` whole numbers, uniform over 0 … total−1, without waiting for the device.

    A double has 53 random bits, which leaves no bias worth the name; 32 bits modulo some ten million places
    would favour the first of them by almost one per cent.

    Example:
        >>> uniform_places(4, 10, torch.Generator().manual_seed(0), torch.device("cpu")).shape
        torch.Size([4])
    """
    u = torch.rand(n, generator=generator, dtype=torch.float64, device=device)
    return (u * total).long().clamp_(max=total - 1)  # rounding may reach the end


def fixed_rows(source: Places, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of a source that is on the CPU, the same for the same seed, and their `Places.origin`.

    Example:
        >>> from pynade_paper.data.patches import Patches
        >>> source = Patches.of([np.zeros((9, 9), dtype=np.uint8)])
        >>> rows, images = fixed_rows(source, 3, seed=0)
        >>> rows.shape, images.tolist()
        ((3, 63), [0, 0, 0])
    """
    generator = torch.Generator().manual_seed(seed)
    rows, origins = np.empty((n, source.n_variables), dtype=np.float32), np.empty(n, dtype=np.int64)
    for start in range(0, n, CHUNK):
        places = source.places(min(CHUNK, n - start), generator)
        rows[start : start + CHUNK] = source.rows(places, generator).numpy()
        origins[start : start + CHUNK] = source.origin(places).numpy()
    return rows, origins
