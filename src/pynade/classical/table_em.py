"""EM of a mixture of Gaussians with levels on a mixed table with gaps: the simple model of `TabularNADE`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pynade.classical.em import EM
from pynade.classical.moments import Components, Moments, Rows, Scale
from pynade.nets import GaussianTableNet

SIZES = (1, 2, 4, 8, 16)  # numbers of components that are tried
SHRINKAGES = (1.0, 0.3, 0.1, 0.03, 0.01)  # strengths of the prior on a diagonal covariance that are tried
ROWS_EACH = 15  # fewest rows for each component
WORK = 1 << 22  # of several components, their number times the cube of the columns of numbers is at most this
FOLDS = 3  # of the cross-validation that chooses the two
MOST_ROWS = 4000  # largest number of rows that are used; of more, a random part
MOST_PATTERNS = 400  # largest number of patterns of missing numbers
#: Largest products of patterns and the cube of the columns of numbers: with cross-validation, and without.
WORK_OF_FOLDS, WORK_OF_FIT = 3e7, 2e9
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
    """The mixture as an any-order net: jointly Gaussian numbers and independent levels in each component.

    Args:
        x: rows (N, D): indexes of levels, and numbers of about unit variance; NaN = missing.
        levels: of each variable its number of levels; 0 for numbers.
        n_components: of the mixture; None chooses by cross-validation (one, in wide tables with many gaps).
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
    x = _subsample(x, levels, np.random.default_rng(seed))
    shrinkage, C = SHRINKAGES[0], n_components or 1
    if _n_patterns(x, levels) * levels.count(0) ** 3 <= WORK_OF_FOLDS:
        shrinkage = max(SHRINKAGES, key=lambda s: _cross_validate(x, levels, 1, s, seed))
        C = n_components or _choose_components(x, levels, shrinkage, seed)
    learner = TableEM(x, levels, C, shrinkage, seed)
    learner.run()
    net = GaussianTableNet(levels, C, n_features, sigma_floor).to(torch.float64)
    for name, value in learner.params[0].items():
        net.get_buffer(name).copy_(value)
    return net.float()


def _n_patterns(x: np.ndarray, levels: Sequence[int]) -> int:
    """Number of different patterns of missing numbers."""
    missing = np.isnan(x[:, [i for i, n in enumerate(levels) if not n]])
    return len(np.unique(missing, axis=0)) if missing.any() else 1


def _subsample(x: np.ndarray, levels: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """At most MOST_ROWS random rows, fewer where they have many patterns of missing numbers."""
    most_patterns = min(MOST_PATTERNS, WORK_OF_FIT / max(1, levels.count(0)) ** 3)
    most = min(MOST_ROWS, round(len(x) * min(1.0, most_patterns / _n_patterns(x, levels))))
    return x if len(x) <= most else x[np.sort(rng.choice(len(x), most, replace=False))]


def _cross_validate(
    x: np.ndarray, levels: Sequence[int], n_components: int, shrinkage: float, seed: int
) -> float:
    """The log-likelihood of all rows, each by a mixture fitted to the other folds."""
    fold, total = np.random.default_rng(seed).permutation(len(x)) % FOLDS, 0.0
    for k in range(FOLDS):
        learner = TableEM(x[fold != k], levels, n_components, shrinkage, seed)
        learner.run()
        total += learner.log_likelihood(x[fold == k])
    return total


def _choose_components(x: np.ndarray, levels: Sequence[int], shrinkage: float, seed: int) -> int:
    """The number of components with the best score of left-out rows, until two larger ones are worse."""
    scores: dict[int, float] = {}
    for C in SIZES:
        if C > 1 and (len(x) < ROWS_EACH * C or C * levels.count(0) ** 3 > WORK):
            break
        scores[C] = _cross_validate(x, levels, C, shrinkage, seed)
        best = max(scores, key=scores.__getitem__)
        if list(scores).index(best) <= len(scores) - 3:
            break
    return best


def _numbers_and_indicators(x: np.ndarray, levels: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Numbers (N, n), and indicators (N, L) of the levels of all other variables."""
    rows = torch.as_tensor(x, dtype=torch.float64)
    indicators = [(rows[:, i, None] == torch.arange(n)).double() for i, n in enumerate(levels)]
    return rows[:, [i for i, n in enumerate(levels) if not n]], torch.cat(indicators, 1)


class TableEM(EM):
    """EM of one mixture; covariances are drawn towards their mean and a diagonal, levels towards all rows."""

    def __init__(
        self, x: np.ndarray, levels: Sequence[int], n_components: int, shrinkage: float, seed: int
    ) -> None:
        self.levels, self.C, self.shrinkage = list(levels), n_components, shrinkage
        z, indicators = _numbers_and_indicators(x, levels)
        one = torch.ones_like(z[0])
        self.rows = Rows(z, Scale(0 * one, one, one), levels=indicators)
        self.valid = torch.arange(max(1, *levels)) < torch.tensor(self.levels).unsqueeze(-1)  # (D, most)
        r, filled = self._start(indicators, seed), self.rows.filled
        missing = r.T @ torch.isnan(z).double()  # at first a gap is zero, with unit variance
        second = torch.einsum("nc,ni,nj->cij", r, filled, filled) + torch.diag_embed(missing)
        self.moments = Moments(r.new_zeros(1), r.sum(0), r.T @ filled, second, r.T @ indicators)
        self.shares = self._table(indicators.sum(0)) + self.valid
        self.shares /= self.shares.sum(-1, keepdim=True).clamp(min=1)  # of all rows
        super().__init__([self._estimate()], {"epochs": EPOCHS, "patience": None, "tol": TOL})

    def _start(self, indicators: Tensor, seed: int) -> Tensor:
        """Responsibilities (N, C): mostly one cluster of the rows, gaps taken as means."""
        n = self.rows.n
        if self.C == 1:
            return torch.ones(n, 1, dtype=torch.float64)
        from sklearn.cluster import KMeans

        features = torch.cat([self.rows.filled, 0.7 * indicators], 1).numpy()
        clusters = min(self.C, len(np.unique(features, axis=0)))
        labels = torch.as_tensor(KMeans(clusters, n_init=1, random_state=seed).fit(features).labels_).long()
        r = torch.full((n, self.C), 0.1 / self.C, dtype=torch.float64)
        r[torch.arange(n), labels] += 0.9
        return r

    def _table(self, levels: Tensor) -> Tensor:
        """Numbers (..., L) of all levels as a table (..., D, most), zero where there is no level."""
        table = levels.new_zeros(*levels.shape[:-1], *self.valid.shape)
        table[..., self.valid] = levels
        return table

    def _estimate(self) -> dict[str, Tensor]:
        """The parameters that maximise the objective, given the moments."""
        _, size, first, second, levels = self.moments
        mean = first / (size + 1).unsqueeze(-1)
        scatter = second - (size + 2).view(-1, 1, 1) * mean.unsqueeze(-1) * mean.unsqueeze(-2)  # about it
        pool = scatter.sum(0) / size.sum()
        prior = len(pool) + 2.0  # rows
        share = self.shrinkage * prior / (size.sum() + self.shrinkage * prior)
        pool = (1 - share) * pool + share * torch.diag(pool.diagonal())
        pool = pool + RIDGE * torch.eye(len(pool), dtype=pool.dtype)
        more = (scatter + prior * pool) / (size + prior).view(-1, 1, 1)
        cells, weight = self._table(levels), self.valid.sum(-1, keepdim=True).sqrt()
        theta = (cells + weight * self.shares) / (cells.sum(-1, keepdim=True) + weight)
        return {
            "log_pi": torch.log((size + 1) / (size.sum() + self.C)),
            "mean": mean,
            "covariance": pool.unsqueeze(0) if self.C == 1 else more,
            "log_theta": torch.where(self.valid, theta.log(), NEVER),
        }

    def maximise(self) -> None:
        """M-step."""
        self.params = [self._estimate()]

    def expect(self) -> list[float | None]:
        """E-step."""
        moments = self.rows.moments(self._components())
        self.moments = Moments(*(t[0] for t in moments))
        return self.rows.per_row(moments).tolist()

    def _components(self) -> Components:
        log_pi, mean, covariance, log_theta = (t.unsqueeze(0) for t in self.params[0].values())
        return Components.of(log_pi, mean, torch.linalg.cholesky(covariance), log_theta[..., self.valid])

    def log_likelihood(self, x: np.ndarray) -> float:
        """Sum of log p of the observed cells of all rows."""
        z, indicators = _numbers_and_indicators(x, self.levels)
        rows = Rows(z, self.rows.scale, keep=False, levels=indicators)
        return float(rows.moments(self._components(), True).log_likelihood)
