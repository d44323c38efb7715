"""`pynade data list|get|info`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from pynade.cli.screen import console, errors, plain_table

app = typer.Typer(
    help="Named data sets: what there is, fetching it, what is known of it.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

DataDir = Annotated[Path | None, typer.Option(help="Folder of the data sets [$PYNADE_DATA].")]


@app.command(
    "list",
    help="""All registered data sets, and whether they are on this machine.

\b
Example:
  pynade data list
""",
)
def list_(data_dir: DataDir = None) -> None:
    """List the registry."""
    from pynade.tables import data_directory, registry

    table = plain_table("name", "kind", "D", "train", "valid", "test", "here")
    for name in registry.entries():
        entry = registry.entry(name)
        here = entry.here(data_dir)
        sizes = [f"{entry.sizes.get(part, 0):,}" for part in ("train", "valid", "test")]
        table.add_row(name, entry.kind, str(entry.D), *sizes, "yes" if here else "no")
    console.print(table)
    console.print(f"data directory: {data_directory(data_dir)}", soft_wrap=True)


@app.command(
    help="""Download data sets and convert them once.

\b
Example:
  pynade data get mushrooms binarized_mnist
"""
)
def get(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Registered names.")],
    data_dir: DataDir = None,
) -> None:
    """Fetch data sets."""
    from pynade.tables import registry

    for name in names:
        registry.entry(name)  # all names must be known before anything is fetched
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    for name in names:
        with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
            tasks: dict[str, TaskID] = {}

            def show(
                done: int, total: int | None, file: str, bar: Progress = bar, tasks: dict = tasks
            ) -> None:
                if file not in tasks:
                    tasks[file] = bar.add_task(file, total=total)
                bar.update(tasks[file], completed=done, total=total)

            dataset = registry.load(name, data_dir, progress=show)
        sizes = ", ".join(f"{part} {n:,}" for part, n in dataset.sizes.items())
        console.print(f"{name}: {dataset.n_variables} variables; {sizes}")


@app.command(
    help="""What is known of a data set: sizes, source, licence, traps, checksum.

\b
Example:
  pynade data info mushrooms
"""
)
def info(
    name: Annotated[str, typer.Argument(metavar="DATA", help="A registered name or a file.")],
    data_dir: DataDir = None,
) -> None:
    """Show one data set."""
    from pynade.tables import registry, resolve

    table = plain_table("", "")
    table.show_header = False
    table.columns[1].justify = "left"
    if registry.is_registered(name):
        entry = registry.entry(name)
        table.add_row("title", entry.title)
        table.add_row("columns", entry.kind)
        table.add_row("variables", str(entry.D))
        here = entry.here(data_dir)
        dataset = registry.load(name, data_dir, download=False) if here else None
        for part, n in (entry.sizes if dataset is None else dataset.sizes).items():
            table.add_row(part, f"{n:,} rows")
        for address in entry.addresses:
            table.add_row("upstream", address)
        table.add_row("citation", entry.citation)
        if any(entry.variants):
            table.add_row(
                "also", ", ".join(f"{entry.name}/{variant}" for variant in entry.variants if variant)
            )
        for note in entry.notes:
            table.add_row("note", note)
        if dataset is None:
            table.add_row("here", "no: " + (entry.by_hand or f"fetch it with `pynade data get {entry.name}`"))
    else:
        dataset = resolve(name, data_dir)
        table.add_row("variables", str(dataset.n_variables))
        for part, n in dataset.sizes.items():
            table.add_row(part, f"{n:,} rows")
        table.add_row("columns", ", ".join(sorted(set(dataset.schema.kinds))))
    if dataset is not None:
        if set(dataset.schema.kinds) == {"binary"}:
            table.add_row("ones", f"{100 * float(np.nanmean(dataset.train)):.1f} % of the training cells")
        else:
            low, high = float(np.nanmin(dataset.train)), float(np.nanmax(dataset.train))
            table.add_row("range", f"{low:.4g} to {high:.4g} in the training cells")
        table.add_row("checksum", dataset.checksum)
    console.print(table)
