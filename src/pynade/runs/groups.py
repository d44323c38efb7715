"""Test rows that come in groups, such as patches of images: means over groups, and the error over groups."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pynade.tables import Dataset


def grouped_stderr(means: Any, sizes: Any) -> float:
    """Standard error of a mean over rows that come in G independent groups, such as patches of images.

    sqrt(G / (G - 1) Σ n² (m - M)²) / N, of groups of n rows with means m, where M is the mean of all N rows.

    Args:
        means: (G,), the mean over the rows of each group, or the difference of two models' means; G >= 2.
        sizes: (G,), the number of rows of each group.

    Example:
        >>> grouped_stderr([1.0, 3.0], [500, 500])  # as many rows as one likes: two independent numbers
        1.0
    """
    m, n = np.asarray(means, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    squares = np.square(n * (m - n @ m / n.sum())).sum()
    return float(math.sqrt(len(m) / (len(m) - 1) * squares) / n.sum())


def group_facts(data: Dataset, split: str, log_probs: np.ndarray) -> dict[str, Any]:
    """The mean log-probability of every group, and the standard error over groups; nothing without two.

    The paired difference between two models follows from their records: `grouped_stderr` of the difference
    of their means.

    Args:
        data: the data set, whose test rows may have groups.
        split: the part that was scored.
        log_probs: of its rows, or of the first of them; empty where there is only an estimate of their mean.
    """
    if split != "test" or data.test_groups is None or not len(log_probs):
        return {}
    _, numbers = np.unique(data.test_groups[: len(log_probs)], return_inverse=True)
    sizes = np.bincount(numbers)
    if len(sizes) < 2:
        return {}
    means = np.bincount(numbers, np.asarray(log_probs, dtype=np.float64)) / sizes
    facts = {"by": data.grouped_by, "stderr": grouped_stderr(means, sizes), "rows": sizes.tolist()}
    return {"groups": facts | {"means": [round(float(mean), 6) for mean in means]}}
