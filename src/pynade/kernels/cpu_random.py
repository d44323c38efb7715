"""Uniform numbers on the CPU, several threads at a time: torch draws them one after the other, which takes a
good part of the time that sampling rows with them does.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pynade.kernels.cpu_scalar import jit, nth
from pynade.kernels.threads import share

BLOCK = 2**16  # numbers of one task


def fill(out: Tensor, seed: int) -> Tensor:
    """Numbers between 0 and 1 (and neither): the k-th is a function of the seed and k (SplitMix64)."""
    array = out.view(-1).numpy()

    def task(number: int) -> None:
        first = number * BLOCK
        _fill(array[first : first + BLOCK], np.uint64(seed), np.uint64(first))

    share(task, -(-len(array) // BLOCK), torch.get_num_threads())
    return out


@jit()
def _fill(out, seed, first):
    zero = out.dtype.type(0)
    for k in range(len(out)):
        out[k] = nth(seed, first + np.uint64(k), zero)
