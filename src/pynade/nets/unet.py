"""An any-order U-Net for images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.arguments import check_positive
from pynade.nets.base import Random
from pynade.nets.layers import Conv, ImageNet, Linear, attend, norm_silu

WAVES = 32  # frequencies of the sinusoidal embedding of the number of observed variables
LONGEST = 10_000  # its longest wavelength, divided by 2π


class UNet(ImageNet):
    """Any-order residual U-Net (Ronneberger et al., 2015; blocks as in Ho et al., 2020).

    Each level of the downward path halves the image by a convolution of stride 2 and increases the number of
    maps; the upward path doubles it by nearest-neighbour upsampling, with skip connections. Odd sides are
    rounded up (7 → 4 → 2 → 1) and restored on the way up. The initial eta is the output bias.

    Args:
        image_shape, n_params, channels, n_features, dropout, generator: as for `ImageNet` and `Net`.
        width: maps at the first level.
        multipliers: maps at each level, as a multiple of `width`; one number per level.
        blocks: residual blocks per level on the way down (one more on the way up).
        attention: levels, from 0, whose blocks are followed by self-attention, as is the middle block; None:
            all but the first.
        heads: attention heads.
        groups: groups of the group norms; `width` is a multiple of it and larger.
        input_observed: the mask of observed pixels is an input too.
        signed: inputs 0 and 1 are mapped to -1 and +1, and unobserved pixels are 0.
        coordinates: two further input maps have the coordinates of the pixels, from -1 to 1.
        count_embedding: scales and shifts of every block depend on the number of observed variables.

    Example:
        >>> net = UNet((28, 28))
        >>> sum(p.numel() for p in net.parameters())
        7266256
        >>> net.conditionals(torch.ones(1, 784, 1), torch.ones(1, 784, dtype=torch.bool)).shape
        torch.Size([1, 784, 1])
    """

    input_weights = ("stem.weight",)

    def __init__(
        self,
        image_shape: Sequence[int],
        n_params: int = 1,
        *,
        channels: int = 1,
        n_features: int = 1,
        width: int = 64,
        multipliers: Sequence[int] = (1, 2, 2),
        blocks: int = 2,
        attention: Sequence[int] | None = None,
        dropout: float = 0.1,
        heads: int = 4,
        groups: int = 8,
        input_observed: bool = True,
        signed: bool = True,
        coordinates: bool = True,
        count_embedding: bool = True,
        generator: Random = None,
    ) -> None:
        super().__init__(image_shape, n_params, channels, n_features, dropout)
        self.width, self.blocks, self.heads, self.groups = width, blocks, heads, groups
        self.multipliers, levels = tuple(map(int, multipliers)), len(multipliers)
        self.attention = tuple(map(int, range(1, levels) if attention is None else attention))
        self.input_observed, self.signed, self.coordinates = input_observed, signed, coordinates
        self.count_embedding = count_embedding
        check_positive(blocks=blocks)
        if not self.multipliers or min(self.multipliers) < 1:
            raise ValueError(f"multipliers are whole numbers of at least 1, not {self.multipliers}")
        if groups < 1 or width % groups or width <= groups:
            # (the norm of a group of one map of 1 × 1 pixel would always be zero)
            raise ValueError(f"width must be a larger multiple of groups={groups}, not {width}")
        if any(not 0 <= level < levels for level in self.attention):
            raise ValueError(f"attention names levels 0 … {levels - 1}, not {self.attention}")
        for level in {*self.attention, levels - 1}:
            maps = width * self.multipliers[level]
            if heads < 1 or maps % heads:
                raise ValueError(f"heads must divide the {maps} maps of level {level}, not {heads}")
        in_memory = 2 * blocks + 10  # multiple of `width`: maps of the first level, with skip connections
        self.row_floats = math.prod(self.image_shape) * (in_memory * width + 2 * channels * n_params)

        inputs = channels * (n_features + int(input_observed)) + 2 * int(coordinates)
        condition = 4 * width
        if count_embedding:
            first, second = (Linear(n, condition, generator) for n in (2 * WAVES, condition))
            self.count = nn.Sequential(first, nn.SiLU(), second, nn.SiLU())
        self.stem = Conv(inputs, width, generator)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        maps, skipped = width, [width]
        for level, multiplier in enumerate(self.multipliers):
            if level:
                self.shrink.append(Conv(maps, maps, generator, stride=2))
                skipped.append(maps)
            for _ in range(blocks):
                self.down.append(_Block(self, maps, width * multiplier, level in self.attention, generator))
                maps = width * multiplier
                skipped.append(maps)
        self.middle = nn.ModuleList(_Block(self, maps, maps, attends, generator) for attends in (True, False))
        self.up, self.enlarge = nn.ModuleList(), nn.ModuleList()
        for level, multiplier in reversed([*enumerate(self.multipliers)]):
            for _ in range(blocks + 1):
                n_in, maps = maps + skipped.pop(), width * multiplier
                self.up.append(_Block(self, n_in, maps, level in self.attention, generator))
            if level:
                self.enlarge.append(Conv(maps, maps, generator))
        self.norm = nn.Parameter(torch.zeros(2 * maps))
        self.output = Conv(maps, channels * n_params, generator, scale=0)
        if count_embedding:  # one layer for all blocks
            self.sizes = [2 * block.n_out for block in self._blocks()]
            self.modulation = Linear(condition, sum(self.sizes), generator, scale=0)

    def conditionals(self, features: Tensor, observed: Tensor, noise: Random = None) -> Tensor:
        """Eta (B, D, P) given the observed variables, in one pass."""
        modulations = self._modulations(observed, features.dtype)
        h = self.stem(self.to_maps(features, observed))
        skipped = [h]
        for n, block in enumerate(self.down):
            if n and n % self.blocks == 0:
                h = self.shrink[n // self.blocks - 1](h)
                skipped.append(h)
            h = block(h, next(modulations), noise)
            skipped.append(h)
        for block in self.middle:
            h = block(h, next(modulations), noise)
        for n, block in enumerate(self.up):
            if n and n % (self.blocks + 1) == 0:
                with torch.autocast(h.device.type, enabled=False):  # in the dtype of h
                    h = functional.interpolate(h, size=skipped[-1].shape[-2:], mode="nearest-exact")
                h = self.enlarge[n // (self.blocks + 1) - 1](h)
            h = block(torch.cat((h, skipped.pop()), dim=1), next(modulations), noise)
        return self.from_maps(self.output(norm_silu(h, self.norm, self.groups)))

    def _blocks(self) -> Any:
        return chain(self.down, self.middle, self.up)

    def _modulations(self, observed: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
        """Scales and shifts (B, 2 · maps) of every block, from the number of observed variables."""
        if not self.count_embedding:
            return (block.own for block in self._blocks())
        steps = torch.arange(WAVES, dtype=dtype, device=observed.device) / WAVES
        angles = observed.sum(1).to(dtype)[:, None] * torch.exp(-math.log(LONGEST) * steps)
        modulations = self.modulation(self.count(torch.cat((angles.sin(), angles.cos()), dim=1)))
        return iter(modulations.split(self.sizes, dim=1))


class _Block(nn.Module):
    """x + conv(dropout(silu(modulated norm(conv(silu(norm(x))))))), then self-attention if `attends`."""

    def __init__(self, net: UNet, n_in: int, n_out: int, attends: bool, generator: Random) -> None:
        super().__init__()
        self.n_out, self.groups, self.dropout = n_out, net.groups, net.dropout
        self.heads = net.heads if attends else 0
        self.affine = nn.Parameter(torch.zeros(2 * n_in))  # scales minus 1, then shifts, of the first norm
        self.own = None if net.count_embedding else nn.Parameter(torch.zeros(2 * n_out))  # of the second norm
        self.first = Conv(n_in, n_out, generator)
        self.second = Conv(n_out, n_out, generator, scale=0)
        self.shortcut = Conv(n_in, n_out, generator, 1) if n_in != n_out else nn.Identity()
        if attends:
            self.before = nn.Parameter(torch.zeros(2 * n_out))  # of the norm before attention
            self.queries_keys_values = Linear(n_out, 3 * n_out, generator, bias=False)
            self.attended = Linear(n_out, n_out, generator, scale=0, bias=False)

    def forward(self, x: Tensor, modulation: Tensor, noise: Random) -> Tensor:
        h = self.first(norm_silu(x, self.affine, self.groups))
        h = norm_silu(h, modulation, self.groups, dropout=self.dropout, noise=noise)
        h = self.shortcut(x) + self.second(h)
        if not self.heads:
            return h
        tokens = norm_silu(h, self.before, self.groups, silu=False).flatten(2).mT  # (B, pixels, maps)
        tokens = self.attended(attend(self.queries_keys_values(tokens), self.heads)[0])
        return h + tokens.mT.unflatten(2, h.shape[2:])
