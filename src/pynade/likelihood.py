"""Log-likelihood of a data set: a number with its standard error, its n, and whether it is exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pynade.models import Density, Orderless
from pynade.ordering import random_observed
from pynade.precision import computing_in
from pynade.processes import process_slices, sum_over_processes

Array = Tensor | np.ndarray
Progress = Callable[[int, int], None]  # called as progress(done, total)
BATCH = 2000  # rows × prefixes computed at a time


@dataclass(frozen=True)
class Estimate:
    """Mean log-likelihood per row, in nats, and its accuracy.

    Attributes:
        mean: average over rows.
        stderr: standard error due to the finite number of rows.
        n: number of rows.
        exact: True if every row's log-probability is exact.
        mc_stderr: standard error due to drawn masks or orderings; zero when exact.

    Example:
        >>> print(Estimate.from_rows([-10.0, -12.0, -11.0]))
        -11.000 ± 0.577 nats (n = 3, exact)
    """

    mean: float
    stderr: float
    n: int
    exact: bool = True
    mc_stderr: float = 0.0

    @classmethod
    def from_rows(cls, log_probs: Any, row_variance: Any = None) -> Estimate:
        """The estimate from one log-probability per row.

        Args:
            log_probs: (N,), exact values or unbiased estimates.
            row_variance: (N,), the Monte-Carlo variance of each row's estimate; None means exact.
        """
        rows = np.asarray(log_probs, dtype=np.float64)
        n = len(rows)
        if n == 0:
            raise ValueError("a log-likelihood needs at least one row")
        stderr = float(rows.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
        if row_variance is None:
            return cls(float(rows.mean()), stderr, n)
        noise = math.sqrt(np.sum(row_variance, dtype=np.float64)) / n
        return cls(float(rows.mean()), stderr, n, exact=False, mc_stderr=noise)

    def to_json(self) -> dict[str, Any]:
        """Plain dictionary, as stored in result files; the standard error of one row is null."""
        return {k: None if v != v else v for k, v in asdict(self).items()}

    def __str__(self) -> str:
        kind = "exact" if self.exact else f"estimate, Monte-Carlo s.e. {self.mc_stderr:.3f}"
        return f"{self.mean:.3f} ± {self.stderr:.3f} nats (n = {self.n:,}, {kind})"


def limit_batch_rows(rows: int, model: Any, device: torch.device) -> int:
    """The number of rows of a batch, or fewer if the model's net needs too much memory for them."""
    net = getattr(model, "net", None)
    return rows if net is None or net.row_floats is None else min(rows, net.rows_at_once(device))


@torch.no_grad()
def row_log_probs(density: Density, x: Array, batch_size: int = 500) -> Tensor:
    """Exact log p of every row, float64 on the CPU, computed in batches on the density's device.

    Processes that torchrun started share the rows, and each returns all scores.

    Args:
        density: the model.
        x: rows (N, D), any numeric dtype.
        batch_size: rows of a batch; fewer if a net needs much memory for each.
    """
    rows = torch.as_tensor(x)
    scores = np.zeros(len(rows))
    for part in process_slices(len(rows)):
        batches = rows[part].split(limit_batch_rows(batch_size, density, density.device))
        log_p = [density.log_prob(batch.to(density.device)).double().cpu() for batch in batches]
        scores[part] = torch.cat(log_p).numpy()
    return torch.as_tensor(sum_over_processes(scores))


def log_likelihood(density: Density, x: Array, batch_size: int = 500) -> Estimate:
    """Exact mean log-likelihood of rows x under a density."""
    return Estimate.from_rows(row_log_probs(density, x, batch_size))


def orderless_estimate(
    model: Orderless,
    x: Array,
    draws: int = 4,
    seed: int = 0,
    batch_size: int | None = None,
    *,
    precision: str = "float32",
    progress: Progress | None = None,
) -> Estimate:
    """Stochastic estimate of the mean log-likelihood over rows and all orderings, with both standard errors.

    It is unbiased: each draw is minus the orderless loss of a new prefix, and costs one forward pass. The
    expected Monte-Carlo error is an upper bound, as the lengths of prefixes are stratified. The same seed
    gives the same prefixes, so that models (or epochs) are compared on the same prefixes.

    Args:
        model: the orderless model.
        x: rows (N, D); NaN = missing.
        draws: prefixes per row, at least 2.
        seed: of the prefixes.
        batch_size: rows × draws computed at a time; None: 2000, or fewer if the net needs much memory.
        precision: "float32", "tf32" or "bf16" (see `pynade.precision`).
        progress: called as progress(rows_done, rows).

    Example:
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import MaskedMLP
        >>> deep = Orderless(MaskedMLP(3, hidden=(4,)), Bernoulli())
        >>> deep.net.output.data.zero_().sum().item()  # fair coins: 3 log 2 for every prefix
        0.0
        >>> print(orderless_estimate(deep, torch.eye(3)))
        -2.079 ± 0.000 nats (n = 3, estimate, Monte-Carlo s.e. 0.000)
    """
    return Estimate.from_rows(*estimate_rows(model, x, draws, seed, batch_size, precision, progress))


@torch.no_grad()
def estimate_rows(
    model: Orderless, x: Array, draws: int, seed: int, batch_size: int | None, precision: str, progress: Any
) -> tuple[np.ndarray, np.ndarray]:
    """`orderless_estimate` for each row: estimates and their Monte-Carlo variances, both (N,)."""
    if draws < 2:
        raise ValueError(f"an estimate with a standard error needs at least 2 draws, not {draws}")
    if batch_size is None:
        batch_size = BATCH if model.net.row_floats is None else model.net.rows_at_once(model.device)
    rows = torch.as_tensor(x).to(model.device)
    rows = rows if rows.is_floating_point() else rows.to(model.dtype)
    out, done = np.zeros((2, len(rows))), 0
    for batch in draw_prefixes(rows, draws, seed, batch_size):
        n = len(batch[0]) // draws
        for share in process_slices(n):
            part, observed = (t.unflatten(0, (draws, n))[:, share].flatten(0, 1) for t in batch)
            with computing_in(precision, model.device):
                log_p = model.estimate(part, observed).view(draws, -1)
            place = slice(done + share.start, done + share.stop)
            out[:, place] = log_p.mean(0).cpu().numpy(), log_p.var(0).cpu().numpy() / draws
        done += n
        if progress is not None:
            progress(done, len(rows))
    means, variances = sum_over_processes(out)
    return means, variances


def draw_prefixes(
    x: Tensor, draws: int, seed: int, batch_size: int = BATCH
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of rows repeated `draws` times, and random prefixes of them, which depend on the seed."""
    generator = torch.Generator(x.device).manual_seed(seed)
    for part in x.split(max(1, batch_size // draws)):
        rows = part.repeat(draws, 1)
        exists = ~torch.isnan(rows)
        yield rows, random_observed(len(rows), x.shape[1], generator, exists=exists, device=x.device)
