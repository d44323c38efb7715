"""EM for mixtures of Bernoullis, in log space and in matrix products."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pynade.classical.bernoulli_mixture import BernoulliMixture
from pynade.classical.em_binary import binary_rows, expectation_maximisation
from pynade.classical.em_history import EMCallback, EMHistory
from pynade.training.checkpoint import Keeper

CHUNK = 2**24  # values of a (rows, K) or (rows, D) block: 64 MiB in float32


@torch.no_grad()
def em_bernoulli(
    x_train: Tensor | np.ndarray,
    n_components: int,
    x_valid: Tensor | np.ndarray | None = None,
    *,
    iterations: int = 200,
    patience: int | None = 10,
    tolerance: float = 1e-6,
    smoothing: float = 0.1,
    empty_below: float = 1e-3,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    callback: EMCallback | None = None,
    keeper: Keeper | None = None,
) -> tuple[BernoulliMixture, EMHistory]:
    """Fit a `BernoulliMixture` by EM; the number of iterations is chosen by early stopping.

    Never decreases Σ_n log p(x_n) + s Σ_k (log w_k + Σ_d (log θ_kd + log(1 − θ_kd))), s being `smoothing`
    (reported per row). Missing cells (NaN) are integrated out exactly in both steps.

    Args:
        x_train: rows (N, D).
        n_components: K.
        x_valid: rows for early stopping, scored at every iteration.
        iterations: M-steps at most.
        patience: M-steps without a better validation score before stopping.
        tolerance: stop when the objective rises by less, in nats per row.
        smoothing: pseudo-counts s > 0 of each outcome; tiny values (1e-20) come near maximum likelihood.
        empty_below: a component that explains fewer rows than this is seeded anew (once), from a row that
            the mixture explains worst; `history.messages` says so.
        generator: chooses the rows from which components start.
        device: where to compute; the rows' own device when not given.
        dtype: of the parameters and products; sums are in float64.
        callback: told of each iteration; one that returns True ends it.
        keeper: keeps the state, and gives it back where an interrupted EM goes on.

    Example:
        >>> import torch
        >>> x = torch.tensor([[0, 0, 0], [1, 1, 1]]).repeat(50, 1)
        >>> model, history = em_bernoulli(x, 2, generator=torch.Generator().manual_seed(0))
        >>> bool(model.log_prob(x).mean() > -0.75)  # the entropy is log 2 = 0.693
        True
    """
    if not smoothing > 0:
        raise ValueError(f"smoothing must be above 0 (a tiny value is as good as none), not {smoothing}")
    train, observed = binary_rows(x_train, "training", missing=True)
    device = train.device if device is None else torch.device(device)
    train, observed = train.to(device), None if observed is None else observed.to(device)
    model = BernoulliMixture(train.shape[1], n_components).to(device, dtype)
    learner = _Learner(model, train, observed, smoothing, empty_below)
    learner.start(generator)
    validate = None
    if x_valid is not None:
        valid, seen = binary_rows(x_valid, "validation", train.shape[1], missing=True)
        valid, seen = valid.to(device), None if seen is None else seen.to(device)

        def validate() -> float:
            each = [model.component_log_probs(*p).logsumexp(-1) for p in chunks(valid, seen, model)]
            return float(torch.cat(each).mean())

    history = expectation_maximisation(
        model,
        learner.expect,
        learner.maximise,
        validate,
        iterations=iterations,
        patience=patience,
        tolerance=tolerance,
        callback=callback,
        keeper=keeper,
        seeded=learner.seeded,
    )
    return model, history


class _Learner:
    """The statistics between the two steps."""

    def __init__(
        self,
        model: BernoulliMixture,
        x: Tensor,
        observed: Tensor | None,
        smoothing: float,
        empty_below: float,
    ) -> None:
        self.model, self.x, self.observed = model, x, observed
        self.smoothing, self.empty_below = smoothing, empty_below
        self.seeded = torch.zeros(model.n_components, dtype=torch.bool, device=x.device)
        self.log_p = x.new_zeros(len(x), dtype=torch.float64)
        ones = x.sum(0, dtype=torch.float64)
        seen = len(x) if observed is None else observed.sum(0, dtype=torch.float64)
        counts = torch.stack([seen - ones, ones]) + smoothing
        self.marginal = counts / (seen + 2 * smoothing)  # of 0 and of 1: 1 - p would lose a tiny p

    def start(self, generator: torch.Generator | None) -> None:
        """Components half-way between the marginals and rows chosen at random, equal weights."""
        K, N = self.model.n_components, len(self.x)
        draws = [torch.randperm(N, generator=generator, device=_where(generator)) for _ in range(-(-K // N))]
        rows = torch.cat(draws)[:K].to(self.x.device)
        self.model.log_weights.zero_()
        self.model.logits.copy_(self._seed(rows))

    def expect(self) -> tuple[float, float]:
        """Expected counts under the responsibilities, rows in chunks."""
        K, D, N = self.model.n_components, self.model.n_variables, len(self.x)
        self.rows = self.x.new_zeros(K, dtype=torch.float64)
        self.ones = self.x.new_zeros(K, D, dtype=torch.float64)
        self.seen = None if self.observed is None else torch.zeros_like(self.ones)
        start = 0
        for x, observed in chunks(self.x, self.observed, self.model):
            log_p = self.model.component_log_probs(x, observed)
            total = torch.logsumexp(log_p, -1)
            share = (log_p - total[:, None]).exp_().to(x.dtype)
            self.log_p[start : start + len(x)] = total
            start += len(x)
            self.rows += share.sum(0, dtype=torch.float64)
            self.ones += (share.T @ x).double()
            if self.seen is not None and observed is not None:
                self.seen += (share.T @ observed.to(x.dtype)).double()
        logits = self.model.logits.double()
        prior = torch.log_softmax(self.model.log_weights.double(), 0).sum()
        prior = prior + (functional.logsigmoid(logits) + functional.logsigmoid(-logits)).sum()
        train = float(self.log_p.mean())
        return train + self.smoothing * float(prior) / N, train

    def maximise(self, iteration: int) -> list[str]:
        """Weights and means in proportion to the counts; empty components are seeded anew."""
        s, seen = self.smoothing, self.rows[:, None] if self.seen is None else self.seen
        ones, zeros = self.ones.clamp(min=0), (seen - self.ones).clamp(min=0)  # float32 may round below zero
        self.model.logits.copy_((ones + s).log() - (zeros + s).log())
        weights = self.rows + s
        empty = ((self.rows < self.empty_below) & ~self.seeded).nonzero().squeeze(-1)[: len(self.x)]
        messages = []
        if len(empty):
            worst = self.log_p.topk(len(empty), largest=False).indices
            self.model.logits[empty] = self._seed(worst)
            weights[empty] = 1.0
            self.seeded[empty] = True
            names, sources = ", ".join(map(str, empty.tolist())), ", ".join(map(str, worst.tolist()))
            messages.append(
                f"iteration {iteration}: components {names} were empty and start anew from rows {sources}"
            )
        self.model.log_weights.copy_((weights / weights.sum()).log())
        return messages

    def _seed(self, rows: Tensor) -> Tensor:
        x, marginal = self.x[rows], self.marginal[:, None]
        means = torch.stack([marginal[0] + (1 - x), marginal[1] + x])
        if self.observed is not None:
            means = torch.where(self.observed[rows], means, marginal)
        return (means[1].log() - means[0].log()).to(self.model.dtype)


def chunks(
    x: Tensor, observed: Tensor | None, model: BernoulliMixture
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Rows in the model's dtype, as many as fit in memory at a time."""
    size = max(1, CHUNK // max(model.n_components, model.n_variables))
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        yield x[part].to(model.dtype), None if observed is None else observed[part]


def _where(generator: torch.Generator | None) -> torch.device:
    return generator.device if generator is not None else torch.device("cpu")
