"""What commands show: consoles, the training bar, numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from pynade.training import Callback
from pynade.training import Progress as Training

console = Console(highlight=False, markup=False)
errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

LINE_SECONDS = 15.0  # between lines where there is no terminal to draw a bar on


def plain_table(*columns: str) -> Table:
    """An empty table in the house style; the first column is text, the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for n, column in enumerate(columns):
        table.add_column(column, justify="left" if n == 0 else "right")
    return table


@contextmanager
def training_bar(what: str = "epoch") -> Iterator[Callback]:
    """A progress bar with epoch, train and validation NLL and the time left; lines where no terminal is."""
    bar = Progress(
        TextColumn(what + " {task.fields[epoch]}"),
        BarColumn(),
        TextColumn("train {task.fields[train]}  valid {task.fields[valid]}  best {task.fields[best]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=errors,
        disable=not errors.is_terminal,
    )
    task: TaskID | None = None
    said = time.monotonic()
    train = valid = "–"

    def show(now: Training) -> None:
        nonlocal task, said, train, valid
        if now.train_nll == now.train_nll:  # contrastive divergence knows it only now and then
            train = f"{now.train_nll:.3f}"
        if now.valid is not None:
            valid = f"{-now.valid.mean:.3f}"
        fields = {
            "epoch": f"{now.epoch}/{now.epochs}",
            "train": train,
            "valid": valid,
            "best": "–" if now.best_valid is None else f"{-now.best_valid:.3f}",
        }
        if task is None:
            task = bar.add_task("", total=now.updates, **fields)  # type: ignore[arg-type]
        bar.update(task, completed=now.update, **fields)  # type: ignore[arg-type]
        if not errors.is_terminal and now.epoch_done and time.monotonic() - said > LINE_SECONDS:
            said = time.monotonic()
            errors.print(f"{what} " + "{epoch}  train {train}  valid {valid}  best {best}".format(**fields))

    with bar:
        yield show


@contextmanager
def row_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar over rows; yields a function of (done, total)."""
    columns = (TextColumn(what), BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
