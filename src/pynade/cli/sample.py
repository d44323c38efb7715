"""`pynade score`, `pynade sample`, `pynade impute` and `pynade inpaint`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from pynade.cli import lazy
from pynade.cli.arguments import Data, DataDir, Engine, Picture, Run, Workers, parse_given, parse_shape
from pynade.cli.lazy import files, np
from pynade.cli.screen import console, errors, next_commands, row_bar
from pynade.cli.table import ask_with_bar

SPLIT = "train, valid, test or all; by default test, all rows of a plain file."
ORDERINGS = "Score an orderless model under K orderings: typical and ensemble."
ESTIMATE = "Estimate the mean over orderings, with this many draws a row."
EVERY = "With both: exact on every n-th row (10), estimated on all."
DENSITY = "Of a mixed table: probabilities over the resolution of their columns, as densities."
PRECISION = "Of the net on a GPU: float32, tf32 or bf16 (with --orderings, --estimate)."
GIVEN = """Known values by column or index, "city=Paris,age=40" (not nade, made, fvsbn, rnade; causal and
permuted transformers only where their orderings begin with them)."""
HOLE = "Size of the hole; by default 10x10, half the image if that is less."
PER_STEP = "Pixels drawn at once (convnade, unet) [1]; more is quicker, an approximation."
FRESH = "Each row along a random ordering of its own (convnade, unet), not those of its scores."
PLOT = "Picture of samples and the probabilities they were drawn with."
DRAWS = "Joint draws (multiple imputation); default: the likelier values."
GAPS = "Table with blanks where values are missing: a file, a folder of files or a pattern."
PARTICLES = "Per row, for the estimate of a model with a fixed ordering [256]."


def score(
    run: Run,
    data: Data,
    split: Annotated[str | None, Option(help=SPLIT)] = None,
    orderings: Annotated[int | None, Option(help=ORDERINGS)] = None,
    estimate: Annotated[int | None, Option(metavar="DRAWS", help=ESTIMATE)] = None,
    every: Annotated[int | None, Option(help=EVERY)] = None,
    precision: Annotated[str, Option(help=PRECISION)] = "tf32",
    rows: Annotated[
        Path | None, Option(help="Write each row's log p here (.csv, .parquet, .npy or a folder).")
    ] = None,
    density: Annotated[bool, Option("--density", help=DENSITY)] = False,
    record: Annotated[Path | None, Option(help="Write the result with its provenance here (.json).")] = None,
    data_dir: DataDir = None,
    engine: Engine = "local",
    workers: Workers = None,
) -> None:
    """Log-likelihood of data under a trained model, with its standard error: exact, or an estimate.

    Exact scores of models of images (convnade, unet) take as many passes as there are pixels, for every
    ordering; --estimate takes DRAWS passes a row. With --orderings too, the ensemble is exact on every tenth
    row and estimated on the others. Processes share the work: torchrun --nproc-per-node 4 -m pynade
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
      pynade score runs/people 'people/*.parquet' --rows scores.parquet --engine ray
    """
    if rows is not None and estimate is not None:
        raise ValueError("an estimate has no exact log p for every row: give --rows without --estimate")
    if every is not None and (orderings is None or estimate is None):
        purpose = "exact on some rows, estimated on all"
        raise ValueError(f"--every is for --orderings together with --estimate: {purpose}")
    if rows is not None and (rows.suffix or record is not None):
        files.check_destination(rows, *files.TABLE_ENDINGS)
    if record is not None:
        files.check_destination(record, ".json")
        lazy.summary.read_spec(run)
    options: Any = {"orderings": orderings, "density": density}
    with lazy.processes.together() as rank, row_bar("scoring", rows=orderings is None) as bar:
        lines = None
        if record is None and estimate is None:
            workplace: Any = {"engine": engine, "workers": workers, "progress": bar}
            lines = lazy.score.score_files(run, data, split, rows, **options, **workplace)
        if lines is None:
            if engine != "local" or workers not in (None, 1):
                purpose = "exact scores of tables in files, without --record, --estimate and --orderings"
                raise ValueError(f"--engine and --workers are for {purpose}")
            options |= {"draws": estimate, "every": every or 10, "precision": precision}
            options["progress"] = bar if rank == 0 else None
            result = lazy.score.score_run(run, data, split, data_dir, **options)
    if rank > 0:
        return
    if lines is None:
        if rows is not None:
            files.write_table(rows, ["log_prob"], result.log_probs)
        if record is not None:
            lazy.score.write_record(record, run, result)
        lazy.score.forget_chunks(result)
        lines = result.lines
    for line in lines:
        console.print(line, soft_wrap=True)
    recorded = record is not None or not run.is_dir()
    again = [] if recorded else [("score", run, data, "--record", "result.json")]
    next_commands(("sample", run, "-n", 10), *again)


def sample(
    run: Run,
    n: Annotated[int, Option("-n", help="How many rows.")] = 16,
    given: Annotated[str | None, Option(help=GIVEN)] = None,
    per_step: Annotated[int | None, Option(help=PER_STEP)] = None,
    fresh: Annotated[bool, Option("--fresh-orderings", help=FRESH)] = False,
    seed: Annotated[int, Option(help="The same seed gives the same rows.")] = 0,
    out: Annotated[
        Path | None, Option(help="Write the rows here (.csv, .parquet, .npy or a folder).")
    ] = None,
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
    sides = None if shape is None else parse_shape(shape)
    sizes = {"the number of rows": n, "--per-step": 1 if per_step is None else per_step}
    lazy.arguments.check_positive(**sizes)
    model, facts = lazy.run.load_run(run)
    names, numbers = list(getattr(model, "feature_names_in_", ())), not hasattr(model, "schema_")
    values = None if given is None else parse_given(given, names, numbers)
    image_options: Any = {"per_step": per_step, "fresh_orderings": fresh}
    in_parts = out is not None and out.suffix != ".npy" and (n > lazy.stream.AT_ONCE or not out.suffix)
    if in_parts and plot is None and shape is None and hasattr(model, "save"):
        options = image_options | {"random_state": seed, "given": values, "columns": facts.get("columns")}
        with row_bar("drawing", rows=True) as bar:
            lazy.stream.ask(model, "sample", n, out, progress=bar, **options)
        console.print(f"{n:,} rows -> {out}")
        return next_commands(("score", run, out))
    rows, means = lazy.answers.draw(model, n, seed, values, plot is not None, **image_options)
    if sides is not None and math.prod(sides) != rows.shape[1]:
        pixels, variables = math.prod(sides), rows.shape[1]
        raise ValueError(f"{shape} has {pixels} pixels but the model has {variables} variables")
    if out is not None:
        files.write_table(out, facts.get("columns"), rows)
    if plot is not None:
        sides = sides or facts.get("image_shape")
        if sides is None or not isinstance(rows, np.ndarray):
            figure = lazy.figures.table_figure(rows, facts.get("columns"), getattr(model, "schema_", None))
        else:
            white = float(model._cells().white) if hasattr(model, "_cells") else 1.0
            panels = {"samples": rows / white}
            if means is not None:
                panels["probabilities" if white == 1 else "expectations"] = means / white
            figure = lazy.figures.image_panels(panels, sides)
        lazy.figures.save_figure(figure, plot)
    table = ("sample", run, "-n", n, "--out", "samples.csv")
    if out is None and plot is None:
        framed = hasattr(rows, "write_csv")
        for line in rows.write_csv().splitlines() if framed else (" ".join(map(str, row)) for row in rows):
            console.print(line, soft_wrap=True)
        return next_commands(table, to=errors)
    paths = ", ".join(str(path) for path in (out, plot) if path)
    console.print(f"{n} rows of {rows.shape[1]} variables -> {paths}")
    next_commands(table if out is None else ("score", run, out))


def impute(
    run: Run,
    file: Annotated[Path, Argument(metavar="FILE", help=GAPS)],
    out: Annotated[Path, Option(help="Where to write (.csv, .parquet, .npy or a folder).")],
    draws: Annotated[int | None, Option(help=DRAWS)] = None,
    seed: Annotated[int, Option(help="Of the draws, and of an estimate.")] = 0,
    particles: Annotated[int | None, Option(help=PARTICLES)] = None,
    engine: Engine = "local",
    workers: Workers = None,
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
      pynade impute runs/people 'people/*.parquet' --out filled --workers 2
    """
    model, facts = lazy.run.load_run(run, lazy.estimators.DensityEstimator)
    estimated = hasattr(model.model_, "order")  # orderings of its own
    if particles is not None and not estimated:
        raise ValueError(f"{run} fills gaps without particles; only models with a fixed ordering need them")
    particles = lazy.questions.PARTICLES if particles is None else particles
    sizes = {"the number of particles": particles, "the number of draws": 1 if draws is None else draws}
    lazy.arguments.check_positive(**sizes)
    options: Any = {"draws": draws, "random_state": seed, "particles": particles, "engine": engine}
    options |= {"workers": workers, "columns": facts.get("columns"), "dropped": facts.get("dropped", ())}
    result = ask_with_bar("imputing", model, "impute", str(file), out, **options)
    for note in result.notes:
        errors.print(f"Warning: {note}")
    how = f" (an estimate with {particles:,} particles per row)" if result.gaps and estimated else ""
    console.print(f"{result.gaps:,} gaps in {result.rows:,} rows filled{how} -> {out}")
    if draws is not None:
        return next_commands(("score", run, file), ("sample", run, "-n", 10))
    drawn = out.with_stem(f"{out.stem}-draws")
    next_commands(("score", run, out), ("impute", run, file, "--draws", 5, "--out", drawn))


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
    try:
        high, wide = (0, 0) if hole is None else parse_shape(hole)
        chosen = [int(row) for row in rows.split(",")]
    except ValueError:
        given = f"{rows!r} and {hole!r}"
        raise ValueError(f"write rows like 0,1,2 and the hole like 10x10, not {given}") from None
    model, facts = lazy.run.load_run(run, lazy.estimators.DensityEstimator)
    data = data or str(lazy.summary.read_spec(run)["data"])
    dataset = lazy.images.binarized(lazy.tables.resolve(data, data_dir), facts.get("binarize"))
    shape = facts.get("image_shape") or dataset.image_shape
    if shape is None:
        raise ValueError(f"the data {data!r} have no image shape, so there is no hole to cut")
    channels, height, width = (1, *map(int, shape))[-3:]
    if hole is None:
        high, wide = (min(10, max(1, side // 2)) for side in (height, width))
    if not (1 <= high <= height and 1 <= wide <= width):
        raise ValueError(f"a hole of {high}x{wide} does not fit into images of {height}x{width}")
    if (high, wide) == (height, width):
        raise ValueError(f"a hole of {high}x{wide} leaves nothing of the images")
    lazy.arguments.check_positive(**{"the number of completions": draws})
    part, rng = dataset.split(split), np.random.default_rng(seed)
    for row in (row for row in chosen if not 0 <= row < len(part)):
        raise ValueError(f"row {row} does not exist: {dataset.name} {split} has rows 0 … {len(part) - 1}")
    images = model._rows(part[chosen])
    holes = np.zeros((len(images), channels, height, width), dtype=bool)
    for pixels in holes:
        top, left = rng.integers(height - high + 1), rng.integers(width - wide + 1)
        pixels[:, top : top + high, left : left + wide] = True
    missing, white = holes.reshape(len(images), -1), model._cells().white
    gaps = np.where(missing, np.nan, images.astype(np.float64))
    with errors.status("completing"):
        log_probs, filled = model.score_samples(gaps), model.impute(gaps, draws, random_state=seed)
    figure = lazy.figures.completion_figure(images / white, missing, filled / white, log_probs, shape)
    lazy.figures.save_figure(figure, plot)
    for row, log_prob in zip(chosen, log_probs, strict=True):
        console.print(f"row {row}: log p without the hole {log_prob:.3f} nats")
    console.print(f"-> {plot}")
    next_commands(("sample", run, "-n", 16, "--plot", plot.with_stem(f"{plot.stem}-samples")))
