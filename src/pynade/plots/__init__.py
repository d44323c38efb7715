"""Figures about fitted models: `pairs`, `marginals`, `dependence`, `calibration`, `surprise`, `training`.

Each returns Matplotlib axes. Colours are told apart by colour-blind people: real rows are blue and filled,
sampled rows are orange and outlined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from pynade.plots import drawing
from pynade.plots.cells import calibration, cell_surprise, pit
from pynade.plots.drawing import BARS, COLOURS, Columns, axes_or_new, column_indexes, column_names
from pynade.tables.frames import is_missing, native_frame
from pynade.training.history import read_lines

MARGINALS = 64  # columns whose distributions are drawn, unless they are named
IN_PAIRS = 6  # columns that are drawn in pairs, unless they are named
LABELLED = 40  # columns whose names fit on an axis
WRITTEN = 12  # columns up to which associations are written as numbers
RANGES = 80  # of a column on a lattice, at most
CELLS = 12  # columns of a picture of surprising cells, unless they are named

__all__ = ["calibration", "conditional", "dependence", "marginals", "pairs", "pit", "surprise", "training"]


def pairs(
    model: Any, X: Any, columns: Columns = None, n: int = 1000, random_state: Any = 0, figure: Any = None
) -> np.ndarray:
    """Draw columns in pairs: real rows below the diagonal, rows sampled from the model above it.

    On the diagonal are the marginals of both. Levels, and numbers with few values, are spread a little, so
    that points do not hide each other. Far tails are not shown. Returns the axes (D, D).

    Args:
        model: a fitted estimator.
        X: real rows, such as held-out ones, of the columns of the model.
        columns: which, by name or index; the first 6 when left out.
        n: how many rows are sampled.
        random_state: seed of the samples.
        figure: a Matplotlib figure to draw in, which gets the size that is needed; a new one when left out.

    Example:
        >>> import pynade
        >>> table = pynade.datasets.penguins()
        >>> model = pynade.TabularNADE(epochs=5, random_state=0).fit(table)
        >>> pynade.plots.pairs(model, table, ["species", "body_mass_g", "sex"]).shape
        (3, 3)
    """
    return drawing.draw_pairs(_real_and_sampled(model, X, columns, n, random_state, IN_PAIRS), figure)


def marginals(
    model: Any, X: Any, columns: Columns = None, n: int = 1000, random_state: Any = 0, figure: Any = None
) -> np.ndarray:
    """Draw the distribution of each column, of real rows and of rows sampled from the model; returns axes.

    Args:
        model, X, n, random_state, figure: as of `pairs`.
        columns: which, by name or index; the first 64 when left out.

    Example:
        >>> import pynade
        >>> rows = np.random.default_rng(0).normal(size=(50, 3))
        >>> len(pynade.plots.marginals(pynade.Gaussian().fit(rows), rows))
        3
    """
    return drawing.draw_marginals(_real_and_sampled(model, X, columns, n, random_state, MARGINALS), figure)


def dependence(
    model: Any, X: Any, columns: Columns = None, n: int = 1000, random_state: Any = 0, ax: Any = None
) -> Any:
    """Draw how strongly columns depend on each other: below the diagonal in real rows, above it in samples.

    A model that has learned the dependence gives a symmetric picture. The measure is Cramér's V, corrected
    for its bias, of levels and of numbers cut into five equally frequent parts: 0 independent, 1 determined.

    Args:
        model, X, n, random_state: as of `pairs`.
        columns: which, by name or index; the first 40 when left out.
        ax: Matplotlib axes; new ones when left out.

    Example:
        >>> import pynade
        >>> x = np.random.default_rng(0).normal(size=(300, 1))
        >>> rows = np.hstack([x, x + 0.1])
        >>> pynade.plots.dependence(pynade.Gaussian(covariance_floor=0.01).fit(rows), rows).get_title()
        'Association: real rows below the diagonal, sampled above'
    """
    real, sampled = _real_and_sampled(model, X, columns, n, random_state, LABELLED).values()
    names, D = [column.name for column in real], len(real)
    strength = np.where(np.tri(D, dtype=bool), drawing.association(real), drawing.association(sampled))
    np.fill_diagonal(strength, np.nan)
    ax = axes_or_new(ax, 3.2 + 0.28 * D, 2.4 + 0.28 * D)
    image = ax.imshow(strength, cmap="cividis", vmin=0, vmax=1)
    ax.set_facecolor("0.85")
    ax.set_xticks(range(D), names, rotation=90, fontsize=8)
    ax.set_yticks(range(D), names, fontsize=8)
    for (i, j), value in np.ndenumerate(strength) if D <= WRITTEN else ():
        text, colour = "" if i == j else f"{value:.2f}", "white" if value < 0.5 else "black"
        ax.text(j, i, text, ha="center", va="center", color=colour, size=7)
    ax.figure.colorbar(image, ax=ax, shrink=0.8, label="Cramér's V")
    ax.set_title("Association: real rows below the diagonal, sampled above", fontsize="medium")
    return ax


def surprise(
    model: Any,
    X: Any,
    rows: int = 15,
    columns: Columns = None,
    index: Sequence[Any] | None = None,
    ax: Any = None,
) -> Any:
    """Draw the most surprising rows, each cell shaded by how unlikely it is given the rest of its row.

    The shade is the p-value of a cell: the probability of a value at least as odd. Rows are sorted by their
    oddest cell. Values are written into the cells; a cell without one is missing.

    Args:
        model: a fitted estimator.
        X: rows of the columns of the model.
        rows: how many are drawn.
        columns: which, by name or index; when left out, up to 12 of them, those of the oddest cells.
        index: names of all rows; their numbers, from 0, when left out.
        ax: Matplotlib axes; new ones when left out.

    Example:
        >>> import pynade
        >>> x = np.linspace(-2, 2, 100)[:, None]
        >>> table = np.hstack([x, x + 0.1 * np.cos(9 * x)])
        >>> model = pynade.Gaussian().fit(table)
        >>> table[17, 1] = 3
        >>> ax = pynade.plots.surprise(model, table, rows=3)
        >>> ax.get_yticklabels()[0].get_text()
        'row 17'
    """
    from matplotlib.colors import LogNorm

    names, p = column_names(model), np.exp(-cell_surprise(model, X))
    p_or_one = np.nan_to_num(p, nan=1.0)
    first = np.argsort(p_or_one.min(1), kind="stable")[:rows]
    order = np.argsort(p_or_one[first].min(0), kind="stable")[:CELLS]
    kept = sorted(order.tolist()) if columns is None else column_indexes(names, columns, len(names))
    frame = native_frame(X, getattr(getattr(model, "schema_", None), "order", None) or names)[0]
    texts = [[_text(frame[int(row), names[i]]) for i in kept] for row in first]
    heads = [names[i] for i in kept]
    widths = [max(6, *map(len, column)) for column in zip(heads, *texts, strict=True)]
    ax = axes_or_new(ax, 2.2 + 0.085 * sum(widths), 1.2 + 0.24 * len(first))
    edges = np.r_[0, np.cumsum(np.array(widths) + 1)]
    shade = np.clip(p[first][:, kept], 1e-6, 1)
    ax.set_facecolor("0.93")
    tops, centres = np.arange(len(first) + 1), (edges[1:] + edges[:-1]) / 2
    image = ax.pcolormesh(
        edges, tops, shade, cmap="YlOrBr_r", norm=LogNorm(1e-6, 1), edgecolor="white", lw=0.5
    )
    for (row, k), value in np.ndenumerate(shade):
        colour = "white" if value < 1e-4 else "black"
        ax.text(centres[k], row + 0.5, texts[row][k], ha="center", va="center", fontsize=7, color=colour)
    ax.set_xticks(centres, heads, fontsize=8, rotation=30, ha="left")
    row_names = first if index is None else [index[row] for row in first]
    ax.set_yticks(tops[:-1] + 0.5, [f"row {name}" for name in row_names], fontsize=8)
    ax.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    ax.invert_yaxis()
    bar = ax.figure.colorbar(image, ax=ax, ticks=[1, 1e-2, 1e-4, 1e-6], pad=0.02)
    bar.ax.set_yticklabels(["1", "1 in 100", "1 in 10,000", "1 in a million\nor less"], fontsize=7)
    bar.set_label("probability of a value at least as odd", fontsize=8)
    bar.ax.minorticks_off()
    return ax


def training(source: Any, ax: Any = None) -> Any:
    """Draw the training and validation log-likelihood of each epoch, and the epoch whose weights were kept.

    Where the training curve rises and the validation curve falls, the model overfits.

    Args:
        source: a fitted estimator, its `history_`, a run folder, or the lines of its metrics.jsonl.
        ax: Matplotlib axes; new ones when left out.

    Example:
        >>> import pynade
        >>> rows = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = pynade.RNADE(hidden=4, epochs=3, random_state=0).fit(rows)
        >>> pynade.plots.training(model).get_ylabel()
        'log-likelihood (nats per row)'
    """
    from matplotlib.ticker import MaxNLocator

    if isinstance(source, str | Path):
        source = read_lines(Path(source))
    source = getattr(source, "history_", source)
    epochs: Sequence[dict[str, Any]] = getattr(source, "epochs", source)
    ax = axes_or_new(ax, 6.4, 4.2)
    kind = "estimate" if any(line.get("valid_mc_stderr") for line in epochs) else "exact"
    for name, label, colour in (
        ("train", "train (mean during the epoch)", COLOURS[0]),
        ("train_scored", "train (some rows, scored as validation)", COLOURS[2]),
        ("valid", f"validation ({kind})", COLOURS[1]),
    ):
        lines = [line for line in epochs if line.get(name) is not None]
        numbers, values = np.array([(line["epoch"], line[name]) for line in lines]).reshape(-1, 2).T
        if lines:
            ax.plot(numbers, values, color=colour, label=label, marker="o" if len(lines) == 1 else None)
        if name == "valid":
            error = np.array([line.get("valid_stderr") or 0.0 for line in lines])
            ax.fill_between(numbers, values - error, values + error, alpha=0.2, color=colour, linewidth=0)
    if best := [line["epoch"] for line in epochs if line["best"]]:
        ax.axvline(best[-1], color="0.6", linestyle=":", label=f"best epoch ({best[-1]})")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set(xlabel="epoch", ylabel="log-likelihood (nats per row)")
    ax.grid(alpha=0.3)
    ax.legend(fontsize=9)
    return ax


def conditional(answer: Any, ax: Any = None) -> Any:
    """Draw the distribution of one column: bars of levels, steps of numbers on a lattice, else a curve.

    Of numbers also the median and the 90 % interval. A step of the lattice, or a range of several of them, is
    drawn with its probability, so that values that many rows have are seen wherever they lie.

    Args:
        answer: what `model.conditional(column, given=...)` gives, which also has it as its method `plot`.
        ax: Matplotlib axes; new ones when left out.

    Example:
        >>> import pynade
        >>> x = np.random.default_rng(0).normal(size=(100, 1))
        >>> model = pynade.Gaussian().fit(np.hstack([x, x + np.cos(x)]))
        >>> pynade.plots.conditional(model.conditional(1, given={0: 0.5})).get_ylabel()
        'density'
    """
    column, ax = getattr(answer, "column", None), axes_or_new(ax, 5, 3)
    name, inner = getattr(answer, "name", "value"), getattr(answer, "inner", answer)
    step, dates = getattr(column, "resolution", 0.0), getattr(column, "kind", "") == "date"
    first, last = inner.quantile([0.002, 0.998])
    if column is not None and column.n_levels:
        p = answer.probabilities()
        likeliest = sorted(p, key=lambda level: -p[level])[:BARS]
        levels = [level for level in p if level in likeliest]
        ax.barh([str(level)[:30] for level in levels], [p[level] for level in levels], color=COLOURS[0])
        ax.invert_yaxis()
        more = f" ({len(likeliest)} of {len(p)} levels)" if len(p) > len(likeliest) else ""
        ax.set(xlabel="probability", ylabel=f"{name}{more}")
    else:
        label = "density"
        if step or (column is None and inner.family.discrete):
            # of a lattice: ranges of the same number of steps, with all values between
            wide = math.ceil((last - first + 1) / RANGES)
            edges = np.arange(first - 1, last + wide, wide)
            ends = edges + 0.5
            if column is not None:
                ends = answer._values(edges) + (np.timedelta64(int(step) // 2, "us") if dates else step / 2)
            ax.stairs(np.maximum(np.diff(inner.cdf(edges)), 0), ends, fill=True, color=COLOURS[5])
            label = "probability" if wide == 1 else f"probability of {wide} values"
        else:
            codes = np.linspace(first, last, 200)
            values = codes if column is None else answer._values(codes)
            height = np.exp(answer.log_prob(values))
            ax.fill_between(values, height, alpha=0.25, color=COLOURS[0], lw=0)
            ax.plot(values, height, color=COLOURS[0])
            ax.set_ylim(bottom=0)
        low, middle, high = answer.quantile([0.05, 0.5, 0.95])
        ax.axvspan(low, high, color=COLOURS[4], alpha=0.15, lw=0, zorder=0, label="90 % interval")
        ax.axvline(middle, color="0.15", lw=1, label="median")
        ax.legend(frameon=False, fontsize="small")
        ax.set(xlabel=name, ylabel=label)
        if dates:
            drawing.date_axis(ax.xaxis, 6)
    if column is not None:
        names = answer.model.schema_.names
        given = ", ".join(f"{names[j]} = {value}" for j, value in answer.given.items())
        ax.set_title(f"{name}{' given ' if given else ''}{given}"[:90], fontsize="medium", wrap=True)
    return ax


def _real_and_sampled(
    model: Any, X: Any, columns: Columns, n: int, random_state: Any, most: int
) -> dict[str, drawing.Table]:
    """Real and sampled rows, by these names, of some columns as they are drawn."""
    schema, names = getattr(model, "schema_", None), column_names(model)
    kept, tables = column_indexes(names, columns, most), [X, model.sample(n, random_state)]
    if schema is None:
        tables = [model._rows(table) for table in tables]
    real, sampled = drawing.shown_tables(tables, schema, names)
    return {"real rows": [real[i] for i in kept], "sampled rows": [sampled[i] for i in kept]}


def _text(value: Any) -> str:
    """The value of a cell, shortened."""
    if is_missing(value):
        return ""
    if isinstance(value, date):
        return str(value).removesuffix(" 00:00:00")
    text = f"{value:.5g}" if isinstance(value, float | np.floating) else str(value)
    return text if len(text) <= 16 else f"{text[:15]}…"
