"""Increasing maps of columns of numbers to normal scores: piecewise linear, through quantiles."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

RAMP = 0.01  # share of a uniform distribution in the normal scores, so that no interval has none
SPARSE = 0.1  # share of the steps of a lattice that have a value, below which it is sparse
SPIKES = 256  # most values of a sparse lattice that have an interval of their own,
TIED = 3  # and the least number of cells of each
OUTLIERS = 0.001  # share of the cells (and at least two) at an end that may be taken for outliers
FOLDS = 5  # by which the number of knots is chosen
MOST_ROWS = 20_000  # of values by which it is chosen
LATTICE_KNOTS = (4, 8, 16, 32, 64, 128, 256, 512)  # numbers of quantiles that are tried, of a lattice
REAL_KNOTS = (4, 8, 16, 32, 64)  # of real values, at most their square root: ties are no spikes there
LEAST = 1e-6  # probability of a value, as far as the choice is concerned

#: Knots in codes, and their normal scores, both ascending. The first and last are about the ends of the data.
Map = tuple[np.ndarray, np.ndarray]


def choose_map(codes: np.ndarray, step: bool) -> Map:
    """The map of a column, with the number of knots that cross-validation chooses.

    The criterion is the log-likelihood of held-out values. Of the maps within one standard error of the best
    one, the simplest is taken. A straight line is tried, too.

    Args:
        codes: of the column; NaN = missing.
        step: whether the codes are on a lattice.
    """
    x = codes[~np.isnan(codes)]
    usual = int(np.clip(math.sqrt(len(x)), 8, 64))
    rng = np.random.default_rng(0)
    part = x if len(x) <= MOST_ROWS else rng.choice(x, MOST_ROWS, replace=False)
    most = len(part) // 3 if step else usual
    sizes = [n for n in (LATTICE_KNOTS if step else REAL_KNOTS) if n <= most]
    if not sizes or len(np.unique(x)) < 3:
        return normal_scores(codes, step, usual)
    fold = rng.permutation(len(part)) % FOLDS
    scores = {n: _held_out_log_prob(part, fold, step, n) for n in (0, *sizes)}
    best = max(scores.values(), key=np.sum)
    behind = {n: best - log_p for n, log_p in scores.items()}
    close = (n for n, gap in behind.items() if gap.mean() <= gap.std() / math.sqrt(len(part)))
    return _map_of_size(codes, step, next(close))


def _map_of_size(codes: np.ndarray, step: bool, n: int) -> Map:
    """The map with about n knots; 0 is a straight line."""
    if n:
        return normal_scores(codes, step, n)
    x = codes[~np.isnan(codes)]
    mean, deviation, within = x.mean(), x.std() or 1.0, without_outliers(np.sort(x))
    ends = min(within[0], mean - 3 * deviation), max(within[-1], mean + 3 * deviation)
    knots = np.array([ends[0], mean, ends[1]])
    return knots, (knots - mean) / deviation


def _held_out_log_prob(x: np.ndarray, fold: np.ndarray, step: bool, n: int) -> np.ndarray:
    """Log p of each value under a normal distribution of its score, by the map of the other folds."""
    log_p = np.empty(len(x))
    for k in range(FOLDS):
        knots, scores = (torch.from_numpy(v) for v in _map_of_size(x[fold != k], step, n))
        left = torch.from_numpy(x[fold == k])
        if not step:
            z, log_slope = interpolate(left, knots, scores)
            log_p[fold == k] = (log_slope - z.square() / 2 - math.log(2 * math.pi) / 2).numpy()
            continue
        below, above = (interpolate(left + half, knots, scores)[0].numpy() for half in (-0.5, 0.5))
        below = np.where(left <= x.min(), -np.inf, below)
        above = np.where(left >= x.max(), np.inf, above)
        # of two values on the same side of zero, whose difference keeps its digits
        p = np.where(below > 0, ndtr(-below) - ndtr(-above), ndtr(above) - ndtr(below))
        log_p[fold == k] = np.log(p + LEAST)
    return log_p


def normal_scores(codes: np.ndarray, step: bool, most: int) -> Map:
    """Knots of a column's map to normal scores: codes (NaN = missing) at about `most` quantiles; scores."""
    x = without_outliers(np.sort(codes[~np.isnan(codes)]))
    picked = np.unique(x[np.linspace(0, len(x) - 1, most).round().astype(int)])
    if step:  # a frequent value has a knot at both edges: as wide an interval of scores as its probability
        values, counts = np.unique(x, return_counts=True)
        frequent = counts * most >= len(x)
        if len(values) < SPARSE * (values[-1] - values[0]):  # between values no scores are needed
            frequent |= (counts >= TIED) & (counts >= np.sort(counts)[-min(SPIKES, len(counts))])
        wide = values[frequent]
        knots = np.unique(np.concatenate([np.setdiff1d(picked, wide), wide - 0.5, wide + 0.5]))
    else:  # between values, so that the slope at a value does not depend on rounding
        values = np.unique(x)
        gaps = np.diff(values, append=values[-1] + (values[-1] - values[-2] if len(values) > 1 else 2))
        knots = picked + gaps[np.searchsorted(values, picked)] / 2
        knots = np.append(values[0] - gaps[0] / 2, knots)
    if len(knots) == 1:
        knots = np.array([knots[0] - 1, knots[0] + 1])
    below = (np.searchsorted(x, knots, "left") + np.searchsorted(x, knots, "right")) / 2
    ramp = (knots - knots[0]) / (knots[-1] - knots[0])
    share = ((1 - RAMP) * (below + 0.5) + RAMP * (0.5 + ramp * len(x))) / (len(x) + 1)
    scores = ndtri(share)
    for end, aim in ((-1, 0.9), (0, 0.1)):  # a knot beyond each end, by the mean slope of the last tenth
        inner = int(np.argmin(np.abs(share - aim)))
        inner = inner if knots[inner] != knots[end] else (-2 if end else 1)
        more = [(v, 2 * v[end] - v[inner]) for v in (knots, scores, share)]
        knots, scores, share = (np.insert(v, len(v) if end else 0, value) for v, value in more)
    return knots, scores


def without_outliers(x: np.ndarray) -> np.ndarray:
    """Ascending numbers without the few at an end that lie beyond a gap as wide as from the median to it.

    A map to normal scores through them would bring all values between close together.

    Example:
        >>> float(without_outliers(np.array([*range(50), 2000.0])).max())
        49.0
    """
    most = max(2, int(OUTLIERS * len(x)))
    for _ in range(2):
        gaps, reach = np.diff(x), x[:-1] - x[len(x) // 2]
        wide = np.flatnonzero((gaps > reach) & (reach > 0))
        wide = wide[wide >= len(x) - 1 - most]
        x = -(x[: wide[0] + 1] if len(wide) else x)[::-1]
    return x


def interpolate(x: Tensor, knots: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The line through the two knots (…, M) around x (…), and the logarithm of its slope."""
    if knots.shape[:-1].numel() == 1:  # one column for all of x
        knots, values = knots.flatten(), values.flatten()
        place = torch.searchsorted(knots[1:-1].contiguous(), x.contiguous(), right=True)
        x0, x1, y0, y1 = (t[place + k] for t in (knots, values) for k in (0, 1))
    elif knots.ndim == 2 <= x.ndim and len(knots) == x.shape[-1]:  # rows of all columns
        rows = x.reshape(-1, len(knots)).mT.contiguous()
        place = torch.searchsorted(knots[:, 1:-1].contiguous(), rows, right=True)
        x0, x1, y0, y1 = (t.gather(1, place + k).mT.reshape(x.shape) for t in (knots, values) for k in (0, 1))
    elif x.ndim == 2 and knots.shape[:-1] == (len(x), 1):  # groups of rows, a column for each
        knots, values = knots[:, 0], values[:, 0]
        place = torch.searchsorted(knots[:, 1:-1].contiguous(), x.contiguous(), right=True)
        x0, x1, y0, y1 = (t.gather(1, place + k) for t in (knots, values) for k in (0, 1))
    else:
        knots, values = knots.expand(*x.shape, -1), values.expand(*x.shape, -1)
        place = (knots[..., 1:-1] <= x.unsqueeze(-1)).sum(-1, keepdim=True)
        x0, x1, y0, y1 = (t.gather(-1, place + k)[..., 0] for t in (knots, values) for k in (0, 1))
    slope = (y1 - y0) / (x1 - x0)
    return y0 + (x - x0) * slope, torch.log(slope)
