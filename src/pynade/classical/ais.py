"""Annealed importance sampling of an RBM's partition function (Salakhutdinov and Murray, 2008)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from pynade.classical.binary import bernoulli_draws
from pynade.classical.rbm import RBM


@dataclass(frozen=True)
class PartitionEstimate:
    """An estimate of log Z: log-likelihoods computed with it are estimates too, and tend to be too good.

    E[Z estimate] = Z, so by Jensen's inequality log Z is underestimated on average, the more so the larger
    the spread of the chains; a standard error near one says that the number is not to be trusted.

    Attributes:
        log_z: logarithm of the mean of the chains' weights.
        stderr: its standard error, by the delta method.
        n_chains: independent chains.
        n_steps: intermediate distributions.
        exact: always False.
    """

    log_z: float
    stderr: float
    n_chains: int
    n_steps: int
    exact: bool = False

    def __str__(self) -> str:
        return f"log Z = {self.log_z:.3f} ± {self.stderr:.3f} nats (estimate, {self.n_chains} chains)"


@torch.no_grad()
def log_partition_ais(
    rbm: RBM,
    n_chains: int = 100,
    n_steps: int = 1000,
    generator: torch.Generator | None = None,
    *,
    base: Tensor | None = None,
) -> PartitionEstimate:
    """Estimate log Z by chains that walk from independent variables to the RBM.

    Distribution β is ∝ exp((1 − β) baseᵀx + β bᵀx) Π_k (1 + exp(β (c_k + W_k x))); at β = 0 its sum is
    2^H Π_d (1 + exp(base_d)), and β rises to 1 in equal steps. Each step weighs all chains and moves them by
    one round of Gibbs sampling.

    Args:
        rbm: the machine.
        n_chains: independent chains, all walked together; at least 2.
        n_steps: intermediate distributions.
        generator: source of randomness.
        base: logits (D,) of the start, best the data's base rates; the RBM's own b when not given.

    Example:
        >>> import torch
        >>> rbm = RBM(6, 3, scale=1.0, generator=torch.Generator().manual_seed(0))
        >>> estimate = log_partition_ais(rbm, 200, 200, torch.Generator().manual_seed(1))
        >>> estimate.exact, abs(estimate.log_z - rbm.log_partition()) < 0.2
        (False, True)
    """
    if n_chains < 2 or n_steps < 1:
        raise ValueError(
            f"an estimate takes at least 2 chains and 1 step, not n_chains={n_chains}, n_steps={n_steps}"
        )
    W, b, c = rbm.W.double(), rbm.b.double(), rbm.c.double()
    start = b if base is None else base.to(b)
    if start.shape != b.shape or not torch.isfinite(start).all():
        raise ValueError(f"base holds one finite logit for each of the {len(b)} variables")
    x = bernoulli_draws(start.expand(n_chains, -1), generator)
    log_w = torch.zeros(n_chains, dtype=torch.float64, device=W.device)
    betas = torch.linspace(0, 1, n_steps + 1, dtype=torch.float64).tolist()
    for before, beta in pairwise(betas):
        a, linear = x @ W.T + c, x @ (b - start)
        rise = functional.logsigmoid(-before * a) - functional.logsigmoid(-beta * a)
        log_w += (beta - before) * linear + rise.sum(-1)
        h = bernoulli_draws(beta * a, generator)
        x = bernoulli_draws((1 - beta) * start + beta * (h @ W + b), generator)
    log_base = rbm.n_hidden * math.log(2) - float(functional.logsigmoid(-start).sum())
    log_mean = float(torch.logsumexp(log_w, 0)) - math.log(n_chains)
    relative = (log_w - log_mean).exp()  # weights over their mean
    stderr = float(relative.std()) / math.sqrt(n_chains)
    return PartitionEstimate(log_base + log_mean, stderr, n_chains, n_steps)
