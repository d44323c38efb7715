"""What drawing several variables at once loses in nats and saves in time (`pynade.models.draw_blocks`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pynade.device import torch_device
from pynade.likelihood import Estimate
from pynade.models import Orderless, draw_blocks
from pynade.ordering import Ordering
from pynade.precision import computing_in
from pynade.runs.summary import read_spec
from pynade_benchmarks.orderless import Trained


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
    progress: Callable[[str], None] = lambda task: None,
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
        progress: called with the next measurement.
    """
    if not per_step or min(per_step) < 1 or rows < 2 or samples < 1:
        raise ValueError(
            "give numbers of at least 1 per step, at least 2 rows and 1 sample, "
            f"not {list(per_step)}, {rows} and {samples}"
        )
    trained = Trained.load(run, data, split, data_dir)
    model = trained.model
    part = trained.rows[~np.isnan(trained.rows.astype(float)).any(1)]  # only complete rows can be scored
    if len(part) < 2:
        raise ValueError(
            f"the {split} part of {data} has {len(part)} rows without gaps; at least 2 are needed"
        )
    part = part[np.linspace(0, len(part) - 1, min(rows, len(part))).astype(int)]  # files may be sorted

    device = torch_device(model.device)
    density = model.model_.to(device)
    progress(f"{len(part)} rows, {', '.join(map(str, per_step))} at a time")
    gaps = block_sampling_gap(
        density, part, per_step, torch.Generator().manual_seed(model.seed_), precision=precision
    )
    draw_blocks(density, samples, density.n_variables, _generator(device, 0), precision=precision)  # warm-up
    lines = []
    for k in per_step:
        progress(f"{samples} samples, {k} at a time")
        begin = time.perf_counter()
        draw_blocks(density, samples, k, _generator(device, 1), precision=precision)[0].sum().item()
        seconds = time.perf_counter() - begin
        steps = -(-density.n_variables // k)
        lines.append({"per_step": k, **gaps[k].to_json(), "passes": steps, "seconds": round(seconds, 4)})
    command = f"pynade figure per-step RUN {data} --per-step {','.join(map(str, per_step))} --split {split}"
    return {
        "model": f"{read_spec(run)['model']}, trained for {trained.training}",
        "data": trained.dataset.name,
        "split": split,
        "rows": len(part),
        "variables": density.n_variables,
        "samples": samples,
        "precision": precision,
        "lines": lines,
        **trained.record(f"{command} --rows {rows} --samples {samples} --precision {precision}"),
    }


def block_sampling_gap(
    model: Orderless,
    x: torch.Tensor | np.ndarray,
    per_step: Sequence[int] = (1, 4, 16),
    generator: torch.Generator | None = None,
    *,
    precision: str = "float32",
) -> dict[int, Estimate]:
    """What drawing k variables at once costs: log p of rows k at a time, minus the exact one, in nats.

    Each row has a random ordering of its own, the same for all k; it costs D + Σ D / k forward passes. A
    mean of -2 means that two nats are lost. Both terms are exact along the row's ordering, and the standard
    error covers the draw of rows and of orderings.

    Args:
        model: the orderless model.
        x: complete rows (N, D).
        per_step: the values of k.
        generator: source of the orderings, on the CPU.
        precision: "float32", "tf32" or "bf16" (see `pynade.precision`).

    Example:
        >>> import torch
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import MaskedMLP
        >>> deep = Orderless(MaskedMLP(4, hidden=(4,)), Bernoulli())
        >>> gaps = block_sampling_gap(deep, torch.eye(4), (1, 2))
        >>> gaps[1].mean, gaps[2].n
        (0.0, 4)
    """
    rows = torch.as_tensor(x)
    ordering = Ordering.random(model.n_variables, len(rows), generator)
    at_once = model.net.rows_at_once(model.device)
    scores: dict[int, np.ndarray] = {}
    for k in sorted({1, *per_step}):
        parts = [
            block_log_prob(model, part, ordering[start : start + len(part)], k, precision=precision).cpu()
            for start, part in zip(range(0, len(rows), at_once), rows.split(at_once), strict=True)
        ]
        scores[k] = torch.cat(parts).numpy()
    return {k: Estimate.from_rows(scores[k] - scores[1]) for k in per_step}


@torch.no_grad()
def block_log_prob(
    model: Orderless, x: torch.Tensor, ordering: Ordering, per_step: int, *, precision: str = "float32"
) -> torch.Tensor:
    """log p of each row, `per_step` variables at a time taken as independent: (B, D) -> (B,), in float64.

    This is a normalised density, the one that `draw_blocks` draws from along these orderings; with
    `per_step=1` it is the exact one.

    Args:
        model: the orderless model.
        x: complete rows.
        ordering: one for all rows, or one for each.
        per_step: k.
        precision: "float32", "tf32" or "bf16" (see `pynade.precision`).

    Example:
        >>> import torch
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import MaskedMLP
        >>> deep, o = Orderless(MaskedMLP(3, hidden=(4,)), Bernoulli()), Ordering([2, 0, 1])
        >>> x = torch.eye(3)
        >>> torch.allclose(block_log_prob(deep, x, o, 1), deep.under(o).log_prob(x))
        True
    """
    x = x.to(model.device)
    model.check(x)
    x = x.to(model.dtype)
    features, order = model.family.encode(x), ordering.rows(len(x)).order.to(model.device)
    rank, total = order.argsort(1), x.new_zeros(len(x), dtype=torch.float64)
    for start in range(0, model.n_variables, per_step):
        i = order[:, start : start + per_step]
        with computing_in(precision, model.device):
            eta = model.net.conditionals(features, rank < start)
        eta = eta.to(model.dtype).gather(1, i[..., None].expand(-1, -1, eta.shape[-1]))
        total += model.family.log_prob(x.gather(1, i), eta, i).sum(-1, dtype=torch.float64)
    return total


def _generator(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)
