"""Gaussians, their mixtures and mixtures of factor analysers, with all their marginals and conditionals."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor, nn

from pynade.arguments import check_positive
from pynade.classical import moments
from pynade.classical.em import Random, draw_components
from pynade.families import Family, Gaussian, MixtureOfGaussians
from pynade.families.real import NORMAL
from pynade.models.density import Marginalisable, check_columns

BLOCK = {"cpu": 1 << 20, "cuda": 1 << 28}  # numbers in a (rows, K·D) block of whitened residuals
LEAST_ROWS = 256  # of a block: with fewer, the components' matrices are read too often

Part = tuple[Tensor, Tensor, Tensor, Tensor, moments.Conditioned]


class GaussianMarginals(Marginalisable):
    """Abstract mixture of K Gaussians; marginals and conditionals are computed in float64."""

    def __init__(self, n_variables: int, n_components: int) -> None:
        super().__init__()
        check_positive(n_variables=n_variables, n_components=n_components)
        self.n_variables, self.n_components = n_variables, n_components

    @abstractmethod
    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (K,), means (K, D) and covariances (K, D, D), float64."""

    def check(self, x: Tensor) -> None:
        """Columns must match and every value must be a finite number."""
        check_columns(x, self.n_variables)
        self.check_cells(x, torch.ones_like(x, dtype=torch.bool))

    def check_cells(self, x: Tensor, observed: Tensor) -> None:
        """Every observed cell must be a finite number."""
        invalid = ~torch.isfinite(x) & observed
        if invalid.any():
            row, column = invalid.nonzero()[0].tolist()
            value = x[row, column].item()
            problem = "missing (use marginal_log_prob to integrate it out)" if value != value else "infinite"
            raise ValueError(f"expected finite numbers, but row {row}, column {column} is {problem}")

    @torch.no_grad()
    def marginal_log_prob(self, x: Tensor, observed: Tensor) -> Tensor:
        """log p of the observed cells of each row: (B,), float64; for complete rows as `log_prob`."""
        out = torch.empty(len(x), dtype=torch.float64, device=x.device)
        complete = observed.all(-1)
        gaps = (~complete).nonzero()[:, 0]
        if complete.any():
            out[complete] = self._log_prob(x[complete].to(self.dtype))
        for rows, _, _, log_joint, _ in self._condition(x[gaps], observed[gaps]):
            out[gaps[rows]] = torch.logsumexp(log_joint, -1)
        return out

    @torch.no_grad()
    def best_guess(self, x: Tensor, observed: Tensor) -> Tensor:
        """Rows with each unobserved cell at its conditional mean: (B, D)."""
        out = torch.where(observed, x, 0).to(self.dtype)
        for rows, p, r, log_joint, conditioned in self._condition(x, observed):
            mean = torch.einsum("sk,skd->sd", log_joint.softmax(-1), conditioned.mean()[p, :, r])
            out[rows] = torch.where(observed[rows], out[rows], mean.to(out.dtype))
        return out

    @torch.no_grad()
    def sample_given(self, x: Tensor, observed: Tensor, n: int = 1, generator: Random = None) -> Tensor:
        """n joint draws of the unobserved cells of each row, (n, B, D)."""
        D, out = self.n_variables, torch.where(observed, x, 0).to(self.dtype).repeat(n, 1, 1)
        for rows, p, r, log_joint, conditioned in self._condition(x, observed):
            k = draw_components(log_joint.softmax(-1), n, generator)  # (S, n)
            means, factors = conditioned.mean()[p, :, r], conditioned.factor()
            parts, row_indexes = [], torch.arange(len(rows), device=x.device).repeat(n)
            size = max(1, moments.GROUP_NUMBERS // D**2)  # draws whose factors are gathered at a time
            for s, c in zip(row_indexes.split(size), k.T.flatten().split(size), strict=True):
                normal = NORMAL.noise(means.new_empty(len(s), D, 1), generator)
                parts.append(means[s, c] + (factors[p[s], c] @ normal)[..., 0])
            cells = torch.cat(parts).to(out.dtype).view(n, len(rows), D)
            out[:, rows] = torch.where(observed[rows], out[:, rows], cells)
        return out

    @torch.no_grad()
    def distribution(self, i: int, x: Tensor, observed: Tensor) -> tuple[Family, Tensor]:
        """p(x_i | observed cells): a mixture of K one-dimensional Gaussians, or one Gaussian where K = 1."""
        K = self.n_components
        eta = torch.empty(len(x), 3 * K, dtype=torch.float64, device=x.device)
        for rows, p, r, log_joint, conditioned in self._condition(x, observed):
            scale = conditioned.factor()[..., i, :].square().sum(-1).sqrt().log()  # (P, K)
            eta[rows] = torch.cat([log_joint.log_softmax(-1), conditioned.mean()[p, :, r, i], scale[p]], -1)
        eta = eta.to(self.dtype)
        return (Gaussian(), eta[:, 1:]) if K == 1 else (MixtureOfGaussians(K), eta)

    def _condition(self, x: Tensor, observed: Tensor) -> Iterator[Part]:
        """Groups of S rows: indexes, pattern, number in it, log p(k, observed), (S, K), conditionals."""
        log_weights, means, covariances = self.components()
        filled = torch.where(observed, x, 0).double()
        for patterns, index, real in moments.group_by_pattern(observed, self.n_components):
            conditioned = moments.condition(means, covariances, filled[index], patterns)
            p, r = real.nonzero().T
            yield index[p, r], p, r, conditioned.log_density[p, :, r] + log_weights, conditioned

    def _set_buffers(self, dtype: torch.dtype, **buffers: Tensor) -> Self:
        """Set buffers in the memory format of loaded ones, for bit-identical scores; returns self."""
        for name, t in buffers.items():
            setattr(self, name, t.detach().to(dtype).clone(memory_format=torch.contiguous_format))
        return self


class MultivariateGaussian(GaussianMarginals):
    """x ~ N(mean, L Lᵀ), with L the lower Cholesky factor of the covariance.

    A new one is the standard normal; `gaussian` fits one.

    Args:
        n_variables: D.

    Example:
        >>> covariance = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
        >>> model = MultivariateGaussian.from_moments(torch.zeros(2), covariance)
        >>> round(model.log_prob(torch.zeros(1, 2)).item(), 4)  # -log(2π √3)
        -2.3872
        >>> observed = torch.tensor([[True, False]])
        >>> model.best_guess(torch.tensor([[4.0, float("nan")]]), observed).tolist()
        [[4.0, 2.0]]
    """

    def __init__(self, n_variables: int) -> None:
        super().__init__(n_variables, n_components=1)
        self.mean, self.factor = nn.Buffer(torch.zeros(n_variables)), nn.Buffer(torch.eye(n_variables))

    @classmethod
    def from_moments(cls, mean: Tensor, covariance: Tensor) -> MultivariateGaussian:
        """The Gaussian with this mean (D,) and positive definite covariance (D, D), in their dtype."""
        factor = positive_factor(covariance, "the covariance")
        return cls(len(mean))._set_buffers(mean.dtype, mean=mean, factor=factor)

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
        constant = self.factor.diagonal().double().log().sum() + 0.5 * len(z) * math.log(2 * math.pi)
        return -0.5 * z.square().sum(0, dtype=torch.float64) - constant

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """n draws (n, D): mean + L z with z standard normal."""
        return self.mean + NORMAL.noise(self.mean.expand(n, -1), generator) @ self.factor.mT


class GaussianComponents(GaussianMarginals):
    """Abstract mixture of K Gaussians that stores `log_weights` (K,), `means` (K, D) and more."""

    inverse_factors: Tensor  # inverses of the Cholesky factors of the covariances, (K, D, D)

    def __init__(self, n_variables: int, n_components: int) -> None:
        super().__init__(n_variables, n_components)
        self.log_weights = nn.Buffer(torch.full((n_components,), -math.log(n_components)))
        self.means = nn.Buffer(torch.zeros(n_components, n_variables))

    @abstractmethod
    def _factors(self) -> tuple[Tensor, Tensor | None]:
        """F (K, D, Q) and Ψ (K, D) or None, where F Fᵀ + Ψ are the covariances."""

    def _log_prob(self, x: Tensor) -> Tensor:
        K, D, inverse = self.n_components, self.n_variables, self.inverse_factors
        weights, centre = inverse.reshape(K * D, D).T.contiguous(), self.means.mean(0)
        shift = -(inverse.double() @ (self.means - centre).double()[..., None]).flatten().to(x.dtype)
        scales = inverse.diagonal(dim1=-2, dim2=-1).double().log().sum(-1)
        constant = self.log_weights.double() + scales - 0.5 * D * math.log(2 * math.pi)
        log_p = []
        for rows in x.split(max(LEAST_ROWS, BLOCK.get(x.device.type, BLOCK["cpu"]) // (K * D))):
            z = torch.addmm(shift, rows - centre, weights).view(-1, K, D)  # whitened residuals
            log_p.append(torch.logsumexp(constant - 0.5 * z.square().sum(-1, dtype=torch.float64), -1))
        return torch.cat(log_p)

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """n draws (n, D): a component for each row, then μ + F s (+ Ψ^½ e) with s and e standard normal."""
        if n == 0:
            return self.means[:0]
        (factors, noise), weights = self._factors(), self.log_weights.double().exp()
        k = draw_components(weights, n, generator)
        x, s = self.means[k], NORMAL.noise(self.means.new_empty(n, factors.shape[-1]), generator)
        if noise is not None:
            x = x + NORMAL.noise(x, generator) * noise[k].sqrt()
        for component in k.unique().tolist():
            rows = (k == component).nonzero()[:, 0]
            x[rows] += s[rows] @ factors[component].mT
        return x


class GaussianMixture(GaussianComponents):
    """p(x) = Σ_k w_k N(x; μ_k, Σ_k), every Σ_k full; stored by the inverses of their Cholesky factors.

    A new mixture is K equal standard normals; `em_gaussian` and `minibatch_em` fit one.

    Args:
        n_variables: D.
        n_components: K.

    Example:
        >>> means = torch.tensor([[-3.0], [3.0]])
        >>> model = GaussianMixture.from_moments(torch.tensor([0.25, 0.75]), means, torch.ones(2, 1, 1))
        >>> round(model.log_prob(torch.tensor([[3.0]])).exp().item(), 4)  # 0.75 φ(0)
        0.2992
    """

    def __init__(self, n_variables: int, n_components: int) -> None:
        super().__init__(n_variables, n_components)
        self.inverse_factors = nn.Buffer(torch.eye(n_variables).repeat(n_components, 1, 1))

    @classmethod
    def from_moments(cls, weights: Tensor, means: Tensor, covariances: Tensor) -> GaussianMixture:
        """From weights (K,), means (K, D) and covariances (K, D, D), in the dtype of the means."""
        inverse = moments.inverse_of(positive_factor(covariances, "the covariance of component"))
        parts = {"log_weights": log_normalised(weights), "means": means, "inverse_factors": inverse}
        return cls(means.shape[1], len(means))._set_buffers(means.dtype, **parts)

    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (K,), means (K, D) and covariances (K, D, D), float64."""
        factors = moments.inverse_of(self.inverse_factors.double())
        return self.log_weights.double(), self.means.double(), factors @ factors.mT

    def _factors(self) -> tuple[Tensor, Tensor | None]:
        return moments.inverse_of(self.inverse_factors), None


class FactorAnalysers(GaussianComponents):
    """p(x) = Σ_k w_k N(x; μ_k, Λ_k Λ_kᵀ + Ψ_k), Λ_k of shape (D, Q) and Ψ_k diagonal.

    In each component x = μ + Λ s + noise with Q standard normal factors s (Ghahramani & Hinton, 1996). A new
    one is K standard normals without loadings; `em_factors` fits one.

    Args:
        n_variables: D.
        n_components: K.
        n_factors: Q, from 1 to D.

    Example:
        >>> model = FactorAnalysers(3, n_components=1, n_factors=1)
        >>> _ = model.loadings.fill_(1.0)
        >>> model.covariances()[0].tolist()
        [[2.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.0, 1.0, 2.0]]
        >>> round(model.log_prob(torch.zeros(1, 3)).item(), 4)  # -½ log((2π)³ · 4)
        -3.45
    """

    def __init__(self, n_variables: int, n_components: int, n_factors: int) -> None:
        super().__init__(n_variables, n_components)
        check_positive(n_factors=n_factors)
        if n_factors > n_variables:
            raise ValueError(
                f"n_factors must be at most the number of variables, {n_variables}, not {n_factors}"
            )
        self.n_factors = n_factors
        self.loadings = nn.Buffer(torch.zeros(n_components, n_variables, n_factors))
        self.noise = nn.Buffer(torch.ones(n_components, n_variables))

    @classmethod
    def from_parts(cls, weights: Tensor, means: Tensor, loadings: Tensor, noise: Tensor) -> FactorAnalysers:
        """From weights (K,), means (K, D), loadings (K, D, Q) and noise variances (K, D)."""
        if not bool((noise > 0).all()):
            raise ValueError("every noise variance must be positive")
        parts = {"log_weights": log_normalised(weights), "means": means, "loadings": loadings, "noise": noise}
        return cls(means.shape[1], len(means), loadings.shape[2])._set_buffers(means.dtype, **parts)

    def covariances(self) -> Tensor:
        """Λ Λᵀ + Ψ of each component, (K, D, D)."""
        return moments.factor_covariances(self.loadings, self.noise)

    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (K,), means (K, D) and covariances (K, D, D), float64."""
        covariances = moments.factor_covariances(self.loadings.double(), self.noise.double())
        return self.log_weights.double(), self.means.double(), covariances

    @property
    def inverse_factors(self) -> Tensor:  # type: ignore[override]
        """Inverses of the Cholesky factors of the covariances, (K, D, D)."""
        return moments.inverse_of(torch.linalg.cholesky(self.components()[2])).to(self.dtype)

    def _factors(self) -> tuple[Tensor, Tensor | None]:
        return self.loadings, self.noise


def log_normalised(weights: Tensor) -> Tensor:
    """Logarithms of weights (K,) over their sum, float64."""
    return (weights.double() / weights.double().sum()).log()


def positive_factor(covariance: Tensor, name: str) -> Tensor:
    """Lower Cholesky factors of covariances (..., D, D), or a ValueError that names the first without one."""
    factor, info = torch.linalg.cholesky_ex(covariance.double())
    if (info != 0).any():
        matrix = f"{name} {int(info.flatten().nonzero()[0, 0])}" if info.ndim else name
        raise ValueError(f"{matrix} is not positive definite")
    return factor
