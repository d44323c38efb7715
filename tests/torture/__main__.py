"""Run the attack: `python -m tests.torture --scale 0.1`."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parents[2])
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"  # of a page


def table(facts: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["| fault | trials | survived | what happened |", "|---|---:|---:|---|"]
    for r in facts["results"]:
        what = r["what"].replace("|", "/")
        lines.append(f"| {r['fault']} | {r['trials']:,} | {r['survived']:,} | {what} |")
    trials, survived = (sum(r[name] for r in facts["results"]) for name in ("trials", "survived"))
    lines.append(f"| all | {trials:,} | {survived:,} | |")
    made = f"Scale {facts['scale']:g}, seed {facts['seed']}, {facts['seconds'] / 60:.0f} minutes"
    return "\n".join([*lines, "", f"{made}, code {facts['code']}.", ""])


def joined(files: list[Path]) -> dict[str, Any]:
    """One table of several runs with the same choices; of a fault in two of them, the later file counts."""
    several = [json.loads(file.read_text()) for file in files]
    if any((facts["seed"], facts["scale"]) != (several[0]["seed"], several[0]["scale"]) for facts in several):
        raise SystemExit("these runs have other seeds or scales: they make no table")
    rows = {r["fault"]: (r, facts["code"]) for facts in several for r in facts["results"]}
    codes = {code: [r["fault"] for r, own in rows.values() if own == code] for _, code in rows.values()}
    first, *others = codes
    code = "".join([first, *(f"; {', '.join(codes[other])}: code {other}" for other in others)])
    seconds = max(facts["seconds"] for facts in several)
    return several[0] | {"code": code, "seconds": seconds, "results": [r for r, _ in rows.values()]}


def write_page(page: Path, facts: dict[str, Any]) -> None:
    """Put the table into a page, between its marks."""
    text = page.read_text(encoding="utf-8")
    marked = f"{BEGIN}\n{table(facts)}\n{END}"
    page.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: marked, text, flags=re.S), encoding="utf-8")


def attack(asked: argparse.Namespace, names: dict[str, Any]) -> dict[str, Any]:
    """Run the faults that were asked for; returns what `--out` writes."""
    import torch

    from pynade.runs.provenance import code_version
    from tests.torture.common import Plan, Row, prepare

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results: list[Row] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pynade-torture-") as folder:
        plan = Plan(Path(folder), asked.seed, asked.scale, asked.keep)
        prepare(plan)
        plan.deadline = began + 60 * (asked.minutes or float("inf"))
        for name in plan.shared(asked.only or list(names)):
            start = time.monotonic()
            found = names[name](plan)
            found = [found] if isinstance(found, Row) else found
            results += found
            survived, trials = sum(r.survived for r in found), sum(r.trials for r in found)
            print(f"{name}: {survived:,} of {trials:,}, {time.monotonic() - start:.0f} s", file=sys.stderr)
    facts = {"code": code_version(), "seed": asked.seed, "scale": asked.scale, "minutes": asked.minutes}
    return facts | {"seconds": round(time.monotonic() - began), "results": [r._asdict() for r in results]}


def main() -> int:
    """Parse the options, run every fault, print the table; 1 if something did not survive."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
    os.environ["PYTHONPATH"] = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
    from tests.torture import commands, files, numbers

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
    parser.add_argument("--keep", type=Path, help="copy the files that failed into this folder")
    parser.add_argument("--show", type=Path, nargs="+", help="run nothing; take tables of earlier --out")
    parser.add_argument("--page", type=Path, help="put the table into this page, docs/robustness.md")
    asked = parser.parse_args()
    if sys.platform != "linux":
        print("the attack needs Linux: nothing was done")
        return 0
    facts = attack(asked, names) if asked.show is None else joined(asked.show)
    print(table(facts))
    if asked.out is not None:
        asked.out.write_text(json.dumps(facts, indent=2) + "\n")
    if asked.page is not None:
        write_page(asked.page, facts)
    return int(any(r["survived"] < r["trials"] for r in facts["results"]))


if __name__ == "__main__":
    sys.exit(main())
