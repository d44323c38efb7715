"""`pynade demo`: a table with gaps, filled, with its oddest cells; or four models of handwritten digits."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from pynade import datasets
from pynade.estimators import FVSBN, MADE, NADE, BernoulliMixture, DensityEstimator, TabularNADE
from pynade.likelihood import Estimate
from pynade.plots.drawing import COLOURS
from pynade.runs.figures import image_panels, save_figure
from pynade.tables.registry import load
from pynade.training.loop import Callback

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 0
RED = "#c00000"
X, Y = "flipper_length_mm", "bill_length_mm"  # of the scatter plot


class Filled(NamedTuple):
    """One missing cell with its best guess; numbers have a 90 % interval, levels a probability."""

    row: int
    column: str
    value: Any
    low: Any = None
    high: Any = None
    probability: float | None = None

    @property
    def certainty(self) -> str:
        """The interval or the probability, in words."""
        return f"{self.low} … {self.high}" if self.probability is None else f"{100 * self.probability:.0f} %"


class Demo(NamedTuple):
    """What the demo of the table found."""

    model: TabularNADE
    table: Any  # polars frame, with gaps
    filled: list[Filled]
    odd: Any  # polars frame of the oddest cells, see `TabularNADE.surprise`
    gain: float  # nats per row over independent columns


def demo(picture: Path, callbacks: Sequence[Callback] = (), epochs: int | None = None) -> Demo:
    """Fit `TabularNADE` to the penguins, fill their gaps, find the oddest cells, draw the figure.

    Args:
        picture: The PNG to write.
        callbacks: Of training.
        epochs: None takes as many as the estimator does by default.
    """
    table = datasets.penguins("polars")
    model = TabularNADE(epochs=epochs, random_state=SEED).fit(table, callbacks=callbacks)
    filled, guesses = [], model.impute(table).to_dicts()
    for row, values in enumerate(table.to_dicts()):
        given = {name: value for name, value in values.items() if value is not None}
        for name in [name for name in model.schema_.names if name not in given]:
            answer, value = model.conditional(name, given=given), guesses[row][name]
            if answer.column.n_levels:
                filled.append(Filled(row, name, value, probability=answer.pmf(value)))
            else:
                filled.append(Filled(row, name, value, *(end.item() for end in answer.interval())))
    results = Demo(model, table, filled, model.surprise(table, top=5), float(model.gain(table).mean()))
    save_figure(penguin_figure(results), picture)
    return results


def penguin_figure(results: Demo) -> Figure:
    """Draw the filled rows as a table, then rows, filled rows and an odd cell, then a conditional."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    layout: Any = [["table", "table"], ["rows", "mass"]]
    axes = figure.subplot_mosaic(layout, height_ratios=[1, 1.6], width_ratios=[1.2, 1])
    _draw_filled_table(axes["table"], results)
    _draw_rows(axes["rows"], results)
    results.model.conditional("body_mass_g", {"species": "Gentoo", "sex": "female"}).plot(axes["mass"])
    axes["mass"].set_title("Conditional: body mass of a female Gentoo", fontsize=10)
    axes["mass"].set_ylim(bottom=0)
    return figure


def _draw_filled_table(axis: Any, results: Demo) -> None:
    texts = {(cell.row, cell.column): f"{cell.value} ({cell.certainty})" for cell in results.filled}
    gaps = Counter(cell.row for cell in results.filled)
    rows = sorted(row for row, _ in gaps.most_common(5))
    names, values = list(results.table.columns), results.table.to_dicts()
    cells = [[texts.get((row, name), str(values[row][name])) for name in names] for row in rows]
    colours = [["#fff2b3" if (row, name) in texts else "white" for name in names] for row in rows]
    widths = [2 + max(map(len, column)) for column in zip(names, *cells, strict=True)]
    options: Any = {"colWidths": [width / sum(widths) for width in widths], "bbox": [0.06, 0, 0.94, 1]}
    options |= {"colLabels": names, "rowLabels": [f"row {row}" for row in rows]}
    table = axis.table(cells, cellColours=colours, **options)
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    for cell in table.get_celld().values():
        cell.set_edgecolor("0.8")
        cell.set_text_props(ha="center")
    axis.set_axis_off()
    axis.set_title("Rows with gaps (yellow), filled: best guess (90 % interval or probability)", fontsize=10)


def _draw_rows(axis: Any, results: Demo) -> None:
    table, label = results.table, "row with gaps, filled"
    for colour, species in zip(COLOURS, sorted(table["species"].unique()), strict=False):
        rows = table.filter(table["species"] == species)
        axis.scatter(rows[X], rows[Y], s=10, alpha=0.6, color=colour, linewidths=0, label=species)
    ys = {cell.row: cell for cell in results.filled if cell.column == Y}
    for x in (cell for cell in results.filled if cell.column == X and cell.row in ys):
        y = ys[x.row]
        errors = [[[cell.value - cell.low], [cell.high - cell.value]] for cell in (y, x)]
        axis.errorbar(x.value, y.value, *errors, fmt="D", color="black", ms=4, lw=1, label=label)
        label = ""
    odd = []  # by how far they are outside their interval, in widths of it
    for cell in results.odd.iter_rows(named=True):
        if cell["column"] == Y and table[X][cell["row"]] is not None:
            value, low, high = (float(cell[name]) for name in ("value", "low", "high"))
            distance = max(low - value, value - high) / max(high - low, 1e-9)
            odd.append((distance, cell["row"], value, low, high))
    if odd:
        _, row, value, low, high = max(odd)
        flipper = table[X][row]
        axis.scatter([flipper], [value], s=70, facecolors="none", edgecolors=RED, lw=1.5)
        axis.plot([flipper, flipper], [low, high], color=RED, lw=1.5)
        text = f"odd cell (row {row}): {value:g} mm,\n90 % interval {low:g} … {high:g}"
        side, shift = ("left", 8) if flipper < 0.5 * (table[X].min() + table[X].max()) else ("right", -8)
        options = {"textcoords": "offset points", "fontsize": 8, "color": RED, "ha": side}
        axis.annotate(text, (flipper, value), (shift, -4), **options)
    axis.set(xlabel=X, ylabel=Y)
    axis.set_title("All rows, and the 90 % intervals of filled cells", fontsize=10)
    axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, frameon=False)


def models() -> dict[str, DensityEstimator]:
    """Return the models of digits that are trained; their settings were chosen on the validation set."""
    common: Any = {"batch_size": 50, "random_state": SEED, "training": {"schedule": "linear"}}
    return {
        "independent Bernoullis": BernoulliMixture(1, smoothing=1.0, epochs=1, random_state=SEED),
        "FVSBN (logistic regressions)": FVSBN(learning_rate=0.02, epochs=60, **common),
        "MADE (500 hidden units)": MADE(hidden=(500,), learning_rate=0.003, epochs=80, **common),
        "NADE (200 hidden units)": NADE(hidden=200, learning_rate=0.01, epochs=80, **common),
    }


def digits_demo(
    picture: Path, started: Callable[[str], None] = lambda name: None
) -> list[tuple[str, Estimate, float]]:
    """Train on the embedded digits, score the test set, draw the figure; returns names, scores, seconds.

    Args:
        picture: The PNG to write: real digits, samples, and the probabilities of their pixels.
        started: Called with a model's name before it is trained.
    """
    digits, lines = load("digits"), []
    test = digits.split("test")
    for name, model in models().items():
        started(name)
        begin = time.perf_counter()
        model.fit(digits.train, X_valid=digits.valid)
        seconds = time.perf_counter() - begin
        lines.append((name, Estimate.from_rows(model.score_samples(test)), seconds))
    samples = model.sample(49, random_state=SEED)
    means = model.model_.conditional_means(torch.as_tensor(samples)).detach().numpy()
    panels = {"Real digits": test[:49], "NADE samples": samples, "Pixel probabilities": means}
    save_figure(image_panels(panels, digits.image_shape or ()), picture)
    return lines
