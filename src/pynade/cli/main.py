"""`pynade`: the entry point, its error handling, and the commands `info` and `demo`."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from importlib.metadata import entry_points
from io import TextIOWrapper
from pathlib import Path
from threading import Timer
from typing import Annotated, NoReturn

import typer
from typer import Option

from pynade._version import __version__
from pynade.cli import data, lazy
from pynade.cli.arguments import GROUP, Picture, Run, Usage
from pynade.cli.doctor import doctor
from pynade.cli.fit import HELP as HELP_OF_FIT
from pynade.cli.fit import ModelCommand, fit
from pynade.cli.pages import explore, report
from pynade.cli.sample import impute, inpaint, sample, score
from pynade.cli.screen import console, errors, next_commands, plain_table, print_facts, training_bar
from pynade.cli.sweep import sweep
from pynade.cli.table import odd_cells, predict, query, surprise
from pynade.digest import Damaged

HELP = """Exact probability models for tables and images.

\b
Fit a model to a table, fill its gaps, find odd cells, ask questions, draw new rows:
  pynade fit people.csv --out runs/people
  pynade impute runs/people people.csv --out filled.csv
  pynade surprise runs/people people.csv --top 20
  pynade query runs/people "income | age=40, city=Paris"
  pynade sample runs/people -n 100 --out new.csv
"""
EPILOG = (
    "Exit codes: 0 done; 1 refused, one sentence says why; 2 unknown command or option; 3 interrupted ("
    "Ctrl-C, SIGTERM): `pynade fit --resume RUN`, or the same command again, goes on; 4 a file is damaged "
    "that pynade wrote."
)
TOO_LARGE = ("allocate memory", "out of memory", "Overflow when unpacking")  # what torch says


def info(
    run: Run,
    plot: Annotated[Path | None, Option(help="Picture of the tree of a chow-liu run.")] = None,
    curve: Annotated[Path | None, Option(help="Picture of training and validation, epoch by epoch.")] = None,
) -> None:
    """Describe a run folder or a model file: model, data, training, result.

    \b
    Examples:
      pynade info runs/digits
      pynade info runs/chow-liu --plot tree.png
      pynade info runs/digits --curve curve.png
    """
    if curve is not None:
        figure, ((axis,),) = lazy.figures.subplots(1, 1, 6.4, 4.2)
        lazy.plots.training(lazy.summary.read_metrics(run), axis)
        lazy.figures.save_figure(figure, curve)
        console.print(f"training and validation of {run} -> {curve}")
        return next_commands(("info", run))
    if plot is not None:
        model, facts = lazy.run.load_run(run)
        tree = getattr(model, "tree_", model)  # of a mixture of trees, the one of largest weight
        if not hasattr(tree, "edges"):
            name = type(model).__name__
            raise ValueError(f"{run} is a {name}; only a ChowLiu (--model chow-liu) has a tree")
        lazy.figures.save_figure(lazy.figures.tree_figure(tree, facts.get("columns")), plot)
    print_facts(*lazy.summary.describe_run(run))
    if plot is not None:
        console.print(f"-> {plot}")
    if run.is_dir() and not (run / "result.json").is_file():
        return next_commands(("fit", "--resume", run))
    data = lazy.summary.read_spec(run)["data"] if run.is_dir() else "DATA"
    next_commands(("score", run, data), ("sample", run, "-n", 10))


Digits = Option("--digits", help="Four models of handwritten digits instead of the table.")


def demo(out: Picture = Path("pynade-demo.png"), digits: Annotated[bool, Digits] = False) -> None:
    """Fit a model to a table with gaps (344 penguins): fill the gaps, find odd cells, write a picture.

    It takes less than a minute and no network. --digits trains four models of images instead.

    \b
    Examples:
      pynade demo --out demo.png
      pynade demo --digits
    """
    if digits:
        with errors.status("digits") as status:
            lines = lazy.demo.digits_demo(out, lambda name: status.update(f"training {name}"))
        rows = [(name, f"{test.mean:.2f} ± {test.stderr:.2f}", f"{s:.1f}") for name, test, s in lines]
        images = f"Binarized 8×8 digits, {lines[0][1].n} test images"
        console.print(f"{images}, exact log-likelihoods (higher is better)")
        console.print(plain_table("model", "test log-likelihood (nats)", "seconds", rows=rows))
        console.print(f"Real digits, samples and pixel probabilities: {out}")
        return next_commands(("fit", "digits", "--model", "deepnade"), ("data", "list"), ("fit", "--help"))
    console.print("344 penguins, 8 columns, 19 missing cells. Fitting TabularNADE ...")
    with training_bar() as bar:
        results = lazy.demo.demo(out, [bar])
    console.print(f"\nSchema (what each column is):\n\n{results.model.schema_}", soft_wrap=True)
    console.print(f"\nMissing cells, filled (8 of {len(results.filled)}):")
    cells = [(cell.row, cell.column, cell.value, cell.certainty) for cell in results.filled[:8]]
    console.print(plain_table("row", "column", "filled with", "90 % interval or probability", rows=cells))
    console.print("Oddest cells, given the rest of their row:")
    console.print(odd_cells(results.odd))
    console.print(f"Log-likelihood: {results.gain:.2f} nats per row better than independent columns")
    console.print(f"Filled rows, an odd cell and a conditional distribution: {out}")
    next_commands(("demo", "--digits"), ("fit", "--help"))


app = typer.Typer(help=HELP, epilog=EPILOG, add_completion=False, pretty_exceptions_enable=False, **GROUP)
app.command("fit", cls=ModelCommand, help=HELP_OF_FIT)(fit)
_questions = (score, sample, impute, predict, surprise, query)
for command in (*_questions, explore, inpaint, sweep, info, report, demo, doctor):
    app.command()(command)
app.add_typer(data.app, name="data")
for point in entry_points(group="pynade.commands"):  # of other packages, such as the paper's
    point.load()(app)  # imports its command modules, which must not import torch


def _version(value: bool) -> None:
    if value:
        print(f"pynade {__version__}")
        raise typer.Exit


Version = Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
Code = Option("--import", metavar="MODULE", help="Import a Python module that registers classes of your own.")


@app.callback()
def _options(
    version: Annotated[bool, Version] = False, import_: Annotated[list[str] | None, Code] = None
) -> None:
    if import_:
        sys.path.insert(0, "")
    for module in import_ or ():
        import_module(module)


def _interrupt_again(dropped: sys.UnraisableHookArgs) -> None:
    """Ask again for an interrupt that came where Python drops exceptions, as after an import."""
    if not issubclass(dropped.exc_type, KeyboardInterrupt):
        return sys.__unraisablehook__(dropped)
    return Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()


def _stop() -> NoReturn:
    commands = "score, impute, predict, surprise, sample, sweep and reproduce"
    errors.print(f"Stopped. {commands} go on when the same command is given again.")
    sys.exit(3)


def main() -> None:
    """Run the command line; an error that a user can correct is one sentence, without a traceback."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    sys.unraisablehook = _interrupt_again
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # (None where it is closed)
            stream.reconfigure(errors="backslashreplace")  # of letters that a terminal does not have
    try:
        app()
    except (SystemExit, KeyboardInterrupt) as stop:
        if isinstance(stop, SystemExit) and stop.code != 130:  # typer's exit code after Ctrl-C
            raise
        _stop()
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # (in `__set_name__`, of a class that is imported)
            _stop()
        training = sys.modules.get("pynade.training")  # if it is not imported, nothing has diverged
        diverged = isinstance(error, training.Diverged) if training else False
        text = str(error).partition("\n")[0]
        if isinstance(error, MemoryError | OverflowError) or any(words in text for words in TOO_LARGE):
            error = ValueError(f"a number is too large for the memory or the types of this machine ({text})")
        if not (diverged or isinstance(error, ValueError | OSError | ImportError)):
            raise  # a bug of pynade: show where
        errors.print(f"Error: {error}")
        sys.exit(4 if isinstance(error, Damaged) else 2 if isinstance(error, Usage) else 1)


if __name__ == "__main__":
    main()
