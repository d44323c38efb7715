"""Rounds of Gibbs sampling of small RBMs, all of them in one kernel: on CUDA, in Triton.

A program keeps the hidden units of some chains of a machine and goes down and up k times without leaving the
chip; as separate operations a round is ten kernels, each of which takes longer to start than to run. The
uniform numbers come from a counter-based generator with a seed in device memory (so a CUDA graph draws afresh
at every replay); they depend on the round, the chain and the unit but not on the machine: all share them.
"""

# mypy: disable-error-code="import-untyped, import-not-found"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHAINS = 16  # of a program: the least a matrix product takes
VISIBLE = 64  # units at a time
MOST_HIDDEN = 64


@triton.jit
def _uniform(seed, number, rows, units, B, UNITS):  # type: ignore[no-untyped-def]
    """Uniform numbers (rows, units), the number-th such set."""
    return tl.rand(seed, (number * B + rows)[:, None] * UNITS + units[None, :])


@triton.jit
def _weights(W, m, hid, seen, H, D):  # type: ignore[no-untyped-def]
    """Weights (hidden, visible) of machine m between these units."""
    inside = (hid < H)[:, None] & (seen < D)[None, :]
    return tl.load(W + m * H * D + hid[:, None] * D + seen[None, :], mask=inside, other=0.0)


@triton.jit
def _gibbs(  # type: ignore[no-untyped-def]
    chains, chain_step, W, b, c, seed, moved, above, B, D, H, K,
    ROWS: tl.constexpr, SEEN: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    """K rounds for ROWS chains of one machine; chains of machine m start at m · chain_step.

    A round goes once over the visible units: given the hidden ones they are drawn SEEN at a time, and each
    batch adds its part to what the hidden units will see.
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

    Args:
        chains: (M, B, D), where the chains start; the machines may share them (`expand`).
        W: (M, H, D).
        b: (M, 1, D), biases of the visible units.
        c: (M, 1, H), of the hidden units.
        k: rounds.
        seed: (1,), an integer on the device.
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


def suits(W: Tensor) -> bool:
    """Whether machines with weights (M, H, D) have few enough hidden units, in float32 on a GPU."""
    return W.shape[1] <= MOST_HIDDEN and W.device.type == "cuda" and W.dtype == torch.float32
