"""One distribution per variable with a location and a scale: Gaussian, Laplace, sinh-arcsinh, Student's t."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn

from pynade.arguments import check_positive
from pynade.families.real import LAPLACE, NORMAL, Real, Standard, moments, uniforms

_LOG_HALF = -math.log(2)


class LocationScale(Real):
    """Abstract X = mu + sigma Z: eta is (mu, log sigma) and the parameters of Z's shape, if it has any."""

    standard: Standard = NORMAL
    n_params = 2

    def log_prob(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Log-density of Z at (x - mu) / sigma, less log sigma."""
        mu, log_sigma, *shape = self._parts(eta, i)
        return self._log_density(self.standardise(x, mu, log_sigma), log_sigma, *shape)

    def sample(self, eta: Tensor, i: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """mu + sigma Z."""
        mu, log_sigma, *shape = self._parts(eta, i)
        return mu + torch.exp(log_sigma) * self._noise(mu, generator, *shape)

    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """mu; where no mean exists, the median stands in for it, which is mu too."""
        return eta[..., 0]

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """P(Z <= (x - mu) / sigma)."""
        mu, log_sigma, *shape = self._parts(eta, i)
        return self._cdf(self.standardise(x, mu, log_sigma), *shape)

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """mu + sigma times the quantile of Z."""
        mu, log_sigma, *shape = self._parts(eta, i)
        return mu + torch.exp(log_sigma) * self._quantile(q, *shape)

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """From the mean and the deviation of each column (NaN: no row; no spread: sigma 1)."""
        loc, scale, *shape = self._fitted(x)
        return torch.stack([loc, self.raw_scale(scale), *shape], -1)

    def _parts(self, eta: Tensor, i: Tensor | None) -> tuple[Tensor, ...]:
        """mu, log sigma and the parameters of the shape."""
        mu, raw, *shape = eta.unbind(-1)
        return mu, self.log_scale(raw), *shape

    def _log_density(self, z: Tensor, log_sigma: Tensor, *shape: Tensor) -> Tensor:
        return self.standard.log_kernel(z) - log_sigma + self.standard.log_constant

    def _noise(self, like: Tensor, generator: Generator | None, *shape: Tensor) -> Tensor:
        return self.standard.noise(like, generator)

    def _cdf(self, z: Tensor, *shape: Tensor) -> Tensor:
        return self.standard.cdf(z)

    def _quantile(self, q: Tensor, *shape: Tensor) -> Tensor:
        return self.standard.quantile(q)

    def _fitted(self, x: Tensor) -> tuple[Tensor, ...]:
        """Location, scale and shape of each column."""
        return moments(x)


class Gaussian(LocationScale):
    """RNADE-Gaussian: eta = (mu, log sigma) (eqs. RNADE-outputs with one component).

    Args:
        sigma_floor: sigma = sigma_floor + exp(·).
        scale_mean_gradient: multiply the gradient of mu by sigma.

    Example:
        >>> round(Gaussian().log_prob(torch.tensor([1.0]), torch.tensor([[1.0, 0.0]])).item(), 4)
        -0.9189
    """


class FixedVarianceGaussian(LocationScale):
    """RNADE-FV: eta is mu; sigma is one learned constant per variable, the same for every row.

    `log_sigma` (D,) starts at 0; `fit_constants` sets it to the deviations of data.

    Args:
        n_variables: D.
        sigma_floor: sigma = sigma_floor + exp(log_sigma).
        scale_mean_gradient: multiply the gradient of mu by sigma.

    Example:
        >>> family = FixedVarianceGaussian(2)
        >>> x = torch.tensor([[0.0, 10.0], [2.0, 30.0]])
        >>> family.fit_constants(x)
        >>> family.log_sigma.exp().tolist()
        [1.0, 10.0...]
        >>> family.eta_from_marginal(x).tolist()
        [[1.0], [20.0]]
    """

    n_params = 1

    def __init__(self, n_variables: int, sigma_floor: float = 0.0, scale_mean_gradient: bool = False) -> None:
        super().__init__(sigma_floor, scale_mean_gradient)
        check_positive(n_variables=n_variables)
        self.n_variables = int(n_variables)
        self.log_sigma = nn.Parameter(torch.zeros(self.n_variables))

    def _parts(self, eta: Tensor, i: Tensor | None) -> tuple[Tensor, ...]:
        return eta.squeeze(-1), self.log_scale(self.log_sigma if i is None else self.log_sigma[i])

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """Mean of each column (NaN: no row)."""
        return moments(x)[0].unsqueeze(-1)

    def fit_constants(self, x: Tensor) -> None:
        """Start sigma at the standard deviation of each column (no spread: 1)."""
        with torch.no_grad():
            self.log_sigma.copy_(self.raw_scale(moments(x)[1]))


class Laplace(LocationScale):
    """RNADE-Laplace: eta = (mu, log b), density exp(-|x - mu| / b) / 2b.

    Args:
        sigma_floor: b = sigma_floor + exp(·).
        scale_mean_gradient: multiply the gradient of mu by b.

    Example:
        >>> Laplace().log_prob(torch.tensor([3.0]), torch.tensor([[1.0, 0.0]])).exp().item()
        0.0676...
    """

    standard = LAPLACE

    def _fitted(self, x: Tensor) -> tuple[Tensor, ...]:
        """Median and mean absolute deviation of each column, the best fit (no spread: 1)."""
        x = x.double()
        median = x.nanmedian(0).values.nan_to_num(0.0)
        scale = (x - median).abs().nanmean(0)
        return median, torch.where(scale > 1e-12 * median.abs(), scale, torch.ones_like(scale))


class SinhArcsinh(LocationScale):
    """RNADE-SAS: X = mu + sigma sinh((asinh(Z) + eps) / delta), Z standard normal (Jones & Pewsey, 2009).

    Eta is (mu, log sigma, eps, log delta): eps > 0 leans to the right, delta < 1 has heavier and delta > 1
    lighter tails than a Gaussian, which is eps = 0, delta = 1. mu and sigma are not mean and deviation.
    The density falls doubly exponentially: a value e³⁰ scales away under delta = 1.6 has
    a log-density below the range of float32.

    Args:
        sigma_floor: sigma = sigma_floor + exp(·).
        scale_mean_gradient: multiply the gradient of mu by sigma.

    Example:
        >>> family = SinhArcsinh()
        >>> family.quantile(torch.tensor([0.1, 0.5, 0.9]), torch.tensor([[0.0, 0.0, 0.5, 0.0]])).tolist()
        [-0.59..., 0.52..., 2.29...]
    """

    n_params = 4

    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """mu + sigma sinh(eps / delta) E[cosh(asinh(Z) / delta)].

        The expectation is a sum of two Bessel functions; here it is ∫ cosh(t / delta) φ(sinh t) cosh t dt by
        the trapezoid rule, which is exact to rounding for delta above 0.02 as the integrand falls
        doubly exponentially.
        """
        mu, log_sigma, eps, log_delta = self._parts(eta, i)
        power = torch.exp(-log_delta)
        step = 1 / 16
        moment = torch.zeros_like(mu)
        for t in (step * n for n in range(97)):
            log_weight = NORMAL.log_constant - 0.5 * math.sinh(t) ** 2 + math.log(math.cosh(t))
            log_cosh = torch.logaddexp(power * t, -(power * t)) + _LOG_HALF
            moment = moment + (step if t == 0 else 2 * step) * torch.exp(log_weight + log_cosh)
        return mu + torch.exp(log_sigma) * torch.sinh(eps * power) * moment

    def _log_density(self, z: Tensor, log_sigma: Tensor, *shape: Tensor) -> Tensor:
        """The Gaussian at S = sinh(delta asinh(z) - eps), times dS/dx."""
        eps, log_delta = shape
        w = torch.exp(log_delta) * torch.asinh(z) - eps
        # log cosh w = logaddexp(w, -w) - log 2; z² overflows only where log p does
        jacobian = torch.logaddexp(w, -w) - 0.5 * torch.log1p(z.square()) + log_delta - log_sigma
        return NORMAL.log_kernel(torch.sinh(w)) + jacobian + (NORMAL.log_constant + _LOG_HALF)

    def _noise(self, like: Tensor, generator: Generator | None, *shape: Tensor) -> Tensor:
        return self._from_normal(NORMAL.noise(like, generator), *shape)

    def _cdf(self, z: Tensor, *shape: Tensor) -> Tensor:
        eps, log_delta = shape
        return NORMAL.cdf(torch.sinh(torch.exp(log_delta) * torch.asinh(z) - eps))

    def _quantile(self, q: Tensor, *shape: Tensor) -> Tensor:
        return self._from_normal(NORMAL.quantile(q), *shape)

    def _from_normal(self, z: Tensor, eps: Tensor, log_delta: Tensor) -> Tensor:
        return torch.sinh((torch.asinh(z) + eps) * torch.exp(-log_delta))

    def _fitted(self, x: Tensor) -> tuple[Tensor, ...]:
        mean, deviation = moments(x)
        return mean, deviation, torch.zeros_like(mean), torch.zeros_like(mean)


class StudentT(LocationScale):
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

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """By SciPy, on the CPU in float64; it has no gradient."""
        return super().cdf(x.detach().double(), eta.detach().double(), i).to(eta)

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """By SciPy, on the CPU in float64; it has no gradient, and ends at 1e150 scales (nu < 0.1)."""
        return super().quantile(q.detach().double(), eta.detach().double(), i).to(eta.dtype)

    def _log_density(self, z: Tensor, log_sigma: Tensor, *shape: Tensor) -> Tensor:
        """c(nu) - log sigma - (nu + 1)/2 log(1 + z²/nu)."""
        nu = torch.exp(shape[0])
        return _log_constant(nu) - log_sigma - 0.5 * (nu + 1) * torch.log1p(z.square() / nu)

    def _noise(self, like: Tensor, generator: Generator | None, *shape: Tensor) -> Tensor:
        """sqrt(nu (U^(-2/nu) - 1)) cos(2πV) has exactly this distribution (Bailey, 1994)."""
        nu, u, v = torch.exp(shape[0]), uniforms(like, generator), uniforms(like, generator)
        return torch.sqrt(nu * torch.expm1(-2 / nu * torch.log(u))) * torch.cos(2 * math.pi * v)

    def _cdf(self, z: Tensor, *shape: Tensor) -> Tensor:
        from scipy.special import stdtr

        return _by_numpy(stdtr, torch.exp(shape[0]), z)

    def _quantile(self, q: Tensor, *shape: Tensor) -> Tensor:
        from scipy.special import stdtrit

        return torch.where(q == 0, -math.inf, _by_numpy(stdtrit, torch.exp(shape[0]), q))  # SciPy: +inf

    def _fitted(self, x: Tensor) -> tuple[Tensor, ...]:
        """Mean, variance and kurtosis of each column: nu = 4 + 6 / excess, at most 100 (NaN: no row)."""
        mean, deviation = moments(x)
        excess = ((x.double() - mean) / deviation).pow(4).nanmean(0).nan_to_num(0.0) - 3
        nu = 4 + 6 / excess.clamp(min=6 / 96)
        return mean, deviation * torch.sqrt((nu - 2) / nu), torch.log(nu)


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
    return torch.as_tensor(function(a.cpu().numpy(), b.cpu().numpy()), dtype=torch.float64).to(b.device)
