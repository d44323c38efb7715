"""docs/plan.md: every cell with the time it took, or is thought to take, and totals for each table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from pynade.experiments.reproduce import Cell, cells, describe_cell
from pynade.experiments.tables import TABLES, Table, measured, table, why_not


@dataclass(frozen=True)
class Work:
    """What one cell costs: measured, or planned where there is no record."""

    cell: Cell
    seconds: float
    device: str | None  # None: not measured, the seconds are planned ones on a GPU
    present: bool = True  # measured by the protocol of today

    @property
    def kind(self) -> str:
        """ "GPU" or "CPU" where measured, else "planned" or "none" (no protocol is written down)."""
        if self.device is not None:
            return "GPU" if self.device.startswith("cuda") else "CPU"
        return "planned" if self.cell.runnable else "none"


def work(results: Path, cell: Cell) -> Work:
    """The cost of a cell: training, choice of settings and scoring."""
    ours = measured(results, cell.row, cell.data)
    if ours is None:
        return Work(cell, 60 * cell.row.minutes if cell.runnable else 0.0, None)
    return Work(cell, ours.seconds + ours.scoring, ours.device, ours.present)


def plan_sections(results: Path) -> Iterator[str]:
    """The page's pieces."""
    yield "# The plan"
    yield (
        "Every cell of [the results](results.md) with its wall time: training with the choice of settings, "
        "and scoring, as its record says (where several cells shared a GPU, each counts in full). "
        "Cells without a record have the time that `pynade reproduce` plans for them on one H200. † is the "
        "time of an earlier protocol. CPU times are on the threads their records name."
    )
    whole = {name: [work(results, cell) for cell in cells([name])] for name in TABLES}
    lines = [
        "| table | measured on a GPU | measured on a CPU | not run yet, planned on a GPU | no protocol |"
    ]
    lines.append("|---|---|---|---|---|")
    for name, works in (whole | {"all": list(chain(*whole.values()))}).items():
        parts = [_total(works, kind) for kind in ("GPU", "CPU", "planned")]
        lines.append(f"| {name} | {' | '.join(parts)} | {sum(w.kind == 'none' for w in works)} |")
    yield "\n".join(lines)
    for name, works in whole.items():
        shown = table(name)
        yield f"## {shown.title}"
        yield "\n".join(
            ["| cell | how | time | where |", "|---|---|---|---|", *(_line(w, shown) for w in works)]
        )
    yield "This page is made from the records by `pynade report`."


def plan_page(results: Path) -> str:
    """docs/plan.md."""
    return "\n\n".join(plan_sections(results)) + "\n"


def _total(works: list[Work], kind: str) -> str:
    mine = [w for w in works if w.kind == kind]
    if not mine:
        return "–"
    return f"{duration(sum(w.seconds for w in mine))} ({len(mine)} {'cell' if len(mine) == 1 else 'cells'})"


def _line(one: Work, shown: Table) -> str:
    cell = one.cell
    how = (
        describe_cell(cell, shown).split(": ", 1)[1] if cell.runnable else why_not(shown, cell.row, cell.data)
    )
    if one.kind == "none":
        return f"| {cell.name} | {how} | – | not measured |"
    if one.device is None:
        return f"| {cell.name} | {how} | about {duration(one.seconds)} | planned |"
    return f"| {cell.name} | {how} | {duration(one.seconds)}{'' if one.present else '†'} | {one.device} |"


def duration(seconds: float) -> str:
    """A time as people say it.

    Example:
        >>> duration(0.4), duration(75), duration(600), duration(7260)
        ('0.4 s', '75 s', '10 min', '2 h 1 min')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
