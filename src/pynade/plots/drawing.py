"""How columns of any kind are drawn: marginals, pairs, distributions of one column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pynade.tables.column import DAY, Column
from pynade.tables.frames import default_names

if TYPE_CHECKING:
    from pynade.tables.schema import Schema

# Okabe and Ito's colours, which most colour-blind people tell apart, without the yellow; grey, wine and olive
COLOURS: tuple[str, ...] = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
COLOURS += ("#888888", "#882255", "#999933")
BARS = 12  # of the levels of a column
POINTS = 1000  # of a scatter plot
BINS = 40  # of a histogram
COARSE = 5  # parts of a column of numbers whose association is measured
FEW = 30  # steps of a lattice up to which points are spread


Columns = Sequence[str | int] | None  # names or indexes; None leaves the choice to a function


class PlotColumn(NamedTuple):
    """A column as it is drawn: positions of its cells on an axis (NaN = missing), and what is written."""

    name: str
    positions: np.ndarray  # values; of dates days since 1970, of levels the index of a label
    labels: tuple[str, ...] = ()  # of levels
    step: float = 0.0  # of a lattice
    dates: bool = False

    @property
    def observed(self) -> np.ndarray:
        """The positions of the cells that are not missing."""
        return self.positions[~np.isnan(self.positions)]

    def spread(self, rng: np.random.Generator) -> np.ndarray:
        """The positions, moved a little at random where they are few: points must not hide each other."""
        few = self.step and np.ptp(self.observed if len(self.observed) else [0]) <= FEW * self.step
        width = 0.7 if self.labels else 0.6 * self.step if few else 0.0
        return self.positions + width * (rng.random(len(self.positions)) - 0.5)


Table = list[PlotColumn]


def axes_or_new(ax: Any, width: float, height: float) -> Any:
    """These axes, or those of a new figure of so many inches."""
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(width, height), layout="constrained")[1] if ax is None else ax


def _grid(figure: Any, lines: int, across: int, width: float, height: float) -> np.ndarray:
    """Axes (lines, across) of a figure, or of a new one; `width` and `height` are inches of one of them."""
    from matplotlib import pyplot

    figure = pyplot.figure(layout="constrained") if figure is None else figure
    if hasattr(figure, "set_size_inches"):  # (a part of a figure has none)
        figure.set_size_inches(width * across, height * lines)
    axes: np.ndarray = figure.subplots(lines, across, squeeze=False)
    return axes


def shown_tables(
    tables: Sequence[Any], schema: Schema | None = None, names: Sequence[str] | None = None
) -> list[Table]:
    """The columns of tables with the same columns, as they are drawn.

    Args:
        tables: rows that the schema encodes, or arrays of numbers.
        schema: what the columns are, if that is known.
        names: of the columns of arrays; ``x1``, ``x2``, … when left out.
    """
    columns: list[list[PlotColumn]]  # for each column, one of every table
    if schema is not None:
        codes = [schema.encode(table)[0] for table in tables]
        columns = [_of_codes(column, [c[:, i] for c in codes]) for i, column in enumerate(schema.columns)]
    else:
        arrays = [np.asarray(table, dtype=np.float64) for table in tables]
        names = default_names(arrays[0].shape[1]) if names is None else names
        columns = [_of_numbers(str(name), [a[:, i] for a in arrays]) for i, name in enumerate(names)]
    return [list(table) for table in zip(*columns, strict=True)]


def _of_numbers(name: str, tables: Sequence[np.ndarray]) -> list[PlotColumn]:
    """A column of several tables from its numbers; zeros and ones are levels."""
    binary = all(np.isin(cells[~np.isnan(cells)], (0, 1)).all() for cells in tables)
    return [PlotColumn(name, cells, ("0", "1") if binary else ()) for cells in tables]


def _of_codes(column: Column, tables: Sequence[np.ndarray]) -> list[PlotColumn]:
    """A column of several tables from its codes; of many levels, the rarer ones of the first are one."""
    if not column.n_levels:
        unit = DAY if column.kind == "date" else 1.0
        columns = []
        for codes in tables:
            positions, present = np.full(len(codes), np.nan), ~np.isnan(codes)
            positions[present] = column.decode(codes[present]).astype(np.float64) / unit
            step, dates = column.resolution / unit, column.kind == "date"
            columns.append(PlotColumn(column.name, positions, (), step, dates))
        return columns
    labels = [*map(str, column.levels), *(["(rare)"] if column.rare else [])]
    position = np.arange(len(labels), dtype=np.float64)
    if len(labels) > BARS:
        counts = np.bincount(tables[0][~np.isnan(tables[0])].astype(int), minlength=len(labels))
        frequent = np.sort(np.argsort(-counts, kind="stable")[: BARS - 1])
        position[:], position[frequent] = len(frequent), np.arange(len(frequent))
        labels = [*(labels[k] for k in frequent), f"{len(labels) - len(frequent)} others"]
    position = np.append(position, np.nan)  # the last one is that of a missing cell
    return [
        PlotColumn(column.name, position[np.where(np.isnan(c), -1, c).astype(int)], tuple(labels))
        for c in tables
    ]


def draw_marginals(tables: Mapping[str, Table], figure: Any = None) -> np.ndarray:
    """Draw each column of one table, or of real and sampled rows (by name), on axes of its own."""
    first = next(iter(tables.values()))
    across = math.ceil(math.sqrt(len(first)))
    axes = _grid(figure, math.ceil(len(first) / across), across, 2.6, 2.0)
    for i, (axis, column) in enumerate(zip(axes.flat, first, strict=False)):
        _marginal(axis, {name: table[i] for name, table in tables.items()})
        _ticks(axis.xaxis, column)
        axis.set_title(column.name, fontsize=9)
    for axis in axes.flat[len(first) :]:
        axis.set_axis_off()
    if len(tables) > 1:
        axes[0, 0].legend(fontsize=7, frameon=False)
    return axes.ravel()[: len(first)]


def draw_pairs(tables: Mapping[str, Table], figure: Any = None) -> np.ndarray:
    """Draw columns in pairs: of two tables the first below the diagonal, the second above; returns axes.

    Of one table, correlations of numbers stand above the diagonal.
    """
    (first, *others), rng = list(tables.values()), np.random.default_rng(0)
    D = len(first)
    axes = _grid(figure, D, D, 1.2 + 2.4 / D, 1.1 + 2.2 / D)
    ranges = [_range(column) for column in first]
    for (i, j), axis in np.ndenumerate(axes):
        if i == j:
            _marginal(axis, {name: table[i] for name, table in tables.items()})
        elif j < i or others:
            table = first if j < i else others[0]
            scatter(axis, table[j], table[i], COLOURS[0 if j < i else 1], rng)
            axis.set_ylim(ranges[i])
            _ticks(axis.yaxis, first[i], j == 0 or (i == 0 and j == D - 1))
            if i == 0 and j == D - 1:
                axis.yaxis.tick_right()
        else:
            text = _correlation(first[j], first[i])
            axis.text(0.5, 0.5, text, ha="center", va="center", transform=axis.transAxes)
            axis.set_axis_off()
            continue
        axis.set_xlim(ranges[j])
        _ticks(axis.xaxis, first[j], i == D - 1)
    for k, column in enumerate(first):
        axes[-1, k].set_xlabel(column.name, fontsize=9)
        axes[k, 0].set_ylabel(column.name, fontsize=9)
    if others:
        below, above, *_ = tables
        axes[0, 0].figure.suptitle(f"{below} (blue, below the diagonal) and {above} (orange)", fontsize=10)
    return axes


def draw_joint(table: Table, ax: Any = None) -> Any:
    """Draw two columns as points on axes, more of them in pairs."""
    if len(table) != 2:
        return draw_pairs({"": table})
    ax = axes_or_new(ax, 4, 4)
    scatter(ax, table[0], table[1], COLOURS[0], np.random.default_rng(0))
    for axis, column in zip((ax.xaxis, ax.yaxis), table, strict=True):
        _ticks(axis, column)
        axis.set_label_text(column.name)
    return ax


def scatter(axis: Any, x: PlotColumn, y: PlotColumn, colour: str, rng: np.random.Generator) -> None:
    """Draw the rows that have both columns, a random part of many."""
    rows = np.flatnonzero(~np.isnan(x.positions) & ~np.isnan(y.positions))
    rows = rng.choice(rows, POINTS, replace=False) if len(rows) > POINTS else rows
    size, alpha = (10.0, 0.6) if len(rows) <= 300 else (5.0, 0.4)
    axis.scatter(x.spread(rng)[rows], y.spread(rng)[rows], s=size, alpha=alpha, color=colour, linewidths=0)


def _marginal(axis: Any, tables: Mapping[str, PlotColumn]) -> None:
    """Draw shares of the cells: bars of levels, a histogram of numbers and dates; blue, then orange."""
    first = next(iter(tables.values()))
    low, high = _range(first)
    edges: np.ndarray = np.linspace(low, high, min(BINS, max(10, math.isqrt(len(first.observed)))) + 1)
    if first.step:  # whole steps, so that every bin has as many
        bin_width = first.step * max(1, math.ceil((high - low) / first.step / BINS))
        edges = np.arange(math.ceil((high - low) / bin_width - 1e-9) + 1) * bin_width + low
    width = 0.8 / len(tables)
    for k, (name, column) in enumerate(tables.items()):
        observed, style = column.observed, dict[str, Any](color=COLOURS[k], label=name)
        if first.labels:
            share = np.bincount(observed.astype(int), minlength=len(first.labels)) / max(1, len(observed))
            if k:
                style = {"facecolor": "white", "edgecolor": COLOURS[k], "lw": 1.2, "label": name}
            position = np.arange(len(share)) + (k - (len(tables) - 1) / 2) * width
            axis.bar(position, share, 0.95 * width, **style)
        else:
            share = np.histogram(observed, edges)[0] / max(1, len(observed))
            axis.stairs(share, edges, fill=k == 0, alpha=0.7 if k == 0 else 1, lw=1.4, **style)
    axis.set_xlim(low, high)
    axis.set_yticks([])


def _range(column: PlotColumn) -> tuple[float, float]:
    """The ends of an axis: all values, or without far tails the middle ones with a margin."""
    if column.labels:
        return -0.6, len(column.labels) - 0.4
    observed = column.observed if len(column.observed) else np.zeros(1)
    low, first, last, high = np.quantile(observed, (0, 0.01, 0.99, 1))
    if high - low > 4 * (last - first) > 0:
        low, high = max(low, first - (last - first)), min(high, last + (last - first))
    margin = column.step / 2 or 0.03 * (high - low) or abs(high) * 0.05 or 0.5
    return float(low - margin), float(high + margin)


def _ticks(axis: Any, column: PlotColumn, written: bool = True) -> None:
    """Ticks of the axis of a column: its levels, dates, or a few numbers."""
    size: Any = {"labelsize": 7}
    if column.labels:
        short = [label if len(label) <= 14 else f"{label[:13]}…" for label in column.labels]
        turned = axis.axis_name == "x" and sum(map(len, short)) > 16
        axis.set_ticks(range(len(short)), short if written else [""] * len(short))
        size = {"labelsize": 7 if len(short) <= 8 else 5.5} | ({"labelrotation": 90} if turned else {})
    elif column.dates:
        date_axis(axis, 4)
    else:
        from matplotlib.ticker import MaxNLocator

        largest = np.abs(column.observed).max(initial=0)
        axis.set_major_locator(MaxNLocator(4 if largest < 1e5 else 2))
    if not written:
        axis.set_tick_params(labelbottom=False, labelleft=False)
        axis.get_offset_text().set_visible(False)
    axis.set_tick_params(**size)


def date_axis(axis: Any, most: int) -> None:
    """Short dates at a few ticks."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    axis.set_major_locator(locator := AutoDateLocator(minticks=2, maxticks=most))
    axis.set_major_formatter(ConciseDateFormatter(locator))


def _correlation(x: PlotColumn, y: PlotColumn) -> str:
    rows = ~np.isnan(x.positions) & ~np.isnan(y.positions)
    a, b = x.positions[rows], y.positions[rows]
    if len(x.labels) > 2 or len(y.labels) > 2:
        return ""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return "–"
    return f"r = {round(float(np.corrcoef(a, b)[0, 1]), 2) + 0.0:.2f}"


def association(table: Table) -> np.ndarray:
    """Cramér's V of all pairs of columns (D, D), corrected for bias; numbers in equally frequent parts."""
    indicators, out = [], np.eye(len(table))
    for column in table:
        parts = column.positions
        if not column.labels and len(column.observed):
            cuts = np.unique(np.quantile(column.observed, np.arange(1, COARSE) / COARSE))
            parts = np.where(np.isnan(parts), np.nan, np.searchsorted(cuts, parts, "left"))
        indicators.append((parts[:, None] == np.arange(len(column.labels) or COARSE)).astype(np.float64))
    for i, j in combinations(range(len(table)), 2):
        counts = indicators[i].T @ indicators[j]
        out[i, j] = out[j, i] = _cramers_v(counts[counts.any(1)][:, counts.any(0)])
    return out


def _cramers_v(counts: np.ndarray) -> float:
    """Bergsma's estimate from a table of counts; 0 where a variable is constant."""
    n, (r, k) = counts.sum(), counts.shape
    if min(r, k) < 2 or n < 3:
        return 0.0
    expected = counts.sum(1, keepdims=True) * counts.sum(0) / n
    phi = max(0.0, float(((counts - expected) ** 2 / expected).sum()) / n - (r - 1) * (k - 1) / (n - 1))
    room = min(r - (r - 1) ** 2 / (n - 1), k - (k - 1) ** 2 / (n - 1)) - 1
    return min(1.0, math.sqrt(phi / room)) if room > 0 else 0.0


def column_names(model: Any) -> list[str]:
    """The names of the columns of a fitted model."""
    if hasattr(model, "schema_"):
        return list(model.schema_.names)
    return [str(name) for name in model._names() or default_names(model.n_features_in_)]


def column_indexes(names: Sequence[str], columns: Columns, most: int) -> list[int]:
    """The indexes of columns that are given by name or index; of the first ones if none is given."""
    if columns is None:
        return list(range(min(most, len(names))))
    for column in columns:
        if column not in names and not (isinstance(column, int) and 0 <= column < len(names)):
            raise ValueError(f"there is no column {column!r} among {list(names[:8])}")
    return [names.index(column) if column in names else int(column) for column in columns]
