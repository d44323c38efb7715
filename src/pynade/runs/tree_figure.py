"""A figure of a Chow–Liu tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from pynade.classical import ChowLiuTree
from pynade.estimators import ChowLiu
from pynade.estimators.io import load_with_facts
from pynade.runs.figures import COLOURS, save_figure, subplots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELLED = 200  # variables whose names can be read


def tree_figure(tree: ChowLiuTree, names: Sequence[str] | None = None) -> Figure:
    """Draw a tree or forest in circles: roots inside, each depth one circle further out.

    An edge is orange where the child tends to equal its parent, p(1 | 1) > p(1 | 0), blue where it tends to
    differ, and the thicker the larger the difference.

    Args:
        tree: The tree or forest.
        names: Names of the variables; their numbers when left out. Shown for up to 200 variables.

    Example:
        >>> from pynade.classical import ChowLiuTree
        >>> figure = tree_figure(ChowLiuTree(3, parent=[-1, 0, 0]), names=["rain", "wet", "cloudy"])
        >>> sorted(text.get_text() for text in figure.axes[0].texts)
        ['cloudy', 'rain', 'wet']
    """
    D = tree.n_variables
    if names is not None and len(names) != D:
        raise ValueError(f"{len(names)} names were given for {D} variables")
    place = circular_layout(tree)
    p = torch.sigmoid(tree.logits.detach().double()).cpu().numpy()
    size = 5 + 7 * min(1.0, D / 200)
    figure, ((axis,),) = subplots(1, 1, size, size)
    for parent, child in tree.edges():
        rise = p[child, 1] - p[child, 0]
        line = np.stack([place[parent], place[child]])
        colour, width = COLOURS[1 if rise > 0 else 0], 0.5 + 2.5 * abs(rise)
        axis.plot(line[:, 0], line[:, 1], color=colour, linewidth=width, zorder=1)
    axis.scatter(place[:, 0], place[:, 1], s=12 if D > 50 else 30, color="black", zorder=2)
    if D <= LABELLED:
        for d in range(D):
            text = str(d) if names is None else str(names[d])
            axis.annotate(text, place[d], textcoords="offset points", xytext=(3, 3), fontsize=7)
    axis.set_aspect("equal")
    axis.set_axis_off()
    return figure


def plot_tree(path: Path, run: Path) -> None:
    """Draw the tree of a model; of a mixture of trees, the one of largest weight.

    Args:
        path: The file to write (.png, .pdf or .svg).
        run: A run folder or a model file of a ChowLiu estimator.
    """
    model, facts = load_with_facts(run)
    tree = model.tree_ if isinstance(model, ChowLiu) else model
    if not isinstance(tree, ChowLiuTree):
        raise ValueError(f"{run} is a {type(model).__name__}; only a ChowLiu (--model chow-liu) has a tree")
    save_figure(tree_figure(tree, facts.get("columns")), path)


def circular_layout(tree: ChowLiuTree) -> np.ndarray:
    """Return places (D, 2): leaves evenly on the circle, depth first; others at the mean of their children.

    Example:
        >>> from pynade.classical import ChowLiuTree
        >>> circular_layout(ChowLiuTree(3, parent=[-1, 0, 0])).round(6).tolist()
        [[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]
    """
    children: dict[int, list[int]] = {d: [] for d in range(-1, tree.n_variables)}
    for d, parent in enumerate(tree.parent.tolist()):
        children[parent].append(d)
    levels = [level.tolist() for level in tree.levels()]
    leaves, stack = [], [-1]
    while stack:  # depth first
        d = stack.pop()
        stack += reversed(children[d])
        if not children[d]:
            leaves.append(d)
    angle = {d: 2 * math.pi * n / len(leaves) for n, d in enumerate(leaves)}
    place = np.zeros((tree.n_variables, 2))
    first = 0 if len(levels[0]) == 1 else 1  # a single root is the centre
    for depth in reversed(range(len(levels))):
        for d in levels[depth]:
            if children[d]:
                angle[d] = sum(angle[child] for child in children[d]) / len(children[d])
            place[d] = np.multiply(depth + first, (math.cos(angle[d]), math.sin(angle[d])))
    return place
