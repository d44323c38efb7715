"""Discrete variables: Bernoulli (eta is one logit) and categorical (eta has a logit for every level)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn import functional

from pynade.families.base import Draw, Family, refuse
from pynade.families.real import choose, random_like


class Bernoulli(Family):
    """x in {0, 1}, p(x = 1) = sigm(eta) (eq. 2).

    Probabilities are not clamped: a logit of -40 is a probability of e⁻⁴⁰.

    Example:
        >>> family = Bernoulli()
        >>> family.log_prob(torch.tensor([1.0, 0.0]), torch.zeros(2, 1)).exp().tolist()
        [0.5, 0.5]
    """

    n_params = 1
    discrete = True

    def check(self, x: Tensor) -> None:
        """Every value must be exactly 0 or 1."""
        refuse(x, (x != 0) & (x != 1), "a Bernoulli model needs values that are exactly 0 or 1")

    def log_prob(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """log sigm(eta) for x = 1 and log sigm(-eta) for x = 0, without loss of digits for large logits."""
        signed = (2 * x.to(eta.dtype) - 1) * eta[..., 0]  # (x may be uint8, which would overflow)
        if signed.is_cuda:  # logsigmoid on CUDA does not support nested vmap
            return -functional.softplus(-signed, threshold=50)
        return functional.logsigmoid(signed)  # (softplus on a CPU rounds differently at the end of a batch)

    def sample(self, eta: Tensor, i: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """1 with probability sigm(eta)."""
        p = self.mean(eta)
        return (random_like(torch.rand, p, generator) < p).to(p.dtype)

    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """p(x = 1)."""
        return torch.sigmoid(eta[..., 0])

    def best_guess(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The likelier of 0 and 1."""
        return (eta[..., 0] > 0).to(eta.dtype)

    def best_guess_from_draws(self, values: Tensor, means: Tensor, weights: Tensor) -> Tensor:
        """1 where the mean is above one half."""
        mean = (weights.unsqueeze(-1) * means).sum(1).to(values.dtype)
        return (mean > 0.5).to(mean.dtype)

    def sample_nade(self, draw: Draw, like: Tensor, generator: Generator | None) -> Tensor | None:
        """Zeros and ones by a compiled loop."""
        return draw(None) if type(self).sample is Bernoulli.sample else None

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """0 below zero, p(x = 0) below one, then 1."""
        return torch.where(x < 0, 0, torch.where(x < 1, torch.sigmoid(-eta[..., 0]), 1))

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """0 up to p(x = 0), 1 above."""
        return (q > torch.sigmoid(-eta[..., 0])).to(eta.dtype)

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """Logits of the column means with one pseudo-count for 0 and for 1 (NaN is ignored)."""
        known = len(x) - torch.isnan(x).sum(0)
        return torch.logit((x.nansum(0, dtype=torch.float64) + 1) / (known + 2)).unsqueeze(-1)


class Categorical(Family):
    """x in {0, 1, …, L-1}, p(x = l) = softmax(eta)_l.

    Args:
        n_levels: L; P = L.
        one_hot: the input of a net is an indicator of each level, F = L, for levels without an order. False:
            it is the number x / (L - 1), F = 1, which suits grey levels.

    Example:
        >>> family = Categorical(4)
        >>> family.log_prob(torch.tensor([2.0]), torch.zeros(1, 4)).exp().item()
        0.25
        >>> family.encode(torch.tensor([2.0])).tolist()
        [[0.0, 0.0, 1.0, 0.0]]
    """

    discrete = True

    def __init__(self, n_levels: int, one_hot: bool = True) -> None:
        super().__init__()
        check_levels(n_levels)
        self.n_levels, self.one_hot = int(n_levels), bool(one_hot)
        self.n_params = self.n_levels
        self.n_features = self.n_levels if one_hot else 1

    def check(self, x: Tensor) -> None:
        """Every value must be one of the levels."""
        check_whole(x, self.n_levels, "Categorical")

    def encode(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """Indicators of the levels, or x / (L - 1)."""
        if not self.one_hot:
            return x.unsqueeze(-1) / (self.n_levels - 1)
        return (x.unsqueeze(-1) == torch.arange(self.n_levels, device=x.device)).to(x.dtype)

    def log_prob(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The log-softmax at x."""
        return eta.log_softmax(-1).gather(-1, x.long().unsqueeze(-1)).squeeze(-1)

    def sample(self, eta: Tensor, i: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """A level with probability softmax(eta), by inversion of a uniform number."""
        return choose(eta.softmax(-1), generator).to(eta.dtype)

    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Σ l p(x = l)."""
        levels = torch.arange(self.n_levels, device=eta.device, dtype=eta.dtype)
        return (eta.softmax(-1) * levels).sum(-1)

    def best_guess(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The likeliest level."""
        return eta.argmax(-1).to(eta.dtype)

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Σ_{l <= x} p(x = l)."""
        place = x.floor().clamp(-1, eta.shape[-1] - 1).long() + 1
        return self._below(eta).gather(-1, place.unsqueeze(-1)).squeeze(-1)

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The first level whose cdf is at least q."""
        return (self._below(eta)[..., 1:-1] < q.unsqueeze(-1)).sum(-1).to(eta.dtype)

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """Log-frequencies of the levels in each column, with one pseudo-count per level (NaN is ignored)."""
        first = self.n_levels * torch.arange(x.shape[1], device=x.device)  # index of a column's first count
        indexes = (first + x.nan_to_num(0).long())[~torch.isnan(x)]
        counts = torch.bincount(indexes, minlength=x.shape[1] * self.n_levels).double() + 1
        return counts.view(-1, self.n_levels).log().log_softmax(-1)

    @staticmethod
    def _below(eta: Tensor) -> Tensor:
        """P(x < l) for l = 0 … L: exactly 0 at the first and 1 at the last."""
        sums = eta.softmax(-1).cumsum(-1)
        return functional.pad(sums / sums[..., -1:], (1, 0))


def check_levels(levels: int) -> None:
    """Raise a ValueError for fewer than two levels."""
    if levels < 2:
        raise ValueError(f"a discrete variable needs at least 2 levels, not {levels}")


def check_whole(x: Tensor, levels: int, name: str) -> None:
    """Raise a ValueError that names the first cell that is not a whole number from 0 to levels - 1."""
    x = x if x.is_floating_point() else x.int()  # (256 would overflow in uint8)
    wrong = ~((x >= 0) & (x < levels))  # also NaN
    if x.is_floating_point():
        wrong |= x != x.round()
    refuse(x, wrong, f"a {name} model with {levels} levels needs whole numbers from 0 to {levels - 1}")
