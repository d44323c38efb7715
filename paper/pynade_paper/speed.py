"""The speed section of the results page, from the records of `pynade bench` and benchmarks/population.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OTHERS = {"loop": "× the plain loop", "cumulative": "× the cumulative sum", "zuko MAF": "× zuko's MAF"}


def speed_sections(results: Path) -> Iterator[str]:
    """Headings, paragraphs and tables; nothing where nothing was recorded."""
    folder = results / "benchmarks"
    kernels, populations, baselines = (
        [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob(f"{name}-*.json"))]
        for name in ("nade", "population", "baselines")
    )
    if kernels or populations or baselines:
        yield "## Speed"
    if kernels:
        yield (
            "The fused kernels of fixed-order NADE beside the plain loop over D in torch, the vectorised "
            "cumulative sum and a masked autoregressive flow with as many parameters: how many times as long "
            "these take in the same run (`pynade bench`, medians). The ceiling is the rate of torch's own "
            "sigmoid on data in the cache, for the hidden activations that a task needs. The sigmoid of the "
            "CPU kernels is faster than torch's, so that they can exceed it."
        )
        yield kernel_table(kernels)
    if baselines:
        yield (
            "The classical models beside scikit-learn and plain implementations in NumPy and SciPy, all in "
            "one run (`pynade bench baselines`, medians). Those that are not ours run on the CPU of the same "
            "machine with the given number of threads."
        )
        yield baseline_table(baselines)
    if populations:
        yield (
            "A grid trained as one population, beside its members trained one after the other, per member "
            "and epoch (RNADE with K Gaussians, 50 hidden units, 11 variables; "
            "`python benchmarks/population.py`)."
        )
        yield population_table(populations)


def kernel_table(records: list[dict[str, Any]]) -> str:
    """One line for every task on every machine."""
    head = ["machine", "rows, variables, units", "task", "ours, ms", *OTHERS.values(), "of the ceiling"]
    lines = []
    for record in records:
        for measured in record["shapes"]:
            for task, timing in measured["tasks"].items():
                ratios, share = timing["ratios"], timing.get("share_of_ceiling")
                others = [f"{ratios[name]:.1f}" if name in ratios else "–" for name in OTHERS]
                others.append("–" if share is None else f"{share:.0%}")
                ours = f"{1e3 * timing['ours']['median']:.2f}"
                lines.append([_machine(record), _sizes(measured["shape"]), task, ours, *others])
    return markdown_table(head, lines)


def baseline_table(records: list[dict[str, Any]]) -> str:
    """One line for every contender at every problem on every machine."""
    lines = []
    for record in records:
        for problem in record["problems"]:
            for name, timed in problem["contenders"].items():
                ratio = f"{problem['ratios'][name]:.1f}" if name in problem["ratios"] else "–"
                ms = f"{1e3 * timed['median']:,.1f}"
                lines.append([_machine(record), problem["problem"], name, ms, ratio])
    return markdown_table(["machine", "problem", "contender", "ms", "× ours"], lines)


def population_table(records: list[dict[str, Any]]) -> str:
    """One line for every number of components on every machine."""
    lines = []
    for record in records:
        for line in record["lines"]:
            times = f"{1e3 * line['alone']:.2f}", f"{1e3 * line['together']:.3f}", f"{line['ratio']:.1f}×"
            lines.append([_machine(record), str(line["K"]), str(line["members"]), *times])
    return markdown_table(["machine", "K", "members", "alone, ms", "together, ms", "gain"], lines)


def _machine(record: dict[str, Any]) -> str:
    threads = record["threads"]
    return record["device"] + (f", {threads} threads" if record["device"].startswith("cpu") else "")


def _sizes(shape: dict[str, Any]) -> str:
    words = f"{shape['B']}, {shape['D']}, {shape['H']}"
    if shape["K"]:
        return f"{words}; real, {shape['K']} Gaussians"
    return f"{words}; " + ("real inputs" if shape["ones"] is None else f"{shape['ones']:.0%} ones")


def markdown_table(head: list[str], lines: list[list[str]]) -> str:
    """A table in Markdown.

    Example:
        >>> print(markdown_table(["a", "b"], [["1", "2"]]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """
    rows = ["| " + " | ".join(row) + " |" for row in (head, *lines)]
    return "\n".join([rows[0], "|---" * len(head) + "|", *rows[1:]])
