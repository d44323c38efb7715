"""Drawing from a source of rows: uniform places, and a fixed sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pynade.tables.dataset import RowSource

if TYPE_CHECKING:
    import torch

#: Rows drawn at a time when a fixed sample is made, so that index tensors stay small.
CHUNK = 1 << 16


def uniform_places(n: int, total: int, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """Return ``n`` whole numbers, uniform over 0 … total−1, without waiting for the device.

    A double has 53 random bits, which leaves no bias worth the name; 32 bits modulo some ten million places
    would favour the first of them by almost one per cent.

    Example:
        >>> import torch
        >>> uniform_places(4, 10, torch.Generator().manual_seed(0), torch.device("cpu")).shape
        torch.Size([4])
    """
    import torch

    u = torch.rand(n, generator=generator, dtype=torch.float64, device=device)
    return (u * total).long().clamp_(max=total - 1)  # rounding may reach the end


def fixed_rows(source: RowSource, n: int, seed: int) -> np.ndarray:
    """Return rows of a source that is on the CPU, the same for the same seed.

    Example:
        >>> from pynade_paper.data.patches import Patches
        >>> source = Patches.of([np.zeros((9, 9), dtype=np.uint8)])
        >>> fixed_rows(source, 3, seed=0).shape
        (3, 63)
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    rows = np.empty((n, source.n_variables), dtype=np.float32)
    for start in range(0, n, CHUNK):
        rows[start : start + CHUNK] = source.draw(min(CHUNK, n - start), generator).numpy()
    return rows
