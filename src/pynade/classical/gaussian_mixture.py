"""Mixtures of Gaussians with full covariances, and EM for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pynade.classical import gaussian_em
from pynade.classical.em import Parameters, run_em
from pynade.classical.gaussian_em import GaussianEM, Member
from pynade.classical.gaussian_marginals import (
    GaussianMarginals,
    check_sizes,
    draw_components,
    draw_normal,
    inverse_of,
    positive_factor,
    row_by_row,
    rows_at_once,
)
from pynade.classical.moments import Rows, Scale
from pynade.training.checkpoint import Checkpoint
from pynade.training.history import History
from pynade.training.loop import Callback, Stopping


class GaussianMixture(GaussianMarginals):
    """p(x) = Σ_k w_k N(x; μ_k, Σ_k), every Σ_k full.

    Stored are log w, μ and A_k = L_k⁻¹, the inverse of the Cholesky factor of Σ_k, so that the residuals
    A_k (x - μ_k) of all rows under all components are one matrix product.

    A new mixture is K equal standard normals; `em_gaussian` and `minibatch_em` fit one.

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


@torch.no_grad()
def em_gaussian(
    x: Tensor | np.ndarray,
    n_components: int,
    valid: Tensor | np.ndarray | None = None,
    *,
    epochs: int = 201,
    patience: int | None = 10,
    tol: float = 1e-4,
    covariance_floor: float = 1e-6,
    init: str | GaussianMixture = "k-means++",
    stop_at_train: float | None = None,
    standardise: bool = True,
    generator: torch.Generator | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoint | None = None,
) -> tuple[GaussianMixture, History]:
    """Fit a mixture of K full-covariance Gaussians by EM, on the device of x and in float64.

    Missing values (NaN) are integrated out: exact EM, grouped by pattern of missing values. A component that
    no row belongs to any more starts anew at a random row, and `history.messages` says so.

    Args:
        x: training rows (N, D).
        n_components: K.
        valid: validation rows, scored at every iteration; the best parameters are returned.
        epochs: iterations at most, one more than M-steps.
        patience: iterations without a better validation score before stopping; None never stops so.
        tol: stop when the mean training log-likelihood changes by less; 0 never stops so.
        covariance_floor: added to the diagonal of every covariance at every M-step.
        init: "k-means++", "rows" (random rows as means, the pooled covariance), or a mixture to go on from.
        stop_at_train: stop when the mean training log-likelihood reaches this value (the paper's rule when
            retraining on train + valid: the `train_log_likelihood` of the validated run).
        standardise: the floor is in units in which each column has standard deviation 1; otherwise in the
            units of the data.
        generator: draws the starting point.
        callbacks: called with a `Progress` after each iteration; one that returns True ends EM.
        checkpoint: keeps the state, and gives it back where an interrupted EM goes on.

    Raises:
        ValueError: fewer rows than components, or a covariance that is singular in spite of the floor.

    Example:
        >>> import torch
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(500, 2, generator=g) - 4, torch.randn(500, 2, generator=g) + 4])
        >>> model, history = em_gaussian(x, 2, generator=g)
        >>> model.means.sort(0).values.round().tolist()
        [[-4.0, -4.0], [4.0, 4.0]]
    """
    gaussian_em.check_floor("covariance_floor", covariance_floor)
    x = gaussian_em.real_rows(x, n_components)
    scale = Scale.of(x, standardise)
    member = Member(Rows(x, scale), gaussian_em.valid_rows(valid, scale))
    start = starting_point(member.rows, n_components, init, covariance_floor, generator)
    rule = Stopping(patience, tol or None, stop_at_train)
    learner = _MixtureEM([member], start, [rule], ("covariance_floor", covariance_floor), [generator])
    (history,) = run_em(learner, epochs, callbacks, checkpoint)
    return mixture_of(scale, *(learner.best[name][0] for name in start)), history


class _MixtureEM(GaussianEM):
    def maximise(self) -> None:
        rows = self.members[0].rows
        floor = torch.diag(self.floor[1] / rows.scale.unit)
        weights = self.moments.counts / rows.n
        empty = weights[0] <= gaussian_em.EMPTY
        self.params = {
            "log_weights": weights.log(),
            "means": self.moments.means(),
            "covariances": self.moments.covariances() + floor,
        }
        if bool(empty.any()):
            weights[0, empty] = 1 / len(empty)
            self.params["log_weights"] = (weights / weights.sum()).log()
            generator = self.generators[0] if self.generators else None
            self.params["means"][0, empty] = gaussian_em.random_rows(rows.filled, int(empty.sum()), generator)
            self.params["covariances"][0, empty] = rows.pooled() + floor
            self.notes[0] += [
                gaussian_em.PLACED_AGAIN.format(k) for k in empty.nonzero().squeeze(-1).tolist()
            ]


def starting_point(
    rows: Rows,
    n_components: int,
    init: str | GaussianMixture,
    covariance_floor: float,
    generator: torch.Generator | None,
    zero_means: bool = False,
) -> Parameters:
    """Where EM of one mixture begins, in standardised units."""
    scale = rows.scale
    if isinstance(init, GaussianMixture):
        if (init.n_components, init.n_variables) != (n_components, rows.n_variables):
            raise ValueError(
                f"init has {init.n_components} components in {init.n_variables} variables, expected "
                f"{n_components} in {rows.n_variables}"
            )
        log_weights, means, covariances = (t.to(scale.shift.device) for t in init.components())
        means = torch.zeros_like(means) if zero_means else (means - scale.shift) / scale.scale
        covariances = scale.standardised(covariances)
    else:
        weights, means, covariances = gaussian_em.starting_moments(
            rows, n_components, init, generator, zero_means
        )
        log_weights = weights.log()
        covariances = covariances + torch.diag(covariance_floor / scale.unit)
    return {"log_weights": log_weights[None], "means": means[None], "covariances": covariances[None]}


def mixture_of(scale: Scale, log_weights: Tensor, means: Tensor, covariances: Tensor) -> GaussianMixture:
    """Standardised parameters as a density of the data."""
    means, covariances = scale.means(means), scale.covariances(covariances)
    return GaussianMixture.from_moments(log_weights.exp(), means, covariances)
