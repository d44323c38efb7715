"""What commands print: consoles, tables, progress bars."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:  # importing torch takes a second, and `pynade --help` does not need it
    from pynade.tables import Schema
    from pynade.training import Callback, Progress

console = Console(highlight=False, markup=False)
errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

BAR_WIDTH = 40  # of a probability, in characters
LINE_SECONDS = 15.0  # between lines where there is no terminal for a progress bar


def plain_table(*columns: str, rows: Iterable[Sequence[object]] = (), numbers: bool = True) -> Table:
    """Return a table; the first column is for text, the others are for numbers if there are any."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=bool(columns))
    for n, column in enumerate(columns):
        table.add_column(column, justify="right" if n and numbers else "left")
    for row in rows:
        table.add_row(*map(str, row))
    return table


def print_facts(facts: Iterable[tuple[str, str]], schema: Schema | None = None) -> None:
    """Print names and values in two columns, and then the schema of a table."""
    console.print(plain_table(rows=facts))
    if schema is not None:
        print_schema(schema)


def print_schema(schema: Schema, most: int | None = None) -> None:
    """Print what each column of a table is (`most` of them at most), and which were left out and why."""
    columns = [line for line in schema.table() if line[1] != "ignored"]
    rows = [(name, kind, v if len(v) <= 40 else f"{v[:39]}…", why) for name, kind, v, why in columns[:most]]
    console.print(plain_table("column", "kind", "values", "why", rows=rows, numbers=False))
    if more := len(columns) - len(rows):
        console.print(f"… and {more:,} more columns")
    for name, reason in schema.ignored:
        console.print(f"column {name!r} is left out: {reason}", soft_wrap=True)


def print_bars(bars: Sequence[tuple[str, float]]) -> None:
    """Print probabilities with bars of blocks."""
    longest, most = max(len(label) for label, _ in bars), max(p for _, p in bars) or 1.0
    for label, p in bars:
        eighths = round(8 * BAR_WIDTH * p / most)
        block = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
        console.print(f"{label:>{longest}}  {p:6.3f}  {block}", soft_wrap=True)


def next_commands(*commands: Sequence[object], to: Console = console) -> None:
    """Print the commands that usually follow, given as words without `pynade`; to `errors` after rows."""
    for n, words in enumerate(commands):
        command = shlex.join(str(word) for word in words)
        to.print(f"{'Next: ' if n == 0 else '      '}pynade {command}", soft_wrap=True)


@contextmanager
def training_bar() -> Iterator[Callback]:
    """Show the epoch, the log-likelihoods (nats per row) and the time left while a model is trained.

    Yields a callback of training. Where there is no terminal, it prints a line now and then instead.
    """
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    texts = TextColumn("{task.fields[epoch]}"), BarColumn(), TextColumn("{task.fields[scores]}")
    times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    bar = Bar(*texts, *times, console=errors, disable=not errors.is_terminal)  # begins with the training
    task = bar.add_task("", total=None, visible=False, epoch="", scores="")
    numbers, printed, messages = {"train": "–", "valid": "–", "best": "–"}, time.monotonic(), set[str]()

    def show(now: Progress) -> None:
        nonlocal printed
        bar.start()
        for message in {m for history in now.histories for m in history.messages} - messages:
            messages.add(message)
            errors.print(message)
        valid = None if now.valid is None else now.valid.mean
        for name, value in (("train", now.train), ("valid", valid), ("best", now.best_valid)):
            if value is not None and value == value:  # a number that is not known yet stays as it was
                numbers[name] = f"{value:.3f}"
        epoch = f"epoch {now.epoch}/{now.epochs}"
        scores = "log-likelihood: train {train}  valid {valid}  best {best}".format(**numbers)
        bar.update(task, total=now.updates, completed=now.update, visible=True, epoch=epoch, scores=scores)
        if not errors.is_terminal and now.epoch_done and time.monotonic() - printed > LINE_SECONDS:
            printed = time.monotonic()
            errors.print(f"{epoch}  {scores}")

    try:
        yield show
    finally:
        bar.stop()


@contextmanager
def row_bar(label: str = "", downloads: bool = False, rows: bool = False) -> Iterator[Callable[..., None]]:
    """Show a progress bar; yields a function of (done, total), with a name where there are several bars.

    A bar is there until its task is done, so that a bar of another kind can follow. Of `rows` it shows how
    many are done in a second; without a terminal it prints a line now and then.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    share = TextColumn("{task.percentage:3.0f} %{task.fields[rate]}"), TimeRemainingColumn()
    columns = TextColumn("{task.description}"), BarColumn(), *([DownloadColumn()] if downloads else share)
    bar = Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)
    tasks, printed = dict[str, tuple[Any, float, int]](), time.monotonic()

    def show(done: int, total: int | None, name: str = label) -> None:
        nonlocal printed
        bar.start()
        if name not in tasks:  # (rows of an earlier command that was killed are done at the beginning)
            tasks[name] = bar.add_task(name, total=total, rate=""), time.monotonic(), done
        task, began, before = tasks[name]
        speed = (done - before) / max(time.monotonic() - began, 1e-3)
        rate = f", {speed:,.0f} rows/s" if rows and name != "reading" else ""
        bar.update(task, completed=done, total=total, rate=rate)
        if rate and not errors.is_terminal and time.monotonic() - printed > LINE_SECONDS:
            printed = time.monotonic()
            errors.print(f"{name}: {done:,} of {total:,} rows{rate}")
        if total is not None and done >= total:
            bar.remove_task(task)
            del tasks[name]
            if not tasks:
                bar.stop()

    try:
        yield show
    finally:
        if tasks:
            bar.stop()
