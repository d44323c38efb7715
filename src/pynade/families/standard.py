"""Standard distributions (location 0, scale 1) from which the real-valued families are made.

Each is a log-density split into a kernel and a constant, a cdf and its inverse, used by a single distribution
and by a mixture of K of them. All functions act on each element, keep the tensor's device and dtype, and are
finite in value and gradient for |z| up to 1e12 in float32.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Generator, Tensor
from torch.nn import functional


class Standard(ABC):
    """Abstract standard distribution.

    Attributes:
        log_constant: the log-density is `log_kernel(z) + log_constant`; apart, so that a sum over
            components adds it once.
        deviation: its standard deviation.
    """

    log_constant: float
    deviation: float

    @abstractmethod
    def log_kernel(self, z: Tensor) -> Tensor:
        """Log-density up to the constant."""

    @abstractmethod
    def cdf(self, z: Tensor) -> Tensor:
        """P(Z <= z)."""

    @abstractmethod
    def quantile(self, q: Tensor) -> Tensor:
        """Inverse of the cdf; infinite at 0 and 1."""

    def noise(self, like: Tensor, generator: Generator | None) -> Tensor:
        """Independent draws of the shape, dtype and device of `like`."""
        return self.quantile(uniforms(like, generator))


class Normal(Standard):
    """exp(-z²/2) / sqrt(2π)."""

    log_constant = -0.5 * math.log(2 * math.pi)
    deviation = 1.0

    def log_kernel(self, z: Tensor) -> Tensor:
        """-z²/2."""
        return -0.5 * z.square()

    def cdf(self, z: Tensor) -> Tensor:
        """Φ(z), accurate in the lower tail."""
        return torch.special.ndtr(z)

    def quantile(self, q: Tensor) -> Tensor:
        """Φ⁻¹(q)."""
        return torch.special.ndtri(q)

    def noise(self, like: Tensor, generator: Generator | None) -> Tensor:
        """Normal numbers of the generator."""
        device = like.device if generator is None else generator.device
        return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=device).to(like.device)


class DoubleExponential(Standard):
    """exp(-|z|) / 2: the standard Laplace distribution."""

    log_constant = -math.log(2)
    deviation = math.sqrt(2)

    def log_kernel(self, z: Tensor) -> Tensor:
        """-|z|."""
        return -z.abs()

    def cdf(self, z: Tensor) -> Tensor:
        """Half an exponential on each side of zero."""
        half = 0.5 * torch.exp(-z.abs())
        return torch.where(z < 0, half, 1 - half)

    def quantile(self, q: Tensor) -> Tensor:
        """log 2q below the middle, -log 2(1 - q) above."""
        return torch.where(q < 0.5, torch.log(2 * q), -torch.log(2 - 2 * q))


class StandardLogistic(Standard):
    """sigm(z) sigm(-z)."""

    log_constant = 0.0
    deviation = math.pi / math.sqrt(3)

    def log_kernel(self, z: Tensor) -> Tensor:
        """log sigm(z) + log sigm(-z), with one logarithm."""
        return 2 * functional.logsigmoid(z) - z

    def cdf(self, z: Tensor) -> Tensor:
        """sigm(z)."""
        return torch.sigmoid(z)

    def quantile(self, q: Tensor) -> Tensor:
        """logit(q)."""
        return torch.logit(q)


NORMAL, LAPLACE, LOGISTIC = Normal(), DoubleExponential(), StandardLogistic()


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
