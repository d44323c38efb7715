"""Figures, made with matplotlib's object interface: no global state, no window."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pynade.plots import IN_PAIRS, LABELLED
from pynade.plots.drawing import COLOURS, draw_marginals, draw_pairs, shown_tables
from pynade.tables.files import check_destination
from pynade.tables.frames import default_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pynade.classical import ChowLiuTree
    from pynade.tables import Schema

MOST_HISTOGRAMS = 64
NAMED_NODES = 200  # nodes of a tree whose names can be read


def tile(rows: np.ndarray, shape: Sequence[int], columns: int | None = None) -> np.ndarray:
    """Return one picture of many: rows (N, D) as images of `shape`, in a grid with a grey gap."""
    images = [picture(row, shape) for row in np.asarray(rows, dtype=float)]
    n, (height, width, *colours) = len(images), images[0].shape
    columns = columns or math.ceil(math.sqrt(n))
    grid = np.full((math.ceil(n / columns) * (height + 1) + 1, columns * (width + 1) + 1, *colours), 0.5)
    for k, image in enumerate(images):
        top, left = (k // columns) * (height + 1) + 1, (k % columns) * (width + 1) + 1
        grid[top : top + height, left : left + width] = image
    return grid


def picture(row: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return a row as an image: (height, width, 3) of three channels, else (height, width), their mean."""
    image = np.reshape(row, (-1, *shape[-2:]))
    return image.transpose(1, 2, 0) if len(image) == 3 else image.mean(0)


def subplots(lines: int, columns: int, width: float, height: float) -> tuple[Figure, Any]:
    """Return a figure and its axes (lines, columns); `width` and `height` are inches of one of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * lines), layout="constrained")
    return figure, figure.subplots(lines, columns, squeeze=False)


def _show(axis: Any, image: np.ndarray) -> None:
    axis.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axis.set_axis_off()


def image_panels(panels: dict[str, np.ndarray], shape: Sequence[int]) -> Figure:
    """Draw several sets of images side by side, white on black, a title over each."""
    figure, axes = subplots(1, len(panels), 4.2, 4.5)
    for axis, (title, rows) in zip(axes[0], panels.items(), strict=True):
        _show(axis, tile(rows, shape))
        axis.set_title(title, fontsize=13)
    return figure


def table_figure(rows: Any, names: Sequence[str] | None = None, schema: Schema | None = None) -> Figure:
    """Draw the rows of a table: up to 6 columns in pairs, more of them one by one.

    Of an array of zeros and ones, the share of ones of each column and the correlations are drawn.

    Args:
        rows: an array, or a frame of the columns of the schema.
        names: of the columns of an array; ``x1`` … ``xD`` when left out.
        schema: what the columns are, if that is known.
    """
    from matplotlib.figure import Figure

    if schema is None and np.isin(rows[~np.isnan(rows.astype(float))], (0, 1)).all():
        return _binary_table(rows.astype(np.float64), names or default_names(rows.shape[1]))
    figure, table = Figure(layout="constrained"), shown_tables([rows], schema, names)[0]
    if len(table) <= IN_PAIRS:
        draw_pairs({"": table}, figure)
    else:
        draw_marginals({"": table[:MOST_HISTOGRAMS]}, figure)
        first = f", the first {MOST_HISTOGRAMS} of {len(table)} columns" * (len(table) > MOST_HISTOGRAMS)
        figure.suptitle(f"{len(rows):,} rows{first}", fontsize=11)
    return figure


def _binary_table(rows: np.ndarray, names: Sequence[str]) -> Figure:
    D, gaps = rows.shape[1], np.isnan(rows)
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):  # of columns that are constant
        correlations = np.atleast_2d(np.corrcoef(rows[~gaps.any(1)], rowvar=False))
    side = min(9.0, 4.0 + 0.12 * D)
    figure, ((left, right),) = subplots(1, 2, side, side * 0.85)
    share = np.nansum(rows, 0) / np.maximum((~gaps).sum(0), 1)
    left.barh(range(D), share, color=COLOURS[0], height=0.8 if D <= LABELLED else 1.0)
    left.set(xlim=(0, 1), ylim=(D - 0.5, -0.5), xlabel="share of ones")
    left.set_title(f"{len(rows):,} rows", fontsize=11)
    left.grid(axis="x", alpha=0.3)
    image = right.imshow(correlations, cmap="PuOr", vmin=-1, vmax=1, interpolation="nearest")
    right.set_facecolor("0.85")  # of columns that are constant
    right.set_title("correlation", fontsize=11)
    figure.colorbar(image, ax=right, shrink=0.8)
    if D > LABELLED:
        left.set_ylabel("column (counted from 0)")
        right.set_xlabel("column (counted from 0)")
        return figure
    size = 9 if D <= 20 else 7
    left.set_yticks(range(D), names, fontsize=size)
    right.set_xticks(range(D), names, fontsize=size, rotation=90)
    right.set_yticks([])
    return figure


def save_figure(figure: Figure, path: Path | str, metadata: dict[str, str] | None = None) -> None:
    """Write a figure; the kind of file is taken from the ending (.png, .pdf, .svg)."""
    path = Path(path)
    endings = sorted(figure.canvas.get_supported_filetypes())
    if path.suffix[1:].lower() not in endings:
        raise ValueError(
            f"cannot write a plot to {path.name}: its ending must be one of {', '.join(endings)}"
        )
    check_destination(path)
    figure.savefig(path, dpi=150, metadata=metadata)


def completion_figure(
    images: np.ndarray, holes: np.ndarray, draws: np.ndarray, log_probs: Sequence[float], shape: Sequence[int]
) -> Figure:
    """Draw a line for each image: itself, with its hole (and log p of the rest), completed by each draw."""
    figure, axes = subplots(len(images), 2 + len(draws), 1.5, 1.75)
    columns = [images, np.where(holes, 0.5, images), *draws]
    for (line, column), axis in np.ndenumerate(axes):
        _show(axis, picture(columns[column][line], shape))
    for n, axis in enumerate(axes[0]):
        axis.set_title(f"completion {n - 1}" if n else "image", fontsize=10)
    for axis, log_prob in zip(axes[:, 1], log_probs, strict=True):
        axis.set_title(f"log p = {log_prob:.1f}", fontsize=10)
    return figure


def tree_figure(tree: ChowLiuTree, names: Sequence[str] | None = None) -> Figure:
    """Draw a tree or forest in circles: roots inside, each depth one circle further out.

    An edge is orange where the child tends to equal its parent, p(1 | 1) > p(1 | 0), blue where it tends to
    differ, and the thicker the larger the difference.

    Args:
        tree: The tree or forest.
        names: Names of the variables; their numbers when left out. Shown for up to 200 variables.
    """
    D = tree.n_variables
    if names is not None and len(names) != D:
        raise ValueError(f"{len(names)} names were given for {D} variables")
    places = circular_layout(tree)
    p = tree.logits.detach().double().sigmoid().cpu().numpy()
    size = 5 + 7 * min(1.0, D / 200)
    figure, ((axis,),) = subplots(1, 1, size, size)
    for parent, child in tree.edges():
        rise = p[child, 1] - p[child, 0]
        colour, width = COLOURS[1 if rise > 0 else 0], 0.5 + 2.5 * abs(rise)
        axis.plot(*places[[parent, child]].T, color=colour, linewidth=width, zorder=1)
    axis.scatter(*places.T, s=12 if D > 50 else 30, color="black", zorder=2)
    for place, name in zip(places, range(D) if names is None else names, strict=True):
        if D <= NAMED_NODES:
            axis.annotate(str(name), place, textcoords="offset points", xytext=(3, 3), fontsize=7)
    axis.set_aspect("equal")
    axis.set_axis_off()
    return figure


def circular_layout(tree: ChowLiuTree) -> np.ndarray:
    """Return places (D, 2): leaves evenly on the circle, depth first; others at the mean of children."""
    children: dict[int, list[int]] = {d: [] for d in range(-1, tree.n_variables)}
    for d, parent in enumerate(tree.parent.tolist()):
        children[parent].append(d)
    levels = [level.tolist() for level in tree.levels()]
    leaves, stack = [], [-1]
    while stack:  # depth first
        stack += reversed(children[d := stack.pop()])
        leaves += [] if children[d] else [d]
    angle = {d: 2 * math.pi * n / len(leaves) for n, d in enumerate(leaves)}
    places = np.zeros((tree.n_variables, 2))
    first = 0 if len(levels[0]) == 1 else 1  # a single root is the centre
    for depth, d in [(depth, d) for depth, level in enumerate(levels) for d in level][::-1]:
        if children[d]:
            angle[d] = sum(angle[child] for child in children[d]) / len(children[d])
        places[d] = np.multiply(depth + first, (math.cos(angle[d]), math.sin(angle[d])))
    return places
