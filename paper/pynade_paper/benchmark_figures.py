"""Figures of two benchmark records: the cost of a log-likelihood, and several variables per sampling step.

`pynade figure cost` and `pynade figure per-step` measure what they show (see `pynade_benchmarks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynade.plots.drawing import COLOURS
from pynade_paper.tables import in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def part_name(record: dict[str, Any]) -> str:
    """The part of the data that a measurement was made on."""
    return {"valid": "validation", "train": "training"}.get(record["split"], record["split"])


def cost_caption(record: dict[str, Any], file: str) -> str:
    """The text below the figure."""
    note = f" ({record['note']})" if record["note"] else ""
    return (
        f"The cost of a log-likelihood: {record['model']}{note}, on {record['rows']:,} {part_name(record)} "
        f"rows of {record['data']}. Left: log-likelihood against forward passes of the network per row. "
        "Right: its error alone, which is the Monte-Carlo standard error of an estimate, and for a mean over "
        "K orderings the standard error due to the choice of orderings (an exact ensemble has none). "
        f"`pynade figure cost`, from benchmarks/{file}."
    )


def cost_figure(record: dict[str, Any]) -> Figure:
    """Log-likelihood with its error against passes per row, and that error alone."""
    from matplotlib.figure import Figure

    d = record["variables"]
    series = {
        "estimates": "mean over all orderings, estimated: a pass for each draw",
        "typical": f"mean over K orderings, exact: {d} K passes",
        "corrected": "ensemble of K, exact on a tenth of the rows, with a control variate",
        "ensembles": f"ensemble of K, exact: {d} K passes",
    }
    figure = Figure(figsize=(9.6, 5.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    for n, (name, label) in enumerate(series.items()):
        style = {"color": COLOURS[n], "marker": "osDv"[n], "markersize": 5, "linewidth": 1}
        passes, means, error = ([p[key] for p in record[name]] for key in ("passes", "mean", "error"))
        exact = not any(error)
        left.errorbar(passes, means, yerr=None if exact else error, capsize=3, label=label, **style)
        if not exact:
            right.plot(passes, error, **style)
    for point in record["ensembles"]:
        style = {"textcoords": "offset points", "xytext": (-7, 1), "ha": "right", "fontsize": 8}
        left.annotate(f"K = {point['orderings']}", (point["passes"], point["mean"]), **style)
    for axis in (left, right):
        axis.set_xscale("log")
        axis.set_xlabel("forward passes of the network per row")
        axis.grid(alpha=0.3)
    left.set_ylabel("log-likelihood (nats per row)")
    right.set_yscale("log")
    right.yaxis.set_major_formatter("{x:g}")
    right.set_ylabel("standard error due to draws or orderings (nats)")
    note = f"\n({record['note']})" if record["note"] else ""
    rows = f"{record['rows']:,} {part_name(record)} rows of {in_words(record['data'])}"
    figure.suptitle(f"{record['model']}; {rows}{note}", fontsize=11)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return figure


def per_step_caption(record: dict[str, Any], file: str) -> str:
    """The text below the figure, with its numbers."""
    losses = ", ".join(
        f"{line['per_step']} at a time: {0 - line['mean']:.2f} ± {line['stderr']:.2f} nats and "
        f"{line['seconds']:.1f} s"
        for line in record["lines"]
    )
    return (
        f"Drawing several variables at once, as if they were independent: the loss in nats per row on "
        f"{record['rows']:,} {part_name(record)} rows of {record['data']}, and the time of "
        f"{record['samples']} samples ({record['device']}). {record['model']}; {losses}. "
        f"`pynade figure per-step`, from benchmarks/{file}."
    )


def per_step_figure(record: dict[str, Any]) -> Figure:
    """Nats lost, and seconds of sampling, against variables per step."""
    from matplotlib.figure import Figure

    lines = record["lines"]
    at = [line["per_step"] for line in lines]
    figure = Figure(figsize=(8.4, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    style = {"marker": "o", "markersize": 5, "linewidth": 1}
    losses, errors = [-line["mean"] for line in lines], [line["stderr"] for line in lines]
    left.errorbar(at, losses, yerr=errors, capsize=3, color=COLOURS[0], **style)
    left.set_ylabel("nats lost per row")
    right.plot(at, [line["seconds"] for line in lines], color=COLOURS[1], **style)
    right.set_yscale("log")
    right.set_ylabel(f"seconds for {record['samples']} samples")
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xticks(at, [str(k) for k in at])
        axis.minorticks_off()
        axis.set_xlabel("variables per step")
        axis.grid(alpha=0.3)
    figure.suptitle(f"{record['model']}; {in_words(record['data'])}", fontsize=11)
    return figure
