"""What commands print: consoles, tables, progress bars."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:  # importing torch takes a second, and `pynade --help` does not need it
    from pynade.tables import Schema
    from pynade.training import Callback, Progress

console = Console(highlight=False, markup=False)
errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

LINE_SECONDS = 15.0  # between lines where there is no terminal for a progress bar


def plain_table(*columns: str) -> Table:
    """Return an empty table; the first column is for text, the others are for numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for n, column in enumerate(columns):
        table.add_column(column, justify="left" if n == 0 else "right")
    return table


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    for fact in facts:
        table.add_row(*fact)
    console.print(table)


def print_schema(schema: Schema, most: int | None = None) -> None:
    """Print what each column of a table is, and which were left out, with the reasons.

    Args:
        schema: of the table.
        most: columns at most; None prints all.
    """
    table = plain_table("column", "kind", "values", "why")
    for column in table.columns:
        column.justify = "left"
    columns = [line for line in schema.table() if line[1] != "ignored"]
    for name, kind, values, why in columns[:most]:
        table.add_row(name, kind, values if len(values) <= 40 else f"{values[:39]}…", why)
    console.print(table)
    if more := len(columns[len(columns) if most is None else most :]):
        console.print(f"… and {more:,} more columns")
    for name, reason in schema.ignored:
        console.print(f"column {name!r} is left out: {reason}", soft_wrap=True)


def print_bars(bars: Sequence[tuple[str, float]], width: int = 40) -> None:
    """Print probabilities with bars of blocks."""
    longest, most = max(len(label) for label, _ in bars), max(p for _, p in bars) or 1.0
    for label, p in bars:
        eighths = round(8 * width * p / most)
        block = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
        console.print(f"{label:>{longest}}  {p:6.3f}  {block}", soft_wrap=True)


@contextmanager
def training_bar(what: str = "epoch") -> Iterator[Callback]:
    """Show the epoch, the log-likelihoods (nats per row) and the time left while a model is trained.

    Yields a callback of training. Where there is no terminal, it prints a line now and then instead.
    """
    from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    scores = "log-likelihood: train {train}  valid {valid}  best {best}"
    texts = [TextColumn(what + " {task.fields[epoch]}"), BarColumn(), TextColumn("{task.fields[scores]}")]
    times = [TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()]
    bar = Bar(*texts, *times, console=errors, disable=not errors.is_terminal)
    task: TaskID | None = None
    last_line = time.monotonic()
    shown = {"train": "–", "valid": "–", "best": "–"}

    def show(now: Progress) -> None:
        nonlocal task, last_line
        valid = None if now.valid is None else now.valid.mean
        for name, value in (("train", now.train), ("valid", valid), ("best", now.best_valid)):
            if value is not None and value == value:  # a number that is not known yet stays as it was
                shown[name] = f"{value:.3f}"
        epoch, text = f"{now.epoch}/{now.epochs}", scores.format(**shown)
        if task is None:
            task = bar.add_task("", total=now.updates, epoch=epoch, scores=text)
        bar.update(task, completed=now.update, epoch=epoch, scores=text)
        if not errors.is_terminal and now.epoch_done and time.monotonic() - last_line > LINE_SECONDS:
            last_line = time.monotonic()
            errors.print(f"{what} {epoch}  {text}")

    with bar:
        yield show


def next_commands(*commands: Sequence[object], to: Console = console) -> None:
    """Print the commands that usually follow, given as words without `pynade`; to `errors` after rows."""
    for n, words in enumerate(commands):
        command = shlex.join(str(word) for word in words)
        to.print(f"{'Next: ' if n == 0 else '      '}pynade {command}", soft_wrap=True)


@contextmanager
def row_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar over rows; yields a function of (done, total)."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def download_bar() -> Iterator[Callable[[int, int | None, str], None]]:
    """Show a progress bar for each file that is downloaded; yields a function of (done, total, file)."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:

        def show(done: int, total: int | None, file: str) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        yield show
