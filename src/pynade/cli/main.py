"""`pynade`: the entry point and its error handling."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated

import typer
from typer import Option

from pynade._version import __version__
from pynade.cli import data
from pynade.cli.arguments import GROUP
from pynade.cli.fit import HELP as HELP_OF_FIT
from pynade.cli.fit import fit
from pynade.cli.inspect import demo, info
from pynade.cli.options import ModelCommand, with_options
from pynade.cli.sample import impute, inpaint, sample
from pynade.cli.score import score
from pynade.cli.screen import errors
from pynade.cli.sweep import sweep

HELP = """Exact probability models for tables and images.

\b
Fit a model, score rows, draw samples:
  pynade demo
  pynade fit digits --model nade --out runs/digits
  pynade score runs/digits digits --split test
  pynade sample runs/digits -n 64 --plot samples.png
"""

app = typer.Typer(help=HELP, add_completion=False, pretty_exceptions_enable=False, **GROUP)
app.command("fit", cls=ModelCommand, help=HELP_OF_FIT)(with_options(fit, None))
for command in (sweep, score, sample, impute, inpaint, info, demo):
    app.command()(command)
app.add_typer(data.app, name="data")
for point in entry_points(group="pynade.commands"):  # of other packages, such as the paper's
    point.load()(app)  # imports its command modules, which must not import torch


def _version(value: bool) -> None:
    if value:
        print(f"pynade {__version__}")
        raise typer.Exit


Version = Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
Import = Option(
    "--import", metavar="MODULE", help="Import a Python module that registers classes of your own."
)


@app.callback()
def _options(
    version: Annotated[bool, Version] = False, import_: Annotated[list[str] | None, Import] = None
) -> None:
    if import_:
        sys.path.insert(0, "")
    for module in import_ or ():
        import_module(module)


def main() -> None:
    """Run the command line; an error that a user can correct is one sentence, without a traceback."""
    try:
        app()
    except SystemExit as stop:
        if stop.code == 130:  # typer's exit code after Ctrl-C
            others = "sweep and reproduce continue when the same command is given again"
            errors.print(f"Stopped. `pynade fit --resume RUN` continues a run; {others}.")
        raise
    except Exception as error:
        training = sys.modules.get("pynade.training")  # if it is not imported, nothing has diverged
        diverged = isinstance(error, training.Diverged) if training else False
        if not (diverged or isinstance(error, ValueError | OSError | ImportError)):
            raise  # a bug of pynade: show where
        errors.print(f"Error: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
