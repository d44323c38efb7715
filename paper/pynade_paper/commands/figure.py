"""`pynade figure`: several models' samples beside real rows, and the records as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pynade.cli.screen import console, errors, plain_table, row_bar

app = typer.Typer(
    help="Several models' samples beside real rows; log-likelihood against orderings, time and cost.",
    no_args_is_help=True,
    add_completion=False,
)

SCATTER_HELP = """Samples of models over data, two columns, a panel for each model.

\b
Example:
  pynade figure scatter runs/gaussian runs/mog --data white_wine --columns 5,6 --out wine.png
"""

SAMPLES_HELP = """Test rows and samples of models as pictures, sorted by density under the last model.

\b
Examples:
  pynade figure samples runs/bsds-mog runs/bsds-rnade --data bsds300 --out patches.png
  pynade figure samples runs/speech-mog runs/speech-rnade --data librispeech -n 60 --out speech.png
"""

ORDERINGS_HELP = """Log-likelihood against the number of orderings in the ensemble, from the records.

\b
Example:
  pynade figure orderings mnist --dataset binarized_mnist --out orderings.png
"""

TIME_HELP = """Log-likelihood against training time of all recorded models of a table.

\b
Example:
  pynade figure time uci --out time.png
"""

TRAINING_HELP = """Training and validation curves of a table's records, where both were scored alike.

\b
Example:
  pynade figure training mnist --dataset binarized_mnist --out training.png
"""

PER_STEP_HELP = """What drawing several variables at once loses in nats and saves in time: measured now.

\b
Examples:
  pynade figure per-step runs/unet binarized_mnist --out per-step.png
  pynade figure per-step runs/unet binarized_mnist --per-step 1,2,4,8,16 --rows 100 --record per-step.json
"""

COST_HELP = """Log-likelihood of an orderless model, exact and estimated, against what it costs: measured now.

\b
Examples:
  pynade figure cost runs/deep binarized_mnist --out cost.png
  pynade figure cost runs/deep binarized_mnist --record results/benchmarks/evaluation-cost.json --out cost.png
"""

PAPER_HELP = """Make one of the paper's figures of samples again: train what it shows, draw it.

Without a name, says which there are. What has been trained is kept in the work folder and not trained again.

\b
Examples:
  pynade figure paper
  pynade figure paper mnist-samples-nade --device cpu
  pynade figure paper natural-patches --out patches.png --device cuda
"""

Runs = Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders or model files.")]
Out = Annotated[Path, typer.Option(help="Picture to write (.png, .pdf, .svg).")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the data sets [$PYNADE_DATA].")]
Seed = Annotated[int, typer.Option(help="Of the rows and samples shown.")]


@app.command("paper", help=PAPER_HELP)
def paper(
    name: Annotated[str | None, typer.Argument(help="Which figure.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Picture to write (.png) [results/figures/NAME.png].")
    ] = None,
    work: Annotated[Path, typer.Option(help="Folder of the models.")] = Path("runs/figures"),
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    again: Annotated[bool, typer.Option("--again", help="Train anew what has been trained.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Make a figure of the paper (the help is PAPER_HELP above)."""
    from pynade.cli.main import app as whole
    from pynade.runs.tabular import check_destination
    from pynade_paper.paper_figures import paper_figures

    known = paper_figures()
    if name is None:
        table = plain_table("figure", "what it shows")
        for figure in known.values():
            table.add_row(figure.name, figure.caption)
        console.print(table)
        return
    if name not in known:
        raise ValueError(f"unknown figure {name!r}; known: {', '.join(known)}")
    out = Path("paper/results/figures") / f"{name}.png" if out is None else out
    check_destination(out, ".png")
    for words in known[name].commands(out, work, device, again):
        words += [] if data_dir is None or words[0] == "sample" else ["--data-dir", str(data_dir)]
        errors.print(f"pynade {' '.join(words)}")
        typer.main.get_command(whole).main(words, standalone_mode=False)


@app.command("scatter", help=SCATTER_HELP)
def scatter(
    runs: Runs,
    data: Annotated[str, typer.Option(help="A registered data set or a file.")],
    columns: Annotated[str, typer.Option(help="Two columns, by name or number: across,up.")],
    out: Out,
    n: Annotated[int, typer.Option("-n", help="Rows and samples shown.")] = 1000,
    seed: Seed = 0,
    data_dir: DataDir = None,
) -> None:
    """Scatter plot (the help is SCATTER_HELP above)."""
    from pynade.runs.figures import save_figure
    from pynade_paper.compare_figures import scatter_figure

    names = [name.strip() for name in columns.split(",")]
    if len(names) != 2:
        raise ValueError(f"give two columns separated by a comma, not {columns!r}")
    with errors.status("drawing"):
        save_figure(scatter_figure(runs, data, (names[0], names[1]), n, seed, data_dir=data_dir), out)
    console.print(f"-> {out}")


@app.command("samples", help=SAMPLES_HELP)
def samples(
    runs: Runs,
    data: Annotated[str, typer.Option(help="bsds300, librispeech, or speech of your own.")],
    out: Out,
    n: Annotated[int, typer.Option("-n", help="Rows shown of each.")] = 100,
    seed: Seed = 0,
    data_dir: DataDir = None,
) -> None:
    """Pictures of samples (the help is SAMPLES_HELP above)."""
    from pynade.runs.figures import save_figure
    from pynade_paper.compare_figures import sample_figure

    with errors.status("drawing"):
        save_figure(sample_figure(runs, data, n, seed, data_dir=data_dir), out)
    console.print(f"-> {out}")


Table = Annotated[str, typer.Argument(metavar="TABLE", help="binary, mnist, uci, patches or speech.")]
Results = Annotated[Path, typer.Option(help="Folder of the records.")]


Column = Annotated[str | None, typer.Option(help="One column; not needed where there is one.")]


@app.command("orderings", help=ORDERINGS_HELP)
def orderings(
    table: Table, out: Out, dataset: Column = None, results: Results = Path("paper/results")
) -> None:
    """Ensembles of orderings (the help is ORDERINGS_HELP above)."""
    from pynade.runs.figures import save_figure
    from pynade_paper.record_figures import ordering_curves, orderings_figure

    name, data = _column(table, dataset)
    curves = ordering_curves(results, name, data)
    if not curves:
        raise ValueError(f"no record of {data} in {results} has ensembles of several sizes")
    save_figure(orderings_figure({"data": data, "curves": curves}), out)
    console.print(f"-> {out}")


@app.command("training", help=TRAINING_HELP)
def training(
    table: Table, out: Out, dataset: Column = None, results: Results = Path("paper/results")
) -> None:
    """Training curves (the help is TRAINING_HELP above)."""
    from pynade.runs.figures import save_figure
    from pynade_paper.record_figures import courses_figure, training_courses

    name, data = _column(table, dataset)
    courses = training_courses(results, name, data)
    if not courses:
        raise ValueError(f"no record of {data} in {results} has a curve of training and validation rows")
    save_figure(courses_figure({"data": data, "courses": courses}), out)
    console.print(f"-> {out}")


@app.command("time", help=TIME_HELP)
def training_time(table: Table, out: Out, results: Results = Path("paper/results")) -> None:
    """Training time (the help is TIME_HELP above)."""
    from pynade.runs.figures import save_figure
    from pynade_paper.record_figures import time_figure, time_points
    from pynade_paper.reproduce import table_named

    (name,) = _one(table_named(table))
    points = time_points(results, name)
    if not points:
        raise ValueError(f"{results} has no two records of one data set of table {name}")
    save_figure(time_figure(points), out)
    console.print(f"-> {out}")


@app.command("cost", help=COST_HELP)
def cost(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of an orderless model.")],
    data: Annotated[str, typer.Argument(metavar="DATA", help="A registered data set or a file.")],
    out: Annotated[Path | None, typer.Option(help="Picture to write (.png, .pdf, .svg).")] = None,
    record: Annotated[Path | None, typer.Option(help="Write the measurement here (.json).")] = None,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "valid",
    rows: Annotated[int, typer.Option(help="Score so many rows.")] = 1000,
    draws: Annotated[str, typer.Option(help="Draws per row of each estimate.")] = "2,4,8,16,32,64,128",
    orderings: Annotated[int, typer.Option(help="The largest ensemble.")] = 16,
    note: Annotated[
        str | None, typer.Option(help="On the model, for the figure's title and caption.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Evaluation cost (the help is COST_HELP above)."""
    from pynade.atomic import write_json
    from pynade.runs.figures import save_figure
    from pynade.runs.tabular import check_destination
    from pynade_paper.evaluation_cost import cost_figure, measure_cost

    if out is None and record is None:
        raise ValueError("give --out for a picture, --record for the measurement, or both")
    if record is not None:
        check_destination(record, ".json")
    several = _numbers(draws, "draws")
    with row_bar("scoring") as bar:
        measurement = measure_cost(run, data, split, rows, several, orderings, data_dir, bar, note)
    if record is not None:
        write_json(record, measurement)
        console.print(f"-> {record}")
    if out is not None:
        save_figure(cost_figure(measurement), out)
        console.print(f"-> {out}")


@app.command("per-step", help=PER_STEP_HELP)
def per_step(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of an orderless model.")],
    data: Annotated[str, typer.Argument(metavar="DATA", help="A registered data set or a file.")],
    out: Annotated[Path | None, typer.Option(help="Picture to write (.png, .pdf, .svg).")] = None,
    record: Annotated[Path | None, typer.Option(help="Write the measurement here (.json).")] = None,
    per_step: Annotated[str, typer.Option(help="Variables drawn at once.")] = "1,4,16",
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "valid",
    rows: Annotated[int, typer.Option(help="Score so many rows.")] = 200,
    samples: Annotated[int, typer.Option(help="Time so many samples.")] = 100,
    precision: Annotated[str, typer.Option(help="float32, tf32 or bf16 (on a GPU).")] = "float32",
    data_dir: DataDir = None,
) -> None:
    """Several variables per step (the help is PER_STEP_HELP above)."""
    from pynade.atomic import write_json
    from pynade.runs.figures import save_figure
    from pynade.runs.tabular import check_destination
    from pynade_paper.per_step import measure_per_step, per_step_figure

    if record is not None:
        check_destination(record, ".json")
    several = _numbers(per_step, "variables per step")
    with errors.status("measuring") as status:
        measurement = measure_per_step(
            run,
            data,
            several,
            split=split,
            rows=rows,
            samples=samples,
            precision=precision,
            data_dir=data_dir,
            progress=lambda what: status.update(f"measuring: {what}"),
        )
    shown = plain_table("per step", "nats lost", "±", "passes", f"s for {samples} samples")
    for line in measurement["lines"]:
        numbers = f"{0 - line['mean']:.3f}", f"{line['stderr']:.3f}", str(line["passes"])
        shown.add_row(str(line["per_step"]), *numbers, f"{line['seconds']:.2f}")
    console.print(shown)
    if record is not None:
        write_json(record, measurement)
        console.print(f"-> {record}")
    if out is not None:
        save_figure(per_step_figure(measurement), out)
        console.print(f"-> {out}")


def _numbers(words: str, what: str) -> list[int]:
    try:
        return [int(word) for word in words.split(",")]
    except ValueError:
        raise ValueError(f"{what} are numbers separated by commas, not {words!r}") from None


def _column(table: str, dataset: str | None) -> tuple[str, str]:
    """The table's name and one of its columns."""
    from pynade_paper.reproduce import table_named
    from pynade_paper.tables import table as read_table

    (name,) = _one(table_named(table))
    columns = read_table(name).columns
    if dataset is None and len(columns) > 1:
        raise ValueError(f"table {name} has several data sets: give --dataset, one of {', '.join(columns)}")
    return name, dataset or columns[0]


def _one(names: list[str]) -> list[str]:
    if len(names) != 1:
        raise ValueError(f"a figure is of one table: give one of {', '.join(names)}")
    return names
