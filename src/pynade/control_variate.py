"""The log-likelihood of an ensemble on all rows, from exact numbers on some of them and estimates on all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pynade.evaluation import OrderingScores, score_orderings
from pynade.likelihood import Estimate, orderless_rows
from pynade.models import Orderless
from pynade.ordering import Ordering


@dataclass(frozen=True)
class ControlVariateEnsemble:
    """The log-likelihood of an ensemble on all rows, and what it is made of.

    Attributes:
        typical: estimate of the mean over orderings (the typical single ordering) on all rows.
        subset: the exact scores of the rows of the subset.
        subset_estimate: the estimate of the mean over orderings on the subset alone.
        estimates: the stochastic estimate of each row of the subset, (m,).
        every: the subset is every n-th row.
    """

    typical: Estimate
    subset: OrderingScores
    subset_estimate: Estimate
    estimates: np.ndarray
    every: int

    @property
    def ensemble(self) -> Estimate:
        """The ensemble of all orderings on all rows, see `of`."""
        return self.of()

    def of(self, k: int | None = None) -> Estimate:
        """The ensemble of the first k orderings (all by default) on all rows.

        Its `mc_stderr` is how far it may be from the exact mean over the same rows; its `stderr` adds to
        that the error due to the finite number of rows.
        """
        exact, gap = self.subset.ensemble_rows(k), self.correction(k)
        n, m = self.typical.n, len(exact)
        noise = gap.stderr * math.sqrt(1 - m / n)
        stderr = math.hypot(exact.std(ddof=1) / math.sqrt(n), noise)
        return Estimate(self.typical.mean + gap.mean, stderr, n, exact=False, mc_stderr=noise)

    def correction(self, k: int | None = None) -> Estimate:
        """Exact ensemble less estimate, over the rows of the subset."""
        return Estimate.from_rows(self.subset.ensemble_rows(k) - self.estimates)

    def by_exact_means(self) -> Estimate:
        """Another estimate: that on all rows plus what the ensemble gains over its mean member.

        The gain is exact on the subset and varies little from row to row, so little of the draws' noise is
        left; instead the K orderings stand for all of them, whose spread is part of `mc_stderr`.
        """
        scores = self.subset.log_probs
        gain = Estimate.from_rows(self.subset.ensemble_rows() - scores.mean(1))
        n, (m, k) = self.typical.n, scores.shape
        spread = float(self.subset.ordering_means().std(ddof=1)) / math.sqrt(k) if k > 1 else math.nan
        noise = math.hypot(gain.stderr * math.sqrt(1 - m / n), self.typical.mc_stderr, spread)
        stderr = math.hypot(self.subset.ensemble_rows().std(ddof=1) / math.sqrt(n), noise)
        return Estimate(self.typical.mean + gain.mean, stderr, n, exact=False, mc_stderr=noise)

    def to_json(self, split: str = "rows") -> dict[str, Any]:
        """How the number is composed, as in a record."""
        correction = self.correction()
        return {
            "rule": "estimate on all rows + correction; correction = exact ensemble - estimate on the subset",
            "subset": f"{split}[::{self.every}]",
            "exact_ensemble_on_subset": self.subset.ensemble().to_json(),
            "exact_mean_over_orderings_on_subset": self.subset.mean().to_json(),
            "estimate_on_subset": self.subset_estimate.to_json(),
            "estimate_on_all_rows": self.typical.to_json(),
            "correction": {"mean": correction.mean, "stderr": correction.stderr, "n": correction.n},
            "second_opinion": self.by_exact_means().to_json()
            | {"rule": "estimate on all rows + (exact ensemble - exact mean over orderings) on the subset"},
        }


def control_variate_ensemble(
    model: Orderless,
    x: Tensor | np.ndarray,
    orderings: Ordering,
    *,
    every: int = 10,
    draws: int = 16,
    seed: int = 0,
    precision: str = "float32",
    folder: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ControlVariateEnsemble:
    """Log-likelihood of the ensemble of K orderings on all rows, exact only on every tenth.

    The stochastic estimate s of the mean over orderings is cheap and is made for all N rows; the exact
    ensemble e costs K · D forward passes a row and is made for the fixed subset x[::every], of m rows. The
    number is mean(s) + mean(e - s), the second mean over the subset. What varies from row to row in e is
    mostly in s as well, so the difference has a small spread σ, and the error left is
    σ sqrt(1/m - 1/N), in which the noise of the draws is included. Unbiased for rows in no particular order.

    Args:
        model: the orderless model.
        x: rows (N, D), complete.
        orderings: a (K, D) batch.
        every: take every n-th row into the subset.
        draws: prefixes per row of the estimate.
        seed: of the prefixes.
        precision: "float32", "tf32" or "bf16" (see `pynade.precision`).
        folder: keep finished chunks of the exact part here (see `score_orderings`).
        progress: called as progress(done, total) by the exact part.

    Example:
        >>> import torch
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import MaskedMLP
        >>> deep = Orderless(MaskedMLP(3, hidden=(4,)), Bernoulli())
        >>> rows = torch.eye(3).repeat(20, 1)
        >>> made = control_variate_ensemble(deep, rows, Ordering.random(3, k=4))
        >>> made.ensemble.n, made.of(2).exact
        (60, False)
    """
    rows = torch.as_tensor(x)
    if every < 1:
        raise ValueError(f"every must be at least 1, not {every}")
    subset = rows[::every]
    if len(subset) < 2:
        raise ValueError(f"every={every} leaves {len(subset)} of {len(rows)} rows; at least 2 are needed")
    exact = score_orderings(model, subset, orderings, folder=folder, progress=progress, precision=precision)
    means, variances = orderless_rows(model, rows, draws, seed, precision=precision)
    here = means[::every]
    return ControlVariateEnsemble(
        Estimate.from_rows(means, variances), exact, Estimate.from_rows(here, variances[::every]), here, every
    )
