"""The speed section of the results page, from the records of `pynade bench` and benchmarks/population.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OTHERS = {
    "loop": "× the plain loop",
    "cumulative": "× the cumulative sum",
    "zuko MAF": "× zuko's MAF",
}


def speed_sections(results: Path) -> Iterator[str]:
    """Headings, paragraphs and tables; nothing where nothing was recorded."""
    folder = results / "benchmarks"
    kernels = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("nade-*.json"))]
    crowds = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("population-*.json"))]
    plain = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("baselines-*.json"))]
    if kernels or crowds or plain:
        yield "## Speed"
    if kernels:
        yield (
            "The fused kernels of fixed-order NADE beside the loop over D that everyone writes in torch, the "
            "vectorised cumulative sum and a masked autoregressive flow with as many parameters: how many "
            "times as long they take, in the same run (`pynade bench`, medians). The ceiling is the rate of "
            "torch's own sigmoid on data in the cache, for the hidden activations that a task needs; the "
            "CPU kernels' sigmoid is faster, which is how it can be passed."
        )
        yield kernel_table(kernels)
    if plain:
        yield (
            "The baselines beside scikit-learn and what one would write in NumPy and SciPy, all in one run "
            "(`pynade bench baselines`, medians). Those that are not ours run on the same machine's CPU with "
            "the threads named."
        )
        yield baseline_table(plain)
    if crowds:
        yield (
            "A grid trained as one population, beside its members one after the other, per member and epoch "
            "(RNADE with K Gaussians, 50 hidden units, 11 variables; `python benchmarks/population.py`)."
        )
        yield population_table(crowds)


def kernel_table(records: list[dict[str, Any]]) -> str:
    """One line for every task on every machine."""
    head = ["machine", "rows, variables, units", "task", "ours, ms", *OTHERS.values(), "of the ceiling"]
    lines = []
    for record in records:
        for measured in record["shapes"]:
            for task, timing in measured["tasks"].items():
                ratios, share = timing["ratios"], timing.get("share_of_ceiling")
                lines.append(
                    [
                        _machine(record),
                        _sizes(measured["shape"]),
                        task,
                        f"{1e3 * timing['ours']['median']:.2f}",
                        *(f"{ratios[name]:.1f}" if name in ratios else "–" for name in OTHERS),
                        "–" if share is None else f"{share:.0%}",
                    ]
                )
    return _markdown(head, lines)


def baseline_table(records: list[dict[str, Any]]) -> str:
    """One line for every contender at every problem on every machine."""
    head = ["machine", "problem", "contender", "ms", "× ours"]
    lines = [
        [
            _machine(record),
            problem["problem"],
            contender,
            f"{1e3 * timed['median']:,.1f}",
            f"{problem['ratios'][contender]:.1f}" if contender in problem["ratios"] else "–",
        ]
        for record in records
        for problem in record["problems"]
        for contender, timed in problem["contenders"].items()
    ]
    return _markdown(head, lines)


def population_table(records: list[dict[str, Any]]) -> str:
    """One line for every number of components on every machine."""
    head = ["machine", "K", "members", "alone, ms", "together, ms", "gain"]
    lines = [
        [
            _machine(record),
            str(line["K"]),
            str(line["members"]),
            f"{1e3 * line['alone']:.2f}",
            f"{1e3 * line['together']:.3f}",
            f"{line['ratio']:.1f}×",
        ]
        for record in records
        for line in record["lines"]
    ]
    return _markdown(head, lines)


def _machine(record: dict[str, Any]) -> str:
    threads = record["threads"]
    return record["device"] + (f", {threads} threads" if record["device"].startswith("cpu") else "")


def _sizes(shape: dict[str, Any]) -> str:
    words = f"{shape['B']}, {shape['D']}, {shape['H']}"
    if shape["K"]:
        return f"{words}; real, {shape['K']} Gaussians"
    return f"{words}; " + ("real inputs" if shape["ones"] is None else f"{shape['ones']:.0%} ones")


def _markdown(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
