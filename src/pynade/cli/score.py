"""`pynade score`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pynade.cli.screen import console, row_bar

HELP = """Exact log-likelihood of data under a trained model, with its standard error.

\b
Examples:
  pynade score runs/digits digits --split test
  pynade score runs/table new_rows.csv --rows scores.csv
  pynade score runs/mushrooms mushrooms --split test --record result.json
  pynade score runs/deep binarized_mnist --orderings 128
"""


def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder or a model file.")],
    data: Annotated[str, typer.Argument(metavar="DATA", help="A registered data set or a file.")],
    split: Annotated[
        str | None, typer.Option(help="train, valid, test or all [test; all rows of a plain file].")
    ] = None,
    orderings: Annotated[
        int | None, typer.Option(help="Score an orderless model under K orderings: typical and ensemble.")
    ] = None,
    rows: Annotated[Path | None, typer.Option(help="Write each row's log p here (.csv or .npy).")] = None,
    record: Annotated[
        Path | None, typer.Option(help="Write the result with its provenance here (.json).")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data sets [$PYNADE_DATA].")] = None,
) -> None:
    """Score rows (the help is HELP above)."""
    from pynade.experiments.run import read_spec
    from pynade.experiments.score import forget_chunks, score_run, write_record, write_rows
    from pynade.experiments.tabular import check_destination

    if rows is not None:
        check_destination(rows, ".csv", ".npy")
    if record is not None:
        check_destination(record, ".json")
        read_spec(run)
    with row_bar("scoring") as bar:
        result = score_run(run, data, split, data_dir, orderings, bar)
    if rows is not None:
        write_rows(rows, result.log_probs)
    if record is not None:
        write_record(record, run, result)
    forget_chunks(run, result)
    if result.orderings is None:
        console.print(f"{result.data.name} {result.split}: {result.estimate}")
        return
    k = result.orderings.log_probs.shape[1]
    console.print(f"{result.data.name} {result.split}: one of {k} orderings: {result.orderings.mean()}")
    curve = result.orderings.curve()
    for n in result.powers():
        console.print(f"{result.data.name} {result.split}: ensemble of {n}: {curve[n - 1]}")
