"""Layers that several nets use; all initial weights are drawn from an explicit generator."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from pynade.arguments import check_positive
from pynade.kernels import backends
from pynade.kernels.private import transforms_active
from pynade.nets.base import AnyOrderNet, Random, glorot
from pynade.processes import rows_to_draw

EPSILON = 1e-5  # added to every variance


class Linear(nn.Linear):
    """A linear layer with Glorot's initial weights times `scale` (0: the initial output is zero)."""

    def __init__(self, n_in: int, n_out: int, generator: Random, scale: float = 1, bias: bool = True) -> None:
        super().__init__(n_in, n_out, bias, device="meta")  # draws nothing
        self.weight = glorot(n_out, n_in, generator=generator)
        self.weight.data *= scale
        if bias:
            self.bias = nn.Parameter(torch.zeros(n_out))


class Conv(nn.Module):
    """Convolution with an odd square filter and zero padding, weights as in `Linear`, without a bias."""

    def __init__(
        self, n_in: int, n_out: int, generator: Random, size: int = 3, stride: int = 1, scale: float = 1
    ) -> None:
        super().__init__()
        weight = glorot(n_out, n_in, size, size, generator=generator).detach() * scale
        self.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last))  # as the maps
        self.stride, self.padding = stride, size // 2

    def forward(self, x: Tensor) -> Tensor:
        """(B, n_in, H, W) -> (B, n_out, ⌈H / stride⌉, ⌈W / stride⌉)."""
        return convolve(x, self.weight, stride=self.stride, padding=self.padding)


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
    fill: bool | None = None,
) -> Tensor:
    """`functional.conv2d`, with the numbers of maps padded to multiples of eight (`fill`; None: if faster).

    The tensor cores of a GPU need multiples of eight for bfloat16; other sizes do not use them.
    """
    n_out, n_in = weight.shape[:2]
    if fill is None:
        half = torch.is_autocast_enabled(x.device.type) or x.dtype == torch.bfloat16
        fill = x.device.type == "cuda" and half
    pad_out, pad_in = (-n_out % 8, -n_in % 8) if fill else (0, 0)
    if pad_in:
        x = functional.pad(x, (0, 0, 0, 0, 0, pad_in))
    if pad_in or pad_out:
        weight = functional.pad(weight, (0, 0, 0, 0, 0, pad_in, 0, pad_out))
    if pad_out and bias is not None:
        bias = functional.pad(bias, (0, pad_out))
    return functional.conv2d(x, weight, bias, stride=stride, padding=padding)[:, :n_out]


def apply_dropout(h: Tensor, rate: float | Tensor, noise: Random, axis: int = 0) -> Tensor:
    """Dropout: a share `rate` of the activations set to zero, the others scaled; none without `noise`.

    `axis` is the axis of the rows. For a piece of a minibatch the noise is drawn for all rows of the
    minibatch, and a part of it is used.
    """
    if noise is None or (not isinstance(rate, Tensor) and rate == 0):
        return h
    n = h.shape[axis]
    rows, first = rows_to_draw(n)
    like = h if rows == n else h.new_empty((*h.shape[:axis], rows, *h.shape[axis + 1 :]))
    if rows > n and h.ndim == 4 and h.stride(1) == 1:  # channels last: noise is drawn in memory order
        like = h.new_empty((rows, *h.shape[2:], h.shape[1])).movedim(-1, 1)
    if isinstance(rate, Tensor):  # the rate of one member of a population
        keep = torch.rand(like.shape, generator=noise, dtype=h.dtype, device=h.device) >= rate
    else:
        keep = torch.empty_like(like, dtype=torch.bool).bernoulli_(1 - rate, generator=noise)
    if rows > n:
        keep = keep.narrow(axis, first, n).clone()  # frees the rest
    return h * keep / (1 - rate)


def attend(
    qkv: Tensor, heads: int, causal: bool = False, past: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Attention (B, T, width) of tokens, from their queries, keys and values (B, T, 3 · width).

    `past` holds the keys and values (B, 2, heads, t, d) of earlier tokens, and is returned with those of the
    present tokens appended.
    """
    if past is None and _has_fused_kernel(qkv):
        from pynade.kernels.attention import Attention, suits

        if suits(qkv, heads):
            attention: Tensor = Attention.apply(qkv, heads, causal)
            return attention, None
    # (split before the transposition, so that gradients have the memory layout of qkv)
    q, k, v = (part.transpose(1, 2) for part in qkv.unflatten(-1, (3, heads, -1)).unbind(2))
    if past is not None:
        past = torch.cat((past, torch.stack((k, v), dim=1)), dim=3)
        k, v = past.unbind(1)
    unfused = (
        transforms_active() and q.device.type == "cpu"
    )  # the fused kernel does not support `vmap`, and warns
    with sdpa_kernel(SDPBackend.MATH) if unfused else nullcontext():
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return out.transpose(1, 2).flatten(2), past


def norm_silu(
    h: Tensor, affine: Tensor, groups: int, *, silu: bool = True, dropout: float = 0.0, noise: Random = None
) -> Tensor:
    """Group norm of maps h (B, C, H, W), followed by a scale and a shift, SiLU and dropout.

    `affine` (2 · C,) or (B, 2 · C) has the maps' scales minus 1, then their shifts. On CUDA this is one fused
    kernel (`pynade.kernels.norm`), whose dropout uses random numbers other than torch's.
    """
    if _has_fused_kernel(h):
        from pynade.kernels.norm import NormSiLU, seed_from_row

        noisy = noise is not None and dropout > 0
        seed = torch.randint(1 << 31, (1,), generator=noise, device=h.device) if noisy else None
        if seed is not None and (first := rows_to_draw(len(h))[1]):
            seed = seed_from_row(seed, first, h[0].numel())
        y: Tensor = NormSiLU.apply(h, affine, seed, groups, EPSILON, silu, dropout)
        return y
    scale, shift = affine.unflatten(-1, (2, -1, 1, 1)).unbind(-4)
    if transforms_active():  # torch's own group norm does not support `vmap` without weights
        parts = h.unflatten(1, (groups, -1))
        normal = functional.layer_norm(parts, parts.shape[2:], eps=EPSILON).flatten(1, 2)
    else:
        normal = functional.group_norm(h, groups, eps=EPSILON)
    h = normal * (1 + scale) + shift
    return apply_dropout(functional.silu(h) if silu else h, dropout, noise)


def add_norm(h: Tensor, more: Tensor | None = None, *, exact: bool = False) -> tuple[Tensor, Tensor]:
    """The sum of tokens h (…, width) and `more`, and its layer norm (mean 0, variance 1 in every token).

    The norm has the dtype of h (`exact`) or that of matrix products. On CUDA this is one fused kernel.
    """
    if _has_fused_kernel(h) and h.dtype == torch.float32:
        from pynade.kernels.norm import AddNorm

        half = torch.is_autocast_enabled("cuda") and not exact
        dtype = torch.get_autocast_dtype("cuda") if half else h.dtype
        out = AddNorm.apply(h, more, dtype, EPSILON)
        return (h, out) if more is None else out
    h = h if more is None else h + more
    return h, functional.layer_norm(h, h.shape[-1:], eps=EPSILON)


def _has_fused_kernel(h: Tensor) -> bool:
    supported = (
        h.dtype in (torch.float32, torch.bfloat16) and not transforms_active()
    )  # (no support for `vmap`)
    return supported and h.device.type == "cuda" and backends.available("triton")


class ImageNet(AnyOrderNet):
    """Abstract any-order net of images; variables are the pixels (channels, height, width), flattened.

    Args:
        image_shape: (height, width).
        channels: C, so that D = C · height · width.
        n_params, n_features, dropout: as for `Net`.

    Attributes:
        input_observed, signed, coordinates: form of the inputs, as for `UNet`.
    """

    input_observed: bool
    signed: bool = False
    coordinates: bool = False

    def __init__(
        self, image_shape: Sequence[int], n_params: int, channels: int, n_features: int, dropout: float
    ) -> None:
        shape = tuple(int(side) for side in image_shape)
        if len(shape) != 2 or min(shape) < 1:
            raise ValueError(f"image_shape is (height, width), both at least 1, not {tuple(image_shape)}")
        check_positive(channels=channels)
        super().__init__(channels * shape[0] * shape[1], n_params, n_features, dropout)
        self.image_shape, self.channels = shape, channels

    def to_maps(self, features: Tensor, observed: Tensor) -> Tensor:
        """Input maps (B, maps, H, W): values, zero if not observed, then flags and coordinates."""
        shape = len(features), -1, *self.image_shape
        known = features.masked_fill(~observed.unsqueeze(-1), 0)  # (a product would keep NaN)
        values, flags = known.mT.reshape(shape), observed.to(features.dtype).reshape(shape)
        maps = [2 * values - flags.repeat(1, self.n_features, 1, 1) if self.signed else values]
        if self.input_observed:
            maps.append(flags)
        if self.coordinates:
            options: Any = {"dtype": flags.dtype, "device": flags.device}
            sides = [torch.linspace(-1, 1, n, **options) for n in self.image_shape]
            maps.append(torch.stack(torch.meshgrid(*sides, indexing="ij")).expand(len(flags), -1, -1, -1))
        inputs = torch.cat(maps, dim=1)  # on a GPU in the layout of convolutions in bfloat16
        return inputs.contiguous(memory_format=torch.channels_last) if inputs.is_cuda else inputs

    def from_maps(self, maps: Tensor) -> Tensor:
        """Eta (B, D, P) from output maps (B, P·C, H, W)."""
        return maps.reshape(len(maps), -1, self.n_variables).mT + self.bias
