"""`pynade predict`, `pynade surprise` and `pynade query`: questions about the columns of a mixed table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pynade.cli.arguments import Data, Run
from pynade.cli.screen import console, errors, next_commands, plain_table, print_bars, print_facts

TEXTS = ("value", "expected", "low", "high")  # columns of `surprise`
QUESTION = 'A column, or several, and what is known: "income | age=40, city=Paris".'


def predict(
    run: Run,
    data: Data,
    target: Annotated[str, Option(help="The column to predict.")],
    out: Annotated[Path, Option(help="Where to write, row by row (.csv or .parquet).")],
    proba: Annotated[bool, Option("--proba", help="Write a probability for every level.")] = False,
) -> None:
    """Best guesses of a column from whatever else is known in each row.

    The column may be absent from the table; if it is there, its values are not used.

    \b
    Examples:
      pynade predict runs/people people.csv --target income --out guesses.csv
      pynade predict runs/people people.csv --target income --proba --out probabilities.csv
    """
    from pynade.runs.table import load_table, predict_table, read_rows
    from pynade.tables.files import FRAME_ENDINGS, check_destination, write_table

    check_destination(out, *FRAME_ENDINGS)
    model = load_table(run)
    with errors.status("predicting"):
        made = predict_table(model, read_rows(model, data), target, proba)
    write_table(out, None, made)
    what = f"probabilities of {made.width} levels" if proba else "best guesses"
    console.print(f"{what} of {target} in {made.height:,} rows -> {out}")
    next_commands(("query", run, target), ("surprise", run, data, "--top", 20))


def surprise(
    run: Run,
    data: Data,
    top: Annotated[int, Option(help="How many cells.")] = 20,
    out: Annotated[Path | None, Option(help="Write the cells here too (.csv or .parquet).")] = None,
) -> None:
    """The oddest cells of a table: the least likely ones given the other cells of their row.

    Printed are the row (counted from 0), the p-value by which cells are sorted (how likely a cell at least as
    odd is, given the rest of the row), -log p of the cell in nats, and what was expected instead.

    \b
    Examples:
      pynade surprise runs/people people.csv --top 20
      pynade surprise runs/people people.csv --top 1000 --out cells.csv
    """
    from pynade.arguments import check_positive
    from pynade.runs.table import load_table, read_rows
    from pynade.tables.files import FRAME_ENDINGS, check_destination, write_table

    check_positive(**{"--top": top})
    if out is not None:
        check_destination(out, *FRAME_ENDINGS)
    model = load_table(run)
    with errors.status("scoring cells"):
        cells = model.surprise(read_rows(model, data), top)
    if out is not None:
        write_table(out, None, cells)
    table = plain_table("row", "column", "value", "p-value", "-log p", "expected", "90 % interval")
    shown = cells.select("row", "column", "p_value", "surprise", *TEXTS).head(50)
    for row, column, p, nats, *texts in shown.iter_rows():
        value, expected, low, high = (re.sub(r"(T00:00:00)?\.0{6}$", "", text) for text in texts)
        interval = f"{low} to {high}" if low else ""
        table.add_row(str(row), column, value, f"{p:.2g}", f"{nats:.2f}", expected, interval)
    console.print(table)
    if out is not None:
        console.print(f"{cells.height:,} cells -> {out}")
    column = cells["column"][0] if cells.height else model.schema_.names[0]
    next_commands(("query", run, column), ("score", run, data))


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
    from pynade.runs import table as tables
    from pynade.runs.figures import save_figure, subplots

    model = tables.load_table(run)
    targets, given = tables.parse_question(question, model.schema_)
    answer = model.conditional(targets if len(targets) > 1 else targets[0], given)
    figure, ((axis,),) = subplots(1, 1, 5, 3.2)
    if plot is not None:
        answer.plot(axis)
        save_figure(figure, plot)
    if len(targets) > 1:
        print_facts(tables.summary_of(model, answer.sample(tables.DRAWS, seed)))
        console.print(f"({tables.DRAWS:,} joint draws)")
    else:
        print_facts(tables.numbers_of(answer))
        print_bars(tables.bars_of(answer))
    if plot is not None:
        console.print(f"-> {plot}")
    known = ",".join(
        f'{name}="{value}"' if "," in str(value) else f"{name}={value}" for name, value in given.items()
    )
    next_commands(("sample", run, "-n", 10, *(("--given", known) if known else ())))
