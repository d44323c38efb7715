"""One Gaussian, and what EM of Gaussians, mixtures and factor analysers share: checks, starts, E-steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pynade.arguments import check_positive
from pynade.classical.em import EM, Array, EMOptions, Parameters, Random, run_em
from pynade.classical.gaussian_marginals import (
    GaussianMarginals,
    draw_components,
    draw_normal,
    filled,
    positive_factor,
)
from pynade.classical.moments import Components, Moments, Rows, Scale, cholesky, try_cholesky
from pynade.likelihood import Estimate
from pynade.training.loop import Stopping

EMPTY = 1e-12  # of all rows: a component responsible for fewer has none
START_ROWS = 10_000  # that k-means++ uses, besides fifty for each component
EPOCHS, TOL = 151, 1e-9  # of EM, where values are missing
LAST = 11  # M-steps from which it extrapolates
FAR = 1.0  # standard deviations: no extrapolation goes further

Member = tuple[Rows, Rows | None]  # training and validation rows; members with the same ones share E-steps


class GaussianEM(EM):
    """Abstract EM of mixtures of Gaussians, M members at once.

    Parameters are `log_weights` (M, K), `means` (M, K, D) and what `covariances` needs; `floor` is name and
    value of the option that keeps covariances from being singular.
    """

    moments: Moments

    def __init__(
        self,
        members: Sequence[Member],
        params: Parameters,
        stopping: Sequence[Stopping],
        floor: tuple[str, float],
        generators: Sequence[Random] = (),
    ) -> None:
        super().__init__(params, stopping, members[0][1] is not None, generators)
        self.members, self.floor = members, floor

    def covariances(self) -> Tensor:
        """Covariances (M, K, D, D) of all components."""
        return self.params["covariances"]

    def expect(self) -> list[float | None]:
        """Moments of all active members; log-likelihoods per row, in the units of the data."""
        roots = cholesky(self.covariances(), *self.floor)
        given = Components.of(self.params["log_weights"], self.params["means"], roots)
        together: dict[tuple[int, ...], list[int]] = {}
        for position, m in enumerate(self.active):
            together.setdefault(tuple(map(id, self.members[m])), []).append(position)
        only, groups = len(together) == 1, list(together.values())
        self._groups = [(g, given if only else Components(*(t[g] for t in given))) for g in groups]
        found = []
        for group, own in self._groups:
            rows = self.members[self.active[group[0]]][0]
            moments = rows.moments(own)
            found.append(moments._replace(log_likelihood=rows.per_row(moments.log_likelihood)))
        self.moments = found[0]
        if not only:
            back = torch.tensor([k for group in groups for k in group]).argsort()
            self.moments = Moments(*(torch.cat(parts)[back] for parts in zip(*found, strict=True)))
        return list(self.moments.log_likelihood.tolist())

    def score(self, epoch: int) -> list[Estimate] | None:
        """Mean log-likelihoods of the validation rows."""
        scores: dict[int, Estimate] = {}
        for group, given in self._groups:
            valid = self.members[self.active[group[0]]][1]
            if valid is None:
                return None
            values = valid.log_likelihood(given).tolist()
            scores |= {k: Estimate(value, math.nan, valid.n) for k, value in zip(group, values, strict=True)}
        return [scores[i] for i in range(len(self.active))]

    def drop(self, members: Sequence[int]) -> None:
        """Take these members out of the batch."""
        stay = [k for k, m in enumerate(self.active) if m not in members]
        self.moments = Moments(*(t[stay] for t in self.moments))
        super().drop(members)


def checked_floor(name: str, value: float) -> tuple[str, float]:
    """Name and value of a floor, which is zero or positive."""
    if not value >= 0:
        raise ValueError(f"{name} must be at least 0, not {value}")
    return name, value


def real_rows(x: Array, n_components: int = 1, word: str = "x", *, every_column: bool = True) -> Tensor:
    """Rows as float64, checked: two axes, finite or missing (NaN), no empty row (nor column), enough rows."""
    x = torch.as_tensor(x)
    if x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(f"expected rows (N, D) for {word}, got an array of shape {tuple(x.shape)}")
    x = x.double()
    if torch.isinf(x).any():
        row, column = torch.isinf(x).nonzero()[0].tolist()
        raise ValueError(f"expected finite numbers, but row {row}, column {column} of {word} is infinite")
    if len(x) < n_components:
        raise ValueError(f"{n_components} components need at least as many rows, but {word} has {len(x)}")
    missing = torch.isnan(x)
    for axis, name in ((1, "row"), (0, "column")):
        empty = missing.all(axis) & (axis == 1 or every_column)
        if empty.any():
            raise ValueError(f"{name} {int(empty.nonzero()[0, 0])} of {word} has no value at all")
    return x


def valid_rows(x: Array | None, scale: Scale) -> Rows | None:
    """Validation rows, which may lack whole columns, in the units of the training rows."""
    if x is None:
        return None
    x = torch.as_tensor(x, device=scale.shift.device)
    return Rows(real_rows(x, 1, "valid", every_column=False), scale)


def starting_moments(
    rows: Rows, n_components: int, init: str, generator: Random, zero_means: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (K,), means (K, D), covariances (K, D, D) to start from, in standardised units.

    "rows": K random rows as means, all with the covariance of the data. "k-means++": K centres spread out by
    D² sampling, each with the moments of the rows near it, the covariance as if D rows of the pooled one
    were among them.
    """
    if init not in ("k-means++", "rows"):
        raise ValueError(f"unknown init {init!r}; known: 'k-means++', 'rows' or a model")
    K, D, pooled = n_components, rows.n_variables, rows.pooled()
    where = pooled.device if generator is None else generator.device
    order = torch.randperm(rows.n, generator=generator, device=where).to(pooled.device)
    some = rows.filled[order[: START_ROWS + 50 * K if init == "k-means++" else K]]
    if init == "rows":
        if zero_means:
            raise ValueError("with zero means, init='rows' would make all components equal; use 'k-means++'")
        return pooled.new_full((K,), 1 / K), some, pooled.repeat(K, 1, 1)
    centres = _spread(some, K, generator)
    one = torch.ones_like(some[0])
    near = Rows(some, Scale(torch.zeros_like(one), one, one), keep=False)
    # components this narrow share a row only where two centres are about equally near
    narrow = 0.1 * torch.eye(D, dtype=pooled.dtype, device=pooled.device).expand(1, K, D, D)
    found = near.moments(Components.of(centres.new_zeros(1, K), centres[None], narrow))
    n = found.counts[0, :, None, None]
    covariances = (n * found.covariances(zero_means)[0] + D * pooled) / (n + D)
    means = torch.where(found.counts[0, :, None] > 0, found.means()[0], centres)
    weights = (found.counts[0] + 1) / (len(some) + K)
    return weights, torch.zeros_like(means) if zero_means else means, covariances


def random_rows(x: Tensor, n: int, generator: Random) -> Tensor:
    """n rows of x, with replacement, drawn on the generator's device."""
    where = x.device if generator is None else generator.device
    return x[torch.randint(len(x), (n,), generator=generator, device=where).to(x.device)]


def _spread(x: Tensor, n_components: int, generator: Random) -> Tensor:
    """K rows by k-means++ (Arthur & Vassilvitskii): each next one with probability ∝ its squared distance."""
    chosen = [random_rows(x, 1, generator)[0]]
    distance = (x - chosen[0]).square().sum(-1)
    for _ in range(n_components - 1):
        chances = torch.where(distance.sum() > 0, distance, 1.0)  # only duplicates left: any will do
        chosen.append(x[draw_components(chances, 1, generator)[0]])
        distance = torch.minimum(distance, (x - chosen[-1]).square().sum(-1))
    return torch.stack(chosen)


class MultivariateGaussian(GaussianMarginals):
    """x ~ N(mean, L Lᵀ), with L the lower Cholesky factor of the covariance.

    A new one is the standard normal; `gaussian` fits one.

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
        return self.mean + draw_normal((n, self.n_variables), generator, self.mean) @ self.factor.mT


@torch.no_grad()
def gaussian(
    x: Array, shrinkage: str | float | None = None, covariance_floor: float = 0.0, standardise: bool = True
) -> MultivariateGaussian:
    """Fit one Gaussian to rows x (N, D): in closed form, or where values are missing (NaN) by exact EM.

    Args:
        x: rows.
        shrinkage: None is maximum likelihood; a number a in [0, 1] gives (1 - a) Σ + a (tr Σ / D) I;
            "ledoit-wolf" lets scikit-learn choose a (complete rows only).
        covariance_floor: added to the diagonal of the covariance.
        standardise: shrinkage and floor are in units in which each column has standard deviation 1;
            otherwise in the units of the data.

    Raises:
        ValueError: the covariance is singular in spite of `covariance_floor`.

    Example:
        >>> import torch
        >>> model = gaussian(torch.tensor([[0.0, 0.0], [2.0, 1.0], [4.0, -1.0]]))
        >>> model.mean.tolist()
        [2.0, 0.0]
    """
    floor = checked_floor("covariance_floor", covariance_floor)
    x = real_rows(x)
    scale = Scale.of(x, standardise)
    amount = _shrinkage(shrinkage, (x - scale.shift) / scale.scale * scale.unit.sqrt())

    def regularised(covariance: Tensor) -> Tensor:
        level = (covariance.diagonal(dim1=-2, dim2=-1) * scale.unit).mean(-1, keepdim=True)
        return (1 - amount) * covariance + torch.diag_embed((amount * level + covariance_floor) / scale.unit)

    if torch.isnan(x).any():
        learner = _OneGaussianEM(Rows(x, scale), regularised, floor)
        run_em(learner, EMOptions(epochs=EPOCHS))
        mean, covariance = (learner.best[name][0, 0] for name in ("means", "covariances"))
    else:
        standardised = (x - scale.shift) / scale.scale
        mean = standardised.mean(0)
        centred = standardised - mean
        covariance = regularised(centred.T @ centred / len(x))
    cholesky(covariance, *floor)
    return MultivariateGaussian.from_moments(scale.means(mean), scale.covariances(covariance))


class _OneGaussianEM(GaussianEM):
    """EM of one Gaussian with Anderson acceleration, since plain EM is slow where many values are missing.

    An M-step is followed by an extrapolation from the last few, unless that lowers the likelihood.
    """

    def __init__(self, rows: Rows, regularised: Callable[[Tensor], Tensor], floor: tuple[str, float]) -> None:
        pooled = regularised(rows.pooled())
        start = self._params(torch.zeros_like(pooled[0]), pooled)
        super().__init__([(rows, None)], start, [Stopping(tol=TOL)], floor)
        self.regularised = regularised
        self.points: list[tuple[Tensor, Tensor]] = []  # before the last M-steps, and what these have added
        self.fallback: Parameters | None = None
        self.level = -math.inf

    @staticmethod
    def _params(mean: Tensor, covariance: Tensor) -> Parameters:
        zero = mean.new_zeros(1, 1)
        return {"log_weights": zero, "means": mean.view(1, 1, -1), "covariances": covariance[None, None]}

    def expect(self) -> list[float | None]:
        (train,) = super().expect()
        assert train is not None
        if self.fallback is not None and not train >= self.level:
            self.params, self.points = self.fallback, self.points[-1:]
            (train,) = super().expect()
            assert train is not None
        self.level, self.fallback = train, None
        return [train]

    def maximise(self) -> None:
        before, moments = self._point(), self.moments
        covariance = self.regularised(moments.covariances()[0, 0])
        self.params = self._params(moments.means(), covariance)
        after = self._point()
        self.points = [*self.points, (before, after - before)][-LAST:]
        if len(self.points) == 1:
            return
        x, step = (torch.stack([pair[k].flatten() for pair in self.points], 1).cpu() for k in (0, 1))
        weights = torch.linalg.lstsq(step.diff(dim=1), step[:, -1:], driver="gelsd").solution
        back = (x.diff(dim=1) + step.diff(dim=1)) @ weights
        ahead = after - back.view_as(after).to(after.device)
        root = ahead[1:].tril(-1) + torch.diag(ahead[1:].diagonal().exp())
        if bool(back.abs().max() < FAR) and not try_cholesky(root @ root.mT)[1]:
            self.fallback, self.params = self.params, self._params(ahead[0], root @ root.mT)

    def _point(self) -> Tensor:
        """Mean and Cholesky factor, its diagonal as logarithms: (1 + D, D), any value of which is valid."""
        root = cholesky(self.params["covariances"][0, 0], *self.floor)
        logs = root.tril(-1) + torch.diag(root.diagonal().log())
        return torch.cat([self.params["means"][0], logs])


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
