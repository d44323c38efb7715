"""`pynade demo`: a table with gaps: its schema, its gaps filled, its oddest cells, a picture."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pynade import datasets
from pynade.estimators import TabularNADE
from pynade.runs.figures import COLOURS, save_figure
from pynade.training.loop import Callback

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 0
LEVEL = 0.9  # of the intervals
GIVEN: dict[int | str, str] = {"species": "Gentoo", "sex": "female"}
RED = "#c00000"
X, Y = "flipper_length_mm", "bill_length_mm"  # of the scatter plot


class Filled(NamedTuple):
    """One missing cell with its best guess; numbers have an interval, levels a probability."""

    row: int
    column: str
    value: Any
    low: Any = None
    high: Any = None
    probability: float | None = None

    @property
    def certainty(self) -> str:
        """The interval or the probability, in words."""
        if self.probability is None:
            return f"{self.low} … {self.high}"
        return f"{100 * self.probability:.0f} %"


class Odd(NamedTuple):
    """One cell that is improbable given the rest of its row, with what was expected."""

    row: int
    column: str
    value: str
    p_value: float  # probability of a value at least as odd
    surprise: float  # -log p(cell | the other cells of its row), in nats
    expected: str
    low: str
    high: str


class Demo(NamedTuple):
    """What the demo found."""

    model: TabularNADE
    table: Any  # polars frame, with gaps
    filled: list[Filled]
    odd: list[Odd]
    gain: float  # nats per row over independent columns
    seconds: float


def demo(picture: Path, callbacks: Sequence[Callback] = (), epochs: int | None = None) -> Demo:
    """Fit `TabularNADE` to the penguins, fill their gaps, find the oddest cells, draw the figure.

    Args:
        picture: The PNG to write.
        callbacks: Of training.
        epochs: None takes as many as the estimator does by default.
    """
    table = datasets.penguins("polars")
    begin = time.perf_counter()
    model = TabularNADE(epochs=epochs, random_state=SEED).fit(table, callbacks=callbacks)
    filled = filled_cells(model, table)
    odd = [Odd(*line) for line in model.surprise(table, top=5).rows()]
    gain = float(model.gain(table).mean())
    save_figure(penguin_figure(model, table, filled, odd), picture)
    return Demo(model, table, filled, odd, gain, time.perf_counter() - begin)


def filled_cells(model: TabularNADE, table: Any) -> list[Filled]:
    """Every missing cell of a polars frame, filled with its best guess."""
    found, guesses = [], model.impute(table).to_dicts()
    for row, values in enumerate(table.to_dicts()):
        known = {name: value for name, value in values.items() if value is not None}
        for name in model.schema_.names:
            if name in known:
                continue
            answer, value = model.conditional(name, given=known), guesses[row][name]
            if answer.column.n_levels:
                found.append(Filled(row, name, value, probability=answer.pmf(value)))
            else:
                found.append(Filled(row, name, value, *(end.item() for end in answer.interval(LEVEL))))
    return found


def penguin_figure(model: TabularNADE, table: Any, filled: list[Filled], odd: list[Odd]) -> Figure:
    """Draw the filled rows as a table, then rows, filled rows and an odd cell, then a conditional."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplot_mosaic(
        [["table", "table"], ["rows", "one"]], height_ratios=[1, 1.6], width_ratios=[1.2, 1]
    )
    _filled_table(axes["table"], table, filled)
    _scatter(axes["rows"], table, filled, odd)
    model.conditional("body_mass_g", given=GIVEN).plot(axes["one"])
    axes["one"].set_title("Conditional: body mass of a female Gentoo", fontsize=10)
    axes["one"].set_ylim(bottom=0)
    return figure


def _filled_table(axis: Any, table: Any, filled: list[Filled]) -> None:
    cells = {(cell.row, cell.column): cell for cell in filled}
    gaps = {row: sum(cell.row == row for cell in filled) for row in (cell.row for cell in filled)}
    shown = sorted(sorted(gaps, key=lambda row: -gaps[row])[:5])
    names, values = list(table.columns), table.to_dicts()
    texts, colours = [], []
    for row in shown:
        found = {name: cells.get((row, name)) for name in names}
        told = {name: f"{cell.value} ({cell.certainty})" for name, cell in found.items() if cell}
        texts.append([told.get(name, str(values[row][name])) for name in names])
        colours.append(["#fff2b3" if name in told else "white" for name in names])
    widest = [2 + max(len(line[k]) for line in [*texts, names]) for k in range(len(names))]
    drawn = axis.table(
        texts,
        cellColours=colours,
        colLabels=names,
        colWidths=[width / sum(widest) for width in widest],
        rowLabels=[f"row {row}" for row in shown],
        bbox=[0.06, 0, 0.94, 1],
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(8)
    for cell in drawn.get_celld().values():
        cell.set_edgecolor("0.8")
        cell.set_text_props(ha="center")
    axis.set_axis_off()
    axis.set_title("Rows with gaps (yellow), filled: best guess (90 % interval or probability)", fontsize=10)


def _scatter(axis: Any, table: Any, filled: list[Filled], odd: list[Odd]) -> None:
    for colour, species in zip(COLOURS, sorted(table["species"].unique()), strict=False):
        some = table.filter(table["species"] == species)
        axis.scatter(some[X], some[Y], s=10, alpha=0.6, color=colour, linewidths=0, label=species)
    cells = {(cell.row, cell.column): cell for cell in filled}
    label = "row with gaps, filled"
    for row in sorted({cell.row for cell in filled}):
        x, y = cells.get((row, X)), cells.get((row, Y))
        if x is None or y is None:
            continue
        ends = [[[c.value - c.low], [c.high - c.value]] for c in (x, y)]
        axis.errorbar(x.value, y.value, ends[1], ends[0], fmt="D", color="black", ms=4, lw=1, label=label)
        label = ""
    shown = [cell for cell in odd if cell.column == Y and table[X][cell.row] is not None]
    if shown:
        cell = max(shown, key=_distance)
        at, value, low, high = table[X][cell.row], float(cell.value), float(cell.low), float(cell.high)
        axis.scatter([at], [value], s=70, facecolors="none", edgecolors=RED, lw=1.5)
        axis.plot([at, at], [low, high], color=RED, lw=1.5)
        text = f"odd cell (row {cell.row}): {value:g} mm,\n90 % interval {low:g} … {high:g}"
        left = at < 0.5 * (table[X].min() + table[X].max())
        options = {
            "textcoords": "offset points",
            "fontsize": 8,
            "color": RED,
            "ha": "left" if left else "right",
        }
        axis.annotate(text, (at, value), (8 if left else -8, -4), **options)
    axis.set(xlabel=X, ylabel=Y)
    axis.set_title("All rows, and the 90 % intervals of filled cells", fontsize=10)
    axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, frameon=False)


def _distance(cell: Odd) -> float:
    """How far a number is outside its interval, in widths of the interval."""
    value, low, high = float(cell.value), float(cell.low), float(cell.high)
    return max(low - value, value - high) / max(high - low, 1e-9)
