"""`pynade sample`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pynade.cli.screen import console, errors, next_commands

HELP = """Draw new rows from a trained model: as a table, a picture, or both.

\b
Examples:
  pynade sample runs/digits -n 64 --plot samples.png
  pynade sample runs/table -n 1000 --seed 7 --out new_rows.csv
  pynade sample runs/deep -n 10 --given "3=1,17=0"
  pynade sample runs/unet -n 100 --per-step 16 --plot samples.png
"""


def sample(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder or a model file.")],
    n: Annotated[int, typer.Option("-n", help="How many rows.")] = 16,
    given: Annotated[
        str | None,
        typer.Option(
            help='Known values by index or column, "3=1,17=0" (not nade, made, fvsbn, rnade; causal and '
            "permuted transformers only where their orderings begin with them)."
        ),
    ] = None,
    per_step: Annotated[
        int | None,
        typer.Option(help="Pixels drawn at once (convnade, unet) [1]; more is quicker, an approximation."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same rows.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the rows here (.csv, .parquet or .npy).")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Picture of samples and the probabilities they were drawn with.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(metavar="HxW", help="Image shape of a row, such as 28x28.")
    ] = None,
) -> None:
    """Draw rows (the help is HELP above)."""
    from pynade.runs.sampling import draw, plot_samples, write_samples

    drawn = draw(run, n, seed, shape, given, per_step, wanted_means=plot is not None)
    if out is not None:
        write_samples(out, drawn)
    if plot is not None:
        plot_samples(plot, drawn)
    if out is None and plot is None:
        for row in drawn.rows:
            console.print(" ".join(map(str, row)), soft_wrap=True)
        next_commands(("sample", run, "-n", n, "--out", "samples.csv"), to=errors)
    else:
        console.print(
            f"{n} rows of {drawn.rows.shape[1]} variables -> {', '.join(str(p) for p in (out, plot) if p)}"
        )
        next_commands(
            ("sample", run, "-n", n, "--out", "samples.csv") if out is None else ("score", run, out)
        )
