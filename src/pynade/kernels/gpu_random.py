"""Random draws in one kernel each, on CUDA, in Triton: prefixes of orderings, rounds of Gibbs sampling.

As separate operations these are many kernels, each of which takes longer to start than to run. Numbers come
from a counter-based generator with a seed in device memory: a CUDA graph draws afresh at every replay.
"""

# mypy: disable-error-code="import-untyped, import-not-found, no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHAINS = 16  # of a program: the least a matrix product takes
VISIBLE = 64  # units at a time
MOST_HIDDEN = 64
MOST_VARIABLES = 1 << 14  # more would leave so few random bits that the lowest index wins too often
LAST = tl.constexpr((1 << 31) - 1)  # the key of a cell that is never observed


@triton.jit
def _shuffled(x, key, HALF: tl.constexpr):
    """Where a pseudo-random permutation of 0 … 4 ** HALF - 1 takes x: four rounds of a Feistel network."""
    left, right = x >> HALF, x & ((1 << HALF) - 1)
    for turn in tl.static_range(4):
        mixed = tl.randint(key + 2 + turn, right).to(tl.int32) & ((1 << HALF) - 1)
        left, right = right, left ^ mixed
    return (left << HALF) | right


@triton.jit
def _prefix(
    exists, seed, out, B, D,
    GAPS: tl.constexpr, STRATIFIED: tl.constexpr, LONG: tl.constexpr, BITS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """A row's length, keys, and by bisection the one that so many lie below; 2**BITS >= D, 4**HALF >= B."""
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
    if LONG:
        place = 1 - (1 - place) * (1 - place)
    count = tl.minimum((place * available).to(tl.int32), available - 1)
    edge = row * 0  # the key that `count` keys lie below, bit by bit
    for step in range(31):
        trial = edge + (1 << (30 - step))
        below = tl.sum((keys < trial).to(tl.int32), 0)
        edge = tl.where(below <= count, trial, edge)
    tl.store(out + here, (keys < edge).to(tl.uint8), mask=i < D)


def prefix(
    batch: int, n_variables: int, seed: Tensor, exists: Tensor | None, stratified: bool, long: bool = False
) -> Tensor:
    """Bool (batch, D), see `pynade.ordering.random_observed`; the seed is an integer (1,) on the device."""
    bits = max(4, (n_variables - 1).bit_length())
    out = torch.empty(batch, n_variables, dtype=torch.bool, device=seed.device)
    given = out if exists is None else exists.contiguous().view(torch.uint8)
    tensors = (given, seed, out.view(torch.uint8))
    options = (exists is not None, stratified, long, bits, max(1, ((batch - 1).bit_length() + 1) // 2))
    with torch.cuda.device_of(seed):  # Triton launches on the current device
        _prefix[(batch,)](*tensors, batch, n_variables, *options, num_warps=max(1, (1 << bits) // 1024))
    return out


def suits_prefix(batch: int, n_variables: int) -> bool:
    """Whether these sizes are within what the kernel counts with."""
    return n_variables <= MOST_VARIABLES and batch * 2 * n_variables < 1 << 31


@triton.jit
def _uniform(seed, number, rows, units, B, UNITS):
    """Uniform numbers (rows, units), the number-th such set."""
    return tl.rand(seed, (number * B + rows)[:, None] * UNITS + units[None, :])


@triton.jit
def _weights(W, m, hid, seen, H, D):
    """Weights (hidden, visible) of machine m between these units."""
    inside = (hid < H)[:, None] & (seen < D)[None, :]
    return tl.load(W + m * H * D + hid[:, None] * D + seen[None, :], mask=inside, other=0.0)


@triton.jit
def _gibbs(
    chains, chain_step, W, b, c, seed, moved, above, B, D, H, K,
    ROWS: tl.constexpr, SEEN: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    """K rounds for ROWS chains of a machine, from m · chain_step on; all machines share the uniform numbers.

    The hidden units stay on the chip; visible ones are drawn SEEN at a time and add what hidden ones see.
    """
    m = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    hid = tl.arange(0, HIDDEN)
    in_rows, in_hid = rows < B, hid < H
    key = tl.load(seed)
    bias = tl.zeros((ROWS, HIDDEN), tl.float32) + tl.load(c + m * H + hid, mask=in_hid, other=0.0)[None, :]
    a = bias
    for first in range(0, D, SEEN):
        seen = first + tl.arange(0, SEEN)
        both = in_rows[:, None] & (seen < D)[None, :]
        v = tl.load(chains + m * chain_step + rows[:, None] * D + seen[None, :], mask=both, other=0.0)
        a = tl.dot(v, tl.trans(_weights(W, m, hid, seen, H, D)), a, input_precision="ieee")
    for k in range(K):
        up = _uniform(key, 2 * k, rows, hid, B, D + H) < tl.sigmoid(a)
        h = tl.where(up & in_hid[None, :], 1.0, 0.0)
        a = bias
        for first in range(0, D, SEEN):
            seen = first + tl.arange(0, SEEN)
            w = _weights(W, m, hid, seen, H, D)
            under = tl.load(b + m * D + seen, mask=seen < D, other=0.0)
            q = tl.sigmoid(tl.dot(h, w, input_precision="ieee") + under[None, :])
            down = _uniform(key, 2 * k + 1, rows, seen, B, D + H) < q
            v = tl.where(down & (seen < D)[None, :], 1.0, 0.0)
            a = tl.dot(v, tl.trans(w), a, input_precision="ieee")
            if k == K - 1:
                both = in_rows[:, None] & (seen < D)[None, :]
                tl.store(moved + (m * B + rows[:, None]) * D + seen[None, :], v, mask=both)
    both = in_rows[:, None] & in_hid[None, :]
    tl.store(above + (m * B + rows[:, None]) * H + hid[None, :], tl.sigmoid(a), mask=both)


def gibbs(chains: Tensor, W: Tensor, b: Tensor, c: Tensor, k: int, seed: Tensor) -> tuple[Tensor, Tensor]:
    """States of the visible units after k rounds, and p(h | v) there: (M, B, D) and (M, B, H).

    Chains (M, B, D) may be shared by the machines (`expand`); W is (M, H, D), b of the visible units (M, 1,
    D), c of the hidden ones (M, 1, H); the seed is an integer (1,) on the device.
    """
    members, batch, visible = chains.shape
    hidden = W.shape[1]
    shared = chains.stride(0) == 0
    start = (chains[0].contiguous(), 0) if shared else (chains.contiguous(), batch * visible)
    moved, above = W.new_empty(members, batch, visible), W.new_empty(members, batch, hidden)
    tensors = (*start, W.contiguous(), b.contiguous(), c.contiguous(), seed, moved, above)
    tiles = (CHAINS, VISIBLE, max(CHAINS, triton.next_power_of_2(hidden)))
    with torch.cuda.device_of(W):  # Triton launches on the current device
        _gibbs[(triton.cdiv(batch, CHAINS), members)](*tensors, batch, visible, hidden, k, *tiles)
    return moved, above


def suits_gibbs(W: Tensor) -> bool:
    """Whether machines with weights (M, H, D) have few enough hidden units, in float32 on a GPU."""
    return W.shape[1] <= MOST_HIDDEN and W.device.type == "cuda" and W.dtype == torch.float32
