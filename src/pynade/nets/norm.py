"""Normalised, modulated and activated maps: one kernel on a GPU, plain torch elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.kernels import backends
from pynade.nets.layers import dropped


def norm_silu(
    h: Tensor,
    norm: nn.Module,
    modulation: Tensor | None = None,
    *,
    silu: bool = True,
    dropout: float = 0.0,
    noise: torch.Generator | None = None,
) -> Tensor:
    """Maps (B, C, H, W) after a group norm, a modulation, SiLU and dropout.

    On CUDA, for float32 and bfloat16, this is one fused kernel (`pynade.kernels.norm`); its sums are float32
    whatever h is. Its dropout draws other activations than torch's with the same
    generator, with the same law.

    Args:
        h: the maps.
        norm: the group norm, whose parameters are used.
        modulation: (B, 2 · C), a row's scale and shift: the normalised maps times 1 + scale, plus shift.
        silu: False leaves out the activation.
        dropout: share of activations dropped.
        noise: source of dropout; None drops nothing.

    Example:
        >>> import torch
        >>> norm_silu(torch.ones(2, 4, 3, 3), nn.GroupNorm(2, 4)).abs().max().item()
        0.0
    """
    assert isinstance(norm, nn.GroupNorm)
    if _fused(h):
        return _on_gpu(h, norm, modulation, silu, dropout, noise)
    h = norm(h)
    if modulation is not None:
        scale, shift = modulation[:, :, None, None].chunk(2, dim=1)
        h = h * (1 + scale) + shift
    return dropped(functional.silu(h) if silu else h, dropout, noise)


def _fused(h: Tensor) -> bool:
    able = h.dtype in (torch.float32, torch.bfloat16)
    return able and h.device.type == "cuda" and backends.available("triton")


def _on_gpu(
    h: Tensor,
    norm: nn.GroupNorm,
    modulation: Tensor | None,
    silu: bool,
    dropout: float,
    noise: torch.Generator | None,
) -> Tensor:
    from pynade.kernels.norm import NormSiLU

    scale, shift = norm.weight.expand(len(h), -1), norm.bias.expand(len(h), -1)
    if modulation is not None:
        more, further = modulation.float().chunk(2, dim=1)
        scale, shift = scale * (1 + more), shift * (1 + more) + further
    seed = None
    if noise is not None and dropout > 0:
        seed = torch.randint(1 << 31, (1,), generator=noise, device=h.device)
    y: Tensor = NormSiLU.apply(h, scale, shift, seed, norm.num_groups, norm.eps, silu, dropout)
    return y
