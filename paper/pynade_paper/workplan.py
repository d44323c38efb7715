"""docs/plan.md: every cell with the time it took, or is thought to take, and totals for each table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from pynade_paper.reproduce import Cell, cells, describe_cell
from pynade_paper.tables import TABLES, Table, measured, read_record, table

BESIDE = 8  # cores that a machine with a GPU is taken to have to spare


@dataclass(frozen=True)
class Work:
    """What one cell costs: measured, or planned where there is no record."""

    cell: Cell
    kind: str  # "GPU" or "CPU" where measured, else "planned" (on a GPU), or "none": there is no protocol
    seconds: float = 0.0
    present: bool = True  # measured by the protocol of today
    device: str = ""
    threads: int = 1  # where it was measured on a CPU
    spans: tuple[tuple[float, float], ...] = ()  # when it was trained and when scored, as the clock had it

    def __str__(self) -> str:
        if self.kind == "none":
            return "no protocol"
        if self.kind == "planned":
            return f"({duration(self.seconds)})"
        return f"{duration(self.seconds)} {self.kind}{'' if self.present else '†'}"


def work(results: Path, cell: Cell) -> Work:
    """The cost of a cell: training, choice of settings and scoring."""
    ours = measured(results, cell.row, cell.data)
    if ours is None:
        return Work(cell, "planned", 60 * cell.row.minutes) if cell.runnable else Work(cell, "none")
    record = read_record(results / ours.file) or {}
    kind = "GPU" if ours.device.startswith("cuda") else "CPU"
    device = ours.device
    threads = record.get("threads", 1)
    if kind == "CPU" and "threads" in record:
        device = f"{device}, {threads} {'thread' if threads == 1 else 'threads'}"
    return Work(cell, kind, ours.seconds + ours.scoring, ours.present, device, threads, spans(record))


def spans(record: dict[str, Any]) -> tuple[tuple[float, float], ...]:
    """When a record's model was trained and when it was scored: pairs of seconds since 1970."""
    seconds = dict(record.get("wall_seconds", {}))
    scoring = seconds.pop("score", 0.0)
    if "sessions" in record:
        known = [(_seconds(start), _seconds(end)) for start, end in record["sessions"]]
        killed = sum(seconds.values()) - sum(end - start for start, end in known)  # sessions have no end
        return ((known[0][0] - max(0.0, killed), known[0][0]), *known)
    found = []
    if "trained" in record:
        start = _seconds(record["trained"])
        found.append((start, start + sum(seconds.values())))
    if isinstance(record.get("scored"), dict) and "at" in record["scored"]:
        end = _seconds(record["scored"]["at"])
        found.append((end - scoring, end))
    return tuple(found)


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def covered(pieces: list[tuple[float, float]]) -> float:
    """The length of the union of pieces of time.

    Example:
        >>> covered([(0.0, 10.0), (5.0, 12.0), (20.0, 21.0)])
        13.0
    """
    total, last = 0.0, float("-inf")
    for start, end in sorted(pieces):
        total += max(0.0, end - max(start, last))
        last = max(last, end)
    return total


def at_once(pieces: list[tuple[float, float]]) -> int:
    """How many pieces of time overlap, at most.

    Example:
        >>> at_once([(0.0, 10.0), (5.0, 12.0), (12.0, 14.0)])
        2
    """
    moments = sorted((moment, step) for start, end in pieces for moment, step in ((start, 1), (end, -1)))
    return max(accumulate(step for _, step in moments), default=0)


def plan_sections(results: Path) -> Iterator[str]:
    """The page's pieces."""
    whole = {name: [work(results, cell) for cell in cells([name])] for name in TABLES}
    devices = sorted({w.device for w in chain(*whole.values()) if w.device})
    yield "# The plan"
    yield (
        "Every cell of [the results](results.md) with its wall time: training with the choice of settings, "
        "and scoring, as its record says. Several cells shared a machine: each counts in full, and *the GPU "
        "was busy* counts the clock's time once, from the records' own times of day: what the same runs, as "
        "many at once, take again (not in one session: each counts where it was). In brackets: not run yet, "
        "with the time that `pynade reproduce` plans for it on one H200. † is the time of an earlier "
        "protocol. On a CPU a cell had as many threads as its record says, mostly one; *on two cores* is "
        "what follows for two cells at a time (`--workers 2`), a cell of more threads taking both cores that "
        "much longer." + (f" The records were made on: {'; '.join(devices)}." if devices else "")
    )
    lines = [
        "| table | measured on a GPU | the GPU was busy | measured on a CPU | on two cores "
        "| not run yet, planned on a GPU | no protocol |"
    ]
    lines.append("|---" * 7 + "|")
    every = list(chain(*whole.values()))
    long = [w for w in every if w.cell.table == "patches" and "rnade" in Path(w.cell.name).name]
    sums = {"all": every, "RNADE on BSDS300": long, "all but these": [w for w in every if w not in long]}
    for name, works in (whole | sums).items():
        pieces = [piece for w in works if w.kind == "GPU" for piece in w.spans]
        parts = [_total(works, kind) for kind in ("GPU", "CPU", "planned")]
        parts.insert(1, f"{duration(covered(pieces))} (at most {at_once(pieces)} at once)" if pieces else "–")
        parts.insert(3, _on_cores([(w.seconds, w.threads) for w in works if w.kind == "CPU"]))
        lines.append(f"| {name} | {' | '.join(parts)} | {sum(w.kind == 'none' for w in works)} |")
    yield "\n".join(lines)
    rest = sums["all but these"]
    if busy := covered([piece for w in rest if w.kind == "GPU" for piece in w.spans]):
        planned = sum(w.seconds for w in rest if w.kind == "planned")
        more = f", and cells not run yet are planned with {duration(planned)} more" if planned else ""
        yield (
            f"All but RNADE on BSDS300 kept one GPU busy for {duration(busy)}{more}. That is the clock's "
            "time of the records, made in several sessions with as many cells at once as their times of day "
            "say; no one command has repeated it as a whole. It does not count the start of processes, what "
            "is trained for figures of samples, and benchmarks."
        )
    beside = [(w.seconds, w.threads) for w in rest if w.kind == "CPU"]
    if beside:
        yield (
            f"Beside the GPU, on {BESIDE} cores of its machine, the cells of the CPU in the last line would "
            f"take {_on_cores(beside, BESIDE)} (computed from their times, perfectly packed)."
        )
    for name, works in whole.items():
        shown = table(name)
        yield f"## {shown.title}: times"
        yield _times(shown, works)
    yield "This page is made from the records by `pynade report`."


def _on_cores(cells: list[tuple[float, int]], cores: int = 2) -> str:
    """How long cells of so many seconds and threads take, one on each core or one on all, the longest first.

    Example:
        >>> _on_cores([(300.0, 1), (200.0, 1), (250.0, 1), (60.0, 4)])
        '10 min'
    """
    busy = [0.0] * cores
    for seconds, _ in sorted((cell for cell in cells if cell[1] == 1), reverse=True):
        busy[busy.index(min(busy))] += seconds
    together = sum(seconds * max(1.0, threads / cores) for seconds, threads in cells if threads > 1)
    return duration(max(busy) + together) if cells else "–"


def _times(shown: Table, works: list[Work]) -> str:
    """A line for each protocol, a column for each data set."""
    lines = [f"| model | {' | '.join(shown.columns)} | how |", "|---" * (2 + len(shown.columns)) + "|"]
    for row in shown.rows:
        mine = {w.cell.data: w for w in works if w.cell.row == row}
        if mine:
            times = [
                str(mine[d]) if d in mine else f"– {shown.unavailable.get(d, '')}" for d in shown.columns
            ]
            lines.append(
                f"| {row.model} | {' | '.join(times)} | {_how([w.cell for w in mine.values()], shown)} |"
            )
    return "\n".join(lines)


def _how(row: list[Cell], shown: Table) -> str:
    """The protocol of a row's cells, and that of the data sets which have another than the first."""
    said: dict[str, list[str]] = {}
    for cell in row:
        said.setdefault(describe_cell(cell, shown).split(": ", 1)[1], []).append(cell.data)
    first, *others = said
    return "; ".join([first, *(f"on {' and '.join(said[how])} {how}" for how in others)])


def plan_page(results: Path) -> str:
    """docs/plan.md."""
    return "\n\n".join(plan_sections(results)) + "\n"


def _total(works: list[Work], kind: str) -> str:
    mine = [w for w in works if w.kind == kind]
    if not mine:
        return "–"
    return f"{duration(sum(w.seconds for w in mine))} ({len(mine)} {'cell' if len(mine) == 1 else 'cells'})"


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
