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
from matplotlib.figure import Figure

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
from pynade.runs.figures import image_panels
from pynade.runs.provenance import code_version, now
from pynade.runs.run import _cut_validation, _drop_constant, as_command, in_memory, load_run, training_data
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
HELD_OUT = {"test": "test rows", "valid": "validation rows, which also ended training early"}
HELD_OUT["train"] = "training rows: none were held out, so the scores are too high"
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
    names: list[str]  # of the columns of the model
    rows: Any  # all rows, in the order of the file
    train: Any  # rows that the model was fitted to; None where they are not known
    held_out: Any  # rows that are scored
    source: str  # of these rows, in words
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
    case, texts = _read_case(run, data), dict[str, str]()
    total = 10 if not case.image_shape else 5 if isinstance(case.model, ImageEstimator) else 8
    for heading, text in _sections(case):
        texts[heading] = text
        progress(len(texts), total)
    body = f"<h1>{escape(run.name)}: report on a {escape(type(case.model).__name__)}</h1>\n"
    body += html.top(case.numbers, texts)
    for heading, text in texts.items():
        body += f'\n<h2 id="{html.anchor(heading)}">{escape(heading)}</h2>\n{text}'
    out.write_text(html.page(f"{run.name}: pynade report", f"{body}\n", STYLE), encoding="utf-8")
    return case.numbers


def _read_case(run: Path, data: str | None) -> Case:
    """The model and its rows: those of the run's own data as they were cut, or all rows of other data."""
    model, saved = load_run(run, DensityEstimator)
    spec = read_spec(run) if run.is_dir() else {}
    name = spec.get("data") if data is None else data
    if name is None:
        raise ValueError(f"{run} is a model file, which does not say what it was fitted to: give --data")
    if data is None and not (is_registered(name) or ":" in name or Path(name).exists() or is_table(name)):
        raise ValueError(f"the data of {run} are no longer at {name}: give the table with --data")
    raw, rule, train = training_data(model, name), saved.get("binarize"), None
    dataset = binarized(_drop_constant(raw, spec.get("drop_constant", False)), rule)
    parts = dataset if dataset.framed else _cut_validation(dataset, model, spec.get("valid_rows"))
    checksum = parts.checksum
    if checksum == spec.get("data_checksum"):
        dataset, parts = in_memory(dataset), _cut_validation(parts, model)
        train, part = parts.train, next(part for part in HELD_OUT if part in parts.parts)
        held_out, source = parts.parts[part], HELD_OUT[part]
    else:
        dataset = binarized(in_memory(raw), rule)
        held_out, source = dataset.split("all"), f"rows of {name}, which are not those of the training"

    def aligned(rows: Any) -> Any:
        if rows is None or dataset.framed:
            return rows
        return align(rows, dataset.schema.names, saved.get("columns"), saved.get("dropped", ()))

    n, held_out = len(held_out), _random_rows(aligned(held_out), SCORED)[0]
    source = f"{n:,} {source}" if n == len(held_out) else f"{len(held_out):,} of {n:,} {source}"
    rows = aligned(dataset.split("all"))
    shape, names, origin = saved.get("image_shape"), column_names(model), run / "provenance.json"
    facts = read_json(origin) if origin.is_file() else {}
    facts |= {f"data {key}": value for key, value in facts.pop("data", {}).items()}
    facts.pop("data digests", None)  # (of thousands of files)
    facts |= {"checksum of this table": checksum, "report made": now(), "report by": code_version()}
    facts |= {"random parts of rows": "drawn with seed 0"}
    size = f"{len(rows):,} × {len(names):,}", "images and pixels" if shape else "rows and columns"
    return Case(run, model, spec, facts, names, rows, aligned(train), held_out, source, shape, [size])


def _random_rows(rows: Any, most: int) -> tuple[Any, np.ndarray]:
    """A random part of many rows, in order, and their numbers; the same one in every report."""
    if len(rows) <= most:
        return rows, np.arange(len(rows))
    kept = np.sort(np.random.default_rng(0).choice(len(rows), most, replace=False))
    return rows[kept], kept


def _sections(case: Case) -> Iterator[tuple[str, str]]:
    """Headings and texts of the sections."""
    model, shape, D, scored = case.model, case.image_shape, len(case.names), case.held_out
    n, most = DRAWN if D <= 100 else DRAWN // 5, max(50, CELLS // D)
    real: Any = {"X": scored, "n": n}
    rows = _random_rows(scored, most)[0]
    if shape:
        white = float(model._cells().white)
        panels = {"real": scored[:36] / white, "sampled": model.sample(36, random_state=0) / white}
        words = "Real images, and images sampled from the model"
        yield "Samples", html.picture(image_panels(panels, shape), words)
    else:
        yield "Columns and missing cells", _columns(case)
    yield "Training", _training(case)
    if isinstance(model, ImageEstimator):  # whose exact scores take long
        yield "Score", _validation_score(case)
    else:
        yield "Held-out score and baselines", _scores(case)
        if not shape:
            text = f"{n:,} rows drawn from the model beside {case.source}.{_first(D, plots.MARGINALS)}"
            text = _paragraph(text)
            text += _picture("Marginals", lambda f: plots.marginals(model, **real, figure=f))
            text += _picture("Columns in pairs", lambda f: plots.pairs(model, **real, figure=f))
            yield "Real and sampled rows", text
            text = "How strongly columns depend on each other. A good model gives a symmetric picture."
            text = _paragraph(text + _first(D, plots.LABELLED))
            text += _picture("Association", lambda f: plots.dependence(model, **real, ax=f.subplots()))
            yield "Dependence", text
        yield "Calibration", _calibration(case, rows)
        if shape:
            order, words = np.argsort(model.score_samples(scored)), "Least and most likely images"
            least, most_likely = scored[order[:25]], scored[order[::-1][:25]]
            panels = {"least likely": least / white, "most likely": most_likely / white}
            picture = html.picture(image_panels(panels, shape), words)
            yield words, _paragraph(f"Of {case.source}.") + picture
        else:
            yield "Most surprising rows and cells", _surprise(case, *_random_rows(case.rows, most))
        yield "Disagreement of orderings", _disagreement(case, _random_rows(rows, 500)[0])
    yield "Provenance", html.table(("fact", "value"), _provenance(case))
    run, data = shlex.quote(str(case.run)), shlex.quote(str(case.spec.get("data", "DATA")))
    commands = [as_command(case.spec, run)] if case.spec else []
    commands += [f"pynade score {run} {data}", f"pynade report {run}"]
    yield "Commands", f"<pre>{escape(chr(10).join(commands))}</pre>"


def _first(D: int, drawn: int) -> str:
    return f" The first {drawn} of {D:,} columns are drawn." if drawn < D else ""


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _picture(words: str, draw: Callable[[Any], Any], width: float = 7.5, height: float = 6.0) -> str:
    """The picture that a function draws in an empty figure."""
    figure = Figure(figsize=(width, height), layout="constrained")
    draw(figure)
    return html.picture(figure, words)


def _columns(case: Case) -> str:
    schema = getattr(case.model, "schema_", None)
    codes, offsets = schema.encode(case.rows) if schema else (np.asarray(case.rows, dtype=float), 0.0)
    gaps = np.isnan(codes) & (offsets == 0)
    case.numbers.append((f"{gaps.mean():.1%}", "of the cells are missing"))
    missing = {name: f"{share:.1%}" for name, share in zip(case.names, gaps.mean(0), strict=True)}
    text = f"{(~gaps.any(1)).sum():,} of {len(gaps):,} rows are complete."
    lines: list[list[str]] = []
    if schema:
        head = ["column", "kind", "values", "missing", "why it was taken so"]
        for name, kind, values, reason in schema.table():
            values = values if len(values) <= 60 else f"{values[:59]}…"
            lines.append([name, kind, values, missing.get(name, ""), reason])
    else:
        head = ["column", "mean", "smallest", "largest", "missing"]
        with warnings.catch_warnings(action="ignore"):  # of columns without a value
            facts = [np.nanmean(codes, 0), np.nanmin(codes, 0), np.nanmax(codes, 0)]
        for name, *numbers in zip(case.names, *facts, strict=True):
            lines.append([name, *(f"{number:.4g}" for number in numbers), missing[name]])
        text += f" The model takes {case.model._cells().takes}."
    if len(lines) > LONGEST:
        text += f" The first {LONGEST} of {len(lines):,} columns are listed."
    return _paragraph(text) + html.table(head, lines[:LONGEST])


def _training(case: Case) -> str:
    history = case.model.history_
    n = len(history.epochs)
    text = f"{n:,} epoch{'s' * (n != 1)} in {history.seconds:,.1f} s; it ended because: {history.stopped}."
    draw = _picture("Log-likelihoods", lambda f: plots.training(case.model, f.subplots()), 6.4, 4.0)
    return _paragraph(text) + draw


def _scores(case: Case) -> str:
    """The model's score and those of simpler models, on the same rows."""
    row = "image" if case.image_shape else "row"
    with warnings.catch_warnings(action="ignore"):
        own_scores = case.model.score_samples(case.held_out)
    models = {type(case.model).__name__: own_scores} | _baselines(case, own_scores)
    lines = list[tuple[str, str, str]]()
    for name, scores in models.items():
        mean, gain = map(_mean, (scores, own_scores - scores))
        lines.append((name, mean, gain if lines else ""))
    case.numbers.append((lines[0][1], f"held-out log-likelihood (nats per {row})"))
    case.numbers.extend((gain, f"nats per {row} better than {name}") for name, _, gain in lines[1:2])
    text = f"Mean log p per {row} in nats with its standard error, on {case.source}. Higher is better; "
    text += "differences are over the same rows. Simple models are fitted to the training rows"
    text += ", which are not known here." if case.train is None else f", {MOST_ROWS:,} random ones of more."
    return _paragraph(text) + html.table(("model", "log-likelihood", "the model is better by"), lines)


def _mean(scores: np.ndarray) -> str:
    return with_error(Estimate.from_rows(scores).to_json(), 2)


def _baselines(case: Case, own_scores: np.ndarray) -> dict[str, np.ndarray]:
    """Log p of each held-out row by simple models of the training rows, as far as these are known."""
    model, schema = case.model, getattr(case.model, "schema_", None)
    scores = {} if schema is None else {"independent columns": own_scores - model.gain(case.held_out)}
    if case.train is None:
        return scores
    train = _random_rows(case.train, MOST_ROWS)[0]
    if schema is None:
        simple: dict[str, Any] = {"independent Gaussian columns": Gaussian(shrinkage=1.0)}
        simple["Gaussian"] = Gaussian()
        simple["mixture of Gaussians"] = GaussianMixture(n_components=(2, 4, 8), epochs=50, random_state=0)
        if model._cells().kind != "real":
            simple = {"independent columns": BernoulliMixture(1, random_state=0)}
            simple["mixture of Bernoullis"] = BernoulliMixture((2, 8, 32), epochs=50, random_state=0)
        for name, estimator in simple.items():
            with suppress(ValueError):  # such as a singular covariance
                scores[name] = estimator.fit(train).score_samples(case.held_out)
        return scores
    (codes, _), (x, offsets) = schema.encode(train), schema.encode(case.held_out)
    family, rows = copy.deepcopy(model.model_.family).double(), torch.as_tensor(codes)
    known = ~torch.isnan(rows)
    features = family.encode(family.fill(rows, known))[..., 0].masked_fill(~known, torch.nan)
    features = features[known.any(1)].numpy()
    sizes: list[tuple[str, int | None]] = [("one Gaussian, independent levels", 1)]
    if family.levels.count(0) <= MOST_NUMBERS:  # a mixture of more takes minutes
        sizes.append(("mixture of Gaussians with levels", None))
    for name, size in sizes:
        net = em_table(features, family.levels, size, family.n_features, family.sigma_floor)
        density = Orderless(net, family.with_components(net.mixed_components or 1)).double()
        name += "" if size else f" ({net.n_components} components)"
        scores[name] = exact_scores(density, x, model.orderings(1)) + offsets.sum(1)
    return scores


def _validation_score(case: Case) -> str:
    """The validation score of a run, and those of simple models on other rows."""
    path, text = case.run / "result.json", "no validation rows"
    if path.is_file() and (valid := read_result(case.run).get("valid")):
        text = with_error(valid, 2)
        case.numbers.append((text, "validation log-likelihood (nats per image)"))
        text += f" nats on {valid['n']:,} validation images, {'exact' if valid['exact'] else 'an estimate'}"
    text, baselines = _paragraph(f"{text}."), _baselines(case, np.empty(0))
    lines = [(name, _mean(scores)) for name, scores in baselines.items()]
    table = html.table(("simple model", "log-likelihood"), lines)
    return text + (_paragraph(f"Simple models on {case.source}:") + table if lines else "")


def _calibration(case: Case, rows: Any) -> str:
    try:
        sizes, distances, limits = calibration_limits(plots.pit(case.model, rows))
    except ValueError as error:
        return _paragraph(f"It cannot be computed: {error}.")
    inside = distances <= limits
    number = f"{inside.sum()} of {len(inside)}", "columns with calibrated distributions of cells"
    case.numbers.append(number)
    text = _paragraph(CALIBRATION)
    text += _picture("Calibration", lambda f: plots.calibration(case.model, rows, ax=f.subplots()), 7.0, 4.4)
    lines = []
    for k in np.argsort(-distances / limits)[:LISTED]:
        numbers = (f"{sizes[k]:,}", f"{distances[k]:.3f}", f"{limits[k]:.3f}")
        lines.append((case.names[k], *numbers, "yes" if inside[k] else "no"))
    return text + html.table(("column", "cells", "distance", "chance allows", "calibrated"), lines)


def _surprise(case: Case, rows: Any, numbers: np.ndarray) -> str:
    def draw(figure: Any) -> None:
        plots.surprise(case.model, rows, LISTED, index=numbers.tolist(), ax=figure.subplots())

    try:
        words = "Surprising rows, shaded by how unlikely a cell is"
        picture = _picture(words, draw, 12.5, 1.4 + 0.27 * LISTED)
    except ValueError as error:
        return _paragraph(f"They cannot be found: {error}.")
    part = "all" if len(numbers) == len(case.rows) else f"{len(numbers):,} random rows of"
    text = _paragraph(f"Of {part} {len(case.rows):,} rows, {SURPRISE}") + picture
    if not hasattr(case.model, "surprise"):
        return text
    columns = ("row", "column", "value", "log_odds", "p_value", "expected", "low", "high")
    cells = case.model.surprise(rows, top=LISTED).select(*columns).rows()
    lines = [
        (numbers[row], name, value, f"{odds:.1f}", f"{p:.2g}", *others)
        for row, name, value, odds, p, *others in cells
    ]
    head = ("row", "column", "value", "log-odds", "p-value", "expected", "5 %", "95 %")
    return text + _paragraph(CELL) + html.table(head, lines)


def _disagreement(case: Case, rows: Any) -> str:
    """How far the scores along eight orderings differ."""
    if not hasattr(case.model, "disagreement"):
        return _paragraph(f"A {type(case.model).__name__} has no choice of orderings.")
    stds = case.model.disagreement(rows)
    stds = stds[~np.isnan(stds)]
    if not len(stds):
        return _paragraph("No held-out row is complete, so orderings cannot be compared.")
    case.numbers.append((f"{stds.mean():.2f}", "nats by which orderings disagree about a row"))
    text = f"The standard deviation of log p over 8 orderings, of {len(stds):,} complete rows: "
    text += f"{stds.mean():.3f} nats on average, at most {np.quantile(stds, 0.9):.3f} in nine of ten rows."
    return _paragraph(text)


def _provenance(case: Case) -> Iterator[tuple[str, Any]]:
    """Names and values of the facts about the origin of data, model and code."""
    for name, value in case.facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {entry}" for key, entry in value.items())
        elif isinstance(value, list):
            value = "; ".join(map(str, value))
        if value not in ("", None):
            yield name, value
