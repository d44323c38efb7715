"""Missing cells filled along a fixed ordering: sequential importance sampling with resampling.

Particles are completions of a row: each draws the missing cells, takes the observed ones, and is weighted by
the probability it gave to these. The mean weight is an unbiased estimate of p(observed).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from pynade.arguments import check_positive
from pynade.families import Family
from pynade.models import Ordered
from pynade.nets import Walk

Random = Generator | None  # where random numbers come from; None is torch's own generator
PARTICLES = 256  # of a row, by default


@dataclass(frozen=True)
class Particles:
    """M weighted completions of each of B rows."""

    x: Tensor  # the completions, (B, M, D)
    means: Tensor  # x, but the expectation of a cell that comes after all observed ones, (B, M, D)
    log_weights: Tensor  # logarithms of weights that sum to one in each row, (B, M), float64
    log_prob: Tensor  # log p(observed) of each row, (B,), float64; its exponential is unbiased
    effective_sample_size: Tensor  # (B,), 1 to M; those with a common ancestor are one; 0: no weight at all

    def draw(self, n: int, generator: Random = None) -> Tensor:
        """n completions of each row, chosen by their weights, (n, B, D)."""
        which = torch.multinomial(self.log_weights.exp(), n, replacement=True, generator=generator)
        return self.x.gather(1, which[..., None].expand(-1, -1, self.x.shape[-1])).movedim(1, 0)

    def best_guess(self, family: Family) -> Tensor:
        """Each cell's mode (discrete) or mean (real) under the weights, (B, D)."""
        return family.best_guess_from_draws(self.x, self.means, self.log_weights.exp())


@torch.no_grad()
def complete_rows(
    model: Ordered, x: Tensor, observed: Tensor, particles: int = PARTICLES, generator: Random = None
) -> Particles:
    """Complete each row with weighted particles along the model's own ordering.

    Before particles draw, they are resampled (systematically, within their row) if their effective sample
    size is below half of their number. Members of an ensemble have equal numbers of particles, resampled
    among themselves, and are weighted at the end by their estimates of p(observed).

    Args:
        model: a density with an ordering, or an ensemble of K of them.
        x: rows (B, D) in the domain of the model; cells that are not observed may hold anything, NaN too.
        observed: bool (B, D), True = given.
        particles: number of particles of each row; rounded up to a multiple of K.
        generator: source of all randomness.
    """
    check_positive(**{"the number of particles": particles})
    family = model.family
    inner, y, log_slope = family.unwrap(family.fill(x, observed), model.dtype)
    order = model.order.view(-1, model.n_variables)  # (K, D)
    k, (batch, D) = len(order), y.shape
    m = -(-particles // k)
    given = observed[:, order].movedim(0, 2)  # (K, D, B), by step
    remaining = given.flip(1).cumsum(1).flip(1) > 0  # an observed cell is still to come, this step included

    cells = y[:, None].expand(k, batch, m, D).clone()
    means = torch.full_like(cells, torch.nan)
    log_w = torch.zeros(k, batch, m, dtype=torch.float64, device=y.device)
    log_z = log_w[..., 0].clone()  # of the resamplings so far
    root = torch.arange(m, device=y.device).expand(k, batch, m)
    first = torch.arange(0, batch * m, m, device=y.device)[:, None]  # particle of each row
    walk = Walk(model.net, order, batch * m)
    for d, i in enumerate(walk):
        taken = given[:, d, :, None]  # (K, B, 1)
        drawing = not taken.all()
        if drawing:
            poor = ~taken & (1 / log_w.softmax(-1).square().sum(-1, keepdim=True) < m / 2)
            if poor.any():
                parent = torch.where(poor, systematic(log_w, generator), torch.arange(m, device=y.device))
                walk.select((parent + first).flatten(1))
                cells = cells.gather(2, parent[..., None].expand_as(cells))
                root = root.gather(2, parent)
                log_z = log_z + torch.where(poor[..., 0], log_w.logsumexp(-1) - math.log(m), 0)
                log_w = log_w.masked_fill(poor, 0)
        eta, at = walk.predict(), i[:, None]
        value = walk.cells(cells).flatten(1)  # (K, BM)
        if taken.any():
            log_p = inner.log_prob(value, eta, at).double().view_as(log_w)
            log_w = log_w + torch.where(taken, log_p, 0)
        if drawing:
            drawn = inner.sample(eta, at, generator)
            value = torch.where(taken.expand_as(log_w).flatten(1), value, drawn)
            walk.put(cells, value.view_as(log_w))
            if family.affine and not remaining[:, d].all():
                mean = inner.mean(eta, at).view_as(log_w)
                walk.put(means, torch.where(remaining[:, d, :, None], torch.nan, mean))
        walk.observe(inner.encode(value, at))

    log_w = log_w + log_z.unsqueeze(-1) - math.log(k * m)
    log_prob = log_w.logsumexp((0, 2))
    lost = log_prob.isneginf()
    log_w = torch.where(lost[:, None], -math.log(k * m), log_w - log_prob[:, None])
    lineages = torch.zeros_like(log_w).scatter_add_(2, root, log_w.exp())  # by first ancestor
    sizes = (1 / lineages.square().sum((0, 2))).masked_fill(lost, 0)
    if log_slope is not None:
        log_prob = log_prob + torch.where(observed, log_slope, 0).sum(-1)

    cells, means = family.to_data(cells), family.to_data(means)
    cells = torch.where(observed[:, None], x.to(cells.dtype)[:, None], cells)
    means = torch.where(means.isnan(), cells, means)
    cells, means = (t.movedim(0, 1).flatten(1, 2) for t in (cells, means))
    return Particles(cells, means, log_w.movedim(0, 1).flatten(1), log_prob, sizes)


def systematic(log_weights: Tensor, generator: Random = None) -> Tensor:
    """Indexes (…, M) of M particles, of weight w M w times but for rounding: one uniform number a row."""
    m = log_weights.shape[-1]
    edges = log_weights.softmax(-1).cumsum(-1)
    start = torch.rand(edges[..., :1].shape, generator=generator, dtype=edges.dtype, device=edges.device)
    places = (start + torch.arange(m, device=edges.device)) * edges[..., -1:] / m
    return torch.searchsorted(edges, places, right=True).clamp(max=m - 1)
