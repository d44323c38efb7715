"""`pynade score`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from pynade.cli.arguments import Data, DataDir, Run
from pynade.cli.screen import console, next_commands, row_bar

if TYPE_CHECKING:
    from pynade.runs.score import Score

SPLIT = "train, valid, test or all; by default test, all rows of a plain file."
ORDERINGS = "Score an orderless model under K orderings: typical and ensemble."
ESTIMATE = "Estimate the mean over orderings, with this many draws a row."
EVERY = "With both: exact on every n-th row (10), estimated on all."
DENSITY = "Of a mixed table: probabilities over the resolution of their columns, as densities."
PRECISION = "Of the net on a GPU: float32, tf32 or bf16 (with --orderings, --estimate)."


def score(
    run: Run,
    data: Data,
    split: Annotated[str | None, Option(help=SPLIT)] = None,
    orderings: Annotated[int | None, Option(help=ORDERINGS)] = None,
    estimate: Annotated[int | None, Option(metavar="DRAWS", help=ESTIMATE)] = None,
    every: Annotated[int | None, Option(help=EVERY)] = None,
    precision: Annotated[str, Option(help=PRECISION)] = "tf32",
    rows: Annotated[Path | None, Option(help="Write each row's log p here (.csv, .parquet or .npy).")] = None,
    density: Annotated[bool, Option("--density", help=DENSITY)] = False,
    record: Annotated[Path | None, Option(help="Write the result with its provenance here (.json).")] = None,
    data_dir: DataDir = None,
) -> None:
    """Log-likelihood of data under a trained model, with its standard error: exact, or an estimate.

    Exact scores of models of images (convnade, unet) take as many passes as there are pixels, for every
    ordering; --estimate takes DRAWS passes a row. With --orderings too, the ensemble is exact on every tenth
    row and estimated on the others. Processes share the work: torchrun --nproc-per-node 4 -m pynade.cli.main
    score …

    Of a mixed table, a row's score adds up log-probabilities of discrete cells and log-densities of real
    ones; the gain says how much better it is than that of independent columns.

    \b
    Examples:
      pynade score runs/people new_people.csv
      pynade score runs/digits digits --split test
      pynade score runs/table new_rows.csv --rows scores.csv
      pynade score runs/mushrooms mushrooms --split test --record result.json
      pynade score runs/deep binarized_mnist --orderings 128
      pynade score runs/unet binarized_mnist --estimate 32 --precision bf16
      pynade score runs/unet binarized_mnist --estimate 32 --orderings 16
    """
    from pynade.processes import together
    from pynade.runs.score import forget_chunks, score_run, write_record
    from pynade.runs.summary import read_spec
    from pynade.tables.files import TABLE_ENDINGS, check_destination, write_table

    if rows is not None and estimate is not None:
        raise ValueError("an estimate has no exact log p for every row: give --rows without --estimate")
    if every is not None and (orderings is None or estimate is None):
        purpose = "exact on some rows, estimated on all"
        raise ValueError(f"--every is for --orderings together with --estimate: {purpose}")
    if rows is not None:
        check_destination(rows, *TABLE_ENDINGS)
    if record is not None:
        check_destination(record, ".json")
        read_spec(run)
    with together() as rank:
        with row_bar("scoring") as bar:
            shown = bar if rank == 0 else None
            asked: Any = {"orderings": orderings, "draws": estimate, "every": every or 10, "density": density}
            result = score_run(run, data, split, data_dir, progress=shown, precision=precision, **asked)
        if rank > 0:
            return
    if rows is not None:
        values = result.log_probs
        write_table(rows, ["log_prob"], values[:, None] if rows.suffix == ".csv" else values)
    if record is not None:
        write_record(record, run, result)
    forget_chunks(run, result)
    _print_scores(result)
    recorded = record is not None or not run.is_dir()
    again = [] if recorded else [("score", run, data, "--record", "result.json")]
    next_commands(("sample", run, "-n", 10), *again)


def _print_scores(result: Score) -> None:
    from pynade.runs.score import ensemble_sizes

    if result.orderings is None:
        lines = [str(result.estimate)]
    elif result.control_variate is not None:
        m, k = result.orderings.log_probs.shape
        exact = f"ensemble of {k}, exact on {m} rows: {result.estimate}"
        lines = [f"mean over orderings: {result.estimated}", exact]
    else:
        k, curve = result.orderings.log_probs.shape[1], result.orderings.curve()
        lines = [f"one of {k} orderings: {result.orderings.mean()}"]
        lines += [f"ensemble of {n}: {curve[n - 1]}" for n in ensemble_sizes(k)]
    for line in lines:
        console.print(f"{result.data.name} {result.split}: {line}")
    if result.gain is not None:
        gain = f"{result.gain.mean:.3f} ± {result.gain.stderr:.3f} nats"
        console.print(f"gain over independent columns: {gain}")
        console.print(f"({result.adds_up})", soft_wrap=True)
