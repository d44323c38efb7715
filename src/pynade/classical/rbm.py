"""Restricted Boltzmann machines: energies, and exact densities for small machines.

Given the observed cells of a row, the free variables form an RBM with hidden biases c + W x. Sums over all
2^H states of H binary units are exact, in float64, and computed in blocks; the first unit is the most
significant bit of a state's number. The units are divided into an outer part and an inner part, so that
e^a_d = e^u_d e^l_d needs no exponential for each state, and one logarithm is taken of a product of factors
1 + e^a_d.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.arguments import check_positive
from pynade.classical.binary import BinaryMarginalisable, draw_bernoulli, draw_indexes
from pynade.classical.em import Random
from pynade.families import Bernoulli
from pynade.kernels.backends import available
from pynade.kernels.threads import run_tasks
from pynade.models.autoregressive import Autoregressive
from pynade.models.density import Model, check_columns
from pynade.nets import NADENet
from pynade.ordering import Ordering

MOST_UNITS = 25  # 2^25 states: a table of 256 MiB
LOW_UNITS = 10  # of the inner part, whose table is stored in tiles
LARGEST = 690.0  # e^690 is finite in float64
BLOCK = {"cpu": 2**20, "cuda": 2**26}  # values of a computed at a time without a compiled kernel
TINY = 1e-260  # smaller sums of products may have lost terms by underflow
STATES_BLOCK = 2**20  # values for rows × states computed at a time
ROWS = 256  # rows whose states are computed together


@dataclass(frozen=True)
class PartitionEstimate:
    """An estimate of log Z; on average it is too low, so that log-likelihoods tend to be too high."""

    log_z: float  # logarithm of the mean of the chains' weights
    stderr: float  # its standard error, by the delta method; near 1 the estimate is unreliable
    n_chains: int  # independent chains
    n_steps: int  # intermediate distributions
    exact: bool = False  # always

    def __str__(self) -> str:
        return f"log Z = {self.log_z:.3f} ± {self.stderr:.3f} nats (estimate, {self.n_chains} chains)"


class RBM(Model):
    """E(x, h) = −hᵀW x − bᵀx − cᵀh with binary x (D,) and h (H,) (section "Relationship with the RBM").

    It computes free energies, −log Σ_h exp(−E), and Gibbs samples. Probabilities need the partition function,
    a sum over 2^min(H, D) states: `normalised()` is an exact density where that is feasible, and
    `log_partition_ais` an estimate.

    Args:
        n_visible: D.
        n_hidden: H.
        scale: standard deviation of the initial weights W.
        generator: source of the initial weights.

    Example:
        >>> rbm = RBM(4, n_hidden=2, scale=0.0)
        >>> round(rbm.log_partition(), 6)  # 2⁶ states of energy zero: 6 log 2
        4.158883
        >>> round(rbm.normalised().log_prob(torch.zeros(1, 4)).exp().item(), 6)
        0.0625
    """

    def __init__(self, n_visible: int, n_hidden: int, scale: float = 0.01, generator: Random = None) -> None:
        super().__init__()
        check_positive(n_visible=n_visible, n_hidden=n_hidden)
        self.n_variables = self.n_visible = n_visible
        self.n_hidden, self.scale = n_hidden, scale
        self.W = nn.Parameter(torch.empty(n_hidden, n_visible).normal_(0.0, 1.0, generator=generator) * scale)
        self.b = nn.Parameter(torch.zeros(n_visible))
        self.c = nn.Parameter(torch.zeros(n_hidden))

    def free_energy(self, x: Tensor) -> Tensor:
        """−bᵀx − Σ_k log(1 + exp(c_k + W_k x)), minus the unnormalised log-probability, of rows: (B,)."""
        self.check(x)
        return self._free_energy(x.to(self.dtype))

    def _free_energy(self, x: Tensor) -> Tensor:
        hidden = functional.logsigmoid(-(x @ self.W.T + self.c)).sum(-1, dtype=torch.float64)
        return hidden - (x * self.b).sum(-1, dtype=torch.float64)

    @torch.no_grad()
    def gibbs(self, n: int, steps: int, generator: Random = None, start: Tensor | None = None) -> Tensor:
        """Rows (n, D) of n chains after `steps` rounds of h | x and x | h: approximate draws.

        Args:
            n: number of chains.
            steps: rounds.
            generator: source of randomness.
            start: rows (n, D) to start from; None: uniformly random bits.
        """
        x = draw_bernoulli(self.b.new_zeros(n, self.n_visible), generator) if start is None else start
        self.check(x)
        if len(x) != n:
            raise ValueError(f"{len(x)} rows to start from were given for {n} chains")
        x = x.to(self.W)
        for _ in range(steps):
            h = draw_bernoulli(x @ self.W.T + self.c, generator).to(self.dtype)
            x = draw_bernoulli(h @ self.W + self.b, generator).to(self.dtype)
        return x

    @torch.no_grad()
    def log_partition(self) -> float:
        """log Z, exact: the sum over all states of the smaller layer, at most 25 units."""
        if (smaller := min(self.n_hidden, self.n_visible)) > MOST_UNITS:
            raise ValueError(
                f"the exact partition function sums over all states of the smaller layer, which has "
                f"{smaller} units and may have {MOST_UNITS}; log_partition_ais gives an estimate"
            )
        W, b, c = (p.double() for p in (self.W, self.b, self.c))
        W, b, c = (W, b, c) if self.n_hidden <= self.n_visible else (W.T, c, b)
        return float(HiddenStates(W, b).log_sum(c[None]))

    @torch.no_grad()
    def log_partition_ais(
        self,
        n_chains: int = 100,
        n_steps: int = 1000,
        generator: Random = None,
        *,
        base: Tensor | None = None,
    ) -> PartitionEstimate:
        """Estimate log Z by annealed importance sampling (Salakhutdinov and Murray, 2008).

        As β rises from 0 to 1, chains move from independent variables to the RBM, with a round of Gibbs
        sampling per step: distribution β is ∝ exp((1 − β) baseᵀx + β bᵀx) Π_k (1 + exp(β (c_k + W_k x))).

        Args:
            n_chains: independent chains, computed together; at least 2.
            n_steps: intermediate distributions.
            generator: source of randomness.
            base: logits (D,) of the first distribution, best those of the data's means; None: the RBM's b.

        Example:
            >>> rbm = RBM(6, 3, scale=1.0, generator=torch.Generator().manual_seed(0))
            >>> estimate = rbm.log_partition_ais(200, 200, torch.Generator().manual_seed(1))
            >>> estimate.exact, abs(estimate.log_z - rbm.log_partition()) < 0.2
            (False, True)
        """
        if n_chains < 2 or n_steps < 1:
            raise ValueError(f"an estimate takes at least 2 chains and 1 step, not {n_chains=}, {n_steps=}")
        W, b, c = (p.double() for p in (self.W, self.b, self.c))
        start = b if base is None else base.to(b)
        if start.shape != b.shape or not torch.isfinite(start).all():
            raise ValueError(f"base holds one finite logit for each of the {len(b)} variables")
        x = draw_bernoulli(start.expand(n_chains, -1), generator)
        log_w = torch.zeros(n_chains, dtype=torch.float64, device=W.device)
        betas = torch.linspace(0, 1, n_steps + 1, dtype=torch.float64).tolist()
        for before, beta in pairwise(betas):
            a, linear = x @ W.T + c, x @ (b - start)
            rise = functional.logsigmoid(-before * a) - functional.logsigmoid(-beta * a)
            log_w += (beta - before) * linear + rise.sum(-1)
            h = draw_bernoulli(beta * a, generator)
            x = draw_bernoulli((1 - beta) * start + beta * (h @ W + b), generator)
        log_base = self.n_hidden * math.log(2) - float(functional.logsigmoid(-start).sum())
        log_mean = float(torch.logsumexp(log_w, 0)) - math.log(n_chains)
        stderr = float((log_w - log_mean).exp().std()) / math.sqrt(n_chains)  # of weights over their mean
        return PartitionEstimate(log_base + log_mean, stderr, n_chains, n_steps)

    def normalised(self) -> NormalisedRBM:
        """This RBM as an exact density; a copy, with log Z computed now."""
        return NormalisedRBM(self)

    def check(self, x: Tensor) -> None:
        """Columns must match, values must be exactly 0 or 1."""
        check_columns(x, self.n_visible)
        Bernoulli().check(x)


class NormalisedRBM(BinaryMarginalisable):
    """log p(x) = −F(x) − log Z of an RBM whose smaller layer has at most 25 units (the paper uses 23).

    All answers are exact. All but the scores of complete rows need a sum over all states for each pattern of
    observed cells: about a second at H = 23. The parameters are frozen copies, since log Z depends on them.

    Args:
        rbm: the machine.

    Example:
        >>> model = NormalisedRBM(RBM(3, 2, scale=1.0, generator=torch.Generator().manual_seed(0)))
        >>> model.sample(4, torch.Generator().manual_seed(0)).shape
        torch.Size([4, 3])
    """

    log_z: Tensor

    def __init__(self, rbm: RBM) -> None:
        super().__init__(rbm.n_visible)
        self.rbm = copy.deepcopy(rbm).requires_grad_(False)
        log_z = 0.0 if rbm.W.is_meta else rbm.log_partition()  # loading fills it in
        self.register_buffer("log_z", torch.tensor(log_z, dtype=rbm.dtype, device=rbm.device))

    def _log_prob(self, x: Tensor) -> Tensor:
        return -self.rbm._free_energy(x) - self.log_z.double()

    def _marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        out = self._log_prob(x)  # of complete rows
        linear = x.double() @ self.rbm.b.double() - self.log_z.double()  # x is zero where it is not observed
        for rows, _, states, c in self._groups(x, observed):
            out[rows] = linear[rows] + states.log_sum(c)
        return out

    def _logits_given(self, x: Tensor, observed: Tensor, only: int | None = None) -> Tensor:
        out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        for rows, free, states, c in self._groups(x, observed):
            positions = (free >= 0 if only is None else free == only).nonzero().squeeze(-1)
            if len(positions):
                out[rows[:, None], free[positions]] = states.logits(c, positions)
        return out

    def _draw_given(self, x: Tensor, observed: Tensor, n: int, generator: Random) -> Tensor:
        """Draw the state of the smaller layer, then the free variables given it: (n, B, D)."""
        out = x.expand(n, -1, -1).clone()
        for rows, free, states, c in self._groups(x, observed):
            out[:, rows[:, None], free] = states.draw(c, n, generator).to(x.dtype)
        return out

    def _groups(
        self, x: Tensor, observed: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, HiddenStates | VisibleStates, Tensor]]:
        """For each pattern of observed cells: rows, free variables, states, and hidden biases (R, H)."""
        W, b, c = (p.double() for p in (self.rbm.W, self.rbm.b, self.rbm.c))
        kind = HiddenStates if self.rbm.n_hidden <= self.rbm.n_visible else VisibleStates
        patterns, index = observed.unique(dim=0, return_inverse=True)
        for k, pattern in enumerate(patterns):
            free = (~pattern).nonzero().squeeze(-1)
            if len(free):
                states = kind(W[:, free], b[free])
                for rows in (index == k).nonzero().squeeze(-1).split(ROWS):
                    yield rows, free, states, c + x[rows].double() @ W.T


def nade_from_rbm(rbm: RBM, ordering: Ordering) -> Autoregressive:
    """The NADE whose conditionals are one mean-field pass in an RBM (section "Relationship with the RBM").

    Its W, b and c are the RBM's and V = Wᵀ. Starting from μ_j = 0 for the variables not yet seen, one update
    of the hidden marginals τ (eq. mf-hidden) and one of μ_d (eq. mf-input) is p(x_{o_d} = 1 | x_{o_<d}).

    Example:
        >>> from pynade.ordering import Ordering
        >>> nade_from_rbm(RBM(5, 3), Ordering.natural(5)).net.hidden
        3
    """
    net = NADENet(rbm.n_visible, n_params=1, hidden=rbm.n_hidden, activation="sigmoid").to(rbm.W)
    with torch.no_grad():
        net.weight.copy_(rbm.W.T.unsqueeze(1))
        net.output.copy_(rbm.W.T.unsqueeze(1))
        net.hidden_bias.copy_(rbm.c)
        net.bias.copy_(rbm.b.unsqueeze(1))
    return Autoregressive(net, Bernoulli(), ordering.to(rbm.device))


def linear_table(c: Tensor) -> Tensor:
    """Σ_k c_k h_k for every state h: (…, H) -> (…, 2^H), float64."""
    c = c.double()
    sums = c.new_zeros(*c.shape[:-1], 1)
    for k in reversed(range(c.shape[-1])):
        sums = torch.cat([sums, sums + c[..., k : k + 1]], -1)
    return sums


def softplus_table(weight: Tensor, bias: Tensor) -> Tensor:
    """Σ_d log(1 + exp(b_d + Σ_k h_k W_kd)) for every state h: W (H, D), b (D,) -> (2^H,), float64."""
    hidden, cut = len(weight), max(0, len(weight) - LOW_UNITS)
    weight, bias = weight.detach().double(), bias.detach().double()
    if weight.shape[1] == 0:
        return weight.new_zeros(2**hidden)
    low, high = linear_table(weight[cut:].T), linear_table(weight[:cut].T) + bias[:, None]  # (D, 2^units)
    fits = max(high.abs().max(), low.abs().max(), (high.amax(1) + low.amax(1)).max()) < LARGEST / 4
    if weight.device.type == "cpu" and bool(fits) and available("numba"):
        return _by_products(high, low)
    return _by_logs(high, low)


def bits(states: Tensor, units: int) -> Tensor:
    """The unit values (…, units) of numbered states, the most significant bit first, float64."""
    shifts = torch.arange(units - 1, -1, -1, device=states.device)
    return (states.unsqueeze(-1) >> shifts & 1).double()


def _by_logs(high: Tensor, low: Tensor) -> Tensor:
    """`softplus_table` in plain torch: a logarithm for each factor."""
    table = high.new_empty(high.shape[1], low.shape[1])
    rows = max(1, BLOCK.get(high.device.type, BLOCK["cpu"]) // low.numel())
    for start in range(0, len(table), rows):
        a = high[:, start : start + rows, None] + low[:, None, :]
        table[start : start + rows] = -functional.logsigmoid(a.neg_()).sum(0)
    return table.flatten()


def _by_products(high: Tensor, low: Tensor) -> Tensor:
    """`softplus_table` by a compiled kernel on the CPU: a logarithm for each product of factors."""
    from pynade.classical.rbm_kernel import TILE, UNROLL, products  # brings in numba

    groups: list[list[int]] = [[]]  # consecutive variables whose factors have a finite product
    total = 0.0
    for d, size in enumerate(torch.logaddexp(high.amax(1) + low.amax(1), high.new_zeros(())).tolist()):
        if total + size > LARGEST:
            groups.append([])
            total = 0.0
        groups[-1].append(d)
        total += size
    padded_width = max(-(-len(group) // UNROLL) for group in groups) * UNROLL
    # variables by group, padded with factors 1 + 0 · 0; inner states by tile, padded with unused states
    tiles = -(-low.shape[1] // TILE)
    outer = high.new_zeros(high.shape[1], len(groups), padded_width)
    inner = high.new_zeros(tiles, len(groups), padded_width, TILE)
    padded = functional.pad(low, (0, tiles * TILE - low.shape[1]))
    for g, group in enumerate(groups):
        outer[:, g, : len(group)] = high[group].T.exp()
        inner[:, g, : len(group)] = padded[group].exp().view(len(group), tiles, TILE).transpose(0, 1)
    table = high.new_empty(high.shape[1], tiles * TILE)
    arrays = (outer.numpy(), inner.numpy(), table.numpy())
    step = max(1, len(table) // 64)
    products(*arrays, 0, 1)  # compiles before threads call it

    def task(number: int) -> None:
        products(*arrays, number * step, min(len(table), (number + 1) * step))

    run_tasks(task, -(-len(table) // step), torch.get_num_threads())
    return table[:, : low.shape[1]].flatten()


class HiddenStates:
    """Sums over states of the hidden units, the free visible units (weights (H, free), bias) summed out."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias, self.hidden = weight, bias, len(weight)
        self.outer = max(0, self.hidden - LOW_UNITS)  # units of the outer part
        self.table = softplus_table(weight, bias).view(2**self.outer, -1)
        self.largest = self.table.amax(1)
        self.scaled = (self.table - self.largest[:, None]).exp_()

    def log_sum(self, c: Tensor) -> Tensor:
        """log Σ_h exp(c · h) Π_d (1 + exp(b_d + W_d · h)): (R, H) -> (R,)."""
        return torch.logsumexp(self._outer_weights(c), -1)

    def draw(self, c: Tensor, n: int, generator: Random) -> Tensor:
        """Draws of the free variables, (n, R, free): the outer part of h, its inner part, then x given h."""
        outer = draw_indexes(self._outer_weights(c), n, generator)  # (n, R)
        inner_log = linear_table(c[:, self.outer :])
        inner = torch.empty_like(outer)
        size = max(1, STATES_BLOCK // inner_log.numel())
        for outer_part, inner_part in zip(outer.split(size), inner.split(size), strict=True):
            weights = self.table[outer_part] + inner_log  # (draws, R, 2^inner)
            inner_part.copy_(draw_indexes(weights.flatten(0, 1), 1, generator).view(inner_part.shape))
        h = bits(outer * self.table.shape[1] + inner, self.hidden)
        return draw_bernoulli(h @ self.weight + self.bias, generator)

    def logits(self, c: Tensor, which: Tensor) -> Tensor:
        """Logits (R, which) of p(x_d = 1) of the free variables `which`."""
        inner_log, outer_log = linear_table(c[:, self.outer :]), linear_table(c[:, : self.outer])
        total = self.log_sum(c)
        weight = self.weight[:, which].T  # (which, H)
        low = linear_table(weight[:, self.outer :]).T  # (2^inner, which)
        high = (linear_table(weight[:, : self.outer]) + self.bias[which, None]).T
        one = zero = c.new_zeros(len(c), len(which))
        size = max(1, STATES_BLOCK // (len(low) * max(len(which), len(c))))
        for start in range(0, len(high), size):
            part = slice(start, start + size)
            log_p = self.table[part] + inner_log[:, None] + outer_log[:, part, None]  # (R, part, 2^inner)
            p = (log_p - total[:, None, None]).exp_().flatten(1)
            a = (high[part, None] + low).flatten(0, 1)
            one = one + p @ torch.sigmoid(a)
            zero = zero + p @ torch.sigmoid(a.neg_())
        return one.log() - zero.log()

    def _outer_weights(self, c: Tensor) -> Tensor:
        """Log-weights (R, 2^outer) of the outer part of h; a matrix product sums over the inner part."""
        inner_log = linear_table(c[:, self.outer :])
        largest = inner_log.amax(1, keepdim=True)
        sums = (inner_log - largest).exp() @ self.scaled.T
        out = sums.log() + self.largest + largest
        for r in (sums < TINY).any(1).nonzero().squeeze(-1).tolist():  # repeat without underflow
            out[r] = torch.logsumexp(self.table + inner_log[r], 1)
        return out + linear_table(c[:, : self.outer])


class VisibleStates:
    """Sums over states of the free visible units, the hidden units summed out; see `HiddenStates`."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.free, self.linear = weight, len(bias), linear_table(bias)

    def log_sum(self, c: Tensor) -> Tensor:
        """log Σ_x exp(b · x) Π_k (1 + exp(c_k + W_k · x)): (R, H) -> (R,)."""
        return torch.stack([torch.logsumexp(self._weights(row), 0) for row in c])

    def draw(self, c: Tensor, n: int, generator: Random) -> Tensor:
        """Draws of the free variables, (n, R, free)."""
        return bits(torch.cat([draw_indexes(self._weights(r)[None], n, generator) for r in c], 1), self.free)

    def logits(self, c: Tensor, which: Tensor) -> Tensor:
        """Logits (R, which) of p(x_d = 1) of the free variables `which`."""
        out = c.new_empty(len(c), len(which))
        for r, row in enumerate(c):
            weights = self._weights(row)
            for j, d in enumerate(which.tolist()):
                out[r, j] = weights.view(2**d, 2, -1).logsumexp((0, 2)).diff()
        return out

    def _weights(self, c: Tensor) -> Tensor:
        return self.linear + softplus_table(self.weight.T, c)
