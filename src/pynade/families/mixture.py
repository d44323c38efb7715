"""Mixtures of K one-dimensional distributions of real numbers (RNADE-MoG, …) and of grey levels."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional

from pynade.families.base import Draw
from pynade.families.discrete import check_levels, check_whole
from pynade.families.real import (
    LAPLACE,
    LOGISTIC,
    NORMAL,
    Function,
    Real,
    Standard,
    choose,
    integrate,
    moments,
)
from pynade.kernels import backends

INFINITE = 1e30  # stands for infinity, as the outer ends of the lowest and the highest level
COMPONENT_VARIANCE = 0.25  # initial variance of each component, as a share of the column's variance


class MixtureFamily(Real):
    """Abstract Σ_c pi_c f((x - mu_c) / sigma_c) / sigma_c, with f a standard density.

    Eta is [K logits of pi | K locations mu | K logarithms of sigma] along its last axis (eqs.
    RNADE-outputs-pi, -mu, -sigma).

    Attributes:
        fused: compute the log-density on a CPU by compiled code, which supports first derivatives only;
            False uses torch.
    """

    standard: Standard
    fused = True

    def __init__(
        self, n_components: int, sigma_floor: float = 0.0, scale_mean_gradient: bool = False
    ) -> None:
        super().__init__(sigma_floor, scale_mean_gradient)
        if n_components < 1 or n_components != int(n_components):
            raise ValueError(f"n_components must be a whole number, at least 1, not {n_components}")
        self.n_components = int(n_components)
        self.n_params = 3 * self.n_components

    def parameters_of(self, eta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """pi, mu and sigma, each (…, K)."""
        logits, mu, log_sigma = self._parts(eta)
        return logits.softmax(-1), mu, torch.exp(log_sigma)

    def _parts(self, eta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of pi, mu and log sigma, each (…, K)."""
        logits, mu, raw = eta.split(self.n_components, -1)
        return logits, mu, self.log_scale(raw)

    def log_prob(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Log of the sum over components, by logsumexp."""
        whole = self.fused and eta.device.type == "cpu" and eta.shape[-1] == self.n_params
        if whole and backends.choose_kernel("auto", eta.device, x, eta) == "numba":
            from pynade.kernels import mixture as loops

            name, floor = self.standard.name, self.sigma_floor
            if loops.suits(x, eta, name, floor):
                constant = self.standard.log_constant
                return loops.log_prob(x, eta, name, constant, floor, self.scale_mean_gradient)
        logits, mu, log_sigma = self._parts(eta)
        z = self.standardise(x.unsqueeze(-1), mu, log_sigma)
        each = logits.log_softmax(-1) - log_sigma + self.standard.log_kernel(z)
        return torch.logsumexp(each, -1) + self.standard.log_constant

    def sample(self, eta: Tensor, i: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """Draw a component, then a value from it."""
        pi, mu, sigma = self.parameters_of(eta)
        component = choose(pi, generator).unsqueeze(-1)
        mu, sigma = mu.gather(-1, component)[..., 0], sigma.gather(-1, component)[..., 0]
        return mu + sigma * self.standard.noise(mu, generator)

    def sample_nade(self, draw: Draw, like: Tensor, generator: Generator | None) -> Tensor | None:
        """Rows by a compiled loop, which does not support `sigma_floor`."""
        if self.sigma_floor or type(self).sample is not MixtureFamily.sample:
            return None
        return draw(self.standard.noise(like, generator))

    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Σ pi_c mu_c."""
        pi, mu, _ = self.parameters_of(eta)
        return (pi * mu).sum(-1)

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Σ pi_c F((x - mu_c) / sigma_c)."""
        pi, mu, sigma = self.parameters_of(eta)
        return (pi * self.standard.cdf((x.unsqueeze(-1) - mu) / sigma)).sum(-1).clamp(max=1)

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """By bisection between the smallest and the largest quantile of the components, in float64."""
        exact, level = eta.double(), q.double()
        _, mu, sigma = self.parameters_of(exact)
        quantiles = mu + sigma * self.standard.quantile(level).unsqueeze(-1)
        low, high = quantiles.amin(-1), quantiles.amax(-1)
        for _ in range(100):
            middle = low + 0.5 * (high - low)  # NaN if both are infinite, which keeps `high`
            reached = self.cdf(middle, exact) >= level
            low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
        return high.to(eta.dtype)

    def expectation(self, function: Function, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Σ pi_c E_c[function(X)], each an integral over the component's quantiles (see `Real`)."""
        pi, mu, sigma = (part.movedim(-1, 0) for part in self.parameters_of(eta.double()))  # (K, …)
        each = integrate(function, lambda u: mu + sigma * self.standard.quantile(mu.new_tensor(u)))
        return (pi * each).sum(0).to(eta.dtype)

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """Equal weights and scales, with the mean and variance of each column (NaN is ignored)."""
        return self._eta_from_moments(*moments(x))

    def _eta_from_moments(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Eta (D, P) of mixtures with these moments (D,), whose components are at normal quantiles."""
        k = self.n_components
        grid = torch.special.ndtri((torch.arange(k, dtype=torch.float64, device=mean.device) + 0.5) / k)
        within = COMPONENT_VARIANCE if k > 1 else 1.0
        if k > 1:
            grid = grid * math.sqrt((1 - within) / grid.square().mean().item())
        mu = mean[:, None] + deviation[:, None] * grid
        sigma = (deviation * math.sqrt(within) / self.standard.deviation)[:, None].expand_as(mu)
        return torch.cat([torch.zeros_like(mu), mu, self.raw_scale(sigma)], -1)


class MixtureOfGaussians(MixtureFamily):
    """RNADE-MoG: p(x) = Σ_c pi_c N(x; mu_c, sigma_c²) (eqs. RNADE-outputs-pi, -mu, -sigma).

    Args:
        n_components: K.
        sigma_floor, scale_mean_gradient: as for `Real`, for every component.

    Example:
        >>> family = MixtureOfGaussians(2)
        >>> eta = torch.tensor([[0.0, 0.0, -3.0, 3.0, 0.0, 0.0]])
        >>> family.mean(eta).item(), round(family.cdf(torch.zeros(1), eta).item(), 6)
        (0.0, 0.5)
        >>> MixtureOfLaplaces(1).log_prob(torch.zeros(1), torch.zeros(1, 3)).exp().item()
        0.5
    """

    standard = NORMAL


class MixtureOfLaplaces(MixtureFamily):
    """RNADE-MoL: as `MixtureOfGaussians`, each component `exp(-|x - mu_c| / sigma_c) / 2 sigma_c`.

    Args:
        n_components, sigma_floor, scale_mean_gradient: as of `MixtureOfGaussians`.
    """

    standard = LAPLACE


class MixtureOfLogistics(MixtureFamily):
    """As `MixtureOfGaussians`, each component with cdf sigm((x - mu_c) / sigma_c).

    Args:
        n_components, sigma_floor, scale_mean_gradient: as of `MixtureOfGaussians`.
    """

    standard = LOGISTIC


def interval_log_prob(ends: tuple[Tensor, Tensor, Tensor], parts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Log-probability of intervals under mixtures of logistics, finite for any interval.

    sigm(b) - sigm(a) = sigm(b) sigm(-a) (1 - exp(a - b)), whose logarithm loses no digits.

    Args:
        ends: a, b and the width (b - a may be lost in rounding), each (…).
        parts: logits of pi, mu and log sigma, each (…, K).
    """
    a, b, width = (end.unsqueeze(-1) for end in ends)
    logits, mu, rate = *parts[:2], torch.exp(-parts[2])
    each = functional.logsigmoid((b - mu) * rate) + functional.logsigmoid((mu - a) * rate)
    each = each + torch.log(-torch.expm1(-(width * rate).clamp(min=1e-30)))
    return torch.logsumexp(logits.log_softmax(-1) + each, -1)


class DiscretisedLogistic(MixtureOfLogistics):
    """x in {0, …, L-1}: a mixture of K logistic distributions cut into L pieces (Salimans et al., 2017).

        p(x) = Σ_c pi_c [sigm((v + w - mu_c) / s_c) - sigm((v - w - mu_c) / s_c)]

    where v = 2x / (L-1) - 1 runs from -1 to 1 and w = 1 / (L-1) is half a level. The interval of the lowest
    level extends to minus infinity, that of the highest to infinity. Eta is as for `MixtureOfLogistics`.

    Args:
        n_components: K.
        levels: L.
        sigma_floor: as of `Real`.

    Example:
        >>> family = DiscretisedLogistic(2, levels=4)
        >>> eta = torch.tensor([0.0, 1.0, -0.5, 0.5, -1.0, -2.0]).expand(4, 6)
        >>> family.log_prob(torch.arange(4.0), eta).exp().sum().item()
        1.0...
    """

    discrete = True

    def __init__(self, n_components: int, levels: int = 256, sigma_floor: float = 0.0) -> None:
        check_levels(levels)
        super().__init__(n_components, sigma_floor)
        self.levels = int(levels)

    def check(self, x: Tensor) -> None:
        """Every value must be one of the levels."""
        check_whole(x, self.levels, "DiscretisedLogistic")

    def encode(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """x / (L - 1), from 0 to 1."""
        return x.unsqueeze(-1) / (self.levels - 1)

    def log_prob(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Log-probability of the interval of x."""
        top, half = self.levels - 1, 1 / (self.levels - 1)
        v = 2 * x / top - 1
        a, b = torch.where(x <= 0, -INFINITE, v - half), torch.where(x >= top, INFINITE, v + half)
        width = torch.where((x <= 0) | (x >= top), torch.full_like(v, INFINITE), 2 * half)
        return interval_log_prob((a, b, width), self._parts(eta))

    def sample(self, eta: Tensor, i: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """A draw from the mixture, rounded to the nearest level."""
        v = super().sample(eta, i, generator)
        return ((v + 1) / 2 * (self.levels - 1)).round().clamp(0, self.levels - 1)

    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Σ_l P(X > l), one level at a time."""
        levels = (torch.full_like(eta[..., 0], level) for level in range(self.levels - 1))
        return sum((1 - self.cdf(level, eta, i) for level in levels), torch.zeros_like(eta[..., 0]))

    def best_guess(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The likeliest level (the lowest of equals), by evaluating all levels."""
        best = torch.full_like(eta[..., 0], -math.inf)
        guess = torch.zeros_like(best)
        for level in range(self.levels):
            log_p = self.log_prob(torch.full_like(best, level), eta, i)
            guess, best = torch.where(log_p > best, level, guess), torch.maximum(best, log_p)
        return guess

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Σ pi_c sigm((v + w - mu_c) / s_c) at the largest level up to x; 1 from the highest level on."""
        level, top = x.floor(), self.levels - 1
        below = super().cdf((2 * level + 1) / top - 1, eta)
        return torch.where(level < 0, 0, torch.where(level >= top, 1, below))

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The first level whose cdf is at least q, by bisection."""
        low, high = torch.full_like(q, -1.0), torch.full_like(q, self.levels - 1.0)
        for _ in range(self.levels.bit_length()):
            middle = ((low + high) / 2).floor()
            reached = (self.cdf(middle, eta, i) >= q) & (middle >= 0)
            low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
        return high.to(eta.dtype)

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """As for the mixture; a constant column gets a scale of one level."""
        (mean, deviation), unit = moments(x), 2 / (self.levels - 1)
        return self._eta_from_moments(mean * unit - 1, deviation * unit)
