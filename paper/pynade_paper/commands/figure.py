"""`pynade figure`: several models' samples beside real rows, and the records as pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from pynade.cli.screen import console, errors, next_commands, plain_table
from pynade_paper.commands.reproduce import Protocols

if TYPE_CHECKING:
    from matplotlib.figure import Figure

app = typer.Typer(
    help="Several models' samples beside real rows; log-likelihood against orderings, time and cost.",
    no_args_is_help=True,
    add_completion=False,
)

Runs = Annotated[list[Path], Argument(metavar="RUN…", help="Run folders or model files.")]
Out = Annotated[Path, Option(help="Picture to write (.png, .pdf, .svg).")]
DataDir = Annotated[Path | None, Option(help="Folder of the data sets [$PYNADE_DATA].")]
Seed = Annotated[int, Option(help="Of the rows and samples shown.")]
OWN = "Picture to write (.png) \\[paper/results/figures/NAME.png]."
OwnPicture = Annotated[Path | None, Option(help=OWN)]
RECORDS = Path("paper/results")


@app.command("paper")
def paper(
    name: Annotated[str | None, Argument(help="Which figure.")] = None,
    out: OwnPicture = None,
    work: Annotated[Path, Option(help="Folder of the models.")] = Path("runs/figures"),
    device: Annotated[str, Option(help="auto, cpu or cuda.")] = "auto",
    again: Annotated[bool, Option("--again", help="Train again what has been trained.")] = False,
    data_dir: DataDir = None,
    protocols: Protocols = None,
) -> None:
    """Make one of the paper's figures of samples again: train the models, draw the figure.

    Without a name, lists the figures. Trained models are kept in the work folder and used again.

    \b
    Examples:
      pynade figure paper
      pynade figure paper mnist-samples-nade --device cpu
      pynade figure paper natural-patches --out patches.png --device cuda
    """
    from pynade.cli.main import app as pynade
    from pynade.tables.files import check_destination
    from pynade_paper.paper_figures import read_figures

    known = read_figures(protocols)
    if name is None:
        table = plain_table("figure", "caption")
        for figure in known.values():
            table.add_row(figure.name, figure.caption)
        console.print(table)
        next_commands(("figure", "paper", next(iter(known))))
        return
    if name not in known:
        raise ValueError(f"unknown figure {name!r}; known: {', '.join(known)}")
    out = RECORDS / "figures" / f"{name}.png" if out is None else out
    check_destination(out, ".png")
    for words in known[name].commands(out, work, device, again):
        words += [] if data_dir is None or words[0] == "sample" else ["--data-dir", str(data_dir)]
        errors.print(f"pynade {' '.join(words)}")
        typer.main.get_command(pynade).main(words, standalone_mode=False)
    next_commands(("results",))


@app.command("scatter")
def scatter(
    runs: Runs,
    data: Annotated[str, Option(help="A registered data set or a file.")],
    columns: Annotated[str, Option(help="Two columns, by name or number: across,up.")],
    out: Out,
    n: Annotated[int, Option("-n", help="Rows and samples shown.")] = 1000,
    seed: Seed = 0,
    data_dir: DataDir = None,
) -> None:
    """Samples of models over data, two columns, a panel for each model.

    \b
    Example:
      pynade figure scatter runs/gaussian runs/mog --data white_wine --columns 5,6 --out wine.png
    """
    from pynade.tables import resolve
    from pynade_paper.compare_figures import scatter_figure

    names = [name.strip() for name in columns.split(",")]
    if len(names) != 2:
        raise ValueError(f"give two columns separated by a comma, not {columns!r}")
    with errors.status("drawing"):
        figure = scatter_figure(runs, resolve(data, data_dir), (names[0], names[1]), n, seed)
    _write(figure, out)
    next_commands(*(("score", run, data) for run in runs))


@app.command("samples")
def samples(
    runs: Runs,
    data: Annotated[str, Option(help="bsds300, librispeech, or speech of your own.")],
    out: Out,
    n: Annotated[int, Option("-n", help="Rows shown of each.")] = 100,
    seed: Seed = 0,
    data_dir: DataDir = None,
) -> None:
    """Test rows and samples of models as pictures, sorted by density under the last model.

    \b
    Examples:
      pynade figure samples runs/bsds-mog runs/bsds-rnade --data bsds300 --out patches.png
      pynade figure samples runs/speech-mog runs/speech-rnade --data librispeech -n 60 --out speech.png
    """
    from pynade.tables import resolve
    from pynade_paper.compare_figures import sample_figure

    with errors.status("drawing"):
        figure = sample_figure(runs, resolve(data, data_dir), n, seed)
    _write(figure, out)
    next_commands(*(("score", run, data) for run in runs))


@app.command("comparators")
def comparators(runs: Runs, out: Out) -> None:
    """Samples of comparators (DRAW, DARN, …), from folders of `python -m pynade_paper.comparators.train`.

    \b
    Example:
      pynade figure comparators runs/darn runs/darn-noise --out darn.png
    """
    from pynade_paper.compare_figures import comparator_figure

    _write(comparator_figure(runs), out)
    next_commands(("results",))


Table = Annotated[str, Argument(metavar="TABLE", help="binary, mnist, uci, patches or speech.")]
Results = Annotated[Path, Option(help="Folder of the records.")]
Column = Annotated[str | None, Option(help="One column; not needed where there is one.")]


@app.command("orderings")
def orderings(table: Table, out: Out, dataset: Column = None, results: Results = RECORDS) -> None:
    """Log-likelihood against the number of orderings in the ensemble, from the records.

    \b
    Example:
      pynade figure orderings mnist --dataset binarized_mnist --out orderings.png
    """
    _draw("orderings", table, dataset, results, out, "no record of {} in {} has ensembles of several sizes")


@app.command("training")
def training(table: Table, out: Out, dataset: Column = None, results: Results = RECORDS) -> None:
    """Training and validation curves of a table's records, where both were scored.

    \b
    Example:
      pynade figure training mnist --dataset binarized_mnist --out training.png
    """
    lack = "no record of {} in {} has a curve of training and validation rows"
    _draw("training", table, dataset, results, out, lack)


@app.command("time")
def training_time(table: Table, out: Out, results: Results = RECORDS) -> None:
    """Log-likelihood against training time of all recorded models of a table.

    \b
    Example:
      pynade figure time uci --out time.png
    """
    _draw("time", table, None, results, out, "{1} has no two records of one data set of table {0}")


def _draw(kind: str, table: str, dataset: str | None, results: Path, out: Path, lack: str) -> None:
    """Draw a figure of the records of one table, of one of its columns or (time) of all."""
    from pynade_paper.cells import tables_named
    from pynade_paper.record_figures import drawings

    found = tables_named(table)
    if len(found) != 1:
        raise ValueError(f"a figure is of one table: give one of {', '.join(found)}")
    (name, shown), *_ = found.items()
    if kind != "time":
        if dataset is None and len(shown.columns) > 1:
            names = ", ".join(shown.columns)
            raise ValueError(f"table {table} has several data sets: give --dataset, one of {names}")
        name = dataset or shown.columns[0]
    drawing = next((d for d in drawings(results, found) if d.name == f"{kind}-{name}"), None)
    if drawing is None:
        raise ValueError(lack.format(table if kind == "time" else name, results))
    _write(drawing.draw(drawing.content), out)
    next_commands(("results", "--results", results))


OrderlessRun = Annotated[Path, Argument(metavar="RUN", help="Run folder of an orderless model.")]
Data = Annotated[str, Argument(metavar="DATA", help="A registered data set or a file.")]
Picture = Annotated[Path | None, Option(help="Picture to write (.png, .pdf, .svg).")]
Record = Annotated[Path | None, Option(help="Write the measurement here (.json).")]
Split = Annotated[str, Option(help="train, valid or test.")]
Rows = Annotated[int, Option(help="Number of rows to score.")]
Note = Annotated[str | None, Option(help="On the model, for the figure's title and caption.")]


@app.command("cost")
def cost(
    run: OrderlessRun,
    data: Data,
    out: Picture = None,
    record: Record = None,
    split: Split = "valid",
    rows: Rows = 1000,
    draws: Annotated[str, Option(help="Draws per row of each estimate.")] = "2,4,8,16,32,64,128",
    orderings: Annotated[int, Option(help="Size of the largest ensemble.")] = 16,
    note: Note = None,
    data_dir: DataDir = None,
) -> None:
    """Measure the cost of an orderless model's log-likelihood, exact and estimated.

    \b
    Examples:
      pynade figure cost runs/deep binarized_mnist --out cost.png
      pynade figure cost runs/deep binarized_mnist --record cost.json --out cost.png
    """
    from pynade.cli.screen import row_bar
    from pynade_paper.benchmark_figures import cost_figure

    if out is None and record is None:
        raise ValueError("give --out for a picture, --record for the measurement, or both")
    measure = _benchmark("evaluation_cost", "measure_cost", record)
    numbers = _numbers(draws, "draws")
    with row_bar("scoring") as bar:
        measurement = measure(run, data, split, rows, numbers, orderings, data_dir, bar, note)
    _write_measurement(measurement, record, cost_figure, out)
    next_commands(("score", run, data, "--estimate", numbers[-1]))


@app.command("per-step")
def per_step(
    run: OrderlessRun,
    data: Data,
    out: Picture = None,
    record: Record = None,
    per_step: Annotated[str, Option(help="Variables drawn at once.")] = "1,4,16",
    split: Split = "valid",
    rows: Rows = 200,
    samples: Annotated[int, Option(help="Number of samples to time.")] = 100,
    precision: Annotated[str, Option(help="float32, tf32 or bf16 (on a GPU).")] = "float32",
    data_dir: DataDir = None,
) -> None:
    """Measure what drawing several variables at once loses in nats and saves in time.

    \b
    Examples:
      pynade figure per-step runs/unet binarized_mnist --out per-step.png
      pynade figure per-step runs/unet binarized_mnist --per-step 1,2,4,8,16 --rows 100 --record per-step.json
    """
    from pynade_paper.benchmark_figures import per_step_figure

    measure = _benchmark("per_step", "measure_per_step", record)
    numbers = _numbers(per_step, "variables per step")
    with errors.status("measuring") as status:
        how: dict[str, Any] = {"split": split, "rows": rows, "samples": samples, "precision": precision}
        how |= {"data_dir": data_dir, "progress": lambda task: status.update(f"measuring: {task}")}
        measurement = measure(run, data, numbers, **how)
    shown = plain_table("per step", "nats lost", "±", "passes", f"s for {samples} samples")
    for line in measurement["lines"]:
        values = f"{0 - line['mean']:.3f}", f"{line['stderr']:.3f}", str(line["passes"])
        shown.add_row(str(line["per_step"]), *values, f"{line['seconds']:.2f}")
    console.print(shown)
    _write_measurement(measurement, record, per_step_figure, out)
    next_commands(("sample", run, "-n", 16, "--per-step", numbers[-1], "--plot", "samples.png"))


def _benchmark(module: str, function: str, record: Path | None) -> Callable[..., dict[str, Any]]:
    """A function that measures, of the package of benchmarks."""
    from importlib import import_module

    from pynade.tables.files import check_destination

    if record is not None:
        check_destination(record, ".json")
    try:
        measure: Any = getattr(import_module(f"pynade_benchmarks.{module}"), function)
    except ModuleNotFoundError as error:
        if error.name != "pynade_benchmarks":
            raise
        raise ImportError("this command needs pynade-benchmarks: `pip install -e benchmarks`") from None
    return measure


def _write_measurement(
    measurement: dict[str, Any], record: Path | None, draw: Callable[..., Figure], out: Path | None
) -> None:
    """Write what was measured as a record, as a picture, or both."""
    from pynade.atomic import write_json

    if record is not None:
        write_json(record, measurement)
        console.print(f"-> {record}")
    if out is not None:
        _write(draw(measurement), out)


def _write(figure: Figure, out: Path) -> None:
    from pynade.runs.figures import save_figure

    save_figure(figure, out)
    console.print(f"-> {out}")


def _numbers(text: str, name: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"{name} are numbers separated by commas, not {text!r}") from None
