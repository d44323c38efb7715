"""Mixture of Gaussians with full covariances: the strong baseline for image patches and speech."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pynade.classical.gaussian import positive_factor
from pynade.classical.gaussian_marginals import GaussianMarginals, draw_components, draw_normal, row_by_row

BLOCK = {"cpu": 1 << 20, "cuda": 1 << 28}  # numbers in the (rows, K·D) block that scoring fills
LEAST_ROWS = 256  # in a block: fewer would read the components' matrices too often


class GaussianMixture(GaussianMarginals):
    """p(x) = Σ_k w_k N(x; μ_k, Σ_k), every Σ_k full.

    Stored are log w, μ and A_k = L_k⁻¹, the inverse of the Cholesky factor of Σ_k, so that the residuals
    A_k (x - μ_k) of all rows under all components are one matrix product.

    A new mixture is K equal standard normals; `pynade.classical.em_gaussian` and `minibatch_em` fit one.

    Args:
        n_variables: D.
        n_components: K.

    Example:
        >>> import torch
        >>> means = torch.tensor([[-3.0], [3.0]])
        >>> model = GaussianMixture.from_moments(torch.tensor([0.25, 0.75]), means, torch.ones(2, 1, 1))
        >>> round(model.log_prob(torch.tensor([[3.0]])).exp().item(), 4)  # 0.75 φ(0)
        0.2992
    """

    log_weights: Tensor
    means: Tensor
    inverse_factors: Tensor

    def __init__(self, n_variables: int, n_components: int) -> None:
        super().__init__()
        check_sizes(n_variables=n_variables, n_components=n_components)
        self.n_variables, self.n_components = n_variables, n_components
        self.register_buffer("log_weights", torch.full((n_components,), -math.log(n_components)))
        self.register_buffer("means", torch.zeros(n_components, n_variables))
        self.register_buffer("inverse_factors", torch.eye(n_variables).repeat(n_components, 1, 1))

    @classmethod
    def from_moments(cls, weights: Tensor, means: Tensor, covariances: Tensor) -> GaussianMixture:
        """From weights (K,), means (K, D) and covariances (K, D, D), in the dtype of the means."""
        model = cls(means.shape[1], len(means))
        weights = weights.double()
        model.log_weights = (weights / weights.sum()).log().to(means.dtype)
        inverse_factors = inverse_of(positive_factor(covariances, "the covariance of component"))
        model.means, model.inverse_factors = (row_by_row(t, means.dtype) for t in (means, inverse_factors))
        return model

    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (K,), means (K, D) and covariances (K, D, D), float64."""
        factors = inverse_of(self.inverse_factors.double())
        return self.log_weights.double(), self.means.double(), factors @ factors.mT

    def _log_prob(self, x: Tensor) -> Tensor:
        K, D = self.n_components, self.n_variables
        inverse = self.inverse_factors
        weights = inverse.reshape(K * D, D).T.contiguous()
        shift = -(inverse.double() @ self.means.double()[..., None]).flatten().to(x.dtype)
        scales = inverse.diagonal(dim1=-2, dim2=-1).double().log().sum(-1)
        constant = self.log_weights.double() + scales - 0.5 * D * math.log(2 * math.pi)
        out = []
        for rows in x.split(rows_at_once(x.device, K * D)):
            z = torch.addmm(shift, rows, weights).view(-1, K, D)
            squares = z.square().sum(-1, dtype=torch.float64)
            out.append(torch.logsumexp(constant - 0.5 * squares, -1))
        return torch.cat(out)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """A component for each row, then μ_k + L_k z."""
        if n == 0:
            return self.means[:0]
        k = draw_components(self.log_weights.double().exp(), n, generator)
        z = draw_normal((n, self.n_variables), generator, self.means)
        factors = inverse_of(self.inverse_factors)
        x = self.means[k]
        for component in k.unique().tolist():
            rows = (k == component).nonzero()[:, 0]
            x[rows] += z[rows] @ factors[component].mT
        return x

    def config(self) -> dict[str, Any]:
        """Constructor arguments."""
        return {"n_variables": self.n_variables, "n_components": self.n_components}


def inverse_of(factors: Tensor) -> Tensor:
    """Inverses of lower triangular matrices (..., D, D)."""
    eye = torch.eye(factors.shape[-1], dtype=factors.dtype, device=factors.device)
    return torch.linalg.solve_triangular(factors, eye.expand_as(factors), upper=False)


def rows_at_once(device: torch.device, numbers: int) -> int:
    """Rows to score at a time where each needs so many numbers of room."""
    return max(LEAST_ROWS, BLOCK.get(device.type, BLOCK["cpu"]) // numbers)


def check_sizes(**sizes: int) -> None:
    """Every size must be at least one."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}")
