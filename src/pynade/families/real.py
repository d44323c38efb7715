"""What all real-valued families share: their domain, their scale, and the mean's gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from pynade.families.base import Family


class Real(Family):
    """Abstract law of a real variable with a location and a scale.

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

    def encode(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """The value itself."""
        return x.unsqueeze(-1)

    def best_guess(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The mean."""
        return self.mean(eta, i)

    def expectation(
        self, function: Callable[[Tensor], Tensor], eta: Tensor, i: Tensor | None = None
    ) -> Tensor:
        """E[function(X)], a numerical integral over the quantile function: (…, P) -> (…).

        The part of the law beyond probabilities of 1e-16 is left out, so a function that grows too
        fast for the mean to exist still gives a number.
        """
        exact = eta.double()  # in float32 a probability near 1 would round to it
        total = torch.zeros_like(exact[..., 0])
        for u, weight in probability_nodes():
            total = total + weight * function(self.quantile(torch.full_like(total, u), exact, i))
        return total.to(eta.dtype)

    def log_scale(self, raw: Tensor) -> Tensor:
        """Log sigma from a raw output."""
        if self.sigma_floor == 0:
            return raw
        log_floor = math.log(self.sigma_floor)  # log(floor + exp(raw)), whatever their sizes
        return log_floor + functional.softplus(raw - log_floor, threshold=40)

    def raw_scale(self, scale: Tensor) -> Tensor:
        """The raw output whose sigma is `scale`; where the floor forbids it, sigma is 1.001 floors."""
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
    wrong = ~torch.isfinite(x)
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        value = x[row, column].item()
        what = "missing or not a number" if value != value else f"{value:g}"
        raise ValueError(f"a {name} model needs finite numbers, but row {row}, column {column} is {what}")


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation of each column in float64, over the cells that are not NaN.

    A column without spread (its deviation within rounding of zero) is given deviation 1, since its values
    say nothing about a scale; one without any value is given mean 0 and deviation 1.
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
