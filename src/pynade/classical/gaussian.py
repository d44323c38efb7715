"""One Gaussian with a full covariance: the simplest model of dependent real variables."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pynade.classical.gaussian_marginals import GaussianMarginals, draw_normal, row_by_row


class MultivariateGaussian(GaussianMarginals):
    """x ~ N(mean, L Lᵀ), with L the lower Cholesky factor of the covariance.

    A new one is the standard normal; `pynade.training.gaussian` fits one.

    Args:
        n_variables: D.

    Example:
        >>> import torch
        >>> covariance = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
        >>> model = MultivariateGaussian.from_moments(torch.zeros(2), covariance)
        >>> round(model.log_prob(torch.zeros(1, 2)).item(), 4)  # -log(2π √3)
        -2.3872
        >>> observed = torch.tensor([[True, False]])
        >>> model.best_guess(torch.tensor([[4.0, float("nan")]]), observed).tolist()
        [[4.0, 2.0]]
    """

    n_components = 1
    mean: Tensor
    factor: Tensor

    def __init__(self, n_variables: int) -> None:
        super().__init__()
        if n_variables < 1:
            raise ValueError(f"n_variables must be at least 1, not {n_variables}")
        self.n_variables = n_variables
        self.register_buffer("mean", torch.zeros(n_variables))
        self.register_buffer("factor", torch.eye(n_variables))

    @classmethod
    def from_moments(cls, mean: Tensor, covariance: Tensor) -> MultivariateGaussian:
        """The Gaussian with this mean (D,) and positive definite covariance (D, D), in their dtype."""
        model = cls(len(mean))
        factor = positive_factor(covariance, "the covariance")
        model.mean, model.factor = (row_by_row(t, mean.dtype) for t in (mean, factor))
        return model

    @property
    def covariance(self) -> Tensor:
        """Covariance (D, D)."""
        return self.factor @ self.factor.mT

    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """As a mixture of one component, float64."""
        factor = self.factor.double()
        return factor.new_zeros(1), self.mean.double()[None], (factor @ factor.mT)[None]

    def _log_prob(self, x: Tensor) -> Tensor:
        z = torch.linalg.solve_triangular(self.factor, (x - self.mean).mT, upper=False)
        constant = self.factor.diagonal().double().log().sum() + 0.5 * self.n_variables * math.log(
            2 * math.pi
        )
        return -0.5 * z.square().sum(0, dtype=torch.float64) - constant

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """mean + L z with z standard normal."""
        return self.mean + draw_normal((n, self.n_variables), generator, self.mean) @ self.factor.mT

    def config(self) -> dict[str, Any]:
        """Constructor arguments."""
        return {"n_variables": self.n_variables}


def positive_factor(covariance: Tensor, what: str) -> Tensor:
    """Lower Cholesky factors of covariances (..., D, D), or a ValueError that names the first without one."""
    factor, info = torch.linalg.cholesky_ex(covariance.double())
    if (info != 0).any():
        which = f"{what} {int(info.flatten().nonzero()[0, 0])}" if info.ndim else what
        raise ValueError(f"{which} is not positive definite")
    return factor
