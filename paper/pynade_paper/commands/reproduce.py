"""`pynade reproduce` and `pynade report`."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from pynade.cli.screen import console, errors, plain_table, training_bar
from pynade.cli.sweep import Teller

REPRODUCE_HELP = """Make the paper's numbers again: train, choose on validation, test once, keep a record.

TABLE is binary, orderings, mnist, uci, patches, speech, table-2 … table-8 (as the paper counts them), or all.
The numbers of orderings are standard deviations: how far NADE's test log-likelihood varies with its random
ordering. Finished cells are skipped, interrupted ones go on.
`--list` shows what would be done and how.

\b
Examples:
  pynade reproduce table-6 --model rnade-mog --dataset white_wine
  pynade reproduce binary --dataset dna --quick
  pynade reproduce orderings --dataset dna
  pynade reproduce all --budget 60m --device cuda
  pynade reproduce uci --list
"""

REPORT_HELP = """Every table beside the paper's, figures, the plan: docs/results.md, plan.md, one HTML page.

Figures of the records (orderings, training time, evaluation cost) are drawn into results/figures where their
numbers changed; all pictures there are shown. The README's table is written between its marks.

\b
Example:
  pynade report --results results --out docs/results.html
"""


def reproduce(
    tables: Annotated[str, typer.Argument(metavar="TABLE", help="Which table, or all.")],
    model: Annotated[str | None, typer.Option(help="One row: its name, or the name of its record.")] = None,
    dataset: Annotated[str | None, typer.Option(help="One column.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Do what fits into this time (90m, 2h), widest gap first.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The same path in a minute or so; the numbers do not compare.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Make finished cells anew, from the start.")] = False,
    outdated: Annotated[
        bool, typer.Option("--outdated", help="Make those anew that an earlier protocol made (†).")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave finished runs (model, metrics) in the work folder.")
    ] = False,
    show: Annotated[bool, typer.Option("--list", help="Only say what would be done.")] = False,
    workers: Annotated[
        int, typer.Option(help="Cells made at a time, a process each (on a GPU more than two rarely help).")
    ] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    results: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("paper/results"),
    work: Annotated[Path, typer.Option(help="Folder of runs in progress.")] = Path("runs/reproduce"),
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data sets [$PYNADE_DATA].")] = None,
) -> None:
    """Reproduce cells (the help is REPRODUCE_HELP above)."""
    from pynade_paper.reproduce import (
        OutOfTime,
        attempt,
        cells,
        describe_cell,
        expected_minutes,
        in_progress,
        plan,
        reproduce_all,
        table_named,
    )
    from pynade_paper.tables import measured, table

    if workers < 1:
        raise ValueError(f"the number of workers must be at least 1, not {workers}")
    if results.exists() and not results.is_dir():
        raise ValueError(f"{results} is a file; --results is the folder of the records")
    todo = cells(table_named(tables), model, dataset)
    if outdated or not (again or quick):
        old = [c for c in todo if (ours := measured(results, c.row, c.data)) and not ours.present]
        todo = [
            c
            for c in todo
            if not (results / f"{c.name}.json").is_file() or (outdated and c in old) or in_progress(c, work)
        ]
        if old and not outdated:
            many = "1 cell was" if len(old) == 1 else f"{len(old)} cells were"
            errors.print(f"{many} made by an earlier protocol: --outdated makes them anew")
    minutes = None if budget is None else parse_minutes(budget)
    taken, left = plan(todo, results, minutes, device, workers, quick)
    if minutes is not None or (show and taken):
        total = sum(expected_minutes(cell, results, device, quick) for cell in taken)
        guess = "" if quick or device == "cuda" else "; without a record of this kind of device, an H200's"
        console.print(f"{len(taken)} of {len(todo)} cells, about {total:.0f} min{guess}")
    nothing = not taken and not left
    if show:
        for cell in taken:
            about = expected_minutes(cell, results, device, quick)
            console.print(f"{describe_cell(cell, table(cell.table))} (about {about:.2g} min)")
        taken = []
    how: dict[str, Any] = {
        "device": device,
        "quick": quick,
        "again": again,
        "outdated": outdated,
        "keep": keep,
    }
    how |= {"data_dir": data_dir, "seed": seed}
    how["deadline"] = None if minutes is None else time.time() + 60 * minutes
    lines = plain_table("cell", "nats", "paper", "seconds")
    failed = []

    def tell(cell: Any, outcome: Any, seconds: float) -> None:
        if isinstance(outcome, OutOfTime):
            left.append(cell)
        elif isinstance(outcome, Exception):
            failed.append(cell)
            errors.print(f"{cell.name}: {outcome}")
        else:
            lines.add_row(*_line(cell, outcome, seconds, quick))
            errors.print(f"{cell.name}: done after {seconds:.0f} s")

    if workers > 1:
        for outcome in reproduce_all(taken, workers, results, work, **how):
            tell(*outcome)
    for number, cell in enumerate(taken if workers == 1 else [], start=1):
        errors.print(f"[{number}/{len(taken)}] {cell.name}")
        if cell.row.sweep is None:
            with training_bar() as bar:
                done = attempt(cell, results, work, callbacks=[bar], **how)
        else:
            with Live(console=errors, transient=True, auto_refresh=False) as live:
                done = attempt(cell, results, work, told=Teller(live), **how)
        tell(cell, *done)
    if lines.row_count:
        console.print(lines)
        if quick:
            console.print("quick: a trial of the path; these numbers do not compare with the paper's")
    for why, some in (
        (f"the budget is {minutes:g} min" if minutes is not None else "", [c for c in left if c.runnable]),
        ("no protocol is written down yet", [c for c in left if not c.runnable]),
    ):
        if some:
            console.print(f"left out ({why}): {', '.join(cell.name for cell in some)}")
    if nothing:
        console.print("nothing to do: every cell has its record (--again makes them anew)")
    if failed:
        raise ValueError(f"{len(failed)} of {len(taken)} cells failed: {', '.join(c.name for c in failed)}")


def _line(cell: Any, record: dict[str, Any], seconds: float, quick: bool) -> tuple[str, ...]:
    """What is printed of a cell that was made."""
    from pynade_paper.tables import number_of

    value, paper = record.get("test") or record["valid"], cell.row.paper.get(cell.data)
    part = "test" if record.get("test") else "valid"
    note = f" (quick, {part})" if quick else ""
    theirs = "" if paper is None or quick else f"{paper:.2f}"
    if cell.row.deviation:
        value = number_of(cell.row, record) or value
        note = f" (deviation over seeds{', quick' if quick else ''})"
        theirs = theirs and f"{paper:g}"
    number = f"{value['mean']:.3f} ± {value['stderr']:.3f}{note}"
    return cell.name, number, theirs, f"{seconds:.0f}"


def report(
    results: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("paper/results"),
    markdown: Annotated[Path, typer.Option(help="Markdown page to write.")] = Path("docs/results.md"),
    out: Annotated[Path, typer.Option(help="HTML page to write.")] = Path("docs/results.html"),
    readme: Annotated[
        Path | None,
        typer.Option(help="File with a table of highlights [README.md beside the folder of records]."),
    ] = None,
    redraw: Annotated[bool, typer.Option("--redraw", help="Draw all figures of the records anew.")] = False,
) -> None:
    """Write the report (the help is REPORT_HELP above)."""
    from pynade.runs.tabular import check_destination
    from pynade_paper.report import summary, write_report

    if not results.is_dir():
        raise ValueError(f"there is no folder {results} with records")
    check_destination(markdown, ".md")
    check_destination(out, ".html")
    if readme is not None and not readme.is_file():
        raise ValueError(f"there is no file {readme}")
    beside = Path("README.md")  # links lead to results/, which another folder is not
    if readme is None and beside.is_file() and results.resolve() == Path("paper/results").resolve():
        readme = beside
    written = write_report(results, markdown, out, readme, redraw)
    counted = ", ".join(f"{n} {name}" for name, n in summary(results).items())
    console.print(f"{counted} -> {', '.join(map(str, written))}")


def parse_minutes(text: str) -> float:
    """ "90m", "2h" or "1h30m" in minutes.

    Example:
        >>> parse_minutes("90m"), parse_minutes("1h30m"), parse_minutes("45")
        (90.0, 90.0, 45.0)
    """
    found = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m?)?", text.strip().lower())
    if not found or not any(found.groups()):
        raise ValueError(f"a budget is written like 60m, 2h or 1h30m, not {text!r}")
    minutes = 60 * float(found[1] or 0) + float(found[2] or 0)
    if minutes == 0:
        raise ValueError("a budget of no time does nothing")
    return minutes
