"""Run the attack: `python -m tests.torture --scale 0.1`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
ROOT = str(Path(__file__).parents[2])
os.environ["PYTHONPATH"] = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])


def table(rows: list[list[object]]) -> str:
    """The results as Markdown."""
    lines = ["| fault | trials | survived | what happened |", "|---|---:|---:|---|"]
    for fault, trials, survived, what in rows:
        lines.append(f"| {fault} | {trials:,} | {survived:,} | {str(what).replace('|', '/')} |")
    return "\n".join(lines)


def main() -> int:
    """Parse the options, run every fault, print the table; 1 if something did not survive."""
    import torch

    from pynade.runs.provenance import code_version
    from tests.torture import commands, files, numbers
    from tests.torture.common import Plan, Row, prepare

    # quick ones first: what they leave of --minutes goes to the others
    faults = [files.truncations, files.bit_flips, files.data_of_runs, numbers.extremes_of_families]
    faults += [numbers.extremes_of_estimators, numbers.parallel, numbers.soak, commands.read_only]
    faults += [commands.several_writers, commands.full_disk, files.hostile_files, commands.kills]
    names = {fault.__name__.replace("_", "-"): fault for fault in faults}
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual number of trials [1.0]")
    parser.add_argument("--minutes", type=float, help="stop after about so many minutes")
    parser.add_argument("--only", choices=names, action="append", help="one fault; repeat for several")
    parser.add_argument("--seed", type=int, default=0, help="of all random choices [0]")
    parser.add_argument("--out", type=Path, help="write the table here, with code version and seed (.json)")
    parser.add_argument("--keep", type=Path, help="copy the inputs that failed into this folder")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    chosen, results, began = asked.only or list(names), [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pynade-torture-") as folder:
        plan = Plan(Path(folder), asked.seed, asked.scale, asked.keep)
        prepare(plan)
        plan.deadline = began + 60 * (asked.minutes or float("inf"))
        for name in plan.shared(chosen):
            start = time.monotonic()
            found = names[name](plan)
            found = [found] if isinstance(found, Row) else found
            results += found
            survived, trials = sum(r.survived for r in found), sum(r.trials for r in found)
            print(f"{name}: {survived:,} of {trials:,}, {time.monotonic() - start:.0f} s", file=sys.stderr)
    print(table([list(r) for r in results]))
    if asked.out is not None:
        facts = {"code": code_version(), "seed": asked.seed, "scale": asked.scale, "minutes": asked.minutes}
        facts |= {"seconds": round(time.monotonic() - began), "results": [r._asdict() for r in results]}
        asked.out.write_text(json.dumps(facts, indent=2) + "\n")
    return int(any(r.survived < r.trials for r in results))


if __name__ == "__main__":
    sys.exit(main())
