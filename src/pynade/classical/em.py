"""The EM loop for mixtures of Gaussians: many members at once, each stopping for itself."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pynade.classical.em_history import EMCallback, EMHistory, EMProgress
from pynade.classical.gaussian_marginals import draw_components
from pynade.classical.moments import Components, Moments, Rows, Scale
from pynade.training.fit import Diverged

Parameters = dict[str, Tensor]  # every tensor has a leading axis of members
EMPTY = 1e-12  # of all rows: a component responsible for fewer has none
LIKELY = 10_000  # rows that k-means++ looks at, besides fifty for each component


@dataclass(frozen=True)
class Member:
    """One member's data; members that share a `Rows` object share its E-step."""

    rows: Rows
    valid: Rows | None = None
    stop_at_train: float | None = None


def expectation_maximisation(
    members: Sequence[Member],
    start: Parameters,
    factors: Callable[[Parameters], Tensor],
    update: Callable[[Parameters, Moments, list[int]], Parameters],
    *,
    iterations: int,
    tol: float,
    patience: int | None,
    callback: EMCallback | None = None,
) -> tuple[Parameters, list[EMHistory]]:
    """Run EM on all members until each has stopped; finished members leave the batch.

    Args:
        members: M of them.
        start: stacked parameters, with at least `log_weights` (M, K) and `means` (M, K, D).
        factors: parameters -> Cholesky factors of all covariances, (M, K, D, D).
        update: the M-step: parameters, moments and the indexes of the members they belong to.
        iterations: the most M-steps.
        tol: stop when the training log-likelihood per row changes by less.
        patience: stop when validation has not improved for this many iterations.
        callback: told at each iteration of the member that is ahead; one that returns True ends all.
    """
    began = time.perf_counter()
    params, kept = start, {name: t.clone() for name, t in start.items()}
    histories = [EMHistory() for _ in members]
    best = [-math.inf] * len(members)
    active = list(range(len(members)))
    for t in range(iterations + 1):
        roots = factors(params)
        last = t == iterations
        moments, valid = _e_step([members[m] for m in active], params, roots)
        going, better = [], []
        for a, (m, train_ll, valid_ll) in enumerate(zip(active, *_lists(moments, valid), strict=True)):
            h, member = histories[m], members[m]
            h.train.append(train_ll)
            if not math.isfinite(train_ll):
                raise Diverged(f"the log-likelihood of member {m} is {train_ll} at iteration {t}")
            improved = True
            if member.valid is not None:
                h.valid.append(valid_ll)
                h.valid_at.append(t)
                improved = valid_ll > best[m]
            if improved:
                best[m], h.best_iteration = valid_ll, t
                better.append(a)
            if member.stop_at_train is not None and train_ll >= member.stop_at_train:
                h.stopped = "training likelihood reached"
            elif t and abs(train_ll - h.train[-2]) < tol:
                h.stopped = "converged"
            elif patience is not None and t - h.best_iteration >= patience:
                h.stopped = "validation no longer improved"
            elif last:
                h.stopped = "iterations"
            else:
                going.append(a)
        if better:
            source = torch.tensor(better, device=roots.device)
            target = torch.tensor([active[a] for a in better], device=roots.device)
            for name, tensor in params.items():
                kept[name][target] = tensor[source]
        if callback is not None and callback(_ahead(histories, active, t, iterations, began)):
            for a in going:
                histories[active[a]].stopped = "callback"
            going = []
        if not going:
            break
        if len(going) < len(active):
            stay = torch.tensor(going, device=roots.device)
            params = {name: tensor[stay] for name, tensor in params.items()}
            moments, active = moments[stay], [active[a] for a in going]
        params = update(params, moments, active)
    for h in histories:
        h.seconds = time.perf_counter() - began
    return kept, histories


def _ahead(
    histories: Sequence[EMHistory], active: list[int], t: int, iterations: int, began: float
) -> EMProgress:
    """How the member stands that scores best now, on validation rows where there are any."""
    h = max((histories[m] for m in active), key=lambda h: (h.valid or h.train)[-1])
    train, valid = h.train[-1], h.valid[-1] if h.valid else None
    return EMProgress(t, iterations, train, train, valid, time.perf_counter() - began)


def _lists(moments: Moments, valid: Tensor) -> tuple[list[float], list[float]]:
    both = torch.stack([moments.log_likelihood, valid]).tolist()  # one synchronisation on a GPU
    return both[0], both[1]


def _e_step(members: Sequence[Member], params: Parameters, roots: Tensor) -> tuple[Moments, Tensor]:
    """Moments of all members (log-likelihoods per row, in the units of the data), and validation scores."""
    given = Components.of(params["log_weights"], params["means"], roots)
    together: dict[tuple[int, int], list[int]] = {}
    for a, member in enumerate(members):
        together.setdefault((id(member.rows), id(member.valid)), []).append(a)
    if len(together) == 1:
        return _score(members[0], given)
    parts, order = [], []
    for which in together.values():
        parts.append(_score(members[which[0]], given[torch.tensor(which, device=roots.device)]))
        order += which
    back = torch.tensor(order, device=roots.device).argsort()
    moments = Moments(
        *(
            torch.cat([getattr(part, name) for part, _ in parts])[back]
            for name in ("log_likelihood", "counts", "first", "second")
        )
    )
    return moments, torch.cat([valid for _, valid in parts])[back]


def _score(member: Member, given: Components) -> tuple[Moments, Tensor]:
    found = member.rows.moments(given)
    train = member.rows.per_row(found.log_likelihood)
    scored = member.valid
    valid = train if scored is None else scored.log_likelihood(given)
    return Moments(train, found.counts, found.first, found.second), valid


def afresh_messages(times: Counter[int]) -> list[str]:
    """What is said of components that had no rows left and started anew, each so many times.

    Example:
        >>> afresh_messages(Counter({4: 1, 2: 3}))
        ['component 2 was empty and started anew at a random row, 3 times',
         'component 4 was empty and started anew at a random row']
    """
    words = "was empty and started anew at a random row"
    return [f"component {k} {words}" + (f", {n} times" if n > 1 else "") for k, n in sorted(times.items())]


def check_floor(name: str, value: float) -> None:
    """A floor is zero or positive."""
    if not value >= 0:
        raise ValueError(f"{name} must be at least 0, not {value}")


def prepare(x: Tensor, n_components: int, what: str = "x", every_column: bool = True) -> Tensor:
    """Rows as float64, checked: two axes, finite or missing (NaN), no empty row, enough rows.

    Rows to learn from have a value in every column; those to validate on need not.
    """
    if x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(f"expected rows (N, D) for {what}, got an array of shape {tuple(x.shape)}")
    x = x.double()
    if torch.isinf(x).any():
        row, column = torch.isinf(x).nonzero()[0].tolist()
        raise ValueError(f"expected finite numbers, but row {row}, column {column} of {what} is infinite")
    if len(x) < n_components:
        raise ValueError(f"{n_components} components need at least as many rows, but {what} has {len(x)}")
    missing = torch.isnan(x)
    for axis, word in ((1, "row"), (0, "column")):
        empty = missing.all(axis) & (axis == 1 or every_column)
        if empty.any():
            raise ValueError(f"{word} {int(empty.nonzero()[0, 0])} of {what} has no value at all")
    return x


def starting_moments(
    rows: Rows, n_components: int, init: str, generator: torch.Generator | None, zero_means: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (K,), means (K, D), covariances (K, D, D) to start from, in standardised units.

    "rows": K random rows as means, all with the covariance of the data. "k-means++": K centres spread out by
    D² sampling, each with the moments of the rows near it, the covariance as if D rows of the pooled one
    were among them.
    """
    if init not in ("k-means++", "rows"):
        raise ValueError(f"unknown init {init!r}; known: 'k-means++', 'rows' or a model")
    K, D, pooled = n_components, rows.n_variables, rows.pooled()
    some = _some_rows(rows.filled, LIKELY + 50 * K if init == "k-means++" else K, generator)
    if init == "rows":
        if zero_means:
            raise ValueError("with zero means, init='rows' would make all components equal; use 'k-means++'")
        return pooled.new_full((K,), 1 / K), some, pooled.repeat(K, 1, 1)
    centres = _spread(some, K, generator)
    near = Rows(some, Scale(torch.zeros_like(some[0]), torch.ones_like(some[0])), keep=False)
    # components this narrow share a row only where two centres are about equally near
    narrow = 0.1 * torch.eye(D, dtype=pooled.dtype, device=pooled.device).expand(1, K, D, D)
    found = near.moments(Components.of(centres.new_zeros(1, K), centres[None], narrow))
    n = found.counts[0, :, None, None]
    covariances = (n * found.covariances(zero_means)[0] + D * pooled) / (n + D)
    means = torch.where(found.counts[0, :, None] > 0, found.means()[0], centres)
    weights = (found.counts[0] + 1) / (len(some) + K)
    return weights, torch.zeros_like(means) if zero_means else means, covariances


def random_rows(x: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """n rows of x, with replacement, drawn where the generator lives."""
    where = x.device if generator is None else generator.device
    return x[torch.randint(len(x), (n,), generator=generator, device=where).to(x.device)]


def _some_rows(x: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """n different rows (all of them where there are no more)."""
    where = x.device if generator is None else generator.device
    return x[torch.randperm(len(x), generator=generator, device=where)[:n].to(x.device)]


def _spread(x: Tensor, n_components: int, generator: torch.Generator | None) -> Tensor:
    """K rows by k-means++ (Arthur & Vassilvitskii): each next one with probability ∝ its squared distance."""
    chosen = [random_rows(x, 1, generator)[0]]
    distance = (x - chosen[0]).square().sum(-1)
    for _ in range(n_components - 1):
        chances = torch.where(distance.sum() > 0, distance, 1.0)  # only duplicates left: any will do
        chosen.append(x[draw_components(chances, 1, generator)[0]])
        distance = torch.minimum(distance, (x - chosen[-1]).square().sum(-1))
    return torch.stack(chosen)
