"""Cells of the tables: which there are, how each is made, how long it takes, and what fits into a budget."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pynade_paper.records import measured
from pynade_paper.tables import Row, Table, Tables, read_tables

TRIAL_MINUTES = 0.5  # of a trial run (`quick`), about


@dataclass(frozen=True)
class Cell:
    """One number of a table: a row on one data set."""

    table: Table
    row: Row
    data: str

    @property
    def name(self) -> str:
        """Such as "uci/red_wine/rnade-mog"."""
        return self.row.record.format(data=self.data).removesuffix(".json")

    @property
    def runnable(self) -> bool:
        """Whether it has a protocol."""
        return self.row.fit is not None or self.row.sweep is not None

    def __str__(self) -> str:
        """The protocol as a sentence.

        Example:
            >>> print(cells(tables_named("uci"), model="gaussian", data="red_wine")[0])
            Gaussian on red_wine: sweep gaussian with standardise False, then retrain on train + valid
        """
        row = self.row
        if row.sweep is not None:
            sweep = row.sweep_on(self.data)
            fixed = ", ".join(f"{k} {v}" for k, v in sweep["fixed"].items())
            tried = ", ".join(f"{k} in {v}" for k, v in sweep["grid"].items())
            end = ", then retrain on train + valid" if sweep["retrain"] else ""
            end += f", with {sweep['repeats']} seeds" if "repeats" in sweep else ""
            protocol = f"sweep {sweep['model']} with {fixed}" + (f", over {tried}" if tried else "") + end
        elif row.fit is not None:
            fixed = ", ".join(f"{k} {v}" for k, v in row.fit_on(self.data)["parameters"].items())
            protocol = f"fit {row.fit['model']}" + (f" with {fixed}" if fixed else "")
            protocol += f"; {row.orderings} orderings" if row.orderings else ""
            if row.orderings and row.draws:
                protocol += f", exact on test[::{row.every}], corrected by {row.draws} draws on all rows"
        else:
            protocol = "no protocol yet"
        return f"{row.model} on {self.data}: {protocol}"


def tables_named(name: str, tables: Tables | None = None) -> Tables:
    """The tables that a name stands for: one, "table-2" as the paper counts them, or "all".

    Example:
        >>> list(tables_named("table-6")), list(tables_named("uci"))
        (['uci'], ['uci'])
    """
    tables = read_tables() if tables is None else tables
    number = re.fullmatch(r"table-(\d+)", name)
    counted = int(number[1]) if number else None
    found = {n: t for n, t in tables.items() if name in (n, "all") or counted in t.number}
    if not found:
        numbers = ", ".join(f"table-{k} ({n})" for n, table in tables.items() for k in table.number)
        raise ValueError(f"unknown table {name!r}; known: {', '.join(tables)}, all, or {numbers}")
    return found


def cells(tables: Tables, model: str | None = None, data: str | None = None) -> list[Cell]:
    """The cells of some tables, each record once; of one row (its name, or its record's), of one data set.

    Example:
        >>> [cell.name for cell in cells(tables_named("uci"), model="rnade-mog", data="red_wine")]
        ['uci/red_wine/rnade-mog']
    """
    found: dict[str, Cell] = {}
    for table in tables.values():
        if data in table.unavailable:
            raise ValueError(f"{data} is not measured: {table.unavailable[data]}")
        for row in (row for row in table.rows if row.why is None):
            for column in table.columns:
                cell = Cell(table, row, column)
                wanted = (data in (None, column)) and (model in (None, row.model, Path(cell.name).name))
                if wanted and column not in table.unavailable and (cell.runnable or cell.name not in found):
                    found[cell.name] = cell
    names = ", ".join(tables)
    if not found and model is None and data is None:
        raise ValueError(f"no cell of {names} can be run yet")
    if not found:
        given = [f"model {model!r}"] if model is not None else []
        given += [f"data set {data!r}"] if data is not None else []
        every = [Path(cell.name) for cell in cells(tables)]
        raise ValueError(
            f"no cell of {names} has {' and '.join(given)}; models: "
            f"{', '.join(dict.fromkeys(path.name for path in every))}; data sets: "
            f"{', '.join(dict.fromkeys(path.parent.name for path in every))}"
        )
    return list(found.values())


def expected_minutes(cell: Cell, results: Path, device: str = "auto", quick: bool = False) -> float:
    """How long a cell will take: as its record on the same kind of device took, else as its row says."""
    if quick:
        return TRIAL_MINUTES
    if device == "auto":
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    ours = measured(results, cell.row, cell.data)
    if ours is None or not ours.present or not ours.seconds:
        return cell.row.minutes
    same = ours.device.startswith("cpu") == (device == "cpu")
    return (ours.seconds + ours.scoring) / 60 if same else cell.row.minutes


def within_budget(
    todo: list[Cell],
    results: Path,
    minutes: float | None,
    device: str = "auto",
    workers: int = 1,
    quick: bool = False,
) -> tuple[list[Cell], list[Cell]]:
    """The cells that fit into the minutes, in the order in which to make them, and those left out.

    Cells without a number of ours come first, before all those that the paper has; then the cells furthest
    below the paper. Every worker has the given minutes.
    """

    def rank(cell: Cell) -> tuple[int, float, float]:
        ours, paper = measured(results, cell.row, cell.data), cell.row.paper.get(cell.data)
        if ours is None:
            return int(paper is None), 0.0, times[cell.name]
        comparable = paper is not None and cell.table.compare and not cell.row.deviation
        return 2, ours.mean - (paper or 0.0) if comparable else 0.0, times[cell.name]

    times = {cell.name: expected_minutes(cell, results, device, quick) for cell in todo}
    taken, left, spent = [], [cell for cell in todo if not cell.runnable], 0.0
    for cell in sorted((cell for cell in todo if cell.runnable), key=rank):
        time = times[cell.name]
        if minutes is None or (time <= minutes and spent + time <= workers * minutes):
            taken.append(cell)
            spent += time
        else:
            left.append(cell)
    return taken, left


def parse_minutes(text: str) -> float:
    """ "90m", "2h" or "1h30m" in minutes.

    Example:
        >>> parse_minutes("90m"), parse_minutes("1h30m"), parse_minutes("45")
        (90.0, 90.0, 45.0)
    """
    found = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m?)?", text.strip().lower())
    if not found or not any(found.groups()):
        raise ValueError(f"a budget is written like 60m, 2h or 1h30m, not {text!r}")
    minutes = 60 * float(found[1] or 0) + float(found[2] or 0)
    if minutes == 0:
        raise ValueError("a budget of 0 minutes does nothing: give more, such as 60m")
    return minutes
