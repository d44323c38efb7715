"""One Gaussian or Laplace distribution per variable: location and scale."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from pynade.families.real import Real, moments
from pynade.families.standard import LAPLACE, NORMAL, Standard


class _LocationScale(Real):
    """Abstract X = mu + sigma Z, Z of a standard distribution."""

    standard: Standard
    n_params = 2

    def _parts(self, eta: Tensor, i: Tensor | None) -> tuple[Tensor, Tensor]:
        """mu and log sigma."""
        mu, raw = eta.unbind(-1)
        return mu, self.log_scale(raw)

    def log_prob(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Standard log-density at (x - mu) / sigma, less log sigma."""
        mu, log_sigma = self._parts(eta, i)
        z = self.standardise(x, mu, log_sigma)
        return self.standard.log_kernel(z) - log_sigma + self.standard.log_constant

    def sample(self, eta: Tensor, i: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """mu + sigma Z."""
        mu, log_sigma = self._parts(eta, i)
        return mu + torch.exp(log_sigma) * self.standard.noise(mu, generator)

    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """mu."""
        return eta[..., 0]

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The standard cdf at (x - mu) / sigma."""
        return self.standard.cdf(self.standardise(x, *self._parts(eta, i)))

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """mu + sigma times the standard quantile."""
        mu, log_sigma = self._parts(eta, i)
        return mu + torch.exp(log_sigma) * self.standard.quantile(q)


class Gaussian(_LocationScale):
    """RNADE-Gaussian: eta = (mu, log sigma) (eqs. RNADE-outputs with one component).

    Args:
        sigma_floor: sigma = sigma_floor + exp(·).
        scale_mean_gradient: multiply the gradient of mu by sigma.

    Example:
        >>> import torch
        >>> round(Gaussian().log_prob(torch.tensor([1.0]), torch.tensor([[1.0, 0.0]])).item(), 4)
        -0.9189
    """

    standard = NORMAL

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """Mean and standard deviation of each column (NaN: no row; no spread: sigma 1)."""
        mean, deviation = moments(x)
        return torch.stack([mean, self.raw_scale(deviation)], -1)


class FixedVarianceGaussian(_LocationScale):
    """RNADE-FV: eta is mu; sigma is one learned constant per variable, the same for every row.

    `log_sigma` (D,) starts at 0; `fit_constants` sets it to the deviations of data.

    Args:
        n_variables: D.
        sigma_floor: sigma = sigma_floor + exp(log_sigma).
        scale_mean_gradient: multiply the gradient of mu by sigma.

    Example:
        >>> import torch
        >>> family = FixedVarianceGaussian(2)
        >>> x = torch.tensor([[0.0, 10.0], [2.0, 30.0]])
        >>> family.fit_constants(x)
        >>> family.log_sigma.exp().tolist()
        [1.0, 10.0...]
        >>> family.eta_from_marginal(x).tolist()
        [[1.0], [20.0]]
    """

    standard = NORMAL
    n_params = 1

    def __init__(self, n_variables: int, sigma_floor: float = 0.0, scale_mean_gradient: bool = False) -> None:
        super().__init__(sigma_floor, scale_mean_gradient)
        if n_variables < 1:
            raise ValueError(f"n_variables must be at least 1, not {n_variables}")
        self.n_variables = int(n_variables)
        self.log_sigma = nn.Parameter(torch.zeros(self.n_variables))

    def _parts(self, eta: Tensor, i: Tensor | None) -> tuple[Tensor, Tensor]:
        return eta.squeeze(-1), self.log_scale(self.log_sigma if i is None else self.log_sigma[i])

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """Mean of each column (NaN: no row)."""
        return moments(x)[0].unsqueeze(-1)

    def fit_constants(self, x: Tensor) -> None:
        """Start sigma at the standard deviation of each column (no spread: 1)."""
        with torch.no_grad():
            self.log_sigma.copy_(self.raw_scale(moments(x)[1]))


class Laplace(_LocationScale):
    """RNADE-Laplace: eta = (mu, log b), density exp(-|x - mu| / b) / 2b.

    Args:
        sigma_floor: b = sigma_floor + exp(·).
        scale_mean_gradient: multiply the gradient of mu by b.

    Example:
        >>> import torch
        >>> Laplace().log_prob(torch.tensor([3.0]), torch.tensor([[1.0, 0.0]])).exp().item()
        0.0676...
    """

    standard = LAPLACE

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """Median and mean absolute deviation of each column, the best fit (NaN: no row; no spread: b = 1)."""
        x = x.double()
        median = x.nanmedian(0).values.nan_to_num(0.0)
        scale = (x - median).abs().nanmean(0)
        scale = torch.where(scale > 1e-12 * median.abs(), scale, torch.ones_like(scale))
        return torch.stack([median, self.raw_scale(scale)], -1)
