"""`pynade data list|get|info`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pynade.cli.arguments import GROUP, DataDir
from pynade.cli.fit import TABLES
from pynade.cli.lazy import np, registry, tables
from pynade.cli.screen import console, next_commands, plain_table, print_facts, row_bar

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
    rows, absent = [], []
    for name, entry in registry.entries().items():
        sizes = [f"{entry.sizes.get(part, 0):,}" for part in ("train", "valid", "test")]
        present = entry.here(data_dir)
        rows.append([name, entry.kind, entry.D, *sizes, "yes" if present else "no"])
        absent += [] if present else [("data", "get", name)]
    console.print(plain_table("name", "kind", "D", "train", "valid", "test", "here", rows=rows))
    console.print(f"data directory: {registry.data_directory(data_dir)}", soft_wrap=True)
    next_commands(("data", "info", "digits"), *absent[:1])


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
    entries = [registry.entry(name) for name in names]  # all, before anything is downloaded
    for name in names:
        with row_bar("", downloads=True) as bar:
            dataset = registry.load(name, data_dir, progress=bar)
        sizes = ", ".join(f"{part} {n:,}" for part, n in dataset.sizes.items())
        console.print(f"{name}: {dataset.n_variables} variables; {sizes}")
    next_commands(("data", "info", name), ("fit", name, "--model", MODEL.get(entries[-1].kind, "unet")))


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
    entry: Any = registry.entry(name) if registry.is_registered(name) else None
    dataset: Any = None
    if entry is None or entry.here(data_dir):
        dataset = tables.resolve(name, data_dir, frames=name.lower().endswith(TABLES), download=False)
    framed = dataset is not None and dataset.framed
    facts = [("title", entry.title)] if entry else []
    if not framed:
        facts.append(("columns", entry.kind if entry else ", ".join(sorted(set(dataset.schema.kinds)))))
    facts.append(("variables", str(entry.D if entry else dataset.n_variables)))
    facts += [(part, f"{n:,} rows") for part, n in (entry if dataset is None else dataset).sizes.items()]
    if entry:
        facts += [("upstream", address) for address in entry.addresses] + [("citation", entry.citation)]
        variants = ", ".join(f"{entry.name}/{variant}" for variant in entry.variants if variant)
        facts += [("also", variants)] if variants else []
        facts += [("note", note) for note in entry.notes]
    if dataset is None:
        facts.append(("here", f"no: {entry.by_hand or f'fetch it with `pynade data get {entry.name}`'}"))
        print_facts(facts)
        return next_commands(("data", "get", name))  # which says where to find it, if it cannot be downloaded
    if framed:
        gaps = sum(column.null_count() for column in dataset.train)
        facts.append(("missing", f"{gaps:,} of the training cells"))
    elif set(dataset.schema.kinds) == {"binary"}:
        facts.append(("ones", f"{100 * float(np.nanmean(dataset.train)):.1f} % of the training cells"))
    else:
        low, high = float(np.nanmin(dataset.train)), float(np.nanmax(dataset.train))
        facts.append(("range", f"{low:.4g} to {high:.4g} in the training cells"))
    schema = tables.Schema.inferred(dataset.train) if framed else None
    print_facts([*facts, ("checksum", dataset.checksum)], schema)
    model = [] if framed else ["--model", MODEL.get(dataset.schema.kinds[0], "unet")]
    next_commands(("fit", name, *model))
