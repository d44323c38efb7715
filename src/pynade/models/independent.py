"""Independent variables: the baseline of every other model."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from pynade.families import Family
from pynade.models.density import Density, check_columns


class Independent(Density):
    """p(x) = Π_i p(x_i), one distribution of the family for each variable.

    Example:
        >>> import torch
        >>> from pynade.families import Bernoulli
        >>> coins = Independent.fitted(Bernoulli(), torch.tensor([[0.0, 1.0], [1.0, 1.0]]))
        >>> coins.log_prob(torch.tensor([[0.0, 1.0]])).exp().item()
        0.375...
    """

    def __init__(self, family: Family, n_variables: int) -> None:
        super().__init__()
        self.family, self.n_variables = family, n_variables
        self.eta = nn.Parameter(torch.zeros(n_variables, family.n_params))

    @classmethod
    def fitted(cls, family: Family, x: Tensor) -> Independent:
        """Fit in closed form to rows x (N, D)."""
        model = cls(family, x.shape[1])
        model.eta.data.copy_(family.eta_from_marginal(x))
        return model

    def _log_prob(self, x: Tensor) -> Tensor:
        eta = self.eta.expand(len(x), -1, -1)
        return self.family.log_prob(x, eta).sum(-1, dtype=torch.float64)

    @torch.no_grad()
    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        """Every variable on its own."""
        return self.family.sample(self.eta.expand(n, -1, -1), generator=generator)

    def check(self, x: Tensor) -> None:
        """Columns must match, values must be in the family's domain."""
        check_columns(x, self.n_variables)
        self.family.check(x)
