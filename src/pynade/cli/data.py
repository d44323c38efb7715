"""`pynade data list|get|info`."""

from __future__ import annotations

from typing import Annotated

import typer

from pynade.cli.arguments import GROUP, DataDir
from pynade.cli.options import TABLES
from pynade.cli.screen import console, download_bar, next_commands, plain_table, print_facts, print_schema

app = typer.Typer(help="Named data sets: list them, download them, describe one.", **GROUP)

#: A model for each kind of columns.
MODEL = {"binary": "deepnade", "real": "deep-rnade", "mixed": "tabularnade"}


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """List the registered data sets, and whether they are on this machine.

    \b
    Example:
      pynade data list
    """
    from pynade.tables import registry

    table = plain_table("name", "kind", "D", "train", "valid", "test", "here")
    for name, entry in registry.entries().items():
        sizes = [f"{entry.sizes.get(part, 0):,}" for part in ("train", "valid", "test")]
        table.add_row(name, entry.kind, str(entry.D), *sizes, "yes" if entry.here(data_dir) else "no")
    console.print(table)
    console.print(f"data directory: {registry.data_directory(data_dir)}", soft_wrap=True)
    away = [name for name, entry in registry.entries().items() if not entry.here(data_dir)]
    next_commands(("data", "info", "digits"), *(("data", "get", name) for name in away[:1]))


@app.command()
def get(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Registered names.")],
    data_dir: DataDir = None,
) -> None:
    """Download data sets and convert them once.

    \b
    Example:
      pynade data get mushrooms binarized_mnist
    """
    from pynade.tables import registry

    known = [registry.entry(name) for name in names]  # all, before anything is downloaded
    for name in names:
        with download_bar() as bar:
            dataset = registry.load(name, data_dir, progress=bar)
        sizes = ", ".join(f"{part} {n:,}" for part, n in dataset.sizes.items())
        console.print(f"{name}: {dataset.n_variables} variables; {sizes}")
    next_commands(("data", "info", name), ("fit", name, "--model", MODEL.get(known[-1].kind, "unet")))


@app.command()
def info(
    name: Annotated[str, typer.Argument(metavar="DATA", help="A registered name or a file.")],
    data_dir: DataDir = None,
) -> None:
    """Describe a data set: sizes, source, licence, notes, checksum; of a table file also its columns.

    \b
    Examples:
      pynade data info mushrooms
      pynade data info people.csv
    """
    import numpy as np

    from pynade.tables import Schema, registry, resolve

    dataset = None
    if registry.is_registered(name):
        entry = registry.entry(name)
        if entry.here(data_dir):
            dataset = registry.load(name, data_dir, download=False)
        facts = [("title", entry.title), ("columns", entry.kind), ("variables", str(entry.D))]
        facts += [(part, f"{n:,} rows") for part, n in (entry if dataset is None else dataset).sizes.items()]
        facts += [("upstream", address) for address in entry.addresses] + [("citation", entry.citation)]
        if any(entry.variants):
            facts.append(("also", ", ".join(f"{entry.name}/{other}" for other in entry.variants if other)))
        facts += [("note", note) for note in entry.notes]
        if dataset is None:
            facts.append(("here", f"no: {entry.by_hand or f'fetch it with `pynade data get {entry.name}`'}"))
    else:
        dataset = resolve(name, data_dir, frames=name.lower().endswith(TABLES))
        facts = [("variables", str(dataset.n_variables))]
        facts += [(part, f"{n:,} rows") for part, n in dataset.sizes.items()]
        facts.append(("columns", ", ".join(sorted(set(dataset.schema.kinds)))))
    if dataset is not None and dataset.framed:
        gaps = sum(column.null_count() for column in dataset.train)
        facts += [("missing", f"{gaps:,} of the training cells"), ("checksum", dataset.checksum)]
        print_facts([fact for fact in facts if fact[0] != "columns"])
        print_schema(Schema.inferred(dataset.train))
        next_commands(("fit", name))
        return
    if dataset is not None:
        if set(dataset.schema.kinds) == {"binary"}:
            facts.append(("ones", f"{100 * float(np.nanmean(dataset.train)):.1f} % of the training cells"))
        else:
            low, high = float(np.nanmin(dataset.train)), float(np.nanmax(dataset.train))
            facts.append(("range", f"{low:.4g} to {high:.4g} in the training cells"))
        facts.append(("checksum", dataset.checksum))
    print_facts(facts)
    if dataset is None:
        next_commands(("data", "get", name))  # which says where to find it, if it cannot be downloaded
    else:
        kind = next(iter(dataset.schema.kinds))
        next_commands(("fit", name, "--model", MODEL.get(kind, "unet")))
