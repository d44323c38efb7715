"""`pynade report` and `pynade explore`: pages about a run, as a file and in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from pynade.cli import lazy
from pynade.cli.arguments import DataDir, Run
from pynade.cli.lazy import files
from pynade.cli.screen import console, errors, next_commands, print_facts, row_bar

DATA = "Rows to show beside the model, a file or a data set; by default those of the run."
HOST = "Address to listen at. Other addresses than loopback need the token that is then printed."


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
    print_facts((name, number) for number, name in numbers)
    console.print(f"report on {run} -> {out}")
    table = data or (lazy.summary.read_spec(run)["data"] if run.is_dir() else "DATA")
    next_commands(("score", run, table), ("sample", run, "-n", 10, "--plot", "samples.png"))


def explore(
    run: Run,
    data: Annotated[str | None, Option(help=DATA)] = None,
    host: Annotated[str, Option(help=HOST)] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8350,
    open_browser: Annotated[bool, Option("--open", help="Open the page in the browser.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Explore a model in the browser: ask, look at odd rows, fill gaps, compare samples, complete images.

    The page works offline and sends nothing to other machines. It needs the extra app:
    `pip install 'pynade\\[app]'`. Ctrl-C stops it.

    \b
    Examples:
      pynade explore runs/people --data people.csv
      pynade explore runs/digits --port 0 --open
      pynade explore runs/people --host 0.0.0.0
    """
    lazy.serve.serve(run, data, host, port, open_browser, data_dir, console.print, errors.print)
