"""Random subsets of given sizes on the CPU: one look at each variable, where plain torch sorts keys."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pynade.kernels.cpu_scalar import jit, nth
from pynade.kernels.threads import share

ROWS = 64  # of one task


def choose(count: Tensor, n_variables: int, seed: int, exists: Tensor | None = None) -> Tensor:
    """Bool (B, D): count[b] variables of row b, every set of that many equally likely.

    Args:
        count: (B,), each from 0 to the number of variables that may be chosen.
        n_variables: D.
        seed: decides everything.
        exists: bool (B, D), the variables that may be chosen; None for all.
    """
    out = torch.empty(len(count), n_variables, dtype=torch.bool)
    arrays = count.numpy(), (out if exists is None else exists.contiguous()).numpy(), out.numpy()

    def task(number: int) -> None:
        part = slice(number * ROWS, (number + 1) * ROWS)
        counts, some, mine = (array[part] for array in arrays)
        _choose(counts, some, exists is None, mine, np.uint64(seed), np.uint64(part.start))

    share(task, -(-len(count) // ROWS), torch.get_num_threads())
    return out


@jit()
def _choose(count, exists, every, out, seed, first):
    """Knuth's algorithm S: of `left` variables to come `need` are taken, the next with chance need / left."""
    rows, n = out.shape
    for b in range(rows):
        need, left = count[b], 0
        for d in range(n):
            left += every or exists[b, d]
        for d in range(n):
            take = False
            if every or exists[b, d]:
                u = nth(seed, (first + np.uint64(b)) * np.uint64(n) + np.uint64(d), np.float64(0))
                take = need >= left or u * left < need
                left -= 1
                need -= take
            out[b, d] = take
