"""What is drawn on the CPU by several threads: uniform numbers, random subsets of variables."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pynade.kernels.cpu import arrays
from pynade.kernels.cpu_scalar import jit, nth
from pynade.kernels.threads import share

DRAWN = 2**16  # uniform numbers of one task
CHOSEN = 64  # rows of one task of `choose`


def fill(out: Tensor, seed: int) -> Tensor:
    """Fill a tensor with uniform numbers strictly between 0 and 1; the k-th is a function of the seed and k.

    Several threads draw them: torch draws them one after the other, which takes a good part of the time that
    sampling rows with them does.
    """
    array = out.view(-1).numpy()

    def task(number: int) -> None:
        first = number * DRAWN
        _fill(array[first : first + DRAWN], np.uint64(seed), np.uint64(first))

    share(task, -(-len(array) // DRAWN), torch.get_num_threads())
    return out


@jit()
def _fill(out, seed, first):  # type: ignore[no-untyped-def]
    zero = out.dtype.type(0)
    for k in range(len(out)):
        out[k] = nth(seed, first + np.uint64(k), zero)


def choose(count: Tensor, n_variables: int, seed: int, exists: Tensor | None = None) -> Tensor:
    """Bool (B, D): count[b] variables of row b, every set of that many equally likely, without sorting keys.

    Args:
        count: (B,), each from 0 to the number of variables that may be chosen.
        n_variables: D.
        seed: decides everything.
        exists: bool (B, D), the variables that may be chosen; None for all.
    """
    out = torch.empty(len(count), n_variables, dtype=torch.bool)
    given = arrays(count, out if exists is None else exists, out)

    def task(number: int) -> None:
        part = slice(number * CHOSEN, (number + 1) * CHOSEN)
        counts, some, mine = (array[part] for array in given)
        _choose(counts, some, exists is None, mine, np.uint64(seed), np.uint64(part.start))

    share(task, -(-len(count) // CHOSEN), torch.get_num_threads())
    return out


@jit()
def _choose(count, exists, every, out, seed, first):  # type: ignore[no-untyped-def]
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
