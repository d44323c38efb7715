"""Figures drawn from the records: nats against orderings, training time and updates; benchmarks.

`pynade results` draws them all into the folder `figures` of the records. A picture's file has a digest of the
numbers in it, so that it is drawn again only when they change, and a test finds a picture with old numbers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pynade.plots.drawing import COLOURS
from pynade.runs.figures import save_figure
from pynade_paper.benchmark_figures import cost_caption, cost_figure, per_step_caption, per_step_figure
from pynade_paper.paper_figures import PaperFigure, read_figures
from pynade_paper.records import column, read_record
from pynade_paper.tables import Table, Tables, in_words, read_tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABEL = "test log-likelihood (nats per row)"
TIMES = {0.01: "10 ms", 0.1: "0.1 s", 1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h"}
MORE_TIMES = TIMES | {3: "3 s", 30: "30 s", 120: "2 min", 1800: "30 min", 7200: "2 h"}
MARKERS = "osD^vP*Xp<>h"


@dataclass(frozen=True)
class Drawing:
    """A figure that can be drawn from records: its file's name, its caption, its numbers."""

    name: str
    caption: str
    content: Any
    draw: Callable[[Any], Figure]

    @property
    def digest(self) -> str:
        """Of the numbers; it is in the metadata of the picture."""
        return hashlib.sha256(json.dumps(self.content, sort_keys=True).encode()).hexdigest()


def drawings(results: Path, tables: Tables | None = None) -> Iterator[Drawing]:
    """All figures for which there are records, of the paper's tables when none are given."""
    for name, shown in (read_tables() if tables is None else tables).items():
        for data in shown.columns:
            curves = ordering_curves(results, shown, data)
            if curves:
                papers = any(curve["paper"] for curve in curves)
                crosses = " Crosses are the paper's values." if papers else ""
                yield Drawing(
                    f"orderings-{data}",
                    f"Ensembles over orderings of one network on {data}: test log-likelihood against the "
                    "number of orderings. The bar at the end of each curve is one standard error over rows. "
                    "All ensembles are scored on the same rows, so that their differences have smaller "
                    f"errors.{crosses} `pynade figure orderings {name} --dataset {data}`.",
                    {"data": data, "curves": curves},
                    orderings_figure,
                )
            courses = training_courses(results, shown, data)
            if courses:
                yield Drawing(
                    f"training-{data}",
                    f"Training on {data}: log-likelihood of validation rows (solid) and of as many training "
                    "rows scored in the same way (dashed) after every epoch. Circles mark the weights that "
                    "were kept, the best on validation. Where the curves separate, the network begins to "
                    f"overfit. `pynade figure training {name} --dataset {data}`.",
                    {"data": data, "courses": courses},
                    courses_figure,
                )
        points = time_points(results, shown)
        if points:
            yield Drawing(
                f"time-{name}",
                f"{shown.title}: test log-likelihood against the seconds of training, including the choice "
                "of settings where it was part of the run. Filled: trained on a GPU; hollow: on a CPU; bars "
                "are one standard error. An ensemble over orderings needs no training beyond that of its "
                "network. Upwards: nats per row below the best model, whose log-likelihood is in the title; "
                "the scale is linear near zero and logarithmic further down. "
                f"`pynade figure time {name}`.",
                points,
                time_figure,
            )
    for pattern, caption, draw in (
        ("evaluation-cost*.json", cost_caption, cost_figure),
        ("per-step*.json", per_step_caption, per_step_figure),
    ):
        for path in sorted((results / "benchmarks").glob(pattern)):
            record = json.loads(path.read_text(encoding="utf-8"))
            yield Drawing(path.stem, caption(record, path.name), record, draw)


def write_figures(
    results: Path,
    redraw: bool = False,
    tables: Tables | None = None,
    samples: Mapping[str, PaperFigure] | None = None,
) -> list[Path]:
    """Draw the figures that are missing or have other numbers, or all; returns the new pictures.

    All get their captions here, figures of samples too. Tables and samples are the paper's when left out.
    """
    written = []
    for drawing in drawings(results, tables):
        path = results / "figures" / f"{drawing.name}.png"
        path.parent.mkdir(exist_ok=True)
        if redraw or digest_of(path) != drawing.digest:
            save_figure(drawing.draw(drawing.content), path, {"Source": drawing.digest})
            written.append(path)
        path.with_suffix(".txt").write_text(drawing.caption + "\n", encoding="utf-8")
    for figure in (read_figures() if samples is None else samples).values():
        path = results / "figures" / f"{figure.name}.png"
        if path.is_file():
            path.with_suffix(".txt").write_text(figure.described() + "\n", encoding="utf-8")
    return written


def digest_of(picture: Path) -> str | None:
    """The digest in a picture's metadata."""
    from PIL import Image

    if not picture.is_file():
        return None
    with Image.open(picture) as image:
        return image.info.get("Source")


def ordering_curves(results: Path, shown: Table, data: str) -> list[dict[str, Any]]:
    """Every record of a column with ensembles of several sizes, and the paper's values for them."""
    curves = []
    for file in dict.fromkeys(row.record for row in shown.rows):
        record = read_record(results / file.format(data=data))
        rows = [row for row in shown.rows if row.record == file]
        if record is None or len(record.get("ensembles", {})) < 3:
            continue
        sizes = sorted((int(k), value) for k, value in record["ensembles"].items())
        whole = str(record.get("test", {}).get("orderings"))  # of the record's own number
        papers = {
            (row.entry[1] if row.entry[0] == "ensembles" else whole): row.paper[data]
            for row in rows
            if data in row.paper and (row.entry[0] == "ensembles" or row.entry == ("test",))
        }
        papers = {k: value for k, value in papers.items() if k in record["ensembles"]}
        curve = {"model": _net(rows[0].model), "orderings": [k for k, _ in sizes]}
        curve |= {"mean": [value["mean"] for _, value in sizes], "stderr": sizes[-1][1]["stderr"]}
        curves.append(curve | {"paper": {int(k): value for k, value in papers.items()}})
    return curves


def orderings_figure(content: dict[str, Any]) -> Figure:
    """Log-likelihood against the number of orderings, a curve for each model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axis: Any = figure.subplots()
    crossed: set[tuple[int, float]] = set()  # two rows may have the same number of the paper
    for n, curve in enumerate(content["curves"]):
        style = {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n % len(MARKERS)], "markersize": 5}
        axis.plot(curve["orderings"], curve["mean"], label=curve["model"], **style)
        last = (curve["orderings"][-1], curve["mean"][-1])
        axis.errorbar(*last, yerr=curve["stderr"], color=style["color"], capsize=3, linewidth=1)
        for at in {(int(k), value) for k, value in curve["paper"].items()} - crossed:
            axis.plot(*at, "x", color=style["color"], markersize=7, markeredgewidth=1.8)
            crossed.add(at)
    if any(curve["paper"] for curve in content["curves"]):
        axis.plot([], [], "x", color="0.4", markersize=7, markeredgewidth=1.8, label="the paper's")
    axis.set_xscale("log", base=2)
    largest = max(curve["orderings"][-1] for curve in content["curves"])
    ticks = [2**p for p in range(largest.bit_length())]
    axis.set_xticks(ticks, [str(k) for k in ticks])
    axis.minorticks_off()
    axis.set_xlabel("orderings in the ensemble")
    axis.set_ylabel(LABEL)
    axis.set_title(in_words(content["data"]), fontsize=11)
    axis.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return figure


def _net(model: str) -> str:
    """A row's model without the way it was scored.

    Example:
        >>> _net("U-Net, mean over orderings"), _net("Hybrid, no input masks, ensemble of 32 orderings")
        ('U-Net', 'Hybrid, no input masks')
    """
    return re.sub(r", (mean over orderings|ensemble of \d+ orderings|\d+ orderings)$", "", model)


def training_courses(results: Path, shown: Table, data: str) -> list[dict[str, Any]]:
    """Every record of a column with scores of training and validation rows after every epoch."""
    courses = []
    for file, row in {row.record: row for row in reversed(shown.rows)}.items():
        record = read_record(results / file.format(data=data))
        if record is None or "curve" not in record:
            continue
        curve, kept = record["curve"], max(0, record["best_epoch"] - 1)
        train, valid = ([-nll for nll in curve[name]] for name in ("train_scored_nll", "valid_nll"))
        course = {"model": _net(row.model), "updates": curve["updates"], "train": train, "valid": valid}
        courses.append(course | {"kept": kept})
    return courses[::-1]


def courses_figure(content: dict[str, Any]) -> Figure:
    """Log-likelihood of training and validation rows against updates, a pair of curves for each model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.6), layout="constrained")
    axis: Any = figure.subplots()
    for n, course in enumerate(content["courses"]):
        colour, at = COLOURS[n % len(COLOURS)], np.array(course["updates"]) / 1000
        axis.plot(at, course["valid"], color=colour, label=course["model"])
        axis.plot(at, course["train"], color=colour, linestyle="--")
        axis.plot(at[course["kept"]], course["valid"][course["kept"]], "o", color=colour, markersize=6)
    grey = {"color": "0.4"}
    axis.plot([], [], label="validation rows", **grey)
    axis.plot([], [], label="training rows", linestyle="--", **grey)
    best = np.nanmax([np.nanmax(c["train"]) for c in content["courses"]])
    starts = [c["valid"][len(c["valid"]) // 8] for c in content["courses"]]  # before, it is too steep to show
    low = np.nanmin(starts)
    axis.set_ylim(low - 0.1 * (best - low), best + 0.1 * (best - low))
    axis.set_xlabel("thousands of updates")
    axis.set_ylabel("log-likelihood (nats per row)")
    axis.set_title(in_words(content["data"]), fontsize=11)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=9, loc="lower right")
    return figure


def time_points(results: Path, shown: Table) -> dict[str, Any]:
    """Each measured cell of a table: seconds of training, log-likelihood, standard error, device."""
    points: dict[str, Any] = {}
    for data in shown.columns:
        timed = {model: cell for model, cell in column(results, shown, data).items() if cell.seconds > 0}
        for model, cell in timed.items() if len(timed) > 1 else ():
            point = {"seconds": cell.seconds, "mean": cell.mean, "stderr": cell.stderr}
            name = model + (" (a bound)" if cell.kind == "bound" else "")
            points.setdefault(data, {})[name] = point | {"gpu": cell.device.startswith("cuda")}
    return points


def time_figure(content: dict[str, Any]) -> Figure:
    """Log-likelihood against training time, a panel for each data set and one legend for all."""
    from matplotlib.figure import Figure

    across = min(4, len(content))
    down = -(-len(content) // across)
    size = 3.3 if len(content) > 1 else 5.0
    models = list(dict.fromkeys(model for cells in content.values() for model in cells))
    beside = len(content) == across * down  # is the legend
    height = max(0.9 * size * down, 0.19 * (len(models) + 2) if beside else 0)
    figure = Figure(figsize=(size * across + (3.2 if beside else 0), height), layout="constrained")
    axes: list[Any] = list(figure.subplots(down, across, squeeze=False).flat)
    styles = _styles(models)
    for axis, (data, cells) in zip(axes, content.items(), strict=False):
        for model, cell in cells.items():
            style = _marker(*styles[model], cell["gpu"]) | {"elinewidth": 1, "capsize": 2}
            axis.errorbar(cell["seconds"], cell["mean"], yerr=cell["stderr"], **style)
        axis.set_xscale("log")
        seconds = [cell["seconds"] for cell in cells.values()]
        times = MORE_TIMES if max(seconds) < 300 * min(seconds) else TIMES
        times = times | ({300: "5 min"} if max(seconds) < 30 * min(seconds) else {})
        inside = {t: text for t, text in times.items() if 0.7 * min(seconds) < t < 1.4 * max(seconds)}
        axis.set_xticks(list(inside), list(inside.values()), fontsize=9)
        axis.minorticks_off()
        best = max(cells.values(), key=lambda cell: cell["mean"])
        _below_best(axis, [cell["mean"] for cell in cells.values()], best["stderr"])
        name = in_words(data)
        axis.set_title(f"{name[0].upper()}{name[1:]} (best {best['mean']:.2f})", fontsize=11)
        axis.grid(alpha=0.3)
    kinds = {cell["gpu"] for cells in content.values() for cell in cells.values()}
    _legend(figure, axes[len(content) :], styles, kinds)
    across_label = axes[0].set_xlabel if len(content) == 1 else figure.supxlabel
    across_label("training time", fontsize=11)
    figure.supylabel("nats below the best", fontsize=11)
    return figure


def _legend(figure: Figure, spare: list[Any], styles: dict[str, tuple[str, str]], kinds: set[bool]) -> None:
    """In the first spare panel, or beside the panels."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=model, **_marker(*style, True)) for model, style in styles.items()]
    for gpu, label in ((True, "filled: trained on a GPU"), (False, "hollow: trained on a CPU")):
        handles += [Line2D([], [], label=label, **_marker("0.3", "o", gpu))] if gpu in kinds else []
    for axis in spare:
        axis.set_axis_off()
    style: dict[str, Any] = {"handles": handles, "fontsize": 9 if len(handles) < 18 else 8, "frameon": False}
    if spare:
        spare[0].legend(loc="center left", **style)
    else:
        figure.legend(loc="outside right center", **style)


def _marker(colour: str, marker: str, gpu: bool) -> dict[str, Any]:
    edge = {"markeredgecolor": "white", "markeredgewidth": 0.4} if gpu else {"markerfacecolor": "white"}
    return {"color": colour, "marker": marker, "markersize": 7 if gpu else 6, "linestyle": "", **edge}


def _styles(models: list[str]) -> dict[str, tuple[str, str]]:
    """A colour for each kind of model (its name up to a comma or a number), a marker for each of a kind."""
    kinds: dict[str, int] = {}
    styles = {}
    for model in models:
        kind = re.match(r"[^,\d]*", model)[0].strip()  # type: ignore[index]
        number = kinds[kind] = kinds.get(kind, -1) + 1
        place = list(kinds).index(kind)
        marker = MARKERS[(number + 4 * (place // len(COLOURS))) % len(MARKERS)]
        styles[model] = (COLOURS[place % len(COLOURS)], marker)
    return styles


def _below_best(axis: Any, values: list[float], stderr: float) -> None:
    """Scale values by their distance from the best: linear near it, logarithmic beyond; ticks say how far."""
    top, low = max(values), min(values)
    width = max(2 * stderr, float(np.median(np.subtract(top, values))) / 10, 1e-9)  # of the linear part

    def forward(y: Any) -> Any:
        return -np.arcsinh((top - np.asarray(y)) / width)

    def back(z: Any) -> Any:
        return top + width * np.sinh(np.asarray(z))

    axis.set_yscale("function", functions=(forward, back))
    height = -forward(low)
    axis.set_ylim(back(-1.08 * height), max(back(0.08 * height), top + 1.3 * stderr))
    far = max(top - low, width)
    steps = (1, 2, 5) if far < 30 * width else (1, 3) if far < 300 * width else (1,)
    powers = 10.0 ** np.arange(np.floor(np.log10(width)), np.ceil(np.log10(far)) + 1)
    below = [s * p for p in powers for s in steps if 0.7 * width < s * p < 1.1 * far]
    ticks = [top - b for b in below[::-1]] + [top]
    axis.set_yticks(ticks, [f"{b:g}" for b in below[::-1]] + ["0"])
