"""Standard distributions (location 0, scale 1) from which the real-valued families are made.

All functions act on each element, keep the tensor's device and dtype, and are finite in value and gradient
for |z| up to 1e12 in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Standard:
    """A standard distribution, used by itself and by mixtures of K of them.

    Attributes:
        name: by which compiled loops know it.
        log_kernel: the log-density without its constant, which a sum over components adds once.
        log_constant: the log-density is `log_kernel(z) + log_constant`.
        cdf: P(Z <= z).
        quantile: inverse of the cdf; infinite at 0 and 1.
        deviation: standard deviation.
    """

    name: str
    log_kernel: Function
    log_constant: float
    cdf: Function
    quantile: Function
    deviation: float

    def noise(self, like: Tensor, generator: Generator | None) -> Tensor:
        """Independent draws of the shape, dtype and device of `like`."""
        if self is not NORMAL:
            return self.quantile(uniforms(like, generator))
        device = like.device if generator is None else generator.device
        return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=device).to(like.device)


def _laplace_cdf(z: Tensor) -> Tensor:
    half = 0.5 * torch.exp(-z.abs())
    return torch.where(z < 0, half, 1 - half)


NORMAL = Standard(
    "Normal",
    log_kernel=lambda z: -0.5 * z.square(),
    log_constant=-0.5 * math.log(2 * math.pi),
    cdf=torch.special.ndtr,
    quantile=torch.special.ndtri,
    deviation=1.0,
)
LAPLACE = Standard(
    "DoubleExponential",
    log_kernel=lambda z: -z.abs(),
    log_constant=-math.log(2),
    cdf=_laplace_cdf,
    quantile=lambda q: torch.where(q < 0.5, torch.log(2 * q), -torch.log(2 - 2 * q)),
    deviation=math.sqrt(2),
)
LOGISTIC = Standard(
    "StandardLogistic",
    log_kernel=lambda z: 2 * functional.logsigmoid(z) - z,  # log sigm(z) + log sigm(-z), with one logarithm
    log_constant=0.0,
    cdf=torch.sigmoid,
    quantile=torch.logit,
    deviation=math.pi / math.sqrt(3),
)


def uniforms(like: Tensor, generator: Generator | None) -> Tensor:
    """Uniform draws strictly between 0 and 1, made on the generator's device and moved to that of `like`."""
    device = like.device if generator is None else generator.device
    u = torch.rand(like.shape, generator=generator, dtype=like.dtype, device=device)
    return u.clamp_(min=torch.finfo(u.dtype).eps / 4).to(like.device)


def pick(probabilities: Tensor, generator: Generator | None) -> Tensor:
    """Which of K outcomes a uniform number selects, (…, K) -> (…)."""
    edges = probabilities.cumsum(-1)
    u = uniforms(edges[..., 0], generator).unsqueeze(-1) * edges[..., -1:]
    return (edges[..., :-1] < u).sum(-1)
