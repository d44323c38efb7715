"""Rows, gaps, samples, images and scores: the other views of the explorer, as JSON values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars
import torch

from pynade.app.explorer import Explorer, caught_warnings, json_value
from pynade.app.limits import TooMuch
from pynade.estimators import BernoulliMixture, Gaussian, ImageEstimator
from pynade.likelihood import Estimate
from pynade.models import Marginalisable, Orderless
from pynade.plots.cells import cell_cdfs

COMPLETIONS = 5  # of an image with a hole
SHOWN = 200  # rows of a filled table that the page shows
SCORED = 10_000  # rows of the data that are sorted by log p
COMPARED = 1000  # rows on which the model is compared with simpler ones
FITTED = 5000  # rows that the simpler ones are fitted to
LEAST = 30  # rows of such a comparison
PASSES = 32  # of an estimate of log p of an image


def whole(value: Any, name: str, least: int, most: int) -> int:
    """A whole number within limits, or one sentence."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least:,} to {most:,}")
    return value


def score(explorer: Explorer, table: Any) -> dict[str, Any]:
    """Exact log p of every row of a table that was sent."""
    _no_images(explorer, "scored")
    model, rows = explorer.model, explorer.rows_of(table)
    explorer.costs.check(lambda n: model.score_samples(rows[:n]), len(rows))
    log_p = model.score_samples(rows)
    out = {"n": len(log_p), "log_prob": [*map(json_value, log_p)], "badge": explorer.score_badge(log_p)}
    summary = Estimate.from_rows(log_p).to_json()
    return out | {"mean": summary["mean"], "stderr": summary["stderr"], "code": explorer.code.score()}


def _no_images(explorer: Explorer, what: str) -> None:
    if isinstance(explorer.model, ImageEstimator):
        raise ValueError(f"tables are not {what} by a model of images here; see the view Images")


def fill(explorer: Explorer, table: Any, draws: int | None, seed: int) -> dict[str, Any]:
    """A table with its gaps filled: the first rows for the page, all of it as CSV."""
    _no_images(explorer, "filled")
    model, rows, known = explorer.model, explorer.rows_of(table), {*explorer.by_name}
    with caught_warnings(model) as caught:
        explorer.costs.check(lambda n: model.impute(rows[:n], draws, random_state=seed), len(rows))
        caught.clear()  # of the trial
        made = model.impute(rows, draws, random_state=seed)
    tables = [explorer.frame(one) for one in ([made] if draws is None else made)]
    mark = "draw_" if "draw" in table.columns else "draw"
    whole_table = tables[0]
    if draws is not None:
        whole_table = polars.concat([t.select(polars.lit(k).alias(mark), "*") for k, t in enumerate(tables)])
    names = tables[0].columns
    table = table if table.columns == names else table.rename(dict(zip(table.columns, names, strict=True)))
    filled = np.stack([(table[c].is_null() & tables[0][c].is_not_null()).to_numpy() for c in names], axis=1)
    badge = {"kind": "exact", "text": "exact"}
    if draws is not None and explorer.k is not None:
        badge = {"kind": "orderings", "text": f"exact draws along {explorer.k} orderings"}
    if hasattr(model.model_, "order"):
        badge = {"kind": "estimate", "text": "estimate with 256 particles"}
    return {
        "columns": names,
        "rows": [[json_value(v) for v in row] for row in tables[0].head(SHOWN).rows()],
        "marks": [np.flatnonzero(marks).tolist() for marks in filled[:SHOWN]],
        "known": [name in known for name in names],
        "n": table.height,
        "filled": int(filled.sum()),
        "csv": whole_table.write_csv(),
        "badge": badge,
        "notes": sorted({str(w.message) for w in caught}),
        "code": explorer.code.fill(draws, seed),
    }


def _sorted_rows(explorer: Explorer) -> tuple[np.ndarray, np.ndarray, int | None]:
    """Places of rows of the data, those with the smallest log p first, log p of each, and its orderings.

    Where time does not suffice for all rows, fewer orderings are averaged.
    """
    if explorer.table is None:
        raise ValueError("there are no data: start the explorer with --data FILE")
    _no_images(explorer, "sorted")
    if explorer.order is None:
        chosen = np.random.default_rng(0).permutation(explorer.table.height)[:SCORED]
        rows = explorer.rows_of(explorer.table[chosen.tolist()])
        score, k = explorer.model.score_samples, explorer.k
        n = explorer.costs.affordable(lambda n: score(rows[:n]), 3 * len(chosen)) // 3 or 1
        if k and n < len(chosen):
            k = max(1, k * n // len(chosen))
            n = min(len(chosen), n * (explorer.k or 1) // k)
        log_p, chosen = score(rows[:n], **{"orderings": k} if k else {}), chosen[:n]
        order = np.lexsort((chosen, log_p))
        explorer.order = chosen[order], log_p[order], k
    return explorer.order


def rows(explorer: Explorer, start: Any = 0, n: Any = 25, lowest: Any = True) -> dict[str, Any]:
    """Rows of the data by their log p, with the surprise of every cell of a mixed table."""
    start, n, model = whole(start, "start", 0, 10**9), whole(n, "n", 1, 100), explorer.model
    places, log_p, k = _sorted_rows(explorer)
    part = slice(start, start + n)
    at, scores = (each[part] if lowest else each[::-1][part] for each in (places, log_p))
    out: dict[str, Any] = {"total": explorer.table.height, "scored": len(places), "rows": []}
    out |= {
        "columns": [*explorer.by_name],
        "badge": explorer.score_badge(log_p, k),
        "code": explorer.code.rows(at.tolist(), k),
        "notes": [],
    }
    if not len(at):
        return out
    chosen = explorer.table[at.tolist()]
    spread = _spread(explorer, chosen, out["notes"])
    extra: list[dict[str, Any]] = [{} for _ in at]
    if (surprise := _surprise(explorer, chosen, out["notes"])) is not None:
        known = ~np.isnan(model.schema_.encode(chosen)[0] if explorer.mixed else surprise)
        extra = [
            {"surprise": [*map(json_value, s)], "known": k.tolist()}
            for s, k in zip(surprise, known, strict=True)
        ]
    out["code"] = explorer.code.rows(at.tolist(), k, surprise is not None, not np.isnan(spread).all())
    for i, cells in enumerate(chosen.select([*explorer.by_name]).rows()):
        line = {"row": int(at[i]), "log_prob": json_value(scores[i]), "spread": json_value(spread[i])}
        out["rows"].append(line | {"cells": [*map(json_value, cells)]} | extra[i])
    return out


def _spread(explorer: Explorer, chosen: Any, notes: list[str]) -> np.ndarray:
    """Standard deviation of log p of rows over orderings; NaN where there is none, or no time for it."""
    rows = explorer.rows_of(chosen)
    if explorer.costs.in_time("spread", lambda n: explorer.spread_of_scores(rows[:n]), len(rows)):
        return explorer.spread_of_scores(rows)
    notes.append("how far orderings disagree would take too long here")
    return np.full(len(rows), math.nan)


def _surprise(explorer: Explorer, chosen: Any, notes: list[str]) -> np.ndarray | None:
    """-log of the probability of a value at least as odd as each cell given the others; or None."""
    model, rows = explorer.model, explorer.rows_of(chosen)
    if not isinstance(model.model_, Orderless | Marginalisable):
        notes.append("cells are not shaded: this model has a fixed ordering and knows only the cells before")
        return None

    def of_cells(n: int) -> Any:
        some = chosen[:n] if explorer.mixed else rows[:n]
        return model.surprise(some, measure="p_value") if explorer.mixed else cell_cdfs(model, some)

    def of_one() -> None:
        column = explorer.columns[0]
        answer = model.conditional(column.name)
        answer.pmf(column.levels) if column.n_levels else answer.cdf([explorer._moment(column, 0.0)])

    if not explorer.costs.in_time("surprise", of_cells, len(rows), of_one if explorer.mixed else None):
        notes.append("cells are not shaded: that would take too long here")
        return None
    if explorer.mixed:
        return explorer.frame(of_cells(len(rows))).to_numpy()
    below, up_to = of_cells(len(rows))
    return -np.log(np.clip(2 * np.minimum(up_to, 1 - below), 1e-300, 1))


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
    n, seed = whole(n, "n", 10, 5000), whole(seed, "seed", 0, 2**31 - 1)
    known, notes = explorer.given({} if given is None else given)
    model, keyed = explorer.model, explorer.keyed(known)
    if explorer.shape is not None:
        return _image_samples(explorer, seed, known) | {"notes": notes}
    n = explorer.costs.affordable(lambda n: model.sample(n, seed, given=keyed or None), n, 16)
    drawn = explorer.frame(model.sample(n, random_state=seed, given=keyed or None))
    real = None if explorer.table is None else explorer.near(known)
    columns: list[dict[str, Any]] = []
    for column in explorer.columns:
        out: dict[str, Any] = {"column": column.name, "kind": column.kind}
        sides = {"sampled": drawn} | ({} if real is None else {"real": real})
        if column.n_levels:
            out["levels"] = [*map(json_value, (*column.levels, *column.known_rare))][:40]
            texts = [str(v).lower() if isinstance(v, bool) else str(v) for v in out["levels"]]
            for side, frame in sides.items():
                cells = frame[column.name].drop_nulls().cast(polars.String)
                shares = dict(cells.value_counts().rows())
                out[side] = [shares.get(text, 0) / max(1, len(cells)) for text in texts]
        else:
            values = {side: explorer.numbers(frame, column) for side, frame in sides.items()}
            values = {side: x[~np.isnan(x)] for side, x in values.items()}
            ends = np.concatenate([np.quantile(x, [0.005, 0.995]) for x in values.values() if len(x)])
            edges = column.bins(float(ends.min()), float(ends.max()), 32)
            for side, x in values.items():
                cdf = np.searchsorted(np.sort(x), edges, side="right") / max(1, len(x))
                out[side] = np.diff(cdf).tolist()
            out |= {"edges": edges.tolist(), "step": column.resolution}
        columns.append(out)
    numbers = [c for c in explorer.columns if c.numeric and c.kind != "constant" and c.name not in known]
    matrices = {}
    for side, frame in (("sampled", drawn), ("real", real)):
        if frame is not None and len(numbers) > 1 and frame.height > 2:
            cells = np.stack([explorer.numbers(frame, c) for c in numbers], axis=1)
            matrices[side] = _correlations(cells)
    names = [c.name for c in numbers]
    return {
        "n": n,
        "real_rows": None if real is None else real.height,
        "columns": columns,
        "numbers": names,
        "correlations": matrices,
        "csv": drawn.write_csv(),
        "badge": {"kind": "exact", "text": f"{n:,} exact draws"},
        "notes": notes,
        "code": explorer.code.sample(n, seed, keyed, names),
    }


def _image_samples(explorer: Explorer, seed: int, known: dict[str, Any]) -> dict[str, Any]:
    """Sixteen images of the model, and of the data, with the pixels that are given."""
    model, n, given = explorer.model, 16, explorer.keyed(known)
    options: dict[str, Any] = {"given": given} if given else {}
    if isinstance(model, ImageEstimator) and not given:  # a pass of the net for every step
        steps = explorer.costs.affordable(lambda n: [_pixel_means(explorer, 16) for _ in range(n)], 10**6, 2)
        options = {"per_step": max(1, math.ceil(len(explorer.columns) / steps))}
    drawn = np.asarray(model.sample(n, random_state=seed, **options), float)
    text = (
        f"{n} exact draws"
        if options.get("per_step", 1) == 1
        else f"approximate: {options['per_step']} pixels at once"
    )
    real = None if explorer.table is None else explorer.near(known)
    real = None if real is None else real.sample(min(n, real.height), seed=seed)
    code = explorer.code.sample(n, seed, given, [])
    return {
        "images": {"sampled": drawn.tolist()}
        | ({} if real is None else {"real": real.to_numpy().astype(float).tolist()}),
        "n": n,
        "badge": {"kind": "exact" if options.get("per_step", 1) == 1 else "estimate", "text": text},
        "code": code.replace("given=None", f"per_step={options['per_step']}")
        if "per_step" in options
        else code,
    }


def _pixel_means(explorer: Explorer, n: int, image: np.ndarray | None = None) -> np.ndarray:
    """Expectation of every pixel given the others that are known, in one pass of an orderless model."""
    x = torch.full((n, len(explorer.columns)), math.nan) if image is None else torch.tensor(image[None])
    with torch.no_grad():
        density = explorer.model.model_
        return density.family.mean(density.conditionals(x, ~x.isnan())).double().numpy()


def image(explorer: Explorer, row: Any = None, hole: Any = (), seed: Any = 0) -> dict[str, Any]:
    """An image of the data or of the model; with a hole, completions, log p of the rest, probabilities."""
    if explorer.shape is None:
        raise ValueError("this model is not one of images")
    model, seed, n = explorer.model, whole(seed, "seed", 0, 2**31 - 1), len(explorer.columns)
    if row is not None:
        if explorer.table is None:
            raise ValueError("there are no data: start the explorer with --data FILE")
        pixels = explorer.table.row(whole(row, "row", 0, explorer.table.height - 1))
        pixels = np.asarray(pixels, dtype=np.float64)
    else:
        pixels = np.asarray(model.sample(1, random_state=seed), float)[0]
    if not isinstance(hole, list | tuple) or len(hole) > n:
        raise ValueError("hole must be a list of numbers of pixels")
    places = sorted({whole(place, "a pixel of the hole", 0, n - 1) for place in hole})
    out: dict[str, Any] = {
        "pixels": pixels.tolist(),
        "rows": None if explorer.table is None else explorer.table.height,
        "code": explorer.code.image(row, places, seed),
    }
    if not places:
        return out
    if len(places) == n:
        raise ValueError("the hole leaves nothing of the image")
    gaps = pixels.copy()
    gaps[places] = math.nan
    if isinstance(model, ImageEstimator):
        steps = explorer.costs.affordable(
            lambda k: [_pixel_means(explorer, COMPLETIONS) for _ in range(k)], 10**6, 2
        )
        if steps < len(places):
            raise TooMuch(f"a hole of {len(places)} pixels takes too long here: paint one of at most {steps}")
    made = np.asarray(model.impute(gaps[None], n=COMPLETIONS, random_state=seed), float)[:, 0]
    out |= {"completions": made.tolist(), "notes": []}
    exact, log_p, means = {"kind": "exact", "text": "exact"}, "", "probabilities = "
    if isinstance(model, ImageEstimator):
        found = model.estimate(gaps[None], draws=PASSES)
        log_p = f"model.estimate(image[None], draws={PASSES}).mean"
        badge = {"kind": "estimate", "text": f"estimate ± {found.mc_stderr:.2f}", "error": found.mc_stderr}
        out |= {"log_prob": found.mean, "badge": badge}
    elif model.takes_missing:
        log_p = "model.score_samples(image[None])[0]"
        exact_p = model.score_samples(gaps[None])
        out |= {"log_prob": float(exact_p[0]), "badge": explorer.score_badge(exact_p)}
        out["spread"] = json_value(explorer.spread_of_scores(gaps[None])[0])
    else:
        out["notes"] = ["this model has a fixed ordering, so the probability of the rest is not tractable"]
    if explorer.orderless:
        found = _pixel_means(explorer, 1, gaps)[0]
        means = (
            "import torch\n\nx = torch.tensor(image[None])\neta = model.model_.conditionals(x, ~x.isnan())\n"
        )
        means += "probabilities = model.model_.family.mean(eta)[0].detach().numpy()\n"
        out["pixel_badge"] = exact
    else:
        many = 200
        found = np.asarray(model.impute(gaps[None], n=many, random_state=seed), float)[:, 0].mean(0)
        means += f"model.impute(image[None], n={many}, random_state={seed})[:, 0].mean(0)\n"
        error = 0.5 * explorer.white / math.sqrt(many)
        out["pixel_badge"] = {"kind": "estimate", "text": f"estimate ± {error:.2g}", "error": error}
    out["probabilities"] = np.where(np.isnan(gaps), found / explorer.white, pixels / explorer.white).tolist()
    return out | {"code": explorer.code.image(row, places, seed, log_p, means, out.get("spread") is not None)}


def scores(explorer: Explorer) -> dict[str, Any]:
    """Log-likelihood of the model beside independent columns and a Gaussian, as far as they are known."""
    if explorer.scored is None:
        explorer.scored = {"scores": [*_known_scores(explorer), *_compared(explorer)]}
    return explorer.scored


def _line(label: str, found: dict[str, Any], where: str, badge: dict[str, Any]) -> dict[str, Any]:
    if not found.get("exact", True):
        badge = {"kind": "estimate", "text": f"estimate ± {found['mc_stderr']:.3f}"}
    return {"label": label, "mean": found["mean"], "stderr": found["stderr"], "where": where, "badge": badge}


def _known_scores(explorer: Explorer) -> list[dict[str, Any]]:
    """What the run knows: scores of validation rows."""
    valid, gain = (explorer.result.get(name) for name in ("valid", "gain"))
    where = f"{valid['n']:,} validation rows of the run" if valid else ""
    badge = explorer.exact_badge()
    lines = [_line("log-likelihood per row", valid, where, badge)] if valid else []
    return lines + ([_line("better than independent columns by", gain, where, badge)] if gain else [])


def _compared(explorer: Explorer) -> list[dict[str, Any]]:
    """Scores of rows of the data by the model, and by a simpler one that is fitted to other rows."""
    model, table = explorer.model, explorer.table
    if table is None or isinstance(model, ImageEstimator):
        return []
    table = table.sample(fraction=1, shuffle=True, seed=0)
    some = table.head(min(COMPARED, table.height // 2))
    rows = explorer.rows_of(some)
    n = (
        explorer.costs.affordable(lambda n: model.score_samples(rows[:n]), 5 * len(rows)) // 5
        if len(rows)
        else 0
    )
    if n < LEAST:
        return []
    some, rows, others = some.head(n), rows[:n], table[some.height : some.height + FITTED]
    lines, where = [], f"{n:,} rows of the data"
    if explorer.mixed and not explorer.result.get("gain"):
        gain = model.gain(rows)
        found = Estimate.from_rows(gain).to_json()
        lines.append(_line("better than independent columns by", found, where, explorer.score_badge(gain)))
    numbers = [c for c in explorer.columns if not explorer.mixed or not (c.n_levels or c.kind == "date")]
    if not numbers or others.height < 5 * len(numbers):
        return lines
    cells, fitted = (np.stack([explorer.numbers(t, c) for c in numbers], axis=1) for t in (some, others))
    simple, label = Gaussian(random_state=0), "a Gaussian"
    if explorer.mixed:
        kept = ~np.isnan(cells).all(1)
        unknown = [polars.lit(None).alias(c.name) for c in explorer.columns if c not in numbers]
        rows, cells = some.filter(polars.Series(kept)).with_columns(unknown), cells[kept]
        label += f" ({len(numbers)} columns of numbers)"
    elif explorer.columns[0].kind == "binary":
        simple, label = BernoulliMixture(n_components=1, random_state=0), "independent columns"
    try:
        ours = model.score_samples(rows, **({"density": True} if explorer.mixed else {}))
        simple.fit(fitted[~np.isnan(fitted).all(1)])
        better = Estimate.from_rows(ours - simple.score_samples(cells)).to_json()
    except ValueError:  # such as a column that is constant in these rows
        return lines
    where += f"; it was fitted to {others.height:,} others"
    return [*lines, _line(f"better than {label} by", better, where, explorer.score_badge(ours))]
