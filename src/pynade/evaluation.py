"""Exact log-likelihoods: of all estimators, and under many orderings in chunks that survive a kill.

A net that runs as a whole at every step (`MaskedConv`, `UNet`, `Transformer`) costs D passes of every row for
each ordering; `control_variate_ensemble` is for data sets where that is too much.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pynade._version import __version__
from pynade.arguments import check_positive
from pynade.atomic import InUse, sole_writer
from pynade.likelihood import Estimate, Progress, at_most, orderless_rows
from pynade.models import Ensemble, Marginalisable, Orderless, Rows
from pynade.ordering import Ordering
from pynade.precision import fast_matmul
from pynade.processes import gathered, rank_and_size, sum_over_processes
from pynade.queries import marginal_log_prob
from pynade.store import describe, read_tensors, write_tensors

Chunk = tuple[int, int, int, int]  # rows first … last - 1 under orderings from … to - 1


@torch.no_grad()
def exact_scores(model: Any, rows: np.ndarray, orderings: int | Ordering = 1) -> np.ndarray:
    """Exact log p of each row in nats, (N, D) -> (N,): the scores of all estimators.

    The missing cells (NaN) of a row are marginalised, for an orderless model along the same orderings with
    the row's observed cells moved to the front. Complete rows that have no finite score in float32 are scored
    again in float64.

    Args:
        model: a density or an orderless model; its device and type are those of the computation.
        rows: the rows.
        orderings: a (K, D) batch, whose ensemble is scored, for a model that has none of its own; else 1.
    """
    out, complete, device = np.empty(len(rows)), ~np.isnan(rows).any(1), model.device
    whole, gaps = torch.as_tensor(rows[complete]), torch.as_tensor(rows[~complete])
    with fast_matmul() if isinstance(model, Orderless) else nullcontext():
        if len(whole) and isinstance(orderings, Ordering):
            members, chunks = _prepared(model, whole, orderings)  # fewer calls than score_orderings takes
            scores, (rank, size) = np.zeros((len(whole), len(orderings))), rank_and_size()
            for first, last, from_, to in chunks[rank::size]:
                part = Rows(members.net, members.family, whole[first:last].to(device))
                scores[first:last, from_:to] = part.log_probs(members.order[from_:to]).cpu().T
            out[complete] = OrderingScores(sum_over_processes(scores)).ensemble_rows()
        elif len(whole):
            at_once = 20_000 if device.type == "cuda" else 4096 if isinstance(model, Marginalisable) else 500
            parts = []
            for part in whole.split(at_most(at_once, model, device)):
                x = part.to(device)
                model.check(x)
                parts.append(model._log_prob(model._to_dtype(x)).double().cpu())
            out[complete] = torch.cat(parts)
            lost = complete & ~np.isfinite(out)
            if lost.any() and model.dtype != torch.float64:
                out[lost] = exact_scores(copy.deepcopy(model).double(), rows[lost])
        if len(gaps):
            split = gaps.to(device, model.dtype).split(query_rows_at_once(model, orderings))
            parts = [marginal_log_prob(model, x, ~torch.isnan(x), orderings=orderings).cpu() for x in split]
            out[~complete] = torch.cat(parts)
    if (lost := np.isnan(out)).any():
        raise ValueError(f"row {lost.argmax()} has no score: its values are too far from those of training")
    return out


def query_rows_at_once(model: Any, orderings: int | Ordering, n: int = 1) -> int:
    """How many rows a query takes at a time, with n draws of each."""
    if hasattr(model, "order"):
        return 10**9  # along its own orderings it cuts the rows itself
    room = model.net.rows_at_once(model.device) if isinstance(model, Orderless) else 2000
    return max(1, min(2000, room) // (n * (1 if isinstance(orderings, int) else len(orderings))))


@dataclass(frozen=True)
class OrderingScores:
    """log p(x_n | ordering k) for every row and ordering, and what follows from it."""

    log_probs: np.ndarray  # (N, K), exact
    folder: Path | None = None  # where its chunks were kept

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
    progress: Progress | None = None,
    rows_at_once: int | None = None,
    precision: str = "float32",
) -> OrderingScores:
    """Exact log p of every row under every ordering.

    Nets may round on a GPU (`precision`); log-probabilities are float32 or better, their sums float64.
    Processes that torchrun started share the work, and all of them return all of it.

    Args:
        model: an orderless model with `orderings`, or an ensemble with its own.
        x: rows (N, D), complete.
        orderings: a (K, D) batch.
        folder: keep finished chunks in the folder of this name and a digest of model, rows and orderings; a
            second call with the same ones and as many processes takes them from there. While another
            process has it, or nothing can be written, none are kept. Machines need not share a disk.
        progress: called as progress(done, total) in units of row × ordering, this process's share of them.
        rows_at_once: how many (row, ordering) pairs to score together; None takes `Net.rows_at_once`.
        precision: "float32", "tf32" or "bf16" (see `pynade.precision`).

    Example:
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
    orderings = orderings if orderings.is_batch else orderings.rows(1)
    rows, (rank, size) = torch.as_tensor(x), rank_and_size()
    members, chunks = _prepared(model, rows, orderings, rows_at_once)
    with _place(folder, model, rows, orderings, precision) as place:
        files = {} if place is None else {c: place / f"{'_'.join(map(str, c))}.safetensors" for c in chunks}
        found = {c: scores for c, file in files.items() if (scores := _read(file)) is not None}
        owner: dict[Chunk, int] = {}  # of a finished chunk: the first process that has it on its disk
        for number, some in enumerate(gathered(list(found))):
            owner = dict.fromkeys(some, number) | owner  # (no process writes before this)
        mine = [c for c in chunks if owner.get(c) == rank] + [c for c in chunks if c not in owner][rank::size]
        total = sum((last - first) * (to - from_) for first, last, from_, to in mine)
        out, done = np.zeros((len(rows), len(orderings))), 0
        for chunk in mine:
            n, k = slice(*chunk[:2]), slice(*chunk[2:])
            if chunk in owner:
                scores = found[chunk]
            else:
                part = Rows(members.net, members.family, rows[n].to(model.device))
                scores = part.log_probs(members.order[k], precision).cpu()
                if chunk in files:
                    write_tensors(files[chunk], {"scores": scores}, {"chunk": "{}"})
            out[n, k] = scores.T
            done += scores.numel()
            if progress is not None:
                progress(done, total)
        return OrderingScores(sum_over_processes(out), place)


def _prepared(
    model: Any, rows: Tensor, orderings: Ordering, rows_at_once: int | None = None
) -> tuple[Ensemble, list[Chunk]]:
    """The ensemble of these orderings, its rows checked, and the chunks in which they are scored."""
    members = model.under(orderings) if isinstance(model, Ensemble) else model.ensemble(orderings)
    members.check(rows.to(model.device))
    n, k = len(rows), len(orderings)
    if n == 0:
        raise ValueError("there are no rows to score")
    share = -(-n * k // rank_and_size()[1])  # work for every process
    most = min(share, rows_at_once or members.net.rows_at_once(model.device))
    step, together = min(n, most), most // min(n, most)
    groups = [(g, min(k, g + together)) for g in range(0, k, together)]
    return members, [(r, min(n, r + step), *group) for r in range(0, n, step) for group in groups]


@contextmanager
def _place(
    folder: Path | str | None, model: Any, rows: Tensor, orderings: Ordering, precision: str
) -> Iterator[Path | None]:
    """The folder of chunks, named after all that they depend on; None while it is another process's."""
    if folder is None:
        yield None
        return
    facts = [__version__, describe(model), list(rows.shape), str(rows.dtype), precision, model.device.type]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for name, tensor in [*sorted(model.state_dict().items()), ("", rows), ("", orderings.order)]:
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    place, free = Path(f"{folder}-{digest.hexdigest()[:32]}"), True
    with ExitStack() as held:
        if rank_and_size()[0] == 0:  # whose lock is that of all
            try:
                place.mkdir(parents=True, exist_ok=True)
                held.enter_context(sole_writer(place, wait=0))
            except (InUse, OSError):  # (which cannot be written to, or is just being removed)
                free = False
        if free := gathered(free)[0]:
            place.mkdir(parents=True, exist_ok=True)  # of machines with disks of their own
        yield place if free else None


def _read(file: Path) -> Tensor | None:
    """The scores of a chunk; None if there are none, or other ones than were written."""
    with suppress(OSError, ValueError):
        return read_tensors(file, "chunk", "chunk of scores")[0]["scores"]
    return None


@dataclass(frozen=True)
class ControlVariateEnsemble:
    """The log-likelihood of an ensemble on all rows, and what it is made of."""

    typical: Estimate  # of the mean over orderings (the typical single ordering) on all rows
    subset: OrderingScores  # the exact scores of the rows of the subset
    subset_estimate: Estimate  # of the mean over orderings on the subset alone
    estimates: np.ndarray  # the stochastic estimate of each row of the subset, (m,)
    every: int  # the subset is every n-th row

    @property
    def ensemble(self) -> Estimate:
        """The ensemble of all orderings on all rows, see `of`."""
        return self.of()

    def of(self, k: int | None = None) -> Estimate:
        """The ensemble of the first k orderings (all by default) on all rows; `stderr` has both errors."""
        return self._plus(self.correction(k), k)

    def _plus(self, gap: Estimate, k: int | None = None, *others: float) -> Estimate:
        """The estimate on all rows plus a mean over the subset; others: further sources of noise."""
        exact, n = self.subset.ensemble_rows(k), self.typical.n
        noise = math.hypot(gap.stderr * math.sqrt(1 - len(exact) / n), *others)
        stderr = math.hypot(exact.std(ddof=1) / math.sqrt(n), noise)
        return Estimate(self.typical.mean + gap.mean, stderr, n, exact=False, mc_stderr=noise)

    def correction(self, k: int | None = None) -> Estimate:
        """Exact ensemble less estimate, over the rows of the subset."""
        return Estimate.from_rows(self.subset.ensemble_rows(k) - self.estimates)

    def by_exact_means(self) -> Estimate:
        """Another estimate: that on all rows plus what the ensemble gains over its mean member.

        The K orderings stand for all of them, whose spread is part of `mc_stderr`.
        """
        gain = Estimate.from_rows(self.subset.ensemble_rows() - self.subset.log_probs.mean(1))
        spread = Estimate.from_rows(self.subset.ordering_means()).stderr
        return self._plus(gain, None, self.typical.mc_stderr, spread)

    def to_json(self, split: str = "rows") -> dict[str, Any]:
        """How the number is composed, as in a record."""
        correction = self.correction()
        return {
            "rule": "estimate on all rows + correction; correction = exact ensemble - estimate on the subset",
            "subset": f"{split}[::{self.every}]",
            "exact_ensemble_on_subset": self.subset.ensemble().to_json(),
            "exact_mean_over_orderings_on_subset": self.subset.mean().to_json(),
            "estimate_on_subset": self.subset_estimate.to_json(),
            "estimate_on_all_rows": self.typical.to_json(),
            "correction": {"mean": correction.mean, "stderr": correction.stderr, "n": correction.n},
            "second_opinion": self.by_exact_means().to_json()
            | {"rule": "estimate on all rows + (exact ensemble - exact mean over orderings) on the subset"},
        }


def control_variate_ensemble(
    model: Orderless,
    x: Tensor | np.ndarray,
    orderings: Ordering,
    *,
    every: int = 10,
    draws: int = 16,
    seed: int = 0,
    precision: str = "float32",
    folder: Path | str | None = None,
    progress: Progress | None = None,
) -> ControlVariateEnsemble:
    """Log-likelihood of the ensemble of K orderings on all rows, exact only on every tenth.

    The stochastic estimate s of the mean over orderings is made for all N rows, the exact ensemble e for the
    subset x[::every], of m rows. The number is mean(s) + mean(e - s), the second mean over the subset. What
    varies from row to row in e is mostly in s as well, so the difference has a small spread σ, and the error
    left is σ sqrt(1/m - 1/N). Unbiased for rows in no particular order.

    Args:
        model: the orderless model.
        x, orderings, precision: as for `score_orderings`.
        every: take every n-th row into the subset.
        draws, seed: prefixes per row of the estimate, and what decides them.
        folder, progress: of the exact part, see `score_orderings`.

    Example:
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import MaskedMLP
        >>> deep = Orderless(MaskedMLP(3, hidden=(4,)), Bernoulli())
        >>> rows = torch.eye(3).repeat(20, 1)
        >>> made = control_variate_ensemble(deep, rows, Ordering.random(3, k=4))
        >>> made.ensemble.n, made.of(2).exact
        (60, False)
    """
    check_positive(every=every)
    rows = torch.as_tensor(x)
    subset = rows[::every]
    if len(subset) < 2:
        raise ValueError(f"every={every} leaves {len(subset)} of {len(rows)} rows; at least 2 are needed")
    exact = score_orderings(model, subset, orderings, folder=folder, progress=progress, precision=precision)
    means, variances = orderless_rows(model, rows, draws, seed, None, precision, None)
    here = means[::every]
    typical, on_subset = Estimate.from_rows(means, variances), Estimate.from_rows(here, variances[::every])
    return ControlVariateEnsemble(typical, exact, on_subset, here, every)
