"""Tables of results, made from the records: `python -m pynade.experiments.tables` writes docs/results.md.

The README shows the highlights; a test fails when either document and the records disagree.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cell:
    """One line of the README's table: what the paper says and where ours is recorded."""

    model: str
    data: str
    paper: float  # test log-likelihood in nats, higher is better
    record: str  # file under results/
    highlight: bool = False  # stands in the README too
    entry: tuple[str, ...] = ("test",)  # where in the record


MNIST = "mnist/binarized_mnist/deepnade-"
TYPICAL = ("mean_over_orderings",)
CELLS = (
    Cell("NADE, 500 units, fixed order", "mushrooms", -9.81, "binary/mushrooms/nade.json", True),
    Cell("NADE, 500 units, fixed order", "dna", -84.81, "binary/dna/nade.json"),
    Cell("NADE, 500 units, fixed order", "adult", -13.19, "binary/adult/nade.json"),
    Cell("NADE, 500 units, fixed order", "binarized MNIST", -88.33, "mnist/binarized_mnist/nade.json", True),
    Cell(
        "DeepNADE 1hl, no input masks", "binarized MNIST", -99.37, f"{MNIST}1hl-no-masks.json", entry=TYPICAL
    ),
    Cell(
        "DeepNADE 2hl, no input masks", "binarized MNIST", -95.33, f"{MNIST}2hl-no-masks.json", entry=TYPICAL
    ),
    Cell("DeepNADE 1hl", "binarized MNIST", -92.17, f"{MNIST}1hl.json", entry=TYPICAL),
    Cell("DeepNADE 2hl", "binarized MNIST", -89.17, f"{MNIST}2hl.json", True, entry=TYPICAL),
    Cell("DeepNADE 3hl", "binarized MNIST", -89.38, f"{MNIST}3hl.json", entry=TYPICAL),
    Cell("DeepNADE 4hl", "binarized MNIST", -89.60, f"{MNIST}4hl.json", entry=TYPICAL),
    Cell("EoNADE 1hl, 2 orderings", "binarized MNIST", -90.69, f"{MNIST}1hl.json", entry=("ensembles", "2")),
    Cell(
        "EoNADE 1hl, 128 orderings", "binarized MNIST", -87.71, f"{MNIST}1hl.json", entry=("ensembles", "128")
    ),
    Cell("EoNADE 2hl, 2 orderings", "binarized MNIST", -87.96, f"{MNIST}2hl.json", entry=("ensembles", "2")),
    Cell(
        "EoNADE 2hl, 128 orderings",
        "binarized MNIST",
        -85.10,
        f"{MNIST}2hl.json",
        True,
        entry=("ensembles", "128"),
    ),
)


def results_table(results: Path, cells: Sequence[Cell] = CELLS, link: str = "results") -> str:
    """Markdown: the paper's number, ours with its standard error, and the record, for every cell we have."""
    lines = ["| model | data | paper | ours (test, nats) | record |", "|---|---|---|---|---|"]
    for cell in cells:
        path = results / cell.record
        if not path.is_file():
            continue
        value = json.loads(path.read_text(encoding="utf-8"))
        for key in cell.entry:
            value = value[key]
        assert value["exact"]
        ours = f"{value['mean']:.2f} ± {value['stderr']:.2f}"
        record = f"[{path.name}]({link}/{cell.record})"
        lines.append(f"| {cell.model} | {cell.data} | {cell.paper:.2f} | {ours} | {record} |")
    return "\n".join(lines)


def highlights(results: Path) -> str:
    """The README's table."""
    return results_table(results, [cell for cell in CELLS if cell.highlight])


def results_page(results: Path) -> str:
    """docs/results.md."""
    return f"""# Results

Test log-likelihood in nats per row (higher is better), exact, with its standard error over rows, beside
the number printed in the paper. DeepNADE: mean over ten orderings; EoNADE: ensemble of orderings. Static
binarized MNIST is the standard file. Each record holds its spec, seed, data checksum, code version, device
and wall time, and the commands that make it again.

{results_table(results, link="../results")}

Settings were chosen on validation: the grid stands in each record, for DeepNADE in
[validation-grid.json](../results/mnist/binarized_mnist/validation-grid.json). This page is made from the
records by `python -m pynade.experiments.tables`.
"""


if __name__ == "__main__":
    Path("docs/results.md").write_text(results_page(Path("results")), encoding="utf-8")
