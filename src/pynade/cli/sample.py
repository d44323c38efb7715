"""`pynade sample`, `pynade impute` and `pynade inpaint`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from pynade.cli.arguments import DataDir, Picture, Run
from pynade.cli.screen import console, errors, next_commands

GIVEN = """Known values by column or index, "city=Paris,age=40" (not nade, made, fvsbn, rnade; causal and
permuted transformers only where their orderings begin with them)."""
HOLE = "Size of the hole; by default 10x10, half the image if that is less."
PER_STEP = "Pixels drawn at once (convnade, unet) [1]; more is quicker, an approximation."
PLOT = "Picture of samples and the probabilities they were drawn with."
DRAWS = "Joint draws (multiple imputation); default: the likelier values."
PARTICLES = "Per row, for the estimate of a model with a fixed ordering [256]."


def sample(
    run: Run,
    n: Annotated[int, Option("-n", help="How many rows.")] = 16,
    given: Annotated[str | None, Option(help=GIVEN)] = None,
    per_step: Annotated[int | None, Option(help=PER_STEP)] = None,
    seed: Annotated[int, Option(help="The same seed gives the same rows.")] = 0,
    out: Annotated[Path | None, Option(help="Write the rows here (.csv, .parquet or .npy).")] = None,
    plot: Annotated[Path | None, Option(help=PLOT)] = None,
    shape: Annotated[str | None, Option(metavar="HxW", help="Image shape of a row, such as 28x28.")] = None,
) -> None:
    """Draw new rows from a trained model: as a table, a picture, or both.

    \b
    Examples:
      pynade sample runs/people -n 100 --given "city=Paris,age=40" --out new_people.csv
      pynade sample runs/table -n 1000 --seed 7 --out new_rows.parquet
      pynade sample runs/digits -n 64 --plot samples.png
      pynade sample runs/deep -n 10 --given "3=1,17=0"
      pynade sample runs/unet -n 100 --per-step 16 --plot samples.png
    """
    from pynade.runs.sampling import draw, plot_samples
    from pynade.tables.files import write_frame, write_table
    from pynade.tables.frames import default_names

    drawn = draw(run, n, seed, shape, given, per_step, wanted_means=plot is not None)
    framed = hasattr(drawn.rows, "write_csv")
    if out is not None and framed:
        write_frame(out, drawn.rows)
    elif out is not None:
        write_table(out, drawn.columns or default_names(drawn.rows.shape[1]), drawn.rows)
    if plot is not None:
        plot_samples(plot, drawn)
    table = ("sample", run, "-n", n, "--out", "samples.csv")
    if out is None and plot is None:
        lines = drawn.rows.write_csv().splitlines() if framed else (" ".join(map(str, r)) for r in drawn.rows)
        for line in lines:
            console.print(line, soft_wrap=True)
        next_commands(table, to=errors)
    else:
        files = ", ".join(str(file) for file in (out, plot) if file)
        console.print(f"{n} rows of {drawn.rows.shape[1]} variables -> {files}")
        next_commands(table if out is None else ("score", run, out))


def impute(
    run: Run,
    file: Annotated[Path, Argument(metavar="FILE", help="Table with blanks where values are missing.")],
    out: Annotated[Path, Option(help="Where to write (.csv, .parquet or .npy).")],
    draws: Annotated[int | None, Option(help=DRAWS)] = None,
    seed: Annotated[int, Option(help="Of the draws, and of an estimate.")] = 0,
    particles: Annotated[int | None, Option(help=PARTICLES)] = None,
) -> None:
    """Fill the gaps of a table.

    Of a mixed table, columns that the model does not have and the order of columns stay as they are.
    Models with orderings of their own (nade, made, made-e, fvsbn, rnade, causal-transformer,
    permuted-transformer) do it by an estimate, with weighted particles; all others need none.

    \b
    Examples:
      pynade impute runs/people people.csv --out filled.csv
      pynade impute runs/table gaps.csv --draws 5 --out five_fillings.csv
      pynade impute runs/nade gaps.csv --particles 1000 --out filled.csv
    """
    from pynade.runs.sampling import impute_file

    options: Any = {"record": True, "action": "always", "category": UserWarning}
    with errors.status("imputing"), warnings.catch_warnings(**options) as caught:
        gaps, rows, used = impute_file(run, file, out, draws, seed, particles)
    for warning in caught:
        errors.print(f"Warning: {warning.message}")
    note = f" (an estimate with {used:,} particles per row)" if gaps and used is not None else ""
    console.print(f"{gaps:,} gaps in {rows:,} rows filled{note} -> {out}")
    if draws is None:
        several = out.with_stem(f"{out.stem}-draws")
        next_commands(("score", run, out), ("impute", run, file, "--draws", 5, "--out", several))
    else:
        next_commands(("score", run, file), ("sample", run, "-n", 10))


def inpaint(
    run: Annotated[Path, Argument(metavar="RUN", help="A run folder.")],
    plot: Picture,
    rows: Annotated[str, Option(help="Which rows of the part, such as 0,10,20.")] = "0,1,2,3,4",
    hole: Annotated[str | None, Option(metavar="HxW", help=HOLE)] = None,
    data: Annotated[str | None, Option(help="Data set or file; by default the run's own.")] = None,
    split: Annotated[str, Option(help="train, valid or test.")] = "test",
    draws: Annotated[int, Option(help="Completions per image.")] = 5,
    seed: Annotated[int, Option(help="Of holes and completions.")] = 0,
    data_dir: DataDir = None,
) -> None:
    """Cut a random hole into images and complete them.

    \b
    Examples:
      pynade inpaint runs/deep --rows 0,2500,5000,7500,9999 --hole 10x10 --plot out.png
      pynade inpaint runs/deep --data digits --rows 0,1,2 --hole 4x4 --draws 8 --plot out.png
    """
    from pynade.runs.figures import plot_completions
    from pynade.runs.sampling import inpaint as complete
    from pynade.runs.summary import read_spec

    try:
        size = None
        if hole is not None:
            height, width = map(int, hole.lower().split("x"))
            size = height, width
        chosen = [int(row) for row in rows.split(",")]
    except ValueError:
        given = f"{rows!r} and {hole!r}"
        raise ValueError(f"write rows like 0,1,2 and the hole like 10x10, not {given}") from None
    with errors.status("completing"):
        where = data or read_spec(run)["data"]
        made, shape = complete(run, where, chosen, size, split, draws, seed, data_dir)
        plot_completions(plot, made, shape)
    for row, c in zip(chosen, made, strict=True):
        console.print(f"row {row}: log p without the hole {c.log_prob:.3f} nats")
    console.print(f"-> {plot}")
    next_commands(("sample", run, "-n", 16, "--plot", plot.with_stem(f"{plot.stem}-samples")))
