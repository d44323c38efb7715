"""Attention among few tokens on CUDA, in Triton: one program for each row and head.

With its gradient it takes a third of the time of torch's fused kernels, which are made for long sequences:
for few tokens half of their tiles are empty, and they concatenate the gradients in separate passes.
"""

# mypy: disable-error-code="import-untyped, import-not-found, no-untyped-def"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_TOKENS, WIDTHS = 64, (16, 32, 64, 128)  # tokens of a row; widths of a head


def suits(qkv: Tensor, heads: int) -> bool:
    """Whether the kernel takes queries, keys and values (B, T, 3 · width) of this size and type."""
    few = qkv.shape[1] <= MOST_TOKENS and qkv.shape[2] // 3 // heads in WIDTHS
    return few and qkv.dtype == torch.bfloat16


@triton.jit
def _weights(qkv, scale, T, H: tl.constexpr, d: tl.constexpr, TP: tl.constexpr, CAUSAL: tl.constexpr):
    """One row and head: offsets of queries, mask of tokens; queries, keys, values; attention weights."""
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    t, c = tl.arange(0, TP), tl.arange(0, d)
    offsets = (b * T + t)[:, None] * (3 * H * d) + h * d + c[None, :]
    valid = (t < T)[:, None]
    q = tl.load(qkv + offsets, mask=valid, other=0.0)
    k = tl.load(qkv + offsets + H * d, mask=valid, other=0.0)
    v = tl.load(qkv + offsets + 2 * H * d, mask=valid, other=0.0)
    attended = (t < T)[None, :]
    if CAUSAL:
        attended = attended & (t[None, :] <= t[:, None])
    s = tl.where(attended, tl.dot(q, tl.trans(k)) * scale, -1e30)
    s = tl.exp(s - tl.max(s, axis=1)[:, None])
    return offsets, valid, q, k, v, s / tl.sum(s, axis=1)[:, None]


@triton.jit
def _forward(
    qkv, out, scale, T, H: tl.constexpr, d: tl.constexpr, TP: tl.constexpr, CAUSAL: tl.constexpr
):  # fmt: skip
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    t, c = tl.arange(0, TP), tl.arange(0, d)
    _, valid, _, _, v, p = _weights(qkv, scale, T, H, d, TP, CAUSAL)
    o = tl.dot(p.to(v.dtype), v)
    tl.store(out + (b * T + t)[:, None] * (H * d) + h * d + c[None, :], o.to(v.dtype), mask=valid)


@triton.jit
def _backward(
    qkv, grad_out, grad, scale, T, H: tl.constexpr, d: tl.constexpr, TP: tl.constexpr, CAUSAL: tl.constexpr
):  # fmt: skip
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    t, c = tl.arange(0, TP), tl.arange(0, d)
    offsets, valid, q, k, v, p = _weights(qkv, scale, T, H, d, TP, CAUSAL)
    out_offsets = (b * T + t)[:, None] * (H * d) + h * d + c[None, :]
    g = tl.load(grad_out + out_offsets, mask=valid, other=0.0)
    grad_weights = tl.dot(g, tl.trans(v))
    s = (p * (grad_weights - tl.sum(p * grad_weights, axis=1)[:, None]) * scale).to(q.dtype)
    tl.store(grad + offsets, tl.dot(s, k).to(q.dtype), mask=valid)
    tl.store(grad + offsets + H * d, tl.dot(tl.trans(s), q).to(q.dtype), mask=valid)
    tl.store(grad + offsets + 2 * H * d, tl.dot(tl.trans(p.to(q.dtype)), g).to(q.dtype), mask=valid)


class Attention(torch.autograd.Function):
    """softmax(Q Kᵀ / √d) V of every head, (B, T, width), of concatenated queries, keys and values."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, causal: bool) -> Tensor:
        """The weighted mean of values for every token; `causal`: of itself and earlier tokens only."""
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
