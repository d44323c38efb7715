"""Random prefixes of random orderings, drawn in one kernel: on CUDA, in Triton.

A program draws one row's prefix: its length, a key for every variable, and by bisection the key that so many
lie below. Sorting the keys, as plain torch must, takes longer than a small net's whole forward pass. The
numbers come from a counter-based generator with a seed in device memory, so a CUDA graph draws afresh at
every replay.
"""

# mypy: disable-error-code="import-untyped, import-not-found"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST = 1 << 14  # variables: fewer random bits than these leave would make the lowest index win too often
LAST = tl.constexpr((1 << 31) - 1)  # the key of a cell that is never observed


@triton.jit
def _shuffled(x, key, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where a pseudo-random permutation of 0 … 4 ** HALF - 1 takes x: four rounds of a Feistel network."""
    left, right = x >> HALF, x & ((1 << HALF) - 1)
    for turn in tl.static_range(4):
        mixed = tl.randint(key + 2 + turn, right).to(tl.int32) & ((1 << HALF) - 1)
        left, right = right, left ^ mixed
    return (left << HALF) | right


@triton.jit
def _prefix(  # type: ignore[no-untyped-def]
    exists, seed, out, B, D,
    GAPS: tl.constexpr, STRATIFIED: tl.constexpr, BITS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Row `program_id(0)`; 2 ** BITS is at least D, 4 ** HALF at least B."""
    row = tl.program_id(0)
    i = tl.arange(0, 1 << BITS)
    inside = i < D
    key = tl.load(seed)
    here = row.to(tl.int64) * D + i
    # keys differ, since each ends with its variable's number
    draws = tl.randint(key, row * (1 << BITS) + i).to(tl.uint32)
    keys = ((draws >> (BITS + 1)).to(tl.int32) << BITS) | i
    available = D
    if GAPS:
        inside = inside & (tl.load(exists + here, mask=i < D, other=0) != 0)
        available = tl.sum(inside.to(tl.int32), 0)
    keys = tl.where(inside, keys, LAST)
    place = tl.rand(key + 1, row)
    if STRATIFIED:
        stratum = _shuffled(row, key, HALF)
        while stratum >= B:
            stratum = _shuffled(stratum, key, HALF)
        first = (tl.rand(key + 1, row * 0 + B) * B).to(tl.int32)  # so that each row's stratum is uniform
        place = ((stratum + first) % B + place) / B
    count = tl.minimum((place * available).to(tl.int32), available - 1)
    edge = row * 0  # the key that `count` keys lie below, bit by bit
    for step in range(31):
        trial = edge + (1 << (30 - step))
        below = tl.sum((keys < trial).to(tl.int32), 0)
        edge = tl.where(below <= count, trial, edge)
    tl.store(out + here, (keys < edge).to(tl.uint8), mask=i < D)


def prefix(batch: int, n_variables: int, seed: Tensor, exists: Tensor | None, stratified: bool) -> Tensor:
    """Bool (batch, D), see `pynade.ordering.random_observed`.

    Args:
        batch: number of rows.
        n_variables: D.
        seed: (1,), an integer on the device.
        exists: bool (batch, D), the cells that may be observed; None for all.
        stratified: each row has a stratum of its own, at random.
    """
    bits = max(4, (n_variables - 1).bit_length())
    out = torch.empty(batch, n_variables, dtype=torch.bool, device=seed.device)
    given = out if exists is None else exists.contiguous().view(torch.uint8)
    tensors = (given, seed, out.view(torch.uint8))
    options = (exists is not None, stratified, bits, max(1, ((batch - 1).bit_length() + 1) // 2))
    with torch.cuda.device_of(seed):  # Triton launches on the current device
        _prefix[(batch,)](*tensors, batch, n_variables, *options, num_warps=max(1, (1 << bits) // 1024))
    return out


def suits(batch: int, n_variables: int) -> bool:
    """Whether these sizes are within what the kernel counts with."""
    return n_variables <= MOST and batch * 2 * n_variables < 1 << 31
