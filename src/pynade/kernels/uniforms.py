"""The randomness of the samplers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pynade.kernels import backends


@dataclass(frozen=True)
class Uniforms:
    """(rows, columns) uniform numbers, given by a seed and drawn where they are used.

    Example:
        >>> u = Uniforms.draw(2, 3, torch.Generator().manual_seed(0))
        >>> u.tensor(torch.float32, torch.device("cpu")).shape
        torch.Size([2, 3])
    """

    rows: int
    columns: int
    seed: int

    @classmethod
    def draw(cls, rows: int, columns: int, generator: torch.Generator | None) -> Uniforms:
        """With a seed from the generator."""
        device = generator.device if generator is not None else "cpu"
        return cls(rows, columns, int(torch.randint(2**63 - 1, (), generator=generator, device=device)))

    def tensor(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """All of them. On the CPU, where numba is, several threads draw them, the same as in the sampler."""
        shape = (self.rows, self.columns)
        if backends.choose("auto", device, torch.empty(0, dtype=dtype)) == "numba":
            return backends.load("numba", "sample").fill(torch.empty(shape, dtype=dtype), self.seed)
        g = torch.Generator(device).manual_seed(self.seed)
        return torch.rand(shape, generator=g, dtype=dtype, device=device)
