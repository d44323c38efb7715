"""`pynade bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pynade.cli.screen import console, errors, plain_table

HELP = """How fast NADE is on this machine, beside what one would otherwise write or install.

Against the plain loop over D, the cumulative sum, and (where zuko is installed) a masked autoregressive
flow of equal size. Everything in one run, contenders in turn, medians; the share of the machine's measured
ceiling; growth with D, H, B and the share of ones.

\b
Examples:
  pynade bench
  pynade bench --device cuda --out bench.json --plot bench.png
  pynade bench --quick
"""


def bench(
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    quick: Annotated[
        bool, typer.Option("--quick", help="A few seconds, small sizes: not comparable.")
    ] = False,
    repeats: Annotated[int, typer.Option(help="Repeats of each measurement.")] = 15,
    out: Annotated[Path | None, typer.Option(help="Write all numbers here (.json).")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot of time against D, H, B and density.")] = None,
) -> None:
    """Measure (the help is HELP above)."""
    from pynade.atomic import write_json
    from pynade.estimators.base import torch_device
    from pynade.experiments.bench import FULL, QUICK, SWEEPS, Shape
    from pynade.experiments.bench import bench as run
    from pynade.experiments.figures import growth_figure, save_figure

    if repeats < 3:
        raise ValueError(f"a median with a spread needs at least 3 repeats, not {repeats}")
    sweeps = {k: v[:3] for k, v in SWEEPS.items()} if quick else SWEEPS
    middle = QUICK[0] if quick else Shape()
    with errors.status("measuring") as status:
        where = torch_device(device)
        full = [s for s in FULL if where.type == "cuda" or s.B <= 100]  # large batches are a GPU's work
        result = run(
            where,
            QUICK if quick else full,
            repeats,
            sweeps,
            middle,
            lambda what: status.update(f"measuring: {what}"),
        )
    ceiling = result["ceiling"]
    console.print(f"{result['device']}, {result['threads']} threads, torch {result['torch']}")
    console.print(
        f"ceiling: {ceiling['sigmoids_per_second'] / 1e9:.2f} G sigmoids/s, "
        f"{ceiling['bytes_per_second'] / 1e9:.0f} GB/s copied"
    )
    table = plain_table(
        "problem", "task", "ours (ms)", "spread", "× loop", "× cumsum", "× zuko", "of ceiling"
    )
    for entry in result["shapes"]:
        name = ", ".join(f"{k}={v}" for k, v in entry["shape"].items() if v not in (None, 0))
        for task, row in entry["tasks"].items():
            ratios = row["ratios"]
            table.add_row(
                name,
                task,
                f"{1e3 * row['ours']['median']:.2f}",
                f"±{100 * row['ours']['spread']:.0f} %",
                f"{ratios['loop']:.1f}",
                f"{ratios['cumulative']:.1f}" if "cumulative" in ratios else "–",
                f"{ratios['zuko MAF']:.1f}" if "zuko MAF" in ratios else "–",
                f"{100 * row['share_of_ceiling']:.0f} %" if "share_of_ceiling" in row else "–",
            )
            name = ""
    console.print(table)
    for axis, grown in result["growth"].items():
        exponents = ", ".join(f"{task} {e:.2f}" for task, e in grown["exponent"].items())
        console.print(f"time ~ {axis}^e, e = {exponents}")
    if out is not None:
        write_json(out, result)
    if plot is not None:
        save_figure(growth_figure(result["growth"]), plot)
