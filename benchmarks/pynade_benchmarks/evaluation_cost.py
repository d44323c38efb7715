"""The cost of the log-likelihood of an orderless model: exact, estimated, or exact on a part of the rows.

The cost is counted in forward passes of the network per row, for a net that is run as a whole at every step:
D for an ordering, one for each draw of an estimate. The record has the seconds too (a net with an incremental
first layer needs less time than D passes for an ordering).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pynade.evaluation import OrderingScores
from pynade_benchmarks.orderless import Trained

EVERY = 10  # the ensemble with a control variate has exact scores of every n-th row
CORRECTION_DRAWS = 64  # of its estimates; their noise is part of its error


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
        orderings: size of the largest ensemble; smaller ones are powers of two of its first orderings, and
            their seconds are proportional to their size.
        data_dir: folder of the registered data sets.
        progress: called as progress(done, total) by the exact evaluation.
        note: on the model, for the figure and its caption.
    """
    if orderings < 2 or len(draws) == 0:
        raise ValueError(f"give at least two orderings and some draws, not {orderings} and {list(draws)}")
    trained = Trained.load(run, data, split, data_dir)
    model, part = trained.model, trained.rows[:rows]
    if len(part) < 2 * EVERY:
        raise ValueError(f"the {split} part of {data} has {len(part)} rows; at least {2 * EVERY} are needed")
    d = part.shape[1]

    model.estimate(part[:2], 2)  # the first call takes longer than later ones
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
        value = model.control_variate_ensemble(part, k, CORRECTION_DRAWS, EVERY).ensemble
        passes = CORRECTION_DRAWS + k * d * len(part[::EVERY]) / len(part)
        corrected.append(_line(value.mean, value.mc_stderr, passes, begin, orderings=k))
    hidden = model.get_params().get("hidden")
    units = f", {'+'.join(map(str, np.atleast_1d(hidden)))} units" if hidden is not None else ""
    command = f"pynade figure cost RUN {data} --split {split} --rows {len(part)} --orderings {orderings}"
    return {
        "model": f"{type(model).__name__}{units}, trained for {trained.training}",
        "note": note,
        "data": trained.dataset.name,
        "split": split,
        "rows": len(part),
        "variables": d,
        "estimates": estimates,
        "typical": typical,
        "ensembles": ensembles,
        "corrected": corrected,
        **trained.record(f"{command} --draws {','.join(map(str, draws))}"),
    }


def _line(mean: float, error: float, passes: float, begin: float, **facts: Any) -> dict[str, Any]:
    seconds = round(time.perf_counter() - begin, 4)
    return {"mean": mean, "error": error, "passes": passes, "seconds": seconds, **facts}
