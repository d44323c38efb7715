"""What all real-valued families share: their domain, their scale, and the gradient of the mean."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from pynade.families.base import Family, refuse

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
        self.sigma_floor = check_floor(sigma_floor)
        self.scale_mean_gradient = bool(scale_mean_gradient)

    def check(self, x: Tensor) -> None:
        """Every value must be a finite number."""
        check_finite(x, type(self).__name__)

    def best_guess(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The mean."""
        return self.mean(eta, i)

    def expectation(
        self, function: Callable[[Tensor], Tensor], eta: Tensor, i: Tensor | None = None
    ) -> Tensor:
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
        """Log sigma from a net's output."""
        return log_floored(raw, self.sigma_floor)

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


def check_finite(x: Tensor, name: str) -> None:
    """Raise a ValueError that names the first cell which is no finite number."""
    refuse(x, ~torch.isfinite(x), f"a {name} model needs finite numbers")


def check_floor(floor: float) -> float:
    """A smallest scale, or a ValueError."""
    if not 0 <= floor < math.inf:
        raise ValueError(f"sigma_floor must be a finite number, zero or more, not {floor}")
    return float(floor)


def log_floored(raw: Tensor, floor: float) -> Tensor:
    """log(floor + exp(raw)), whatever their sizes; exactly raw when the floor is 0."""
    if floor == 0:
        return raw
    return math.log(floor) + functional.softplus(raw - math.log(floor), threshold=40)


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


def spread_components(mean: Tensor, deviation: Tensor, k: int, standard: float) -> tuple[Tensor, Tensor]:
    """Locations and scales (D, K) of components of equal weights with these moments (D,) of each column.

    The locations are spread about the mean as normal quantiles. A share `WITHIN` of the variance is that of
    the components (all of it if K = 1), the rest is between them.

    Args:
        mean: of each column.
        deviation: of each column.
        k: number of components.
        standard: standard deviation of a component of scale 1.
    """
    grid = torch.special.ndtri((torch.arange(k, dtype=torch.float64, device=mean.device) + 0.5) / k)
    within = WITHIN if k > 1 else 1.0
    if k > 1:
        grid = grid * math.sqrt((1 - within) / grid.square().mean().item())
    mu = mean[:, None] + deviation[:, None] * grid
    return mu, (deviation * math.sqrt(within) / standard)[:, None].expand_as(mu)
