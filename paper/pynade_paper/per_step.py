"""What drawing several variables at once loses in nats and saves in time (`pynade.models.block_sampling`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pynade.estimators import AnyOrderDensity
from pynade.estimators.base import torch_device
from pynade.estimators.io import load_with_facts
from pynade.evaluation import many_at_once_gap
from pynade.models import Orderless, sample_many
from pynade.runs.figures import COLOURS
from pynade.runs.provenance import provenance
from pynade.runs.run import as_command, read_spec
from pynade.runs.tabular import align
from pynade.tables import resolve
from pynade.tables.images import binarized
from pynade_paper.evaluation_cost import part_name, trained_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measure_per_step(
    run: Path,
    data: str,
    per_step: Sequence[int] = (1, 4, 16),
    *,
    split: str = "valid",
    rows: int = 200,
    samples: int = 100,
    precision: str = "float32",
    data_dir: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Nats lost on rows of a part, and seconds to draw samples, for each number of variables per step.

    Args:
        run: run folder of an orderless model.
        data: registered name or file.
        per_step: the numbers of variables that are drawn at once.
        split: part of the data; validation rows by default, since test rows are scored once.
        rows: how many rows are scored, spread evenly over the part.
        samples: how many samples are drawn for the time.
        precision: "float32", "tf32" or "bf16" (see `pynade.precision`).
        data_dir: folder of the registered data sets.
        progress: told what is being measured.
    """
    model, facts = load_with_facts(run)
    if not isinstance(model, AnyOrderDensity) or not isinstance(model.model_, Orderless):
        raise ValueError(f"{run} holds no orderless model (deepnade, eonade, convnade, unet) to draw from")
    if not per_step or min(per_step) < 1 or rows < 2 or samples < 1:
        raise ValueError(
            "give numbers of at least 1 per step, at least 2 rows and 1 sample, "
            f"not {list(per_step)}, {rows} and {samples}"
        )
    tell = progress or (lambda what: None)
    spec, dataset = read_spec(run), resolve(data, data_dir)
    if "binarize" in facts:
        dataset = binarized(dataset, facts["binarize"])
    part = align(dataset.split(split), dataset.schema.names, facts.get("columns"), facts.get("dropped", ()))
    part = part[~np.isnan(part.astype(float)).any(1)]  # scores of k at a time are of complete rows
    if len(part) < 2:
        raise ValueError(
            f"the {split} part of {data} has {len(part)} rows without gaps; at least 2 are needed"
        )
    spread = np.linspace(0, len(part) - 1, min(rows, len(part)))  # files may be sorted by class
    part = part[spread.astype(int)]

    device = torch_device(model.device)
    density = model.model_.to(device)
    tell(f"{len(part)} rows, {', '.join(map(str, per_step))} at a time")
    gaps = many_at_once_gap(
        density, part, per_step, torch.Generator().manual_seed(model.seed_), precision=precision
    )
    sample_many(density, samples, density.n_variables, _generator(device, 0), precision=precision)  # warm
    lines = []
    for k in per_step:
        tell(f"{samples} samples, {k} at a time")
        begin = time.perf_counter()
        sample_many(density, samples, k, _generator(device, 1), precision=precision).sum().item()
        seconds = time.perf_counter() - begin
        steps = -(-density.n_variables // k)
        lines.append({"per_step": k, **gaps[k].to_json(), "passes": steps, "seconds": round(seconds, 4)})
    where = provenance(dataset, seed=model.random_state, device=device)
    asked = f"pynade figure per-step RUN {data} --per-step {','.join(map(str, per_step))} --split {split}"
    asked += f" --rows {rows} --samples {samples} --precision {precision}"
    return {
        "model": f"{spec['model']}, trained for {trained_for(run)}",
        "data": dataset.name,
        "split": split,
        "rows": len(part),
        "variables": density.n_variables,
        "samples": samples,
        "precision": precision,
        "lines": lines,
        "commands": [as_command(spec, "RUN"), asked],
        "data_checksum": dataset.checksum,
        **{name: where[name] for name in ("code", "libraries", "python", "device", "threads", "seed")},
        "measured": where["started"],
    }


def _generator(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def per_step_caption(record: dict[str, Any], file: str) -> str:
    """The words under the figure, with its numbers."""
    losses = ", ".join(
        f"{line['per_step']} at a time: {0 - line['mean']:.2f} ± {line['stderr']:.2f} nats and "
        f"{line['seconds']:.1f} s"
        for line in record["lines"]
    )
    return (
        f"Drawing several variables at once, taken as independent: what it loses in nats per row on "
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
    figure.suptitle(f"{record['model']}; {record['data']}", fontsize=11)
    return figure
