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
        sigma_floor: smallest scale: sigma = sigma_floor + exp(raw). It changes likelihoods.
        scale_mean_gradient: multiply the gradient of every location by its scale, as the paper found useful
            with stochastic gradient descent (section "RNADE"). Values do not change.
    """

    discrete = False

    def __init__(self, sigma_floor: float = 0.0, scale_mean_gradient: bool = False) -> None:
        super().__init__()
        if not 0 <= sigma_floor < math.inf:
            raise ValueError(f"sigma_floor must be a finite number, zero or more, not {sigma_floor}")
        self.sigma_floor, self.scale_mean_gradient = float(sigma_floor), bool(scale_mean_gradient)

    def check(self, x: Tensor) -> None:
        """Every value must be a finite number, of a size whose square is one."""
        refuse(x, ~torch.isfinite(x), f"a {type(self).__name__} model needs finite numbers")
        rule = f"a {type(self).__name__} model needs numbers of at most {LARGEST:g} in size"
        refuse(x, x.abs() > LARGEST, rule)

    def expectation(self, function: Function, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """E[function(X)] by an integral over quantiles, without tails beyond 1e-16: (…, P) -> (…)."""
        exact = eta.double()  # in float32 a probability near 1 would round to it
        like = exact[..., 0]
        return expected(function, lambda u: self.quantile(torch.full_like(like, u), exact, i)).to(eta.dtype)

    def log_scale(self, raw: Tensor) -> Tensor:
        """Log sigma from a net's output: log(floor + exp(raw)), whatever their sizes."""
        if self.sigma_floor == 0:
            return raw
        log_floor = math.log(self.sigma_floor)
        return log_floor + softplus(raw - log_floor, threshold=40)

    def raw_scale(self, scale: Tensor) -> Tensor:
        """The output of a net whose sigma is `scale`; where the floor forbids it, sigma is 1.001 floors."""
        return torch.log((scale - self.sigma_floor).clamp(min=1e-3 * self.sigma_floor))

    def standardise(self, x: Tensor, loc: Tensor, log_scale: Tensor) -> Tensor:
        """z = (x - loc) / sigma; with `scale_mean_gradient`, dz/dloc is -1 in place of -1/sigma."""
        if not self.scale_mean_gradient:
            return (x - loc) * torch.exp(-log_scale)
        fixed = loc.detach()
        return (x - fixed) * torch.exp(-log_scale) + (fixed - loc)  # what is added is exactly zero


@dataclass(frozen=True)
class Standard:
    """A distribution with location 0 and scale 1, used by itself and by mixtures of K of them.

    Functions act on each element, and are finite in value and gradient for |z| up to 1e12 in float32.
    """

    name: str  # by which compiled loops know it
    log_kernel: Function  # the log-density without its constant, which a sum over components adds once
    log_constant: float  # the log-density is `log_kernel(z) + log_constant`
    cdf: Function  # P(Z <= z)
    quantile: Function  # inverse of the cdf; infinite at 0 and 1
    deviation: float  # standard deviation

    def noise(self, like: Tensor, generator: Generator | None) -> Tensor:
        """Independent draws of the shape, dtype and device of `like`."""
        if self is NORMAL:
            return drawn(torch.randn, like, generator)
        return self.quantile(uniforms(like, generator))


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


def uniforms(like: Tensor, generator: Generator | None) -> Tensor:
    """Uniform draws strictly between 0 and 1, of the shape, dtype and device of `like`."""
    return drawn(torch.rand, like, generator).clamp_(min=torch.finfo(like.dtype).eps / 4)


def drawn(draw: Callable[..., Tensor], like: Tensor, generator: Generator | None) -> Tensor:
    """Random numbers of the shape and dtype of `like`, made on the generator's device and moved to it."""
    device = like.device if generator is None else generator.device
    return draw(like.shape, generator=generator, dtype=like.dtype, device=device).to(like.device)


def pick(probabilities: Tensor, generator: Generator | None) -> Tensor:
    """Which of K outcomes a uniform number selects, (…, K) -> (…)."""
    edges = probabilities.cumsum(-1)
    u = uniforms(edges[..., 0], generator).unsqueeze(-1) * edges[..., -1:]
    return (edges[..., :-1] < u).sum(-1)


def moments(x: Tensor, absolute: bool = False) -> tuple[Tensor, Tensor]:
    """Mean and population deviation of each column in float64, or median and mean absolute deviation.

    NaN is missing. A column without a value has mean 0, one without spread deviation 1.
    """
    x = x.double()
    center = (x.nanmedian(0).values if absolute else x.nanmean(0)).nan_to_num(0.0)
    apart = (x - center).abs()
    deviation = apart.nanmean(0) if absolute else apart.square().nanmean(0).sqrt()
    spread = deviation > 1e-12 * center.abs()  # False for NaN too
    return center, torch.where(spread, deviation, torch.ones_like(deviation))


def expected(function: Function, quantile: Callable[[float], Tensor]) -> Tensor:
    """∫ function(quantile(u)) du by a trapezoid rule in t with u = Φ(t), whose weights are φ(t)."""
    t = torch.arange(-131, 132, dtype=torch.float64) / 16
    weights = torch.exp(-0.5 * t.square())
    nodes = zip(ndtr(t).tolist(), (weights / weights.sum()).tolist(), strict=True)
    return sum((weight * function(quantile(u)) for u, weight in nodes), torch.zeros((), dtype=torch.float64))


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
        return mu + torch.exp(log_sigma) * self._shaped(self.standard.noise(mu, generator), *shape)

    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """mu; where no mean exists, the median stands in for it, which is mu too."""
        return eta[..., 0]

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """P(Z <= (x - mu) / sigma)."""
        mu, log_sigma, *shape = self._parts(eta, i)
        return self.standard.cdf(self._plain(self.standardise(x, mu, log_sigma), *shape))

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """mu + sigma times the quantile of Z."""
        mu, log_sigma, *shape = self._parts(eta, i)
        return mu + torch.exp(log_sigma) * self._shaped(self.standard.quantile(q), *shape)

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """From the mean and the deviation of each column (NaN: no row; no spread: sigma 1)."""
        loc, scale, *shape = self._fitted(x)
        eta = torch.stack([loc, self.raw_scale(scale), *shape], -1)
        return pad(eta, (0, self.n_params - eta.shape[-1]))  # without the scale where that is no output

    def _parts(self, eta: Tensor, i: Tensor | None) -> tuple[Tensor, ...]:
        """mu, log sigma and the parameters of the shape."""
        mu, raw, *shape = eta.unbind(-1)
        return mu, self.log_scale(raw), *shape

    def _log_density(self, z: Tensor, log_sigma: Tensor, *shape: Tensor) -> Tensor:
        return self.standard.log_kernel(z) - log_sigma + self.standard.log_constant

    def _shaped(self, z: Tensor, *shape: Tensor) -> Tensor:
        """The value of Z at a value of the standard distribution."""
        return z

    def _plain(self, z: Tensor, *shape: Tensor) -> Tensor:
        """The inverse of `_shaped`."""
        return z

    def _fitted(self, x: Tensor) -> tuple[Tensor, ...]:
        """Location, scale and shape of each column."""
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
        """Start sigma at the standard deviation of each column (no spread: 1)."""
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

    def _fitted(self, x: Tensor) -> tuple[Tensor, ...]:
        """Median and mean absolute deviation of each column: the best fit."""
        return moments(x, absolute=True)


class SinhArcsinh(LocationScale):
    """RNADE-SAS: X = mu + sigma sinh((asinh(Z) + eps) / delta), Z standard normal (Jones & Pewsey, 2009).

    Eta is (mu, log sigma, eps, log delta): eps > 0 leans to the right, delta < 1 has heavier and delta > 1
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

        The expectation is ∫ cosh(t / delta) φ(sinh t) cosh t dt by the trapezoid rule, which is exact to
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

    def _shaped(self, z: Tensor, *shape: Tensor) -> Tensor:
        return torch.sinh((torch.asinh(z) + shape[0]) * torch.exp(-shape[1]))

    def _plain(self, z: Tensor, *shape: Tensor) -> Tensor:
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
        nu, u, v = torch.exp(log_nu), uniforms(mu, generator), uniforms(mu, generator)
        noise = torch.sqrt(nu * torch.expm1(-2 / nu * torch.log(u))) * torch.cos(2 * math.pi * v)
        return mu + torch.exp(log_sigma) * noise

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """By SciPy, on the CPU in float64; it has no gradient."""
        from scipy.special import stdtr

        mu, log_sigma, log_nu = self._parts(eta.detach().double(), i)
        z = self.standardise(x.detach().double(), mu, log_sigma)
        return torch.as_tensor(stdtr(torch.exp(log_nu).cpu().numpy(), z.cpu().numpy())).to(eta)

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """By SciPy, on the CPU in float64; it has no gradient, and ends at 1e150 scales (nu < 0.1)."""
        from scipy.special import stdtrit

        mu, log_sigma, log_nu = self._parts(eta.detach().double().cpu(), i)
        t = torch.as_tensor(stdtrit(torch.exp(log_nu).numpy(), q.detach().double().cpu().numpy()))
        t = torch.where(q.cpu() == 0, -math.inf, t)  # where SciPy has +inf
        return (mu + torch.exp(log_sigma) * t).to(eta)

    def _log_density(self, z: Tensor, log_sigma: Tensor, *shape: Tensor) -> Tensor:
        """log Γ((nu + 1)/2) - log Γ(nu/2) - log(nu π)/2 - log sigma - (nu + 1)/2 log(1 + z²/nu)."""
        nu = torch.exp(shape[0])
        few, many = (0.5 * nu).clamp(max=20), 2 / nu.clamp(min=40)
        exact = torch.lgamma(few + 0.5) - torch.lgamma(few) - 0.5 * torch.log(few)
        s = many.square()  # beyond nu = 40 a series, which loses no digits
        series = many * (-1 / 8 + s * (1 / 192 + s * (-1 / 640 + s * (17 / 14336 - s * (31 / 18432)))))
        constant = torch.where(nu < 40, exact, series) + NORMAL.log_constant
        return constant - log_sigma - 0.5 * (nu + 1) * torch.log1p(z.square() / nu)

    def _fitted(self, x: Tensor) -> tuple[Tensor, ...]:
        """Mean, variance and kurtosis of each column: nu = 4 + 6 / excess, at most 100 (NaN: no row)."""
        mean, deviation = moments(x)
        excess = ((x.double() - mean) / deviation).pow(4).nanmean(0).nan_to_num(0.0) - 3
        nu = 4 + 6 / excess.clamp(min=6 / 96)
        return mean, deviation * torch.sqrt((nu - 2) / nu), torch.log(nu)
