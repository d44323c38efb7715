"""Student's t: a location-scale distribution with a tail parameter."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from pynade.families.real import Real, moments
from pynade.families.standard import uniforms


class StudentT(Real):
    """X = mu + sigma T, T of Student's t distribution, nu degrees of freedom; eta = (mu, log sigma, log nu).

    Args:
        sigma_floor: sigma = sigma_floor + exp(·).
        scale_mean_gradient: multiply the gradient of mu by sigma.

    Example:
        >>> import math, torch
        >>> cauchy = torch.tensor([[0.0, 0.0, 0.0]])  # nu = 1
        >>> round(StudentT().log_prob(torch.zeros(1), cauchy).exp().item() * math.pi, 5)
        1.0
    """

    n_params = 3

    def log_prob(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """c(nu) - log sigma - (nu + 1)/2 log(1 + z²/nu)."""
        mu, raw, log_nu = eta.unbind(-1)
        log_sigma, nu = self.log_scale(raw), torch.exp(log_nu)
        z = self.standardise(x, mu, log_sigma)
        return _log_constant(nu) - log_sigma - 0.5 * (nu + 1) * torch.log1p(z.square() / nu)

    def sample(self, eta: Tensor, i: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """sqrt(nu (U^(-2/nu) - 1)) cos(2πV) has exactly this distribution (Bailey, 1994)."""
        mu, raw, log_nu = eta.unbind(-1)
        nu = torch.exp(log_nu)
        u, v = uniforms(mu, generator), uniforms(mu, generator)
        t = torch.sqrt(nu * torch.expm1(-2 / nu * torch.log(u))) * torch.cos(2 * math.pi * v)
        return mu + torch.exp(self.log_scale(raw)) * t

    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """mu; for nu <= 1, where no mean exists, the median stands in for it, which is mu too."""
        return eta[..., 0]

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """By SciPy, on the CPU in float64; it has no gradient."""
        from scipy.special import stdtr

        mu, raw, log_nu = eta.detach().double().unbind(-1)
        z = (x.detach().double() - mu) * torch.exp(-self.log_scale(raw))
        return _by_numpy(stdtr, torch.exp(log_nu), z).to(eta)

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """By SciPy, on the CPU in float64; it has no gradient, and ends at 1e150 scales (nu < 0.1)."""
        from scipy.special import stdtrit

        mu, raw, log_nu = eta.detach().double().unbind(-1)
        z = _by_numpy(stdtrit, torch.exp(log_nu), q.detach().double()).to(mu.device)
        z = torch.where(q == 0, -math.inf, z)  # SciPy has +inf at both ends
        return (mu + torch.exp(self.log_scale(raw)) * z).to(eta.dtype)

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """Mean, variance and kurtosis of each column: nu = 4 + 6 / excess, at most 100 (NaN: no row)."""
        mean, deviation = moments(x)
        excess = ((x.double() - mean) / deviation).pow(4).nanmean(0).nan_to_num(0.0) - 3
        nu = 4 + 6 / excess.clamp(min=6 / 96)
        scale = deviation * torch.sqrt((nu - 2) / nu)
        return torch.stack([mean, self.raw_scale(scale), torch.log(nu)], -1)


def _log_constant(nu: Tensor) -> Tensor:
    """log Γ((nu + 1)/2) - log Γ(nu/2) - log(nu π)/2.

    The difference of two logarithms of Γ loses all digits for large nu (in float32 soon); beyond nu = 40
    its expansion in 2/nu takes over, whose error there is below 1e-15.
    """
    a = 0.5 * nu
    few, many = a.clamp(max=20), 1 / a.clamp(min=20)
    exact = torch.lgamma(few + 0.5) - torch.lgamma(few) - 0.5 * torch.log(few)
    s = many.square()
    series = many * (-1 / 8 + s * (1 / 192 + s * (-1 / 640 + s * (17 / 14336 - s * (31 / 18432)))))
    return torch.where(a < 20, exact, series) - 0.5 * math.log(2 * math.pi)


def _by_numpy(function: Callable[[Any, Any], Any], a: Tensor, b: Tensor) -> Tensor:
    return torch.as_tensor(function(a.cpu().numpy(), b.cpu().numpy()), dtype=torch.float64)
