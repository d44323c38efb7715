"""Whether the distributions of single cells are right: the probability integral transform."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pynade._lazy import LazyModule
from pynade.plots.drawing import COLOURS, Columns, axes_or_new, column_indexes, column_names
from pynade.tables.frames import native_frame

if TYPE_CHECKING:
    import torch

    from pynade import likelihood, models
else:
    torch, likelihood, models = map(LazyModule, ("torch", "pynade.likelihood", "pynade.models"))

NAMED_LINES = 6  # columns that are named in a calibration plot
BATCH = 4096  # rows of a pass of a net


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
    all_names = column_names(model)
    kept = column_indexes(all_names, columns, len(all_names))
    values, names = pit(model, X, random_state)[:, kept], [all_names[i] for i in kept]
    sizes, distances, limits = calibration_limits(values)
    outside, order = distances > limits, np.argsort(-distances / limits)
    ax = axes_or_new(ax, 6.4, 4.2)
    band = float(np.median(limits))
    ax.axhspan(-band, band, color="0.88", lw=0, label="what chance allows (95 %)")
    ax.axhline(0, color="0.5", lw=0.8)
    coloured = [k for k in order if outside[k]][:NAMED_LINES]
    if len(names) <= NAMED_LINES:
        coloured = list(range(len(names)))
    grey = [k for k in range(len(names)) if k not in coloured]
    for k in [*grey, *coloured]:
        u = np.sort(values[:, k])[: sizes[k]]
        p, share = np.r_[0, np.repeat(u, 2), 1], np.repeat(np.arange(len(u) + 1) / max(1, len(u)), 2)
        style: Any = {"color": "0.55", "lw": 0.7}
        if k in coloured:
            style = {"color": COLOURS[coloured.index(k)], "lw": 1.6, "label": names[k]}
        elif k == grey[0]:
            style["label"] = f"{len(grey)} {'other ' * bool(coloured)}column{'s' * (len(grey) > 1)}"
        ax.plot(p, share - p, **style)
    ax.set(xlim=(0, 1), xlabel="p: probability that the model gives to values up to the cell's")
    reach = 1.25 * max(band, *(float(np.abs(line.get_ydata()).max()) for line in ax.lines))
    ax.set_ylim(-reach, reach)
    ax.set_ylabel("share of cells with at most p, less p")
    title = f"Calibration on {len(values):,} rows: {len(names) - outside.sum()} of {len(names)} columns"
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
    below, up_to = np.full((2, *x.shape), np.nan)
    with torch.no_grad():
        for rows, i, family, eta in _conditionals(model._get_model(), x):
            observed = ~torch.isnan(x[rows, i])
            cells, at = x[rows, i][observed], torch.tensor([i])
            eta, family = eta[observed.to(eta.device)].double().cpu(), family.cpu().double()
            p = family.cdf(cells, eta, at)
            discrete = kind != "real" or family.discrete
            if schema is not None:
                discrete = schema.columns[i].n_levels or schema.columns[i].resolution
            mass = family.log_prob(cells, eta, at).exp() if discrete else 0 * p
            places = np.arange(len(x))[rows][observed.numpy()]
            up_to[places, i] = p.numpy()
            below[places, i] = (p - mass).clamp(min=0).numpy()
    return below, up_to


def cell_surprise(model: Any, X: Any) -> np.ndarray:
    """-log of the probability of a value at least as odd as each cell given the others (N, D), or NaN."""
    if hasattr(model, "surprise"):
        frame = native_frame(model.surprise(X, measure="p_value"), column_names(model))[0]
        surprise: np.ndarray = frame.to_numpy()
        return surprise
    below, up_to = cell_cdfs(model, X)
    return -np.log(np.clip(2 * np.minimum(up_to, 1 - below), 1e-300, 1))


def _conditionals(model: Any, x: torch.Tensor) -> Iterator[tuple[slice, int, Any, torch.Tensor]]:
    """Some rows, a column, and the family and eta of p(its cell | the others, or those before it)."""
    D = x.shape[1]
    ordered, marginalisable = isinstance(model, models.Ordered), isinstance(model, models.Marginalisable)
    if not (ordered or marginalisable or isinstance(model, models.Orderless)):
        raise ValueError(f"a {type(model).__name__} has no conditional distributions of single cells")
    floats = D * (model.net.n_params if hasattr(model, "net") else 1)
    batch_size = likelihood.limit_batch_rows(max(1, min(BATCH, (1 << 24) // floats)), model, model.device)
    for start in range(0, len(x), batch_size):
        rows = slice(start, start + batch_size)
        batch = x[rows].to(model.device)
        observed, columns = ~torch.isnan(batch), torch.arange(D, device=model.device)
        if ordered:
            member = model.member(0) if isinstance(model, models.Ensemble) else model
            etas = member.eta(batch)
        for i in range(D):
            others = observed & (columns != i)
            if marginalisable:
                yield rows, i, *model.distribution(i, torch.where(observed, batch, 0), others)
            else:
                yield rows, i, model.family, (etas if ordered else model.conditionals(batch, others))[:, i]
