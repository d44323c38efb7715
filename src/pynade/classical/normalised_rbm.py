"""A small restricted Boltzmann machine as an exact density: sums over all states of its smaller layer.

A row with some cells observed leaves an RBM of its free variables, with biases c + W x of the hidden units.
Rows in which the same cells are observed share everything else, so its table is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pynade.classical import rbm_sum
from pynade.classical.binary import BinaryMarginalisable, bernoulli_draws, choose
from pynade.classical.rbm import RBM
from pynade.families import Family

ROWS = 256  # whose states are computed together
LOW_UNITS = 10  # hidden units of the inner part, which is summed by matrix products
TINY = 1e-260  # a sum of products this small may have lost terms to underflow
BLOCK = 2**20  # values at a time


class NormalisedRBM(BinaryMarginalisable):
    """log p(x) = −F(x) − log Z of an RBM whose smaller layer has at most 25 units (the paper uses 23).

    Exact throughout: draws choose a state of the smaller layer from all 2^H by its probability, and what
    is not observed is summed out analytically given the hidden units. Scoring complete rows costs O(HD);
    anything else costs a sum over all states for each pattern of observed cells and some passes over its
    table: nothing at H = 10, about a second at H = 23, and about ten seconds for all D distributions at once.

    Its parameters are frozen copies, since log Z belongs to them.

    Args:
        rbm: the machine.

    Example:
        >>> import torch
        >>> model = NormalisedRBM(RBM(3, 2, scale=1.0, generator=torch.Generator().manual_seed(0)))
        >>> model.sample(4, torch.Generator().manual_seed(0)).shape
        torch.Size([4, 3])
    """

    log_z: Tensor

    def __init__(self, rbm: RBM) -> None:
        super().__init__(rbm.n_visible)
        with torch.no_grad():
            self.rbm = RBM(rbm.n_visible, rbm.n_hidden).to(rbm.W)
            self.rbm.load_state_dict(rbm.state_dict())
        self.rbm.requires_grad_(False)
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

    def _logits_given(self, x: Tensor, observed: Tensor) -> Tensor:
        out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        for rows, free, states, c in self._groups(x, observed):
            every = torch.arange(len(free), device=x.device)
            out[rows[:, None], free] = states.logits(c, every)
        return out

    @torch.no_grad()
    def distribution(self, i: int, x: Tensor, observed: Tensor) -> tuple[Family, Tensor]:
        """p(x_i | observed cells): Bernoulli, and its logits (B, 1); cheaper than all D of them."""
        out = torch.zeros(len(x), 1, dtype=torch.float64, device=x.device)
        for rows, free, states, c in self._groups(self._clean(x, observed), observed):
            if (free == i).any():
                out[rows] = states.logits(c, (free == i).nonzero().squeeze(-1))
        return self.family, out

    @torch.no_grad()
    def sample_given(
        self, x: Tensor, observed: Tensor, n: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """A state of the smaller layer given the observed cells, then the rest given it: (n, B, D)."""
        x = self._clean(x, observed)
        out = x.expand(n, -1, -1).clone()
        for rows, free, states, c in self._groups(x, observed):
            out[:, rows[:, None], free] = states.draw(c, n, generator).to(x.dtype)
        return out

    def config(self) -> dict[str, Any]:
        """Constructor arguments; log Z is saved as a tensor."""
        return {"rbm": self.rbm}

    def _groups(
        self, x: Tensor, observed: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, HiddenStates | VisibleStates, Tensor]]:
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


class HiddenStates:
    """Sums over the hidden units; the free visible ones are summed out analytically.

    Args:
        weight: W (H, free).
        bias: b (free,).
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias, self.hidden = weight, bias, len(weight)
        self.outer = max(0, self.hidden - LOW_UNITS)  # units of the outer part
        self.table = rbm_sum.softplus_table(weight, bias).view(2**self.outer, -1)
        self.largest = self.table.amax(1)
        self.scaled = (self.table - self.largest[:, None]).exp_()

    def log_sum(self, c: Tensor) -> Tensor:
        """log Σ_h exp(c · h) Π_d (1 + exp(b_d + W_d · h)): (R, H) -> (R,)."""
        return torch.logsumexp(self._outer_weights(c), -1)

    def draw(self, c: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        """Free variables (n, R, free): the outer part of h, the inner part given it, then x given h."""
        outer = choose(self._outer_weights(c), n, generator)  # (n, R)
        inner_log = rbm_sum.linear_table(c[:, self.outer :])
        inner = torch.empty_like(outer)
        size = max(1, BLOCK // inner_log.numel())
        for start in range(0, n, size):
            part = slice(start, start + size)
            weights = self.table[outer[part]] + inner_log  # (part, R, 2^inner)
            drawn = choose(weights.flatten(0, 1), 1, generator)
            inner[part] = drawn.view(weights.shape[:2])
        h = rbm_sum.bits(outer * self.table.shape[1] + inner, self.hidden)
        return bernoulli_draws(h @ self.weight + self.bias, generator)

    def logits(self, c: Tensor, which: Tensor) -> Tensor:
        """Logits (R, which) of p(x_d = 1) of some free variables."""
        inner_log = rbm_sum.linear_table(c[:, self.outer :])
        outer_log = rbm_sum.linear_table(c[:, : self.outer])
        total = torch.logsumexp(self._outer_weights(c), -1)
        weight = self.weight[:, which].T  # (which, H)
        low = rbm_sum.linear_table(weight[:, self.outer :]).T  # (2^inner, which)
        high = (rbm_sum.linear_table(weight[:, : self.outer]) + self.bias[which, None]).T
        one = zero = c.new_zeros(len(c), len(which))
        size = max(1, BLOCK // (len(low) * max(len(which), len(c))))
        for start in range(0, len(high), size):
            part = slice(start, start + size)
            log_p = self.table[part] + inner_log[:, None] + outer_log[:, part, None]  # (R, part, 2^inner)
            p = (log_p - total[:, None, None]).exp_().flatten(1)
            a = (high[part, None] + low).flatten(0, 1)
            one = one + p @ torch.sigmoid(a)
            zero = zero + p @ torch.sigmoid(a.neg_())
        return one.log() - zero.log()

    def _outer_weights(self, c: Tensor) -> Tensor:
        """Log-weights (R, 2^outer) of the outer part of h, the inner part summed by a matrix product."""
        inner_log = rbm_sum.linear_table(c[:, self.outer :])
        top = inner_log.amax(1, keepdim=True)
        sums = (inner_log - top).exp() @ self.scaled.T
        out = sums.log() + self.largest + top
        for r in (sums < TINY).any(1).nonzero().squeeze(-1).tolist():  # the slow way loses nothing
            out[r] = torch.logsumexp(self.table + inner_log[r], 1)
        return out + rbm_sum.linear_table(c[:, : self.outer])


class VisibleStates:
    """Sums over the free visible units, the smaller layer; the hidden ones are summed out analytically.

    Args:
        weight: W (H, free).
        bias: b (free,).
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.free = weight, len(bias)
        self.linear = rbm_sum.linear_table(bias)

    def log_sum(self, c: Tensor) -> Tensor:
        """log Σ_x exp(b · x) Π_k (1 + exp(c_k + W_k · x)): (R, H) -> (R,)."""
        return torch.stack([torch.logsumexp(self._weights(row), 0) for row in c])

    def draw(self, c: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        """Free variables (n, R, free)."""
        states = torch.cat([choose(self._weights(row)[None], n, generator) for row in c], 1)
        return rbm_sum.bits(states, self.free)

    def logits(self, c: Tensor, which: Tensor) -> Tensor:
        """Logits (R, which) of p(x_d = 1) of some free variables."""
        out = c.new_empty(len(c), len(which))
        for r, row in enumerate(c):
            weights = self._weights(row)
            for j, d in enumerate(which.tolist()):
                zero, one = weights.view(2**d, 2, -1).transpose(0, 1).flatten(1).logsumexp(1)
                out[r, j] = one - zero
        return out

    def _weights(self, c: Tensor) -> Tensor:
        return self.linear + rbm_sum.softplus_table(self.weight.T, c)
