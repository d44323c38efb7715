"""Families that a user might write: nothing of the library knows them."""

import torch
from torch import Tensor

from pynade.families import Family


class Exponential(Family):
    """Positive numbers with mean exp(eta)."""

    n_params = 1

    def __init__(self, shrink: float = 1.0) -> None:
        super().__init__()
        self.shrink = shrink

    def check(self, x: Tensor) -> None:
        if not (x >= 0).all():
            raise ValueError("an Exponential model needs values of 0 or more")

    def encode(self, x, i=None):
        return self.shrink * x.unsqueeze(-1)

    def log_prob(self, x, eta, i=None):
        return -eta[..., 0] - x * torch.exp(-eta[..., 0])

    def sample(self, eta, i=None, generator=None):
        u = torch.rand(eta.shape[:-1], generator=generator, dtype=eta.dtype)
        return -torch.exp(eta[..., 0]) * torch.log1p(-u)

    def mean(self, eta, i=None):
        return torch.exp(eta[..., 0])

    def best_guess(self, eta, i=None):
        return self.mean(eta, i)

    def cdf(self, x, eta, i=None):
        return -torch.expm1(-x.clamp(min=0) * torch.exp(-eta[..., 0]))

    def quantile(self, q, eta, i=None):
        return -torch.exp(eta[..., 0]) * torch.log1p(-q)

    def eta_from_marginal(self, x):
        return torch.log(x.double().nanmean(0)).unsqueeze(-1)


class Poisson(Exponential):
    """Counts with mean exp(eta): discrete, without a largest value."""

    def log_prob(self, x, eta, i=None):
        return x * eta[..., 0] - torch.exp(eta[..., 0]) - torch.lgamma(x + 1)

    def sample(self, eta, i=None, generator=None):
        return torch.poisson(torch.exp(eta[..., 0]), generator)

    def best_guess(self, eta, i=None):
        return torch.exp(eta[..., 0]).floor()

    def cdf(self, x, eta, i=None):
        return torch.special.gammaincc(x.floor() + 1, torch.exp(eta[..., 0]))

    def quantile(self, q, eta, i=None):
        levels = torch.arange(1000.0, dtype=eta.dtype)
        return (self.cdf(levels, eta.unsqueeze(-2), i) < q.unsqueeze(-1)).sum(-1).to(eta.dtype)
