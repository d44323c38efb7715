"""`pynade explore`: a page in the browser that answers questions about a model."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from pynade.cli import lazy
from pynade.cli.arguments import DataDir, Run
from pynade.cli.screen import console, errors

DATA = "Rows to show beside the model, a file or a data set; by default those of the run."
HOST = "Address to listen at. Other addresses than loopback need the token that is then printed."


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
