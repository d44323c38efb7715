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

TABLE is binary, mnist, uci, patches, speech, table-2 … table-8 (as the paper numbers them), or all. Finished
cells are skipped, interrupted ones go on. `--list` shows what would be done and how.

\b
Examples:
  pynade reproduce table-6 --model rnade-mog --dataset white_wine
  pynade reproduce binary --dataset dna --quick
  pynade reproduce all --budget 60m --device cuda
  pynade reproduce uci --list
"""

REPORT_HELP = """Every table beside the paper's: docs/results.md and one self-contained HTML page.

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
    again: Annotated[bool, typer.Option("--again", help="Make finished cells anew.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave finished runs (model, metrics) in the work folder.")
    ] = False,
    show: Annotated[bool, typer.Option("--list", help="Only say what would be done.")] = False,
    workers: Annotated[int, typer.Option(help="Cells made at a time, a process each.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    results: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("results"),
    work: Annotated[Path, typer.Option(help="Folder of runs in progress.")] = Path("runs/reproduce"),
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data sets [$PYNADE_DATA].")] = None,
) -> None:
    """Reproduce cells (the help is REPRODUCE_HELP above)."""
    from pynade.experiments.reproduce import cells, describe_cell, plan, reproduce_all, table_named
    from pynade.experiments.reproduce import reproduce as make
    from pynade.experiments.tables import table

    todo = cells(table_named(tables), model, dataset)
    if not again and not quick:
        todo = [c for c in todo if not (results / f"{c.name}.json").is_file()]
    minutes = None if budget is None else parse_minutes(budget)
    taken, left = plan(todo, results, minutes)
    if show:
        for cell in taken:
            console.print(
                f"{describe_cell(cell, table(cell.table))} (about {cell.row.minutes:g} min on a GPU)"
            )
        taken = []
    how: dict[str, Any] = {"device": device, "quick": quick, "again": again, "keep": keep}
    how |= {"data_dir": data_dir, "seed": seed}
    begin = time.monotonic()
    lines = plain_table("cell", "test (nats)", "paper", "seconds")
    if workers > 1:
        for cell, outcome, seconds in reproduce_all(taken, workers, results, work, **how):
            if isinstance(outcome, Exception):
                errors.print(f"{cell.name}: {outcome}")
            else:
                lines.add_row(*_line(cell, outcome, seconds, quick))
                errors.print(f"{cell.name}: done after {seconds:.0f} s")
    for number, cell in enumerate(taken if workers == 1 else [], start=1):
        if minutes is not None and (time.monotonic() - begin) / 60 + cell.row.minutes > minutes:
            left += taken[number - 1 :]
            break
        errors.print(f"[{number}/{len(taken)}] {cell.name}")
        started = time.monotonic()
        if cell.row.sweep is None:
            with training_bar() as bar:
                record = make(cell, results, work, callbacks=[bar], **how)
        else:
            with Live(console=errors, transient=True, auto_refresh=False) as live:
                record = make(cell, results, work, told=Teller(live), **how)
        lines.add_row(*_line(cell, record, time.monotonic() - started, quick))
    if taken:
        console.print(lines)
    if left:
        why = "" if minutes is None else f" (the budget is {minutes:g} min)"
        console.print(f"left out{why}: {', '.join(cell.name for cell in left)}")
    if not taken and not left and not show:
        console.print("nothing to do: every cell has its record (--again makes them anew)")


def _line(cell: Any, record: dict[str, Any], seconds: float, quick: bool) -> tuple[str, ...]:
    """What is printed of a cell that was made."""
    value, paper = record.get("test") or record["valid"], cell.row.paper.get(cell.data)
    number = f"{value['mean']:.3f} ± {value['stderr']:.3f}" + (" (quick: does not compare)" if quick else "")
    return cell.name, number, "" if paper is None else f"{paper:.2f}", f"{seconds:.0f}"


def report(
    results: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("results"),
    markdown: Annotated[Path, typer.Option(help="Markdown page to write.")] = Path("docs/results.md"),
    out: Annotated[Path, typer.Option(help="HTML page to write.")] = Path("docs/results.html"),
) -> None:
    """Write the report (the help is REPORT_HELP above)."""
    from pynade.experiments.report import summary, write_report
    from pynade.experiments.tabular import check_destination

    if not results.is_dir():
        raise ValueError(f"there is no folder {results} with records")
    check_destination(markdown, ".md")
    check_destination(out, ".html")
    write_report(results, markdown, out)
    counted = ", ".join(f"{n} {name}" for name, n in summary(results).items())
    console.print(f"{counted} -> {markdown}, {out}")


def parse_minutes(text: str) -> float:
    """ "90m", "2h" or "1h30m" in minutes.

    Example:
        >>> parse_minutes("90m"), parse_minutes("1h30m"), parse_minutes("45")
        (90.0, 90.0, 45.0)
    """
    found = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m?)?", text.strip().lower())
    if not found or not any(found.groups()):
        raise ValueError(f"a budget is written like 60m, 2h or 1h30m, not {text!r}")
    return 60 * float(found[1] or 0) + float(found[2] or 0)
