"""Filling gaps: impute a file, complete images with a hole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pynade.arguments import check_positive
from pynade.estimators.base import DensityEstimator
from pynade.estimators.io import load_with_facts
from pynade.estimators.questions import PARTICLES
from pynade.tables import read_file, resolve
from pynade.tables.files import TABLE_ENDINGS, check_destination, write_table
from pynade.tables.frames import align, default_names
from pynade.tables.images import binarized, channels_height_width


def load_estimator(run: Path) -> tuple[DensityEstimator, dict[str, Any]]:
    """The estimator of a run folder or a model file, and the facts saved with it."""
    model, facts = load_with_facts(run)
    if not isinstance(model, DensityEstimator):
        raise ValueError(f"{run} is a {type(model).__name__}, not a model saved by an estimator")
    return model, facts


class Filled(NamedTuple):
    """How many cells of how many rows were filled, and the particles if by an estimate."""

    gaps: int
    rows: int
    particles: int | None


def impute_file(
    run: Path, file: Path, out: Path, draws: int | None = None, seed: int = 0, particles: int | None = None
) -> Filled:
    """Fill the gaps of a table.

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
    model, facts = load_estimator(run)
    estimated = hasattr(model.model_, "order")  # it has orderings of its own
    if particles is not None and not estimated:
        raise ValueError(f"{run} fills gaps without particles; only models with a fixed ordering need them")
    check_destination(out, *TABLE_ENDINGS)
    check_positive(**{"the number of draws": 1 if draws is None else draws})
    rows, names = read_file(file)
    columns = facts.get("columns")
    rows = align(rows, names, columns, facts.get("dropped", ()))
    particles = (PARTICLES if particles is None else particles) if estimated else None
    filled = model.impute(rows, draws, random_state=seed, particles=particles or PARTICLES)
    gaps = int(np.isnan(rows).sum()) if rows.dtype.kind == "f" else 0
    header = list((names and columns) or names or default_names(rows.shape[1]))
    if draws is not None and out.suffix != ".npy":
        number = np.repeat(np.arange(draws), len(rows))[:, None]
        header, filled = ["draw", *header], np.hstack([number, filled.reshape(-1, rows.shape[1])])
    write_table(out, header, filled)
    return Filled(gaps, len(rows), particles)


@dataclass(frozen=True)
class Completion:
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
    *,
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
    model, facts = load_estimator(run)
    dataset = binarized(resolve(data, data_dir), facts.get("binarize"))
    shape = facts.get("image_shape") or dataset.image_shape
    if shape is None:
        raise ValueError(f"the data {data!r} have no image shape, so there is no hole to cut")
    channels, height, width = channels_height_width(shape)
    if hole is None:
        hole = min(10, max(1, height // 2)), min(10, max(1, width // 2))
    if not (1 <= hole[0] <= height and 1 <= hole[1] <= width):
        raise ValueError(f"a hole of {hole[0]}x{hole[1]} does not fit into images of {height}x{width}")
    if hole == (height, width):
        raise ValueError(f"a hole of {hole[0]}x{hole[1]} leaves nothing of the images")
    check_positive(**{"the number of completions": draws})
    part = dataset.split(split)
    for row in rows:
        if not 0 <= row < len(part):
            raise ValueError(f"row {row} does not exist: {dataset.name} {split} has rows 0 … {len(part) - 1}")
    rng = np.random.default_rng(seed)
    images = model._rows(part[list(rows)])
    holes = np.zeros((len(images), channels, height, width), dtype=bool)
    for k in range(len(images)):
        top, left = rng.integers(height - hole[0] + 1), rng.integers(width - hole[1] + 1)
        holes[k, :, top : top + hole[0], left : left + hole[1]] = True
    flat = holes.reshape(len(images), -1)
    gaps = np.where(flat, np.nan, images.astype(np.float64))
    log_probs, white = model.score_samples(gaps).tolist(), model._cells().white
    filled = model.impute(gaps, draws, random_state=seed) / white
    made = [Completion(images[k] / white, flat[k], log_probs[k], filled[:, k]) for k in range(len(images))]
    return made, tuple(map(int, shape))
