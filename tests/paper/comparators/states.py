"""All states of a few binary variables, and draws against their probabilities."""

from __future__ import annotations

import torch
from torch import Tensor


def all_states(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """(2^n, n)."""
    return (torch.arange(2**n)[:, None] >> torch.arange(n - 1, -1, -1) & 1).to(dtype)


def draws_agree(x: Tensor, p: Tensor) -> None:
    """Chi-square of draws (N, n) against the probabilities (2^n,) of `all_states`: within five deviations."""
    n = x.shape[1]
    which = (x.long() << torch.arange(n - 1, -1, -1)).sum(1)
    counts, expected = torch.bincount(which, minlength=2**n), p.detach() * len(x)
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert chi < (2**n - 1) + 5 * (2 * (2**n - 1)) ** 0.5 + 10
