"""Restricted Boltzmann machines: an energy, and where it is small enough an exact density.

A row with some cells observed leaves an RBM of its free variables, with biases c + W x of the hidden units.
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
from pynade.classical import rbm_sum
from pynade.classical.binary import BinaryMarginalisable, bernoulli_draws
from pynade.classical.em import Random
from pynade.classical.rbm_sum import HiddenStates, VisibleStates
from pynade.families import Bernoulli
from pynade.models.autoregressive import Autoregressive
from pynade.models.density import Model, check_columns
from pynade.nets import NADENet
from pynade.ordering import Ordering

ROWS = 256  # whose states are computed together

States = HiddenStates | VisibleStates


@dataclass(frozen=True)
class PartitionEstimate:
    """An estimate of log Z, on average too low: log-likelihoods computed with it tend to be too good."""

    log_z: float  # logarithm of the mean of the chains' weights
    stderr: float  # its standard error, by the delta method; near 1 the estimate is not to be trusted
    n_chains: int  # independent chains
    n_steps: int  # intermediate distributions
    exact: bool = False  # always

    def __str__(self) -> str:
        return f"log Z = {self.log_z:.3f} ± {self.stderr:.3f} nats (estimate, {self.n_chains} chains)"


class RBM(Model):
    """E(x, h) = −hᵀW x − bᵀx − cᵀh with binary x (D,) and h (H,) (section "Relationship with the RBM").

    It gives free energies, −log Σ_h exp(−E), and Gibbs samples; probabilities need the partition function, a
    sum over 2^min(H, D) states: `normalised()` is a density like any other where that is feasible, and
    `log_partition_ais` is an estimate.

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
        """Rows (n, D) of n chains after `steps` rounds of h | x and x | h: near the model, not exact draws.

        Args:
            n: number of chains.
            steps: rounds.
            generator: source of randomness.
            start: rows (n, D) to start from; fair coins when not given.
        """
        x = bernoulli_draws(self.b.new_zeros(n, self.n_visible), generator) if start is None else start
        self.check(x)
        if len(x) != n:
            raise ValueError(f"{len(x)} rows to start from were given for {n} chains")
        x = x.to(self.W)
        for _ in range(steps):
            h = bernoulli_draws(x @ self.W.T + self.c, generator).to(self.dtype)
            x = bernoulli_draws(h @ self.W + self.b, generator).to(self.dtype)
        return x

    @torch.no_grad()
    def log_partition(self) -> float:
        """log Z, exact: the sum over all states of the smaller layer, at most 25 units."""
        if (smaller := min(self.n_hidden, self.n_visible)) > rbm_sum.MOST_UNITS:
            raise ValueError(
                f"the exact partition function sums over all states of the smaller layer, which has "
                f"{smaller} units and may have {rbm_sum.MOST_UNITS}; log_partition_ais gives an estimate"
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

        As β rises from 0 to 1, chains go from independent variables to the RBM, by a round of Gibbs sampling
        at each step: distribution β is ∝ exp((1 − β) baseᵀx + β bᵀx) Π_k (1 + exp(β (c_k + W_k x))).

        Args:
            n_chains: independent chains, computed together; at least 2.
            n_steps: intermediate distributions.
            generator: source of randomness.
            base: logits (D,) of the start, best the data's base rates; the RBM's own b when not given.

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
        x = bernoulli_draws(start.expand(n_chains, -1), generator)
        log_w = torch.zeros(n_chains, dtype=torch.float64, device=W.device)
        betas = torch.linspace(0, 1, n_steps + 1, dtype=torch.float64).tolist()
        for before, beta in pairwise(betas):
            a, linear = x @ W.T + c, x @ (b - start)
            rise = functional.logsigmoid(-before * a) - functional.logsigmoid(-beta * a)
            log_w += (beta - before) * linear + rise.sum(-1)
            h = bernoulli_draws(beta * a, generator)
            x = bernoulli_draws((1 - beta) * start + beta * (h @ W + b), generator)
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

    Exact throughout. Anything but scores of complete rows costs a sum over all states for each pattern of
    observed cells: about a second at H = 23. Its parameters are frozen copies, since log Z belongs to them.

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
        out = self._log_prob(x)  # what it is where all is observed
        known = x.double() @ self.rbm.b.double() - self.log_z.double()  # x is zero where it is not observed
        for rows, _, states, c in self._groups(x, observed):
            out[rows] = known[rows] + states.log_sum(c)
        return out

    def _logits_given(self, x: Tensor, observed: Tensor, only: int | None = None) -> Tensor:
        out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        for rows, free, states, c in self._groups(x, observed):
            which = (free >= 0 if only is None else free == only).nonzero().squeeze(-1)
            if len(which):
                out[rows[:, None], free[which]] = states.logits(c, which)
        return out

    def _draw_given(self, x: Tensor, observed: Tensor, n: int, generator: Random) -> Tensor:
        """A state of the smaller layer given the observed cells, then the rest given it: (n, B, D)."""
        out = x.expand(n, -1, -1).clone()
        for rows, free, states, c in self._groups(x, observed):
            out[:, rows[:, None], free] = states.draw(c, n, generator).to(x.dtype)
        return out

    def _groups(self, x: Tensor, observed: Tensor) -> Iterator[tuple[Tensor, Tensor, States, Tensor]]:
        """Rows with the same observed cells, their free variables, the states, and hidden biases (R, H)."""
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
