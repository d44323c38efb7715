"""Mixture of factor analysers: Gaussians whose covariance is low rank plus diagonal."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pynade.classical.gaussian_marginals import GaussianMarginals, draw_components, draw_normal, row_by_row
from pynade.classical.gaussian_mixture import check_sizes, rows_at_once


class FactorAnalysers(GaussianMarginals):
    """p(x) = Σ_k w_k N(x; μ_k, Λ_k Λ_kᵀ + Ψ_k), Λ_k of shape (D, Q) and Ψ_k diagonal.

    In each component x = μ + Λ s + noise with Q standard normal factors s (Ghahramani & Hinton, 1996). With
    Q = D it contains every mixture of full-covariance Gaussians.

    A new one is K standard normals without loadings; `pynade.classical.em_factors` fits one.

    Args:
        n_variables: D.
        n_components: K.
        n_factors: Q, from 1 to D.

    Example:
        >>> import torch
        >>> model = FactorAnalysers(3, n_components=1, n_factors=1)
        >>> _ = model.loadings.fill_(1.0)
        >>> model.covariances()[0].tolist()
        [[2.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.0, 1.0, 2.0]]
        >>> round(model.log_prob(torch.zeros(1, 3)).item(), 4)  # -½ log((2π)³ · 4)
        -3.45
    """

    log_weights: Tensor
    means: Tensor
    loadings: Tensor
    noise: Tensor

    def __init__(self, n_variables: int, n_components: int, n_factors: int) -> None:
        super().__init__()
        check_sizes(n_variables=n_variables, n_components=n_components, n_factors=n_factors)
        if n_factors > n_variables:
            raise ValueError(
                f"n_factors must be at most the number of variables, {n_variables}, not {n_factors}"
            )
        self.n_variables, self.n_components, self.n_factors = n_variables, n_components, n_factors
        self.register_buffer("log_weights", torch.full((n_components,), -math.log(n_components)))
        self.register_buffer("means", torch.zeros(n_components, n_variables))
        self.register_buffer("loadings", torch.zeros(n_components, n_variables, n_factors))
        self.register_buffer("noise", torch.ones(n_components, n_variables))

    @classmethod
    def from_parts(cls, weights: Tensor, means: Tensor, loadings: Tensor, noise: Tensor) -> FactorAnalysers:
        """From weights (K,), means (K, D), loadings (K, D, Q) and noise variances (K, D)."""
        if not bool((noise > 0).all()):
            raise ValueError("every noise variance must be positive")
        model = cls(means.shape[1], len(means), loadings.shape[2])
        weights = weights.double()
        model.log_weights = (weights / weights.sum()).log().to(means.dtype)
        model.means, model.loadings, model.noise = (
            row_by_row(t, means.dtype) for t in (means, loadings, noise)
        )
        return model

    def covariances(self) -> Tensor:
        """Λ Λᵀ + Ψ of each component, (K, D, D)."""
        return self.loadings @ self.loadings.mT + torch.diag_embed(self.noise)

    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (K,), means (K, D) and covariances (K, D, D), float64."""
        loadings, noise = self.loadings.double(), self.noise.double()
        covariances = loadings @ loadings.mT + torch.diag_embed(noise)
        return self.log_weights.double(), self.means.double(), covariances

    def _log_prob(self, x: Tensor) -> Tensor:
        """By the Woodbury identity, in Q × Q matrices.

        With y = Ψ^{-½}(x - μ) and B = Ψ^{-½}Λ, the quadratic form is min_s |y - B s|² + |s|², taken at the
        posterior mean s = (I + BᵀB)⁻¹Bᵀy: a sum of squares, where the textbook difference of two loses digits
        as Ψ → 0.
        """
        K, D, Q = self.n_components, self.n_variables, self.n_factors
        noise = self.noise.double()
        scaled = self.loadings.double() / noise.sqrt()[..., None]  # B
        gram = torch.eye(Q, dtype=torch.float64, device=x.device) + scaled.mT @ scaled
        root = torch.linalg.cholesky(gram)
        posterior = torch.cholesky_solve(scaled.mT, root).to(x.dtype)  # (K, Q, D), y -> s
        log_det = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + noise.log().sum(-1)
        constant = self.log_weights.double() - 0.5 * log_det - 0.5 * D * math.log(2 * math.pi)
        spread, scaled = noise.rsqrt().to(x.dtype), scaled.to(x.dtype)
        out = []
        for rows in x.split(rows_at_once(x.device, K * D)):
            y = (rows - self.means[:, None]) * spread[:, None]  # (K, rows, D)
            s = y @ posterior.mT
            rest = torch.baddbmm(y, s, scaled.mT, alpha=-1)
            squares = rest.square().sum(-1, dtype=torch.float64) + s.square().sum(-1, dtype=torch.float64)
            out.append(torch.logsumexp(constant[:, None] - 0.5 * squares, 0))
        return torch.cat(out)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """A component for each row, then μ + Λ s + Ψ^½ e."""
        if n == 0:
            return self.means[:0]
        k = draw_components(self.log_weights.double().exp(), n, generator)
        s = draw_normal((n, self.n_factors), generator, self.means)
        x = self.means[k] + draw_normal((n, self.n_variables), generator, self.means) * self.noise[k].sqrt()
        for component in k.unique().tolist():
            rows = (k == component).nonzero()[:, 0]
            x[rows] += s[rows] @ self.loadings[component].mT
        return x

    def config(self) -> dict[str, Any]:
        """Constructor arguments."""
        names = ("n_variables", "n_components", "n_factors")
        return {name: getattr(self, name) for name in names}
