"""Gaps filled along an ordering that was not made for them: sequential importance sampling with resampling.

A fixed ordering meets observed cells after missing ones, so p(missing | observed) is no product of its
conditionals. Many walkers go along the ordering instead: each draws what is missing, takes what is observed,
and is weighed by the probability it gave to what it had to take. The weighted walkers stand for
p(missing | observed), exactly so as their number grows, and their mean weight is an unbiased estimate of
p(observed).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pynade.families import Bernoulli, Family, Real, Transformed
from pynade.models import Autoregressive, Ensemble
from pynade.nets.base import State

PARTICLES = 256  # walkers of a row, where nothing else is said


@dataclass(frozen=True)
class Walkers:
    """M weighted completions of each of B rows.

    Attributes:
        x: the completions, (B, M, D).
        means: x, but the expectation of a cell that comes after all observed ones, (B, M, D).
        log_weights: logarithms of weights that sum to one in each row, (B, M), float64.
        log_prob: log p(observed) of each row, (B,), float64; its exponential is unbiased.
        effective: how many independent walkers the weights of a row are worth, (B,), from 1 to M. Walkers
            with a common ancestor count as one, for they agree on the first gaps; 0 if no walker could take
            the observed cells at all.
    """

    x: Tensor
    means: Tensor
    log_weights: Tensor
    log_prob: Tensor
    effective: Tensor

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n completions of each row, chosen by their weights, (n, B, D)."""
        which = torch.multinomial(self.log_weights.exp(), n, replacement=True, generator=generator)
        return self.x.gather(1, which[..., None].expand(-1, -1, self.x.shape[-1])).movedim(1, 0)

    def best_guess(self, family: Family) -> Tensor:
        """Each cell's mode (discrete) or mean (real) under the weights, (B, D)."""
        weights = self.log_weights.exp().unsqueeze(-1)
        if isinstance(family, Bernoulli | Real | Transformed):
            mean = (weights * self.means).sum(1).to(self.x.dtype)
            return (mean > 0.5).to(mean.dtype) if isinstance(family, Bernoulli) else mean
        most = weights.new_full(self.x[:, 0].shape, -1.0)
        guess = torch.zeros_like(self.x[:, 0])
        for level in self.x.unique():
            share = (weights * (self.x == level)).sum(1)
            guess, most = torch.where(share > most, level, guess), torch.maximum(share, most)
        return guess


@torch.no_grad()
def walk(
    model: Autoregressive | Ensemble,
    x: Tensor,
    observed: Tensor,
    particles: int = PARTICLES,
    generator: torch.Generator | None = None,
) -> Walkers:
    """Complete each row with `particles` walkers along the model's own ordering.

    Where walkers are about to draw, they are resampled (systematically, within their row) if their weights
    are worth less than half of them. Each member of an ensemble has as many walkers as any other, resampled
    among themselves, because only they have taken the same cells so far; in the end the members are weighed
    by their estimates of p(observed).

    Args:
        model: a density with an ordering, or an ensemble of K of them.
        x: rows (B, D) in the domain of the model; cells that are not observed may hold anything, NaN too.
        observed: bool (B, D), True = given.
        particles: walkers of each row; rounded up to a multiple of K.
        generator: draws everything.

    Example:
        >>> import torch
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import NADENet
        >>> from pynade.ordering import Ordering
        >>> nade = Autoregressive(NADENet(3, hidden=4), Bernoulli(), Ordering([2, 0, 1]))
        >>> rows = torch.tensor([[1.0, 0.0, torch.nan]])
        >>> found = walk(nade, rows, ~torch.isnan(rows), generator=torch.Generator().manual_seed(0))
        >>> states = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 1.0]])
        >>> exact = nade.log_prob(states).logsumexp(0)
        >>> bool((found.log_prob - exact).abs() < 0.1)
        True
    """
    check_particles(particles)
    net, family = model.net, model.family
    law, y, log_slope = family.unwrap(family.fill(x, observed), model.dtype)
    order = model.order.view(-1, model.n_variables)  # (K, D)
    k, (batch, D) = len(order), y.shape
    m = -(-particles // k)
    given = observed[:, order].movedim(0, 2)  # (K, D, B), by step
    ahead = given.flip(1).cumsum(1).flip(1) > 0  # something observed is still to come, this step included
    exact_means = not (isinstance(family, Transformed) and family.bounded)  # there, a numerical integral

    cells = y[:, None].expand(k, batch, m, D).clone()
    means = torch.full_like(cells, torch.nan)
    log_w = torch.zeros(k, batch, m, dtype=torch.float64, device=y.device)
    log_z = log_w[..., 0].clone()  # of the resamplings so far
    root = torch.arange(m, device=y.device).expand(k, batch, m)
    group = torch.arange(k, device=y.device)
    state = net.start(k, batch * m)
    for d, i in enumerate(order.unbind(1)):
        taken = given[:, d, :, None]  # (K, B, 1)
        drawing = not taken.all()
        if drawing:
            poor = ~taken & (effective_size(log_w.softmax(-1)) < m / 2).unsqueeze(-1)
            if poor.any():
                parent = torch.where(poor, systematic(log_w, generator), torch.arange(m, device=y.device))
                state = _inherited(state, parent)
                cells = cells.gather(2, parent[..., None].expand_as(cells))
                root = root.gather(2, parent)
                log_z = log_z + torch.where(poor[..., 0], log_w.logsumexp(-1) - math.log(m), 0)
                log_w = log_w.masked_fill(poor, 0)
        eta, at = net.predict(state, i), i[:, None]
        value = cells[group, :, :, i].flatten(1)  # (K, BM)
        if taken.any():
            told = law.log_prob(value, eta, at).double().view_as(log_w)
            log_w = log_w + torch.where(taken, told, 0)
        if drawing:
            drawn = law.sample(eta, at, generator)
            value = torch.where(taken.expand_as(log_w).flatten(1), value, drawn)
            cells[group, :, :, i] = value.view_as(log_w)
            if exact_means and not ahead[:, d].all():
                mean = law.mean(eta, at).view_as(log_w)
                means[group, :, :, i] = torch.where(ahead[:, d, :, None], torch.nan, mean)
        state = net.observe(state, i, law.encode(value, at))

    log_w = log_w + log_z.unsqueeze(-1) - math.log(k * m)
    log_prob = log_w.logsumexp((0, 2))
    lost = log_prob.isneginf()
    log_w = torch.where(lost[:, None], -math.log(k * m), log_w - log_prob[:, None])
    lineages = torch.zeros_like(log_w).scatter_add_(2, root, log_w.exp())  # by first ancestor
    effective = effective_size(lineages.movedim(0, 1).flatten(1)).masked_fill(lost, 0)
    if log_slope is not None:
        log_prob = log_prob + torch.where(observed, log_slope, 0).sum(-1)

    if isinstance(family, Transformed):
        cells, means = family.to_data(cells), family.to_data(means)
    cells = torch.where(observed[:, None], x.to(cells.dtype)[:, None], cells)
    means = torch.where(means.isnan(), cells, means)
    cells, means = (t.movedim(0, 1).flatten(1, 2) for t in (cells, means))
    return Walkers(cells, means, log_w.movedim(0, 1).flatten(1), log_prob, effective)


def check_particles(particles: int) -> None:
    """Raise a ValueError if that is no number of walkers."""
    if particles < 1:
        raise ValueError(f"the number of particles must be at least 1, not {particles}")


def effective_size(weights: Tensor) -> Tensor:
    """1 / Σ w² of weights that sum to one: (…, M) -> (…)."""
    return 1 / weights.square().sum(-1)


def systematic(log_weights: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Indexes (…, M) of M walkers chosen by their weights, evenly: one uniform number for each row.

    A walker with a share w is chosen M w times on average, and never a whole time more or less.

    Example:
        >>> systematic(torch.tensor([0.5, 0.25, 0.25, 0.0]).log()).tolist()
        [0, 0, 1, 2]
    """
    m = log_weights.shape[-1]
    edges = log_weights.softmax(-1).cumsum(-1)
    start = torch.rand(edges[..., :1].shape, generator=generator, dtype=edges.dtype, device=edges.device)
    places = (start + torch.arange(m, device=edges.device)) * edges[..., -1:] / m
    return torch.searchsorted(edges, places, right=True).clamp(max=m - 1)


def _inherited(state: State, parent: Tensor) -> State:
    """The state of (K, BM) walkers after each has become what its parent in (K, B, M) is."""
    k, batch, m = parent.shape
    first = torch.arange(0, batch * m, m, device=parent.device)[:, None]
    which, group = (parent + first).flatten(1), torch.arange(k, device=parent.device)[:, None]
    return {name: tensor[group, which] for name, tensor in state.items()}
