"""The paper's tables beside ours, made from the records (`pynade report` writes them).

What the paper printed stands in `paper/*.toml`, what we measured in results/*/*/*.json; this module only
lays the two side by side and writes docs/results.md. The README shows some highlights, and a test fails when
either document and the records disagree.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_rel

TABLES = ("binary", "mnist", "uci", "patches", "speech")
SIGNIFICANCE = 0.05  # of the paired t-test over folds
LEGEND = (
    "Each cell: ours ± its standard error, linked to its record (the paper's value), and a mark: ▲ better, "
    "= the same within two standard errors, ▼ worse. Bold by the paper's rule among our own numbers. "
    "A dash is not measured yet. † was made by an earlier protocol than the one `pynade reproduce` follows "
    "today; its record has the commands that made it."
)


@dataclass(frozen=True)
class Row:
    """One model of a table: the paper's values by data set, and where ours are recorded."""

    model: str
    record: str  # file under results/, with {data} for the data set
    paper: dict[str, float] = field(default_factory=dict)
    entry: tuple[str, ...] = ("test",)  # where in the record
    fit: dict[str, Any] | None = None  # how the record is made: one run …
    sweep: dict[str, Any] | None = None  # … or a grid chosen on validation
    orderings: int | None = None  # scored under so many …
    draws: int | None = None  # … exactly on some rows only, and estimated with so many draws on all
    every: int = 10  # which rows: every so manieth
    precision: str = "tf32"  # of the nets while they are scored
    quick: dict[str, Any] = field(default_factory=dict)  # what a trial takes instead: parameters, every
    minutes: float = 5.0  # about, on an H200


@dataclass(frozen=True)
class Table:
    """One table of the paper."""

    title: str
    about: str
    columns: list[str]
    rows: list[Row]
    bold_by: str  # "overlap" of two standard errors, or "paired" t-test over folds
    number: list[int]  # in the paper
    unavailable: dict[str, str] = field(default_factory=dict)  # data sets that cannot be had, and why
    compare: bool = True  # False where ours are other data than the paper's


@dataclass(frozen=True)
class Measured:
    """What a record says about one cell."""

    mean: float
    stderr: float
    exact: bool
    file: str
    folds: tuple[float, ...] = ()
    present: bool = True  # made by the protocol that stands in the table today


def table(name: str) -> Table:
    """One of the paper's tables as a data file.

    Example:
        >>> table("uci").columns
        ['red_wine', 'white_wine', 'parkinsons']
    """
    content = tomllib.loads(files("pynade.experiments").joinpath(f"paper/{name}.toml").read_text("utf-8"))
    rows = [Row(**{**row, "entry": tuple(row.get("entry", ("test",)))}) for row in content.pop("row")]
    return Table(rows=rows, **content)


def measured(results: Path, row: Row, data: str) -> Measured | None:
    """Our number, if it has been recorded (and is no trial)."""
    file = row.record.format(data=data)
    path = results / file
    if not path.is_file():
        return None
    record: Any = json.loads(path.read_text(encoding="utf-8"))
    if record.get("quick"):
        return None
    value = record
    for key in row.entry:
        value = value[key]
    folds = tuple(value.get("folds", ()))
    return Measured(value["mean"], value["stderr"], value["exact"], file, folds, _by_protocol(row, record))


def _by_protocol(row: Row, record: dict[str, Any]) -> bool:
    """Whether a record was made as its row says today."""
    spec = record.get("spec", {})
    if row.sweep is not None:
        same = all(spec.get("fixed", {}).get(k) == v for k, v in row.sweep["fixed"].items())
        grid = {k: list(v) for k, v in row.sweep["grid"].items()}
        return same and spec.get("grid") == grid and spec.get("retrain") == row.sweep["retrain"]
    if row.fit is not None:
        return all(spec.get("parameters", {}).get(k) == v for k, v in row.fit["parameters"].items())
    return True


def best(cells: dict[str, Measured], rule: str) -> set[str]:
    """The models of a column that the paper's rule prints in bold.

    Example:
        >>> ours = {"a": Measured(-1.0, 0.1, True, ""), "b": Measured(-1.1, 0.1, True, "")}
        >>> sorted(best(ours | {"c": Measured(-9.0, 0.1, True, "")}, "overlap"))
        ['a', 'b']
    """
    if not cells:
        return set()
    first = max(cells, key=lambda model: cells[model].mean)
    top = cells[first]
    if rule == "overlap":
        edge = top.mean - 2 * top.stderr
        return {model for model, cell in cells.items() if cell.mean + 2 * cell.stderr >= edge}
    return {model for model, cell in cells.items() if model == first or not _worse(cell, top)}


def _worse(cell: Measured, top: Measured) -> bool:
    if len(cell.folds) != len(top.folds) or len(cell.folds) < 2 or not np.isfinite(cell.folds).all():
        return True
    return bool(ttest_rel(cell.folds, top.folds).pvalue < SIGNIFICANCE)


def mark(ours: Measured, paper: float) -> str:
    """Better, the same within two standard errors of ours, or worse."""
    gap = ours.mean - paper
    slack = 2 * ours.stderr
    return "▲" if gap > slack else "▼" if gap < -slack else "="


def markdown(results: Path, shown: Table, link: str) -> str:
    """One table; columns without any number of ours or the paper's are left out."""
    bold = {
        data: best({r.model: m for r in shown.rows if (m := measured(results, r, data))}, shown.bold_by)
        for data in shown.columns
    }
    head = " | ".join(["model", *shown.columns])
    lines = [f"| {head} |", "|---" * (1 + len(shown.columns)) + "|"]
    for row in shown.rows:
        cells = [_cell(results, shown, row, data, row.model in bold[data], link) for data in shown.columns]
        if any(cell != "–" for cell in cells):
            lines.append(f"| {row.model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(results: Path, shown: Table, row: Row, data: str, bold: bool, link: str) -> str:
    ours, paper = measured(results, row, data), row.paper.get(data)
    if ours is None:
        why = f" not measured: {shown.unavailable[data]}" if data in shown.unavailable else ""
        corpus = "" if shown.compare else "TIMIT: "
        return f"–{why}" if paper is None else f"–{why} ({corpus}{paper:.2f})"
    number = f"{ours.mean:.2f} ± {ours.stderr:.2f}" + ("" if ours.exact else " (estimate)")
    number += "" if ours.present else "†"
    text = f"[{f'**{number}**' if bold else number}]({link}/{ours.file})"
    if paper is None:
        return text
    if not shown.compare:
        return f"{text} (TIMIT: {paper:.1f})"
    return f"{text} ({paper:.2f}) {mark(ours, paper)}"


HIGHLIGHTS = (
    ("binary", "NADE", "mushrooms"),
    ("mnist", "NADE, fixed order", "binarized_mnist"),
    ("mnist", "DeepNADE 2hl", "binarized_mnist"),
    ("mnist", "EoNADE 2hl, 128 orderings", "binarized_mnist"),
    ("uci", "Deep orderless RNADE-MoG, 32 orderings", "white_wine"),
    ("patches", "RNADE-MoG, K = 10, 1024 units", "bsds300"),
)


def highlights(results: Path) -> str:
    """The README's table."""
    lines = ["| model | data | paper | ours (test, nats) |", "|---|---|---|---|"]
    for name, model, data in HIGHLIGHTS:
        row = next(row for row in table(name).rows if row.model == model)
        ours, paper = measured(results, row, data), row.paper.get(data)
        if ours is not None:
            number = f"[{ours.mean:.2f} ± {ours.stderr:.2f}](results/{ours.file})"
            lines.append(f"| {model} | {data} | {'' if paper is None else f'{paper:.2f}'} | {number} |")
    return "\n".join(lines)


def sections(results: Path) -> Iterator[str]:
    """docs/results.md, piece by piece."""
    yield "# Results"
    yield (
        "Test log-likelihood in nats per row (higher is better), beside the paper's. Choices were made on "
        "validation rows, the test part was scored once. Each record holds its spec, seed, "
        "data checksum, code version, device and wall time, and the commands that make it again. " + LEGEND
    )
    for name in TABLES:
        shown = table(name)
        yield f"## {shown.title}"
        yield shown.about
        yield markdown(results, shown, "../results")
    yield "This page is made from the records by `pynade report`; `pynade reproduce` makes the records."


def results_page(results: Path) -> str:
    """docs/results.md."""
    return "\n\n".join(sections(results)) + "\n"
