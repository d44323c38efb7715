"""Grey levels: mixtures of logistic laws, each level given the mass of its interval."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional

from pynade.families.base import Family
from pynade.families.categorical import check_levels, check_whole
from pynade.families.real import moments
from pynade.families.standard import LOGISTIC, uniforms

WITHIN = 0.25  # share of a column's variance that the initial components have within themselves


class DiscretisedLogistic(Family):
    """x in {0, …, L-1}: a mixture of K logistic laws cut into L pieces (Salimans et al., 2017).

        p(x) = Σ_c pi_c [sigm((v + w - mu_c) / s_c) - sigm((v - w - mu_c) / s_c)]

    where v = 2x / (L-1) - 1 runs from -1 to 1 and w = 1 / (L-1) is half a level. The lowest level also takes
    all that lies below it and the highest all that lies above, so probabilities sum to one. Eta is [K logits
    of pi | K locations mu | K logarithms of s]. Differences of sigmoids are computed as products,
    sigm(a) - sigm(b) = sigm(a) sigm(-b) (1 - exp(b - a)), so no level is ever given a probability of zero.

    Args:
        n_components: K.
        levels: L.
        sigma_floor: s = sigma_floor + exp(·), exactly exp(·) when it is 0. It changes likelihoods.

    Example:
        >>> import torch
        >>> family = DiscretisedLogistic(2, levels=4)
        >>> eta = torch.tensor([0.0, 1.0, -0.5, 0.5, -1.0, -2.0]).expand(4, 6)
        >>> family.log_prob(torch.arange(4.0), eta).exp().sum().item()
        1.0...
    """

    discrete = True

    def __init__(self, n_components: int, levels: int = 256, sigma_floor: float = 0.0) -> None:
        super().__init__()
        check_levels(levels)
        if n_components < 1:
            raise ValueError(f"n_components must be at least 1, not {n_components}")
        if not 0 <= sigma_floor < math.inf:
            raise ValueError(f"sigma_floor must be a finite number, zero or more, not {sigma_floor}")
        self.n_components, self.levels = int(n_components), int(levels)
        self.sigma_floor = float(sigma_floor)
        self.n_params = 3 * self.n_components

    def check(self, x: Tensor) -> None:
        """Every value must be one of the levels."""
        check_whole(x, self.levels, "DiscretisedLogistic")

    def encode(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """x / (L - 1), from 0 to 1."""
        return x.unsqueeze(-1) / (self.levels - 1)

    def log_prob(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Log of the sum over components of the mass of x's interval."""
        logits, mu, log_s = self._parts(eta)
        top, half = self.levels - 1, 1 / (self.levels - 1)
        v = (2 * x / top - 1).unsqueeze(-1) - mu
        sharp = torch.exp(-log_s)
        upper = functional.logsigmoid((v + half) * sharp)  # all below the interval's upper end
        lower = functional.logsigmoid((half - v) * sharp)  # all above its lower end
        inside = upper + lower + torch.log(-torch.expm1(-2 * half * sharp))
        level = x.unsqueeze(-1)
        each = torch.where(level <= 0, upper, torch.where(level >= top, lower, inside))
        return torch.logsumexp(logits.log_softmax(-1) + each, -1)

    def sample(self, eta: Tensor, i: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """A component is drawn, then its logistic law, rounded to the nearest level."""
        logits, mu, log_s = self._parts(eta)
        edges = logits.softmax(-1).cumsum(-1)
        u = uniforms(mu[..., 0], generator).unsqueeze(-1) * edges[..., -1:]
        which = (edges[..., :-1] < u).sum(-1, keepdim=True)
        mu, log_s = mu.gather(-1, which)[..., 0], log_s.gather(-1, which)[..., 0]
        v = mu + torch.exp(log_s) * LOGISTIC.noise(mu, generator)
        return ((v + 1) / 2 * (self.levels - 1)).round().clamp(0, self.levels - 1)

    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Σ_l P(X > l), over the levels one by one."""
        total = torch.zeros_like(eta[..., 0])
        for level in range(self.levels - 1):
            total = total + (1 - self.cdf(torch.full_like(total, level), eta, i))
        return total

    def best_guess(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The likeliest level (the lowest of several), found by asking all of them."""
        best = torch.full_like(eta[..., 0], -math.inf)
        guess = torch.zeros_like(best)
        for level in range(self.levels):
            here = torch.full_like(best, level)
            log_p = self.log_prob(here, eta, i)
            guess = torch.where(log_p > best, here, guess)
            best = torch.maximum(best, log_p)
        return guess

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Σ pi_c sigm((v + w - mu_c) / s_c) at the level below or at x; 1 from the highest on."""
        logits, mu, log_s = self._parts(eta)
        top = self.levels - 1
        level = x.floor()
        v = ((2 * level + 1) / top - 1).unsqueeze(-1) - mu
        below = (logits.softmax(-1) * torch.sigmoid(v * torch.exp(-log_s))).sum(-1).clamp(max=1)
        below = torch.where(level < 0, torch.zeros_like(below), below)
        return torch.where(level >= top, torch.ones_like(below), below)

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The first level up to which there is a share of q, by halving."""
        low, high = torch.full_like(q, -1.0), torch.full_like(q, self.levels - 1.0)
        for _ in range(self.levels.bit_length()):
            middle = ((low + high) / 2).floor()
            enough = (self.cdf(middle, eta, i) >= q) & (middle >= 0)
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        return high.to(eta.dtype)

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """Equal weights and one common scale, with the mean and the variance of each column (NaN: no row).

        As for mixtures of real laws: a share `WITHIN` of the variance lies within the components. A column
        without spread is given a scale of one level.
        """
        k, unit = self.n_components, 2 / (self.levels - 1)
        mean, deviation = moments(x)
        mean, deviation = mean * unit - 1, deviation * unit
        grid = torch.special.ndtri((torch.arange(k, dtype=torch.float64, device=x.device) + 0.5) / k)
        within = WITHIN if k > 1 else 1.0
        if k > 1:
            grid = grid * math.sqrt((1 - within) / grid.square().mean().item())
        mu = mean[:, None] + deviation[:, None] * grid
        s = (deviation * math.sqrt(within) / LOGISTIC.deviation)[:, None].expand_as(mu)
        raw = torch.log((s - self.sigma_floor).clamp(min=1e-3 * self.sigma_floor))
        return torch.cat([torch.zeros_like(mu), mu, raw], -1)

    def _parts(self, eta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of pi, mu and log s, each (…, K)."""
        logits, mu, raw = eta.split(self.n_components, -1)
        if self.sigma_floor == 0:
            return logits, mu, raw
        log_floor = math.log(self.sigma_floor)
        return logits, mu, log_floor + functional.softplus(raw - log_floor, threshold=40)
