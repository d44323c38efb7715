"""Normalised maps and tokens, with what surrounds a norm: one kernel on a GPU, plain torch elsewhere."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn import functional

from pynade.kernels import backends
from pynade.kernels.private import mapped
from pynade.nets.layers import dropped

EPSILON = 1e-5  # added to every variance


def norm_silu(
    h: Tensor,
    affine: Tensor,
    groups: int,
    *,
    silu: bool = True,
    dropout: float = 0.0,
    noise: Generator | None = None,
) -> Tensor:
    """Maps (B, C, H, W) after a group norm, a scale and a shift, SiLU and dropout.

    On CUDA, for float32 and bfloat16, this is one fused kernel (`pynade.kernels.norm`); its sums are float32
    whatever h is. Its dropout draws other activations than torch's with the same
    generator, from the same distribution.

    Args:
        h: the maps.
        affine: (2 · C,), or (B, 2 · C) for each row its own: how far every map's scale is from 1, then the
            shifts.
        groups: of maps that are normalised together.
        silu: False leaves out the activation.
        dropout: share of activations dropped.
        noise: source of dropout; None drops nothing.

    Example:
        >>> import torch
        >>> norm_silu(torch.ones(2, 4, 3, 3), torch.zeros(8), groups=2).abs().max().item()
        0.0
    """
    if _fused(h):
        from pynade.kernels.norm import NormSiLU

        seed = None
        if noise is not None and dropout > 0:
            seed = torch.randint(1 << 31, (1,), generator=noise, device=h.device)
        y: Tensor = NormSiLU.apply(h, affine, seed, groups, EPSILON, silu, dropout)
        return y
    scale, shift = affine.unflatten(-1, (2, -1, 1, 1)).unbind(-4)
    h = _group_norm(h, groups) * (1 + scale) + shift
    return dropped(functional.silu(h) if silu else h, dropout, noise)


def add_norm(h: Tensor, more: Tensor | None = None, *, exact: bool = False) -> tuple[Tensor, Tensor]:
    """Tokens h (…, width) plus `more`, and the sum with mean 0 and variance 1 in every token.

    On CUDA, for float32 tokens, this is one fused kernel (`pynade.kernels.norm`).

    Args:
        h: the tokens.
        more: what is added to them, if anything.
        exact: the second result has the type of h even where matrix products are computed in another.

    Example:
        >>> import torch
        >>> add_norm(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0]))
        (tensor([1., 3.]), tensor([-1.0000,  1.0000]))
    """
    if _fused(h) and h.dtype == torch.float32:
        from pynade.kernels.norm import AddNorm

        half = torch.is_autocast_enabled("cuda") and not exact
        dtype = torch.get_autocast_dtype("cuda") if half else h.dtype
        out = AddNorm.apply(h, more, dtype, EPSILON)
        return (h, out) if more is None else out
    h = h if more is None else h + more
    return h, functional.layer_norm(h, h.shape[-1:], eps=EPSILON)


def _group_norm(h: Tensor, groups: int) -> Tensor:
    if not mapped():
        return functional.group_norm(h, groups, eps=EPSILON)
    parts = h.unflatten(1, (groups, -1))  # torch's own does not support `vmap` without weights
    return functional.layer_norm(parts, parts.shape[2:], eps=EPSILON).flatten(1, 2)


def _fused(h: Tensor) -> bool:
    able = h.dtype in (torch.float32, torch.bfloat16) and not mapped()  # these kernels do not support `vmap`
    return able and h.device.type == "cuda" and backends.available("triton")
