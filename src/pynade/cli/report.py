"""`pynade report`: one HTML page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from pynade.cli import lazy
from pynade.cli.arguments import Run
from pynade.cli.lazy import files
from pynade.cli.screen import console, next_commands, print_facts, row_bar


def report(
    run: Run,
    data: Annotated[str | None, Option(help="Another table than the one that the run was fitted to.")] = None,
    out: Annotated[Path, Option(help="Page to write (.html).")] = Path("report.html"),
) -> None:
    """Write one HTML page about a run: columns, training, scores beside simple models, samples, odd cells.

    It also shows whether probabilities of cells are right (calibration), how far orderings disagree, where
    everything comes from and the commands to make it again. The page needs no other file and no network. Of
    large tables a random part of the rows is used; the page says how many.

    \b
    Examples:
      pynade report runs/people --out people.html
      pynade report runs/people --data new_people.csv
    """
    files.check_destination(out, ".html")
    with row_bar("report") as show:
        numbers = lazy.report.write_report(run, out, data, show)
    print_facts((what, number) for number, what in numbers)
    console.print(f"report on {run} -> {out}")
    table = data or (lazy.summary.read_spec(run)["data"] if run.is_dir() else "DATA")
    next_commands(("score", run, table), ("sample", run, "-n", 10, "--plot", "samples.png"))
