"""Tables of results, made from the records: `python -m pynade.experiments.tables RESULTS` prints them."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cell:
    """One line of the README's table: what the paper says and where ours is recorded."""

    model: str
    data: str
    paper: float  # test log-likelihood in nats, higher is better
    record: str  # file under results/
    entry: tuple[str, ...] = ("test",)  # where in the record


MNIST = "mnist/binarized_mnist/deepnade-"
TYPICAL = ("mean_over_orderings",)
CELLS = (
    Cell("NADE, 500 units, fixed order", "mushrooms", -9.81, "binary/mushrooms/nade.json"),
    Cell("DeepNADE 1hl, no input masks", "binarized MNIST", -99.37, f"{MNIST}1hl-no-masks.json", TYPICAL),
    Cell("DeepNADE 2hl, no input masks", "binarized MNIST", -95.33, f"{MNIST}2hl-no-masks.json", TYPICAL),
    Cell("DeepNADE 1hl", "binarized MNIST", -92.17, f"{MNIST}1hl.json", TYPICAL),
    Cell("DeepNADE 2hl", "binarized MNIST", -89.17, f"{MNIST}2hl.json", TYPICAL),
    Cell("DeepNADE 3hl", "binarized MNIST", -89.38, f"{MNIST}3hl.json", TYPICAL),
    Cell("DeepNADE 4hl", "binarized MNIST", -89.60, f"{MNIST}4hl.json", TYPICAL),
    Cell("EoNADE 1hl, 2 orderings", "binarized MNIST", -90.69, f"{MNIST}1hl.json", ("ensembles", "2")),
    Cell("EoNADE 1hl, 128 orderings", "binarized MNIST", -87.71, f"{MNIST}1hl.json", ("ensembles", "128")),
    Cell("EoNADE 2hl, 2 orderings", "binarized MNIST", -87.96, f"{MNIST}2hl.json", ("ensembles", "2")),
    Cell("EoNADE 2hl, 128 orderings", "binarized MNIST", -85.10, f"{MNIST}2hl.json", ("ensembles", "128")),
)


def results_table(results: Path) -> str:
    """Markdown: the paper's number, ours with its standard error, and the record, for every cell we have."""
    lines = ["| model | data | paper | ours (test, nats) | record |", "|---|---|---|---|---|"]
    for cell in CELLS:
        path = results / cell.record
        if not path.is_file():
            continue
        value = json.loads(path.read_text(encoding="utf-8"))
        for key in cell.entry:
            value = value[key]
        assert value["exact"]
        ours = f"{value['mean']:.2f} ± {value['stderr']:.2f}"
        link = f"[{path.name}](results/{cell.record})"
        lines.append(f"| {cell.model} | {cell.data} | {cell.paper:.2f} | {ours} | {link} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(results_table(Path(sys.argv[1] if len(sys.argv) > 1 else "results")))
