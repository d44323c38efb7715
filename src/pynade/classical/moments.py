"""The E-step that all Gaussian mixtures share: log-likelihood and expected moments of the rows.

Every log w_k N(x; μ_k, Σ_k) is linear in the features [x_i x_j for i ≤ j, x_i, levels, 1], so that complete
rows take two matrix products (in float64, since the terms of the quadratic form cancel). Rows with missing
values are grouped by pattern; each adds its moments given the observed cells, so that EM is exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple, Self

import torch
from torch import Tensor

GROUP_NUMBERS = 1 << 23  # numbers in the largest array of a group of incomplete rows (64 MiB of doubles)
BLOCK = {"cpu": 1 << 22, "cuda": 1 << 27}  # numbers in a block of features or responsibilities
CACHE = {"cpu": 1 << 24, "cuda": 1 << 29}  # features are cached up to this many numbers
EMPTY = 1e-12  # a component with a smaller share of the rows counts as empty
SINGULAR = 1e-10  # a component's variance relative to the column's: below it, rounding errors dominate

Group = tuple[Tensor, Tensor, Tensor]  # patterns (P, D), indexes of rows (P, R), and which are no padding


class Scale(NamedTuple):
    """Shift and scale (D,) that standardise the training rows; EM runs on standardised rows for accuracy."""

    shift: Tensor  # subtracted from each column
    scale: Tensor  # each column is divided by it after the shift
    unit: Tensor  # factor from variances of standardised rows to the units of floors and shrinkage

    @classmethod
    def of(cls, x: Tensor, standardise: bool = True, centred: bool = True) -> Scale:
        """Mean (zero unless `centred`) and deviation of each column; the scale of a constant column is 1."""
        infinite = ~torch.isfinite(x.square().nanmean(0))
        if bool(infinite.any()):
            raise ValueError(
                f"the values of column {int(infinite.nonzero()[0, 0])} are too large: their variance is not "
                "a finite number; give them in a larger unit"
            )
        shift = x.nanmean(0) if centred else torch.zeros_like(x[0])
        deviation = (x - shift).square().nanmean(0).sqrt()
        rounding = 1e-12 * shift.abs().clamp_min(torch.finfo(x.dtype).tiny)
        scale = torch.where(deviation > rounding, deviation, 1.0)
        return cls(shift, scale, torch.ones_like(scale) if standardise else scale.square())

    def data_units(self, means: Tensor, covariances: Tensor) -> tuple[Tensor, Tensor]:
        """Standardised means and covariances back in the units of the data."""
        return means * self.scale + self.shift, covariances * self.scale[:, None] * self.scale


class Moments(NamedTuple):
    """Expected sufficient statistics under S members of K components each, summed over rows."""

    log_likelihood: Tensor  # (S,)
    counts: Tensor  # (S, K)
    first: Tensor  # (S, K, D)
    second: Tensor  # (S, K, D, D), about the origin
    levels: Tensor  # (S, K, L), counts of each level

    def means(self) -> Tensor:
        """Weighted mean of each component (zero where it has no rows)."""
        return self.first / torch.where(self.counts > 0, self.counts, 1.0)[..., None]

    def covariances(self, about_zero: bool = False) -> Tensor:
        """Weighted covariance of each component, about its mean or about zero."""
        second = self.second / torch.where(self.counts > 0, self.counts, 1.0)[..., None, None]
        means = torch.zeros_like(self.first) if about_zero else self.means()
        return second - means[..., :, None] * means[..., None, :]

    def occupied(self) -> Tensor:
        """Which components have rows, bool (S, K)."""
        return self.counts > EMPTY * self.counts.sum(-1, keepdim=True)


class Components(NamedTuple):
    """S members of K Gaussians each, and the coefficients of their log joint densities in the features."""

    log_weights: Tensor  # (S, K)
    means: Tensor  # (S, K, D)
    factors: Tensor  # Cholesky factors of the covariances, (S, K, D, D)
    levels: Tensor  # log-probabilities of levels, (S, K, L)
    coefficients: Tensor  # (S, K, F)

    @classmethod
    def of(cls, log_weights: Tensor, means: Tensor, factors: Tensor, levels: Tensor | None = None) -> Self:
        """Components with these parameters; `levels` None means that there are none."""
        levels, D = means[..., :0] if levels is None else levels, means.shape[-1]
        inverse = inverse_of(factors)
        precision = inverse.mT @ inverse
        i, j = torch.triu_indices(D, D, device=means.device)
        quadratic = precision[..., i, j] * torch.where(i == j, -0.5, -1.0)
        linear, z = ((matrix @ means[..., None])[..., 0] for matrix in (precision, inverse))
        scales = inverse.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = log_weights + scales - 0.5 * z.square().sum(-1) - 0.5 * D * math.log(2 * math.pi)
        coefficients = torch.cat([quadratic, linear, levels, constant[..., None]], -1)
        return cls(log_weights, means, factors, levels, coefficients)


class Rows:
    """Rows (N, D), float64, NaN = missing, and optional indicators of levels (N, L), for many E-steps."""

    def __init__(self, x: Tensor, scale: Scale, keep: bool = True, levels: Tensor | None = None) -> None:
        x, levels = (x - scale.shift) / scale.scale, x[:, :0] if levels is None else levels
        missing = torch.isnan(x)
        has_gaps = missing.any(-1)
        (self.n, self._D), self.scale = x.shape, scale
        complete = not bool(has_gaps.any())
        self.filled = x if complete else x.masked_fill(missing, 0.0)
        self.observed = ~missing[has_gaps]
        self.incomplete, self.incomplete_levels = self.filled[has_gaps], levels[has_gaps]
        columns = torch.cat([x, levels], 1) if levels.shape[1] else x
        self._columns = (columns if complete else columns[~has_gaps]).T.contiguous()  # (D + L, n)
        # log-density of the data = that of the standardised rows - log_scale, summed over observed cells
        self.log_scale = scale.scale.log() @ (~missing).sum(0).double()
        i, j = torch.triu_indices(self._D, self._D, device=x.device)
        self._packed = i.new_empty(self._D, self._D)  # index of x_i x_j in the features
        self._packed[i, j] = self._packed[j, i] = torch.arange(len(i), device=x.device)
        self._n_features = len(i) + len(self._columns) + 1
        keep &= self._n_features * self._columns.shape[1] <= CACHE.get(x.device.type, CACHE["cpu"])
        self._cached_features = self._features(self._columns) if keep else None
        self._groups: dict[int, list[Group]] = {}

    def moments(self, components: Components, likelihood_only: bool = False) -> Moments:
        """One E-step; with `likelihood_only` the other moments are zero."""
        S, K, D = components.means.shape
        log_likelihood = components.means.new_zeros(S)
        sums = components.means.new_zeros(S * K, self._n_features)
        for phi in self._blocks(S * K):
            joint = (components.coefficients.flatten(0, 1) @ phi).view(S, K, -1)  # log w_k N(x; μ_k, Σ_k)
            largest = joint.amax(1, keepdim=True)
            total = joint.sub_(largest).exp_().sum(1, keepdim=True)
            log_likelihood += (largest + total.log()).sum((1, 2))
            if not likelihood_only:
                sums.addmm_(joint.div_(total).view(S * K, -1), phi.T)
        second = sums[:, self._packed].view(S, K, D, D)
        linear = sums[:, -len(self._columns) - 1 :].reshape(S, K, -1)
        first, levels, counts = linear[..., :D], linear[..., D:-1], linear[..., -1]
        if K not in self._groups:
            self._groups[K] = list(group_by_pattern(self.observed, K))
        covariances = components.factors @ components.factors.mT if self._groups[K] else components.factors
        for s, (patterns, index, real) in itertools.product(range(S), self._groups[K]):
            conditioned = condition(components.means[s], covariances[s], self.incomplete[index], patterns)
            indicators = self.incomplete_levels[index]
            joint = conditioned.log_density + components.log_weights[s, :, None]
            joint = joint + components.levels[s] @ indicators.mT
            joint = torch.where(real[:, None], joint, 0.0)
            log_likelihood[s] += (torch.logsumexp(joint, 1) * real).sum()
            if not likelihood_only:
                r = joint.softmax(1) * real[:, None]  # (P, K, R)
                mean, factor = conditioned.mean(), conditioned.factor()
                weighted = mean * r[..., None]
                counts[s] += r.sum((0, 2))
                first[s] += weighted.sum((0, 2))
                levels[s] += (r @ indicators).sum(0)
                covariance = factor @ factor.mT * r.sum(-1)[..., None, None]
                second[s] += (weighted.mT @ mean + covariance).sum(0)
        return Moments(log_likelihood, counts, first, second, levels)

    def per_row(self, moments: Moments) -> Tensor:
        """Mean log-likelihood per row of each member, (S,), in the units of the data."""
        return (moments.log_likelihood - self.log_scale) / self.n

    def pooled(self) -> Tensor:
        """Covariance (D, D) of the standardised rows, missing values counted as independent of the rest."""
        missing_variance = 1 - self.filled.square().mean(0)  # 0 for a complete column, 1 for a constant one
        return self.filled.T @ self.filled / self.n + torch.diag(missing_variance.clamp_min(0))

    def _blocks(self, members: int) -> Iterator[Tensor]:
        """Features of complete rows, (F, n) at a time."""
        block = BLOCK.get(self._columns.device.type, BLOCK["cpu"])
        if self._cached_features is not None:
            yield from self._cached_features.split(max(1, block // members), 1)
            return
        step, buffer = max(1, block // max(self._n_features, members)), None
        for columns in self._columns.split(step, 1):
            buffer = self._features(columns, buffer)
            yield buffer

    def _features(self, columns: Tensor, out: Tensor | None = None) -> Tensor:
        """[x_i x_j for i ≤ j, x_i, levels, 1] of rows given as columns: (F, n), into the memory of `out`."""
        D, n = self._D, columns.shape[1]
        out = columns.new_empty(self._n_features, n) if out is None else out[:, :n]
        start = 0
        for i in range(D):
            torch.mul(columns[i:D], columns[i], out=out[start : start + D - i])
            start += D - i
        out[start:-1] = columns
        out[-1] = 1.0
        return out


def cholesky(covariances: Tensor, floor: tuple[str, float]) -> Tensor:
    """Cholesky factors; a ValueError that names the option `floor` if a matrix is singular."""
    factors, info = torch.linalg.cholesky_ex(covariances)
    if not bool((info == 0).all() & (factors.diagonal(dim1=-2, dim2=-1).square() > SINGULAR).all()):
        raise ValueError(
            f"the covariance of a component is singular (a constant column, columns that determine each "
            f"other, repeated rows or too few rows): give a larger {floor[0]} than {floor[1]:g}"
        )
    return factors


def factor_covariances(loadings: Tensor, noise: Tensor) -> Tensor:
    """Λ Λᵀ + Ψ of each component, (…, D, D)."""
    return loadings @ loadings.mT + torch.diag_embed(noise)


def inverse_of(factors: Tensor) -> Tensor:
    """Inverses of lower triangular matrices (..., D, D)."""
    eye = torch.eye(factors.shape[-1], dtype=factors.dtype, device=factors.device)
    return torch.linalg.solve_triangular(factors, eye.expand_as(factors), upper=False)


def group_by_pattern(observed: Tensor, n_components: int, budget: int = GROUP_NUMBERS) -> Iterator[Group]:
    """Group rows by their observed cells: P patterns of R rows, padded; P K R D is at most `budget`."""
    if len(observed) == 0:
        return
    D = observed.shape[1]
    patterns, pattern_of_row, counts = torch.unique(observed, dim=0, return_inverse=True, return_counts=True)
    order, starts = pattern_of_row.argsort(stable=True), counts.cumsum(0) - counts
    most_rows = max(D, budget // (n_components * D))
    buckets: dict[int, list[tuple[int, int, int]]] = {}  # numbers of rows differ by a factor of two at most
    for p, (n, start) in enumerate(zip(counts.tolist(), starts.tolist(), strict=True)):
        for j in range(0, n, most_rows):
            length = min(most_rows, n - j)
            buckets.setdefault((length - 1).bit_length(), []).append((length, p, start + j))
    for bucket in buckets.values():
        longest = max(bucket)[0]
        size = max(1, budget // (n_components * D * max(D, longest)))
        for group in torch.tensor(bucket, device=observed.device).split(size):
            length, pattern, begin = group[:, :, None].unbind(1)
            steps = torch.arange(longest, device=observed.device)
            valid = steps < length
            yield patterns[pattern[:, 0]], order[begin + torch.where(valid, steps, 0)], valid


class Conditioned(NamedTuple):
    """K Gaussians conditioned on the observed cells of P × R rows; observed variables come first."""

    log_density: Tensor  # (P, K, R), of the observed cells under each component
    z: Tensor  # (P, K, R, D), whitened residual of the observed cells, zero elsewhere
    root: Tensor  # (P, K, D, D), Cholesky factor of the permuted covariances
    centre: Tensor  # (P, K, D), permuted means
    known: Tensor  # bool (P, D), permuted pattern
    back: Tensor  # (P, D), undoes the permutation

    def mean(self) -> Tensor:
        """E[x | observed, k] in the natural order of variables: (P, K, R, D)."""
        inside = self.centre[:, :, None] + self.z @ self.root.mT
        return inside.gather(-1, self.back[:, None, None].expand_as(inside))

    def factor(self) -> Tensor:
        """F (P, K, D, D) in the natural order; F Fᵀ is the covariance given the observed cells."""
        free = self.root * ~self.known[:, None, None]
        rows = self.back[:, None, :, None].expand_as(free)
        return free.gather(-2, rows)


def condition(means: Tensor, covariances: Tensor, x: Tensor, observed: Tensor) -> Conditioned:
    """Condition K Gaussians, means (K, D) and covariances (K, D, D), on observed (P, D) cells of x (P, R, D).

    With the observed variables first, the Cholesky factor [[L_oo, 0], [L_mo, L_mm]] gives the density (from
    z = L_oo⁻¹ (x_o - μ_o)), the conditional mean μ_m + L_mo z and a factor L_mm of its covariance.
    """
    order = (~observed).to(torch.uint8).argsort(dim=-1, stable=True)
    known = observed.gather(-1, order)
    permuted = covariances[:, order[:, :, None], order[:, None, :]].transpose(0, 1)
    root = torch.linalg.cholesky(permuted)
    centre = means[:, order].transpose(0, 1)
    values = x.gather(-1, order[:, None].expand_as(x))
    residual = torch.where(known[:, None, None], values[:, None] - centre[:, :, None], 0.0)
    z = torch.linalg.solve_triangular(root, residual.mT, upper=False).mT * known[:, None, None]
    log_scales = (root.diagonal(dim1=-2, dim2=-1).log() * known[:, None]).sum(-1)
    constant = 0.5 * math.log(2 * math.pi) * known.sum(-1, dtype=x.dtype)[:, None] + log_scales
    log_density = -0.5 * z.square().sum(-1) - constant[..., None]
    return Conditioned(log_density, z, root, centre, known, order.argsort(-1))
