"""Random draws on CUDA, in one Triton kernel each: prefixes of orderings, rounds of Gibbs sampling.

As torch operations they are many kernels, each of which takes longer to start than to run. A counter-based
generator with a seed in device memory gives the numbers: every replay of a CUDA graph draws new ones.
"""

# mypy: disable-error-code="import-untyped, import-not-found, no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHAINS = 16  # of a program: the smallest side of a matrix product
VISIBLE = 64  # visible units drawn at a time
MOST_HIDDEN = 64
MOST_VARIABLES = 1 << 14  # with more, keys have too few random bits, and ties favour low indexes
LAST = tl.constexpr((1 << 31) - 1)  # the key of a cell that is never observed


@triton.jit
def _permute(x, key, HALF: tl.constexpr):
    """The image of x under a pseudo-random permutation of 0 … 4 ** HALF - 1 (a Feistel network)."""
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
    """One row: draw a length and keys, mark the cells of the smallest keys; 2**BITS >= D, 4**HALF >= B."""
    row = tl.program_id(0)
    i = tl.arange(0, 1 << BITS)
    inside = i < D
    key = tl.load(seed)
    offsets = row.to(tl.int64) * D + i
    # all keys are different: the low bits are the number of the variable
    draws = tl.randint(key, row * (1 << BITS) + i).to(tl.uint32)
    keys = ((draws >> (BITS + 1)).to(tl.int32) << BITS) | i
    available = D
    if GAPS:
        inside = inside & (tl.load(exists + offsets, mask=i < D, other=0) != 0)
        available = tl.sum(inside.to(tl.int32), 0)
    keys = tl.where(inside, keys, LAST)
    position = tl.rand(key + 1, row)
    if STRATIFIED:
        stratum = _permute(row, key, HALF)
        while stratum >= B:
            stratum = _permute(stratum, key, HALF)
        first = (tl.rand(key + 1, row * 0 + B) * B).to(tl.int32)  # so that each row's stratum is uniform
        position = ((stratum + first) % B + position) / B
    if LONG:
        position = 1 - (1 - position) * (1 - position)
    count = tl.minimum((position * available).to(tl.int32), available - 1)
    threshold = row * 0  # the largest value below which at most `count` keys lie, bit by bit
    for step in range(31):
        trial = threshold + (1 << (30 - step))
        below = tl.sum((keys < trial).to(tl.int32), 0)
        threshold = tl.where(below <= count, trial, threshold)
    tl.store(out + offsets, (keys < threshold).to(tl.uint8), mask=i < D)


def prefix(
    batch: int, n_variables: int, seed: Tensor, exists: Tensor | None, stratified: bool, long: bool = False
) -> Tensor:
    """Bool (batch, D), see `pynade.ordering.random_observed`; the seed is an integer (1,) on the device."""
    bits = max(4, (n_variables - 1).bit_length())
    out = torch.empty(batch, n_variables, dtype=torch.bool, device=seed.device)
    mask = out if exists is None else exists.contiguous().view(torch.uint8)
    tensors = (mask, seed, out.view(torch.uint8))
    options = (exists is not None, stratified, long, bits, max(1, ((batch - 1).bit_length() + 1) // 2))
    with torch.cuda.device_of(seed):  # Triton launches on the current device
        _prefix[(batch,)](*tensors, batch, n_variables, *options, num_warps=max(1, (1 << bits) // 1024))
    return out


def suits_prefix(batch: int, n_variables: int) -> bool:
    """Whether the kernel's integers are large enough for these sizes."""
    return n_variables <= MOST_VARIABLES and batch * 2 * n_variables < 1 << 31


@triton.jit
def _uniform(seed, number, rows, units, B, UNITS):
    """The uniform numbers (rows, units) of draw `number`."""
    return tl.rand(seed, (number * B + rows)[:, None] * UNITS + units[None, :])


@triton.jit
def _weights(W, m, hidden, visible, H, D):
    """Weights (hidden, visible) of machine m for these units."""
    inside = (hidden < H)[:, None] & (visible < D)[None, :]
    return tl.load(W + m * H * D + hidden[:, None] * D + visible[None, :], mask=inside, other=0.0)


@triton.jit
def _gibbs(
    chains, chain_step, W, b, c, seed, new_chains, hidden_probabilities, B, D, H, K,
    ROWS: tl.constexpr, UNITS: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    """K rounds for ROWS chains of machine m, at m · chain_step; all machines use the same uniform numbers.

    Hidden units stay in registers; visible units are drawn UNITS at a time and added to the pre-activations.
    """
    m = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    hidden = tl.arange(0, HIDDEN)
    in_rows, in_hid = rows < B, hidden < H
    key = tl.load(seed)
    bias = tl.zeros((ROWS, HIDDEN), tl.float32) + tl.load(c + m * H + hidden, mask=in_hid, other=0.0)[None, :]
    a = bias
    for first in range(0, D, UNITS):
        visible = first + tl.arange(0, UNITS)
        in_tile = in_rows[:, None] & (visible < D)[None, :]
        v = tl.load(chains + m * chain_step + rows[:, None] * D + visible[None, :], mask=in_tile, other=0.0)
        a = tl.dot(v, tl.trans(_weights(W, m, hidden, visible, H, D)), a, input_precision="ieee")
    for k in range(K):
        hidden_ones = _uniform(key, 2 * k, rows, hidden, B, D + H) < tl.sigmoid(a)
        h = tl.where(hidden_ones & in_hid[None, :], 1.0, 0.0)
        a = bias
        for first in range(0, D, UNITS):
            visible = first + tl.arange(0, UNITS)
            w = _weights(W, m, hidden, visible, H, D)
            visible_bias = tl.load(b + m * D + visible, mask=visible < D, other=0.0)
            q = tl.sigmoid(tl.dot(h, w, input_precision="ieee") + visible_bias[None, :])
            ones = _uniform(key, 2 * k + 1, rows, visible, B, D + H) < q
            v = tl.where(ones & (visible < D)[None, :], 1.0, 0.0)
            a = tl.dot(v, tl.trans(w), a, input_precision="ieee")
            if k == K - 1:
                in_tile = in_rows[:, None] & (visible < D)[None, :]
                tl.store(new_chains + (m * B + rows[:, None]) * D + visible[None, :], v, mask=in_tile)
    in_tile = in_rows[:, None] & in_hid[None, :]
    offsets = (m * B + rows[:, None]) * H + hidden[None, :]
    tl.store(hidden_probabilities + offsets, tl.sigmoid(a), mask=in_tile)


def gibbs(chains: Tensor, W: Tensor, b: Tensor, c: Tensor, k: int, seed: Tensor) -> tuple[Tensor, Tensor]:
    """States v of the visible units after k rounds, (M, B, D), and p(h | v), (M, B, H).

    Chains (M, B, D) may be the same for all machines (`expand`); W is (M, H, D), the visible bias b (M, 1,
    D), the hidden bias c (M, 1, H); the seed is an integer (1,) on the device.
    """
    members, batch, visible = chains.shape
    hidden = W.shape[1]
    shared = chains.stride(0) == 0
    start = (chains[0].contiguous(), 0) if shared else (chains.contiguous(), batch * visible)
    new_chains, probabilities = W.new_empty(members, batch, visible), W.new_empty(members, batch, hidden)
    tensors = (*start, W.contiguous(), b.contiguous(), c.contiguous(), seed, new_chains, probabilities)
    tiles = (CHAINS, VISIBLE, max(CHAINS, triton.next_power_of_2(hidden)))
    with torch.cuda.device_of(W):  # Triton launches on the current device
        _gibbs[(triton.cdiv(batch, CHAINS), members)](*tensors, batch, visible, hidden, k, *tiles)
    return new_chains, probabilities


def suits_gibbs(W: Tensor) -> bool:
    """Whether machines with weights (M, H, D) have few enough hidden units, in float32 on a GPU."""
    return W.shape[1] <= MOST_HIDDEN and W.device.type == "cuda" and W.dtype == torch.float32
