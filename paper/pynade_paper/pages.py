"""docs/results.md, piece by piece: tables, the tests behind the bold print, what follows, figures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from pynade_paper.speed import speed_sections
from pynade_paper.tables import (
    RULES,
    SIGNIFICANCE,
    TABLES,
    Measured,
    Table,
    column,
    difference,
    mark,
    markdown,
    measured,
    paired_p,
    same_by_one_fold,
    table,
)

LEGEND = (
    "Each cell: ours ± its standard error, linked to its record (the paper's value; the difference), and a "
    "mark: ▲ better, = the same within two standard errors, ▼ worse. Bold by the paper's rule among our own "
    "numbers, in brackets as the paper prints it. A dash is not measured, with the reason. † was made by an "
    "earlier protocol than the one `pynade reproduce` follows today; its record has the commands that made "
    "it."
)


def sections(results: Path, link: str = "../paper/results") -> Iterator[str]:
    """The page's headings, paragraphs, tables, lists and pictures.

    Args:
        results: folder of the records.
        link: how the page reaches that folder.
    """
    yield "# Results"
    yield (
        "Test log-likelihood in nats per row (higher is better), beside the paper's. Choices were made on "
        "validation rows, and each record's model met the test part once; cells that were made again under a "
        "later protocol have met it more than once, one record after the other. Each record holds its spec, "
        "seed, data checksum, code version, device and wall time, and the commands that make it again. "
        + LEGEND
    )
    yield "How long each number takes, and what is still to be run: [the plan](plan.md)."
    said = conclusions(results)
    if said:
        yield "## In short"
        yield "\n".join(f"- {line}" for line in said)
    for name in TABLES:
        shown = table(name)
        yield f"## {shown.title}"
        yield f"{shown.about} {RULES[shown.bold_by]}"
        yield markdown(results, shown, link)
        tests = paired_tests(results, shown) if shown.bold_by == "paired" else ""
        if tests:
            yield (
                "Paired t-tests over folds: the p-value of each model against the best of its column "
                f"(those below {SIGNIFICANCE} are significantly worse)."
            )
            yield tests
    yield from speed_sections(results)
    pictures = sorted((results / "figures").glob("*.png"))
    if pictures:
        yield "## Figures"
        for path in pictures:
            yield f"![{path.stem.replace('-', ' ')}]({link}/figures/{path.name})"
            yield caption(path)
    yield "This page is made from the records by `pynade report`; `pynade reproduce` makes the records."


def results_page(results: Path, link: str = "../paper/results") -> str:
    """docs/results.md."""
    return "\n\n".join(sections(results, link)) + "\n"


def caption(picture: Path) -> str:
    """The words under a picture: those of the text file beside it."""
    words = picture.with_suffix(".txt")
    return words.read_text(encoding="utf-8").strip() if words.is_file() else picture.stem.replace("-", " ")


def paired_tests(results: Path, shown: Table) -> str:
    """A table of p-values of the paired t-test over folds, each model against the best of its column."""
    columns = {data: column(results, shown, data) for data in shown.columns}
    models = [row.model for row in shown.rows if any(row.model in cells for cells in columns.values())]
    if not models:
        return ""
    lines = [f"| model | {' | '.join(shown.columns)} |", "|---" * (1 + len(shown.columns)) + "|"]
    for model in models:
        words = [_p_word(cells, model) for cells in columns.values()]
        lines.append(f"| {model} | {' | '.join(words)} |")
    return "\n".join(lines)


def _p_word(cells: dict[str, Measured], model: str) -> str:
    if model not in cells:
        return "–"
    first = max(cells, key=lambda name: cells[name].mean)
    if model == first:
        return "best"
    ours, top = cells[model].folds, cells[first].folds
    if len(ours) != len(top) or len(ours) < 2:
        return "no test: other folds"
    p = paired_p(cells[model], cells[first])
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def conclusions(results: Path) -> list[str]:
    """What the tables say together: who is worse than the paper, whose best is best, RNADE against MoG."""
    lines = []
    for name in TABLES:
        shown = table(name)
        if shown.compare and not shown.deviations:
            lines += [*_counts(results, shown), *_bests(results, shown)]
    for name in ("patches", "speech"):
        if name in TABLES:
            lines += _margin(results, table(name))
    return lines


def _counts(results: Path, shown: Table) -> list[str]:
    """How many numbers are better, the same or worse, and which are worse."""
    counted: dict[str, list[str]] = {"▲": [], "=": [], "▼": []}
    barely = []
    for row in shown.rows:
        for data, paper in row.paper.items():
            ours = measured(results, row, data)
            if ours is not None:
                words = f"{row.model} on {data} ({difference(ours, paper)})"
                counted[mark(ours, paper)].append(words)
                barely += [words] if same_by_one_fold(ours, paper) else []
    better, same, worse = counted.values()
    if not better + same + worse:
        return []
    end = f" ({'; '.join(worse)})" if worse else ""
    only = f" ({len(barely)} only by the error that one fold makes: {'; '.join(barely)})" if barely else ""
    total = len(better) + len(same) + len(worse)
    return [
        f"{shown.title}: of {total} numbers beside one of the paper's, {len(better)} are better, {len(same)} "
        f"the same within two standard errors{only}, {len(worse)} worse{end}."
    ]


def _bests(results: Path, shown: Table) -> list[str]:
    """In how many columns that model of ours which is best on validation is above the paper's best."""
    above, seen = [], 0
    for data in shown.columns:
        theirs = [row.paper[data] for row in shown.rows if data in row.paper]
        held_out = {row.model for row in shown.rows if not (row.fit or {}).get("data")}  # own rows, or others
        cells = {
            model: cell
            for model, cell in column(results, shown, data).items()
            if model in held_out and math.isfinite(cell.valid)
        }
        if not cells or not theirs:
            continue
        seen += 1
        leader = max(reversed(cells), key=lambda model: cells[model].valid)  # of one record, its last row
        if (gain := cells[leader].mean - max(theirs)) > 0:
            above.append(f"{data} ({leader}, {gain:+.2f})")
    if not seen:
        return []
    end = f": {', '.join(above)}" if above else ""
    return [
        f"{shown.title}: our best model, chosen on validation, is above the paper's best in {len(above)} of "
        f"{seen} columns{end}."
    ]


def _margin(results: Path, shown: Table) -> list[str]:
    """How far the best RNADE is above the best mixture of Gaussians, here and in the paper."""
    lines = []
    for data in shown.columns:
        cells = column(results, shown, data)
        ours, theirs = [], []
        for start in ("RNADE", "MoG"):
            rows = [row for row in shown.rows if row.model.startswith(start) and (row.fit or row.sweep)]
            rows = [row for row in rows if not (row.fit or {}).get("data")]  # of the same training rows
            ours.append(max((cells[r.model].mean for r in rows if r.model in cells), default=None))
            theirs.append(max((r.paper[data] for r in rows if data in r.paper), default=None))
        if None in ours or None in theirs:
            continue
        gap, papers = ours[0] - ours[1], theirs[0] - theirs[1]  # type: ignore[operator]
        side = "above" if gap > 0 else "below"
        where = "" if shown.compare else f" on {shown.papers_data}"
        lines.append(
            f"{shown.title}: the best RNADE is {abs(gap):.2f} nats {side} the best mixture of Gaussians "
            f"on {data} (paper{where}: {papers:+.1f})."
        )
    return lines
