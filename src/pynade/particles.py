"""Imputation along a fixed ordering by sequential importance sampling with resampling.

Particles are completions of a row: missing cells are drawn in turn, and the weight is the product of the
conditional probabilities of the observed cells. The mean weight is an unbiased estimate of p(observed).
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

Random = Generator | None  # source of random numbers; None: torch's default generator
PARTICLES = 256  # default number for a row


@dataclass(frozen=True)
class Particles:
    """M weighted completions of each of B rows."""

    x: Tensor  # the completions, (B, M, D)
    means: Tensor  # x, with expectations for cells after all observed ones, (B, M, D)
    log_weights: Tensor  # logarithms of weights that sum to one in each row, (B, M), float64
    log_prob: Tensor  # estimate of log p(observed) of each row, (B,), float64; its exponential is unbiased
    effective_sample_size: Tensor  # (B,), at most M; common ancestors count once; 0: all weights are zero

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
    """Weighted completions of each row, drawn along the model's ordering.

    Before a cell is drawn, the particles of a row are resampled (systematically) if their effective sample
    size is below half of their number. Members of an ensemble have equal numbers of particles, which are
    resampled separately, and are weighted at the end by their estimates of p(observed).

    Args:
        model: a density with an ordering, or an ensemble of K of them.
        x: rows (B, D) in the domain of the model; cells that are not observed are ignored (NaN, for example).
        observed: bool (B, D).
        particles: number of particles of each row; rounded up to a multiple of K.
        generator: source of all randomness.
    """
    check_positive(**{"the number of particles": particles})
    family = model.family
    inner, y, log_slope = family.unwrap(family.fill(x, observed), model.dtype)
    order = model.order.view(-1, model.n_variables)  # (K, D)
    k, (batch, D) = len(order), y.shape
    m = -(-particles // k)
    observed_steps = observed[:, order].movedim(0, 2)  # (K, D, B), by step
    any_later = observed_steps.flip(1).cumsum(1).flip(1) > 0  # whether this or a later step is observed

    cells = y[:, None].expand(k, batch, m, D).clone()
    means = torch.full_like(cells, torch.nan)
    log_w = torch.zeros(k, batch, m, dtype=torch.float64, device=y.device)
    log_z = log_w[..., 0].clone()  # sum of the log mean weights before each resampling
    indexes = torch.arange(m, device=y.device)
    ancestor = indexes.expand(k, batch, m)
    first = torch.arange(0, batch * m, m, device=y.device)[:, None]  # first particle of each row
    walk = Walk(model.net, order, batch * m)
    for d, i in enumerate(walk):
        is_observed = observed_steps[:, d, :, None]  # (K, B, 1)
        any_missing = not is_observed.all()
        if any_missing:
            degenerate = ~is_observed & (1 / log_w.softmax(-1).square().sum(-1, keepdim=True) < m / 2)
            if degenerate.any():
                parent = torch.where(degenerate, systematic(log_w, generator), indexes)
                walk.select((parent + first).flatten(1))
                cells = cells.gather(2, parent[..., None].expand_as(cells))
                ancestor = ancestor.gather(2, parent)
                log_z = log_z + torch.where(degenerate[..., 0], log_w.logsumexp(-1) - math.log(m), 0)
                log_w = log_w.masked_fill(degenerate, 0)
        eta, at = walk.predict(), i[:, None]
        value = walk.cells(cells).flatten(1)  # (K, BM)
        if is_observed.any():
            log_p = inner.log_prob(value, eta, at).double().view_as(log_w)
            log_w = log_w + torch.where(is_observed, log_p, 0)
        if any_missing:
            drawn = inner.sample(eta, at, generator)
            value = torch.where(is_observed.expand_as(log_w).flatten(1), value, drawn)
            walk.put(cells, value.view_as(log_w))
            if family.affine and not any_later[:, d].all():
                mean = inner.mean(eta, at).view_as(log_w)
                walk.put(means, torch.where(any_later[:, d, :, None], torch.nan, mean))
        walk.observe(inner.encode(value, at))

    log_w = log_w + log_z.unsqueeze(-1) - math.log(k * m)
    log_prob = log_w.logsumexp((0, 2))
    impossible = log_prob.isneginf()
    log_w = torch.where(impossible[:, None], -math.log(k * m), log_w - log_prob[:, None])
    lineages = torch.zeros_like(log_w).scatter_add_(2, ancestor, log_w.exp())  # by first ancestor
    sizes = (1 / lineages.square().sum((0, 2))).masked_fill(impossible, 0)
    if log_slope is not None:
        log_prob = log_prob + torch.where(observed, log_slope, 0).sum(-1)

    cells, means = family.to_data(cells), family.to_data(means)
    cells = torch.where(observed[:, None], x.to(cells.dtype)[:, None], cells)
    means = torch.where(means.isnan(), cells, means)
    cells, means = (t.movedim(0, 1).flatten(1, 2) for t in (cells, means))
    return Particles(cells, means, log_w.movedim(0, 1).flatten(1), log_prob, sizes)


def systematic(log_weights: Tensor, generator: Random = None) -> Tensor:
    """Indexes (…, M) by systematic resampling: a particle of weight w is drawn M w times, up to rounding."""
    m = log_weights.shape[-1]
    edges = log_weights.softmax(-1).cumsum(-1)
    start = torch.rand(edges[..., :1].shape, generator=generator, dtype=edges.dtype, device=edges.device)
    places = (start + torch.arange(m, device=edges.device)) * edges[..., -1:] / m
    return torch.searchsorted(edges, places, right=True).clamp(max=m - 1)
