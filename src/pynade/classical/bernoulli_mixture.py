"""Mixtures of multivariate Bernoullis (the paper's MoB)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.classical.binary import BinaryMixture, bernoulli_draws, binary_rows, choose
from pynade.classical.em import BinaryEM, log_odds_prior, run_em
from pynade.training.checkpoint import Checkpoint
from pynade.training.history import History
from pynade.training.loop import Callback, Stopping

CHUNK = 2**24  # values of a (rows, K) or (rows, D) block: 64 MiB in float32


class BernoulliMixture(BinaryMixture):
    """p(x) = Σ_k w_k Π_d θ_kd^x_d (1 − θ_kd)^(1−x_d).

    Weights are the softmax of `log_weights` (K,), θ the sigmoid of `logits` (K, D), so every value of the
    parameters is a density. `em_bernoulli` fits one; a new one has K equal, fair components.

    Args:
        n_variables: D.
        n_components: K.

    Example:
        >>> import torch
        >>> model = BernoulliMixture(2, 3)
        >>> round(model.log_prob(torch.tensor([[0.0, 1.0]])).exp().item(), 6)
        0.25
    """

    def __init__(self, n_variables: int, n_components: int) -> None:
        super().__init__(n_variables)
        if n_components < 1:
            raise ValueError(f"n_components must be at least 1, not {n_components}")
        self.n_components = n_components
        self.log_weights = nn.Parameter(torch.zeros(n_components))
        self.logits = nn.Parameter(torch.zeros(n_components, n_variables))

    def component_log_probs(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """log w_k + log p_k(observed cells), (B, K), float64; one matrix product, two with missing cells."""
        ones = (x @ self.logits.T).double()
        nothing = functional.logsigmoid(-self.logits)  # log p_k(x_d = 0)
        if observed is None:
            rest = nothing.sum(-1, dtype=torch.float64)
        else:
            rest = (observed.to(x.dtype) @ nothing.T).double()
        return ones + rest + torch.log_softmax(self.log_weights.double(), 0)

    def _logits_given(self, x: Tensor, observed: Tensor) -> Tensor:
        weights = torch.softmax(self.component_log_probs(x, observed), -1)
        logits = self.logits.double()
        one, zero = (_log_average(weights, functional.logsigmoid(s * logits)) for s in (1, -1))
        return one - zero

    @torch.no_grad()
    def sample_given(
        self, x: Tensor, observed: Tensor, n: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """A component from its posterior, then the unobserved cells from it: (n, B, D)."""
        x = self._clean(x, observed)
        component = choose(self.component_log_probs(x, observed), n, generator)  # (n, B)
        drawn = bernoulli_draws(self.logits[component], generator)
        return torch.where(observed, x, drawn.to(x.dtype))

    def config(self) -> dict[str, Any]:
        """Constructor arguments."""
        return {"n_variables": self.n_variables, "n_components": self.n_components}


def _log_average(weights: Tensor, log_p: Tensor) -> Tensor:
    """log Σ_k w_bk p_kd as a matrix product, each column scaled so that tiny probabilities survive."""
    largest = log_p.max(0).values
    return (weights @ (log_p - largest).exp()).log() + largest


@torch.no_grad()
def em_bernoulli(
    x: Tensor | np.ndarray,
    n_components: int,
    valid: Tensor | np.ndarray | None = None,
    *,
    epochs: int = 201,
    patience: int | None = 10,
    tol: float = 1e-6,
    smoothing: float = 0.1,
    empty_below: float = 1e-3,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoint | None = None,
) -> tuple[BernoulliMixture, History]:
    """Fit a `BernoulliMixture` by EM, on the device of the rows; validation rows stop it early.

    Never decreases Σ_n log p(x_n) + s Σ_k (log w_k + Σ_d (log θ_kd + log(1 − θ_kd))), s being `smoothing`
    (`objective` in the history, per row). Missing cells (NaN) are integrated out exactly in both steps.

    Args:
        x: training rows (N, D), values exactly 0 or 1.
        n_components: K.
        valid: validation rows, scored at every iteration; the best parameters are returned.
        epochs: iterations at most, one more than M-steps.
        patience: iterations without a better validation score before stopping; None never stops so.
        tol: stop when the objective rises by less, in nats per row; 0 never stops so.
        smoothing: pseudo-counts s > 0 of each outcome; tiny values (1e-20) come near maximum likelihood.
        empty_below: a component that explains fewer rows than this is placed again (once), at a row that
            the mixture explains worst; `history.messages` says so.
        generator: chooses the rows from which components start.
        dtype: of the parameters and products; sums are in float64.
        callbacks: called with a `Progress` after each iteration; one that returns True ends EM.
        checkpoint: keeps the state, and gives it back where an interrupted EM goes on.

    Example:
        >>> import torch
        >>> x = torch.tensor([[0, 0, 0], [1, 1, 1]]).repeat(50, 1)
        >>> model, history = em_bernoulli(x, 2, generator=torch.Generator().manual_seed(0))
        >>> bool(model.log_prob(x).mean() > -0.75)  # the entropy is log 2 = 0.693
        True
    """
    if not smoothing > 0:
        raise ValueError(f"smoothing must be above 0 (a tiny value is as good as none), not {smoothing}")
    train = binary_rows(x, "training", missing=True)
    device, D = train[0].device, train[0].shape[1]
    held = None if valid is None else binary_rows(valid, "validation", D, missing=True, device=device)
    model = BernoulliMixture(D, n_components).to(device, dtype)
    learner = _BernoulliEM(model, train, held, smoothing, empty_below, Stopping(patience, tol or None))
    learner.start(generator)
    (history,) = run_em(learner, epochs, callbacks, checkpoint)
    return model, history


class _BernoulliEM(BinaryEM):
    mixture: BernoulliMixture

    def start(self, generator: torch.Generator | None) -> None:
        """Components half-way between the marginals and rows chosen at random, equal weights."""
        ones, observed = self.x.sum(0, dtype=torch.float64), self.train[1]
        seen = len(self.x) if observed is None else observed.sum(0, dtype=torch.float64)
        counts = torch.stack([seen - ones, ones]) + self.strength
        self.marginal = counts / (seen + 2 * self.strength)  # of 0 and of 1: 1 - p would lose a tiny p
        K, N = self.mixture.n_components, len(self.x)
        where = torch.device("cpu") if generator is None else generator.device
        draws = [torch.randperm(N, generator=generator, device=where) for _ in range(-(-K // N))]
        self.mixture.logits.copy_(self._at_rows(torch.cat(draws)[:K].to(self.x.device)))

    @property
    def rows_at_once(self) -> int:
        return max(1, CHUNK // max(self.mixture.n_components, self.mixture.n_variables))

    def log_prior(self) -> float:
        return log_odds_prior(self.mixture.log_weights, [self.mixture.logits])

    def expect(self) -> list[float | None]:
        self.rows = self.x.new_zeros(self.mixture.n_components, dtype=torch.float64)
        self.ones = torch.zeros_like(self.mixture.logits, dtype=torch.float64)
        self.seen = None if self.train[1] is None else torch.zeros_like(self.ones)
        start = 0
        for x, observed in self.chunks(self.train):
            log_p = self.mixture.component_log_probs(x, observed)
            total = torch.logsumexp(log_p, -1)
            share = (log_p - total[:, None]).exp_().to(x.dtype)
            self.log_p[start : start + len(x)] = total
            start += len(x)
            self.rows += share.sum(0, dtype=torch.float64)
            self.ones += (share.T @ x).double()
            if self.seen is not None and observed is not None:
                self.seen += (share.T @ observed.to(x.dtype)).double()
        return [float(self.log_p.mean())]

    def maximise(self) -> None:
        s, seen = self.strength, self.rows[:, None] if self.seen is None else self.seen
        ones, zeros = self.ones.clamp(min=0), (seen - self.ones).clamp(min=0)  # float32 may round below zero
        self.mixture.logits.copy_((ones + s).log() - (zeros + s).log())
        weights = self.rows + s
        empty = self.empty(self.rows, len(self.x))
        if len(empty):
            worst = self.log_p.topk(len(empty), largest=False).indices
            self.mixture.logits[empty] = self._at_rows(worst)
            weights[empty] = 1.0
            self.note(empty, f"rows {', '.join(map(str, worst.tolist()))}")
        self.mixture.log_weights.copy_((weights / weights.sum()).log())

    def _at_rows(self, rows: Tensor) -> Tensor:
        """Logits of components half-way between the marginals and these rows."""
        x, marginal = self.x[rows], self.marginal[:, None]
        means = torch.stack([marginal[0] + (1 - x), marginal[1] + x])
        if self.train[1] is not None:
            means = torch.where(self.train[1][rows], means, marginal)
        return (means[1].log() - means[0].log()).to(self.mixture.dtype)
