"""A small restricted Boltzmann machine as an exact density."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pynade.models import rbm_sum
from pynade.models.binary import BinaryMarginalisable, bernoulli_draws, choose
from pynade.models.rbm import RBM

BLOCK = 2**22  # table entries of several rows worked on together


class NormalisedRBM(BinaryMarginalisable):
    """log p(x) = −F(x) − log Z of an RBM whose smaller layer has at most 25 units (the paper uses 23).

    Exact throughout: draws choose a state of the smaller layer from all 2^H by its probability, and what
    is not observed is summed out analytically given the hidden units. Scoring complete rows costs O(HD);
    any other question costs a sum over all states for each pattern of observed cells and a pass over the
    table for each row: nothing at H = 10, about a second at H = 23.

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
        self.over_hidden = rbm.n_hidden <= rbm.n_visible

    def _log_prob(self, x: Tensor) -> Tensor:
        return -self.rbm._free_energy(x) - self.log_z.double()

    def _marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        out = torch.empty(len(x), dtype=torch.float64, device=x.device)
        for rows, pattern in _patterns(observed):
            if pattern.all():
                out[rows] = self._log_prob(x[rows])
                continue
            for part, weights in self._weights(x, rows, pattern):
                out[part] = torch.logsumexp(weights, -1) - self.log_z.double()
        return out

    def _logits_given(self, x: Tensor, observed: Tensor) -> Tensor:
        out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        for rows, pattern in _patterns(observed):
            where = (~pattern).nonzero().squeeze(-1)
            for part, weights in self._weights(x, rows, pattern) if len(where) else ():
                out[part[:, None], where] = self._unit_logits(torch.softmax(weights, -1), where)
        return out

    @torch.no_grad()
    def sample_given(
        self, x: Tensor, observed: Tensor, n: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """A state of the smaller layer given the observed cells, then the rest given it: (n, B, D)."""
        x = self._clean(x, observed)
        out = x.expand(n, -1, -1).clone()
        for rows, pattern in _patterns(observed):
            where = (~pattern).nonzero().squeeze(-1)
            for part, weights in self._weights(x, rows, pattern) if len(where) else ():
                states = choose(weights, n, generator)  # (n, part)
                if self.over_hidden:
                    h = rbm_sum.bits(states, self.rbm.n_hidden)
                    logits = h @ self.rbm.W[:, where].double() + self.rbm.b[where].double()
                    drawn = bernoulli_draws(logits, generator)
                else:
                    drawn = rbm_sum.bits(states, len(where))
                out[:, part[:, None], where] = drawn.to(x.dtype)
        return out

    def _weights(self, x: Tensor, rows: Tensor, pattern: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows of one pattern, a few at a time, with log-weights (rows, states) that sum to Z p(observed).

        States are those of the hidden units, with the unobserved x summed out, or those of the unobserved
        x, with the hidden units summed out.
        """
        W, b, c = (p.double() for p in (self.rbm.W, self.rbm.b, self.rbm.c))
        known = x[rows][:, pattern].double()
        told = c + known @ W[:, pattern].T  # what the hidden units hear, (rows, H)
        fixed = known @ b[pattern]
        if not self.over_hidden:
            linear = rbm_sum.linear_table(b[~pattern])
            for r in range(len(rows)):
                table = rbm_sum.softplus_table(W[:, ~pattern].T, told[r])
                yield rows[r : r + 1], (fixed[r] + linear + table).unsqueeze(0)
            return
        table = rbm_sum.softplus_table(W[:, ~pattern], b[~pattern])
        for part in torch.arange(len(rows), device=x.device).split(max(1, BLOCK // len(table))):
            yield rows[part], fixed[part, None] + table + rbm_sum.linear_table(told[part])

    def _unit_logits(self, weights: Tensor, where: Tensor) -> Tensor:
        """Logits (rows, where) of the unobserved x from probabilities (rows, states) of all states."""
        one = zero = weights.new_zeros(len(weights), len(where))
        W, b = self.rbm.W[:, where].double(), self.rbm.b[where].double()
        states = torch.arange(weights.shape[1], device=weights.device)
        for block in states.split(max(1, BLOCK // len(where))):
            if self.over_hidden:
                logits = rbm_sum.bits(block, self.rbm.n_hidden) @ W + b
                p1, p0 = torch.sigmoid(logits), torch.sigmoid(-logits)
            else:
                p1 = rbm_sum.bits(block, len(where))
                p0 = 1 - p1
            part = weights[:, block[0] : block[-1] + 1]
            one, zero = one + part @ p1, zero + part @ p0
        return one.log() - zero.log()

    def config(self) -> dict[str, Any]:
        """Constructor arguments; log Z travels as a tensor."""
        return {"rbm": self.rbm}


def _patterns(observed: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows that have observed the same cells, and which cells these are."""
    patterns, index = observed.unique(dim=0, return_inverse=True)
    for k, pattern in enumerate(patterns):
        yield (index == k).nonzero().squeeze(-1), pattern
