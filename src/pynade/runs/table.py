"""Runs of models of mixed tables: what a run keeps, and what may be asked of it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pynade.arguments import check_positive
from pynade.estimators.base import load_with_facts
from pynade.estimators.tabular import TabularNADE
from pynade.likelihood import Estimate
from pynade.runs.figures import COLOURS, subplots
from pynade.tables import Schema, resolve

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from polars import DataFrame

    from pynade.estimators.answers import ColumnConditional
    from pynade.tables import Column

BARS = 12  # of a distribution in a terminal, and of the levels of a column in a figure
DRAWS = 2000  # that the summary of a joint distribution is made of


def table_options(model: Any) -> dict[str, Any]:
    """Options of `pynade.tables.resolve` for a model: frames, if it is one of mixed tables."""
    return {"frames": True, "missing": model.missing} if isinstance(model, TabularNADE) else {}


def table_result(model: Any, valid: Any) -> dict[str, Any]:
    """What a run's result adds for a mixed table: gain on validation rows, disagreement of orderings."""
    gain = None if valid is None else Estimate.from_rows(model.gain(valid)).to_json()
    return {"gain": gain, "disagreement": model.disagreement_}


def with_polars(model: Any) -> Any:
    """The model; one of mixed tables gives polars frames, whatever it was trained on."""
    if isinstance(model, TabularNADE):
        model.schema_ = replace(model.schema_, frame="polars")
    return model


def load_table(run: Path) -> TabularNADE:
    """The model of a run folder or a model file, if it is one of mixed tables."""
    model = with_polars(load_with_facts(run)[0])
    if not isinstance(model, TabularNADE):
        what = f"{run} holds a {type(model).__name__}"
        raise ValueError(f"{what}; this command is for models of tables of mixed columns (tabularnade)")
    return model


def read_rows(model: TabularNADE, data: str | Path) -> DataFrame:
    """All rows of a file or of a registered data set, as a model of mixed tables takes them."""
    rows: DataFrame = resolve(data, **table_options(model)).split("all")
    return rows


def added_up(schema: Schema, density: bool = False) -> str:
    """What the score of a row adds up, in words."""
    real = [c.name for c in schema.columns if not c.n_levels and (density or not c.resolution)]
    discrete = len(schema) - len(real)
    some = ", ".join(real[:5]) + ", …" * (len(real) > 5)
    parts = [f"log-probabilities of {discrete} discrete column{'s' * (discrete > 1)}"] if discrete else []
    parts += [f"log-densities of {len(real)} column{'s' * (len(real) > 1)} ({some})"] if real else []
    return f"a row's score adds up {' and '.join(parts)}"


def impute_table(
    model: TabularNADE, rows: DataFrame, draws: int | None = None, seed: int = 0
) -> tuple[DataFrame, int]:
    """The table with its gaps filled, and how many there were; with draws, all of them marked by a column.

    Args:
        model: of a mixed table.
        rows: the table; columns that the model does not have are kept as they are.
        draws: None fills in best guesses; a number gives that many tables of joint draws.
        seed: of the draws.
    """
    import polars

    check_positive(**{"the number of draws": 1 if draws is None else draws})
    codes, offsets = model.schema_.encode(rows)
    gaps = int((np.isnan(codes) & (offsets == 0)).sum())
    if draws is None:
        return model.impute(rows), gaps
    mark = "draw" if "draw" not in rows.columns else "draw_"
    made = model.impute(rows, draws, random_state=seed)
    marked = [one.select(polars.lit(k).alias(mark), polars.all()) for k, one in enumerate(made)]
    return polars.concat(marked), gaps


def predict_table(model: TabularNADE, rows: DataFrame, target: str, proba: bool = False) -> DataFrame:
    """Best guesses of a column, or the probabilities of its levels, row by row."""
    import polars

    if not proba:
        return polars.DataFrame({target: model.predict(rows, target)}, strict=False)
    return polars.DataFrame(model.predict_proba(rows, target), [str(level) for level in model.levels(target)])


def comma_separated(text: str) -> list[str]:
    """The parts of a text between commas, but for commas in double quotes.

    Example:
        >>> comma_separated('a=1, city="Paris, Texas"')
        ['a=1', 'city="Paris, Texas"']
    """
    return [part.strip() for part in re.findall(r'(?:^|,)((?:"[^"]*"|[^,"]|"(?=[^"]*$))*)', text)]


def _plain(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def parse_given(
    text: str, columns: Sequence[str] | None = None, numbers: bool = True
) -> dict[int | str, Any]:
    """ "3=1,17=0" or "rain=1" as values of known variables; a column's name has precedence over an index.

    Args:
        text: variables and values; what has a comma stands in double quotes.
        columns: the names of the variables, if they have any.
        numbers: values are numbers; otherwise they stay texts.

    Example:
        >>> parse_given("3=1, rain=0"), parse_given('city="Paris, Texas",age=40', numbers=False)
        ({3: 1.0, 'rain': 0.0}, {'city': 'Paris, Texas', 'age': '40'})
    """
    given: dict[int | str, Any] = {}
    for part in comma_separated(text):
        pieces = part.split("=")
        cuts = [(_plain("=".join(pieces[:k])), _plain("=".join(pieces[k:]))) for k in range(1, len(pieces))]
        last = cuts[-1 if numbers else 0] if cuts else ("", "")
        name, value = next((cut for cut in cuts if cut[0] in (columns or ())), last)
        key: int | str = int(name) if name.isdigit() and name not in (columns or ()) else name
        found: Any = value
        if numbers:
            found = math.nan
            with suppress(ValueError):
                found = float(value)
        if not name or found != found or found == "":
            form = "3=1,17=0 (index or column = value)" if numbers else "age=40, city=Paris"
            raise ValueError(f"known values are written like {form}, not {part!r}")
        if key in given:
            raise ValueError(f"variable {key!r} is given twice")
        given[key] = found
    return given


def parse_question(text: str, schema: Schema) -> tuple[list[str], dict[int | str, Any]]:
    """ "income | age=40, city=Paris" as the columns asked about, and the values of the known ones.

    Example:
        >>> parse_question('a, b | c=1, d="x, y"', Schema.binary(4, ["a", "b", "c", "d"]))
        (['a', 'b'], {'c': '1', 'd': 'x, y'})
    """
    found = re.fullmatch(r'((?:"[^"]*"|[^|"])+)(?:\|(.*))?', text.strip(), re.DOTALL)
    targets = [_plain(part) for part in comma_separated(found[1])] if found else []
    if not found or not all(targets):
        raise ValueError(f'a question is written like "income | age=40, city=Paris", not {text!r}')
    if len(set(targets)) < len(targets):
        raise ValueError(f"a column is asked about twice: {text}")
    given = (found[2] or "").strip()
    return targets, parse_given(given, schema.names, numbers=False) if given else {}


def shown(column: Column, value: Any) -> str:
    """A value of a column as text."""
    if isinstance(value, np.datetime64):
        return str(value.astype("datetime64[D]" if column.dtype.get("type") == "Date" else "datetime64[s]"))
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def numbers_of(answer: ColumnConditional) -> list[tuple[str, str]]:
    """The numbers that describe the distribution of a column: names and texts."""
    column, facts = answer.column, []
    if column.n_levels:
        facts.append(("likeliest", shown(column, answer.mode())))
    else:
        if column.kind != "date":
            facts.append(("mean", shown(column, answer.mean())))
        low, high = (shown(column, end) for end in answer.interval())
        facts += [("median", shown(column, answer.median())), ("90 % interval", f"{low} to {high}")]
    if answer.given:
        distance = f"{answer.disagreement():.3f} (largest total variation distance over 8 orderings)"
        facts.append(("disagreement", distance))
    return facts


def bars_of(answer: ColumnConditional) -> list[tuple[str, float]]:
    """Values or ranges of a column with their probabilities, a few of them."""
    column = answer.column
    if column.n_levels:
        found = list(answer.probabilities().items())
        if (more := len(found) - BARS + 1) > 1:
            found = sorted(found, key=lambda item: -item[1])[: BARS - 1]
            found.append((f"{more} others", 1 - sum(p for _, p in found)))
        return [(shown(column, level), p) for level, p in found]
    low, high = answer.quantile([0.005, 0.995])
    dates, step = isinstance(low, np.datetime64), column.resolution
    first, last = (float(end.astype(np.int64) if dates else end) for end in (low, high))
    count = min(BARS, round((last - first) / step) + 1) if step else BARS
    edges = np.linspace(first - step, last, count + 1)
    edges = first + np.round((edges - first) / step) * step if step else edges

    def value(number: float) -> Any:
        return np.datetime64(round(number), "us") if dates else number

    p = np.diff(np.asarray(answer.cdf([value(edge) for edge in edges]), dtype=np.float64))
    ends = [(shown(column, value(a + step)), shown(column, value(b))) for a, b in pairwise(edges.tolist())]
    return [(a if a == b else f"{a} to {b}", max(0.0, float(x))) for (a, b), x in zip(ends, p, strict=True)]


def summary_of(model: TabularNADE, draws: DataFrame) -> list[tuple[str, str]]:
    """Each column of joint draws in a few words: median and middle 90 %, or the most frequent levels."""
    lines = []
    for name in draws.columns:
        column, values = model.schema_.columns[model.schema_.index(name)], draws[name]
        if column.n_levels:
            counts = values.value_counts(sort=True).rows()[:4]
            text = ", ".join(f"{level} {count / len(values):.1%}" for level, count in counts)
        else:
            low, middle, high = (values.sort()[round(q * (len(values) - 1))] for q in (0.05, 0.5, 0.95))
            text = (
                f"median {shown(column, middle)}, 90 % between {shown(column, low)} and {shown(column, high)}"
            )
        lines.append((name, text))
    return lines


def frame_figure(rows: DataFrame) -> Figure:
    """Draw each column of a table: a histogram of numbers and dates, bars of the most frequent levels.

    Example:
        >>> import polars
        >>> len(frame_figure(polars.DataFrame({"city": ["Paris", "Rome"], "age": [40.0, 30.0]})).axes)
        2
    """
    width = math.ceil(math.sqrt(rows.width))
    figure, axes = subplots(math.ceil(rows.width / width), width, 2.4, 1.9)
    for axis in axes.flat[rows.width :]:
        axis.set_axis_off()
    for axis, column in zip(axes.flat, rows, strict=False):
        if column.dtype.is_numeric() or column.dtype.is_temporal():
            bins = min(50, max(10, math.isqrt(len(column))))
            axis.hist(column.drop_nulls().to_numpy(), bins=bins, color=COLOURS[0], edgecolor="none")
        else:
            levels = column.cast(str).value_counts(sort=True).rows()[:BARS]
            axis.bar([str(level)[:12] for level, _ in levels], [n for _, n in levels], color=COLOURS[0])
        axis.tick_params(labelsize=6, axis="x", rotation=45)
        axis.set_yticks([])
        axis.set_title(column.name, fontsize=9)
    return figure
