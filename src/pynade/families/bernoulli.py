"""Binary variables: eta is the logit of p(x = 1)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn import functional

from pynade.families.base import Family, NADEWeights, refuse
from pynade.kernels import Uniforms, sample


class Bernoulli(Family):
    """x in {0, 1}, p(x = 1) = sigm(eta) (eq. 2).

    Nothing is clamped: a logit of ±40 is a probability of e⁻⁴⁰, not of some floor.

    Example:
        >>> import torch
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
        """log sigm(±eta): the sign picks the outcome, so large logits lose no digits."""
        signed = (2 * x.to(eta.dtype) - 1) * eta[..., 0]  # (bytes would wrap)
        if signed.is_cuda:  # where logsigmoid does not support two vmaps
            return -functional.softplus(-signed, threshold=50)
        return functional.logsigmoid(signed)  # (softplus would round the last numbers of a batch otherwise)

    def sample(self, eta: Tensor, i: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """1 with probability sigm(eta)."""
        p = self.mean(eta)
        uniform = torch.rand(p.shape, generator=generator, dtype=p.dtype, device=p.device)
        return (uniform < p).to(p.dtype)

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

    def sample_nade(
        self, weights: NADEWeights, activation: str, uniforms: Uniforms, generator: Generator | None
    ) -> Tensor | None:
        """Zeros and ones by a compiled loop."""
        if type(self).sample is not Bernoulli.sample:
            return None
        return sample(weights, uniforms, None, activation)

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """0 below zero, p(x = 0) below one, then 1."""
        p0 = torch.sigmoid(-eta[..., 0])
        return torch.where(x < 0, torch.zeros_like(p0), torch.where(x < 1, p0, torch.ones_like(p0)))

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """0 up to p(x = 0), 1 above."""
        return (q > torch.sigmoid(-eta[..., 0])).to(eta.dtype)

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """Logits of the column means, each with one imaginary 0 and one imaginary 1 added (NaN: no row)."""
        ones = x.nansum(0, dtype=torch.float64) if x.is_floating_point() else x.sum(0, dtype=torch.float64)
        known = x.shape[0] - torch.isnan(x).sum(0)
        return torch.logit((ones + 1) / (known + 2)).unsqueeze(-1)
