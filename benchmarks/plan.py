"""Hours, memory and machines for a number of rows, from the rates that `scale.py` measured.

    python benchmarks/plan.py --rows 1e9 [--ask score] [--workers 16] [--read 500] [--rate 9000] [--hours 24]
    python benchmarks/plan.py        (the table of docs/scale.md)

Processor seconds are a + b · rows, through the points measured at 10^5 and 10^6 rows; that at 10^7 checks
them. A worker is a process with one core (or one GPU, with a `--rate` measured on it). Questions are divided
among workers and machines, a fit is one worker. The slowest of computing and reading decides.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parents[1] / "paper/results/benchmarks/scale.json"
WORDS = {"score": "score", "impute": "fill gaps", "fit": "fit"}
SIZES = (10**6, 10**9, 10**12)
COLUMNS = 20  # of the measured table
CODE_BYTES = 4  # of a cell that a fit keeps
PASSES = 2  # of a fit over the files
FIELDS = ("ask", "rows", "minutes", "memory, GiB", "disk, GB", "first at its limit", "machines")


def points(record: dict[str, Any], ask: str) -> dict[int, dict[str, Any]]:
    """The streamed measurements of a question, by rows."""
    return {line["rows"]: line for line in record["lines"] if line["ask"] == ask}


def processor_seconds(record: dict[str, Any], ask: str, rows: float, rate: float | None = None) -> float:
    """Seconds of one core for so many rows; `rate` (rows per second) in place of the measured one."""
    found = points(record, ask)
    few, many = (min(found[n]["stream"]["processor_seconds"]) for n in (10**5, 10**6))
    each = (many - few) / 9e5
    return max(0.0, few - 1e5 * each) + rows * (1 / rate if rate else each)


def plan(
    record: dict[str, Any],
    ask: str,
    rows: float,
    workers: int = 16,
    read: float = 500,
    rate: float | None = None,
    hours: float = 24,
) -> dict[str, Any]:
    """What so many rows take on one machine, and how many machines are done within `hours`.

    Args:
        record: of `scale.py`.
        ask: "score", "impute" or "fit".
        rows: how many.
        workers: processes of a machine, with a core or a GPU each.
        read: megabytes per second from the disk or the network to one machine, shared by its workers.
        rate: rows per second of one worker; by default that of the record.
        hours: within which all is to be done.
    """
    line, workers = points(record, ask)[10**6], 1 if ask == "fit" else workers
    each = (line["data"]["bytes"] * (PASSES if ask == "fit" else 1)) / 1e6  # bytes read of a row
    each += max(line["stream"].get("bytes_out", [0])) / 1e6
    computing = processor_seconds(record, ask, rows, rate) / workers / 3600
    moving = rows * each / (read * 1e6) / 3600
    taken = max(computing, moving)  # hours
    memory = workers * max(line["stream"]["mib"]) / 1024
    disk = rows * COLUMNS * CODE_BYTES if ask == "fit" else rows * each
    limit = "cores" if computing >= moving else "reading and writing"
    if ask == "fit" and taken > hours:
        limit = "this process: take a sample of the rows"
    machines = 1 if ask == "fit" else math.ceil(taken / hours)
    return dict(zip(FIELDS, (WORDS[ask], rows, 60 * taken, memory, disk / 1e9, limit, machines), strict=True))


def table(record: dict[str, Any]) -> str:
    """The plans of three sizes, in Markdown."""
    lines = ["| " + " | ".join(FIELDS) + " |", "|" + "---|" * len(FIELDS)]
    for ask in WORDS:
        for rows in SIZES:
            found = map(_rounded, plan(record, ask, rows).values())
            cells = [f"{v:,.12g}" if isinstance(v, float) else v for v in found]
            cells[1] = f"10^{round(math.log10(rows))}"
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _rounded(value: Any) -> Any:
    """A number with two digits."""
    return float(f"{value:.2g}") if isinstance(value, float) else value


def above_zero(text: str) -> float:
    """The number of a text, which must be above zero."""
    if not 0 < (number := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, not {text}")
    return number


def whole(text: str) -> int:
    """The whole number of a text, which must be above zero."""
    return int(above_zero(str(int(text))))


def main() -> None:
    """Print a plan, or the table of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=above_zero, help="how many rows; without it, the table of three sizes")
    parser.add_argument("--ask", choices=WORDS, default="score")
    parser.add_argument("--workers", type=whole, default=16, help="processes of a machine: cores, or GPUs")
    parser.add_argument("--read", type=above_zero, default=500, help="megabytes per second read by a machine")
    parser.add_argument("--rate", type=above_zero, help="rows per second of one worker, as `score` prints")
    parser.add_argument("--hours", type=above_zero, default=24, help="within which all is to be done")
    parser.add_argument("--record", type=Path, default=RECORD)
    asked = vars(parser.parse_args())
    record = json.loads(asked.pop("record").read_text(encoding="utf-8"))
    if asked["rows"] is None:
        print(table(record))
    else:
        for name, value in plan(record, **asked).items():
            print(f"{name:20}{value:,.4g}" if isinstance(value, float) else f"{name:20}{value}")


if __name__ == "__main__":
    main()
