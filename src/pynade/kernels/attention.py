"""Attention among few tokens on CUDA, in Triton: one program for each row and head.

With its gradient it takes a third of the time of torch's fused kernels, which are made for long sequences:
their tiles are half empty here, and gradients are put side by side in passes of their own.
"""

# mypy: disable-error-code="import-untyped, import-not-found, no-untyped-def"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_TOKENS, WIDTHS = 64, (16, 32, 64, 128)  # tokens of a row; numbers per head


def suits(qkv: Tensor, heads: int) -> bool:
    """Whether queries, keys and values (B, T, 3 · width) in bfloat16 are few enough for one program."""
    few = qkv.shape[1] <= MOST_TOKENS and qkv.shape[2] // 3 // heads in WIDTHS
    return few and qkv.dtype == torch.bfloat16


@triton.jit
def _weights(qkv, scale, T, H: tl.constexpr, d: tl.constexpr, TP: tl.constexpr, CAUSAL: tl.constexpr):
    """One row and head: places of queries, which are real; queries, keys, values; attention weights."""
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    t, c = tl.arange(0, TP), tl.arange(0, d)
    here = (b * T + t)[:, None] * (3 * H * d) + h * d + c[None, :]
    real = (t < T)[:, None]
    q = tl.load(qkv + here, mask=real, other=0.0)
    k = tl.load(qkv + here + H * d, mask=real, other=0.0)
    v = tl.load(qkv + here + 2 * H * d, mask=real, other=0.0)
    seen = (t < T)[None, :]
    if CAUSAL:
        seen = seen & (t[None, :] <= t[:, None])
    s = tl.where(seen, tl.dot(q, tl.trans(k)) * scale, -1e30)
    s = tl.exp(s - tl.max(s, axis=1)[:, None])
    return here, real, q, k, v, s / tl.sum(s, axis=1)[:, None]


@triton.jit
def _forward(
    qkv, out, scale, T, H: tl.constexpr, d: tl.constexpr, TP: tl.constexpr, CAUSAL: tl.constexpr
):  # fmt: skip
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    t, c = tl.arange(0, TP), tl.arange(0, d)
    _, real, _, _, v, p = _weights(qkv, scale, T, H, d, TP, CAUSAL)
    o = tl.dot(p.to(v.dtype), v)
    tl.store(out + (b * T + t)[:, None] * (H * d) + h * d + c[None, :], o.to(v.dtype), mask=real)


@triton.jit
def _backward(
    qkv, grad_out, grad, scale, T, H: tl.constexpr, d: tl.constexpr, TP: tl.constexpr, CAUSAL: tl.constexpr
):  # fmt: skip
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    t, c = tl.arange(0, TP), tl.arange(0, d)
    here, real, q, k, v, p = _weights(qkv, scale, T, H, d, TP, CAUSAL)
    there = (b * T + t)[:, None] * (H * d) + h * d + c[None, :]
    g = tl.load(grad_out + there, mask=real, other=0.0)
    along = tl.dot(g, tl.trans(v))
    s = (p * (along - tl.sum(p * along, axis=1)[:, None]) * scale).to(q.dtype)
    tl.store(grad + here, tl.dot(s, k).to(q.dtype), mask=real)
    tl.store(grad + here + H * d, tl.dot(tl.trans(s), q).to(q.dtype), mask=real)
    tl.store(grad + here + 2 * H * d, tl.dot(tl.trans(p.to(q.dtype)), g).to(q.dtype), mask=real)


class Attention(torch.autograd.Function):
    """Softmax(Q Kᵀ / √d) V of every head, (B, T, width), for queries, keys and values side by side."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, causal: bool) -> Tensor:
        """The values that every token gathers; `causal`: from itself and earlier tokens only."""
        qkv = qkv.contiguous()
        rows, tokens, d = len(qkv), qkv.shape[1], qkv.shape[2] // 3 // heads
        ctx.grid, ctx.numbers = (rows, heads), (d**-0.5, tokens, heads, d)
        ctx.options = {"TP": max(16, triton.next_power_of_2(tokens)), "CAUSAL": causal, "num_warps": 4}
        out = qkv.new_empty(rows, tokens, heads * d)
        _forward[ctx.grid](qkv, out, *ctx.numbers, **ctx.options)
        ctx.save_for_backward(qkv)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        """The gradient of queries, keys and values."""
        (qkv,) = ctx.saved_tensors
        grad = torch.empty_like(qkv)
        _backward[ctx.grid](qkv, grad_out.contiguous(), grad, *ctx.numbers, **ctx.options)
        return grad, None, None
