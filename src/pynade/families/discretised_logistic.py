"""Grey levels: mixtures of logistic distributions, each level with the probability of its interval."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional

from pynade.arguments import check_positive
from pynade.families.base import Family
from pynade.families.categorical import check_levels, check_whole
from pynade.families.real import check_floor, log_floored, moments, spread_components
from pynade.families.standard import LOGISTIC, pick


class DiscretisedLogistic(Family):
    """x in {0, …, L-1}: a mixture of K logistic distributions cut into L pieces (Salimans et al., 2017).

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
        check_positive(n_components=n_components)
        self.n_components, self.levels = int(n_components), int(levels)
        self.sigma_floor = check_floor(sigma_floor)
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
        """A component is drawn, then a logistic number, which is rounded to the nearest level."""
        logits, mu, log_s = self._parts(eta)
        which = pick(logits.softmax(-1), generator).unsqueeze(-1)
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
        """The likeliest level (the lowest of several), found by computing all of them."""
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

        See `spread_components`. A column without spread is given a scale of one level.
        """
        unit = 2 / (self.levels - 1)
        mean, deviation = moments(x)
        mu, s = spread_components(mean * unit - 1, deviation * unit, self.n_components, LOGISTIC.deviation)
        raw = torch.log((s - self.sigma_floor).clamp(min=1e-3 * self.sigma_floor))
        return torch.cat([torch.zeros_like(mu), mu, raw], -1)

    def _parts(self, eta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of pi, mu and log s, each (…, K)."""
        logits, mu, raw = eta.split(self.n_components, -1)
        return logits, mu, log_floored(raw, self.sigma_floor)
