"""What binary densities with exact marginals share: their checks, and answers derived from two methods."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from pynade.arguments import check_positive
from pynade.classical.em import Array, Random
from pynade.families import Bernoulli, Family
from pynade.models.density import Marginalisable, check_columns

CHUNK_ROWS = 4096  # rows whose messages or responsibilities are held at once

Cells = tuple[Tensor, Tensor | None]  # binary rows, and which of their cells are observed; None is all


class BinaryMarginalisable(Marginalisable):
    """Abstract density of D binary variables that computes p(observed) and every p(x_i = 1 | observed).

    A subclass gives `_marginal`, `_logits_given` and `_draw_given`; everything else follows.
    """

    def __init__(self, n_variables: int) -> None:
        super().__init__()
        check_positive(n_variables=n_variables)
        self.n_variables = n_variables
        self.family = Bernoulli()

    @abstractmethod
    def _marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        """log p of the observed cells, (B,), float64; x is clean: zero where it is not observed."""

    @abstractmethod
    def _logits_given(self, x: Tensor, observed: Tensor) -> Tensor:
        """Logits (B, D) of p(x_i = 1 | observed cells), float64; anything where i is observed; x is clean."""

    @abstractmethod
    def _draw_given(self, x: Tensor, observed: Tensor, n: int, generator: Random) -> Tensor:
        """Rows (n, B, D) of which the unobserved cells are drawn; x is clean."""

    def marginal_log_prob(self, x: Tensor, observed: Tensor) -> Tensor:
        """log p of the observed cells of each row, the others summed out: (B,), float64."""
        return self._by_parts(self._marginal, x, observed)

    @torch.no_grad()
    def best_guess(self, x: Tensor, observed: Tensor) -> Tensor:
        """Rows with each unobserved cell at its likelier value given the observed ones: (B, D)."""
        guess = self._by_parts(self._logits_given, x, observed) > 0
        return torch.where(observed, x.to(self.dtype), guess.to(self.dtype))

    @torch.no_grad()
    def distribution(self, i: int, x: Tensor, observed: Tensor) -> tuple[Family, Tensor]:
        """p(x_i | observed cells): Bernoulli, and its logits (B, 1)."""
        one = self._by_parts(lambda *part: self._logits_given(*part)[:, i : i + 1], x, observed)
        return self.family, one

    @torch.no_grad()
    def sample_given(self, x: Tensor, observed: Tensor, n: int = 1, generator: Random = None) -> Tensor:
        """n exact joint draws of the unobserved cells of each row: (n, B, D)."""
        return self._draw_given(self._clean(x, observed), observed, n, generator)

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """n exact draws (n, D): completions of a row without observed cells."""
        nothing = torch.zeros(1, self.n_variables, dtype=self.dtype, device=self.device)
        if n == 0:
            return nothing[:0]
        return self.sample_given(nothing, torch.zeros_like(nothing, dtype=torch.bool), n, generator)[:, 0]

    def check(self, x: Tensor) -> None:
        """Columns must match, values must be exactly 0 or 1."""
        check_columns(x, self.n_variables)
        self.family.check(x)

    def check_cells(self, x: Tensor, observed: Tensor) -> None:
        """Observed cells must be exactly 0 or 1."""
        check_columns(x, self.n_variables)
        self.family.check(torch.where(observed, x, 0))

    def _by_parts(self, function: Callable[..., Tensor], x: Tensor, observed: Tensor) -> Tensor:
        """What `function` gives for clean rows and observed cells, some rows at a time."""
        parts = (t.split(CHUNK_ROWS) for t in (self._clean(x, observed), observed))
        return torch.cat([function(*part) for part in zip(*parts, strict=True)])

    def _clean(self, x: Tensor, observed: Tensor) -> Tensor:
        return torch.where(observed, x, 0).to(self.dtype)


class BinaryMixture(BinaryMarginalisable):
    """Abstract mixture of K binary densities; its weights are the softmax of `log_weights` (K,)."""

    n_components: int
    log_weights: Tensor

    @abstractmethod
    def component_log_probs(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """log w_k + log p_k(observed cells), (B, K), float64; x is clean, `observed` None means all."""

    def _log_prob(self, x: Tensor) -> Tensor:
        return torch.logsumexp(self.component_log_probs(x), -1)

    def _marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        return torch.logsumexp(self.component_log_probs(x, observed), -1)


def bernoulli_draws(logits: Tensor, generator: Random) -> Tensor:
    """1 with probability sigm(logits), as float64 of the same shape."""
    p = torch.sigmoid(logits.double())
    uniform = torch.rand(p.shape, generator=generator, dtype=p.dtype, device=p.device)
    return (uniform < p).to(p.dtype)


def choose(log_weights: Tensor, n: int, generator: Random) -> Tensor:
    """n indexes for each row of (unnormalised) log-weights (B, K), by inverting their sum: (n, B)."""
    edges = torch.softmax(log_weights.double(), -1).cumsum(-1)
    uniform = torch.rand(len(edges), n, generator=generator, dtype=edges.dtype, device=edges.device)
    index = torch.searchsorted(edges, uniform * edges[:, -1:], right=True)
    return index.clamp_(max=edges.shape[-1] - 1).T.contiguous()


def binary_rows(
    x: Array, valid: Array | None = None, n_variables: int | None = None, missing: bool = False
) -> tuple[Cells, Cells | None]:
    """Training rows, and validation rows on the same device, as uint8; `missing`: whether NaN is allowed."""
    train = _cells(x, "training", n_variables, missing)
    if valid is None:
        return train, None
    valid = torch.as_tensor(valid, device=train[0].device)
    return train, _cells(valid, "validation", train[0].shape[1], missing)


def _cells(x: Array, word: str, n_variables: int | None, missing: bool) -> Cells:
    rows = torch.as_tensor(x)
    if rows.ndim != 2 or not rows.numel():
        raise ValueError(f"{word} rows have shape (N, D) with at least one row, not {tuple(rows.shape)}")
    if n_variables is not None and rows.shape[1] != n_variables:
        raise ValueError(f"{word} rows have {rows.shape[1]} columns, the model has {n_variables} variables")
    observed = ~torch.isnan(rows)
    complete = bool(observed.all())
    if not (complete or missing):
        raise ValueError(f"{word} rows have missing values (NaN), which this method cannot use")
    values = rows if complete else torch.where(observed, rows, 0)
    if not bool(((values == 0) | (values == 1)).all()):
        raise ValueError(f"{word} rows must hold values that are exactly 0 or 1")
    return values.to(torch.uint8), None if complete else observed
