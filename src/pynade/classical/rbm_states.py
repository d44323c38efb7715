"""All states of an RBM's smaller layer, asked for many hidden biases: sums, draws and laws.

A row of data with some cells observed leaves an RBM of its free variables with biases c + W x of the hidden
units. Rows that have observed the same cells share everything else, so its table is computed once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pynade.classical import rbm_sum
from pynade.classical.binary import bernoulli_draws, choose

LOW_UNITS = 10  # hidden units of the inner part, which is summed by matrix products
TINY = 1e-260  # a sum of products this small may have lost terms to underflow
BLOCK = 2**20  # values at a time


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

    def log_sum(self, told: Tensor) -> Tensor:
        """log Σ_h exp(told · h) Π_d (1 + exp(b_d + W_d · h)): (R, H) -> (R,)."""
        return torch.logsumexp(self._outer_weights(told), -1)

    def draw(self, told: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        """Free variables (n, R, free): the outer part of h, the inner part given it, then x given h."""
        outer = choose(self._outer_weights(told), n, generator)  # (n, R)
        inner_log = rbm_sum.linear_table(told[:, self.outer :])
        inner = torch.empty_like(outer)
        size = max(1, BLOCK // inner_log.numel())
        for start in range(0, n, size):
            part = slice(start, start + size)
            weights = self.table[outer[part]] + inner_log  # (part, R, 2^inner)
            drawn = choose(weights.flatten(0, 1), 1, generator)
            inner[part] = drawn.view(weights.shape[:2])
        h = rbm_sum.bits(outer * self.table.shape[1] + inner, self.hidden)
        return bernoulli_draws(h @ self.weight + self.bias, generator)

    def logits(self, told: Tensor, which: Tensor) -> Tensor:
        """Logits (R, which) of p(x_d = 1) of some free variables."""
        inner_log = rbm_sum.linear_table(told[:, self.outer :])
        outer_log = rbm_sum.linear_table(told[:, : self.outer])
        total = torch.logsumexp(self._outer_weights(told), -1)
        weight = self.weight[:, which].T  # (which, H)
        low = rbm_sum.linear_table(weight[:, self.outer :]).T  # (2^inner, which)
        high = (rbm_sum.linear_table(weight[:, : self.outer]) + self.bias[which, None]).T
        one = zero = told.new_zeros(len(told), len(which))
        size = max(1, BLOCK // (len(low) * max(len(which), len(told))))
        for start in range(0, len(high), size):
            part = slice(start, start + size)
            log_p = self.table[part] + inner_log[:, None] + outer_log[:, part, None]  # (R, part, 2^inner)
            p = (log_p - total[:, None, None]).exp_().flatten(1)
            a = (high[part, None] + low).flatten(0, 1)
            one = one + p @ torch.sigmoid(a)
            zero = zero + p @ torch.sigmoid(a.neg_())
        return one.log() - zero.log()

    def _outer_weights(self, told: Tensor) -> Tensor:
        """Log-weights (R, 2^outer) of the outer part of h, the inner part summed by a matrix product."""
        inner_log = rbm_sum.linear_table(told[:, self.outer :])
        top = inner_log.amax(1, keepdim=True)
        sums = (inner_log - top).exp() @ self.scaled.T
        out = sums.log() + self.largest + top
        for r in (sums < TINY).any(1).nonzero().squeeze(-1).tolist():  # the slow way loses nothing
            out[r] = torch.logsumexp(self.table + inner_log[r], 1)
        return out + rbm_sum.linear_table(told[:, : self.outer])


class VisibleStates:
    """Sums over the free visible units, the smaller layer; the hidden ones are summed out analytically.

    Args:
        weight: W (H, free).
        bias: b (free,).
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.free = weight, len(bias)
        self.linear = rbm_sum.linear_table(bias)

    def log_sum(self, told: Tensor) -> Tensor:
        """log Σ_x exp(b · x) Π_k (1 + exp(told_k + W_k · x)): (R, H) -> (R,)."""
        return torch.stack([torch.logsumexp(self._weights(row), 0) for row in told])

    def draw(self, told: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        """Free variables (n, R, free)."""
        states = torch.cat([choose(self._weights(row)[None], n, generator) for row in told], 1)
        return rbm_sum.bits(states, self.free)

    def logits(self, told: Tensor, which: Tensor) -> Tensor:
        """Logits (R, which) of p(x_d = 1) of some free variables."""
        out = told.new_empty(len(told), len(which))
        for r, row in enumerate(told):
            weights = self._weights(row)
            for j, d in enumerate(which.tolist()):
                zero, one = weights.view(2**d, 2, -1).transpose(0, 1).flatten(1).logsumexp(1)
                out[r, j] = one - zero
        return out

    def _weights(self, told: Tensor) -> Tensor:
        return self.linear + rbm_sum.softplus_table(self.weight.T, told)
