"""Exact log-likelihoods of all estimators, and under many orderings in chunks that are stored on disk.

A net without a cheap step (`MaskedConv`, `UNet`, `Transformer`) needs D forward passes of every row for each
ordering; for data sets for which that takes too long there is `control_variate_ensemble`.
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
from pynade.likelihood import Estimate, Progress, estimate_rows, limit_batch_rows
from pynade.models import Ensemble, Marginalisable, Orderless, Rows
from pynade.ordering import Ordering
from pynade.precision import fast_matmul
from pynade.processes import gather_values, rank_and_size, sum_over_processes
from pynade.queries import marginal_log_prob
from pynade.store import describe, read_tensors, write_tensors

Chunk = tuple[int, int, int, int]  # rows first … last - 1 under orderings k_first … k_last - 1


@torch.no_grad()
def exact_scores(model: Any, rows: np.ndarray, orderings: int | Ordering = 1) -> np.ndarray:
    """Exact log p of each row in nats, (N, D) -> (N,): the scores of all estimators.

    Missing cells (NaN) are marginalised; for an orderless model, along the same orderings with the observed
    cells moved to the front. Complete rows without a finite score in float32 are scored again in float64.

    Args:
        model: a density or an orderless model; its device and type are those of the computation.
        rows: the rows.
        orderings: of an orderless model: the (K, D) batch whose ensemble is scored; of other models: 1.
    """
    out, complete, device = np.empty(len(rows)), ~np.isnan(rows).any(1), model.device
    complete_rows, incomplete_rows = torch.as_tensor(rows[complete]), torch.as_tensor(rows[~complete])
    with fast_matmul() if isinstance(model, Orderless) else nullcontext():
        if len(complete_rows) and isinstance(orderings, Ordering):
            members, chunks = _prepare(model, complete_rows, orderings)  # less overhead than score_orderings
            scores, (rank, size) = np.zeros((len(complete_rows), len(orderings))), rank_and_size()
            for first, last, k_first, k_last in chunks[rank::size]:
                part = Rows(members.net, members.family, complete_rows[first:last].to(device))
                scores[first:last, k_first:k_last] = part.log_probs(members.order[k_first:k_last]).cpu().T
            out[complete] = OrderingScores(sum_over_processes(scores)).ensemble_rows()
        elif len(complete_rows):
            n_rows = 20_000 if device.type == "cuda" else 4096 if isinstance(model, Marginalisable) else 500
            parts = []
            for part in complete_rows.split(limit_batch_rows(n_rows, model, device)):
                x = part.to(device)
                model.check(x)
                parts.append(model._log_prob(model._to_dtype(x)).double().cpu())
            out[complete] = torch.cat(parts)
            not_finite = complete & ~np.isfinite(out)
            if not_finite.any() and model.dtype != torch.float64:
                out[not_finite] = exact_scores(copy.deepcopy(model).double(), rows[not_finite])
        if len(incomplete_rows):
            batches = incomplete_rows.to(device, model.dtype).split(query_rows_at_once(model, orderings))
            parts = [marginal_log_prob(model, x, ~torch.isnan(x), orderings=orderings).cpu() for x in batches]
            out[~complete] = torch.cat(parts)
    if (is_nan := np.isnan(out)).any():
        raise ValueError(f"row {is_nan.argmax()} has no score: its values are too far from those of training")
    return out


def query_rows_at_once(model: Any, orderings: int | Ordering, n: int = 1) -> int:
    """The number of rows that a query computes at a time, with n draws of each."""
    if hasattr(model, "order"):
        return 10**9  # no limit: a model with its own orderings divides the rows itself
    limit = model.net.rows_at_once(model.device) if isinstance(model, Orderless) else 2000
    return max(1, min(2000, limit) // (n * (1 if isinstance(orderings, int) else len(orderings))))


@dataclass(frozen=True)
class OrderingScores:
    """log p(x_n | ordering k) for every row and ordering, and summaries of them."""

    log_probs: np.ndarray  # (N, K), exact
    folder: Path | None = None  # of the stored chunks

    def mean(self) -> Estimate:
        """The expected log-likelihood of a single ordering: the mean over rows and orderings."""
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
        """Mean log-likelihood under each ordering, (K,): how much it varies with the ordering."""
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

    Nets compute in `precision` on a GPU; log-probabilities are at least float32, their sums float64.
    Processes that torchrun started share the work, and each returns all results.

    Args:
        model: an orderless model with `orderings`, or an ensemble with its own.
        x: rows (N, D), complete.
        orderings: a (K, D) batch.
        folder: store finished chunks in a folder with this name and a digest of model, rows and orderings,
            from which a second call with the same arguments and number of processes reads them. Nothing is
            stored while another process uses it, or if it cannot be written. Machines need no common disk.
        progress: called as progress(done, total) in units of row × ordering, of this process's share.
        rows_at_once: the number of (row, ordering) pairs to score together; None: `Net.rows_at_once`.
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
    members, chunks = _prepare(model, rows, orderings, rows_at_once)
    with _open_chunk_folder(folder, model, rows, orderings, precision) as path:
        files = {} if path is None else {c: path / f"{'_'.join(map(str, c))}.safetensors" for c in chunks}
        stored = {c: scores for c, file in files.items() if (scores := _read_chunk(file)) is not None}
        owner: dict[Chunk, int] = {}  # the first process that has a finished chunk on its disk
        for process, finished in enumerate(gather_values(list(stored))):  # (no process writes before this)
            owner = dict.fromkeys(finished, process) | owner
        own_chunks = [c for c in chunks if owner.get(c) == rank]
        own_chunks += [c for c in chunks if c not in owner][rank::size]
        total = sum((last - first) * (k_last - k_first) for first, last, k_first, k_last in own_chunks)
        out, done = np.zeros((len(rows), len(orderings))), 0
        for chunk in own_chunks:
            n, k = slice(*chunk[:2]), slice(*chunk[2:])
            if chunk in owner:
                scores = stored[chunk]
            else:
                part = Rows(members.net, members.family, rows[n].to(model.device))
                scores = part.log_probs(members.order[k], precision).cpu()
                if chunk in files:
                    write_tensors(files[chunk], {"scores": scores}, {"chunk": "{}"})
            out[n, k] = scores.T
            done += scores.numel()
            if progress is not None:
                progress(done, total)
        return OrderingScores(sum_over_processes(out), path)


def _prepare(
    model: Any, rows: Tensor, orderings: Ordering, rows_at_once: int | None = None
) -> tuple[Ensemble, list[Chunk]]:
    """The ensemble of these orderings, and the chunks of work; raises a ValueError for invalid rows."""
    members = model.under(orderings) if isinstance(model, Ensemble) else model.ensemble(orderings)
    members.check(rows.to(model.device))
    n, k = len(rows), len(orderings)
    if n == 0:
        raise ValueError("there are no rows to score")
    share = -(-n * k // rank_and_size()[1])  # (row, ordering) pairs of a process
    pairs = min(share, rows_at_once or members.net.rows_at_once(model.device))
    row_step, ordering_step = min(n, pairs), pairs // min(n, pairs)
    groups = [(g, min(k, g + ordering_step)) for g in range(0, k, ordering_step)]
    return members, [(r, min(n, r + row_step), *group) for r in range(0, n, row_step) for group in groups]


@contextmanager
def _open_chunk_folder(
    folder: Path | str | None, model: Any, rows: Tensor, orderings: Ordering, precision: str
) -> Iterator[Path | None]:
    """The folder of stored chunks, whose name is a digest of all arguments; None if it cannot be used."""
    if folder is None:
        yield None
        return
    facts = [__version__, describe(model), list(rows.shape), str(rows.dtype), precision, model.device.type]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for name, tensor in [*sorted(model.state_dict().items()), ("", rows), ("", orderings.order)]:
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    path, available = Path(f"{folder}-{digest.hexdigest()[:32]}"), True
    with ExitStack() as stack:
        if rank_and_size()[0] == 0:  # it holds the lock for all processes
            try:
                path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(sole_writer(path, wait=0))
            except (InUse, OSError):  # (not writable, or just being removed)
                available = False
        if available := gather_values(available)[0]:
            path.mkdir(parents=True, exist_ok=True)  # (machines may have their own disks)
        yield path if available else None


def _read_chunk(file: Path) -> Tensor | None:
    """The stored scores of a chunk; None if there are none or the file is damaged."""
    with suppress(OSError, ValueError):
        return read_tensors(file, "chunk", "chunk of scores")[0]["scores"]
    return None


@dataclass(frozen=True)
class ControlVariateEnsemble:
    """The log-likelihood of an ensemble on all rows, and the numbers from which it is computed."""

    typical: Estimate  # stochastic estimate of the mean over orderings, on all rows
    subset: OrderingScores  # exact scores of the rows of the subset
    subset_estimate: Estimate  # stochastic estimate of the mean over orderings, on the subset
    estimates: np.ndarray  # stochastic estimate of each row of the subset, (m,)
    every: int  # the subset is every n-th row

    @property
    def ensemble(self) -> Estimate:
        """The log-likelihood of the ensemble of all orderings on all rows, see `of`."""
        return self.of()

    def of(self, k: int | None = None) -> Estimate:
        """The ensemble of the first k orderings (all by default) on all rows, with a total `stderr`."""
        return self._add_correction(self.correction(k), k)

    def _add_correction(self, difference: Estimate, k: int | None = None, *errors: float) -> Estimate:
        """The estimate on all rows plus a mean over the subset; `errors`: further standard errors."""
        exact, n = self.subset.ensemble_rows(k), self.typical.n
        noise = math.hypot(difference.stderr * math.sqrt(1 - len(exact) / n), *errors)
        stderr = math.hypot(exact.std(ddof=1) / math.sqrt(n), noise)
        return Estimate(self.typical.mean + difference.mean, stderr, n, exact=False, mc_stderr=noise)

    def correction(self, k: int | None = None) -> Estimate:
        """Exact ensemble minus estimate, over the rows of the subset."""
        return Estimate.from_rows(self.subset.ensemble_rows(k) - self.estimates)

    def by_exact_means(self) -> Estimate:
        """A second estimate: the one on all rows plus the ensemble's gain over the mean of its members.

        It takes the K orderings as a sample of all; the standard error of their mean is part of `mc_stderr`.
        """
        gain = Estimate.from_rows(self.subset.ensemble_rows() - self.subset.log_probs.mean(1))
        ordering_error = Estimate.from_rows(self.subset.ordering_means()).stderr
        return self._add_correction(gain, None, self.typical.mc_stderr, ordering_error)

    def to_json(self, split: str = "rows") -> dict[str, Any]:
        """The parts of the estimate, as stored in records."""
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
    """Log-likelihood of the ensemble of K orderings on all rows, with exact scores of a subset only.

    A stochastic estimate s of the mean over orderings is computed for all N rows, the exact ensemble e for
    the subset x[::every] of m rows. The result is mean(s) + mean(e - s), where the second mean is over the
    subset. As e and s vary together from row to row, e - s has a small standard deviation σ; it contributes a
    standard error of σ sqrt(1/m - 1/N). The result is unbiased for rows in random order.

    Args:
        model: the orderless model.
        x, orderings, precision: as for `score_orderings`.
        every: the subset has every n-th row.
        draws, seed: prefixes per row of the estimate, and their seed.
        folder, progress: of the exact scores, see `score_orderings`.

    Example:
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import MaskedMLP
        >>> deep = Orderless(MaskedMLP(3, hidden=(4,)), Bernoulli())
        >>> rows = torch.eye(3).repeat(20, 1)
        >>> result = control_variate_ensemble(deep, rows, Ordering.random(3, k=4))
        >>> result.ensemble.n, result.of(2).exact
        (60, False)
    """
    check_positive(every=every)
    rows = torch.as_tensor(x)
    subset = rows[::every]
    if len(subset) < 2:
        raise ValueError(f"every={every} leaves {len(subset)} of {len(rows)} rows; at least 2 are needed")
    exact = score_orderings(model, subset, orderings, folder=folder, progress=progress, precision=precision)
    means, variances = estimate_rows(model, rows, draws, seed, None, precision, None)
    estimates = means[::every]
    subset_estimate = Estimate.from_rows(estimates, variances[::every])
    typical = Estimate.from_rows(means, variances)
    return ControlVariateEnsemble(typical, exact, subset_estimate, estimates, every)
