"""`pynade predict`, `pynade surprise` and `pynade query`: questions about the columns of a mixed table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from pynade.cli import lazy
from pynade.cli.arguments import Data, Engine, Run, Workers, parse_question
from pynade.cli.lazy import files, np
from pynade.cli.screen import console, next_commands, plain_table, print_bars, print_facts, row_bar

if TYPE_CHECKING:  # importing these takes seconds, and `--help` does not need them
    from polars import DataFrame
    from rich.table import Table

    from pynade.estimators import TabularNADE
    from pynade.estimators.answers import ColumnConditional
    from pynade.tables import Column

BARS = 12  # of a distribution
DRAWS = 2000  # that the summary of a joint distribution is made of
TEXTS = ("value", "expected", "low", "high")  # columns of `surprise`
FOLDS = "Judge each of so many parts of the rows by a model fitted to the others (for rows of training)."
QUESTION = 'A column, or several, and what is known: "income | age=40, city=Paris".'


def ask_with_bar(label: str, model: Any, question: str, data: str, out: Path | None, **options: Any) -> Any:
    """Answer a question about all rows of a table, as `pynade.runs.stream.ask`, with a progress bar."""
    table = lazy.run.table_for(model, data)
    with row_bar(label, rows=True) as bar:
        return lazy.stream.ask(model, question, table, out, progress=bar, **options)


def predict(
    run: Run,
    data: Data,
    target: Annotated[str, Option(help="The column to predict.")],
    out: Annotated[Path, Option(help="Where to write, row by row (.csv, .parquet, or a folder).")],
    proba: Annotated[bool, Option("--proba", help="Write a probability for every level.")] = False,
    engine: Engine = "local",
    workers: Workers = None,
) -> None:
    """Best guesses of a column from whatever else is known in each row.

    The column may be absent from the table; if it is there, its values are not used.

    \b
    Examples:
      pynade predict runs/people people.csv --target income --out guesses.csv
      pynade predict runs/people people.csv --target income --proba --out probabilities.csv
    """
    model, _ = lazy.run.load_run(run, lazy.estimators.TabularNADE)
    options: Any = {"target": target, "proba": proba, "engine": engine, "workers": workers}
    result = ask_with_bar("predicting", model, "predict", data, out, **options)
    values = f"probabilities of {len(model.levels(target))} levels" if proba else "best guesses"
    console.print(f"{values} of {target} in {result.rows:,} rows -> {out}")
    next_commands(("query", run, target), ("surprise", run, data, "--top", 20))


def surprise(
    run: Run,
    data: Data,
    top: Annotated[int, Option(help="How many cells.")] = 20,
    out: Annotated[Path | None, Option(help="Write the cells here too (.csv or .parquet).")] = None,
    folds: Annotated[int | None, Option(help=FOLDS)] = None,
    engine: Engine = "local",
    workers: Workers = None,
) -> None:
    """The oddest cells of a table: values that are likelier as errors than given the rest of their row.

    Printed are the row (counted from 0), the log-odds of an error, by which cells are sorted, the p-value
    (how likely a cell at least as odd is, given the rest of the row), and what was expected instead.

    \b
    Examples:
      pynade surprise runs/people people.csv --top 20
      pynade surprise runs/people people.csv --top 1000 --out cells.csv
      pynade surprise runs/people people.csv --folds 2
    """
    lazy.arguments.check_positive(**{"--top": top})
    if out is not None:
        files.check_destination(out, *files.FRAME_ENDINGS)
    model, _ = lazy.run.load_run(run, lazy.estimators.TabularNADE)
    if folds is None:
        options: Any = {"top": top, "engine": engine, "workers": workers}
        cells = ask_with_bar("scoring cells", model, "surprise", data, out, **options).cells
    else:
        if engine != "local" or workers is not None:
            raise ValueError("--folds fits models in this process: leave out --engine and --workers")
        rows = lazy.run.data_for(model, data).split("all")
        with console.status(f"fitting {folds} models to parts of {len(rows):,} rows"):
            cells = model.surprise(rows, top, folds=folds)
        if out is not None:
            files.write_table(out, None, cells)
    console.print(odd_cells(cells.head(50)))
    if out is not None:
        console.print(f"{cells.height:,} cells -> {out}")
    column = cells["column"][0] if cells.height else model.schema_.names[0]
    next_commands(("query", run, column), ("score", run, data))


def odd_cells(cells: DataFrame) -> Table:
    """A table of odd cells, as a model's `surprise` gives them."""
    rows = []
    for row, column, odds, p, *texts in cells.select("row", "column", "log_odds", "p_value", *TEXTS).rows():
        value, expected, low, high = (re.sub(r"(T00:00:00)?\.0{6}$", "", text) for text in texts)
        interval = f"{low} to {high}" if low else ""
        rows.append((row, column, value, f"{odds:.2f}", f"{p:.2g}", expected, interval))
    return plain_table(
        "row", "column", "value", "log-odds", "p-value", "expected", "90 % interval", rows=rows
    )


def query(
    run: Run,
    question: Annotated[str, Argument(metavar="QUESTION", help=QUESTION)],
    plot: Annotated[Path | None, Option(help="Picture of the distribution.")] = None,
    seed: Annotated[int, Option(help="Of the draws that describe a joint distribution.")] = 0,
) -> None:
    """The distribution of a column given values of others; of several columns, their joint distribution.

    Values with commas and columns with | or = in their names stand in double quotes.

    \b
    Examples:
      pynade query runs/people income
      pynade query runs/people "income | age=40, city=Paris" --plot income.png
      pynade query runs/people 'income, hours per week | city="Paris, Texas"'
    """
    model, _ = lazy.run.load_run(run, lazy.estimators.TabularNADE)
    targets, given = parse_question(question, model.schema_.names)
    joint = len(targets) > 1
    answer = model.conditional(targets if joint else targets[0], given)
    if plot is not None:
        figure, ((axis,),) = lazy.figures.subplots(1, 1, 5, 3.2)
        answer.plot(axis)
        lazy.figures.save_figure(figure, plot)
    if joint:
        print_facts(_summary(model, answer.sample(DRAWS, seed)))
        console.print(f"({DRAWS:,} joint draws)")
    else:
        print_facts(_numbers(answer))
        print_bars(_bars(answer))
    if plot is not None:
        console.print(f"-> {plot}")
    texts = [f'{name}="{value}"' if "," in str(value) else f"{name}={value}" for name, value in given.items()]
    next_commands(("sample", run, "-n", 10, *(("--given", ",".join(texts)) if given else ())))


def _text(column: Column, value: Any) -> str:
    """A value of a column as text."""
    if isinstance(value, np.datetime64):
        return str(value.astype("datetime64[D]" if column.dtype.get("type") == "Date" else "datetime64[s]"))
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _numbers(answer: ColumnConditional) -> Iterator[tuple[str, str]]:
    """The numbers that describe the distribution of a column: names and texts."""
    column = answer.column
    if column.n_levels:
        yield "likeliest", _text(column, answer.mode())
    else:
        if column.kind != "date":
            yield "mean", _text(column, answer.mean())
        low, high = (_text(column, end) for end in answer.interval())
        yield "median", _text(column, answer.median())
        yield "90 % interval", f"{low} to {high}"
    if answer.given:
        distance = f"{answer.disagreement():.3f} (largest total variation distance over 8 orderings)"
        yield "disagreement", distance


def _bars(answer: ColumnConditional) -> list[tuple[str, float]]:
    """Values or ranges of a column with their probabilities, a few of them."""
    column = answer.column
    if column.n_levels:
        levels = list(answer.probabilities().items())
        if (more := len(levels) - BARS + 1) > 1:
            levels = sorted(levels, key=lambda level: -level[1])[: BARS - 1]
            levels.append((f"{more} others", 1 - sum(p for _, p in levels)))
        return [(_text(column, level), p) for level, p in levels]
    ends = answer.quantile([0.005, 0.995])
    dates = isinstance(ends[0], np.datetime64)
    first, last = ends.astype(np.int64 if dates else np.float64).tolist()
    edges = column.bins(float(first), float(last), BARS)

    def value(number: float) -> Any:
        return np.datetime64(round(number), "us") if dates else number

    p = np.diff(np.asarray(answer.cdf([value(edge) for edge in edges]), dtype=np.float64)).clip(0).tolist()
    firsts = [_text(column, value(edge + column.resolution)) for edge in edges[:-1].tolist()]
    lasts = [_text(column, value(edge)) for edge in edges[1:].tolist()]
    labels = [a if a == b else f"{a} to {b}" for a, b in zip(firsts, lasts, strict=True)]
    return list(zip(labels, p, strict=True))


def _summary(model: TabularNADE, draws: DataFrame) -> Iterator[tuple[str, str]]:
    """Each column of joint draws in a few words: median and middle 90 %, or the most frequent levels."""
    for name in draws.columns:
        column, values = model.schema_.columns[model.schema_.index(name)], draws[name]
        if column.n_levels:
            counts = values.value_counts(sort=True).rows()[:4]
            text = ", ".join(f"{level} {count / len(values):.1%}" for level, count in counts)
        else:
            ends = (values.sort()[round(q * (len(values) - 1))] for q in (0.05, 0.5, 0.95))
            low, middle, high = (_text(column, end) for end in ends)
            text = f"median {middle}, 90 % between {low} and {high}"
        yield name, text
