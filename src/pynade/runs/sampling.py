"""Drawing from a trained run: rows, their column names, and a picture of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pynade import classical
from pynade.estimators import ESTIMATORS, RBM, DensityEstimator, ImageDensity, Questions
from pynade.estimators.io import load_with_facts
from pynade.runs.figures import image_panels, save_figure, table_panels
from pynade.runs.fill import parse_given
from pynade.runs.tabular import default_names, write_table
from pynade.models import Autoregressive, Density, Ensemble, Orderless


@dataclass(frozen=True)
class Drawn:
    """Samples, and for each value its expectation given those drawn before it (None for some models)."""

    rows: np.ndarray
    means: np.ndarray | None
    columns: list[str] | None
    image_shape: tuple[int, ...] | None
    white: float = 1.0  # the largest value of a pixel


def draw(
    run: Path,
    n: int,
    seed: int,
    shape: str | None = None,
    given: str | None = None,
    per_step: int | None = None,
    wanted_means: bool = True,
) -> Drawn:
    """n samples of a run's model; `shape` such as "28x28" overrides the data's, `given` fixes some values.

    Models of images draw every sample along a random ordering of its own, `per_step` pixels at a time.
    """
    if n < 1:
        raise ValueError(f"the number of rows must be at least 1, not {n}")
    model, facts = load_with_facts(run)
    white = float(model.white) if isinstance(model, ImageDensity) else 1.0
    if per_step is not None and (given is not None or not isinstance(model, ImageDensity)):
        raise ValueError("--per-step is for samples of a model of images (convnade, unet), without --given")
    if per_step is not None and per_step < 1:
        raise ValueError(f"--per-step must be at least 1, not {per_step}")
    if isinstance(model, Orderless):
        raise ValueError(
            f"{run} holds an orderless model, which is drawn from along an ordering: use `.under(…)`"
        )
    if isinstance(model, classical.RBM):
        raise ValueError(f"{run} holds a bare RBM, which has no exact draws: use `.gibbs(…)`")
    means = None
    if given is not None:
        if not isinstance(model, Questions):
            able = ", ".join(name for name, kind in ESTIMATORS.items() if issubclass(kind, Questions))
            raise ValueError(f"{run} can only be drawn from as a whole; --given takes one of: {able}")
        columns = facts.get("columns") or []
        evidence: dict[int | str, float] = {}
        for key, value in parse_given(given).items():  # a column's name wins over an index
            index = columns.index(str(key)) if str(key) in columns else key
            if index in evidence:
                raise ValueError(f"variable {key!r} is given twice")
            evidence[index] = value
        rows = model.sample(n, random_state=seed, given=evidence)
    elif isinstance(model, RBM):  # a large one has no density to draw from
        rows = model.sample(n, random_state=seed)
    elif isinstance(model, ImageDensity):
        values, expected = model.draw(n, seed, per_step or 1, means=wanted_means)
        rows, means = model._native(values), None if expected is None else expected.cpu().numpy()
    else:
        density = model.density().cpu() if isinstance(model, DensityEstimator) else model
        assert isinstance(density, Density)
        drawn = density.sample(n, torch.Generator().manual_seed(seed))
        if isinstance(density, Autoregressive | Ensemble):
            means = density.conditional_means(drawn).detach().numpy()
        rows = model._native(drawn) if isinstance(model, DensityEstimator) else drawn.numpy()
    known = facts.get("image_shape")
    image_shape: tuple[int, ...] | None = tuple(map(int, known)) if known else None
    if shape is not None:
        image_shape = _parse(shape, rows.shape[1])
    return Drawn(rows, means, facts.get("columns"), image_shape, white)


def write_samples(path: Path, drawn: Drawn) -> None:
    """As .csv with the columns' names, or .npy."""
    write_table(path, drawn.columns or default_names(drawn.rows.shape[1]), drawn.rows)


def plot_samples(path: Path, drawn: Drawn) -> None:
    """Samples and probabilities side by side: images where the data have an image shape, else a table."""
    panels = {"samples": drawn.rows / drawn.white}
    if drawn.means is not None:
        panels["probabilities" if drawn.white == 1 else "expectations"] = drawn.means / drawn.white
    if drawn.image_shape is not None:
        save_figure(image_panels(panels, drawn.image_shape), path)
    else:
        save_figure(table_panels(panels), path)


def _parse(shape: str, n_variables: int) -> tuple[int, int]:
    try:
        height, width = map(int, shape.lower().split("x"))
    except ValueError:
        raise ValueError(f"an image shape is written HxW, such as 28x28, not {shape!r}") from None
    if height * width != n_variables:
        raise ValueError(f"{shape} has {height * width} pixels but the model has {n_variables} variables")
    return height, width
