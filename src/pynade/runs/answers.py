"""Answers of a model to questions about some rows of a table: pure functions, for any process."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from pynade.estimators import RBM, DensityEstimator, ImageEstimator, TabularNADE
from pynade.estimators.modules import torch
from pynade.estimators.questions import PARTICLES
from pynade.likelihood import Estimate
from pynade.models import Density
from pynade.tables import files
from pynade.tables.frames import align, default_names
from pynade.tables.modules import polars

Facts = dict[str, Any]  # of the answer of a part, as JSON values
Answer = tuple[Any, Sequence[str] | None, Facts]  # a frame or an array, names of its columns, facts
Moments = Sequence[float]  # number, mean, and sum of squared differences from it


def answer(model: Any, question: str, table: Any, number: int = 0, **options: Any) -> tuple[Any, Facts]:
    """Answer a question about one part of a table; depends on nothing but the arguments.

    Args:
        model: a fitted estimator.
        question: "score", "impute", "predict", "surprise" (for mixed tables) or "sample".
        table: rows, as a polars frame; of a sample, their number.
        number: of the part, from 0; the draws of parts differ.
        options: of the question, as for the functions of `pynade.stream`; and for models of arrays `columns`
            and `dropped`, what the run knows of its columns, `where`, how messages name the table, and
            `raw`, which asks for an array instead of a frame.

    Returns:
        The answer as a polars frame, and numbers that `Result` adds up.
    """
    options = {"columns": None, "dropped": (), "where": "the table", "raw": False, **options}
    rows, names, facts = ANSWERS[question](model, table, number, **options)
    facts = {"rows": table if question == "sample" else len(table)} | facts
    return (rows if options["raw"] else files.as_frame(names, rows)), facts


def _score(
    model: Any, table: Any, number: int, orderings: Any = None, density: bool = False, **options: Any
) -> Answer:
    if isinstance(model, TabularNADE):
        scores, gain = model.scores_and_gain(table, orderings, density)
        return scores, ["log_prob"], {"scores": moments(scores), "gain": moments(gain)}
    with warnings.catch_warnings(action="ignore"):  # the summary says whether it is an estimate
        scores = model.score_samples(_matrix(table, **options)[0], orderings)
    return scores, ["log_prob"], {"scores": moments(scores)}


def _impute(
    model: Any,
    table: Any,
    number: int,
    draws: int | None = None,
    random_state: int = 0,
    particles: int = PARTICLES,
    **options: Any,
) -> Answer:
    seed, names = part_seed(random_state, number), None
    with warnings.catch_warnings(record=True, action="always", category=UserWarning) as caught:
        if isinstance(model, TabularNADE):
            codes, offsets = model.schema_.encode(table)
            gaps, filled = np.isnan(codes) & (offsets == 0), model.impute(table, draws, random_state=seed)
            if draws is not None:
                column = "draw_" if "draw" in table.columns else "draw"
                filled = [frame.select(polars.lit(k).alias(column), "*") for k, frame in enumerate(filled)]
                filled = polars.concat(filled)
        else:
            rows, names = _matrix(table, **options)
            gaps, filled = np.isnan(rows), model.impute(rows, draws, random_state=seed, particles=particles)
            if draws is not None and not options["raw"]:
                draw = np.repeat(np.arange(draws), len(rows))[:, None]
                names, filled = ["draw", *names], np.hstack([draw, filled.reshape(-1, rows.shape[1])])
    return filled, names, {"gaps": int(gaps.sum()), "notes": [str(w.message) for w in caught]}


def _predict(model: Any, table: Any, number: int, target: str = "", proba: bool = False, **_: Any) -> Answer:
    if proba:
        levels = [str(level) for level in model.levels(target)]
        return polars.DataFrame(model.predict_proba(table, target), levels), None, {}
    values, column = model.predict(table, target), model.schema_.columns[model.schema_.index(target)]
    dtype = polars.Series([*column.levels, *column.known_rare], strict=False).dtype  # the same in every part
    dtypes = {target: dtype} if column.n_levels else None
    return polars.DataFrame({target: values}, schema_overrides=dtypes, strict=False), None, {}


def _surprise(
    model: Any, table: Any, number: int, top: int | None = None, measure: str = "log_p", **_: Any
) -> Answer:
    if top is None:
        return model.surprise(table, measure=measure), None, {}
    cells = {name: values.tolist() for name, values in model._find_odd_cells(table, top).items()}
    return polars.DataFrame(cells, strict=False), None, {}


def _sample(
    model: Any, table: int, number: int, random_state: int = 0, given: Any = None, **options: Any
) -> Answer:
    image_options: Any = {name: options.get(name) for name in ("per_step", "fresh_orderings")}
    rows, _ = draw(model, table, part_seed(random_state, number), given, **image_options)
    return rows, options["columns"], {}


ANSWERS: dict[str, Callable[..., Answer]] = {
    "score": _score,
    "impute": _impute,
    "predict": _predict,
    "surprise": _surprise,
    "sample": _sample,
}


def _matrix(table: Any, columns: Any, dropped: Any, where: str, **_: Any) -> tuple[np.ndarray, list[str]]:
    """The numbers of a table for a model of arrays, its columns in the order of training; and their names."""
    names = list(getattr(table, "columns", ()))
    rows = files.numbers_of(table, where, tuple(names) or None)
    defaults = default_names(rows.shape[1])
    names = [] if names == defaults else names
    dtype = np.uint8 if files.are_bits(rows) else np.float64
    rows = align(rows.astype(dtype), names or None, columns, dropped)
    return rows, list((names and columns) or names or defaults[: rows.shape[1]])


def draw(
    model: Any, n: int, seed: int, given: Any = None, means: bool = False, **image_options: Any
) -> tuple[Any, Any]:
    """Rows of a model, a polars frame or an array; with `means`, the expectation of each cell when drawn.

    Args:
        model: an estimator or a density.
        n, seed: how many rows, and of which draws.
        given: known values.
        means: compute expectations too, where they exist.
        image_options: `per_step` and `fresh_orderings`, of a model of images.
    """
    estimator, name = isinstance(model, DensityEstimator), type(model).__name__
    images = isinstance(model, ImageEstimator) and given is None
    image_options = {option: value for option, value in image_options.items() if value}
    if image_options and not images:
        option = next(iter(image_options)).replace("_", "-")
        raise ValueError(f"--{option} is for samples of a model of images (convnade, unet), without --given")
    if given is not None and not estimator:
        raise ValueError(f"the {name} was not saved by an estimator, so it takes no --given")
    if images:
        pixels, expected = model.draw(n, seed, means=means, **image_options)
        return model._cells().native(pixels), None if expected is None else expected.cpu().numpy()
    if given is not None or isinstance(model, RBM | TabularNADE):
        rows = model.sample(n, random_state=seed, given=given)  # (a large RBM has no density)
        return rows if hasattr(rows, "write_csv") else np.asarray(rows), None
    if not estimator and not isinstance(model, Density):
        others = "an orderless model has `.under(…)`, an RBM `.gibbs(…)`"
        raise ValueError(f"the file holds a {name}, which is no density: {others}")
    density: Any = model.density().cpu() if estimator else model
    rows = density.sample(n, torch.Generator().manual_seed(seed))
    means = means and hasattr(density, "conditional_means")
    expected = density.conditional_means(rows).detach().numpy() if means else None
    return model._cells().native(rows) if estimator else rows.numpy(), expected


def part_seed(seed: int, number: int) -> int:
    """The seed of the draws of a part; that of the first is the seed itself."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0]) if number else seed


@dataclass(frozen=True)
class BatchAnswers:
    """What a worker of a cluster calls for each batch of rows: a generator of answers, as pyarrow tables."""

    model: Any  # this and the question as for `answer`
    question: str
    rows: int  # answered together, at most
    options: Facts  # of the question

    def __call__(self, batch: Any) -> Iterator[Any]:
        """The answers for the rows of a pyarrow table; draws depend on the seed and on these rows alone."""
        table, number = polars.DataFrame(polars.from_arrow(batch)), 0
        for part in table.iter_slices(self.rows):
            if self.question == "impute":
                cells = part.select(~(polars.selectors.nested() | polars.selectors.binary()))
                number = int.from_bytes(hashlib.sha256(cells.write_csv().encode()).digest())
            rows, _ = answer(self.model, self.question, part, number, **self.options)
            if self.question in ("score", "predict") and len(rows) == len(part):
                rows = part.with_columns(rows)
            yield rows.to_arrow(compat_level=polars.CompatLevel.oldest())


def moments(values: np.ndarray) -> Moments:
    """Number, mean and sum of squared differences from the mean."""
    return len(values), float(values.mean()), float(values.var() * len(values))


def add_moments(first: Moments, second: Moments) -> Moments:
    """The moments of the values of two parts together (Chan, Golub and LeVeque)."""
    n, gap = first[0] + second[0], second[1] - first[1]
    mean = first[1] + gap * second[0] / n
    return n, mean, first[2] + second[2] + gap**2 * first[0] * second[0] / n


def estimate(model: Any, facts: Sequence[Facts], name: str) -> Estimate | None:
    """The mean of all parts, from their moments of this name, with its standard error."""
    parts = [part[name] for part in facts if name in part]
    if not parts:
        return None
    n, mean, squares = reduce(add_moments, parts)
    stderr = math.sqrt(squares / (n - 1) / n) if n > 1 else math.nan
    kind = model.summary(np.zeros(2)) if name == "scores" else Estimate(mean, stderr, int(n))
    return replace(kind, mean=mean, stderr=stderr, n=n)
