"""What a trained run generates: samples, the missing cells of a table, completed images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pynade.arguments import check_positive
from pynade.estimators import RBM, DensityEstimator, ImageEstimator, TabularNADE
from pynade.estimators.base import load_with_facts
from pynade.estimators.questions import PARTICLES
from pynade.models import Autoregressive, Density, Ensemble
from pynade.runs.figures import completion_figure, image_panels, save_figure, table_figure
from pynade.runs.summary import read_spec
from pynade.runs.table import frame_figure, impute_table, parse_given, read_rows, with_polars
from pynade.tables import read_file, resolve
from pynade.tables.files import FRAME_ENDINGS, TABLE_ENDINGS, check_destination, write_table
from pynade.tables.frames import align, default_names
from pynade.tables.images import binarized


def sample_run(
    run: Path,
    n: int,
    seed: int,
    out: Path | None = None,
    plot: Path | None = None,
    shape: tuple[int, ...] | None = None,
    given: str | None = None,
    per_step: int | None = None,
) -> Any:
    """Draw samples of a run's model: a polars frame if it is one of mixed tables, else an array.

    They are written to `out`, a picture of them to `plot`; arguments are the options of `pynade sample`. The
    picture of images has the expectation of each pixel given those drawn before it, where a model has them.
    """
    check_positive(**{"the number of rows": n, "--per-step": 1 if per_step is None else per_step})
    model, facts = load_with_facts(run)
    rows: Any
    model, means = with_polars(model), None
    if per_step is not None and (given is not None or not hasattr(model, "draw")):
        raise ValueError("--per-step is for samples of a model of images (convnade, unet), without --given")
    if given is not None:
        if not isinstance(model, DensityEstimator):
            raise ValueError(f"{run} was not saved by an estimator, so it takes no --given")
        mixed = isinstance(model, TabularNADE)
        names = model.schema_.names if isinstance(model, TabularNADE) else model._names()
        rows = model.sample(n, random_state=seed, given=parse_given(given, names, numbers=not mixed))
    elif isinstance(model, ImageEstimator):
        values, expected = model.draw(n, seed, per_step or 1, means=plot is not None)
        rows, means = model._cells().native(values), None if expected is None else expected.cpu().numpy()
    elif isinstance(model, RBM | TabularNADE):  # (a large RBM has no density)
        rows = model.sample(n, random_state=seed)
    elif isinstance(model, DensityEstimator | Density):
        density: Any = model.density().cpu() if isinstance(model, DensityEstimator) else model
        drawn = density.sample(n, torch.Generator().manual_seed(seed))
        if isinstance(density, Autoregressive | Ensemble) and plot is not None:
            means = density.conditional_means(drawn).detach().numpy()
        rows = model._cells().native(drawn) if isinstance(model, DensityEstimator) else drawn.numpy()
    else:
        what = f"{run} holds a {type(model).__name__}, which is no density"
        raise ValueError(f"{what}: an orderless model has `.under(…)`, an RBM `.gibbs(…)`")
    rows = rows if isinstance(model, TabularNADE) else np.asarray(rows)
    if shape is not None and math.prod(shape) != rows.shape[1]:
        sides, pixels = "x".join(map(str, shape)), math.prod(shape)
        raise ValueError(f"{sides} has {pixels} pixels but the model has {rows.shape[1]} variables")
    if out is not None:
        write_table(out, facts.get("columns"), rows)
    if plot is not None:
        shape = shape or facts.get("image_shape")
        if isinstance(model, TabularNADE):
            figure = frame_figure(rows)
        elif shape is None:
            figure = table_figure(rows, facts.get("columns"))
        else:
            white = float(model._cells().white) if isinstance(model, DensityEstimator) else 1.0
            panels = {"samples": rows / white}
            if means is not None:
                panels["probabilities" if white == 1 else "expectations"] = means / white
            figure = image_panels(panels, shape)
        save_figure(figure, plot)
    return rows


def _load_estimator(run: Path) -> tuple[DensityEstimator, dict[str, Any]]:
    """The estimator of a run folder or a model file, and the facts saved with it."""
    model, facts = load_with_facts(run)
    if not isinstance(model, DensityEstimator):
        raise ValueError(f"{run} is a {type(model).__name__}, not a model saved by an estimator")
    return model, facts


def impute_file(
    run: Path, file: Path, out: Path, draws: int | None = None, seed: int = 0, particles: int | None = None
) -> tuple[int, int, int | None]:
    """Fill the gaps of a table; returns how many, the number of rows, and the particles of an estimate.

    Arguments are the options of `pynade impute`. With draws, `out` has one block of rows for each, marked in
    a first column `draw`, or is an array (draws, rows, columns) (.npy).
    """
    filled: Any
    model, facts = _load_estimator(run)
    estimated = hasattr(model.model_, "order")  # it has orderings of its own
    if particles is not None and not estimated:
        raise ValueError(f"{run} fills gaps without particles; only models with a fixed ordering need them")
    used = PARTICLES if particles is None else particles
    check_positive(**{"the number of particles": used})
    check_destination(out, *(FRAME_ENDINGS if isinstance(model, TabularNADE) else TABLE_ENDINGS))
    check_positive(**{"the number of draws": 1 if draws is None else draws})
    if isinstance(model, TabularNADE):
        table = read_rows(model, str(file))
        filled, gaps = impute_table(model, table, draws, seed)
        write_table(out, None, filled)
        return gaps, len(table), None
    rows, names = read_file(file)
    columns = facts.get("columns")
    rows = align(rows, names, columns, facts.get("dropped", ()))
    filled = model.impute(rows, draws, random_state=seed, particles=used)
    header = list((names and columns) or names or default_names(rows.shape[1]))
    if draws is not None and out.suffix != ".npy":
        number = np.repeat(np.arange(draws), len(rows))[:, None]
        header, filled = ["draw", *header], np.hstack([number, filled.reshape(-1, rows.shape[1])])
    write_table(out, header, filled)
    return int(np.isnan(rows).sum()), len(rows), used if estimated else None


def inpaint_run(
    run: Path,
    plot: Path,
    rows: Sequence[int],
    hole: tuple[int, ...] | None = None,
    data: str | None = None,
    split: str = "test",
    draws: int = 5,
    seed: int = 0,
    data_dir: Path | None = None,
) -> list[float]:
    """The paper's figure "mnist-inpainting": a random hole in each image, completed; log p of the rest.

    Both numbers and draws are exact for the run's own number of orderings, those that put the hole last.
    Arguments are the options of `pynade inpaint`.
    """
    model, facts = _load_estimator(run)
    data = data or str(read_spec(run)["data"])
    dataset = binarized(resolve(data, data_dir), facts.get("binarize"))
    shape = facts.get("image_shape") or dataset.image_shape
    if shape is None:
        raise ValueError(f"the data {data!r} have no image shape, so there is no hole to cut")
    channels, height, width = (1, *map(int, shape))[-3:]
    high, wide = hole or (min(10, max(1, height // 2)), min(10, max(1, width // 2)))
    if not (1 <= high <= height and 1 <= wide <= width):
        raise ValueError(f"a hole of {high}x{wide} does not fit into images of {height}x{width}")
    if (high, wide) == (height, width):
        raise ValueError(f"a hole of {high}x{wide} leaves nothing of the images")
    check_positive(**{"the number of completions": draws})
    part = dataset.split(split)
    for row in (row for row in rows if not 0 <= row < len(part)):
        raise ValueError(f"row {row} does not exist: {dataset.name} {split} has rows 0 … {len(part) - 1}")
    rng = np.random.default_rng(seed)
    images = model._rows(part[list(rows)])
    holes = np.zeros((len(images), channels, height, width), dtype=bool)
    for one in holes:
        top, left = rng.integers(height - high + 1), rng.integers(width - wide + 1)
        one[:, top : top + high, left : left + wide] = True
    inside = holes.reshape(len(images), -1)
    gaps = np.where(inside, np.nan, images.astype(np.float64))
    log_probs: list[float] = model.score_samples(gaps).tolist()
    filled, white = model.impute(gaps, draws, random_state=seed), model._cells().white
    save_figure(completion_figure(images / white, inside, filled / white, log_probs, shape), plot)
    return log_probs
