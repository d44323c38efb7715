"""What the log-likelihood of an orderless model costs: exact, estimated, or exact on a part of the rows.

The cost is counted in forward passes of the network per row, as a net pays that runs as a whole at every
step: D for an ordering, one for each draw of an estimate. The record has the seconds too (a net with an
incremental first layer pays less than D passes for an ordering).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pynade.estimators import AnyOrderDensity
from pynade.estimators.base import torch_device
from pynade.estimators.io import load_with_facts
from pynade.evaluation import OrderingScores
from pynade.runs.figures import COLOURS
from pynade.runs.provenance import provenance
from pynade.runs.run import as_command, read_spec
from pynade.runs.tabular import align
from pynade.tables import resolve
from pynade.tables.images import binarized

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVERY = 10  # the corrected ensemble is exact on every so manieth row
CORRECTION_DRAWS = 64  # of its estimates: their noise is in its error


def measure_cost(
    run: Path,
    data: str,
    split: str = "valid",
    rows: int = 1000,
    draws: Sequence[int] = (2, 4, 8, 16, 32, 64, 128),
    orderings: int = 16,
    data_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    note: str | None = None,
) -> dict[str, Any]:
    """Score the first rows of a part in every way, with the time each takes.

    Args:
        run: run folder of an orderless model.
        data: registered name or file.
        split: part of the data; validation rows by default, since test rows are scored once.
        rows: how many.
        draws: prefixes per row of each estimate.
        orderings: the largest ensemble; smaller ones are powers of two of its first orderings, whose
            seconds are its own in proportion.
        data_dir: folder of the registered data sets.
        progress: called as progress(done, total) by the exact evaluation.
        note: on the model, for the figure and its caption.
    """
    model, facts = load_with_facts(run)
    if not isinstance(model, AnyOrderDensity):
        raise ValueError(f"{run} holds no orderless model (deepnade, eonade, convnade, unet) to be estimated")
    if orderings < 2 or len(draws) == 0:
        raise ValueError(f"give at least two orderings and some draws, not {orderings} and {list(draws)}")
    spec = read_spec(run)
    dataset = resolve(data, data_dir)
    if "binarize" in facts:
        dataset = binarized(dataset, facts["binarize"])
    part = align(dataset.split(split), dataset.schema.names, facts.get("columns"), facts.get("dropped", ()))
    if len(part) < 2 * EVERY:
        raise ValueError(f"the {split} part of {data} has {len(part)} rows; at least {2 * EVERY} are needed")
    part, d = part[:rows], part.shape[1]

    model.estimate(part[:2], 2)  # the first call pays for things that no later one pays for
    estimates = []
    for m in draws:
        begin = time.perf_counter()
        value = model.estimate(part, m)
        estimates.append(_line(value.mean, value.mc_stderr, m, begin, draws=m))
    begin = time.perf_counter()
    scores = model.score_orderings(part, orderings, progress=progress)
    seconds = time.perf_counter() - begin
    sizes = [2**p for p in range(orderings.bit_length()) if 2**p <= orderings]
    spread = float(scores.ordering_means().std(ddof=1))
    typical, ensembles, corrected = [], [], []
    for k in sizes:
        first = OrderingScores(scores.log_probs[:, :k])
        cost = {"orderings": k, "passes": k * d, "seconds": round(seconds * k / orderings, 4)}
        typical.append({"mean": first.mean().mean, "error": spread / np.sqrt(k), **cost})
        ensembles.append({"mean": first.ensemble().mean, "error": 0.0, **cost})
        begin = time.perf_counter()
        value = model.corrected_ensemble(part, k, CORRECTION_DRAWS, EVERY).ensemble
        passes = CORRECTION_DRAWS + k * d * len(part[::EVERY]) / len(part)
        corrected.append(_line(value.mean, value.mc_stderr, passes, begin, orderings=k))
    where = provenance(dataset, seed=model.random_state, device=torch_device(model.device))
    hidden = model.get_params().get("hidden")
    units = f", {'+'.join(map(str, np.atleast_1d(hidden)))} units" if hidden is not None else ""
    asked = [f"pynade figure cost RUN {data} --split {split} --rows {len(part)} --orderings {orderings}"]
    return {
        "model": f"{type(model).__name__}{units}, trained for {trained_for(run)}",
        "note": note,
        "data": dataset.name,
        "split": split,
        "rows": len(part),
        "variables": d,
        "estimates": estimates,
        "typical": typical,
        "ensembles": ensembles,
        "corrected": corrected,
        "commands": [as_command(spec, "RUN"), *(f"{a} --draws {','.join(map(str, draws))}" for a in asked)],
        "data_checksum": dataset.checksum,
        **{name: where[name] for name in ("code", "libraries", "python", "device", "threads", "seed")},
        "measured": where["started"],
    }


def trained_for(run: Path) -> str:
    """Epochs and seconds of a run, in words."""
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    return f"{result['epochs']} epochs ({result['seconds']:.0f} s)"


def _line(mean: float, error: float, passes: float, begin: float, **facts: Any) -> dict[str, Any]:
    return {
        "mean": mean,
        "error": error,
        "passes": passes,
        "seconds": round(time.perf_counter() - begin, 4),
        **facts,
    }


def part_name(record: dict[str, Any]) -> str:
    """The part of the data that a measurement was made on, in words."""
    return {"valid": "validation", "train": "training"}.get(record["split"], record["split"])


def cost_caption(record: dict[str, Any], file: str) -> str:
    """The words under the figure."""
    note = f" ({record['note']})" if record["note"] else ""
    return (
        f"What a number costs: {record['model']}{note}, on {record['rows']:,} {part_name(record)} rows of "
        f"{record['data']}. Left: log-likelihood against forward passes of the network per row; right: its "
        "error alone, which is the Monte-Carlo standard error of an estimate, and of a mean over K orderings "
        "the standard error due to the choice of orderings (an exact ensemble has none). "
        f"`pynade figure cost`, from benchmarks/{file}."
    )


def cost_figure(record: dict[str, Any]) -> Figure:
    """Log-likelihood against passes per row with what is not known of it, and that error alone."""
    from matplotlib.figure import Figure

    d = record["variables"]
    series = {
        "estimates": "mean over all orderings, estimated: a pass for each draw",
        "typical": f"mean over K orderings, exact: {d} K passes",
        "corrected": "ensemble of K, exact on a tenth of the rows and corrected",
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
        left.annotate(
            f"K = {point['orderings']}",
            (point["passes"], point["mean"]),
            textcoords="offset points",
            xytext=(-7, 1),
            ha="right",
            fontsize=8,
        )
    for axis in (left, right):
        axis.set_xscale("log")
        axis.set_xlabel("forward passes of the network per row")
        axis.grid(alpha=0.3)
    left.set_ylabel("log-likelihood (nats per row)")
    right.set_yscale("log")
    right.yaxis.set_major_formatter("{x:g}")
    right.set_ylabel("standard error due to draws or orderings (nats)")
    note = f"\n({record['note']})" if record["note"] else ""
    figure.suptitle(
        f"{record['model']}; {record['rows']:,} {part_name(record)} rows of {record['data']}{note}",
        fontsize=11,
    )
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return figure
