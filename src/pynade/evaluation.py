"""Exact log-likelihood under many orderings: K orderings × N rows, in chunks that survive a kill.

One pass of the stepper scores G orderings × N rows at once: each ordering is a group, so a step reads one row
of the weights per ordering and does O(H) work before the second layer, for all rows together. A net without
such a first layer (`MaskedConv`, `UNet`, `Transformer`) runs as a whole at every step: one ordering of D
variables costs D forward passes of every row. A `CausalTransformer` takes one pass. Under torchrun the
processes share the chunks (`pynade.processes`). `pynade.control_variate` is for data sets where even that
costs too much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from pynade.chunks import Chunk, Chunks
from pynade.likelihood import Estimate
from pynade.models import Ensemble, Orderless, Rows, block_log_prob
from pynade.ordering import Ordering
from pynade.processes import gathered, rank_and_size, sum_over_processes


@dataclass(frozen=True)
class OrderingScores:
    """log p(x_n | ordering k) for every row and ordering, and what follows from it.

    Attributes:
        log_probs: (N, K), exact.
    """

    log_probs: np.ndarray

    def mean(self) -> Estimate:
        """The typical single ordering: each row's log-probabilities averaged over orderings."""
        return Estimate.from_rows(self.log_probs.mean(1))

    def ensemble(self, k: int | None = None) -> Estimate:
        """The ensemble of the first k orderings (all by default): log of the mean probability."""
        return Estimate.from_rows(self.ensemble_rows(k))

    def ensemble_rows(self, k: int | None = None) -> np.ndarray:
        """Log-probability of each row under the ensemble of the first k orderings."""
        part = self.log_probs[:, :k]
        return np.logaddexp.reduce(part, axis=1) - np.log(part.shape[1])

    def curve(self) -> list[Estimate]:
        """The ensembles of 1, 2, …, K orderings."""
        total = np.logaddexp.accumulate(self.log_probs, axis=1)
        sizes = np.arange(1, total.shape[1] + 1)
        return [Estimate.from_rows(rows) for rows in (total - np.log(sizes)).T]

    def ordering_means(self) -> np.ndarray:
        """Mean log-likelihood of each ordering alone, (K,): its spread is the robustness to the ordering."""
        return self.log_probs.mean(0)


def score_orderings(
    model: Orderless | Ensemble,
    x: Tensor | np.ndarray,
    orderings: Ordering | None = None,
    *,
    folder: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
    rows_at_once: int | None = None,
    precision: str = "float32",
) -> OrderingScores:
    """Exact log p of every row under every ordering.

    Exact means that nothing is drawn: every factor of every product is there. The nets' arithmetic may be
    shortened (`precision`) on a GPU; log-probabilities are float32 or better, their sums float64. Processes
    that torchrun started share the work, and all of them return all of it.

    Args:
        model: an orderless model with `orderings`, or an ensemble with its own.
        x: rows (N, D), complete.
        orderings: a (K, D) batch.
        folder: keep finished chunks here; a second call with the same model, rows, orderings and number of
            processes takes them from there. The folder must not be used for anything else. Machines need
            not share a disk.
        progress: called as progress(done, total) in units of row × ordering, this process's share of them.
        rows_at_once: how many (row, ordering) pairs to score together; None takes `Net.rows_at_once`.
        precision: "float32", "tf32" or "bf16" (see `pynade.precision`).

    Example:
        >>> import torch
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import MaskedMLP
        >>> deep = Orderless(MaskedMLP(3, hidden=(4,)), Bernoulli())
        >>> scores = score_orderings(deep, torch.eye(3), Ordering.random(3, k=5))
        >>> scores.log_probs.shape, len(scores.curve())
        ((3, 5), 5)
    """
    if orderings is None:
        if not isinstance(model, Ensemble):
            raise ValueError("an orderless model is scored under orderings: give a (K, D) batch of them")
        orderings = model.orderings
    if not orderings.is_batch:
        orderings = Ordering.trusted(orderings.order.unsqueeze(0))
    rows = torch.as_tensor(x)
    members = model.under(orderings) if isinstance(model, Ensemble) else model.ensemble(orderings)
    members.check(rows.to(model.device))
    n_rows, k = len(rows), len(orderings)
    if n_rows == 0:
        raise ValueError("there are no rows to score")
    rank, size = rank_and_size()
    limit = rows_at_once or members.net.rows_at_once(model.device)
    limit = min(limit, -(-n_rows * k // size))  # work for everyone
    row_step = min(n_rows, limit)
    group_step = max(1, limit // row_step)
    store = Chunks(folder, model, rows, orderings, precision) if folder is not None else None
    chunks = [
        Chunk(r, min(n_rows, r + row_step), g, min(k, g + group_step))
        for r in range(0, n_rows, row_step)
        for g in range(0, k, group_step)
    ]
    here = [] if store is None else [c for c in chunks if store.has(c)]
    owner: dict[Chunk, int] = {}  # of a finished chunk: the first process that has it on its disk
    for number, some in enumerate(gathered(here)):  # (no process writes before this)
        owner |= {chunk: number for chunk in some if chunk not in owner}
    missing = [c for c in chunks if c not in owner]
    kept = {c: store.get(c) for c in here if owner[c] == rank} if store is not None else {}
    mine = [*kept, *missing[rank::size]]
    total = sum(c.size for c in mine)

    out = np.zeros((n_rows, k))
    done = 0
    order = orderings.order.to(model.device)
    for chunk in mine:
        scores = kept.get(chunk)
        if scores is None:
            part = rows[chunk.rows].to(model.device)
            made = Rows(members.net, members.family, part).log_probs(order[chunk.orderings], precision)
            scores = made.cpu().numpy()
            if store is not None:
                store.put(chunk, scores)
        out[chunk.rows, chunk.orderings] = scores.T
        done += scores.size
        if progress is not None:
            progress(done, total)
    return OrderingScores(sum_over_processes(out))


def block_sampling_gap(
    model: Orderless,
    x: Tensor | np.ndarray,
    per_step: Sequence[int] = (1, 4, 16),
    generator: Generator | None = None,
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
