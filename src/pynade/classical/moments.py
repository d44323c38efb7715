"""The E-step that all Gaussian mixtures share: log-likelihood and expected moments of the rows.

For complete rows log w_k N(x; μ_k, Σ_k) is linear in the features [x_i x_j for i ≤ j, x_i, 1], so the E-step
is one matrix product of the components' coefficients with the features, and the weighted counts, sums and
scatter matrices of all components are one more of the responsibilities with the same features: half the
arithmetic of a product per component, and nothing of shape (rows, K, D). It must run in float64, because the
terms of the quadratic form cancel; a data-centre GPU multiplies doubles about as fast as singles, and TF32
would not do.

Rows with gaps are conditioned on what they have, pattern by pattern, and add their expected moments: EM
stays exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pynade.classical.gaussian_marginals import Conditioned, Group, by_pattern, condition, inverse_of

BLOCK = {"cpu": 1 << 22, "cuda": 1 << 27}  # numbers in a block of features or responsibilities
CACHE = {"cpu": 1 << 24, "cuda": 1 << 29}  # features up to this many numbers are kept between iterations
SINGULAR = 1e-10  # of a column's variance: below it a component's variance is lost in rounding


@dataclass(frozen=True)
class Scale:
    """Shift and scale (D,) that standardise the training rows; EM runs on standardised rows for accuracy."""

    shift: Tensor  # subtracted from each column
    scale: Tensor  # then divides it
    unit: Tensor  # variances of standardised rows times this are in the units of floors and shrinkage

    @classmethod
    def of(cls, x: Tensor, standardise: bool = True, centred: bool = True) -> Scale:
        """Mean and standard deviation of the values of each column; a constant column keeps its scale.

        Floors and shrinkage are in units in which each column has standard deviation 1 (`standardise`), or
        in the units of the data. Where `centred` is False nothing is subtracted from the rows.
        """
        infinite = ~torch.isfinite(x.square().nanmean(0))
        if bool(infinite.any()):
            raise ValueError(
                f"the values of column {int(infinite.nonzero()[0, 0])} are too large: their variance is not "
                "a finite number; give them in a larger unit"
            )
        shift = x.nanmean(0) if centred else torch.zeros_like(x[0])
        deviation = (x - shift).square().nanmean(0).sqrt()
        tiny = 1e-12 * shift.abs().clamp_min(torch.finfo(x.dtype).tiny)
        scale = torch.where(deviation > tiny, deviation, 1.0)
        return cls(shift, scale, torch.ones_like(scale) if standardise else scale.square())

    def standardised(self, covariances: Tensor) -> Tensor:
        """Covariances in the units of the data as those of standardised rows."""
        return covariances / self.scale / self.scale[:, None]

    def data_units(self, means: Tensor, covariances: Tensor) -> tuple[Tensor, Tensor]:
        """Standardised means and covariances back in the units of the data."""
        return means * self.scale + self.shift, covariances * self.scale[:, None] * self.scale


class Moments(NamedTuple):
    """Expected sufficient statistics under S members of K components each, summed over rows."""

    log_likelihood: Tensor  # (S,)
    counts: Tensor  # (S, K)
    first: Tensor  # (S, K, D)
    second: Tensor  # (S, K, D, D), about the origin

    def means(self) -> Tensor:
        """Weighted mean of each component (zero where it has no rows)."""
        return self.first / self._safe[..., None]

    def covariances(self, about_zero: bool = False) -> Tensor:
        """Weighted covariance of each component, about its mean or about zero."""
        second = self.second / self._safe[..., None, None]
        if about_zero:
            return second
        means = self.means()
        return second - means[..., :, None] * means[..., None, :]

    @property
    def _safe(self) -> Tensor:
        return torch.where(self.counts > 0, self.counts, 1.0)


class Components(NamedTuple):
    """S members of K Gaussians each, and the coefficients of their log joint densities in the features."""

    log_weights: Tensor  # (S, K)
    means: Tensor  # (S, K, D)
    factors: Tensor  # Cholesky factors of the covariances, (S, K, D, D)
    coefficients: Tensor  # (S, K, F)

    @classmethod
    def of(cls, log_weights: Tensor, means: Tensor, factors: Tensor) -> Components:
        """From their parameters."""
        D = means.shape[-1]
        inverse = inverse_of(factors)
        precision = inverse.mT @ inverse
        i, j = torch.triu_indices(D, D, device=means.device)
        quadratic = precision[..., i, j] * torch.where(i == j, -0.5, -1.0)
        linear = (precision @ means[..., None])[..., 0]
        z = (inverse @ means[..., None])[..., 0]
        scales = inverse.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = log_weights + scales - 0.5 * z.square().sum(-1) - 0.5 * D * math.log(2 * math.pi)
        return cls(log_weights, means, factors, torch.cat([quadratic, linear, constant[..., None]], -1))

    def log_joint(self, phi: Tensor) -> Tensor:
        """log w_k N(x; μ_k, Σ_k) of rows given by their features (F, n): (S, K, n)."""
        return (self.coefficients.flatten(0, 1) @ phi).view(*self.log_weights.shape, -1)


class Rows:
    """Rows (N, D), float64, NaN where a value is missing, prepared for many E-steps.

    With `keep`, the features of complete rows are kept between E-steps if there is room.
    """

    def __init__(self, x: Tensor, scale: Scale, keep: bool = True) -> None:
        x = (x - scale.shift) / scale.scale
        missing = torch.isnan(x)
        gaps = missing.any(-1)
        self.n, self.n_variables, self.scale = len(x), x.shape[1], scale
        self.has_gaps = bool(gaps.any())
        self.filled = x.masked_fill(missing, 0.0) if self.has_gaps else x
        self.observed = ~missing[gaps]
        self.with_gaps = self.filled[gaps] if self.has_gaps else x[:0]
        self._columns = (x[~gaps] if self.has_gaps else x).T.contiguous()  # (D, N)
        # densities of the data = densities of standardised rows less this, summed over the cells there are
        self.log_scale = scale.scale.log() @ (~missing).sum(0).double()
        device = x.device.type
        self._block = BLOCK.get(device, BLOCK["cpu"])
        F, N = n_features(self.n_variables), self._columns.shape[1]
        room = CACHE.get(device, CACHE["cpu"])
        self._kept = features(self._columns) if keep and room >= F * N else None
        self._groups: dict[int, list[Group]] = {}

    def moments(self, given: Components) -> Moments:
        """One E-step."""
        S, K, D = given.means.shape
        log_likelihood = given.means.new_zeros(S)
        sums = given.means.new_zeros(S * K, given.coefficients.shape[-1])
        for phi in self._blocks(S * K):
            joint = given.log_joint(phi)
            log_likelihood += _responsibilities(joint)
            sums.addmm_(joint.view(S * K, -1), phi.T)
        second = sums[:, _unpack(D, sums.device)].view(S, K, D, D)
        first, counts = sums[:, -D - 1 : -1].reshape(S, K, D), sums[:, -1].reshape(S, K)
        for s, group, joint, found in self._with_gaps(given):
            joint = torch.where(group.real[:, None], joint, 0.0)
            log_likelihood[s] += (torch.logsumexp(joint, 1) * group.real).sum()
            r = joint.softmax(1) * group.real[:, None]  # (P, K, R)
            mean, factor = found.mean(), found.factor()
            weighted = mean * r[..., None]
            counts[s] += r.sum((0, 2))
            first[s] += weighted.sum((0, 2))
            spread = factor @ factor.mT * r.sum(-1)[..., None, None]
            second[s] += (weighted.mT @ mean + spread).sum(0)
        return Moments(log_likelihood, counts, first, second)

    def log_likelihood(self, given: Components) -> Tensor:
        """Mean log-likelihood per row of each member in the units of the data, (S,)."""
        S, K, _ = given.means.shape
        total = given.means.new_zeros(S)
        for phi in self._blocks(S * K):
            total += torch.logsumexp(given.log_joint(phi), 1).sum(-1)
        for s, group, joint, _ in self._with_gaps(given):
            total[s] += (torch.logsumexp(joint, 1) * group.real).sum()
        return self.per_row(total)

    def per_row(self, total: Tensor) -> Tensor:
        """Summed log-likelihood of standardised rows -> mean per row in the units of the data."""
        return (total - self.log_scale) / self.n

    def pooled(self) -> Tensor:
        """Covariance (D, D) of the standardised rows, missing values counted as independent of the rest."""
        unseen = 1 - self.filled.square().mean(0)  # zero for a complete column, one for a constant one
        return self.filled.T @ self.filled / self.n + torch.diag(unseen.clamp_min(0))

    def _with_gaps(self, given: Components) -> Iterator[tuple[int, Group, Tensor, Conditioned]]:
        """Members, groups of rows with gaps, log p(k, observed cells) (P, K, R), components given these."""
        S, K, _ = given.means.shape
        if self.has_gaps and K not in self._groups:
            self._groups[K] = list(by_pattern(self.observed, K))
        for s in range(S if self.has_gaps else 0):
            covariances = given.factors[s] @ given.factors[s].mT
            for group in self._groups[K]:
                found = condition(given.means[s], covariances, self.with_gaps[group.rows], group.observed)
                yield s, group, found.log_density + given.log_weights[s, :, None], found

    def _blocks(self, members: int) -> Iterator[Tensor]:
        """Features of complete rows, (F, n) at a time."""
        F, N = n_features(self.n_variables), self._columns.shape[1]
        step = max(1, self._block // max(F if self._kept is None else 1, members))
        if self._kept is not None:
            yield from self._kept.split(step, 1)
            return
        room = self._columns.new_empty(F, min(step, N))
        for part in self._columns.split(step, 1):
            yield features(part, room[:, : part.shape[1]])


def n_features(n_variables: int) -> int:
    """How many `features` there are: D (D + 3) / 2 + 1."""
    return n_variables * (n_variables + 3) // 2 + 1


def features(columns: Tensor, out: Tensor | None = None) -> Tensor:
    """[x_i x_j for i ≤ j, x_i, 1] of rows given as columns (D, n): (F, n)."""
    D, n = columns.shape
    out = columns.new_empty(n_features(D), n) if out is None else out
    start = 0
    for i in range(D):
        torch.mul(columns[i:], columns[i], out=out[start : start + D - i])
        start += D - i
    out[start:-1] = columns
    out[-1] = 1.0
    return out


def cholesky(covariances: Tensor, floor: tuple[str, float] | None = None) -> Any:
    """Cholesky factors of standardised covariances (..., D, D).

    Where one of them is singular, a ValueError that names the option and value that are to be larger; None
    without any.
    """
    factors, info = torch.linalg.cholesky_ex(covariances)
    pivots = factors.diagonal(dim1=-2, dim2=-1)
    if not bool(((info != 0) | ~(pivots.square().amin(-1) > SINGULAR)).any()):
        return factors
    if floor is None:
        return None
    raise ValueError(
        f"the covariance of a component is singular (a constant column, columns that determine each "
        f"other, repeated rows or too few rows): give a larger {floor[0]} than {floor[1]:g}"
    )


def _responsibilities(joint: Tensor) -> Tensor:
    """Turn log p(k, x) (S, K, n) into p(k | x) in place; return Σ_n log p(x), (S,)."""
    largest = joint.amax(1, keepdim=True)
    total = joint.sub_(largest).exp_().sum(1, keepdim=True)
    joint.div_(total)
    return (largest + total.log()).sum((1, 2))


@cache
def _unpack(D: int, device: torch.device) -> Tensor:
    """Index (D, D) into packed upper triangles."""
    i, j = torch.triu_indices(D, D, device=device)
    index = torch.empty(D, D, dtype=torch.long, device=device)
    index[i, j] = index[j, i] = torch.arange(len(i), device=device)
    return index
