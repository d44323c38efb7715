"""docs/results.md: tables, tests behind the bold numbers, conclusions, figures; the table of paper/README."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pynade_paper.paper_figures import read_figures
from pynade_paper.records import (
    SIGNIFICANCE,
    UNSTABLE,
    Measured,
    best,
    between,
    column,
    difference,
    mark,
    measured,
    odd_fold,
    paired_p,
    signed_rank_p,
    stable,
    with_error,
)
from pynade_paper.speed import markdown_table, speed_sections
from pynade_paper.tables import Row, Table, Tables, in_words, read_tables

INTRODUCTION = (
    "Test log-likelihood in nats per row (higher is better), beside the paper's. Settings were chosen on "
    "validation rows, and the model of each record was evaluated on the test set once. Cells that were made "
    "again under a later protocol were evaluated again, one record after the other. Each record has its "
    "settings, seed, data checksum, code version, device and wall time, and the commands that reproduce it."
    "\n\n"
    "Each cell has our value ± its standard error with a link to its record, in brackets the paper's value "
    "and the difference, and a mark: ▲ better, = the same within two standard errors of the difference, ▼ "
    "worse. The paper prints no errors. Its numbers are means over as many test rows (or folds) as ours, of "
    "scores with about the same spread, so that the standard error of the difference is √2 times ours; on "
    "the same rows it is less, so that = is said too often rather than too seldom. A number whose standard "
    f"error is made by a single fold is {UNSTABLE}: it has no other mark and is never bold."
    "\n\n"
    "Numbers are exact unless they are marked as an estimate or a bound (the log-likelihood is at least its "
    "bound); where the paper's are not all exact, the kind of every number is given. The estimate of an "
    "ensemble is corrected on some rows, where it is exact, in two ways: by the exact ensemble less the "
    "estimate there, and (the second estimate) by the exact ensemble less the exact mean over orderings. "
    "bf16: the network computed in bfloat16, in training and scores, or in training alone; the sums "
    "of log-probabilities did not. Bold follows the paper's rule, applied to our own numbers; in brackets it "
    "is as the paper prints it. A dash means not measured, with the reason. † was made by an earlier "
    "protocol than the one that `pynade reproduce` follows today; its record has the commands that made it."
)
RULES = {
    "overlap": "Bold: the best of a column and those whose intervals of two standard errors overlap with it.",
    "paired": "Bold: the best of a column and those that are not significantly worse, neither by a two-sided "
    f"paired t-test over folds (the paper's rule) nor by Wilcoxon's signed-rank test, at {SIGNIFICANCE}.",
    "none": "Marks: the same within two standard errors of the difference, otherwise smaller or larger; "
    "nothing is bold.",
}
DEVIATION_MARKS = {"▲": "larger", "=": "same", "▼": "smaller"}  # neither is better
CLASSICAL = ("gaussian", "mog", "mfa")  # models to which others are compared where test rows have groups
README_MARKS = ("<!-- highlights: written by pynade results -->", "<!-- end of highlights -->")
HIGHLIGHTS = (
    ("binary", "NADE", "ocr_letters"),
    ("binary", "Deep orderless ensemble, 2 layers, 32 orderings", "web"),
    ("mnist", "NADE, fixed order", "binarized_mnist"),
    ("mnist", "DeepNADE 2hl", "binarized_mnist"),
    ("mnist", "EoNADE 2hl, 128 orderings", "binarized_mnist"),
    ("mnist", "ConvNADE + DeepNADE, ensemble of 128 orderings", "binarized_mnist"),
    ("mnist", "U-Net, ensemble of 16 orderings", "binarized_mnist"),
    ("uci", "Deep orderless RNADE-MoG, 32 orderings", "white_wine"),
    ("patches", "RNADE-MoG, K = 10, 1024 units", "bsds300"),
    ("patches", "Transformer, fixed order, 20 Gaussians", "bsds300"),
)


def sections(results: Path, link: str = "../paper/results", tables: Tables | None = None) -> Iterator[str]:
    """The page's headings, paragraphs, tables, lists and pictures; `link` leads from it to the records."""
    tables = read_tables() if tables is None else tables
    yield "# Results"
    yield INTRODUCTION
    yield (
        "`pynade reproduce TABLE --list` lists what is not measured yet (with `--again`, every cell), how it "
        "is made and about how long that takes."
    )
    lines = conclusions(results, tables)
    if lines:
        yield "## In short"
        yield "\n".join(f"- {line}" for line in lines)
    for shown in tables.values():
        yield f"## {shown.title}"
        yield f"{shown.about} {RULES[shown.bold_by]}"
        yield markdown(results, shown, link)
        if notes := made_how(results, shown):
            yield "\n".join(f"- {note}" for note in notes)
        tests = paired_tests(results, shown) if shown.bold_by == "paired" else ""
        if tests:
            yield (
                "Each model against the best of its column, over the same folds: the mean difference ± its "
                "standard error, and the p-values of the paired t-test and of Wilcoxon's signed-rank test "
                f"(W). Those with one below {SIGNIFICANCE} are significantly worse. One exploding fold makes "
                "the error of the t-test as large as its difference, but has one rank only."
            )
            yield tests
        if shown.grouped_by and (gaps := grouped_differences(results, shown)):
            yield gaps
    yield from speed_sections(results)
    pictures = sorted((results / "figures").glob("*.png"))
    if pictures:
        yield "## Figures"
        for path in pictures:
            yield f"### {(title := figure_title(path.stem, tables))}"
            yield f"![{title}]({link}/figures/{path.name})"
            yield caption(path)
    yield "`pynade results` makes this page from the records, and `pynade reproduce` makes the records."


def results_page(results: Path, link: str = "../paper/results", tables: Tables | None = None) -> str:
    """docs/results.md."""
    return "\n\n".join(sections(results, link, tables)) + "\n"


def figure_title(name: str, tables: Tables) -> str:
    """A picture's title, from the name of its file.

    Example:
        >>> figure_title("orderings-ocr_letters", {}), figure_title("time-uci", read_tables())
        ('Ensembles over orderings: OCR letters', 'Log-likelihood and training time: UCI tables, ten folds')
    """
    kind, _, what = name.partition("-")
    if kind == "time" and what in tables:
        return f"Log-likelihood and training time: {tables[what].title}"
    if name in read_figures() and (title := read_figures()[name].title):
        return title
    titles = {"orderings": f"Ensembles over orderings: {in_words(what)}"}
    titles |= {"training": f"Course of training: {in_words(what)}"}
    titles |= {"evaluation": "The cost of a log-likelihood", "per": "Several variables per sampling step"}
    return titles.get(kind, name.replace("-", " "))


def caption(picture: Path) -> str:
    """The text below a picture: that of the text file beside it."""
    text = picture.with_suffix(".txt")
    return text.read_text(encoding="utf-8").strip() if text.is_file() else picture.stem.replace("-", " ")


def markdown(results: Path, shown: Table, link: str) -> str:
    """One table; rows with neither a number of ours nor one of the paper's are left out."""
    bold = {data: best(column(results, shown, data), shown.bold_by) for data in shown.columns}
    lines = []
    for row in shown.rows:
        ours = [measured(results, row, data) for data in shown.columns]
        if row.paper or any(ours):
            pairs = zip(shown.columns, ours, strict=True)
            cells = [_cell(shown, row, data, cell, row.model in bold[data], link) for data, cell in pairs]
            lines.append([row.model, *cells])
    return markdown_table(["model", *shown.columns], lines)


def _cell(shown: Table, row: Row, data: str, ours: Measured | None, bold: bool, link: str) -> str:
    paper = row.paper.get(data)
    if paper is None:
        theirs = ""
    elif row.deviation:
        theirs = f"{paper:g}"
    else:
        theirs = f"{paper:.2f}" if shown.compare else f"{paper:.1f}"
        theirs = f"**{theirs}**" if data in row.bold else theirs
        theirs += f", {row.kind}" if shown.mixed else ""
        theirs = theirs if shown.compare else f"{shown.papers_data}: {theirs}"
    if ours is None:
        return f"– not measured: {_why_not(shown, row, data)}" + (f" ({theirs})" if theirs else "")
    number = with_error(ours, 3 if row.deviation else 2) + _over_groups(shown, ours)
    number += _kind(ours, shown.mixed)
    number += "" if ours.present else "†"
    odd = odd_fold(ours)
    number += f", one fold {odd:.2f}" if odd is not None else ""
    text = f"[{f'**{number}**' if bold else number}]({link}/{ours.file})"
    text += "".join(f", {kind} {mean:.2f} ± {error:.2f}" for kind, (mean, error) in ours.beside.items())
    if paper is None or not shown.compare:
        return text + (f" ({theirs})" if theirs else "") + (f" {UNSTABLE}" if odd is not None else "")
    if row.deviation:
        return f"{text} ({theirs}) {DEVIATION_MARKS[mark(ours, paper)]}"
    return f"{text} ({theirs}; {difference(ours, paper)}) {mark(ours, paper)}"


def _over_groups(shown: Table, ours: Measured) -> str:
    """The standard error over images or speakers, for the number in a cell."""
    if not shown.grouped_by:
        return ""
    found = "not measured" if ours.groups is None else f"± {ours.groups.stderr:.2f}"
    return f" (by {shown.grouped_by}: {found})"


def _kind(ours: Measured, always: bool = False) -> str:
    kind = f" ({ours.kind})" if always or ours.kind != "exact" else ""
    return kind + (f", {ours.bf16}" if ours.bf16 else "")


def made_how(results: Path, shown: Table) -> list[str]:
    """Notes of a table's records on how the numbers were made."""
    cells = [(row, measured(results, row, data)) for row in shown.rows for data in shown.columns]
    return [f"{row.model}: {cell.note}" for row, cell in cells if cell is not None and cell.note]


def _why_not(shown: Table, row: Row, data: str) -> str:
    """Why a cell has no number of ours."""
    if data in shown.unavailable:
        return shown.unavailable[data]
    if row.why is not None:
        return row.why
    runnable = any(r.fit or r.sweep for r in shown.rows if r.record == row.record)
    return "not run yet" if runnable else "no protocol yet"


def paired_tests(results: Path, shown: Table) -> str:
    """A table of paired differences over folds and their p-values, each model against its column's best."""
    columns = {data: column(results, shown, data) for data in shown.columns}
    models = [row.model for row in shown.rows if any(row.model in cells for cells in columns.values())]
    lines = [[model, *(_p_value(cells, model) for cells in columns.values())] for model in models]
    return markdown_table(["model", *shown.columns], lines) if lines else ""


def _p_value(cells: dict[str, Measured], model: str) -> str:
    if model not in cells:
        return "–"
    first = max(stable(cells) or cells, key=lambda name: cells[name].mean)
    if model == first:
        return "best"
    ours, top = cells[model], cells[first]
    if len(ours.folds) != len(top.folds) or len(ours.folds) < 2:
        return "no test: other folds"
    gap, error = between(ours, top)
    by_t, by_rank = (
        "< 0.001" if p < 0.001 else f"{p:.3f}" for p in (paired_p(ours, top), signed_rank_p(ours, top))
    )
    return f"{gap:+.2f} ± {error:.2f}; t {by_t}, W {by_rank}"


def grouped_differences(results: Path, shown: Table) -> str:
    """Differences to the best classical model, with errors over images or speakers; "" without any."""
    classical = [r.model for r in shown.rows if r.fit and r.fit["model"] in CLASSICAL and "data" not in r.fit]
    lines, by = [], shown.grouped_by
    for data in shown.columns:
        cells = {m: cell for m, cell in column(results, shown, data).items() if cell.groups is not None}
        if known := [m for m in classical if m in cells]:
            first = max(known, key=lambda m: cells[m].mean)
            gaps = {m: between(cell, cells[first]) for m, cell in cells.items() if m != first}
            lines += [[m, data, first, f"{gap:+.2f} ± {error:.2f}"] for m, (gap, error) in gaps.items()]
    if not lines:
        return ""
    return (
        f"Paired differences: each model less the best classical one, among those whose scores by {by} are "
        f"recorded, ± the standard error over the {by}s of the test rows. The same {by}s are easy for both, "
        "so that a difference is known better than the two levels.\n\n"
    ) + markdown_table(["model", "data", "less", "difference"], lines)


def conclusions(results: Path, tables: Tables | None = None) -> list[str]:
    """Which numbers are worse than the paper's, in which columns our best is better, RNADE against MoG."""
    tables = read_tables() if tables is None else tables
    lines = []
    for shown in tables.values():
        if shown.compare and not shown.deviations:
            lines += [*_counts(results, shown), *_bests(results, shown)]
    for name in ("patches", "speech"):
        if name in tables:
            lines += _margin(results, tables[name])
    return lines


def _counts(results: Path, shown: Table) -> list[str]:
    """How many numbers are better, the same or worse, and which are worse."""
    counted: dict[str, list[str]] = {"▲": [], "=": [], "▼": [], UNSTABLE: []}
    kinds = Counter[str]()
    for row in shown.rows:
        for data, paper in row.paper.items():
            ours = measured(results, row, data)
            if ours is not None:
                kinds[f"{ours.kind} beside {row.kind}"] += 1
                text = f"{row.model} on {data} ({difference(ours, paper)})"
                counted[mark(ours, paper)].append(text)
    better, same, worse, unstable = counted.values()
    total = sum(map(len, counted.values()))
    if total == 0:
        return []
    end = f" ({'; '.join(worse)})" if worse else ""
    if unstable:
        end += f", {len(unstable)} {UNSTABLE}, since one fold makes the error ({'; '.join(unstable)})"
    listed = ", ".join(f"{n} {pair}" for pair, n in kinds.items())
    kind = f" Kinds, ours beside the paper's: {listed}." if set(kinds) != {"exact beside exact"} else ""
    return [
        f"{shown.title}: of {total} numbers that the paper has too, {len(better)} are better, {len(same)} "
        f"the same within two standard errors, {len(worse)} worse{end}.{kind}"
    ]


def _leaders(results: Path, shown: Table) -> list[tuple[str, str, Measured, float]]:
    """Of each column our best model, chosen on validation, with its number and the paper's best."""
    found = []
    trained_on = {row.model: (row.fit or {}).get("data") for row in shown.rows}
    for data in shown.columns:
        theirs = [row.paper[data] for row in shown.rows if data in row.paper]
        cells = {m: c for m, c in column(results, shown, data).items() if math.isfinite(c.valid)}
        cells = {m: c for m, c in cells.items() if not trained_on[m]}  # others have other validation rows
        if not cells or not theirs:
            continue
        leader = max(reversed(cells), key=lambda model: cells[model].valid)  # of one record, its last row
        found.append((data, leader, cells[leader], max(theirs)))
    return found


def _bests(results: Path, shown: Table) -> list[str]:
    """In how many columns our best model, chosen on validation, is above the paper's best."""
    leaders = _leaders(results, shown)
    above = [f"{d} ({model}, {difference(c, p)})" for d, model, c, p in leaders if c.mean > p]
    if not leaders:
        return []
    end = f": {', '.join(above)}" if above else ""
    return [
        f"{shown.title}: our best model, chosen on validation, is above the paper's best in {len(above)} of "
        f"{len(leaders)} columns{end}."
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
            known = [cells[r.model] for r in rows if r.model in cells]
            ours.append(max(known, key=lambda cell: cell.mean, default=None))
            theirs.append(max((r.paper[data] for r in rows if data in r.paper), default=None))
        if None in ours or None in theirs:
            continue
        (gap, error), papers = between(*ours), theirs[0] - theirs[1]  # type: ignore[arg-type, operator]
        side = "above" if gap > 0 else "below"
        where = "" if shown.compare else f" on {shown.papers_data}"
        lines.append(
            f"{shown.title}: the best RNADE is {abs(gap):.2f} ± {error:.2f} nats {side} the best mixture of "
            "Gaussians "
            f"on {data} (paper{where}: {papers:+.1f})."
        )
    return lines


def summary(results: Path, tables: Tables | None = None) -> dict[str, int]:
    """How many cells are better than the paper's, the same, worse, cannot be compared, are not measured.

    Standard deviations are neither better nor worse, and are left out.
    """
    names = {"▲": "better", "=": "same", "▼": "worse", UNSTABLE: UNSTABLE}
    counted = dict.fromkeys((*names.values(), "no number in the paper", "not measured"), 0)
    for shown in (read_tables() if tables is None else tables).values():
        for row in [row for row in shown.rows if not row.deviation]:
            for data in shown.columns:
                ours, paper = measured(results, row, data), row.paper.get(data)
                if ours is None:
                    counted["not measured"] += 1
                elif paper is None or not shown.compare:
                    counted["no number in the paper"] += 1
                else:
                    counted[names[mark(ours, paper)]] += 1
    return counted


def headlines(results: Path, tables: Tables | None = None) -> list[tuple[str, str]]:
    """At most four numbers for the top of the page, each with what it is."""
    tables = read_tables() if tables is None else tables
    counted, lines = summary(results, tables), []
    if total := sum(counted[name] for name in ("better", "same", "worse", UNSTABLE)):
        number = f"{counted['better'] + counted['same']} of {total}"
        lines.append((number, "numbers that the paper has too are better or the same"))
    compared = [shown for shown in tables.values() if shown.compare and not shown.deviations]
    leaders = {shown.title: _leaders(results, shown) for shown in compared}
    if every := [leader for some in leaders.values() for leader in some]:
        above = sum(cell.mean > paper for _, _, cell, paper in every)
        what = "data sets on which our best model, chosen on validation, is above the paper's best"
        lines.append((f"{above} of {len(every)}", what))
    for data, model, cell, paper in (some[0] for some in leaders.values() if len(some) == 1):
        what = f"nats on {in_words(data)}: {model}{_kind(cell)} (the paper's best: {paper:.2f})"
        lines.append((with_error(cell), what))
    return lines[:4]


def highlights(results: Path) -> str:
    """The table of paper/README.md."""
    lines = []
    for name, model, data in HIGHLIGHTS:
        row = next(row for row in read_tables()[name].rows if row.model == model)
        ours, paper = measured(results, row, data), row.paper.get(data)
        if ours is not None:
            number = f"[{with_error(ours)}{_kind(ours)}](results/{ours.file})"
            lines.append([model, data, "" if paper is None else f"{paper:.2f}", number])
    return markdown_table(["model", "data", "paper", "ours (test, nats)"], lines)


def with_highlights(text: str, results: Path) -> str:
    """The page with a new table between its two marks; unchanged where there are no marks."""
    first, last = README_MARKS
    before, start, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not start or not end:
        return text
    return f"{before}{first}\n\n{highlights(results)}\n\n{last}{after}"
