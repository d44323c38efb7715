"""A small restricted Boltzmann machine as an exact density."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pynade.classical.binary import BinaryMarginalisable
from pynade.classical.rbm import RBM
from pynade.classical.rbm_states import HiddenStates, VisibleStates
from pynade.families import Family

ROWS = 256  # whose states are worked on together


class NormalisedRBM(BinaryMarginalisable):
    """log p(x) = −F(x) − log Z of an RBM whose smaller layer has at most 25 units (the paper uses 23).

    Exact throughout: draws choose a state of the smaller layer from all 2^H by its probability, and what
    is not observed is summed out analytically given the hidden units. Scoring complete rows costs O(HD);
    any other question costs a sum over all states for each pattern of observed cells and some passes over
    its table: nothing at H = 10, about a second at H = 23, and some ten seconds for all D laws at once.

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
        for rows, _, states, told in self._questions(x, observed):
            out[rows] = known[rows] + states.log_sum(told)
        return out

    def _logits_given(self, x: Tensor, observed: Tensor) -> Tensor:
        out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        for rows, free, states, told in self._questions(x, observed):
            every = torch.arange(len(free), device=x.device)
            out[rows[:, None], free] = states.logits(told, every)
        return out

    @torch.no_grad()
    def distribution(self, i: int, x: Tensor, observed: Tensor) -> tuple[Family, Tensor]:
        """p(x_i | observed cells): Bernoulli, and its logits (B, 1); cheaper than all D laws."""
        out = torch.zeros(len(x), 1, dtype=torch.float64, device=x.device)
        for rows, free, states, told in self._questions(self._clean(x, observed), observed):
            if (free == i).any():
                out[rows] = states.logits(told, (free == i).nonzero().squeeze(-1))
        return self.family, out

    @torch.no_grad()
    def sample_given(
        self, x: Tensor, observed: Tensor, n: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """A state of the smaller layer given the observed cells, then the rest given it: (n, B, D)."""
        x = self._clean(x, observed)
        out = x.expand(n, -1, -1).clone()
        for rows, free, states, told in self._questions(x, observed):
            out[:, rows[:, None], free] = states.draw(told, n, generator).to(x.dtype)
        return out

    def config(self) -> dict[str, Any]:
        """Constructor arguments; log Z travels as a tensor."""
        return {"rbm": self.rbm}

    def _questions(
        self, x: Tensor, observed: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, HiddenStates | VisibleStates, Tensor]]:
        """Rows that have observed the same cells, their free variables, the states, and what units are told.

        What the observed cells tell the hidden units is c + W x, (rows, H): an RBM of the free variables
        with other hidden biases is all that remains of a row.
        """
        W, b, c = (p.double() for p in (self.rbm.W, self.rbm.b, self.rbm.c))
        kind = HiddenStates if self.rbm.n_hidden <= self.rbm.n_visible else VisibleStates
        patterns, index = observed.unique(dim=0, return_inverse=True)
        for k, pattern in enumerate(patterns):
            free = (~pattern).nonzero().squeeze(-1)
            if len(free):
                states = kind(W[:, free], b[free])
                for rows in (index == k).nonzero().squeeze(-1).split(ROWS):
                    yield rows, free, states, c + x[rows].double() @ W.T
