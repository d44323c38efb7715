"""What all real-valued families share: their domain, location and scale, and the standard distributions.

Functions of standard distributions (location 0, scale 1) act on each element, keep the tensor's device and
dtype, and are finite in value and gradient for |z| up to 1e12 in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from pynade.families.base import Family, refuse

Function = Callable[[Tensor], Tensor]
WITHIN = 0.25  # share of a column's variance that the initial components of a mixture have


class Real(Family):
    """Abstract distribution of a real variable with a location and a scale.

    Args:
        sigma_floor: smallest scale: sigma = sigma_floor + exp(raw), exactly exp(raw) when it is 0. It changes
            likelihoods, so it is off by default and part of a saved model.
        scale_mean_gradient: multiply the gradient of every location by its scale on the way back, as the
            paper found useful with stochastic gradient descent (section "RNADE"). Values do not change.
    """

    discrete = False

    def __init__(self, sigma_floor: float = 0.0, scale_mean_gradient: bool = False) -> None:
        super().__init__()
        if not 0 <= sigma_floor < math.inf:
            raise ValueError(f"sigma_floor must be a finite number, zero or more, not {sigma_floor}")
        self.sigma_floor, self.scale_mean_gradient = float(sigma_floor), bool(scale_mean_gradient)

    def check(self, x: Tensor) -> None:
        """Every value must be a finite number."""
        check_finite(x, type(self).__name__)

    def expectation(self, function: Function, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """E[function(X)], a numerical integral over the quantile function: (…, P) -> (…).

        The tails beyond probabilities of 1e-16 are left out, so a function that grows too fast for the mean
        to exist still gives a number.
        """
        exact = eta.double()  # in float32 a probability near 1 would round to it
        total = torch.zeros_like(exact[..., 0])
        for u, weight in probability_nodes():
            total = total + weight * function(self.quantile(torch.full_like(total, u), exact, i))
        return total.to(eta.dtype)

    def log_scale(self, raw: Tensor) -> Tensor:
        """Log sigma from a net's output: log(floor + exp(raw)), whatever their sizes."""
        if self.sigma_floor == 0:
            return raw
        log_floor = math.log(self.sigma_floor)
        return log_floor + functional.softplus(raw - log_floor, threshold=40)

    def raw_scale(self, scale: Tensor) -> Tensor:
        """The output of a net whose sigma is `scale`; where the floor forbids it, sigma is 1.001 floors."""
        return torch.log((scale - self.sigma_floor).clamp(min=1e-3 * self.sigma_floor))

    def standardise(self, x: Tensor, loc: Tensor, log_scale: Tensor) -> Tensor:
        """z = (x - loc) / sigma.

        With `scale_mean_gradient`, dz/dloc is -1 in place of -1/sigma: every gradient of a location then
        comes out multiplied by its sigma. What is added is exactly zero, so z is the same to the last bit.
        """
        if not self.scale_mean_gradient:
            return (x - loc) * torch.exp(-log_scale)
        fixed = loc.detach()
        return (x - fixed) * torch.exp(-log_scale) + (fixed - loc)


@dataclass(frozen=True)
class Standard:
    """A standard distribution, used by itself and by mixtures of K of them."""

    name: str  # by which compiled loops know it
    log_kernel: Function  # the log-density without its constant, which a sum over components adds once
    log_constant: float  # the log-density is `log_kernel(z) + log_constant`
    cdf: Function  # P(Z <= z)
    quantile: Function  # inverse of the cdf; infinite at 0 and 1
    deviation: float  # standard deviation

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


def check_finite(x: Tensor, name: str) -> None:
    """Raise a ValueError that names the first cell which is no finite number."""
    refuse(x, ~torch.isfinite(x), f"a {name} model needs finite numbers")


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation of each column in float64, over the cells that are not NaN.

    A column without spread (its deviation within rounding of zero) is given deviation 1, since its values
    do not define a scale; one without any value is given mean 0 and deviation 1.
    """
    x = x.double()
    mean = x.nanmean(0).nan_to_num(0.0)
    deviation = (x - mean).square().nanmean(0).sqrt()
    spread = deviation > 1e-12 * mean.abs()  # False for NaN too
    return mean, torch.where(spread, deviation, torch.ones_like(deviation))


def probability_nodes(step: float = 1 / 16, reach: float = 8.2) -> list[tuple[float, float]]:
    """Probabilities Φ(t) and weights φ(t) of a trapezoid rule in t: ∫ Q(u) du = Σ weight · Q(u)."""
    n = int(reach / step)
    t = step * torch.arange(-n, n + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * t.square())
    return list(zip(torch.special.ndtr(t).tolist(), (weights / weights.sum()).tolist(), strict=True))
