"""Mixtures of multivariate Bernoullis (the paper's MoB)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.classical.binary import BinaryMarginalisable, bernoulli_draws, choose


class BernoulliMixture(BinaryMarginalisable):
    """p(x) = Σ_k w_k Π_d θ_kd^x_d (1 − θ_kd)^(1−x_d).

    Weights are the softmax of `log_weights` (K,), θ the sigmoid of `logits` (K, D), so every value of the
    parameters is a density. `learn.em_bernoulli` fits one; a new one has K equal, fair components.

    Args:
        n_variables: D.
        n_components: K.

    Example:
        >>> import torch
        >>> model = BernoulliMixture(2, 3)
        >>> round(model.log_prob(torch.tensor([[0.0, 1.0]])).exp().item(), 6)
        0.25
    """

    def __init__(self, n_variables: int, n_components: int) -> None:
        super().__init__(n_variables)
        if n_components < 1:
            raise ValueError(f"n_components must be at least 1, not {n_components}")
        self.n_components = n_components
        self.log_weights = nn.Parameter(torch.zeros(n_components))
        self.logits = nn.Parameter(torch.zeros(n_components, n_variables))

    def component_log_probs(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """log w_k + log p_k(observed cells), (B, K), float64; one matrix product, two with missing cells.

        Args:
            x: rows (B, D) in this model's dtype, zero where not observed.
            observed: bool (B, D); None means all.
        """
        ones = (x @ self.logits.T).double()
        nothing = functional.logsigmoid(-self.logits)  # log p_k(x_d = 0)
        if observed is None:
            rest = nothing.sum(-1, dtype=torch.float64)
        else:
            rest = (observed.to(x.dtype) @ nothing.T).double()
        return ones + rest + torch.log_softmax(self.log_weights.double(), 0)

    def _log_prob(self, x: Tensor) -> Tensor:
        return torch.logsumexp(self.component_log_probs(x), -1)

    def _marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        return torch.logsumexp(self.component_log_probs(x, observed), -1)

    def _logits_given(self, x: Tensor, observed: Tensor) -> Tensor:
        weights = torch.softmax(self.component_log_probs(x, observed), -1)
        logits = self.logits.double()
        one, zero = (_log_average(weights, functional.logsigmoid(s * logits)) for s in (1, -1))
        return one - zero

    @torch.no_grad()
    def sample_given(
        self, x: Tensor, observed: Tensor, n: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """A component from its posterior, then the unobserved cells from it: (n, B, D)."""
        x = self._clean(x, observed)
        component = choose(self.component_log_probs(x, observed), n, generator)  # (n, B)
        drawn = bernoulli_draws(self.logits[component], generator)
        return torch.where(observed, x, drawn.to(x.dtype))

    def config(self) -> dict[str, Any]:
        """Constructor arguments."""
        return {"n_variables": self.n_variables, "n_components": self.n_components}


def _log_average(weights: Tensor, log_p: Tensor) -> Tensor:
    """log Σ_k w_bk p_kd as a matrix product, each column scaled so that tiny probabilities survive."""
    largest = log_p.max(0).values
    return (weights @ (log_p - largest).exp()).log() + largest
