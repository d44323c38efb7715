"""Gaussians, their mixtures and mixtures of factor analysers, with all their marginals and conditionals."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from pynade.arguments import check_positive
from pynade.classical import moments
from pynade.classical.em import Random, draw_components
from pynade.families import Family, Gaussian, MixtureOfGaussians
from pynade.families.real import NORMAL
from pynade.models.density import Marginalisable, check_columns

BLOCK = {"cpu": 1 << 20, "cuda": 1 << 28}  # numbers in the (rows, K·D) block that scoring fills
LEAST_ROWS = 256  # in a block: fewer would read the components' matrices too often

Part = tuple[Tensor, Tensor, Tensor, Tensor, moments.Conditioned]
Model = TypeVar("Model", bound="GaussianMarginals")


class GaussianMarginals(Marginalisable):
    """Abstract mixture of K Gaussians, however it stores them; marginals and conditionals are in float64."""

    n_components: int

    @abstractmethod
    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (K,), means (K, D) and covariances (K, D, D), float64."""

    def check(self, x: Tensor) -> None:
        """Columns must match and every value must be a finite number."""
        check_columns(x, self.n_variables)
        self.check_cells(x, torch.ones_like(x, dtype=torch.bool))

    def check_cells(self, x: Tensor, observed: Tensor) -> None:
        """Every observed cell must be a finite number."""
        wrong = ~torch.isfinite(x) & observed
        if wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            value = x[row, column].item()
            what = "missing (use marginal_log_prob to integrate it out)" if value != value else "infinite"
            raise ValueError(f"expected finite numbers, but row {row}, column {column} is {what}")

    @torch.no_grad()
    def marginal_log_prob(self, x: Tensor, observed: Tensor) -> Tensor:
        """log p of the observed cells of each row: (B,), float64; complete rows go through `log_prob`."""
        out = torch.empty(len(x), dtype=torch.float64, device=x.device)
        complete = observed.all(-1)
        gaps = (~complete).nonzero()[:, 0]
        if complete.any():
            out[complete] = self._log_prob(x[complete].to(self.dtype))
        for rows, _, _, log_joint, _ in self._conditioned(x[gaps], observed[gaps]):
            out[gaps[rows]] = torch.logsumexp(log_joint, -1)
        return out

    @torch.no_grad()
    def best_guess(self, x: Tensor, observed: Tensor) -> Tensor:
        """Rows with each unobserved cell at its conditional mean: (B, D)."""
        out = torch.where(observed, x, 0).to(self.dtype)
        for rows, p, r, log_joint, given in self._conditioned(x, observed):
            mean = torch.einsum("sk,skd->sd", log_joint.softmax(-1), given.mean()[p, :, r])
            out[rows] = torch.where(observed[rows], out[rows], mean.to(out.dtype))
        return out

    @torch.no_grad()
    def sample_given(self, x: Tensor, observed: Tensor, n: int = 1, generator: Random = None) -> Tensor:
        """n joint draws of the unobserved cells of each row, (n, B, D): a component first, then the cells."""
        D, out = self.n_variables, torch.where(observed, x, 0).to(self.dtype).repeat(n, 1, 1)
        for rows, p, r, log_joint, given in self._conditioned(x, observed):
            k = draw_components(log_joint.softmax(-1), n, generator)  # (S, n)
            means, factors = given.mean()[p, :, r], given.factor()
            drawn, which = [], torch.arange(len(rows), device=x.device).repeat(n)
            some = max(1, moments.BUDGET // D**2)  # draws whose factors are gathered at a time
            for s, c in zip(which.split(some), k.T.flatten().split(some), strict=True):
                normal = NORMAL.noise(means.new_empty(len(s), D, 1), generator)
                drawn.append(means[s, c] + (factors[p[s], c] @ normal)[..., 0])
            cells = torch.cat(drawn).to(out.dtype).view(n, len(rows), D)
            out[:, rows] = torch.where(observed[rows], out[:, rows], cells)
        return out

    @torch.no_grad()
    def distribution(self, i: int, x: Tensor, observed: Tensor) -> tuple[Family, Tensor]:
        """p(x_i | observed cells): a mixture of K one-dimensional Gaussians, or one Gaussian where K = 1."""
        K = self.n_components
        eta = torch.empty(len(x), 3 * K, dtype=torch.float64, device=x.device)
        for rows, p, r, log_joint, given in self._conditioned(x, observed):
            scale = given.factor()[..., i, :].square().sum(-1).sqrt().log()  # (P, K)
            eta[rows] = torch.cat([log_joint.log_softmax(-1), given.mean()[p, :, r, i], scale[p]], -1)
        eta = eta.to(self.dtype)
        return (Gaussian(), eta[:, 1:]) if K == 1 else (MixtureOfGaussians(K), eta)

    def _conditioned(self, x: Tensor, observed: Tensor) -> Iterator[Part]:
        """S rows, their places in P patterns of R rows, log p(k, observed cells), (S, K), the components."""
        log_weights, means, covariances = self.components()
        filled = torch.where(observed, x, 0).double()
        for patterns, index, real in moments.by_pattern(observed, self.n_components):
            given, (p, r) = moments.condition(means, covariances, filled[index], patterns), real.nonzero().T
            yield index[p, r], p, r, given.log_density[p, :, r] + log_weights, given


class GaussianComponents(GaussianMarginals):
    """Abstract mixture of K Gaussians that stores `log_weights` (K,), `means` (K, D) and more."""

    log_weights: Tensor
    means: Tensor

    def __init__(self, n_variables: int, n_components: int) -> None:
        super().__init__()
        check_positive(n_variables=n_variables, n_components=n_components)
        self.n_variables, self.n_components = n_variables, n_components
        self.register_buffer("log_weights", torch.full((n_components,), -math.log(n_components)))
        self.register_buffer("means", torch.zeros(n_components, n_variables))

    def _filled(self: Model, weights: Tensor, means: Tensor, **parts: Tensor) -> Model:
        weights = weights.double()
        log_weights = (weights / weights.sum()).log()
        return filled(self, means.dtype, log_weights=log_weights, means=means, **parts)

    @abstractmethod
    def _residuals(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """log w_k less the log-normaliser, (K,), and what gives |whitened residuals|² of rows, (B, K)."""

    def _log_prob(self, x: Tensor) -> Tensor:
        constant, squares = self._residuals(x)
        at_once = max(LEAST_ROWS, BLOCK.get(x.device.type, BLOCK["cpu"]) // self.means.numel())
        return torch.cat([torch.logsumexp(constant - 0.5 * squares(rows), -1) for rows in x.split(at_once)])

    def _draw(self, n: int, generator: Random, factors: Tensor, noise: Tensor | None = None) -> Tensor:
        """A component for each row, then μ + F s (+ noise^½ e) with s and e standard normal."""
        if n == 0:
            return self.means[:0]
        k = draw_components(self.log_weights.double().exp(), n, generator)
        x, s = self.means[k], NORMAL.noise(self.means.new_empty(n, factors.shape[-1]), generator)
        if noise is not None:
            x = x + NORMAL.noise(x, generator) * noise[k].sqrt()
        for component in k.unique().tolist():
            rows = (k == component).nonzero()[:, 0]
            x[rows] += s[rows] @ factors[component].mT
        return x


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

    n_components = 1
    mean: Tensor
    factor: Tensor

    def __init__(self, n_variables: int) -> None:
        super().__init__()
        check_positive(n_variables=n_variables)
        self.n_variables = n_variables
        self.register_buffer("mean", torch.zeros(n_variables))
        self.register_buffer("factor", torch.eye(n_variables))

    @classmethod
    def from_moments(cls, mean: Tensor, covariance: Tensor) -> MultivariateGaussian:
        """The Gaussian with this mean (D,) and positive definite covariance (D, D), in their dtype."""
        factor = positive_factor(covariance, "the covariance")
        return filled(cls(len(mean)), mean.dtype, mean=mean, factor=factor)

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
        """mean + L z with z standard normal."""
        return self.mean + NORMAL.noise(self.mean.expand(n, -1), generator) @ self.factor.mT


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

    inverse_factors: Tensor

    def __init__(self, n_variables: int, n_components: int) -> None:
        super().__init__(n_variables, n_components)
        self.register_buffer("inverse_factors", torch.eye(n_variables).repeat(n_components, 1, 1))

    @classmethod
    def from_moments(cls, weights: Tensor, means: Tensor, covariances: Tensor) -> GaussianMixture:
        """From weights (K,), means (K, D) and covariances (K, D, D), in the dtype of the means."""
        inverse = moments.inverse_of(positive_factor(covariances, "the covariance of component"))
        return cls(means.shape[1], len(means))._filled(weights, means, inverse_factors=inverse)

    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (K,), means (K, D) and covariances (K, D, D), float64."""
        factors = moments.inverse_of(self.inverse_factors.double())
        return self.log_weights.double(), self.means.double(), factors @ factors.mT

    def _residuals(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        K, D = self.n_components, self.n_variables
        inverse = self.inverse_factors
        weights = inverse.reshape(K * D, D).T.contiguous()
        shift = -(inverse.double() @ self.means.double()[..., None]).flatten().to(x.dtype)
        scales = inverse.diagonal(dim1=-2, dim2=-1).double().log().sum(-1)
        constant = self.log_weights.double() + scales - 0.5 * D * math.log(2 * math.pi)

        def squares(rows: Tensor) -> Tensor:
            z = torch.addmm(shift, rows, weights).view(-1, K, D)
            return z.square().sum(-1, dtype=torch.float64)

        return constant, squares

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """A component for each row, then μ_k + L_k z."""
        return self._draw(n, generator, moments.inverse_of(self.inverse_factors))


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

    loadings: Tensor
    noise: Tensor

    def __init__(self, n_variables: int, n_components: int, n_factors: int) -> None:
        super().__init__(n_variables, n_components)
        check_positive(n_factors=n_factors)
        if n_factors > n_variables:
            raise ValueError(
                f"n_factors must be at most the number of variables, {n_variables}, not {n_factors}"
            )
        self.n_factors = n_factors
        self.register_buffer("loadings", torch.zeros(n_components, n_variables, n_factors))
        self.register_buffer("noise", torch.ones(n_components, n_variables))

    @classmethod
    def from_parts(cls, weights: Tensor, means: Tensor, loadings: Tensor, noise: Tensor) -> FactorAnalysers:
        """From weights (K,), means (K, D), loadings (K, D, Q) and noise variances (K, D)."""
        if not bool((noise > 0).all()):
            raise ValueError("every noise variance must be positive")
        new = cls(means.shape[1], len(means), loadings.shape[2])
        return new._filled(weights, means, loadings=loadings, noise=noise)

    def covariances(self) -> Tensor:
        """Λ Λᵀ + Ψ of each component, (K, D, D)."""
        return moments.factor_covariances(self.loadings, self.noise)

    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (K,), means (K, D) and covariances (K, D, D), float64."""
        covariances = moments.factor_covariances(self.loadings.double(), self.noise.double())
        return self.log_weights.double(), self.means.double(), covariances

    def _residuals(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """With y = Ψ^{-½}(x - μ) and B = Ψ^{-½}Λ: min_s |y - B s|² + |s|², taken at s = (I + BᵀB)⁻¹Bᵀy.

        A sum of squares, where the textbook difference of two loses digits as Ψ → 0.
        """
        noise = self.noise.double()
        scaled = self.loadings.double() / noise.sqrt()[..., None]  # B
        gram = torch.eye(self.n_factors, dtype=torch.float64, device=x.device) + scaled.mT @ scaled
        root = torch.linalg.cholesky(gram)
        posterior = torch.cholesky_solve(scaled.mT, root).to(x.dtype)  # (K, Q, D), y -> s
        log_det = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + noise.log().sum(-1)
        constant = self.log_weights.double() - 0.5 * log_det - 0.5 * self.n_variables * math.log(2 * math.pi)
        spread, scaled = noise.rsqrt().to(x.dtype), scaled.to(x.dtype)

        def squares(rows: Tensor) -> Tensor:
            y = (rows - self.means[:, None]) * spread[:, None]  # (K, rows, D)
            s = y @ posterior.mT
            rest = torch.baddbmm(y, s, scaled.mT, alpha=-1)
            return (rest.square().sum(-1, dtype=torch.float64) + s.square().sum(-1, dtype=torch.float64)).mT

        return constant, squares

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """A component for each row, then μ + Λ s + Ψ^½ e."""
        return self._draw(n, generator, self.loadings, self.noise)


def filled(model: Model, dtype: torch.dtype, **parts: Tensor) -> Model:
    """The model with these buffers, in the memory layout of loaded ones: both score the same to the bit."""
    for name, t in parts.items():
        setattr(model, name, t.detach().to(dtype).clone(memory_format=torch.contiguous_format))
    return model


def positive_factor(covariance: Tensor, what: str) -> Tensor:
    """Lower Cholesky factors of covariances (..., D, D), or a ValueError that names the first without one."""
    factor, info = torch.linalg.cholesky_ex(covariance.double())
    if (info != 0).any():
        which = f"{what} {int(info.flatten().nonzero()[0, 0])}" if info.ndim else what
        raise ValueError(f"{which} is not positive definite")
    return factor
