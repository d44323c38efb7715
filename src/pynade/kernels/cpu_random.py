"""Uniform numbers on the CPU, several threads at a time: torch draws them one after the other, which takes a
good part of the time that sampling rows with them does.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pynade.kernels.cpu_vector import jit
from pynade.kernels.threads import share

BLOCK = 2**16  # numbers of one task
GOLDEN, FIRST, SECOND = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def fill(out: Tensor, seed: int) -> Tensor:
    """Numbers between 0 and 1 (and neither): the k-th is a function of the seed and k (SplitMix64)."""
    array = out.view(-1).numpy()
    bits = 24 if out.dtype == torch.float32 else 53

    def task(number: int) -> None:
        first = number * BLOCK
        _fill(
            array[first : first + BLOCK], np.uint64(seed), np.uint64(first), np.uint64(64 - bits), 0.5**bits
        )

    share(task, -(-len(array) // BLOCK), torch.get_num_threads())
    return out


@jit()
def _fill(out, seed, first, shift, unit):
    one, scale, half = np.uint64(1), out.dtype.type(unit), out.dtype.type(0.5 * unit)
    for k in range(len(out)):
        z = seed + (first + np.uint64(k) + one) * GOLDEN
        z = (z ^ (z >> np.uint64(30))) * FIRST
        z = (z ^ (z >> np.uint64(27))) * SECOND
        z = (z ^ (z >> np.uint64(31))) >> shift
        out[k] = out.dtype.type(np.int64(z)) * scale + half
