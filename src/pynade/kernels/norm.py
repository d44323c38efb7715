"""Group normalisation, a modulation, SiLU and dropout of maps (B, C, H, W) in one pass: on CUDA, in Triton.

    y = drop(silu(scale ⊙ (x - mean) / sqrt(variance + epsilon) + shift))

mean and variance are those of a row's group of maps; scale and shift are one number per row and map. Torch's
own group norm wants maps one after the other and float32, while convolutions in bfloat16 want the maps of a
pixel side by side (channels last): between the two every activation would be converted four times, and a
U-Net spend more time on that than on its convolutions.

One program does one row: it reads it twice (sums; then the result), the second time from the cache. Backwards
likewise, with the sums over pixels that are the gradients of scale and shift. What is dropped is decided by a
counter-based generator from a seed in device memory, drawn by torch's, so nothing is stored for the way back
and a CUDA graph draws afresh at every replay. Sums are float32.
"""

# mypy: disable-error-code="import-untyped, import-not-found"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 8192  # numbers of a row that a program has in hand
WARPS = 16


@triton.jit
def _place(C: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, EP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The map at each of GP · EP places: groups padded to powers of two, in number and in size."""
    k = tl.arange(0, GP * EP)
    if GP * EP == C:  # nothing is padded, and the compiler sees that they lie side by side
        c = k
        real = k < C
    else:
        c = (k // EP) * (C // G) + k % EP
        real = (k % EP < C // G) & (k // EP < G)
    return c, real


@triton.jit
def _by_group(v, GP: tl.constexpr, EP: tl.constexpr):  # type: ignore[no-untyped-def]
    """At every map the sum over its group."""
    total = tl.sum(tl.reshape(v, (GP, EP)), axis=1)
    return tl.reshape(tl.broadcast_to(total[:, None], (GP, EP)), (GP * EP,))


@triton.jit
def _keep(seed, n, S: tl.constexpr, C: tl.constexpr, here, RATE: tl.constexpr):  # type: ignore[no-untyped-def]
    """1 / (1 - RATE) where an activation stays, 0 where it goes.

    A hash of the place and the seed: two rounds of multiply and shift. (The ten of tl.rand's generator would
    take a tenth of a U-Net's training.)
    """
    u = (n * (S * C) + here).to(tl.uint32) + tl.load(seed).to(tl.uint32) * 0x9E3779B9
    u = (u ^ (u >> 16)) * 0x7FEB352D
    u = (u ^ (u >> 15)) * 0x846CA68B
    u = (u ^ (u >> 16)) >> 8  # 24 bits
    return tl.where(u.to(tl.float32) < RATE * 16777216.0, 0.0, 1 / (1 - RATE))


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    x, scale, shift, seed, y, means, rstds, epsilon,
    S: tl.constexpr, C: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, EP: tl.constexpr, P: tl.constexpr,
    SILU: tl.constexpr, RATE: tl.constexpr,
):  # fmt: skip
    """One row of S pixels: y, and each map's mean and 1 / deviation, (B, C)."""
    n = tl.program_id(0)
    row = n.to(tl.int64) * (S * C)
    c, real = _place(C, G, GP, EP)
    first = tl.zeros((P, GP * EP), tl.float32)
    second = tl.zeros((P, GP * EP), tl.float32)
    for start in range(0, S, P):
        s = start + tl.arange(0, P)
        here, mask = s[:, None] * C + c[None, :], (s < S)[:, None] & real[None, :]
        v = tl.load(x + row + here, mask=mask, other=0.0).to(tl.float32)
        first += v
        second += v * v
    count = S * (C // G)
    mean = _by_group(tl.sum(first, axis=0), GP, EP) / count
    spread = _by_group(tl.sum(second, axis=0), GP, EP) / count - mean * mean
    rstd = 1 / tl.sqrt(tl.maximum(spread, 0.0) + epsilon)
    tl.store(means + n * C + c, mean, mask=real)
    tl.store(rstds + n * C + c, rstd, mask=real)
    a = tl.load(scale + n * C + c, mask=real, other=0.0)
    b = tl.load(shift + n * C + c, mask=real, other=0.0)
    a = a * rstd
    b = b - mean * a
    for start in range(0, S, P):
        s = start + tl.arange(0, P)
        here, mask = s[:, None] * C + c[None, :], (s < S)[:, None] & real[None, :]
        v = tl.load(x + row + here, mask=mask, other=0.0).to(tl.float32)
        z = v * a[None, :] + b[None, :]
        if SILU:
            z = z / (1 + tl.exp(-z))
        if RATE > 0:
            z = z * _keep(seed, n, S, C, here, RATE)
        tl.store(y + row + here, z.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _slope(v, grad, mean, rstd, a, b, keep, SILU: tl.constexpr):  # type: ignore[no-untyped-def]
    """The normalised value, and the gradient that reaches what silu was given."""
    normal = (v - mean[None, :]) * rstd[None, :]
    if SILU:
        z = normal * a[None, :] + b[None, :]
        gate = 1 / (1 + tl.exp(-z))
        grad = grad * gate * (1 + z * (1 - gate))
    return normal, grad * keep


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    x, grad_y, scale, shift, seed, means, rstds, grad_x, grad_scale, grad_shift,
    S: tl.constexpr, C: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, EP: tl.constexpr, P: tl.constexpr,
    SILU: tl.constexpr, RATE: tl.constexpr,
):  # fmt: skip
    """One row: the gradient of x, and those of its scale and shift, (B, C)."""
    n = tl.program_id(0)
    row = n.to(tl.int64) * (S * C)
    c, real = _place(C, G, GP, EP)
    mean = tl.load(means + n * C + c, mask=real, other=0.0)
    rstd = tl.load(rstds + n * C + c, mask=real, other=0.0)
    a = tl.load(scale + n * C + c, mask=real, other=0.0)
    b = tl.load(shift + n * C + c, mask=real, other=0.0)
    plain = tl.zeros((P, GP * EP), tl.float32)
    times = tl.zeros((P, GP * EP), tl.float32)
    for start in range(0, S, P):
        s = start + tl.arange(0, P)
        here, mask = s[:, None] * C + c[None, :], (s < S)[:, None] & real[None, :]
        v = tl.load(x + row + here, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(grad_y + row + here, mask=mask, other=0.0).to(tl.float32)
        keep = 1.0
        if RATE > 0:
            keep = _keep(seed, n, S, C, here, RATE)
        normal, g = _slope(v, g, mean, rstd, a, b, keep, SILU)
        plain += g
        times += g * normal
    to_shift, to_scale = tl.sum(plain, axis=0), tl.sum(times, axis=0)
    tl.store(grad_shift + n * C + c, to_shift, mask=real)
    tl.store(grad_scale + n * C + c, to_scale, mask=real)
    count = S * (C // G)
    along_mean = _by_group(to_shift * a, GP, EP) / count
    along_value = _by_group(to_scale * a, GP, EP) / count
    for start in range(0, S, P):
        s = start + tl.arange(0, P)
        here, mask = s[:, None] * C + c[None, :], (s < S)[:, None] & real[None, :]
        v = tl.load(x + row + here, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(grad_y + row + here, mask=mask, other=0.0).to(tl.float32)
        keep = 1.0
        if RATE > 0:
            keep = _keep(seed, n, S, C, here, RATE)
        normal, g = _slope(v, g, mean, rstd, a, b, keep, SILU)
        d = (g * a[None, :] - along_mean[None, :] - normal * along_value[None, :]) * rstd[None, :]
        tl.store(grad_x + row + here, d.to(grad_x.dtype.element_ty), mask=mask)


class NormSiLU(torch.autograd.Function):
    """The kernels as one differentiable function of x (B, C, H, W), scale and shift (B, C)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor,
        shift: Tensor,
        seed: Tensor | None,
        groups: int,
        epsilon: float,
        silu: bool,
        rate: float,
    ) -> Tensor:
        """Y, channels last, in the type of x."""
        x = x.contiguous(memory_format=torch.channels_last)
        scale, shift = scale.float().contiguous(), shift.float().contiguous()
        y, means, rstds = torch.empty_like(x), torch.empty_like(scale), torch.empty_like(scale)
        ctx.how = _how(x, groups, silu, 0.0 if seed is None else rate)
        seed = means if seed is None else seed  # not read then
        _forward[(len(x),)](x, scale, shift, seed, y, means, rstds, epsilon, **ctx.how)
        ctx.save_for_backward(x, scale, shift, seed, means, rstds)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Gradients of x, scale and shift."""
        x, scale, shift, seed, means, rstds = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        grad_x, grad_scale, grad_shift = (torch.empty_like(t) for t in (x, scale, shift))
        _backward[(len(x),)](
            x, grad, scale, shift, seed, means, rstds, grad_x, grad_scale, grad_shift, **ctx.how
        )
        return grad_x, grad_scale, grad_shift, None, None, None, None, None


def _how(x: Tensor, groups: int, silu: bool, rate: float) -> dict[str, Any]:
    maps, pixels = x.shape[1], x.shape[2] * x.shape[3]
    some, each = triton.next_power_of_2(groups), triton.next_power_of_2(maps // groups)
    tile = max(1, min(triton.next_power_of_2(pixels), TILE // (some * each)))
    sizes = {"S": pixels, "C": maps, "G": groups, "GP": some, "EP": each, "P": tile}
    return sizes | {"SILU": silu, "RATE": rate, "num_warps": min(WARPS, max(1, tile * some * each // 256))}
