"""Drawing from a trained run: rows, their column names, and a picture of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pynade.arguments import check_positive
from pynade.estimators import RBM, DensityEstimator, ImageEstimator
from pynade.estimators.io import load_with_facts
from pynade.models import Autoregressive, Density, Ensemble
from pynade.runs.figures import image_panels, save_figure, table_figure
from pynade.tables.files import write_table
from pynade.tables.frames import default_names


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
    """n samples of a run's model.

    Args:
        run: run folder or model file.
        n: how many.
        seed: the same seed gives the same rows.
        shape: of an image, such as "28x28"; overrides the data's.
        given: values of some variables, such as "rain=1".
        per_step: pixels drawn at once by a model of images, which draws every sample along a random ordering
            of its own.
        wanted_means: give the expectations too, where the model has them.
    """
    check_positive(**{"the number of rows": n, "--per-step": 1 if per_step is None else per_step})
    model, facts = load_with_facts(run)
    if per_step is not None and (given is not None or not hasattr(model, "draw")):
        raise ValueError("--per-step is for samples of a model of images (convnade, unet), without --given")
    if not isinstance(model, DensityEstimator | Density):
        raise ValueError(
            f"{run} holds a {type(model).__name__}, which is no density: an orderless model has `.under(…)`, "
            "an RBM `.gibbs(…)`"
        )
    means, white = None, float(model._cells().white) if isinstance(model, DensityEstimator) else 1.0
    if given is not None:
        if not isinstance(model, DensityEstimator):
            raise ValueError(f"{run} was not saved by an estimator, so it takes no --given")
        rows = model.sample(n, random_state=seed, given=parse_given(given, model._names()))
    elif isinstance(model, ImageEstimator):
        values, expected = model.draw(n, seed, per_step or 1, means=wanted_means)
        rows, means = model._cells().native(values), None if expected is None else expected.cpu().numpy()
    elif isinstance(model, RBM):  # a large one has no density
        rows = model.sample(n, random_state=seed)
    else:
        density: Any = model.density().cpu() if isinstance(model, DensityEstimator) else model
        drawn = density.sample(n, torch.Generator().manual_seed(seed))
        if isinstance(density, Autoregressive | Ensemble):
            means = density.conditional_means(drawn).detach().numpy()
        rows = model._cells().native(drawn) if isinstance(model, DensityEstimator) else drawn.numpy()
    known = facts.get("image_shape") if shape is None else _parse(shape, rows.shape[1])
    return Drawn(rows, means, facts.get("columns"), tuple(map(int, known)) if known else None, white)


def write_samples(path: Path, drawn: Drawn) -> None:
    """As .csv with the columns' names, or .npy."""
    write_table(path, drawn.columns or default_names(drawn.rows.shape[1]), drawn.rows)


def plot_samples(path: Path, drawn: Drawn) -> None:
    """Images: samples and probabilities side by side. Other tables: how the columns are distributed."""
    if drawn.image_shape is None:
        save_figure(table_figure(drawn.rows, drawn.columns), path)
        return
    panels = {"samples": drawn.rows / drawn.white}
    if drawn.means is not None:
        panels["probabilities" if drawn.white == 1 else "expectations"] = drawn.means / drawn.white
    save_figure(image_panels(panels, drawn.image_shape), path)


def _parse(shape: str, n_variables: int) -> tuple[int, int]:
    try:
        height, width = map(int, shape.lower().split("x"))
    except ValueError:
        raise ValueError(f"an image shape is written HxW, such as 28x28, not {shape!r}") from None
    if height * width != n_variables:
        raise ValueError(f"{shape} has {height * width} pixels but the model has {n_variables} variables")
    return height, width


def parse_given(text: str, columns: Sequence[str] | None = None) -> dict[int | str, float]:
    """ "3=1,17=0" or "rain=1" as values of known variables; a column's name has precedence over an index.

    Example:
        >>> parse_given("3=1, rain=0")
        {3: 1.0, 'rain': 0.0}
    """
    given: dict[int | str, float] = {}
    for part in text.split(","):
        name, sign, value = (piece.strip() for piece in part.rpartition("="))
        key: int | str = int(name) if name.isdigit() and name not in (columns or ()) else name
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not sign or not name or number != number:
            raise ValueError(
                f"known values are written like 3=1,17=0 (index or column = value), not {part.strip()!r}"
            )
        if key in given:
            raise ValueError(f"variable {key!r} is given twice")
        given[key] = number
    return given
