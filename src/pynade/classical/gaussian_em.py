"""EM of Gaussians, mixtures of Gaussians and factor analysers: checks, starts, steps; one Gaussian."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pynade.classical.em import EM, Array, EMOptions, Parameters, Random, run_em
from pynade.classical.gaussian_marginals import (
    GaussianComponents,
    GaussianMixture,
    MultivariateGaussian,
    draw_components,
)
from pynade.classical.moments import Components, Moments, Rows, Scale, cholesky
from pynade.likelihood import Estimate
from pynade.training.loop import Stopping

EMPTY = 1e-12  # of all rows: a component responsible for fewer has none
START_ROWS = 10_000  # that k-means++ uses, besides fifty for each component
EPOCHS, TOL = 151, 1e-9  # of EM, where values are missing
LAST = 11  # M-steps from which it extrapolates
FAR = 1.0  # standard deviations: no extrapolation goes further

FILL = {"log_weights": -math.inf, "noise": 1.0}  # parameters of padded components; the others are zero


class Member(NamedTuple):
    """One mixture to fit, and where it begins; members with the same rows share E-steps."""

    rows: Rows
    valid: Rows | None
    n_components: int
    init: str | GaussianComponents = "rows"
    generator: Random = None
    n_factors: int | None = None


class GaussianEM(EM):
    """EM of mixtures of Gaussians, M members at once, in standardised units.

    Parameters are `log_weights` (M, K), `means` (M, K, D) and what `covariances` needs, padded to the largest
    number of components (and factors); `floor` is name and value of the option that keeps covariances from
    being singular. This class is of full covariances; one that stores them otherwise gives its own
    `covariances`, `shaped`, `given`, `m_step` and `model`.
    """

    moments: Moments
    zero_means = False  # keep all means at zero

    def __init__(
        self, members: Sequence[Member], stopping: Sequence[Stopping], floor: tuple[str, float]
    ) -> None:
        self.members, self.floor = list(members), floor
        self.floors = torch.stack([floor[1] / m.rows.scale.unit for m in members])  # (M, D)
        params = _stack([self.start(*pair) for pair in zip(members, self.floors, strict=True)])
        super().__init__(params, stopping, members[0].valid is not None, [m.generator for m in members])

    def covariances(self) -> Tensor:
        """Covariances (M, K, D, D) of all components."""
        return self.params["covariances"]

    def shaped(self, covariances: Tensor, member: Member, floor: Tensor) -> Parameters:
        """Parameters of components with covariances near these (..., D, D)."""
        return {"covariances": covariances + torch.diag(floor)}

    def given(self, model: Any, scale: Scale, floor: Tensor) -> Parameters:
        """Parameters of a model to start from."""
        log_weights, means, covariances = (t.to(floor) for t in model.components())
        means, covariances = (means - scale.shift) / scale.scale, scale.standardised(covariances)
        return {"log_weights": log_weights, "means": means, "covariances": covariances}

    def m_step(self) -> Parameters:
        """Means, and what covariances need, from the moments."""
        floors = torch.diag_embed(self.floors[self.active])[:, None]
        covariances = self.moments.covariances(self.zero_means) + floors
        return {"means": self.moments.means(), "covariances": covariances}

    def model(self, own: Parameters, member: Member) -> Any:
        """The density of the data with these parameters (and `weights`) of one member."""
        means, covariances = member.rows.scale.data_units(own["means"], own["covariances"])
        return GaussianMixture.from_moments(own["weights"], means, covariances)

    def start(self, member: Member, floor: Tensor) -> Parameters:
        """Where a member begins."""
        rows, K, init = member.rows, member.n_components, member.init
        if isinstance(init, str):
            weights, means, near = starting_moments(rows, K, init, member.generator, self.zero_means)
            return {"log_weights": weights.log(), "means": means, **self.shaped(near, member, floor)}
        wanted = _sizes(rows.n_variables, K, member.n_factors)
        found = _sizes(init.n_variables, init.n_components, getattr(init, "n_factors", None))
        if found != wanted:
            raise ValueError(f"init has {found}, expected {wanted}")
        own = self.given(init, rows.scale, floor)
        return own | {"means": torch.zeros_like(own["means"])} if self.zero_means else own

    def maximise(self) -> None:
        """M-step; components without rows start anew."""
        counts = self.moments.counts
        weights = counts / counts.sum(-1, keepdim=True)
        new = {"weights": weights, **self.m_step()}
        lost = (weights <= EMPTY) & torch.isfinite(self.params["log_weights"])  # padding is not lost
        for a in lost.any(-1).nonzero()[:, 0].tolist() if bool(lost.any()) else ():
            self.start_anew(new, a, lost[a])
        self.params = {"log_weights": new.pop("weights").log(), **new}

    def start_anew(self, new: Parameters, a: int, lost: Tensor) -> None:
        """Put components of the active member a at random rows with the covariance of all.

        Without means, they are put at the scale of a row.
        """
        m = self.active[a]
        member, weights = self.members[m], new["weights"][a]
        some, near = random_rows(member.rows.filled, int(lost.sum()), member.generator), member.rows.pooled()
        if self.zero_means:
            near = (some.square().mean(1) / member.rows.filled.square().mean())[:, None, None] * near
        else:
            new["means"][a, lost] = some
        for name, value in self.shaped(near, member, self.floors[m]).items():
            new[name][a, lost] = value
        weights[lost] = 1 / member.n_components
        weights /= weights.sum()
        said = "component {} was empty and started anew at a random row"
        self.notes[m] += [said.format(k) for k in lost.nonzero().squeeze(-1).tolist()]

    def models(self) -> list[Any]:
        """The best of every member, in the units of the data."""
        found = []
        for m, member in enumerate(self.members):
            own = {name: t[m, : member.n_components] for name, t in self.best.items()}
            weights = own["weights"] if "weights" in own else own["log_weights"].exp()
            found.append(self.model(own | {"weights": weights}, member))
        return found

    def expect(self) -> list[float | None]:
        """Moments of all active members; log-likelihoods per row, in the units of the data."""
        roots = cholesky(self.covariances(), self.floor)
        given = Components.of(self.params["log_weights"], self.params["means"], roots)
        together: dict[tuple[int, ...], list[int]] = {}
        for position, m in enumerate(self.active):
            together.setdefault(tuple(map(id, self.members[m][:2])), []).append(position)
        only, groups = len(together) == 1, list(together.values())
        self._groups = [(g, given if only else Components(*(t[g] for t in given))) for g in groups]
        found = []
        for group, own in self._groups:
            rows = self.members[self.active[group[0]]].rows
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
            valid = self.members[self.active[group[0]]].valid
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


def _sizes(n_variables: int, n_components: int, n_factors: int | None) -> str:
    words = f"{n_components} components in {n_variables} variables"
    return words if n_factors is None else f"{words} with {n_factors} factors"


def _stack(starts: Sequence[Parameters]) -> Parameters:
    """Parameters of members as one tensor each, padded to the largest sizes among them."""
    stacked = {}
    for name, first in starts[0].items():
        parts = [start[name] for start in starts]
        shape = [max(sizes) for sizes in zip(*(t.shape for t in parts), strict=True)]
        stacked[name] = first.new_full((len(parts), *shape), FILL.get(name, 0.0))
        for whole, part in zip(stacked[name], parts, strict=True):
            whole[tuple(map(slice, part.shape))] = part
    return stacked


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
    enough_rows(x, n_components)
    missing = torch.isnan(x)
    for axis, name in ((1, "row"), (0, "column")):
        empty = missing.all(axis) & (axis == 1 or every_column)
        if empty.any():
            raise ValueError(f"{name} {int(empty.nonzero()[0, 0])} of {word} has no value at all")
    return x


def enough_rows(x: Tensor, n_components: int) -> None:
    """Every component needs a row."""
    if len(x) < n_components:
        raise ValueError(f"{n_components} components need at least as many rows, not {len(x)}")


def train_rows(x: Array, standardise: bool, n_components: int = 1) -> Rows:
    """Checked training rows, standardised."""
    x = real_rows(x, n_components)
    return Rows(x, Scale.of(x, standardise))


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
        learner = _OneGaussianEM(Member(Rows(x, scale), None, 1), regularised, floor)
        run_em(learner, EMOptions(epochs=EPOCHS))
        mean, covariance = (learner.best[name][0, 0] for name in ("means", "covariances"))
    else:
        standardised = (x - scale.shift) / scale.scale
        mean = standardised.mean(0)
        centred = standardised - mean
        covariance = regularised(centred.T @ centred / len(x))
    cholesky(covariance, floor)
    return MultivariateGaussian.from_moments(*scale.data_units(mean, covariance))


class _OneGaussianEM(GaussianEM):
    """EM of one Gaussian with Anderson acceleration, since plain EM is slow where many values are missing.

    An M-step is followed by an extrapolation from the last few, unless that lowers the likelihood.
    """

    def __init__(
        self, member: Member, regularised: Callable[[Tensor], Tensor], floor: tuple[str, float]
    ) -> None:
        self.regularised = regularised
        super().__init__([member], [Stopping(tol=TOL)], floor)
        self.points: list[tuple[Tensor, Tensor]] = []  # before the last M-steps, and what these have added
        self.fallback: Parameters | None = None
        self.level = -math.inf

    def start(self, member: Member, floor: Tensor) -> Parameters:
        pooled = self.regularised(member.rows.pooled())[None]
        return {"log_weights": pooled.new_zeros(1), "means": 0 * pooled[0, :1], "covariances": pooled}

    def _with(self, mean: Tensor, covariance: Tensor) -> Parameters:
        return self.params | {"means": mean.view(1, 1, -1), "covariances": covariance[None, None]}

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
        self.params = self._with(moments.means(), covariance)
        after = self._point()
        self.points = [*self.points, (before, after - before)][-LAST:]
        if len(self.points) == 1:
            return
        x, step = (torch.stack([pair[k].flatten() for pair in self.points], 1).cpu() for k in (0, 1))
        weights = torch.linalg.lstsq(step.diff(dim=1), step[:, -1:], driver="gelsd").solution
        back = (x.diff(dim=1) + step.diff(dim=1)) @ weights
        ahead = after - back.view_as(after).to(after.device)
        root = ahead[1:].tril(-1) + torch.diag(ahead[1:].diagonal().exp())
        if bool(back.abs().max() < FAR) and cholesky(root @ root.mT) is not None:
            self.fallback, self.params = self.params, self._with(ahead[0], root @ root.mT)

    def _point(self) -> Tensor:
        """Mean and Cholesky factor, its diagonal as logarithms: (1 + D, D), any value of which is valid."""
        root = cholesky(self.params["covariances"][0, 0], self.floor)
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
