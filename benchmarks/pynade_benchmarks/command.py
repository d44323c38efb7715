"""`pynade bench`: measure, print tables, write a record and a picture of the growth of times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pynade.cli.screen import console, errors, next_commands, plain_table

HELP = """Measure the speed of NADE or of the classical models on this machine, beside the usual alternatives.

NADE is compared with the plain loop over D, the cumulative sum, and (where zuko is installed) a masked
autoregressive flow of equal size; with the ceiling measured on the machine; and over D, H, B and the share
of ones. The classical models are compared with scikit-learn (an EM iteration of a mixture of Gaussians) and
NumPy (the partition function of an RBM, a Chow-Liu tree). All is measured in one run, in turn, as medians.

\b
Examples:
  pynade bench
  pynade bench --device cuda --out bench.json --plot bench.png
  pynade bench baselines --out baselines.json
  pynade bench baselines --quick
"""
SUBJECTS = ("nade", "baselines")


def bench(
    what: Annotated[str, typer.Argument(metavar="nade|baselines", help="What to measure.")] = "nade",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    quick: Annotated[
        bool, typer.Option("--quick", help="A few seconds, small sizes: not comparable.")
    ] = False,
    repeats: Annotated[int, typer.Option(help="Repeats of each measurement.")] = 15,
    out: Annotated[Path | None, typer.Option(help="Write all numbers here (.json).")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Plot of time against D, H, B and density (nade).")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where binarized_mnist is looked for (baselines) [$PYNADE_DATA].")
    ] = None,
) -> None:
    """Measure (the help is HELP above)."""
    from pynade.atomic import write_json

    if what not in SUBJECTS:
        raise ValueError(f"pynade bench measures {' or '.join(SUBJECTS)}, not {what!r}")
    if repeats < 3:
        raise ValueError(f"a median with a spread needs at least 3 repeats, not {repeats}")
    if what == "baselines" and plot is not None:
        raise ValueError("--plot shows the growth of the times of NADE; the baselines have no such picture")
    result = (
        _nade(device, quick, repeats, plot)
        if what == "nade"
        else _baselines(device, quick, repeats, data_dir)
    )
    if out is not None:
        write_json(out, result)
        console.print(f"-> {out}")
    other = "baselines" if what == "nade" else "nade"
    next_commands(("bench", what, "--out", "bench.json") if out is None else ("bench", other))


def _nade(device: str, quick: bool, repeats: int, plot: Path | None) -> dict[str, Any]:
    from pynade.device import torch_device
    from pynade.runs.figures import save_figure
    from pynade_benchmarks.nade import FULL, QUICK, SWEEPS, Shape
    from pynade_benchmarks.nade import bench as run

    sweeps = {k: v[:3] for k, v in SWEEPS.items()} if quick else SWEEPS
    middle = QUICK[0] if quick else Shape()
    with errors.status("measuring") as status:
        where = torch_device(device)
        full = [s for s in FULL if where.type == "cuda" or s.B <= 100]  # large batches are for GPUs
        result = run(
            where,
            QUICK if quick else full,
            repeats,
            sweeps,
            middle,
            lambda task: status.update(f"measuring: {task}"),
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
    if plot is not None:
        save_figure(growth_figure(result["growth"]), plot)
    return result


def _baselines(device: str, quick: bool, repeats: int, data_dir: Path | None) -> dict[str, Any]:
    from pynade.device import torch_device
    from pynade_benchmarks.baselines import FULL, QUICK, bench_baselines

    with errors.status("measuring") as status:
        result = bench_baselines(
            torch_device(device),
            QUICK if quick else FULL,
            repeats,
            data_dir,
            lambda task: status.update(f"measuring: {task}"),
        )
    console.print(f"{result['device']}, {result['threads']} threads, torch {result['libraries']['torch']}")
    table = plain_table("problem", "contender", "ms", "spread", "× ours")
    for entry in result["problems"]:
        name = entry["problem"]
        for contender, timed in entry["contenders"].items():
            ratio = entry["ratios"].get(contender)
            table.add_row(
                name,
                contender,
                f"{1e3 * timed['median']:.2f}",
                f"±{100 * timed['spread']:.0f} %" if timed["repeats"] > 1 else "–",
                "" if ratio is None else f"{ratio:.1f}",
            )
            name = ""
    console.print(table)
    for entry in result["problems"]:
        if "notes" in entry:
            console.print(entry["notes"])
    return result


def growth_figure(growth: dict[str, Any]) -> Any:
    """Time against each size, log-log, with the exponent of the fitted power law."""
    from matplotlib.figure import Figure

    labels = {"D": "variables D", "H": "hidden units H", "B": "rows B", "ones": "share of ones"}
    figure = Figure(figsize=(3.6 * len(growth), 3.4), layout="constrained")
    axes: Any = figure.subplots(1, len(growth), squeeze=False, sharey=True)[0]
    for axis, (name, measured) in zip(axes, growth.items(), strict=True):
        for task, seconds in measured["seconds"].items():
            label = f"{task}, exponent {measured['exponent'][task]:.2f}"
            axis.loglog(measured["values"], [1e3 * s for s in seconds], marker="o", label=label)
        axis.set_xlabel(labels.get(name, name))
        axis.grid(which="both", alpha=0.3)
        axis.legend(fontsize=8)
    axes[0].set_ylabel("milliseconds")
    return figure
