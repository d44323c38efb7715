"""Rows, gaps, samples, images and scores: the other views of the explorer, as JSON values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars
import torch

from pynade.app.explorer import EXACT, Explorer, axis_values, estimate_badge, json_value, level_text
from pynade.app.limits import TooMuch
from pynade.estimators import BernoulliMixture, Gaussian, ImageEstimator
from pynade.likelihood import Estimate
from pynade.models import Marginalisable, Orderless
from pynade.plots.cells import cell_surprise
from pynade.tables.column import Column

COMPLETIONS = 5  # of an image with a hole
SHOWN = 200  # rows of a filled table that the page shows
SCORED = 10_000  # rows of the data that are sorted by log p
COMPARED = 1000  # rows on which the model is compared with simpler ones
FITTED = 5000  # rows that the simpler ones are fitted to
LEAST = 30  # rows of such a comparison
PASSES = 32  # of an estimate of log p of an image
IMAGES = 16  # that are drawn
MOST_SEED = 2**31 - 1
PIXEL_DRAWS = 200  # of an estimate of the probabilities of pixels


def whole_number(value: Any, name: str, least: int, most: int) -> int:
    """A whole number within limits, or one sentence."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least:,} to {most:,}")
    return value


def score(explorer: Explorer, table: Any) -> dict[str, Any]:
    """Exact log p of every row of a table that was sent."""
    _refuse_images(explorer, "scored")
    model, rows = explorer.model, explorer.model_rows(table)
    explorer.costs.check(lambda n: model.score_samples(rows[:n]), len(rows))
    log_p = model.score_samples(rows)
    summary = Estimate.from_rows(log_p).to_json()
    return {
        "n": len(log_p),
        "log_prob": [*map(json_value, log_p)],
        "badge": explorer.score_badge(log_p),
        "mean": summary["mean"],
        "stderr": summary["stderr"],
        "code": explorer.code.table("table.csv") + "log_p = model.score_samples(table)\n",
    }


def _refuse_images(explorer: Explorer, verb: str) -> None:
    if isinstance(explorer.model, ImageEstimator):
        raise ValueError(f"tables are not {verb} by a model of images here; see the view Images")


def _check_data(explorer: Explorer) -> None:
    if explorer.table is None:
        raise ValueError("there are no data: start the explorer with --data FILE")


def fill(explorer: Explorer, table: Any, draws: int = 0, seed: int = 0) -> dict[str, Any]:
    """A table with its gaps filled by best guesses or so many draws: some rows, and all of it as CSV."""
    n = whole_number(draws, "draws", 0, 20) or None
    _refuse_images(explorer, "filled")
    model, rows = explorer.model, explorer.model_rows(table)
    with explorer.caught_warnings() as caught:
        explorer.costs.check(lambda few: model.impute(rows[:few], n, random_state=seed), len(rows))
        caught.clear()  # of the trial
        filled = model.impute(rows, n, random_state=seed)
    tables = [*map(explorer.frame, [filled] if n is None else filled)]
    first = complete = tables[0]
    if n is not None:
        number = "draw_" if "draw" in table.columns else "draw"
        complete = polars.concat([t.select(polars.lit(k).alias(number), "*") for k, t in enumerate(tables)])
    names = first.columns
    table = table.rename(dict(zip(table.columns, names, strict=True)))
    gaps = np.stack([(table[c].is_null() & first[c].is_not_null()).to_numpy() for c in names], axis=1)
    badge: dict[str, Any] = EXACT
    if explorer.has_fixed_ordering:
        badge = {"kind": "estimate", "text": "estimate with 256 particles"}
    elif n is not None and explorer.orderless:
        badge = {"kind": "orderings", "text": f"exact draws along {explorer.n_orderings} orderings"}
    code, options = explorer.code.table("table.csv"), "" if n is None else f", n={n}, random_state={seed}"
    if not explorer.mixed:
        code = f"{explorer.code.model()}from pynade.tables import read_file\n\n"
        code, options = f"{code}table, names = read_file('table.csv')\n", options or ", random_state=0"
    return {
        "columns": names,
        "rows": [[json_value(v) for v in row] for row in first.head(SHOWN).rows()],
        "marks": [np.flatnonzero(marks).tolist() for marks in gaps[:SHOWN]],
        "known": [name in explorer.by_name for name in names],
        "n": table.height,
        "filled": int(gaps.sum()),
        "csv": complete.write_csv(),
        "badge": badge,
        "notes": sorted({str(w.message) for w in caught}),
        "code": f"{code}filled = model.impute(table{options})\n",
    }


def _sorted_rows(explorer: Explorer) -> tuple[np.ndarray, np.ndarray, int | None]:
    """Numbers of rows of the data, those with the smallest log p first, log p of each, and its orderings.

    Where time does not suffice for all rows, fewer orderings are averaged.
    """
    _check_data(explorer)
    _refuse_images(explorer, "sorted")
    if explorer.sorted_rows is None:
        numbers = np.random.default_rng(0).permutation(explorer.table.height)[:SCORED]
        rows = explorer.model_rows(explorer.table[numbers])
        score, k = explorer.model.score_samples, explorer.n_orderings
        n = explorer.costs.affordable(lambda n: score(rows[:n]), 3 * len(numbers)) // 3 or 1
        if k and n < len(numbers):
            all_orderings, k = k, max(1, k * n // len(numbers))
            n = min(len(numbers), n * all_orderings // k)
        log_p, numbers = score(rows[:n], **{"orderings": k} if k else {}), numbers[:n]
        order = np.lexsort((numbers, log_p))
        explorer.sorted_rows = numbers[order], log_p[order], k
    return explorer.sorted_rows


def rows(explorer: Explorer, start: Any = 0, n: Any = 25, lowest: Any = True) -> dict[str, Any]:
    """Rows of the data by their log p, with the surprise of every cell of a mixed table."""
    start, n = whole_number(start, "start", 0, 10**9), whole_number(n, "n", 1, 100)
    numbers, log_p, k = _sorted_rows(explorer)
    page = np.arange(len(numbers))[:: 1 if lowest else -1][start : start + n]
    chosen = explorer.table[numbers[page]]
    code = f"{explorer.code.table()}rows = table[{numbers[page].tolist()!r}]\n"
    code += f"log_p = model.score_samples(rows{f', orderings={k}' if k else ''})\n"
    notes: list[str] = []
    spread = surprise = None
    if len(page):
        rows = explorer.model_rows(chosen)
        if explorer.orderless:
            spread = explorer.costs.in_time(
                "spread", lambda n: explorer.spread_of_scores(rows[:n]), len(rows)
            )
            if spread is None:
                notes.append("how far orderings disagree would take too long here")
        surprise = _surprise(explorer, rows, notes)
    lines = [
        {"row": row, "log_prob": json_value(p), "spread": None, "cells": [*map(json_value, cells)]}
        for row, p, cells in zip(
            numbers[page].tolist(), log_p[page], chosen.select([*explorer.by_name]).rows(), strict=True
        )
    ]
    if spread is not None:
        code += explorer.code.spread("rows")
        for line, deviation in zip(lines, spread, strict=True):
            line["spread"] = json_value(deviation)
    if surprise is not None:
        known = ~np.isnan(explorer.model.schema_.encode(chosen)[0] if explorer.mixed else surprise)
        for line, nats, marks in zip(lines, surprise, known, strict=True):
            line |= {"surprise": [*map(json_value, nats)], "known": marks.tolist()}
        code += "\nfrom pynade.plots.cells import cell_surprise\n\n" * (not explorer.mixed)
        surprise_code = (
            "model.surprise(rows, measure='p_value')" if explorer.mixed else "cell_surprise(model, rows)"
        )
        code += f"surprise = {surprise_code}\n"
    return {
        "total": explorer.table.height,
        "scored": len(numbers),
        "rows": lines,
        "columns": [*explorer.by_name],
        "badge": explorer.score_badge(log_p, k),
        "notes": notes,
        "code": code,
    }


def _surprise(explorer: Explorer, rows: Any, notes: list[str]) -> np.ndarray | None:
    """-log of the probability of a value at least as odd as each cell given the others; or None."""
    model = explorer.model
    if not isinstance(model.model_, Orderless | Marginalisable):
        notes.append("cells are not shaded: this model has a fixed ordering and knows only the cells before")
        return None

    def one_column() -> Any:
        column = explorer.columns[0]
        answer = model.conditional(column.name)
        return answer.pmf(column.levels) if column.n_levels else answer.cdf(axis_values(column, np.zeros(1)))

    surprise: np.ndarray | None = explorer.costs.in_time(
        "surprise",
        lambda n: cell_surprise(model, rows[:n]),
        len(rows),
        one_column if explorer.mixed else None,
    )
    if surprise is None:
        notes.append("cells are not shaded: that would take too long here")
    return surprise


def _correlations(numbers: np.ndarray) -> list[list[float | None]]:
    """Correlations of columns, over the rows in which both are known."""
    known = ~np.isnan(numbers)
    with np.errstate(all="ignore"):  # (nanmean would warn of a column without a value)
        n = known.sum(0)
        z = np.where(known, numbers - np.where(known, numbers, 0.0).sum(0) / n, 0.0)
        z = z / np.sqrt((z**2).sum(0) / n)
        r = (z.T @ z) / (known.T.astype(float) @ known)
    return [[json_value(v) for v in line] for line in np.clip(r, -1, 1)]


def samples(explorer: Explorer, n: Any = 1000, given: Any = None, seed: Any = 0) -> dict[str, Any]:
    """Draws beside rows of the data near to what is given: marginals of columns, and correlations."""
    n, seed = whole_number(n, "n", 10, 5000), whole_number(seed, "seed", 0, MOST_SEED)
    known, notes = explorer.given({} if given is None else given)
    if explorer.shape is not None:
        return _image_samples(explorer, seed, known) | {"notes": notes}
    model, by_key = explorer.model, explorer.by_key(known) or None
    n = explorer.costs.affordable(lambda n: model.sample(n, seed, given=by_key), n, 16)
    frames = {"sampled": explorer.frame(model.sample(n, seed, given=by_key))}
    if explorer.table is not None:
        frames["real"] = explorer.rows_near(known)
    numbers = [c for c in explorer.columns if c.numeric and c.kind != "constant" and c.name not in known]
    names = [column.name for column in numbers]
    code = explorer.code.sample(n, seed, given=by_key)
    if numbers:
        columns = f"draws[{names!r}]" if explorer.mixed else "draws"
        code += f"correlations = numpy.corrcoef(numpy.asarray({columns}, float).T)\n"
    return {
        "n": n,
        "real_rows": frames["real"].height if "real" in frames else None,
        "columns": [_marginals(explorer, column, frames) for column in explorer.columns],
        "numbers": names,
        "correlations": {
            side: _correlations(np.stack([explorer.numbers(frame, c) for c in numbers], axis=1))
            for side, frame in frames.items()
            if len(numbers) > 1 and frame.height > 2
        },
        "csv": frames["sampled"].write_csv(),
        "badge": {"kind": "exact", "text": f"{n:,} exact draws"},
        "notes": notes,
        "code": code,
    }


def _marginals(explorer: Explorer, column: Column, frames: dict[str, Any]) -> dict[str, Any]:
    """Shares of the levels of a column, or of ranges of its numbers, in every frame."""
    out: dict[str, Any] = {"column": column.name, "kind": column.kind}
    if column.n_levels:
        out["levels"] = [*map(json_value, (*column.levels, *column.known_rare))][:40]
        for side, frame in frames.items():
            cells = frame[column.name].drop_nulls().cast(polars.String)
            shares = dict(cells.value_counts(normalize=True).rows())
            out[side] = [shares.get(level_text(level), 0.0) for level in out["levels"]]
        return out
    values = {side: explorer.numbers(frame, column) for side, frame in frames.items()}
    values = {side: np.sort(x[~np.isnan(x)]) for side, x in values.items()}
    ends = np.concatenate([np.quantile(x, [0.005, 0.995]) for x in values.values() if len(x)])
    edges = column.bins(float(ends.min()), float(ends.max()), 32)
    for side, x in values.items():
        out[side] = np.diff(np.searchsorted(x, edges, side="right") / max(1, len(x))).tolist()
    return out | {"edges": edges.tolist(), "step": column.resolution}


def _image_samples(explorer: Explorer, seed: int, known: dict[str, Any]) -> dict[str, Any]:
    """Sixteen images of the model, and of the data, with the pixels that are given."""
    model = explorer.model
    options: dict[str, Any] = {"given": explorer.by_key(known) or None}
    badge = {"kind": "exact", "text": f"{IMAGES} exact draws"}
    if isinstance(model, ImageEstimator) and not known:  # a pass of the net for every step
        per_step = max(1, math.ceil(len(explorer.columns) / _affordable_passes(explorer, IMAGES)))
        options = {"per_step": per_step}
        if per_step > 1:
            badge = {"kind": "estimate", "text": f"approximate: {per_step} pixels at once"}
    images = {"sampled": np.asarray(model.sample(IMAGES, seed, **options), float).tolist()}
    if explorer.table is not None:
        real = explorer.rows_near(known)
        real = real.sample(min(IMAGES, real.height), seed=seed)
        images["real"] = real.to_numpy().astype(float).tolist()
    code = explorer.code.sample(IMAGES, seed, **options)
    return {"images": images, "n": IMAGES, "badge": badge, "code": code}


def _pixel_means(explorer: Explorer, images: np.ndarray) -> np.ndarray:
    """Expectation of every pixel given the others that are known, in one pass of an orderless model."""
    x, density = torch.as_tensor(images), explorer.model.model_
    with torch.no_grad():
        return density.family.mean(density.conditionals(x, ~x.isnan())).double().numpy()


def _affordable_passes(explorer: Explorer, n_images: int) -> int:
    """How many passes of the net over so many images the time limit allows."""
    images = np.full((n_images, len(explorer.columns)), math.nan, np.float32)
    return explorer.costs.affordable(lambda n: [_pixel_means(explorer, images) for _ in range(n)], 10**6, 2)


def image(explorer: Explorer, row: Any = None, hole: Any = (), seed: Any = 0) -> dict[str, Any]:
    """An image of the data or of the model; with a hole, completions, log p of the rest, probabilities."""
    if explorer.shape is None:
        raise ValueError("this model is not one of images")
    model, seed, n = explorer.model, whole_number(seed, "seed", 0, MOST_SEED), len(explorer.columns)
    if row is None:
        pixels = np.asarray(model.sample(1, random_state=seed), float)[0]
        code = f"{explorer.code.model()}image = numpy.asarray(model.sample(1, random_state={seed}))[0]"
    else:
        _check_data(explorer)
        row = whole_number(row, "row", 0, explorer.table.height - 1)
        pixels = np.asarray(explorer.table.row(row), dtype=np.float64)
        code = f"{explorer.code.table()}image = table[{row}]"
    if not isinstance(hole, list | tuple) or len(hole) > n:
        raise ValueError("hole must be a list of numbers of pixels")
    hole = sorted({whole_number(pixel, "a pixel of the hole", 0, n - 1) for pixel in hole})
    if len(hole) == n:
        raise ValueError("the hole leaves nothing of the image")
    out = {
        "pixels": pixels.tolist(),
        "rows": None if explorer.table is None else explorer.table.height,
        "code": f"{code}.astype(float)\n",
    }
    if not hole:
        return out
    gaps = pixels.copy()
    gaps[hole] = math.nan
    if isinstance(model, ImageEstimator) and (most := _affordable_passes(explorer, COMPLETIONS)) < len(hole):
        raise TooMuch(f"a hole of {len(hole)} pixels takes too long here: paint one of at most {most}")
    completions = np.asarray(model.impute(gaps[None], n=COMPLETIONS, random_state=seed), float)[:, 0]
    out |= {"completions": completions.tolist(), "notes": []}
    out["code"] += f"image[{hole!r}] = numpy.nan\n"
    out["code"] += f"completions = model.impute(image[None], n={COMPLETIONS}, random_state={seed})[:, 0]\n"
    for answer, code in (_log_prob_of_rest(explorer, gaps), _pixel_probabilities(explorer, gaps, seed)):
        out |= answer | {"code": out["code"] + code}
    return out


def _log_prob_of_rest(explorer: Explorer, gaps: np.ndarray) -> tuple[dict[str, Any], str]:
    """Log p of the known pixels of an image, where it is tractable, and code that gives it."""
    model, rows = explorer.model, gaps[None]
    if isinstance(model, ImageEstimator):
        estimate = model.estimate(rows, draws=PASSES)
        badge = estimate_badge(estimate.mc_stderr, ".2f")
        code = f"log_p = model.estimate(image[None], draws={PASSES}).mean\n"
        return {"log_prob": estimate.mean, "badge": badge}, code
    if not model.takes_missing:
        note = "this model has a fixed ordering, so the probability of the rest is not tractable"
        return {"notes": [note]}, ""
    log_p, code = model.score_samples(rows), "log_p = model.score_samples(image[None])[0]\n"
    answer = {"log_prob": float(log_p[0]), "badge": explorer.score_badge(log_p), "spread": None}
    if explorer.orderless:
        answer["spread"] = json_value(explorer.spread_of_scores(rows)[0])
        code += explorer.code.spread("image[None]")
    return answer, code


def _pixel_probabilities(explorer: Explorer, gaps: np.ndarray, seed: int) -> tuple[dict[str, Any], str]:
    """Expectations of pixels given the known ones, from 0 to 1, and code that gives them."""
    badge: dict[str, Any] = EXACT
    if explorer.orderless:
        means = _pixel_means(explorer, gaps[None])[0]
        code = "import torch\n\nx = torch.tensor(image[None])\n"
        code += "eta = model.model_.conditionals(x, ~x.isnan())\n"
        code += "probabilities = model.model_.family.mean(eta)[0].detach().numpy()\n"
    else:
        draws = explorer.model.impute(gaps[None], n=PIXEL_DRAWS, random_state=seed)
        means = np.asarray(draws, float)[:, 0].mean(0)
        draws_code = f"model.impute(image[None], n={PIXEL_DRAWS}, random_state={seed})"
        code = f"probabilities = {draws_code}[:, 0].mean(0)\n"
        badge = estimate_badge(0.5 * explorer.white / math.sqrt(PIXEL_DRAWS), ".2g")
    probabilities = np.where(np.isnan(gaps), means, gaps) / explorer.white
    return {"probabilities": probabilities.tolist(), "pixel_badge": badge}, code


def scores(explorer: Explorer) -> dict[str, Any]:
    """Log-likelihood of the model beside independent columns and a Gaussian, as far as they are known."""
    if explorer.scores is None:
        valid, gain = (explorer.result.get(name) for name in ("valid", "gain"))
        where = f"{valid['n']:,} validation rows of the run" if valid else ""
        estimates = {"log-likelihood per row": valid, "better than independent columns by": gain}
        badge = explorer.exact_badge()
        lines = [_line(label, estimate, where, badge) for label, estimate in estimates.items() if estimate]
        explorer.scores = {"scores": lines + _comparisons(explorer)}
    return explorer.scores


def _line(label: str, estimate: dict[str, Any], where: str, badge: dict[str, Any]) -> dict[str, Any]:
    if not estimate.get("exact", True):
        badge = estimate_badge(estimate["mc_stderr"])
    numbers = {name: estimate[name] for name in ("mean", "stderr")}
    return numbers | {"label": label, "where": where, "badge": badge}


def _comparisons(explorer: Explorer) -> list[dict[str, Any]]:
    """Scores of rows of the data by the model, and by a simpler one that is fitted to other rows."""
    model, table = explorer.model, explorer.table
    if table is None or table.height < 2 * LEAST or isinstance(model, ImageEstimator):
        return []
    table = table.sample(fraction=1, shuffle=True, seed=0)
    n = min(COMPARED, table.height // 2)
    scored, others = table.head(n), table[n : n + FITTED]
    rows = explorer.model_rows(scored)
    n = explorer.costs.affordable(lambda n: model.score_samples(rows[:n]), 5 * n) // 5
    if n < LEAST:
        return []
    scored, rows, lines, where = scored.head(n), rows[:n], [], f"{n:,} rows of the data"
    if explorer.mixed and not explorer.result.get("gain"):
        gain = model.gain(rows)
        estimate = Estimate.from_rows(gain).to_json()
        lines.append(_line("better than independent columns by", estimate, where, explorer.score_badge(gain)))
    numbers = [c for c in explorer.columns if not explorer.mixed or not (c.n_levels or c.kind == "date")]
    if not numbers or others.height < 5 * len(numbers):
        return lines
    cells, training = (np.stack([explorer.numbers(t, c) for c in numbers], axis=1) for t in (scored, others))
    simple, label = Gaussian(random_state=0), "a Gaussian"
    if explorer.mixed:
        known = ~np.isnan(cells).all(1)
        unknown = [polars.lit(None).alias(c.name) for c in explorer.columns if c not in numbers]
        rows, cells = scored.filter(polars.Series(known)).with_columns(unknown), cells[known]
        label += f" ({len(numbers)} columns of numbers)"
    elif explorer.columns[0].kind == "binary":
        simple, label = BernoulliMixture(n_components=1, random_state=0), "independent columns"
    try:
        log_p = model.score_samples(rows, **({"density": True} if explorer.mixed else {}))
        simple.fit(training[~np.isnan(training).all(1)])
        better = Estimate.from_rows(log_p - simple.score_samples(cells)).to_json()
    except ValueError:  # such as a column that is constant in these rows
        return lines
    where += f"; it was fitted to {others.height:,} others"
    return [*lines, _line(f"better than {label} by", better, where, explorer.score_badge(log_p))]
