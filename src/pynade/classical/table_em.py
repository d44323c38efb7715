"""A mixture of Gaussians with levels, fitted by EM to a mixed table with gaps.

Within a component the numbers of a row are jointly Gaussian, and the variables with levels independent. It is
the simple model beside the nets of `TabularNADE`: quick to fit, and hard to beat on a few hundred rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pynade.classical.em import EM
from pynade.nets import GaussianTableNet

SIZES = (1, 2, 4, 8, 16)  # numbers of components that are tried
ROWS_EACH = 15  # rows of a component, at least
FOLDS = 3  # of the cross-validation that chooses among them
MOST_ROWS = 4000  # that are used, a random part of more
MOST_PATTERNS = 400  # of missing numbers, likewise
EPOCHS, TOL = 100, 1e-3
NEVER = -1e4  # log-probability of a level that a variable does not have
RIDGE = 1e-4  # least variance left in a direction, of normal scores


def em_table(
    x: np.ndarray,
    levels: Sequence[int],
    n_components: int | None = None,
    n_features: int = 1,
    sigma_floor: float = 0.001,
    seed: int = 0,
) -> GaussianTableNet:
    """The mixture as an any-order net.

    Args:
        x: rows (N, D): indexes of levels, and numbers of about unit variance; NaN = missing.
        levels: of each variable its number of levels; 0 for numbers.
        n_components: of the mixture; None chooses by cross-validation.
        n_features: features per variable that the net will get; the first is what is modelled.
        sigma_floor: smallest scale of the family that the net will be used with.
        seed: of the folds and of the starting points.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> one = rng.normal(size=(300, 1))
        >>> net = em_table(np.hstack([one, one + 0.1 * rng.normal(size=(300, 1))]), [0, 0], 1)
        >>> bool(abs(net.covariance[0, 0, 1] - 1) < 0.2)
        True
    """
    x = _some(x, levels, np.random.default_rng(seed))
    C = _chosen(x, levels, seed) if n_components is None else n_components
    learner = TableEM(x, levels, C, seed)
    learner.run()
    net = GaussianTableNet(levels, C, n_features, sigma_floor).to(torch.float64)
    for name, value in learner.params[0].items():
        net.get_buffer(name).copy_(value)
    return net.float()


def _some(x: np.ndarray, levels: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Rows to learn from: not too many of them, nor of patterns of gaps among the numbers."""
    gaps = np.isnan(x[:, [i for i, n in enumerate(levels) if not n]])
    patterns = len(np.unique(gaps, axis=0)) if gaps.any() else 1
    most = min(MOST_ROWS, round(len(x) * min(1.0, MOST_PATTERNS / patterns)))
    return x if len(x) <= most else x[np.sort(rng.choice(len(x), most, replace=False))]


def _chosen(x: np.ndarray, levels: Sequence[int], seed: int) -> int:
    """The number of components with the best score of left-out rows, until two larger ones are worse."""
    fold = np.random.default_rng(seed).permutation(len(x)) % FOLDS
    found: dict[int, float] = {}
    for C in SIZES:
        if C > 1 and len(x) < ROWS_EACH * C:
            break
        scores = []
        for k in range(FOLDS):
            learner = TableEM(x[fold != k], levels, C, seed)
            learner.run()
            scores.append(learner.log_likelihoods(x[fold == k]))
        found[C] = float(torch.cat(scores).mean())
        best = max(found, key=lambda size: found[size])
        if list(found).index(best) <= len(found) - 3:
            break
    return best


class _Cells:
    """Rows as an EM step takes them: numbers grouped by pattern of gaps, and levels."""

    def __init__(self, x: np.ndarray, levels: Sequence[int]) -> None:
        rows = torch.as_tensor(x, dtype=torch.float64)
        number, self.level = ([i for i, n in enumerate(levels) if bool(n) == kind] for kind in (False, True))
        z = rows[:, number]
        self.known = ~torch.isnan(z)
        self.z = torch.where(self.known, z, 0)
        marked = torch.cat([self.known, torch.ones(len(z), 1, dtype=torch.bool)], 1)  # at least one column
        masks, self.pattern = torch.unique(marked, dim=0, return_inverse=True)
        self.masks = masks[:, :-1]
        self.rows = [torch.nonzero(self.pattern == p).flatten() for p in range(len(self.masks))]
        most = max(1, *levels)
        indicators = torch.zeros(len(rows), len(self.level), most, dtype=torch.float64)
        cells = rows[:, self.level]
        there = ~torch.isnan(cells)
        indicators.scatter_(2, torch.where(there, cells, 0).long().unsqueeze(2), there.double().unsqueeze(2))
        self.indicators = indicators


class TableEM(EM):
    """EM of one mixture with `n_components`, on rows (N, D) as `em_table` takes them.

    Covariances are drawn towards their mean over the components, and that towards a diagonal one, as if a few
    more rows were known; shares of levels towards those of all rows.
    """

    def __init__(self, x: np.ndarray, levels: Sequence[int], n_components: int, seed: int) -> None:
        self.levels, self.C, self.cells = list(levels), n_components, _Cells(x, levels)
        counts = torch.tensor([n for n in levels if n])
        cells = self.cells.indicators.sum(0)
        self.valid = torch.arange(cells.shape[-1]) < counts.unsqueeze(-1)
        self.shares = (cells + self.valid) / (cells.sum(-1) + counts).unsqueeze(-1)  # of all rows
        self.prior_rows = self.cells.z.shape[1] + 2.0
        self.r = self._start(seed)
        self.mean_z = self.cells.z.unsqueeze(1).expand(-1, n_components, -1)
        self.spread: Tensor | None = None
        super().__init__([self._fitted()], {"epochs": EPOCHS, "patience": None, "tol": TOL})

    def _start(self, seed: int) -> Tensor:
        """Responsibilities (N, C): mostly one cluster of the rows, gaps taken as means."""
        n = len(self.cells.z)
        if self.C == 1:
            return torch.ones(n, 1, dtype=torch.float64)
        from sklearn.cluster import KMeans

        features = torch.cat([self.cells.z, 0.7 * self.cells.indicators.flatten(1)], 1).numpy()
        clusters = min(self.C, len(np.unique(features, axis=0)))
        labels = torch.as_tensor(KMeans(clusters, n_init=1, random_state=seed).fit(features).labels_).long()
        r = torch.full((n, self.C), 0.1 / self.C, dtype=torch.float64)
        r[torch.arange(n), labels] += 0.9
        return r

    def _fitted(self) -> dict[str, Tensor]:
        """Parameters that fit the responsibilities (the M-step)."""
        size = self.r.sum(0)
        mean = torch.einsum("nc,ncd->cd", self.r, self.mean_z) / (size + 1).unsqueeze(-1)
        error = self.mean_z - mean
        scatter = torch.einsum("nc,nci,ncj->cij", self.r, error, error)
        if self.spread is None:  # before the first E-step a gap has unit variance
            missing = (~self.cells.known).double().T @ self.r
            scatter = scatter + torch.diag_embed(missing.T)
        else:
            scatter = scatter + self.spread
        pool = scatter.sum(0) / size.sum()
        share = self.prior_rows / (size.sum() + self.prior_rows)
        pool = (1 - share) * pool + share * torch.diag(pool.diagonal())
        pool = pool + RIDGE * torch.eye(len(pool), dtype=pool.dtype)
        more = (scatter + self.prior_rows * pool) / (size + self.prior_rows).view(-1, 1, 1)
        covariance = pool.unsqueeze(0) if self.C == 1 else more
        cells = torch.einsum("nc,ndl->cdl", self.r, self.cells.indicators)
        weight = self.valid.sum(-1, keepdim=True).sqrt()
        theta = (cells + weight * self.shares) / (cells.sum(-1, keepdim=True) + weight)
        log_theta = torch.full((self.C, len(self.levels), cells.shape[-1]), NEVER, dtype=torch.float64)
        log_theta[:, self.cells.level] = torch.where(self.valid, theta.log(), NEVER)
        log_pi = torch.log((size + 1) / (size.sum() + self.C))
        return {"log_pi": log_pi, "mean": mean, "covariance": covariance, "log_theta": log_theta}

    def maximise(self) -> None:
        """M-step."""
        self.params = [self._fitted()]

    def expect(self) -> list[float | None]:
        """E-step: responsibilities, means of gaps, and the spread around them."""
        log_joint, self.mean_z, left = self._conditioned(self.cells)
        log_p = torch.logsumexp(log_joint, 1)
        self.r = torch.exp(log_joint - log_p.unsqueeze(1))
        of_pattern = torch.zeros(len(self.cells.masks), self.C, dtype=torch.float64)
        of_pattern.index_add_(0, self.cells.pattern, self.r)
        self.spread = torch.einsum("pc,pcij->cij", of_pattern, left)
        return [float(log_p.mean())]

    def _conditioned(self, cells: _Cells) -> tuple[Tensor, Tensor, Tensor]:
        """log p (N, C), expected numbers (N, C, n), covariances of gaps (P, C, n, n)."""
        log_pi, mean, covariance, log_theta = (
            self.params[0][name] for name in ("log_pi", "mean", "covariance", "log_theta")
        )
        theta = torch.where(self.valid, log_theta[:, cells.level], 0)
        log_joint = log_pi + torch.einsum("ndl,cdl->nc", cells.indicators, theta)
        n = mean.shape[1]
        if not n:
            return log_joint, mean.expand(len(log_joint), -1, -1), covariance.unsqueeze(0)
        seen = cells.masks.double()[:, None, :]  # (P, 1, n)
        both = seen.unsqueeze(-1) * seen.unsqueeze(-2)
        factor = torch.linalg.cholesky(covariance * both + torch.diag_embed(1 - seen))
        across = covariance * seen.unsqueeze(-1)  # rows of what is seen
        solved = torch.cholesky_solve(across, factor)  # (P, C, n, n)
        left = (covariance - across.mT @ solved) * (1 - seen).unsqueeze(-1) * (1 - seen).unsqueeze(-2)
        inverse = torch.linalg.solve_triangular(factor, torch.eye(n, dtype=factor.dtype), upper=False)
        error = (cells.z - mean.unsqueeze(1)) * cells.known  # (C, N, n)
        y, guess = torch.empty_like(error), torch.empty_like(error)
        for p, rows in enumerate(cells.rows):
            y[:, rows] = error[:, rows] @ inverse[p].mT
            guess[:, rows] = error[:, rows] @ solved[p]
        log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)[cells.pattern]
        count = cells.known.sum(1, keepdim=True)
        log_joint = log_joint - 0.5 * (y**2).sum(-1).T - log_det - 0.5 * count * math.log(2 * math.pi)
        guess = torch.where(cells.known, cells.z, guess + mean.unsqueeze(1))
        return log_joint, guess.transpose(0, 1), left

    def log_likelihoods(self, x: np.ndarray) -> Tensor:
        """log p of the observed cells of rows, (N,)."""
        return torch.logsumexp(self._conditioned(_Cells(x, self.levels))[0], 1)
