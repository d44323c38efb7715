"""What the EM of Gaussians, their mixtures and factor analysers share: checks, starting points, E-steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pynade.classical.em import EM, Array, Parameters, Random
from pynade.classical.gaussian_marginals import draw_components
from pynade.classical.moments import Components, Moments, Rows, Scale, cholesky
from pynade.likelihood import Estimate
from pynade.training.loop import Stopping

EMPTY = 1e-12  # of all rows: a component responsible for fewer has none
START_ROWS = 10_000  # that k-means++ uses, besides fifty for each component


Member = tuple[Rows, Rows | None]  # training and validation rows; members with the same ones share E-steps


class GaussianEM(EM):
    """Abstract EM of mixtures of Gaussians, many members at once.

    Args:
        members: M of them.
        params: with at least `log_weights` (M, K), `means` (M, K, D) and what `covariances` needs.
        stopping: one for each member.
        floor: name and value of the option that keeps covariances from being singular.
        generators: those that M-steps draw from.
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
    """Rows as float64, checked: two axes, finite or missing (NaN), no empty row, enough rows.

    Args:
        x: rows (N, D).
        n_components: the least number of rows.
        word: what to call these rows in a message.
        every_column: whether every column must have a value, as for training rows.
    """
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
