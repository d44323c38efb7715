"""Mixtures of K one-dimensional distributions: RNADE-MoG and its relatives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from pynade.families.base import NADEWeights
from pynade.families.real import Real, moments, probability_nodes, spread_components
from pynade.families.standard import LAPLACE, LOGISTIC, NORMAL, Standard, pick
from pynade.kernels import Uniforms, backends, sample


class _MixtureFamily(Real):
    """Abstract Σ_c pi_c f((x - mu_c) / sigma_c) / sigma_c, with f a standard density.

    Eta is [K logits of pi | K locations mu | K logarithms of sigma] along its last axis (eqs.
    RNADE-outputs-pi, -mu, -sigma).

    Attributes:
        fused: on the CPU the log-density is one pass of compiled code, which has first derivatives only;
            False is plain torch.
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
        logits, mu, raw = self._parts(eta)
        return logits.softmax(-1), mu, torch.exp(self.log_scale(raw))

    def _parts(self, eta: Tensor) -> tuple[Tensor, ...]:
        return eta.split(self.n_components, -1)

    def log_prob(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Log of the sum over components, by logsumexp."""
        if self.fused and eta.device.type == "cpu" and eta.shape[-1] == self.n_params:
            log_p = self._compiled(x, eta)
            if log_p is not None:
                return log_p
        logits, mu, raw = self._parts(eta)
        log_sigma = self.log_scale(raw)
        z = self.standardise(x.unsqueeze(-1), mu, log_sigma)
        each = logits.log_softmax(-1) - log_sigma + self.standard.log_kernel(z)
        return torch.logsumexp(each, -1) + self.standard.log_constant

    def _compiled(self, x: Tensor, eta: Tensor) -> Tensor | None:
        """The log-density by compiled loops, None where there are none for these tensors."""
        if backends.choose("auto", eta.device, x, eta) != "numba":
            return None
        loops, name = backends.load("numba", "mixture"), self.standard.name
        if not loops.suits(x, eta, name, self.sigma_floor):
            return None
        numbers = (self.standard.log_constant, self.sigma_floor, self.scale_mean_gradient)
        log_p: Tensor = loops.log_prob(x, eta, name, *numbers)
        return log_p

    def sample(self, eta: Tensor, i: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """A component is drawn, then a value from it."""
        pi, mu, sigma = self.parameters_of(eta)
        which = pick(pi, generator).unsqueeze(-1)
        mu, sigma = mu.gather(-1, which)[..., 0], sigma.gather(-1, which)[..., 0]
        return mu + sigma * self.standard.noise(mu, generator)

    def sample_nade(
        self, weights: NADEWeights, activation: str, uniforms: Uniforms, generator: Generator | None
    ) -> Tensor | None:
        """By a compiled loop, which has no smallest scale."""
        if self.sigma_floor or type(self).sample is not _MixtureFamily.sample:
            return None
        drawn = uniforms.tensor(weights[0].dtype, weights[0].device)
        return sample(weights, drawn, self.standard.noise(drawn, generator), activation)

    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Σ pi_c mu_c."""
        pi, mu, _ = self.parameters_of(eta)
        return (pi * mu).sum(-1)

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Σ pi_c F((x - mu_c) / sigma_c)."""
        pi, mu, sigma = self.parameters_of(eta)
        each = self.standard.cdf((x.unsqueeze(-1) - mu) / sigma)
        return (pi * each).sum(-1).clamp(max=1)

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """By bisection between the lowest and the highest of the components' quantiles, in float64."""
        exact = eta.double()
        _, mu, sigma = self.parameters_of(exact)
        each = mu + sigma * self.standard.quantile(q.double()).unsqueeze(-1)
        found = bisect(lambda x: self.cdf(x, exact), q.double(), each.amin(-1), each.amax(-1))
        return found.to(eta.dtype)

    def expectation(
        self, function: Callable[[Tensor], Tensor], eta: Tensor, i: Tensor | None = None
    ) -> Tensor:
        """Σ pi_c E_c[function(X)], each an integral over the component's quantiles (see `Real`)."""
        pi, mu, sigma = (part.movedim(-1, 0) for part in self.parameters_of(eta.double()))  # (K, …)
        total = torch.zeros_like(mu)
        for u, weight in probability_nodes():
            total = total + weight * function(mu + sigma * self.standard.quantile(mu.new_tensor(u)))
        return (pi * total).sum(0).to(eta.dtype)

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """Equal weights and one common sigma, with the mean and variance of each column (NaN: no row).

        See `spread_components`; no ties can make sigma 0.
        """
        mu, sigma = spread_components(*moments(x), self.n_components, self.standard.deviation)
        return torch.cat([torch.zeros_like(mu), mu, self.raw_scale(sigma)], -1)


class MixtureOfGaussians(_MixtureFamily):
    """RNADE-MoG: p(x) = Σ_c pi_c N(x; mu_c, sigma_c²) (eqs. RNADE-outputs-pi, -mu, -sigma).

    Args:
        n_components: K.
        sigma_floor: sigma = sigma_floor + exp(·).
        scale_mean_gradient: multiply the gradient of each mu_c by sigma_c.

    Example:
        >>> import torch
        >>> family = MixtureOfGaussians(2)
        >>> eta = torch.tensor([[0.0, 0.0, -3.0, 3.0, 0.0, 0.0]])
        >>> family.mean(eta).item(), round(family.cdf(torch.zeros(1), eta).item(), 6)
        (0.0, 0.5)
    """

    standard = NORMAL


class MixtureOfLaplaces(_MixtureFamily):
    """RNADE-MoL: as `MixtureOfGaussians`, each component exp(-|x - mu_c| / sigma_c) / 2 sigma_c.

    Args:
        n_components: K.
        sigma_floor: sigma = sigma_floor + exp(·).
        scale_mean_gradient: multiply the gradient of each mu_c by sigma_c.

    Example:
        >>> import torch
        >>> MixtureOfLaplaces(1).log_prob(torch.zeros(1), torch.zeros(1, 3)).exp().item()
        0.5
    """

    standard = LAPLACE


class MixtureOfLogistics(_MixtureFamily):
    """As `MixtureOfGaussians`, each component with cdf sigm((x - mu_c) / sigma_c).

    Args:
        n_components: K.
        sigma_floor: sigma = sigma_floor + exp(·).
        scale_mean_gradient: multiply the gradient of each mu_c by sigma_c.

    Example:
        >>> import torch
        >>> MixtureOfLogistics(1).log_prob(torch.zeros(1), torch.zeros(1, 3)).exp().item()
        0.25
    """

    standard = LOGISTIC


def bisect(cdf: Callable[[Tensor], Tensor], q: Tensor, low: Tensor, high: Tensor, steps: int = 100) -> Tensor:
    """The smallest x with cdf(x) >= q, known to lie between low and high; infinite ends stay as they are."""
    edge = torch.where(torch.isinf(low), low, high)
    known = torch.isinf(low) | torch.isinf(high)
    low, high = (torch.where(known, torch.zeros_like(q), side) for side in (low, high))
    for _ in range(steps):
        middle = low + 0.5 * (high - low)
        enough = cdf(middle) >= q
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return torch.where(known, edge, high)
