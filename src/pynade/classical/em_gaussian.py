"""Learning Gaussians and mixtures of full-covariance Gaussians by maximum likelihood."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from pynade.classical.em import (
    EMPTY,
    Member,
    Parameters,
    afresh_messages,
    check_floor,
    expectation_maximisation,
    prepare,
    random_rows,
    starting_moments,
)
from pynade.classical.em_history import EMCallback, EMHistory
from pynade.classical.gaussian import MultivariateGaussian
from pynade.classical.gaussian_mixture import GaussianMixture
from pynade.classical.moments import Moments, Rows, Scale, cholesky


@torch.no_grad()
def gaussian(
    x: Tensor,
    shrinkage: str | float | None = None,
    *,
    covariance_floor: float = 0.0,
    iterations: int = 1000,
    tol: float = 1e-9,
) -> MultivariateGaussian:
    """Fit one Gaussian to rows x (N, D): in closed form, or where values are missing (NaN) by exact EM.

    Args:
        x: rows.
        shrinkage: None is maximum likelihood; a number a in [0, 1] gives (1 - a) Σ + a (tr Σ / D) I;
            "ledoit-wolf" lets scikit-learn choose a (complete rows only).
        covariance_floor: added to the diagonal of the covariance.
        iterations: the most EM iterations, where values are missing.
        tol: EM stops when the mean log-likelihood changes by less.

    Raises:
        ValueError: the covariance is singular and `covariance_floor` does not mend it.

    Example:
        >>> import torch
        >>> model = gaussian(torch.tensor([[0.0, 0.0], [2.0, 1.0], [4.0, -1.0]]))
        >>> model.mean.tolist()
        [2.0, 0.0]
    """
    check_floor("covariance_floor", covariance_floor)
    x = prepare(x, 1)
    scale = Scale.of(x)
    amount = _shrinkage(shrinkage, x)
    eye = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)

    def regularised(covariance: Tensor) -> Tensor:
        level = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        return (1 - amount) * covariance + (amount * level + covariance_floor) * eye

    def standardised(covariance: Tensor) -> Tensor:
        return covariance / scale.scale / scale.scale[:, None]

    if torch.isnan(x).any():

        def within(covariance: Tensor) -> Tensor:
            return standardised(regularised(scale.covariances(covariance)))

        means, covariances = _one_gaussian(Rows(x, scale), within, covariance_floor, iterations, tol)
        mean, covariance = scale.means(means), scale.covariances(covariances)
    else:
        mean = x.mean(0)
        centred = x - mean
        covariance = regularised(centred.T @ centred / len(x))
    cholesky(standardised(covariance), "covariance_floor", covariance_floor)
    return MultivariateGaussian.from_moments(mean, covariance)


@torch.no_grad()
def em_gaussian(
    x: Tensor,
    n_components: int,
    *,
    x_valid: Tensor | None = None,
    iterations: int = 200,
    tol: float = 1e-4,
    patience: int | None = 10,
    covariance_floor: float = 1e-6,
    init: str | GaussianMixture = "k-means++",
    stop_at_train: float | None = None,
    generator: torch.Generator | None = None,
    callback: EMCallback | None = None,
) -> tuple[GaussianMixture, EMHistory]:
    """Fit a mixture of K full-covariance Gaussians by EM, on the device of x and in float64.

    Missing values (NaN) are integrated out: exact EM, grouped by pattern of gaps. A component that no row
    belongs to any more starts afresh at a random row, and `history.messages` says so. With validation
    rows, the parameters of the iteration that scored best on them are returned.

    Args:
        x: training rows (N, D).
        n_components: K.
        x_valid: validation rows, scored at every iteration.
        iterations: the most M-steps.
        tol: stop when the mean training log-likelihood changes by less.
        patience: stop when validation has not improved for this many iterations; None runs on.
        covariance_floor: added to the diagonal of every covariance at every M-step.
        init: "k-means++", "rows" (random rows as means, the pooled covariance), or a mixture to go on from.
        stop_at_train: stop when the mean training log-likelihood reaches this value (the paper's rule when
            retraining on train + valid: the `train_log_likelihood` of the validated run).
        generator: draws the starting point.
        callback: told of each iteration; one that returns True ends it.

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
    check_floor("covariance_floor", covariance_floor)
    x = prepare(x, n_components)
    scale = Scale.of(x)
    rows = Rows(x, scale)
    valid = None if x_valid is None else Rows(prepare(x_valid.to(x.device), 1, "x_valid", False), scale)
    start = starting_point(rows, n_components, init, covariance_floor, generator)
    floor, pooled = (
        floor_matrix(scale, covariance_floor),
        rows.pooled() + floor_matrix(scale, covariance_floor),
    )
    reseeded: Counter[int] = Counter()

    def factors(params: Parameters) -> Tensor:
        return cholesky(params["covariances"], "covariance_floor", covariance_floor)

    def update(params: Parameters, moments: Moments, _: list[int]) -> Parameters:
        weights = moments.counts / rows.n
        new = {
            "log_weights": weights.log(),
            "means": moments.means(),
            "covariances": moments.covariances() + floor,
        }
        empty = weights[0] <= EMPTY
        if bool(empty.any()):
            weights[0, empty] = 1 / n_components
            new["log_weights"] = (weights / weights.sum()).log()
            new["means"][0, empty] = random_rows(rows.filled, int(empty.sum()), generator)
            new["covariances"][0, empty] = pooled
            reseeded.update(empty.nonzero().squeeze(-1).tolist())
        return new

    member = Member(rows, valid, stop_at_train)
    params, histories = expectation_maximisation(
        [member],
        {name: t[None] for name, t in start.items()},
        factors,
        update,
        iterations=iterations,
        tol=tol,
        patience=patience,
        callback=callback,
    )
    histories[0].messages = afresh_messages(reseeded)
    return mixture_of({name: t[0] for name, t in params.items()}, scale), histories[0]


def _one_gaussian(
    rows: Rows, regularised: Callable[[Tensor], Tensor], covariance_floor: float, iterations: int, tol: float
) -> tuple[Tensor, Tensor]:
    """Mean and covariance of rows with gaps, standardised; every M-step's covariance is regularised."""
    pooled = regularised(rows.pooled())
    start = {
        "log_weights": pooled.new_zeros(1, 1),
        "means": pooled.new_zeros(1, 1, len(pooled)),
        "covariances": pooled[None, None],
    }

    def factors(params: Parameters) -> Tensor:
        return cholesky(params["covariances"], "covariance_floor", covariance_floor)

    def update(params: Parameters, moments: Moments, _: list[int]) -> Parameters:
        return params | {"means": moments.means(), "covariances": regularised(moments.covariances())}

    params, _ = expectation_maximisation(
        [Member(rows)], start, factors, update, iterations=iterations, tol=tol, patience=None
    )
    return params["means"][0, 0], params["covariances"][0, 0]


def starting_point(
    rows: Rows,
    n_components: int,
    init: str | GaussianMixture,
    covariance_floor: float,
    generator: torch.Generator | None,
    zero_means: bool = False,
) -> Parameters:
    """Where EM begins, in standardised units."""
    scale = rows.scale
    if isinstance(init, GaussianMixture):
        if (init.n_components, init.n_variables) != (n_components, rows.n_variables):
            raise ValueError(
                f"init has {init.n_components} components in {init.n_variables} variables, expected "
                f"{n_components} in {rows.n_variables}"
            )
        log_weights, means, covariances = (t.to(scale.shift.device) for t in init.components())
        means = torch.zeros_like(means) if zero_means else (means - scale.shift) / scale.scale
        covariances = covariances / scale.scale / scale.scale[:, None]
        return {"log_weights": log_weights, "means": means, "covariances": covariances}
    weights, means, covariances = starting_moments(rows, n_components, init, generator, zero_means)
    covariances = covariances + floor_matrix(scale, covariance_floor)
    return {"log_weights": weights.log(), "means": means, "covariances": covariances}


def floor_matrix(scale: Scale, covariance_floor: float) -> Tensor:
    """The floor as a matrix in standardised units."""
    return torch.diag(covariance_floor / scale.scale.square())


def mixture_of(params: Parameters, scale: Scale) -> GaussianMixture:
    """Standardised parameters as a density of the data."""
    weights = params["log_weights"].exp()
    return GaussianMixture.from_moments(
        weights, scale.means(params["means"]), scale.covariances(params["covariances"])
    )


def _shrinkage(shrinkage: str | float | None, x: Tensor) -> float:
    if shrinkage is None:
        return 0.0
    if shrinkage == "ledoit-wolf":
        if torch.isnan(x).any():
            raise ValueError(
                "Ledoit-Wolf shrinkage needs complete rows; give a number where values are missing"
            )
        from sklearn.covariance import ledoit_wolf_shrinkage

        return float(ledoit_wolf_shrinkage(x.cpu().numpy()))
    if isinstance(shrinkage, str) or not 0 <= shrinkage <= 1:
        raise ValueError(f"shrinkage is None, 'ledoit-wolf' or a number from 0 to 1, not {shrinkage!r}")
    return float(shrinkage)
