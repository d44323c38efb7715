"""What a trained run generates: samples, and the missing cells of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pynade.arguments import check_positive
from pynade.estimators import RBM, DensityEstimator, ImageEstimator, TabularNADE
from pynade.estimators.questions import PARTICLES
from pynade.models import Autoregressive, Density, Ensemble
from pynade.runs.figures import image_panels, table_figure
from pynade.runs.run import data_for, load_run
from pynade.tables import read_file
from pynade.tables.files import FRAME_ENDINGS, TABLE_ENDINGS, check_destination, write_table
from pynade.tables.frames import align, default_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Given = Mapping[int | str, Any] | None
Names = Sequence[str] | None


def samples_of(
    model: Any, n: int, seed: int, given: Given = None, means: bool = False, **blocks: Any
) -> tuple[Any, np.ndarray | None]:
    """Draw rows of a model: a polars frame if it is one of mixed tables, else an array.

    With `means`, also the expectation of each cell given those drawn before it, where a model has them. Other
    arguments are options of `pynade sample`.
    """
    name = type(model).__name__
    blocks = {option: value for option, value in blocks.items() if value}
    if blocks and (given is not None or not hasattr(model, "draw")):
        option = next(iter(blocks)).replace("_", "-")
        raise ValueError(f"--{option} is for samples of a model of images (convnade, unet), without --given")
    if given is not None and not isinstance(model, DensityEstimator):
        raise ValueError(f"the {name} was not saved by an estimator, so it takes no --given")
    if isinstance(model, ImageEstimator) and given is None:
        values, expected = model.draw(n, seed, means=means, **blocks)
        return model._cells().native(values), None if expected is None else expected.cpu().numpy()
    if given is not None or isinstance(model, RBM | TabularNADE):  # (a large RBM has no density)
        rows = model.sample(n, random_state=seed, given=given)
        return rows if isinstance(model, TabularNADE) else np.asarray(rows), None
    if not isinstance(model, DensityEstimator | Density):
        others = "an orderless model has `.under(…)`, an RBM `.gibbs(…)`"
        raise ValueError(f"the file holds a {name}, which is no density: {others}")
    density: Any = model.density().cpu() if isinstance(model, DensityEstimator) else model
    drawn = density.sample(n, torch.Generator().manual_seed(seed))
    known = means and isinstance(density, Autoregressive | Ensemble)
    expected = density.conditional_means(drawn).detach().numpy() if known else None
    return model._cells().native(drawn) if isinstance(model, DensityEstimator) else drawn.numpy(), expected


def samples_figure(
    model: Any, rows: Any, means: np.ndarray | None, columns: Names, shape: Sequence[int] | None
) -> Figure:
    """Draw samples, and the expectations of their pixels, as images of a shape; without one as a table."""
    if shape is None or isinstance(model, TabularNADE):
        return table_figure(rows, columns)
    white = float(model._cells().white) if isinstance(model, DensityEstimator) else 1.0
    panels = {"samples": rows / white}
    if means is not None:
        panels["probabilities" if white == 1 else "expectations"] = means / white
    return image_panels(panels, shape)


def impute_file(
    run: Path, file: Path, out: Path, draws: int | None, seed: int, particles: int | None
) -> tuple[int, int, int | None]:
    """Fill the gaps of a table; returns how many, the number of rows, and the particles of an estimate.

    Arguments are the options of `pynade impute`. With draws, `out` has one block of rows for each, marked in
    a first column `draw`, or is an array (draws, rows, columns) (.npy).
    """
    model, facts = load_run(run, DensityEstimator)
    mixed, estimated = isinstance(model, TabularNADE), hasattr(model.model_, "order")  # orderings of its own
    if particles is not None and not estimated:
        raise ValueError(f"{run} fills gaps without particles; only models with a fixed ordering need them")
    used = PARTICLES if particles is None else particles
    check_positive(**{"the number of particles": used})
    check_destination(out, *(FRAME_ENDINGS if mixed else TABLE_ENDINGS))
    check_positive(**{"the number of draws": 1 if draws is None else draws})
    if mixed:
        import polars

        rows = data_for(model, str(file)).split("all")
        codes, offsets = model.schema_.encode(rows)
        filled, header = model.impute(rows, draws, random_state=seed), None
        if draws is not None:
            mark = "draw_" if "draw" in rows.columns else "draw"
            blocks = [one.select(polars.lit(k).alias(mark), polars.all()) for k, one in enumerate(filled)]
            filled = polars.concat(blocks)
        gaps = np.isnan(codes) & (offsets == 0)
    else:
        rows, names = read_file(file)
        columns = facts.get("columns")
        rows = align(rows, names, columns, facts.get("dropped", ()))
        filled = model.impute(rows, draws, random_state=seed, particles=used)
        header = list((names and columns) or names or default_names(rows.shape[1]))
        if draws is not None and out.suffix != ".npy":
            number = np.repeat(np.arange(draws), len(rows))[:, None]
            header, filled = ["draw", *header], np.hstack([number, filled.reshape(-1, rows.shape[1])])
        gaps = np.isnan(rows)
    write_table(out, header, filled)
    return int(gaps.sum()), len(rows), used if estimated else None
