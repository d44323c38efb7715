"""What binary densities with exact marginals share: their checks, and answers derived from two methods."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from pynade.families import Bernoulli, Family
from pynade.models.density import Marginalisable, check_columns

CHUNK_ROWS = 4096  # rows whose messages or responsibilities are held at once


class BinaryMarginalisable(Marginalisable):
    """Abstract density of D binary variables that says p(observed) and every p(x_i = 1 | observed).

    A subclass gives `_marginal` and `_logits_given` for a moderate number of rows, and `sample_given`;
    laws, best guesses and unconditional draws follow.
    """

    def __init__(self, n_variables: int) -> None:
        super().__init__()
        if n_variables < 1:
            raise ValueError(f"n_variables must be at least 1, not {n_variables}")
        self.n_variables = n_variables
        self.family = Bernoulli()

    @abstractmethod
    def _marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        """log p of the observed cells, (B,), float64; x is clean: zero where it is not observed."""

    @abstractmethod
    def _logits_given(self, x: Tensor, observed: Tensor) -> Tensor:
        """Logits (B, D) of p(x_i = 1 | observed cells), float64; anything where i is observed; x is clean."""

    def marginal_log_prob(self, x: Tensor, observed: Tensor) -> Tensor:
        """log p of the observed cells of each row, the others summed out: (B,), float64."""
        return torch.cat([self._marginal(*part) for part in self._parts(x, observed)])

    @torch.no_grad()
    def best_guess(self, x: Tensor, observed: Tensor) -> Tensor:
        """Rows with each unobserved cell at its likelier value given the observed ones: (B, D)."""
        guess = torch.cat([self._logits_given(*part) for part in self._parts(x, observed)]) > 0
        return torch.where(observed, x.to(self.dtype), guess.to(self.dtype))

    @torch.no_grad()
    def distribution(self, i: int, x: Tensor, observed: Tensor) -> tuple[Family, Tensor]:
        """p(x_i | observed cells): Bernoulli, and its logits (B, 1)."""
        logits = torch.cat([self._logits_given(*part)[:, i : i + 1] for part in self._parts(x, observed)])
        return self.family, logits

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n exact draws (n, D): completions of a row of which nothing is known."""
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

    def _parts(self, x: Tensor, observed: Tensor) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self._clean(x, observed).split(CHUNK_ROWS), observed.split(CHUNK_ROWS), strict=True))

    def _clean(self, x: Tensor, observed: Tensor) -> Tensor:
        return torch.where(observed, x, 0).to(self.dtype)


def bernoulli_draws(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """1 with probability sigm(logits), as float64 of the same shape."""
    p = torch.sigmoid(logits.double())
    uniform = torch.rand(p.shape, generator=generator, dtype=p.dtype, device=p.device)
    return (uniform < p).to(p.dtype)


def choose(log_weights: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """n indexes for each row of (unnormalised) log-weights (B, K), by inverting their sum: (n, B)."""
    edges = torch.softmax(log_weights.double(), -1).cumsum(-1)
    uniform = torch.rand(len(edges), n, generator=generator, dtype=edges.dtype, device=edges.device)
    index = torch.searchsorted(edges, uniform * edges[:, -1:], right=True)
    return index.clamp_(max=edges.shape[-1] - 1).T.contiguous()
