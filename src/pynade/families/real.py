"""Real-valued families: distributions with a location and a scale, and what mixtures of them share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import logsigmoid, pad, softplus
from torch.special import ndtr, ndtri

from pynade.arguments import check_positive
from pynade.families.base import Family, at, refuse

Function = Callable[[Tensor], Tensor]
LARGEST = 1e100  # size of a number: the square of a standardised one must not overflow
_LOG_HALF = -math.log(2)


class Real(Family):
    """Abstract distribution of a real variable with a location and a scale.

    Args:
        sigma_floor: smallest scale: sigma = sigma_floor + exp(raw). Changes the likelihood.
        scale_mean_gradient: multiply the gradient of every location by its scale, which the paper advises
            for stochastic gradient descent (section "RNADE"). Does not change the likelihood.
    """

    discrete = False

    def __init__(self, sigma_floor: float = 0.0, scale_mean_gradient: bool = False) -> None:
        super().__init__()
        if not 0 <= sigma_floor < math.inf:
            raise ValueError(f"sigma_floor must be a finite number, zero or more, not {sigma_floor}")
        self.sigma_floor, self.scale_mean_gradient = float(sigma_floor), bool(scale_mean_gradient)

    def check(self, x: Tensor) -> None:
        """Every value must be a finite number with a finite square."""
        refuse(x, ~torch.isfinite(x), f"a {type(self).__name__} model needs finite numbers")
        rule = f"a {type(self).__name__} model needs numbers of at most {LARGEST:g} in size"
        refuse(x, x.abs() > LARGEST, rule)

    def expectation(self, function: Function, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """E[function(X)] by an integral over quantiles, without tails beyond 1e-16: (…, P) -> (…)."""
        exact = eta.double()  # in float32 probabilities near 1 would round to 1
        like = exact[..., 0]
        return integrate(function, lambda u: self.quantile(torch.full_like(like, u), exact, i)).to(eta.dtype)

    def log_scale(self, raw: Tensor) -> Tensor:
        """Log sigma from a net's output: log(floor + exp(raw)), without overflow."""
        if self.sigma_floor == 0:
            return raw
        log_floor = math.log(self.sigma_floor)
        return log_floor + softplus(raw - log_floor, threshold=40)

    def raw_scale(self, scale: Tensor) -> Tensor:
        """The inverse of `log_scale`, from sigma; a sigma below 1.001 times the floor is raised to that."""
        return torch.log((scale - self.sigma_floor).clamp(min=1e-3 * self.sigma_floor))

    def standardise(self, x: Tensor, loc: Tensor, log_scale: Tensor) -> Tensor:
        """z = (x - loc) / sigma; with `scale_mean_gradient`, dz/dloc is -1 in place of -1/sigma."""
        if not self.scale_mean_gradient:
            return (x - loc) * torch.exp(-log_scale)
        fixed = loc.detach()
        return (x - fixed) * torch.exp(-log_scale) + (fixed - loc)  # the second term is exactly zero


@dataclass(frozen=True)
class Standard:
    """A distribution with location 0 and scale 1, alone or as a component of mixtures.

    The functions act elementwise; values and gradients are finite for |z| up to 1e12 in float32.
    """

    name: str  # its name in the compiled code
    log_kernel: Function  # the log-density without its constant
    log_constant: float  # the log-density is `log_kernel(z) + log_constant`
    cdf: Function  # P(Z <= z)
    quantile: Function  # inverse of the cdf; infinite at 0 and 1
    deviation: float  # standard deviation

    def noise(self, like: Tensor, generator: Generator | None) -> Tensor:
        """Independent draws of the shape, dtype and device of `like`."""
        if self is NORMAL:
            return random_like(torch.randn, like, generator)
        return self.quantile(uniform_like(like, generator))


NORMAL = Standard(
    "Normal", lambda z: -0.5 * z.square(), -0.5 * math.log(2 * math.pi), ndtr, ndtri, deviation=1.0
)
LAPLACE = Standard(
    "DoubleExponential",
    log_kernel=lambda z: -z.abs(),
    log_constant=-math.log(2),
    cdf=lambda z: torch.where(z < 0, 0.5 * torch.exp(-z.abs()), 1 - 0.5 * torch.exp(-z.abs())),
    quantile=lambda q: torch.where(q < 0.5, torch.log(2 * q), -torch.log(2 - 2 * q)),
    deviation=math.sqrt(2),
)
LOGISTIC = Standard(  # its kernel is log sigm(z) + log sigm(-z), with one logarithm
    "StandardLogistic", lambda z: 2 * logsigmoid(z) - z, 0.0, torch.sigmoid, torch.logit, math.pi / 3**0.5
)


def uniform_like(like: Tensor, generator: Generator | None) -> Tensor:
    """Uniform draws strictly between 0 and 1, of the shape, dtype and device of `like`."""
    return random_like(torch.rand, like, generator).clamp_(min=torch.finfo(like.dtype).eps / 4)


def random_like(draw: Callable[..., Tensor], like: Tensor, generator: Generator | None) -> Tensor:
    """Random numbers of the shape, dtype and device of `like`, generated on the generator's device."""
    device = like.device if generator is None else generator.device
    return draw(like.shape, generator=generator, dtype=like.dtype, device=device).to(like.device)


def choose(probabilities: Tensor, generator: Generator | None) -> Tensor:
    """Indexes drawn with these probabilities, by inversion of uniform numbers: (…, K) -> (…)."""
    edges = probabilities.cumsum(-1)
    u = uniform_like(edges[..., 0], generator).unsqueeze(-1) * edges[..., -1:]
    return (edges[..., :-1] < u).sum(-1)


def moments(x: Tensor, absolute: bool = False) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column in float64, or median and mean absolute deviation.

    NaN is ignored. A column without any value has mean 0; the deviation of a constant column is set to 1.
    """
    x = x.double()
    center = (x.nanmedian(0).values if absolute else x.nanmean(0)).nan_to_num(0.0)
    distance = (x - center).abs()
    deviation = distance.nanmean(0) if absolute else distance.square().nanmean(0).sqrt()
    varies = deviation > 1e-12 * center.abs()  # also False for NaN
    return center, torch.where(varies, deviation, torch.ones_like(deviation))


def integrate(function: Function, quantile: Callable[[float], Tensor]) -> Tensor:
    """∫ function(quantile(u)) du over (0, 1), by the trapezoidal rule in t with u = Φ(t) and weights φ(t)."""
    t = torch.arange(-131, 132, dtype=torch.float64) / 16
    weights = torch.exp(-0.5 * t.square())
    nodes = zip(ndtr(t).tolist(), (weights / weights.sum()).tolist(), strict=True)
    return sum((weight * function(quantile(u)) for u, weight in nodes), torch.zeros((), dtype=torch.float64))


class LocationScale(Real):
    """Abstract X = mu + sigma Z: eta is (mu, log sigma), followed by the shape parameters of Z, if any."""

    standard: Standard = NORMAL
    n_params = 2

    def log_prob(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Log-density of Z at (x - mu) / sigma, less log sigma."""
        mu, log_sigma, *shape = self._parts(eta, i)
        return self._log_density(self.standardise(x, mu, log_sigma), log_sigma, *shape)

    def sample(self, eta: Tensor, i: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """mu + sigma Z."""
        mu, log_sigma, *shape = self._parts(eta, i)
        return mu + torch.exp(log_sigma) * self._from_standard(self.standard.noise(mu, generator), *shape)

    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """mu, which is the median if no mean exists."""
        return eta[..., 0]

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """P(Z <= (x - mu) / sigma)."""
        mu, log_sigma, *shape = self._parts(eta, i)
        return self.standard.cdf(self._to_standard(self.standardise(x, mu, log_sigma), *shape))

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """mu + sigma times the quantile of Z."""
        mu, log_sigma, *shape = self._parts(eta, i)
        return mu + torch.exp(log_sigma) * self._from_standard(self.standard.quantile(q), *shape)

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """Eta from the moments of each column; NaN is ignored, a constant column has sigma 1."""
        loc, scale, *shape = self._fit_moments(x)
        eta = torch.stack([loc, self.raw_scale(scale), *shape], -1)
        return pad(eta, (0, self.n_params - eta.shape[-1]))  # drops the scale if it is not an output

    def _parts(self, eta: Tensor, i: Tensor | None) -> tuple[Tensor, ...]:
        """mu, log sigma and the shape parameters."""
        mu, raw, *shape = eta.unbind(-1)
        return mu, self.log_scale(raw), *shape

    def _log_density(self, z: Tensor, log_sigma: Tensor, *shape: Tensor) -> Tensor:
        return self.standard.log_kernel(z) - log_sigma + self.standard.log_constant

    def _from_standard(self, z: Tensor, *shape: Tensor) -> Tensor:
        """The value of Z that corresponds to a value of the standard distribution."""
        return z

    def _to_standard(self, z: Tensor, *shape: Tensor) -> Tensor:
        """The inverse of `_from_standard`."""
        return z

    def _fit_moments(self, x: Tensor) -> tuple[Tensor, ...]:
        """Location, scale and shape parameters of each column."""
        return moments(x)


class Gaussian(LocationScale):
    """RNADE-Gaussian: eta = (mu, log sigma) (eqs. RNADE-outputs with one component).

    Args:
        sigma_floor, scale_mean_gradient: as of `Real`.

    Example:
        >>> round(Gaussian().log_prob(torch.tensor([1.0]), torch.tensor([[1.0, 0.0]])).item(), 4)
        -0.9189
    """


class FixedVarianceGaussian(LocationScale):
    """RNADE-FV: eta is mu; sigma is one learned constant per variable, the same for every row.

    `log_sigma` (D,) starts at 0; `fit_constants` sets it to the deviations of data.

    Args:
        n_variables: D.
        sigma_floor, scale_mean_gradient: as of `Real`.

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
        return eta.squeeze(-1), self.log_scale(at(self.log_sigma, i))

    def fit_constants(self, x: Tensor) -> None:
        """Set sigma to the standard deviation of each column (1 for a constant column)."""
        with torch.no_grad():
            self.log_sigma.copy_(self.raw_scale(moments(x)[1]))


class Laplace(LocationScale):
    """RNADE-Laplace: eta = (mu, log b), density `exp(-|x - mu| / b) / 2b`.

    Args:
        sigma_floor, scale_mean_gradient: as of `Real`.

    Example:
        >>> Laplace().log_prob(torch.tensor([3.0]), torch.tensor([[1.0, 0.0]])).exp().item()
        0.0676...
    """

    standard = LAPLACE

    def _fit_moments(self, x: Tensor) -> tuple[Tensor, ...]:
        """Median and mean absolute deviation of each column, the maximum-likelihood estimates."""
        return moments(x, absolute=True)


class SinhArcsinh(LocationScale):
    """RNADE-SAS: X = mu + sigma sinh((asinh(Z) + eps) / delta), Z standard normal (Jones & Pewsey, 2009).

    Eta is (mu, log sigma, eps, log delta): eps > 0 skews to the right, delta < 1 has heavier and delta > 1
    lighter tails than a Gaussian, which is eps = 0, delta = 1. mu and sigma are not mean and deviation.

    Args:
        sigma_floor, scale_mean_gradient: as of `Real`.

    Example:
        >>> family = SinhArcsinh()
        >>> family.quantile(torch.tensor([0.1, 0.5, 0.9]), torch.tensor([[0.0, 0.0, 0.5, 0.0]])).tolist()
        [-0.59..., 0.52..., 2.29...]
    """

    n_params = 4

    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """mu + sigma sinh(eps / delta) E[cosh(asinh(Z) / delta)].

        The expectation is ∫ cosh(t / delta) φ(sinh t) cosh t dt by the trapezoidal rule, which is exact up to
        rounding for delta above 0.02.
        """
        mu, log_sigma, eps, log_delta = self._parts(eta, i)
        power, step, moment = torch.exp(-log_delta), 1 / 16, torch.zeros_like(mu)
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

    def _from_standard(self, z: Tensor, *shape: Tensor) -> Tensor:
        return torch.sinh((torch.asinh(z) + shape[0]) * torch.exp(-shape[1]))

    def _to_standard(self, z: Tensor, *shape: Tensor) -> Tensor:
        return torch.sinh(torch.exp(shape[1]) * torch.asinh(z) - shape[0])


class StudentT(LocationScale):
    """X = mu + sigma T, T of Student's t distribution, nu degrees of freedom; eta = (mu, log sigma, log nu).

    Args:
        sigma_floor, scale_mean_gradient: as of `Real`.

    Example:
        >>> import math, torch
        >>> cauchy = torch.tensor([[0.0, 0.0, 0.0]])  # nu = 1
        >>> round(StudentT().log_prob(torch.zeros(1), cauchy).exp().item() * math.pi, 5)
        1.0
    """

    n_params = 3

    def sample(self, eta: Tensor, i: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """mu + sigma sqrt(nu (U^(-2/nu) - 1)) cos(2πV) has exactly this distribution (Bailey, 1994)."""
        mu, log_sigma, log_nu = self._parts(eta, i)
        nu, u, v = torch.exp(log_nu), uniform_like(mu, generator), uniform_like(mu, generator)
        noise = torch.sqrt(nu * torch.expm1(-2 / nu * torch.log(u))) * torch.cos(2 * math.pi * v)
        return mu + torch.exp(log_sigma) * noise

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """By SciPy, on the CPU in float64; without a gradient."""
        from scipy.special import stdtr

        mu, log_sigma, log_nu = self._parts(eta.detach().double(), i)
        z = self.standardise(x.detach().double(), mu, log_sigma)
        return torch.as_tensor(stdtr(torch.exp(log_nu).cpu().numpy(), z.cpu().numpy())).to(eta)

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """By SciPy, on the CPU in float64; without a gradient, at most 1e150 sigma (for nu < 0.1)."""
        from scipy.special import stdtrit

        mu, log_sigma, log_nu = self._parts(eta.detach().double().cpu(), i)
        t = torch.as_tensor(stdtrit(torch.exp(log_nu).numpy(), q.detach().double().cpu().numpy()))
        t = torch.where(q.cpu() == 0, -math.inf, t)  # SciPy returns +inf
        return (mu + torch.exp(log_sigma) * t).to(eta)

    def _log_density(self, z: Tensor, log_sigma: Tensor, *shape: Tensor) -> Tensor:
        """log Γ((nu + 1)/2) - log Γ(nu/2) - log(nu π)/2 - log sigma - (nu + 1)/2 log(1 + z²/nu)."""
        nu = torch.exp(shape[0])
        half, inverse = (0.5 * nu).clamp(max=20), 2 / nu.clamp(min=40)
        exact = torch.lgamma(half + 0.5) - torch.lgamma(half) - 0.5 * torch.log(half)
        s = inverse.square()  # for nu above 40 a series, which is more precise
        series = inverse * (-1 / 8 + s * (1 / 192 + s * (-1 / 640 + s * (17 / 14336 - s * (31 / 18432)))))
        constant = torch.where(nu < 40, exact, series) + NORMAL.log_constant
        return constant - log_sigma - 0.5 * (nu + 1) * torch.log1p(z.square() / nu)

    def _fit_moments(self, x: Tensor) -> tuple[Tensor, ...]:
        """Estimates by mean, variance and kurtosis: nu = 4 + 6 / excess kurtosis, at most 100."""
        mean, deviation = moments(x)
        excess = ((x.double() - mean) / deviation).pow(4).nanmean(0).nan_to_num(0.0) - 3
        nu = 4 + 6 / excess.clamp(min=6 / 96)
        return mean, deviation * torch.sqrt((nu - 2) / nu), torch.log(nu)
