"""A report on one run: a page about its table, its training, its scores, and what may be wrong."""

from __future__ import annotations

import copy
import shlex
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pynade import plots
from pynade.classical.table_em import MOST_ROWS, em_table
from pynade.digest import read_json
from pynade.estimators import BernoulliMixture, DensityEstimator, Gaussian, GaussianMixture, ImageEstimator
from pynade.estimators.tabular import MOST_NUMBERS
from pynade.evaluation import exact_scores
from pynade.likelihood import Estimate
from pynade.models import Orderless
from pynade.plots.cells import calibration_limits
from pynade.plots.drawing import column_names
from pynade.runs import html
from pynade.runs.figures import image_panels, subplots
from pynade.runs.provenance import code_version, now
from pynade.runs.run import _varying, _with_validation, as_command, load_run, sampled, training_data
from pynade.runs.summary import read_result, read_spec, with_error
from pynade.tables.frames import align
from pynade.tables.images import binarized
from pynade.tables.registry import is_registered
from pynade.tables.stream import is_table

SCORED = 2000  # held-out rows that are scored
CELLS = 30_000  # cells that are looked at one by one
DRAWN = 1000  # rows that are sampled
LISTED = 15  # rows and cells in lists
LONGEST = 60  # columns in a list
STYLE = "td:last-child { white-space: normal; min-width: 9rem; }"
HELD = {"test": "test rows", "valid": "validation rows, which also ended training early"}
HELD["train"] = "training rows: none were held out, so the scores are too high"
CALIBRATION = """Each cell is compared with its distribution given the other cells of its row, or those before
it in the model's ordering. Lines in the grey band are what a right model gives; a line that leaves it belongs
to a column whose probabilities are wrong."""
SURPRISE = """counted from 0: those with the least likely cells, given the rest of their row. They may be
mistakes in the data, or rare but right."""
CELL = """The most surprising cells one by one. Log-odds say how much likelier a value is as an error than by
the model, and sort the list; the p-value is the probability of a value at least as odd."""


class Case(NamedTuple):
    """What a report is about."""

    run: Path
    model: Any
    spec: dict[str, Any]  # of a run folder
    facts: dict[str, Any]  # of the data, for the provenance
    rows: Any  # all rows, in the order of the file
    train: Any  # rows that the model was fitted to; None where they are not known
    held: Any  # rows that are scored
    which: str  # these are
    image_shape: tuple[int, ...] | None
    numbers: list[tuple[str, str]]  # at the top of the page, each with what it is


def write_report(
    run: Path, out: Path, data: str | None = None, progress: Callable[[int, int], None] = lambda *_: None
) -> list[tuple[str, str]]:
    """Write one self-contained page about a run; returns its most important numbers and what they are.

    Args:
        run: run folder or model file.
        out: the page (.html).
        data: a table instead of the one that the run was fitted to.
        progress: called as progress(done, total) after each section.
    """
    case, found = _case(run, data), list[tuple[str, str]]()
    total = 10 if not case.image_shape else 5 if isinstance(case.model, ImageEstimator) else 8
    for section in _images(case) if case.image_shape else _table(case):
        found.append(section)
        progress(len(found), total)
    body = f"<h1>{escape(run.name)}: report on a {escape(type(case.model).__name__)}</h1>\n"
    body += html.top(case.numbers, [heading for heading, _ in found])
    body += "".join(f'\n<h2 id="{html.anchor(name)}">{escape(name)}</h2>\n{text}' for name, text in found)
    out.write_text(html.page(f"{run.name}: pynade report", f"{body}\n", STYLE), encoding="utf-8")
    return case.numbers


def _case(run: Path, data: str | None) -> Case:
    """The model and its rows: those of the run's own data as they were cut, or all rows of other data."""
    model, facts = load_run(run, DensityEstimator)
    spec = read_spec(run) if run.is_dir() else {}
    name = spec.get("data") if data is None else data
    if name is None:
        raise ValueError(f"{run} is a model file, which does not say what it was fitted to: give --data")
    if data is None and not (is_registered(name) or ":" in name or Path(name).exists() or is_table(name)):
        raise ValueError(f"the data of {run} are no longer at {name}: give the table with --data")
    raw, rule, train = training_data(model, name), facts.get("binarize"), None
    whole = binarized(_varying(raw, spec.get("drop_constant", False)), rule)
    cut = whole if whole.framed else _with_validation(whole, model, spec.get("valid_rows"))
    checksum, (raw, whole, cut) = cut.checksum, map(sampled, (raw, whole, cut))
    if checksum == spec.get("data_checksum"):
        cut = _with_validation(cut, model)
        train, part = cut.train, next(part for part in HELD if part in cut.parts)
        held, which = cut.parts[part], HELD[part]
    else:
        whole = binarized(raw, rule)
        held, which = whole.split("all"), f"rows of {name}, which are not those of the training"

    def ready(rows: Any) -> Any:
        if rows is None or whole.framed:
            return rows
        return align(rows, whole.schema.names, facts.get("columns"), facts.get("dropped", ()))

    n, held, rows = len(held), _some(ready(held), SCORED)[0], ready(whole.split("all"))
    which = f"{n:,} {which}" if n == len(held) else f"{len(held):,} of {n:,} {which}"
    shape, made = facts.get("image_shape"), run / "provenance.json"
    origin = read_json(made) if made.is_file() else {}
    origin |= {f"data {key}": value for key, value in origin.pop("data", {}).items()}
    origin.pop("data digests", None)  # (of thousands of files)
    origin |= {"checksum of this table": checksum, "report made": now(), "report by": code_version()}
    origin |= {"random parts of rows": "drawn with seed 0"}
    size = f"{len(rows):,} × {len(column_names(model)):,}"
    numbers = [(size, "images and pixels" if shape else "rows and columns")]
    return Case(run, model, spec, origin, rows, ready(train), held, which, shape, numbers)


def _some(rows: Any, most: int) -> tuple[Any, np.ndarray]:
    """A random part of many rows, in order, and their numbers; the same one in every report."""
    if len(rows) <= most:
        return rows, np.arange(len(rows))
    kept = np.sort(np.random.default_rng(0).choice(len(rows), most, replace=False))
    return rows[kept], kept


def _table(case: Case) -> Iterator[tuple[str, str]]:
    """Headings and texts of the sections about a table."""
    model, D = case.model, len(column_names(case.model))
    most, n = max(50, CELLS // D), DRAWN if D <= 100 else DRAWN // 5
    held = _some(case.held, most)[0]
    yield "Columns and missing cells", _columns(case)
    yield "Training", _training(case)
    yield "Held-out score and baselines", _scores(case)
    text = _words(f"{n:,} rows drawn from the model beside {case.which}.{_first(D, plots.MARGINALS)}")
    text += _drawn("Marginals", lambda figure: plots.marginals(model, case.held, n=n, figure=figure))
    pairs = _drawn("Columns in pairs", lambda figure: plots.pairs(model, case.held, n=n, figure=figure))
    yield "Real and sampled rows", text + pairs
    text = "How strongly columns depend on each other. A good model gives a symmetric picture."
    text = _words(text + _first(D, plots.LABELLED))
    picture = _drawn("Association", lambda f: plots.dependence(model, case.held, n=n, ax=f.subplots()))
    yield "Dependence", text + picture
    yield "Calibration", _calibration(case, held)
    yield "Most surprising rows and cells", _surprise(case, *_some(case.rows, most))
    yield "Disagreement of orderings", _disagreement(case, _some(held, 500)[0])
    yield from _origin(case)


def _images(case: Case) -> Iterator[tuple[str, str]]:
    """Headings and texts of the sections about images."""
    white, result = float(case.model._cells().white), case.run / "result.json"
    panels = {"real": case.held[:36] / white, "sampled": case.model.sample(36, random_state=0) / white}
    words = "Real images, and images sampled from the model"
    yield "Samples", html.picture(image_panels(panels, case.image_shape or ()), words)
    yield "Training", _training(case)
    if not isinstance(case.model, ImageEstimator):
        yield "Held-out score and baselines", _scores(case, "image")
        held = _some(case.held, max(50, CELLS // len(column_names(case.model))))[0]
        yield "Calibration", _calibration(case, held)
        yield "Least and most likely images", _extremes(case)
        yield "Disagreement of orderings", _disagreement(case, _some(held, 500)[0])
        yield from _origin(case)
        return
    valid = (read_result(case.run) if result.is_file() else {}).get("valid")
    text = "no validation rows"
    if valid:
        text = with_error(valid, 2)
        case.numbers.append((text, "validation log-likelihood (nats per image)"))
        text += f" nats on {valid['n']:,} validation images, {'exact' if valid['exact'] else 'an estimate'}"
    simple = [(name, Estimate.from_rows(scores)) for name, scores in _baselines(case, np.empty(0)).items()]
    table = html.table(
        ("simple model", "log-likelihood"), [(n, f"{e.mean:.2f} ± {e.stderr:.2f}") for n, e in simple]
    )
    words = _words(f"Simple models on {case.which}:") + table if simple else ""
    yield "Score", _words(f"{text}.") + words
    yield from _origin(case)


def _extremes(case: Case) -> str:
    """Held-out images with the smallest and the largest log p."""
    order, white = np.argsort(case.model.score_samples(case.held)), float(case.model._cells().white)
    panels = {
        "least likely": case.held[order[:25]] / white,
        "most likely": case.held[order[::-1][:25]] / white,
    }
    picture = html.picture(image_panels(panels, case.image_shape or ()), "Least and most likely images")
    return _words(f"Of {case.which}.") + picture


def _first(D: int, drawn: int) -> str:
    return f" The first {drawn} of {D:,} columns are drawn." if drawn < D else ""


def _words(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _drawn(words: str, draw: Callable[[Any], Any], width: float = 7.5, height: float = 6.0) -> str:
    """The picture that a function draws in an empty figure."""
    figure = subplots(1, 1, width, height)[0]
    figure.clear()
    draw(figure)
    return html.picture(figure, words)


def _columns(case: Case) -> str:
    schema, names = getattr(case.model, "schema_", None), column_names(case.model)
    codes, offsets = schema.encode(case.rows) if schema else (np.asarray(case.rows, dtype=float), 0.0)
    gaps = np.isnan(codes) & (offsets == 0)
    case.numbers.append((f"{gaps.mean():.1%}", "of the cells are missing"))
    share = {name: f"{part:.1%}" for name, part in zip(names, gaps.mean(0), strict=True)}
    text = f"{(~gaps.any(1)).sum():,} of {len(gaps):,} rows are complete."
    if schema:
        head = ["column", "kind", "values", "missing", "why it was taken so"]
        lines = [
            [name, kind, values if len(values) <= 60 else f"{values[:59]}…", share.get(name, ""), why]
            for name, kind, values, why in schema.table()
        ]
    else:
        head = ["column", "mean", "smallest", "largest", "missing"]
        with warnings.catch_warnings(action="ignore"):  # of columns without a value
            facts = [each(codes, 0) for each in (np.nanmean, np.nanmin, np.nanmax)]
        lines = [
            [name, *(f"{value:.4g}" for value in values), share[name]]
            for name, *values in zip(names, *facts, strict=True)
        ]
        text += f" The model takes {case.model._cells().takes}."
    if len(lines) > LONGEST:
        text += f" The first {LONGEST} of {len(lines):,} columns are listed."
    return _words(text) + html.table(head, lines[:LONGEST])


def _training(case: Case) -> str:
    history = case.model.history_
    n = len(history.epochs)
    text = f"{n:,} epoch{'s' * (n != 1)} in {history.seconds:,.1f} s; it ended because: {history.stopped}."
    draw = _drawn("Log-likelihoods", lambda f: plots.training(case.model, f.subplots()), 6.4, 4.0)
    return _words(text) + draw


def _scores(case: Case, row: str = "row") -> str:
    """The model's score and those of simpler models, on the same rows."""
    with warnings.catch_warnings(action="ignore"):
        own = case.model.score_samples(case.held)
    found = {type(case.model).__name__: own} | _baselines(case, own)
    lines = list[tuple[str, str, str]]()
    for name, scores in found.items():
        mean, gain = (Estimate.from_rows(values) for values in (scores, own - scores))
        texts = [f"{value.mean:.2f} ± {value.stderr:.2f}" for value in (mean, gain)]
        lines.append((name, texts[0], texts[1] if lines else ""))
    case.numbers.append((lines[0][1], f"held-out log-likelihood (nats per {row})"))
    case.numbers.extend((gain, f"nats per {row} better than {name}") for name, _, gain in lines[1:2])
    text = f"Mean log p per {row} in nats with its standard error, on {case.which}. Higher is better; "
    text += "differences are over the same rows. Simple models are fitted to the training rows"
    text += ", which are not known here." if case.train is None else f", {MOST_ROWS:,} random ones of more."
    return _words(text) + html.table(("model", "log-likelihood", "the model is better by"), lines)


def _baselines(case: Case, own: np.ndarray) -> dict[str, np.ndarray]:
    """Log p of each held-out row by simple models of the training rows, as far as these are known."""
    model, schema = case.model, getattr(case.model, "schema_", None)
    found = {"independent columns": own - model.gain(case.held)} if schema else {}
    if case.train is None:
        return found
    train = _some(case.train, MOST_ROWS)[0]
    if schema is None:
        simple: dict[str, Any] = {"independent Gaussian columns": Gaussian(shrinkage=1.0)}
        simple["Gaussian"] = Gaussian()
        simple["mixture of Gaussians"] = GaussianMixture(n_components=(2, 4, 8), epochs=50, random_state=0)
        if model._cells().kind != "real":
            simple = {"independent columns": BernoulliMixture(1, random_state=0)}
            simple["mixture of Bernoullis"] = BernoulliMixture((2, 8, 32), epochs=50, random_state=0)
        for name, each in simple.items():
            with suppress(ValueError):  # such as a singular covariance
                found[name] = each.fit(train).score_samples(case.held)
        return found
    (codes, _), (x, offsets) = schema.encode(train), schema.encode(case.held)
    family, rows = copy.deepcopy(model.model_.family).double(), torch.as_tensor(codes)
    known = ~torch.isnan(rows)
    seen = (
        family.encode(family.fill(rows, known))[..., 0].masked_fill(~known, torch.nan)[known.any(1)].numpy()
    )
    sizes: list[tuple[str, int | None]] = [("one Gaussian, independent levels", 1)]
    if family.levels.count(0) <= MOST_NUMBERS:  # a mixture of more takes minutes
        sizes.append(("mixture of Gaussians with levels", None))
    for name, size in sizes:
        net = em_table(seen, family.levels, size, family.n_features, family.sigma_floor)
        density = Orderless(net, family.with_components(net.mixed_components or 1)).double()
        name += "" if size else f" ({net.n_components} components)"
        found[name] = exact_scores(density, x, model.orderings(1)) + offsets.sum(1)
    return found


def _calibration(case: Case, held: Any) -> str:
    try:
        sizes, distances, limits = calibration_limits(plots.pit(case.model, held))
    except ValueError as error:
        return _words(f"It cannot be computed: {error}.")
    inside, names = distances <= limits, column_names(case.model)
    case.numbers.append(
        (f"{inside.sum()} of {len(inside)}", "columns with calibrated distributions of cells")
    )
    text = _words(CALIBRATION)
    text += _drawn("Calibration", lambda f: plots.calibration(case.model, held, ax=f.subplots()), 7.0, 4.4)
    lines = [
        (names[k], f"{sizes[k]:,}", f"{distances[k]:.3f}", f"{limits[k]:.3f}", "yes" if inside[k] else "no")
        for k in np.argsort(-distances / limits)[:LISTED]
    ]
    return text + html.table(("column", "cells", "distance", "chance allows", "calibrated"), lines)


def _surprise(case: Case, rows: Any, places: np.ndarray) -> str:
    def draw(figure: Any) -> None:
        plots.surprise(case.model, rows, LISTED, index=places.tolist(), ax=figure.subplots())

    try:
        picture = _drawn("Surprising rows, shaded by how unlikely a cell is", draw, 12.5, 1.4 + 0.27 * LISTED)
    except ValueError as error:
        return _words(f"They cannot be found: {error}.")
    part = "all" if len(places) == len(case.rows) else f"{len(places):,} random rows of"
    text = _words(f"Of {part} {len(case.rows):,} rows, {SURPRISE}") + picture
    if not hasattr(case.model, "surprise"):
        return text
    names = ("row", "column", "value", "log_odds", "p_value", "expected", "low", "high")
    cells = case.model.surprise(rows, top=LISTED).select(*names).rows()
    lines = [
        (places[row], name, value, f"{odds:.1f}", f"{p:.2g}", *others)
        for row, name, value, odds, p, *others in cells
    ]
    head = ("row", "column", "value", "log-odds", "p-value", "expected", "5 %", "95 %")
    return text + _words(CELL) + html.table(head, lines)


def _disagreement(case: Case, held: Any) -> str:
    """How far the scores along eight orderings differ."""
    if not hasattr(case.model, "disagreement"):
        return _words(f"A {type(case.model).__name__} has no choice of orderings.")
    apart = case.model.disagreement(held)
    apart = apart[~np.isnan(apart)]
    if not len(apart):
        return _words("No held-out row is complete, so orderings cannot be compared.")
    case.numbers.append((f"{apart.mean():.2f}", "nats by which orderings disagree about a row"))
    text = f"The standard deviation of log p over 8 orderings, of {len(apart):,} complete rows: "
    text += f"{apart.mean():.3f} nats on average, at most {np.quantile(apart, 0.9):.3f} in nine of ten rows."
    return _words(text)


def _origin(case: Case) -> Iterator[tuple[str, str]]:
    """Where everything comes from, and the commands to make it again."""
    lines = [
        (name, ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value)
        for name, value in case.facts.items()
        if value not in ([], {}, "", None)
    ]
    lines = [(name, "; ".join(map(str, v)) if isinstance(v, list) else v) for name, v in lines]
    yield "Provenance", html.table(("fact", "value"), lines)
    run, data = shlex.quote(str(case.run)), shlex.quote(str(case.spec.get("data", "DATA")))
    commands = [as_command(case.spec, run)] if case.spec else []
    commands += [f"pynade score {run} {data}", f"pynade report {run}"]
    yield "Commands", f"<pre>{escape(chr(10).join(commands))}</pre>"
