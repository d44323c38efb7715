"""What a trained run generates: samples, the missing cells of a table, completed images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pynade.arguments import check_positive
from pynade.estimators import RBM, DensityEstimator, ImageEstimator, TabularNADE
from pynade.estimators.io import load_with_facts
from pynade.estimators.questions import PARTICLES
from pynade.models import Autoregressive, Density, Ensemble
from pynade.particles import check_particles
from pynade.runs.figures import image_panels, save_figure, table_figure
from pynade.runs.table import frame_figure, impute_table, parse_given, read_rows, with_polars
from pynade.tables import read_file, resolve
from pynade.tables.files import FRAME_ENDINGS, TABLE_ENDINGS, check_destination, write_frame, write_table
from pynade.tables.frames import align, default_names
from pynade.tables.images import binarized, channels_height_width


class Drawn(NamedTuple):
    """Samples, and for each value its expectation given those drawn before it (None for some models).

    Rows are a polars frame if the model is one of mixed tables, else an array.
    """

    rows: Any
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
    model = with_polars(model)
    if per_step is not None and (given is not None or not hasattr(model, "draw")):
        raise ValueError("--per-step is for samples of a model of images (convnade, unet), without --given")
    if not isinstance(model, DensityEstimator | Density):
        what = f"{run} holds a {type(model).__name__}, which is no density"
        raise ValueError(f"{what}: an orderless model has `.under(…)`, an RBM `.gibbs(…)`")
    means, white = None, float(model._cells().white) if isinstance(model, DensityEstimator) else 1.0
    if given is not None:
        if not isinstance(model, DensityEstimator):
            raise ValueError(f"{run} was not saved by an estimator, so it takes no --given")
        mixed = isinstance(model, TabularNADE)
        names = model.schema_.names if isinstance(model, TabularNADE) else model._names()
        rows = model.sample(n, random_state=seed, given=parse_given(given, names, numbers=not mixed))
        rows = rows if mixed else np.asarray(rows)
    elif isinstance(model, ImageEstimator):
        values, expected = model.draw(n, seed, per_step or 1, means=wanted_means)
        rows, means = model._cells().native(values), None if expected is None else expected.cpu().numpy()
    elif isinstance(model, RBM | TabularNADE):  # (a large RBM has no density)
        rows = model.sample(n, random_state=seed)
    else:
        density: Any = model.density().cpu() if isinstance(model, DensityEstimator) else model
        drawn = density.sample(n, torch.Generator().manual_seed(seed))
        if isinstance(density, Autoregressive | Ensemble):
            means = density.conditional_means(drawn).detach().numpy()
        rows = model._cells().native(drawn) if isinstance(model, DensityEstimator) else drawn.numpy()
    rows = rows if isinstance(model, TabularNADE) else np.asarray(rows)
    known = facts.get("image_shape") if shape is None else _parse(shape, rows.shape[1])
    return Drawn(rows, means, facts.get("columns"), tuple(map(int, known)) if known else None, white)


def plot_samples(path: Path, drawn: Drawn) -> None:
    """Images: samples and probabilities side by side. Other tables: how the columns are distributed."""
    if not isinstance(drawn.rows, np.ndarray):
        save_figure(frame_figure(drawn.rows), path)
        return
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

    Args:
        run: run folder or model file of an estimator; one with a fixed ordering fills by an estimate.
        file: .csv, .parquet, .npy or .npz with blanks (NaN) where values are missing.
        out: .csv, .parquet or .npy to write. With draws, one block of rows per draw, marked in a first
            column `draw`, or an array (draws, rows, columns) (.npy).
        draws: None fills in each cell's likelier value (the mean of a real one); a number gives that many
            joint draws.
        seed: of the draws, and of an estimate.
        particles: per row, of a model with a fixed ordering; None is 256.
    """
    model, facts = _load_estimator(run)
    estimated = hasattr(model.model_, "order")  # it has orderings of its own
    if particles is not None and not estimated:
        raise ValueError(f"{run} fills gaps without particles; only models with a fixed ordering need them")
    used = PARTICLES if particles is None else particles
    check_particles(used)
    check_destination(out, *(FRAME_ENDINGS if isinstance(model, TabularNADE) else TABLE_ENDINGS))
    check_positive(**{"the number of draws": 1 if draws is None else draws})
    if isinstance(model, TabularNADE):
        table = read_rows(model, str(file))
        done, gaps = impute_table(model, table, draws, seed)
        write_frame(out, done)
        return gaps, len(table), None
    rows, names = read_file(file)
    columns = facts.get("columns")
    rows = align(rows, names, columns, facts.get("dropped", ()))
    filled = model.impute(rows, draws, random_state=seed, particles=used)
    gaps = int(np.isnan(rows).sum()) if rows.dtype.kind == "f" else 0
    header = list((names and columns) or names or default_names(rows.shape[1]))
    if draws is not None and out.suffix != ".npy":
        number = np.repeat(np.arange(draws), len(rows))[:, None]
        header, filled = ["draw", *header], np.hstack([number, filled.reshape(-1, rows.shape[1])])
    write_table(out, header, filled)
    return gaps, len(rows), used if estimated else None


class Completion(NamedTuple):
    """One image: as it is, where its hole is, log p of the rest with the hole marginalised, completions.

    Pixels run from 0 to 1.
    """

    image: np.ndarray  # (D,)
    hole: np.ndarray  # bool (D,), True = inside
    log_prob: float
    draws: np.ndarray  # (n, D)


def inpaint(
    run: Path,
    data: str,
    rows: Sequence[int],
    hole: tuple[int, ...] | None = None,
    split: str = "test",
    draws: int = 5,
    seed: int = 0,
    data_dir: Path | None = None,
) -> tuple[list[Completion], tuple[int, ...]]:
    """The paper's figure "mnist-inpainting": a random hole in each image, log p of the rest, completions.

    Both numbers and draws are exact for the run's own number of orderings, those that put the hole last.

    Args:
        run: run folder of a model of images.
        data: registered name or file.
        rows: which rows of the part.
        hole: height and width of the hole, placed at random in each image; None is 10 × 10, or half the
            image where that is less.
        split: part of the data.
        draws: completions per image.
        seed: of holes and completions.
        data_dir: folder of the registered data sets.
    """
    model, facts = _load_estimator(run)
    dataset = binarized(resolve(data, data_dir), facts.get("binarize"))
    shape = facts.get("image_shape") or dataset.image_shape
    if shape is None:
        raise ValueError(f"the data {data!r} have no image shape, so there is no hole to cut")
    channels, height, width = channels_height_width(shape)
    hole = hole or (min(10, max(1, height // 2)), min(10, max(1, width // 2)))
    if not (1 <= hole[0] <= height and 1 <= hole[1] <= width):
        raise ValueError(f"a hole of {hole[0]}x{hole[1]} does not fit into images of {height}x{width}")
    if hole == (height, width):
        raise ValueError(f"a hole of {hole[0]}x{hole[1]} leaves nothing of the images")
    check_positive(**{"the number of completions": draws})
    part = dataset.split(split)
    for row in (row for row in rows if not 0 <= row < len(part)):
        raise ValueError(f"row {row} does not exist: {dataset.name} {split} has rows 0 … {len(part) - 1}")
    rng = np.random.default_rng(seed)
    images = model._rows(part[list(rows)])
    holes = np.zeros((len(images), channels, height, width), dtype=bool)
    for one in holes:
        top, left = rng.integers(height - hole[0] + 1), rng.integers(width - hole[1] + 1)
        one[:, top : top + hole[0], left : left + hole[1]] = True
    flat = holes.reshape(len(images), -1)
    gaps = np.where(flat, np.nan, images.astype(np.float64))
    log_probs, white = model.score_samples(gaps).tolist(), model._cells().white
    filled = model.impute(gaps, draws, random_state=seed) / white
    made = map(Completion, images / white, flat, log_probs, filled.swapaxes(0, 1))
    return list(made), tuple(map(int, shape))
