"""`pynade info` and `pynade demo`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pynade.cli.screen import console, errors, plain_table

INFO_HELP = """What a run folder or a model file holds: model, data, training, result.

\b
Examples:
  pynade info runs/digits
  pynade info runs/chow-liu --plot tree.png
  pynade info runs/digits --curve curve.png
"""

DEMO_HELP = """Train four models on the embedded digits in under a minute; prints a table, writes a picture.

\b
Example:
  pynade demo --out demo.png
"""


def info(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder or a model file.")],
    plot: Annotated[Path | None, typer.Option(help="Picture of the tree of a chow-liu run.")] = None,
    curve: Annotated[
        Path | None, typer.Option(help="Picture of training and validation, epoch by epoch.")
    ] = None,
) -> None:
    """Show a run (the help is INFO_HELP above)."""
    if curve is not None:
        from pynade.runs.curve import plot_training

        plot_training(run, curve)
        console.print(f"training and validation of {run} -> {curve}")
        return
    from pynade.classical import RBM
    from pynade.runs.run import read_spec
    from pynade.store import load_density

    if plot is not None:
        from pynade.runs.tree_figure import plot_tree

        plot_tree(plot, run)
    table = plain_table("", "")
    table.show_header = False
    table.columns[1].justify = "left"
    file = run
    if run.is_dir():
        spec = read_spec(run)
        table.add_row("model", spec["model"])
        table.add_row("data", f"{spec['data']} (checksum {spec['data_checksum'][:12]}…)")
        for name, value in spec["parameters"].items():
            table.add_row(f"  {name}", str(value))
        for part in ("provenance", "result"):
            path = run / f"{part}.json"
            if path.is_file():
                for name, value in json.loads(path.read_text(encoding="utf-8")).items():
                    table.add_row(
                        name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                    )
        if not (run / "result.json").is_file():
            table.add_row("status", "unfinished: continue with `pynade fit --resume`")
        file = run / "model.safetensors"
    if file.is_file() or not run.is_dir():
        density, header = load_density(file)
        numbers = sum(p.numel() for p in density.parameters())
        if not numbers:  # Gaussians keep theirs in buffers
            numbers = sum(b.numel() for b in density.buffers() if b.is_floating_point())
        table.add_row("weights", f"{numbers:,}")
        variables = density.n_visible if isinstance(density, RBM) else density.n_variables
        table.add_row("variables", f"{variables:,}")
        table.add_row("density", json.dumps(header["spec"]))
        table.add_row("written by", f"pynade {header['version']}, format {header['format']}")
    console.print(table)
    if plot is not None:
        console.print(f"-> {plot}")


def demo(
    out: Annotated[Path, typer.Option(help="Picture to write.")] = Path("pynade-demo.png"),
) -> None:
    """Run the demo (the help is DEMO_HELP above)."""
    from pynade.runs.demo import demo as run_demo

    with errors.status("digits") as status:
        lines = run_demo(out, lambda name: status.update(f"training {name}"))
    table = plain_table("model", "test log-likelihood (nats)", "seconds")
    for line in lines:
        table.add_row(line.model, f"{line.test.mean:.2f} ± {line.test.stderr:.2f}", f"{line.seconds:.1f}")
    console.print(
        f"Binarized 8×8 digits, {lines[0].test.n} test images, exact log-likelihoods (higher is better)"
    )
    console.print(table)
    console.print(f"Real digits, samples and pixel probabilities: {out}")
