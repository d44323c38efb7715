"""Rounds of Gibbs sampling of small RBMs, all of them in one kernel: on CUDA, in Triton.

A program keeps a machine's weights and some chains, and goes up and down k times without leaving the chip;
as separate operations a round is ten kernels, each of which takes longer to start than to run. The uniform
numbers come from a counter-based generator with a seed in device memory (so a CUDA graph draws afresh at
every replay); they depend on the round, the chain and the unit but not on the machine: machines share them.
"""

# mypy: disable-error-code="import-untyped, import-not-found"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHAINS = 16  # of a program: the least a matrix product takes
MOST_HIDDEN, MOST_VISIBLE = 32, 256  # what fits on the chip


@triton.jit
def _uniform(seed, number, rows, units, B, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Uniform numbers (rows, units), the number-th such set."""
    return tl.rand(seed, (number * B + rows)[:, None] * WIDTH + units[None, :])


@triton.jit
def _gibbs(  # type: ignore[no-untyped-def]
    chains, chain_step, W, b, c, seed, moved, above, B, D, H, K,
    ROWS: tl.constexpr, VISIBLE: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    """K rounds for ROWS chains of one machine; chains of machine m start at m · chain_step."""
    m = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    seen, hid = tl.arange(0, VISIBLE), tl.arange(0, HIDDEN)
    in_rows, in_seen, in_hid = rows < B, seen < D, hid < H
    both = in_rows[:, None] & in_seen[None, :]
    key = tl.load(seed)
    w = tl.load(
        W + m * H * D + hid[:, None] * D + seen[None, :], mask=in_hid[:, None] & in_seen[None, :], other=0.0
    )
    bias = tl.load(b + m * D + seen, mask=in_seen, other=0.0)
    top = tl.load(c + m * H + hid, mask=in_hid, other=0.0)
    v = tl.load(chains + m * chain_step + rows[:, None] * D + seen[None, :], mask=both, other=0.0)
    p = tl.sigmoid(tl.dot(v, tl.trans(w), input_precision="ieee") + top[None, :])
    for k in range(K):
        h = tl.where((_uniform(key, 2 * k, rows, hid, B, VISIBLE) < p) & in_hid[None, :], 1.0, 0.0)
        q = tl.sigmoid(tl.dot(h, w, input_precision="ieee") + bias[None, :])
        v = tl.where((_uniform(key, 2 * k + 1, rows, seen, B, VISIBLE) < q) & in_seen[None, :], 1.0, 0.0)
        p = tl.sigmoid(tl.dot(v, tl.trans(w), input_precision="ieee") + top[None, :])
    tl.store(moved + (m * B + rows[:, None]) * D + seen[None, :], v, mask=both)
    tl.store(above + (m * B + rows[:, None]) * H + hid[None, :], p, mask=in_rows[:, None] & in_hid[None, :])


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
    one = chains[0].contiguous() if chains.stride(0) == 0 else chains.contiguous()
    moved, above = W.new_empty(members, batch, visible), W.new_empty(members, batch, hidden)
    width = max(CHAINS, triton.next_power_of_2(visible))
    _gibbs[(triton.cdiv(batch, CHAINS), members)](
        one,
        0 if chains.stride(0) == 0 else batch * visible,
        W.contiguous(),
        b.contiguous(),
        c.contiguous(),
        seed,
        moved,
        above,
        batch,
        visible,
        hidden,
        k,
        CHAINS,
        width,
        MOST_HIDDEN,
        num_warps=4,
    )
    return moved, above


def suits(W: Tensor) -> bool:
    """Whether machines with weights (M, H, D) are small enough, in float32 on a GPU."""
    small = W.shape[1] <= MOST_HIDDEN and W.shape[2] <= MOST_VISIBLE
    return small and W.device.type == "cuda" and W.dtype == torch.float32
