"""`pynade reproduce` and `pynade results`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from pynade.cli.arguments import Engine
from pynade.cli.screen import console, errors, next_commands, plain_table

if TYPE_CHECKING:
    from pynade_paper.cells import Cell
    from pynade_paper.reproduce import Options, Outcome

Protocols = Annotated[
    Path | None, Option(help="Folder of other tables and figures (.toml) instead of the paper's.")
]


def reproduce(
    tables: Annotated[str, Argument(metavar="TABLE", help="Which table, or all.")],
    model: Annotated[str | None, Option(help="One row: its name, or the name of its record.")] = None,
    dataset: Annotated[str | None, Option(help="One column.")] = None,
    budget: Annotated[
        str | None, Option(help="Do what fits into this time (90m, 2h), the largest gap first.")
    ] = None,
    quick: Annotated[
        bool, Option("--quick", help="A trial run of about a minute; its numbers are not comparable.")
    ] = False,
    again: Annotated[bool, Option("--again", help="Make finished cells again, from the start.")] = False,
    outdated: Annotated[
        bool, Option("--outdated", help="Make cells of an earlier protocol (†) again.")
    ] = False,
    by_group: Annotated[
        bool, Option("--by-group", help="Make cells again whose errors by image or speaker are not measured.")
    ] = False,
    keep: Annotated[
        bool, Option("--keep", help="Leave finished runs (model, metrics) in the work folder.")
    ] = False,
    show: Annotated[bool, Option("--list", help="Only list what would be done.")] = False,
    workers: Annotated[
        int | None, Option(help="Cells at a time, a process each (on a GPU more than two rarely help) [1].")
    ] = None,
    engine: Engine = "local",
    device: Annotated[str, Option(help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int, Option(help="Of everything random.")] = 0,
    results: Annotated[Path, Option(help="Folder of the records.")] = Path("paper/results"),
    work: Annotated[Path, Option(help="Folder of runs in progress.")] = Path("runs/reproduce"),
    data_dir: Annotated[Path | None, Option(help="Folder of the data sets [$PYNADE_DATA].")] = None,
    protocols: Protocols = None,
) -> None:
    """Make the paper's numbers again: train, choose on validation, test once, write a record.

    TABLE is binary, orderings, mnist, uci, patches, speech, table-2 … table-8 (as the paper counts them), or
    all. The table orderings has standard deviations of NADE's test log-likelihood over random orderings.
    Finished cells are skipped, interrupted ones are resumed, so that the same command can be given in pieces;
    log.jsonl in the work folder has the time of every cell and command. `--list` shows what would be done.

    \b
    Examples:
      pynade reproduce table-6 --model rnade-mog --dataset white_wine
      pynade reproduce binary --dataset dna --quick
      pynade reproduce orderings --dataset dna
      pynade reproduce all --budget 60m --device cuda
      pynade reproduce speech --by-group --device cuda
      pynade reproduce uci --list
    """
    from pynade.engines import check_engine
    from pynade_paper.cells import cells, expected_minutes, parse_minutes, tables_named, within_budget
    from pynade_paper.records import measured
    from pynade_paper.reproduce import Options, OutOfTime, in_progress, logged_hours, write_log
    from pynade_paper.tables import read_tables

    check_engine(engine, workers)
    if results.exists() and not results.is_dir():
        raise ValueError(f"{results} is a file; --results is the folder of the records")
    todo = cells(tables_named(tables, read_tables(protocols)), model, dataset)
    if outdated or by_group or not (again or quick):
        have = [(c, ours) for c in todo if (ours := measured(results, c.row, c.data))]
        old = [c for c, ours in have if not ours.present]
        wanted = [c for c in todo if not (results / f"{c.name}.json").is_file() or in_progress(c, work)]
        wanted += old if outdated else []
        wanted += [c for c, ours in have if by_group and c.table.grouped_by and not ours.groups]
        todo = [c for c in todo if c in wanted]
        if old and not outdated:
            count = "1 cell was" if len(old) == 1 else f"{len(old)} cells were"
            errors.print(f"{count} made by an earlier protocol: --outdated makes them again")
    minutes = None if budget is None else parse_minutes(budget)
    taken, left = within_budget(todo, results, minutes, device, workers or 1, quick)
    times = {cell.name: expected_minutes(cell, results, device, quick) for cell in taken}
    if minutes is not None or (show and taken):
        note = "" if quick or device == "cuda" else " (on an H200 where this kind of device has no record)"
        console.print(f"{len(taken)} of {len(todo)} cells, about {sum(times.values()):.0f} min{note}")
    nothing = not taken and not left
    if show:
        for cell in taken:
            console.print(f"{cell} (about {times[cell.name]:.2g} min)")
        taken = []
    deadline = None if minutes is None else time.time() + 60 * minutes
    options = Options(device, quick, again, outdated or by_group, keep, data_dir, seed, deadline)
    lines = plain_table("cell", "nats", "paper", "seconds")
    failed = []
    command, began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic()

    def log(**facts: Any) -> None:
        write_log(work, command, time.monotonic() - began, device=device, quick=quick, **facts)

    try:
        for cell, (outcome, seconds) in _outcomes(taken, workers, results, work, options, engine):
            if isinstance(outcome, OutOfTime):
                left.append(cell)
                continue
            log(cell=cell.name, seconds=round(seconds, 1), outcome=_in_words(outcome))
            if isinstance(outcome, Exception):
                failed.append(cell)
                errors.print(f"{cell.name}: {outcome}")
            else:
                lines.add_row(*_line(cell, outcome, seconds, quick))
                errors.print(f"{cell.name}: done after {seconds:.0f} s")
    finally:
        if taken:
            log(outcome="end")  # of the command, which may have been interrupted
            errors.print(f"{work / 'log.jsonl'}: {logged_hours(work)}")
    if lines.row_count:
        console.print(lines)
        if quick:
            console.print("quick: a trial run; these numbers do not compare with the paper's")
    for why, some in (
        (f"the budget is {minutes:g} min" if minutes is not None else "", [c for c in left if c.runnable]),
        ("no protocol yet", [c for c in left if not c.runnable]),
    ):
        if some:
            console.print(f"left out ({why}): {', '.join(cell.name for cell in some)}")
    if nothing:
        console.print("nothing to do: every cell has its record (--again makes them again)")
    if failed:
        raise ValueError(f"{len(failed)} of {len(taken)} cells failed: {', '.join(c.name for c in failed)}")
    if show:
        chosen = ["--model", model] if model else []
        chosen += ["--dataset", dataset] if dataset else []
        next_commands(("reproduce", tables, *chosen))
    else:
        next_commands(("results", "--results", results))


def _outcomes(
    cells: list[Cell], workers: int | None, results: Path, work: Path, options: Options, engine: str
) -> Iterator[tuple[Cell, Outcome]]:
    """Make cells one after the other with a progress bar, or several at a time."""
    from pynade.cli.screen import training_bar
    from pynade.cli.sweep import standings
    from pynade_paper.reproduce import attempt, reproduce_all

    if engine != "local" or workers not in (None, 1):
        yield from reproduce_all(cells, workers, results, work, options, engine)
        return
    for number, cell in enumerate(cells, start=1):
        errors.print(f"[{number}/{len(cells)}] {cell.name}")
        if cell.row.sweep is None:
            with training_bar() as bar:
                outcome = attempt(cell, results, work, options, callbacks=[bar])
        else:
            with standings() as show:
                outcome = attempt(cell, results, work, options, progress=show)
        yield cell, outcome


def _in_words(outcome: dict[str, Any] | Exception) -> str:
    return f"{type(outcome).__name__}: {outcome}" if isinstance(outcome, Exception) else "done"


def _line(cell: Cell, record: dict[str, Any], seconds: float, quick: bool) -> tuple[str, ...]:
    """The line that is printed for a cell that was made."""
    from pynade_paper.records import number_of

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


def results_pages(
    results: Annotated[Path, Option(help="Folder of the records.")] = Path("paper/results"),
    markdown: Annotated[Path, Option(help="Markdown page to write.")] = Path("docs/results.md"),
    out: Annotated[Path, Option(help="HTML page to write.")] = Path("docs/results.html"),
    readme: Annotated[
        Path | None,
        Option(help="File with a table of highlights \\[paper/README.md, for the records in paper/results]."),
    ] = None,
    redraw: Annotated[bool, Option("--redraw", help="Draw all figures of the records again.")] = False,
) -> None:
    """Write docs/results.md, an HTML page and figures: every table beside the paper's.

    Figures of the records (orderings, training time, evaluation cost) are drawn into the folder `figures` of
    the records where their numbers changed; all pictures there are shown. The table of paper/README.md is
    written between its marks.

    \b
    Example:
      pynade results --results paper/results --out docs/results.html
    """
    from pynade.tables.files import check_destination
    from pynade_paper.pages import summary
    from pynade_paper.report import write_report

    if not results.is_dir():
        raise ValueError(f"there is no folder {results} with records")
    check_destination(markdown, ".md")
    check_destination(out, ".html")
    if readme is not None and not readme.is_file():
        raise ValueError(f"there is no file {readme}")
    default = Path("paper/README.md")  # its links lead to paper/results
    if readme is None and default.is_file() and results.resolve() == Path("paper/results").resolve():
        readme = default
    written = write_report(results, markdown, out, readme, redraw)
    counted = ", ".join(f"{n} {name}" for name, n in summary(results).items())
    console.print(f"{counted} -> {', '.join(map(str, written))}")
    next_commands(("reproduce", "all", "--list"))
