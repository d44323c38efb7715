"""The family of a mixed table: levels, numbers on a lattice and real numbers, each column its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional

from pynade.families.base import Family, KeepsTypes, at, refuse
from pynade.families.discrete import Categorical
from pynade.families.mixture import MixtureOfLogistics, interval_log_prob
from pynade.families.normal_scores import choose_map, interpolate
from pynade.kernels import backends
from pynade.kernels.autograd import fused
from pynade.kernels.private import forward_mode_active

BEYOND = 1e4  # normal score of the ends of a bounded lattice
INTERVALS = 6  # of normal scores, equally likely but for the ends, in the features of a number
REACH = 6.0  # largest normal score that a net sees
SHORT = 1e-8  # width, in normal scores, of the interval that stands for the density of a real value
BACKGROUND = 0.001  # weight of a broad component that every mixture has: one odd cell costs a row little
NODES = 8  # of a logistic, for the mean of a column of numbers


class PerColumn(KeepsTypes, Family):
    """Columns of a mixed table, as the codes of `pynade.tables.Schema` give them.

    A column of levels has a probability for each (softmax). A column of numbers is mapped to normal scores by
    an increasing piecewise linear function, on which the distribution is a mixture of logistics (one of them
    fixed and broad, so that no value is impossible). A value on a lattice has the probability between k - 1/2
    and k + 1/2 (to the end of the axis at the ends of its range), a real value the density. A net sees levels
    as indexes, and numbers as normal scores, how far they are through a few intervals, and phases of periods.

    Args:
        levels: of each column its number of levels; 0 for numbers.
        n_components: of the mixtures.
        n_knots: of the maps to normal scores.
        n_periods: periods of dates.
        sigma_floor: smallest scale of a logistic, in normal scores.

    Example:
        >>> family = PerColumn.fitted(np.array([[0, 1.5], [1, 2.5], [1, 0.5]]), [2, 0])
        >>> family.log_prob(torch.tensor([[0.0, 1.0]]), torch.zeros(1, 2, family.n_params)).shape
        torch.Size([1, 2])
    """

    counts: Tensor  # (D,), the levels
    level_columns: Tensor
    number_columns: Tensor
    knots: Tensor  # (D, M), in codes, ascending
    scores: Tensor  # (D, M), their normal scores
    step: Tensor  # (D,) bool: numbers on a lattice
    low: Tensor  # (D,) smallest code of a lattice, or -inf
    high: Tensor  # (D,) largest code, or inf
    periods: Tensor  # (D, C), in codes; 0 has none

    def __init__(
        self,
        levels: Sequence[int],
        n_components: int = 10,
        n_knots: int = 2,
        n_periods: int = 0,
        sigma_floor: float = 0.001,
    ) -> None:
        super().__init__()
        self.levels = [int(n) for n in levels]
        self.n_components, self.n_knots, self.n_periods = int(n_components), int(n_knots), int(n_periods)
        self.sigma_floor = float(sigma_floor)
        self.axis = MixtureOfLogistics(n_components + 1, sigma_floor)  # with the fixed component
        self.index = Categorical(max(2, *self.levels))
        self.n_params = max(3 * self.n_components if 0 in self.levels else 1, *self.levels, 1)
        self.n_features = 1 + INTERVALS + 2 * self.n_periods
        counts, far = torch.tensor(self.levels), torch.full((len(self.levels),), BEYOND**2).double()
        knots = torch.linspace(-1, 1, self.n_knots, dtype=torch.float64).repeat(len(counts), 1)
        buffers = {"counts": counts, "knots": knots, "scores": knots.clone(), "step": far < 0}
        some, rest = ([i for i, n in enumerate(self.levels) if bool(n) == kind] for kind in (True, False))
        buffers |= {"level_columns": torch.tensor(some).long(), "number_columns": torch.tensor(rest).long()}
        buffers |= {"low": -far, "high": far, "periods": far.new_zeros(len(counts), self.n_periods)}
        for name, value in buffers.items():
            self.register_buffer(name, value)

    @classmethod
    def fitted(
        cls,
        codes: np.ndarray,
        levels: Sequence[int],
        step: Sequence[bool] | None = None,
        ends: Sequence[tuple[float | None, float | None]] | None = None,
        periods: np.ndarray | None = None,
        n_components: int = 10,
    ) -> PerColumn:
        """The family whose maps to normal scores fit codes (N, D); NaN = missing.

        Args:
            codes: training rows.
            levels, n_components: as of the class.
            step: which columns of numbers are on a lattice.
            ends: smallest and largest code of each lattice; None has none.
            periods: (D, C) lengths of periods, in codes.
        """
        used = np.zeros((len(levels), 0)) if periods is None else periods[:, (periods > 0).any(0)]
        lattice = step or [False] * len(levels)
        maps = {i: choose_map(codes[:, i], lattice[i]) for i, n in enumerate(levels) if n == 0}
        family = cls(levels, n_components, max((len(k) for k, _ in maps.values()), default=2), used.shape[1])
        for i, pair in maps.items():
            for buffer, v in zip((family.knots, family.scores), pair, strict=True):
                last = np.linspace(v[-2], v[-1], family.n_knots - len(v) + 2)  # as many as others have
                buffer[i] = torch.from_numpy(np.concatenate([v[:-2], last]))
            family.step[i] = bool(lattice[i])
            for buffer, end in zip((family.low, family.high), ends[i] if ends else (), strict=False):
                if lattice[i] and end is not None:
                    buffer[i] = end
        family.periods.copy_(torch.from_numpy(used))
        return family

    def with_components(self, n_components: int) -> PerColumn:
        """The same columns with another number of components."""
        made = PerColumn(self.levels, n_components, self.n_knots, self.n_periods, self.sigma_floor)
        made.load_state_dict(self.state_dict())
        return made

    def check(self, x: Tensor) -> None:
        """Codes of levels are whole numbers from 0, the others finite."""
        refuse(x, ~torch.isfinite(x), "a table needs finite codes")
        if x.shape[-1] == len(self.levels):
            wrong = (self.counts > 0) & ((x < 0) | (x >= self.counts) | (x != x.round()))
            refuse(x, wrong, "a column of levels needs the index of a level")

    def encode(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """The index of a level; of a number its normal score, its way through intervals, and phases."""
        z, level = self._score(x.double(), i)[0].clamp(-REACH, REACH), self._has_levels(i)
        ends = torch.special.ndtri((torch.arange(INTERVALS + 1, device=x.device) + 0.5) / (INTERVALS + 1))
        through = ((z.unsqueeze(-1) - ends[:-1]) / (ends[1:] - ends[:-1])).clamp(0, 1)
        parts = [torch.where(level, x.double(), z).unsqueeze(-1), through.masked_fill(level.unsqueeze(-1), 0)]
        if self.n_periods:
            period = at(self.periods, i)
            turn = 2 * math.pi * x.double().unsqueeze(-1) / torch.where(period > 0, period, 1)
            phases = torch.cat([turn.sin(), turn.cos()], -1) * torch.cat([period > 0, period > 0], -1)
            parts.append(phases.expand(*z.shape, -1))
        return torch.cat(parts, -1).to(x.dtype)

    def log_prob(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Log-probability of a level or a value on a lattice, log-density of a real value (in codes)."""
        levels, numbers = self._kinds(i)
        if not numbers:
            return self.index.log_prob(x, self._logits(eta, i))
        if not levels:
            return self._axis_log_prob(x, eta, i, self.n_components)
        if i is None:
            return self.member_log_prob(x, eta, self.n_components)
        level = self._has_levels(i)
        by_level = self.index.log_prob(torch.where(level, x, 0), self._logits(eta, i))
        by_axis = self._axis_log_prob(torch.where(level, 0, x), eta, i, self.n_components)
        return torch.where(level, by_level, by_axis)

    def member_log_prob(self, x: Tensor, eta: Tensor, n_components: int) -> Tensor:
        """`log_prob` of rows x (B, D) by parameters (…, B, D, P) with another number of components."""
        some, rest = self.level_columns, self.number_columns  # each kind of column for itself
        out = torch.empty_like(eta[..., 0])
        if len(some):
            own = self._logits(eta[..., some, :], some)
            out[..., some] = self.index.log_prob(x[..., some].expand(own.shape[:-1]), own)
        if len(rest):
            out[..., rest] = self._axis_log_prob(x[..., rest], eta[..., rest, :], rest, n_components)
        return out

    def sample(self, eta: Tensor, i: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """An index, or a draw of the mixture, mapped back and rounded to the lattice."""
        drawn = self._value(self.axis.sample(self._axis_eta(eta), generator=generator), i).to(eta.dtype)
        index = self.index.sample(self._logits(eta, i), generator=generator)
        return torch.where(self._has_levels(i), index, drawn)

    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Expected code."""
        values, weights = self.nodes(eta, i)
        return (values * weights).sum(-1)

    def nodes(self, eta: Tensor, i: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Codes and weights by which a function of a column is averaged, each (…, nodes).

        Numbers are within the ends of the map to normal scores: a mean is no extrapolation.
        """
        levels, numbers = self._kinds(i)
        if levels:
            p = self._probabilities(eta, i)
            index = torch.arange(p.shape[-1], device=eta.device, dtype=eta.dtype).expand(p.shape)
            if not numbers:
                return index, p
        # of numbers: the middles of equally likely parts of every component
        pi, mu, sigma = self.axis.parameters_of(self._axis_eta(eta))
        u = (torch.arange(NODES, device=eta.device, dtype=eta.dtype) + 0.5) / NODES
        z = (mu.unsqueeze(-1) + sigma.unsqueeze(-1) * torch.logit(u)).flatten(-2)
        here = torch.arange(len(self.levels), device=eta.device) if i is None else i
        values, knots = self._value(z, here.unsqueeze(-1)).to(eta.dtype), self.knots[here]
        values = torch.minimum(torch.maximum(values, knots[..., :1]), knots[..., -1:]).to(eta.dtype)
        weights = (pi / NODES).repeat_interleave(NODES, -1)
        if not levels:
            return values, weights
        most, level = max(z.shape[-1], p.shape[-1]), self._has_levels(i).unsqueeze(-1)
        a, b, c, d = (functional.pad(t, (0, most - t.shape[-1])) for t in (index, values, p, weights))
        return torch.where(level, a, b), torch.where(level, c, d)

    def best_guess(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The likeliest level; of a number the mean, on its lattice."""
        likeliest = self.index.best_guess(self._logits(eta, i))
        if not self._kinds(i)[1]:
            return likeliest
        mean = self.mean(eta, i)
        number = torch.where(at(self.step, i), mean.round(), mean)
        return torch.where(self._has_levels(i), likeliest, number)

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None, background: float = BACKGROUND) -> Tensor:
        """P(code <= x); of numbers with this weight of the broad component."""
        lattice = at(self.step, i)
        edge = torch.where(lattice, x.double().floor() + 0.5, x.double())
        mixture = self._axis_eta(eta, background=background)
        below = self.axis.cdf(self._score(edge, i)[0].to(eta.dtype), mixture)
        below = torch.where(lattice & (x >= at(self.high, i)), 1.0, below)
        below = torch.where(lattice & (x < at(self.low, i)), 0.0, below)
        return torch.where(self._has_levels(i), self.index.cdf(x, self._logits(eta, i)), below)

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Smallest code whose cdf is at least q."""
        x = self._inverse(self.axis.quantile(q, self._axis_eta(eta)).double(), i)
        whole = torch.minimum(torch.maximum((x - 0.5).ceil(), at(self.low, i)), at(self.high, i))
        number = torch.where(at(self.step, i), whole, x).to(eta.dtype)
        return torch.where(self._has_levels(i), self.index.quantile(q, self._logits(eta, i)), number)

    def p_value(self, x: Tensor, eta: Tensor, i: Tensor) -> Tensor:
        """Probability of a value at least as odd: of a level at most as likely; twice that of a tail.

        The broad component of numbers is left out: with it all extreme values are about equally odd.
        """
        p = self._probabilities(eta, i)
        own = p.gather(-1, x.long().clamp(0, p.shape[-1] - 1).unsqueeze(-1))
        by_level = torch.where(p <= own * (1 + 1e-6), p, 0).sum(-1)
        below = torch.where(at(self.step, i), x - 1, x)
        tail = torch.minimum(self.cdf(x, eta, i, 0.0), 1 - self.cdf(below, eta, i, 0.0))
        return torch.where(self._has_levels(i), by_level, 2 * tail).clamp(0, 1)

    def broad_log_prob(self, x: Tensor, i: Tensor) -> Tensor:
        """`log_prob` under a Cauchy distribution of normal scores, and equally likely levels."""
        half = torch.where(at(self.step, i), 0.5, 0.0).double()
        (a, _), (z, log_slope), (b, _) = (self._score(x.double() + side * half, i) for side in (-1, 0, 1))
        a = torch.where(x <= at(self.low, i), -math.inf, a)
        b = torch.where(x >= at(self.high, i), math.inf, b)
        angle = torch.where(
            (a > -math.inf) & (b < math.inf), torch.atan2(b - a, 1 + a * b), b.atan() - a.atan()
        )
        density = log_slope - torch.log(math.pi * (1 + z**2))
        number = torch.where(at(self.step, i), (angle / math.pi).log(), density)
        return torch.where(self._has_levels(i), -at(self.counts, i).clamp(min=1).double().log(), number)

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """Log-shares of levels, one imaginary cell added to each; standard normal scores of numbers."""
        eta, K = torch.zeros(len(self.levels), self.n_params, dtype=torch.float64), self.n_components
        for i, n in enumerate(self.levels):
            if n > 1:
                eta[i, :n] = Categorical(n).eta_from_marginal(x[:, i : i + 1])
            elif n == 0:
                eta[i, K : 2 * K] = torch.special.ndtri((torch.arange(K) + 0.5) / K)
                eta[i, 2 * K : 3 * K] = math.log(0.35 if K > 1 else 0.55)
        return eta

    def _kinds(self, i: Tensor | None) -> tuple[bool, bool]:
        """Whether some of the columns i have levels, and whether some have numbers."""
        if i is None:  # known without asking the device
            return any(self.levels), not all(self.levels)
        level = self._has_levels(i)
        return bool(level.any()), bool((~level).any())

    def _has_levels(self, i: Tensor | None) -> Tensor:
        return at(self.counts, i) > 0

    def _logits(self, eta: Tensor, i: Tensor | None) -> Tensor:
        """Of levels (…, L), as many as any column has."""
        counts = at(self.counts, i).unsqueeze(-1)
        levels = torch.arange(max(1, *self.levels), device=eta.device)
        return eta[..., : len(levels)].masked_fill((levels >= counts) & (counts > 0), -math.inf)

    def _probabilities(self, eta: Tensor, i: Tensor | None) -> Tensor:
        return self._logits(eta, i).softmax(-1)

    def _axis_eta(
        self, eta: Tensor, n_components: int | None = None, background: float = BACKGROUND
    ) -> Tensor:
        """Parameters of the mixture with its fixed component, from those of a net."""
        used = 3 * (n_components or self.n_components)
        logits, mu, raw = functional.pad(eta, (0, max(0, used - eta.shape[-1])))[..., :used].chunk(3, -1)
        broad = math.log(background / (1 - background)) if background else -math.inf
        logits = functional.pad(logits.log_softmax(-1), (0, 1), value=broad)
        return torch.cat([logits, functional.pad(mu, (0, 1)), functional.pad(raw, (0, 1))], -1)

    def _axis_log_prob(self, x: Tensor, eta: Tensor, i: Tensor | None, n_components: int) -> Tensor:
        """Log of Σ pi (σ(b) - σ(a)) of an interval a … b; a density: of a short one, over its width."""
        x, lattice = x.double(), at(self.step, i)
        half = torch.where(lattice, 0.5, 0.0).double()
        a, log_slope = self._score(x - half, i)
        b, _ = self._score(x + half, i)
        a = torch.where(lattice, torch.where(x <= at(self.low, i), -BEYOND, a), a - SHORT / 2)
        b = torch.where(lattice, torch.where(x >= at(self.high, i), BEYOND, b), b + SHORT / 2)
        width = torch.where(lattice, b - a, SHORT)
        more = torch.where(lattice, 0.0, log_slope - math.log(SHORT)).to(eta.dtype)
        a, b, width = (t.to(eta.dtype).expand(eta.shape[:-1]) for t in (a, b, width))
        own = eta[..., : 3 * n_components]
        if backends.choose_kernel("auto", eta.device, eta) == "numba" and not forward_mode_active():
            from pynade.kernels.mixture import LogProb

            interval = LogProb("Interval", 0.0, self.sigma_floor, background=BACKGROUND)
            return fused(interval, own, a, b, width) + more
        logits, mu, raw = self._axis_eta(eta, n_components).chunk(3, -1)
        return interval_log_prob((a, b, width), (logits, mu, self.axis.log_scale(raw))) + more

    def _value(self, z: Tensor, i: Tensor | None) -> Tensor:
        """Codes of normal scores, rounded where they are on a lattice."""
        x = self._inverse(z.double(), i)
        whole = torch.minimum(torch.maximum((x + 0.5).floor(), at(self.low, i)), at(self.high, i))
        return torch.where(at(self.step, i), whole, x)

    def _score(self, x: Tensor, i: Tensor | None) -> tuple[Tensor, Tensor]:
        """Normal scores of codes, and the logarithm of the map's slope."""
        return interpolate(x, at(self.knots, i), at(self.scores, i))

    def _inverse(self, z: Tensor, i: Tensor | None) -> Tensor:
        return interpolate(z, at(self.scores, i), at(self.knots, i))[0]
