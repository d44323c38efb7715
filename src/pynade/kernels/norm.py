"""The norms of the U-Net and the transformers, fused with the operations around them: Triton kernels.

Torch's group norm needs float32 in the default memory format, but convolutions in bfloat16 are fastest in
channels-last format: a U-Net would spend more time on conversions than on its convolutions. Sums are float32.
"""

# mypy: disable-error-code="import-untyped, import-not-found, no-untyped-def"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 8192  # numbers of a row that a program holds
WARPS = 16


@triton.jit
def _maps(C: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, EP: tl.constexpr):
    """The map of each of GP · EP lanes, and which are no padding: groups are padded to powers of two."""
    k = tl.arange(0, GP * EP)
    if GP * EP == C:  # no padding; the compiler sees that the maps are contiguous
        c = k
        valid = k < C
    else:
        c = (k // EP) * (C // G) + k % EP
        valid = (k % EP < C // G) & (k // EP < G)
    return c, valid


@triton.jit
def _pixels(start, c, valid, S: tl.constexpr, C: tl.constexpr, P: tl.constexpr):
    """Offsets of the maps c at P pixels of a row, and which of them are no padding."""
    s = start + tl.arange(0, P)
    return s[:, None] * C + c[None, :], (s < S)[:, None] & valid[None, :]


@triton.jit
def _group_sums(v, GP: tl.constexpr, EP: tl.constexpr):
    """The sum over each map's group, for every map."""
    total = tl.sum(tl.reshape(v, (GP, EP)), axis=1)
    return tl.reshape(tl.broadcast_to(total[:, None], (GP, EP)), (GP * EP,))


STEP = 0x9E3779B9  # distance between the counters of successive seeds


def seed_from_row(seed: Tensor, first: int, size: int) -> Tensor:
    """The seed with which row 0 gets the dropout of row `first` with this seed; rows have `size` numbers."""
    return seed + first * size * pow(STEP, -1, 1 << 32) % (1 << 32)


@triton.jit
def _keep(seed, n, S: tl.constexpr, C: tl.constexpr, offsets, RATE: tl.constexpr):
    """Dropout factors, 1 / (1 - RATE) or 0, by a hash that is much faster than tl.rand."""
    u = (n * (S * C) + offsets).to(tl.uint32) + tl.load(seed).to(tl.uint32) * 0x9E3779B9  # (STEP)
    u = (u ^ (u >> 16)) * 0x7FEB352D
    u = (u ^ (u >> 15)) * 0x846CA68B
    u = (u ^ (u >> 16)) >> 8  # 24 bits
    return tl.where(u.to(tl.float32) < RATE * 16777216.0, 0.0, 1 / (1 - RATE))


@triton.jit
def _forward(
    x, affine, row_step, seed, y, means, rstds, epsilon,
    S: tl.constexpr, C: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, EP: tl.constexpr, P: tl.constexpr,
    SILU: tl.constexpr, RATE: tl.constexpr,
):  # fmt: skip
    """One row of S pixels: y, and each map's mean and 1 / deviation; affine: C scales, C shifts per row."""
    n = tl.program_id(0)
    row = n.to(tl.int64) * (S * C)
    c, valid = _maps(C, G, GP, EP)
    pivot = tl.load(x + row + c, mask=valid, other=0.0).to(tl.float32)  # subtracted: squares lose digits
    first = tl.zeros((P, GP * EP), tl.float32)
    second = tl.zeros((P, GP * EP), tl.float32)
    for start in range(0, S, P):
        offsets, mask = _pixels(start, c, valid, S, C, P)
        v = tl.load(x + row + offsets, mask=mask, other=0.0).to(tl.float32) - pivot[None, :]
        v = tl.where(mask, v, 0.0)
        first += v
        second += v * v
    offset = tl.sum(first, axis=0) / S
    map_mean, map_variance = pivot + offset, tl.sum(second, axis=0) / S - offset * offset
    mean = _group_sums(map_mean, GP, EP) / (C // G)
    deviation = tl.where(valid, map_mean - mean, 0.0)
    variance = _group_sums(map_variance + deviation * deviation, GP, EP) / (C // G)
    rstd = 1 / tl.sqrt(tl.maximum(variance, 0.0) + epsilon)
    tl.store(means + n * C + c, mean, mask=valid)
    tl.store(rstds + n * C + c, rstd, mask=valid)
    affine += n.to(tl.int64) * row_step
    a = (1.0 + tl.load(affine + c, mask=valid, other=0.0).to(tl.float32)) * rstd
    b = tl.load(affine + C + c, mask=valid, other=0.0).to(tl.float32) - mean * a
    for start in range(0, S, P):
        offsets, mask = _pixels(start, c, valid, S, C, P)
        v = tl.load(x + row + offsets, mask=mask, other=0.0).to(tl.float32)
        z = v * a[None, :] + b[None, :]
        if SILU:
            z = z / (1 + tl.exp(-z))
        if RATE > 0:
            z = z * _keep(seed, n, S, C, offsets, RATE)
        tl.store(y + row + offsets, z.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _recompute(
    x, dy, start, n, c, valid, mean, rstd, a, b, seed,
    S: tl.constexpr, C: tl.constexpr, P: tl.constexpr, SILU: tl.constexpr, RATE: tl.constexpr,
):  # fmt: skip
    """P pixels of row n: offsets, mask, normalised values, and gradients by the input of silu."""
    offsets, mask = _pixels(start, c, valid, S, C, P)
    row = n.to(tl.int64) * (S * C)
    v = tl.load(x + row + offsets, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(dy + row + offsets, mask=mask, other=0.0).to(tl.float32)
    normal = (v - mean[None, :]) * rstd[None, :]
    if SILU:
        z = normal * a[None, :] + b[None, :]
        gate = 1 / (1 + tl.exp(-z))
        g = g * gate * (1 + z * (1 - gate))
    if RATE > 0:
        g = g * _keep(seed, n, S, C, offsets, RATE)
    return offsets, mask, normal, g


@triton.jit
def _backward(
    x, dy, affine, row_step, seed, means, rstds, grad_x, grad_affine,
    S: tl.constexpr, C: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, EP: tl.constexpr, P: tl.constexpr,
    SILU: tl.constexpr, RATE: tl.constexpr,
):  # fmt: skip
    """One row: the gradient of x, and those of its scale and shift, (B, 2 C)."""
    n = tl.program_id(0)
    row = n.to(tl.int64) * (S * C)
    c, valid = _maps(C, G, GP, EP)
    mean = tl.load(means + n * C + c, mask=valid, other=0.0)
    rstd = tl.load(rstds + n * C + c, mask=valid, other=0.0)
    affine += n.to(tl.int64) * row_step
    a = 1.0 + tl.load(affine + c, mask=valid, other=0.0).to(tl.float32)
    b = tl.load(affine + C + c, mask=valid, other=0.0).to(tl.float32)
    shift_sum = tl.zeros((P, GP * EP), tl.float32)
    scale_sum = tl.zeros((P, GP * EP), tl.float32)
    for start in range(0, S, P):
        offsets, mask, normal, g = _recompute(
            x, dy, start, n, c, valid, mean, rstd, a, b, seed, S, C, P, SILU, RATE
        )
        shift_sum += g
        scale_sum += g * normal
    grad_shift, grad_scale = tl.sum(shift_sum, axis=0), tl.sum(scale_sum, axis=0)
    grad_affine += n * (2 * C)
    tl.store(grad_affine + c, grad_scale.to(grad_affine.dtype.element_ty), mask=valid)
    tl.store(grad_affine + C + c, grad_shift.to(grad_affine.dtype.element_ty), mask=valid)
    count = S * (C // G)
    mean_part = _group_sums(grad_shift * a, GP, EP) / count
    value_part = _group_sums(grad_scale * a, GP, EP) / count
    for start in range(0, S, P):
        offsets, mask, normal, g = _recompute(
            x, dy, start, n, c, valid, mean, rstd, a, b, seed, S, C, P, SILU, RATE
        )
        d = (g * a[None, :] - mean_part[None, :] - normal * value_part[None, :]) * rstd[None, :]
        tl.store(grad_x + row + offsets, d.to(grad_x.dtype.element_ty), mask=mask)


@triton.jit
def _add_norm(
    h, more, total, y, means, rstds, N, epsilon, C: tl.constexpr, CP: tl.constexpr, R: tl.constexpr,
    ADD: tl.constexpr,
):  # fmt: skip
    """R tokens: the sum of both terms, the normalised sum, its mean and 1 / deviation."""
    n, c = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, CP)
    offsets, mask = n.to(tl.int64)[:, None] * C + c[None, :], (n < N)[:, None] & (c < C)[None, :]
    v = tl.load(h + offsets, mask=mask, other=0.0)
    if ADD:
        v += tl.load(more + offsets, mask=mask, other=0.0).to(tl.float32)
        tl.store(total + offsets, v, mask=mask)
    mean = tl.sum(v, axis=1) / C
    deviation = tl.where(mask, v - mean[:, None], 0.0)
    rstd = 1 / tl.sqrt(tl.sum(deviation * deviation, axis=1) / C + epsilon)
    tl.store(y + offsets, (deviation * rstd[:, None]).to(y.dtype.element_ty), mask=mask)
    tl.store(means + n, mean, mask=n < N)
    tl.store(rstds + n, rstd, mask=n < N)


@triton.jit
def _add_norm_backward(
    total, grad_total, grad_y, means, rstds, grad_h, grad_more, N, C: tl.constexpr, CP: tl.constexpr,
    R: tl.constexpr, ADD: tl.constexpr, DIRECT: tl.constexpr,
):  # fmt: skip
    """R tokens: the gradient of the sum, through y and (DIRECT) of the sum itself, for both of its terms."""
    n, c = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, CP)
    offsets, mask = n.to(tl.int64)[:, None] * C + c[None, :], (n < N)[:, None] & (c < C)[None, :]
    mean, rstd = tl.load(means + n, mask=n < N, other=0.0), tl.load(rstds + n, mask=n < N, other=0.0)
    v = tl.load(total + offsets, mask=mask, other=0.0)
    g = tl.load(grad_y + offsets, mask=mask, other=0.0).to(tl.float32)
    normal = tl.where(mask, (v - mean[:, None]) * rstd[:, None], 0.0)
    mean_part, value_part = tl.sum(g, axis=1) / C, tl.sum(g * normal, axis=1) / C
    d = (g - mean_part[:, None] - normal * value_part[:, None]) * rstd[:, None]
    if DIRECT:
        d += tl.load(grad_total + offsets, mask=mask, other=0.0)
    tl.store(grad_h + offsets, d, mask=mask)
    if ADD:
        tl.store(grad_more + offsets, d.to(grad_more.dtype.element_ty), mask=mask)


class NormSiLU(torch.autograd.Function):
    """y = dropout(silu((1 + scale) ⊙ (x - mean) / deviation + shift)), with the moments of groups of maps.

    x is (B, C, H, W), scale and shift (2 C,) or (B, 2 C). Dropout is a function of a seed in device memory:
    the backward pass needs no stored mask, and every replay of a CUDA graph draws a new one.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, affine: Tensor, seed: Tensor | None, *options: Any) -> Tensor:
        """y in channels-last format and the type of x; options: groups, epsilon, silu, dropout rate."""
        groups, epsilon, silu, rate = options
        x = x.contiguous(memory_format=torch.channels_last)
        affine = affine if affine.stride(-1) == 1 else affine.contiguous()
        y = torch.empty_like(x)
        means, rstds = torch.empty(2, *x.shape[:2], device=x.device)
        maps, pixels = x.shape[1], x.shape[2] * x.shape[3]
        padded_groups, padded_maps = triton.next_power_of_2(groups), triton.next_power_of_2(maps // groups)
        tile = max(1, min(triton.next_power_of_2(pixels), TILE // (padded_groups * padded_maps)))
        ctx.options = {"S": pixels, "C": maps, "G": groups, "GP": padded_groups, "EP": padded_maps, "P": tile}
        ctx.options |= {"SILU": silu, "RATE": 0.0 if seed is None else rate}
        ctx.options["num_warps"] = min(WARPS, max(1, tile * padded_groups * padded_maps // 256))
        ctx.row_step = affine.stride(0) if affine.ndim == 2 else 0
        seed = means if seed is None else seed  # the kernel does not read it without dropout
        _forward[(len(x),)](x, affine, ctx.row_step, seed, y, means, rstds, epsilon, **ctx.options)
        ctx.save_for_backward(x, affine, seed, means, rstds)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Gradients of x and affine."""
        x, affine, seed, means, rstds = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        grad_x = torch.empty_like(x)
        grad_affine = torch.empty(len(x), affine.shape[-1], dtype=affine.dtype, device=x.device)
        inputs = (x, grad, affine, ctx.row_step, seed, means, rstds)
        _backward[(len(x),)](*inputs, grad_x, grad_affine, **ctx.options)
        grad_affine = grad_affine if affine.ndim == 2 else grad_affine.sum(0)
        return grad_x, grad_affine, None, None, None, None, None


class AddNorm(torch.autograd.Function):
    """h' = h + more and (h' - mean) / deviation of tokens h (…, width), float32; `more` may be None.

    The backward pass adds the two gradients of h' in the same kernel.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, more: Tensor | None, dtype: torch.dtype, epsilon: float) -> Any:
        """The sum and the normalised sum in the given type; only the second if `more` is None."""
        ctx.set_materialize_grads(False)
        h, add = h.contiguous(), more is not None
        more = h if more is None else more.contiguous()
        total, y = torch.empty_like(h) if add else h, torch.empty_like(h, dtype=dtype)
        n, width = h.numel() // h.shape[-1], h.shape[-1]
        means, rstds = torch.empty(2, n, device=h.device)
        ctx.options = {"C": width, "CP": triton.next_power_of_2(width)}
        ctx.options |= {"R": max(1, 2048 // ctx.options["CP"]), "num_warps": 4, "ADD": add}
        ctx.grid, ctx.more_type = (triton.cdiv(n, ctx.options["R"]),), more.dtype
        _add_norm[ctx.grid](h, more, total, y, means, rstds, n, epsilon, **ctx.options)
        ctx.save_for_backward(total, means, rstds)
        return (total, y) if add else y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """Gradients of h and `more`."""
        total, means, rstds = ctx.saved_tensors
        grad_total, grad_y = grads if ctx.options["ADD"] else (None, *grads)
        assert grad_y is not None, "the normalised sum is not used"
        direct, grad_y = grad_total is not None, grad_y.contiguous()
        grad_total = total if grad_total is None else grad_total.contiguous()  # not read if None
        grad_h = torch.empty_like(total)
        grad_more = torch.empty_like(total, dtype=ctx.more_type) if ctx.options["ADD"] else None
        tensors = (total, grad_total, grad_y, means, rstds, grad_h, total if grad_more is None else grad_more)
        _add_norm_backward[ctx.grid](*tensors, len(means), DIRECT=direct, **ctx.options)
        return grad_h, grad_more, None, None
