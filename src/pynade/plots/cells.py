"""Whether the distributions of single cells are right: the probability integral transform."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pynade._lazy import LazyModule
from pynade.plots.drawing import COLOURS, Columns, axes_or_new, column_names, places_of

if TYPE_CHECKING:
    import torch

    from pynade import likelihood, models
else:
    torch, likelihood, models = map(LazyModule, ("torch", "pynade.likelihood", "pynade.models"))

NAMED_LINES = 6  # columns that are named in a calibration plot
AT_ONCE = 4096  # rows of a pass of a net


def calibration(model: Any, X: Any, columns: Columns = None, random_state: Any = 0, ax: Any = None) -> Any:
    """Draw whether the model's distributions of single cells are right, on rows that it was not fitted to.

    Of a right model the values of `pit` are uniform. Drawn is, for each column, the share of cells whose
    value is at most p, less p. The band holds all lines of a right model in at least 95 of 100 such tables
    (Kolmogorov's distance, divided among the columns). A line above 0 on the left and below it on the right:
    the model is too certain; the other way round: too uncertain. A line above 0: the model's values are too
    large; below 0: too small.

    Args:
        model: a fitted estimator.
        X: held-out rows of the columns of the model.
        columns: which, by name or index; all when left out.
        random_state: seed of what discrete columns draw.
        ax: Matplotlib axes; new ones when left out.

    Example:
        >>> import pynade
        >>> rows = np.random.default_rng(0).normal(size=(400, 2))
        >>> ax = pynade.plots.calibration(pynade.Gaussian().fit(rows[:200]), rows[200:])
        >>> ax.get_title()
        'Calibration on 200 rows: 2 of 2 columns inside the band'
    """
    found, names = pit(model, X, random_state), column_names(model)
    kept = places_of(names, columns, len(names))
    sizes, distances, limits = calibration_limits(found[:, kept])
    outside, order = distances > limits, np.argsort(-distances / limits)
    ax = axes_or_new(ax, 6.4, 4.2)
    band = float(np.median(limits))
    ax.axhspan(-band, band, color="0.88", lw=0, label="what chance allows (95 %)")
    ax.axhline(0, color="0.5", lw=0.8)
    coloured = [k for k in order if outside[k]][:NAMED_LINES]
    if len(kept) <= NAMED_LINES:
        coloured = list(range(len(kept)))
    rest = [k for k in range(len(kept)) if k not in coloured]
    for k in [*rest, *coloured]:
        u = np.sort(found[:, kept[k]])[: sizes[k]]
        p, share = np.r_[0, np.repeat(u, 2), 1], np.repeat(np.arange(len(u) + 1) / max(1, len(u)), 2)
        style: Any = {"color": "0.55", "lw": 0.7}
        if k in coloured:
            style = {"color": COLOURS[coloured.index(k)], "lw": 1.6, "label": names[kept[k]]}
        elif k == rest[0]:
            style["label"] = f"{len(rest)} {'other ' * bool(coloured)}column{'s' * (len(rest) > 1)}"
        ax.plot(p, share - p, **style)
    ax.set(xlim=(0, 1), xlabel="p: probability that the model gives to values up to the cell's")
    reach = 1.25 * max(band, *(float(np.abs(line.get_ydata()).max()) for line in ax.lines))
    ax.set_ylim(-reach, reach)
    ax.set_ylabel("share of cells with at most p, less p")
    title = f"Calibration on {len(found):,} rows: {len(kept) - outside.sum()} of {len(kept)} columns"
    ax.set_title(f"{title} inside the band", fontsize="medium")
    ax.legend(fontsize=8, frameon=False)
    return ax


def calibration_limits(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cells of each column of `pit` (N, D), their distance from uniform, and what chance allows."""
    from scipy.stats import kstest, kstwo

    columns = [column[~np.isnan(column)] for column in values.T]
    sizes = np.array([len(column) for column in columns])
    distances = np.array([kstest(column, "uniform").statistic if len(column) else 0.0 for column in columns])
    limits = np.array([kstwo.ppf(1 - 0.05 / len(columns), max(1, size)) for size in sizes])
    return sizes, distances, limits


def pit(model: Any, X: Any, random_state: Any = 0) -> np.ndarray:
    """Probability integral transform of each cell (N, D): uniform if the model is right.

    It is P(a value below the cell's | the other cells of its row) under the model, and of a discrete column
    in addition a random share of the probability of the cell's own value. A model with a fixed ordering is
    given the cells before it in its (first) ordering. NaN are missing cells, and values that training has
    not seen (new levels, numbers out of range).

    Args:
        model: a fitted estimator.
        X: rows of the columns of the model.
        random_state: seed of the random shares.

    Example:
        >>> import pynade
        >>> rows = np.random.default_rng(0).integers(0, 2, (100, 3))
        >>> pit(pynade.BernoulliMixture(2, random_state=0).fit(rows), rows).shape
        (100, 3)
    """
    below, up_to = cell_cdfs(model, X)
    return below + np.random.default_rng(random_state).random(below.shape) * (up_to - below)


def cell_cdfs(model: Any, X: Any) -> tuple[np.ndarray, np.ndarray]:
    """P(below the cell | others) and P(up to the cell | others) of each cell, (N, D) each."""
    schema, kind = getattr(model, "schema_", None), model._cells().kind
    x = torch.as_tensor(np.asarray(model._rows(X), dtype=np.float64))
    below, up_to = (np.full(x.shape, np.nan) for _ in range(2))
    with torch.no_grad():
        for rows, i, family, eta in _conditionals(model._ready(), x):
            seen = ~torch.isnan(x[rows, i])
            value, own, at = x[rows, i][seen], eta[seen.to(eta.device)].double().cpu(), torch.tensor([i])
            family = family.cpu().double()
            p = family.cdf(value, own, at)
            discrete = kind != "real" or family.discrete
            if schema is not None:
                discrete = schema.columns[i].n_levels or schema.columns[i].resolution
            places = np.arange(len(x))[rows][seen.numpy()]
            up_to[places, i] = p.numpy()
            mass = family.log_prob(value, own, at).exp() if discrete else 0 * p
            below[places, i] = (p - mass).clamp(min=0).numpy()
    return below, up_to


def _conditionals(model: Any, x: torch.Tensor) -> Iterator[tuple[slice, int, Any, torch.Tensor]]:
    """Some rows, a column, and the family and eta of p(its cell | the others, or those before it)."""
    D, known = x.shape[1], ~torch.isnan(x)
    ordered = isinstance(model, models.Ordered)
    if not (ordered or isinstance(model, models.Orderless | models.Marginalisable)):
        raise ValueError(f"a {type(model).__name__} has no conditional distributions of single cells")
    wide = D * (model.net.n_params if hasattr(model, "net") else 1)
    at_once = likelihood.at_most(max(1, min(AT_ONCE, (1 << 24) // wide)), model, model.device)
    for start in range(0, len(x), at_once):
        rows = slice(start, start + at_once)
        part, there = x[rows].to(model.device), known[rows].to(model.device)
        if ordered:
            one = model.member(0) if isinstance(model, models.Ensemble) else model
            etas = one.eta(part)
        for i in range(D):
            others = there & (torch.arange(D, device=there.device) != i)
            if isinstance(model, models.Marginalisable):
                family, eta = model.distribution(i, torch.where(there, part, 0), others)
                yield rows, i, family, eta
            else:
                yield rows, i, model.family, (etas if ordered else model.conditionals(part, others))[:, i]
