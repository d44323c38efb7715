"""Pictures. Figures are made with matplotlib's object interface: no global state, no window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which most colour-blind people tell apart, without the yellow; grey, wine and olive
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#888888", "#882255", "#999933"),
)
MARKERS = "osD^vP*Xp<>h"


def tile(rows: np.ndarray, shape: Sequence[int], columns: int | None = None, gap: float = 0.5) -> np.ndarray:
    """One picture from many: rows (N, D) as images of `shape`, in a grid with a grey gap."""
    images = [picture(row, shape) for row in np.asarray(rows, dtype=float)]
    n, (height, width, *colours) = len(images), images[0].shape
    columns = columns or math.ceil(math.sqrt(n))
    lines = math.ceil(n / columns)
    grid = np.full((lines * (height + 1) + 1, columns * (width + 1) + 1, *colours), gap)
    for k, image in enumerate(images):
        top, left = (k // columns) * (height + 1) + 1, (k % columns) * (width + 1) + 1
        grid[top : top + height, left : left + width] = image
    return grid


def picture(row: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """A row as an image: (height, width), or (height, width, 3) of colours; other channels are averaged.

    Example:
        >>> picture(np.zeros(12), (3, 2, 2)).shape
        (2, 2, 3)
    """
    image = np.reshape(row, shape)
    if image.ndim == 2:
        return image
    return image.transpose(1, 2, 0) if image.shape[0] == 3 else image.mean(0)


def image_panels(panels: dict[str, np.ndarray], shape: Sequence[int], columns: int | None = None) -> Figure:
    """Several sets of images side by side, white on black, a title over each."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(panels), 4.5), layout="constrained")
    axes: Any = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, rows) in zip(axes, panels.items(), strict=True):
        axis.imshow(tile(rows, shape, columns), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axis.set_title(title, fontsize=13)
        axis.set_axis_off()
    return figure


def table_panels(panels: dict[str, np.ndarray]) -> Figure:
    """Several tables of values in [0, 1] side by side: a line per row, a column per variable."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(panels), 5), layout="constrained")
    axes: Any = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, rows) in zip(axes, panels.items(), strict=True):
        axis.imshow(rows, cmap="gray_r", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axis.set_title(title, fontsize=13)
        axis.set_xlabel("variable")
        axis.set_ylabel("row")
    return figure


def save_figure(figure: Figure, path: Path | str, metadata: dict[str, str] | None = None) -> None:
    """Write a figure; the kind is taken from the ending (.png, .pdf, .svg)."""
    path = Path(path)
    known = figure.canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise ValueError(
            f"cannot write a plot to {path.name}: its ending must be one of {', '.join(sorted(known))}"
        )
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path.name}: the folder {path.parent} does not exist")
    figure.savefig(path, dpi=150, metadata=metadata)


def completion_figure(completions: Sequence[Any], shape: Sequence[int]) -> Figure:
    """One line per image: the image, the image with its hole (and log p of the rest), the completions."""
    from matplotlib.figure import Figure

    columns = 2 + len(completions[0].draws)
    figure = Figure(figsize=(1.5 * columns, 1.75 * len(completions)), layout="constrained")
    axes: Any = figure.subplots(len(completions), columns, squeeze=False)
    for line, c in zip(axes, completions, strict=True):
        hollow = np.where(c.hole, 0.5, c.image)
        for axis, row in zip(line, [c.image, hollow, *c.draws], strict=True):
            axis.imshow(picture(row, shape), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set_axis_off()
        line[1].set_title(f"log p = {c.log_prob:.1f}", fontsize=10)
    axes[0][0].set_title("image", fontsize=10)
    for n, axis in enumerate(axes[0][2:], start=1):
        axis.set_title(f"completion {n}", fontsize=10)
    return figure


def training_figure(epochs: Sequence[dict[str, Any]]) -> Figure:
    """Training and validation NLL against the epoch, with the epoch whose weights were kept.

    Where the two part, the model has begun to learn its training rows by heart.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis: Any = figure.subplots()
    number = [line["epoch"] for line in epochs]
    axis.plot(number, [line["train_nll"] for line in epochs], label="train (mean loss during the epoch)")
    like = [(line["epoch"], line["train_scored_nll"]) for line in epochs if "train_scored_nll" in line]
    if like:
        axis.plot(*zip(*like, strict=True), color="C2", label="train (some rows, scored as validation)")
    scored = [line for line in epochs if line["valid_nll"] is not None]
    if scored:
        kind = "estimate" if any(line["valid_mc_stderr"] for line in scored) else "exact"
        values = np.array([line["valid_nll"] for line in scored])
        error = np.array([line["valid_stderr"] or 0.0 for line in scored])
        where = [line["epoch"] for line in scored]
        axis.plot(where, values, color="C1", label=f"validation ({kind})")
        axis.fill_between(where, values - error, values + error, alpha=0.2, color="C1", linewidth=0)
    best = [line["epoch"] for line in epochs if line["best"]]
    if best:
        axis.axvline(best[-1], color="0.6", linestyle=":", label=f"best epoch ({best[-1]})")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("epoch")
    axis.set_ylabel("negative log-likelihood (nats per row)")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=9)
    return figure


def growth_figure(growth: dict[str, Any]) -> Figure:
    """Time against each size, log-log, with the exponent of the fitted power law."""
    from matplotlib.figure import Figure

    labels = {"D": "variables D", "H": "hidden units H", "B": "rows B", "ones": "share of ones"}
    figure = Figure(figsize=(3.6 * len(growth), 3.4), layout="constrained")
    axes: Any = figure.subplots(1, len(growth), squeeze=False, sharey=True)[0]
    for axis, (name, grown) in zip(axes, growth.items(), strict=True):
        for task, seconds in grown["seconds"].items():
            label = f"{task}, exponent {grown['exponent'][task]:.2f}"
            axis.loglog(grown["values"], [1e3 * s for s in seconds], marker="o", label=label)
        axis.set_xlabel(labels.get(name, name))
        axis.grid(which="both", alpha=0.3)
        axis.legend(fontsize=8)
    axes[0].set_ylabel("milliseconds")
    return figure
