"""Trees of binary variables: every variable depends on one other, and every question is exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.classical.binary import BinaryMarginalisable, bernoulli_draws


class ChowLiuTree(BinaryMarginalisable):
    """p(x) = Π_d p(x_d | x_parent(d)), a tree or a forest over the variables.

    `parent` (D,) holds the parent of each variable, -1 for a root; `logits` (D, 2) the logit of
    p(x_d = 1 | x_parent = z) in column z. A root reads column 0 only. Logits stay finite where a smoothed
    probability is as small as 1e-20, so nothing has to be floored. `learn.chow_liu` fits one.

    Marginals and conditionals go by messages from the leaves to the roots and back, one step for each depth
    of the tree, all rows at once whatever each has observed.

    Args:
        n_variables: D.
        parent: D integers; None makes all variables roots, that is independent.

    Example:
        >>> import torch
        >>> chain = ChowLiuTree(3, parent=[-1, 0, 1])
        >>> round(chain.log_prob(torch.zeros(1, 3)).exp().item(), 6)
        0.125
    """

    parent: Tensor

    def __init__(self, n_variables: int, parent: Sequence[int] | Tensor | None = None) -> None:
        super().__init__(n_variables)
        given = torch.full((n_variables,), -1) if parent is None else torch.as_tensor(parent)
        self.register_buffer("parent", given.clone())
        self.logits = nn.Parameter(torch.zeros(n_variables, 2))
        self.register_load_state_dict_post_hook(_check_loaded)
        _check_loaded(self, None)

    def edges(self) -> list[tuple[int, int]]:
        """(parent, child) of every edge."""
        return [(int(p), d) for d, p in enumerate(self.parent) if p >= 0]

    def _log_prob(self, x: Tensor) -> Tensor:
        table = self._table()
        eta = torch.where(x[:, self.parent.clamp(min=0)] > 0, table[:, 1], table[:, 0])
        return self.family.log_prob(x, eta.unsqueeze(-1)).sum(-1, dtype=torch.float64)

    def _marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        up, _ = self._upward(x, observed)
        roots = self.parent < 0
        belief = up[:, roots] + self._log_table()[roots, 0]
        return torch.logaddexp(belief[..., 0], belief[..., 1]).sum(-1)

    def _logits_given(self, x: Tensor, observed: Tensor) -> Tensor:
        up, message = self._upward(x, observed)
        log_p, belief = self._log_table(), torch.empty_like(up)  # belief: log p(x_i = v, all observed cells)
        for depth, level in enumerate(self.levels()):
            own = log_p[level, 0]
            if depth:  # what the parent knows from everywhere but this child
                rest = (belief[:, self.parent[level]] - message[:, level]).unsqueeze(-1)
                own = torch.logaddexp(*(rest + log_p[level]).unbind(-2))
            belief[:, level] = up[:, level] + own
        return belief[..., 1] - belief[..., 0]

    @torch.no_grad()
    def sample_given(
        self, x: Tensor, observed: Tensor, n: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """Joint draws by backward sampling: messages once, then from the roots down: (n, B, D)."""
        x = self._clean(x, observed)
        up, _ = self._upward(x, observed)
        logit = (up[..., 1] - up[..., 0]).expand(n, -1, -1)  # infinite where observed, so that cells keep x
        table, out = self._table().double(), x.expand(n, -1, -1).double().clone()
        for depth, level in enumerate(self.levels()):
            own = table[level, 0]
            if depth:
                own = torch.where(out[..., self.parent[level]] > 0, table[level, 1], table[level, 0])
            out[..., level] = bernoulli_draws(logit[..., level] + own, generator)
        return out.to(x.dtype)

    def levels(self) -> list[Tensor]:
        """The variables of each depth, roots first; a parent is always one level above its children."""
        return [torch.as_tensor(level, device=self.parent.device) for level in _levels(self.parent)]

    def config(self) -> dict[str, Any]:
        """Constructor arguments; the parents travel as a tensor."""
        return {"n_variables": self.n_variables}

    def _table(self) -> Tensor:
        """Logits (D, 2) in which a root's columns are equal."""
        return torch.where((self.parent < 0)[:, None], self.logits[:, :1], self.logits)

    def _log_table(self) -> Tensor:
        """log p(x_d = v | x_parent = z), (D, z, v), float64."""
        table = self._table().double()
        return torch.stack([functional.logsigmoid(-table), functional.logsigmoid(table)], -1)

    def _upward(self, x: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """log p(observed at and below i | x_i = v) and the message of i to its parent's value, (B, D, 2)."""
        value = torch.arange(2, device=x.device)
        impossible = observed.unsqueeze(-1) & (x.unsqueeze(-1) != value)
        up = torch.zeros(impossible.shape, dtype=torch.float64, device=x.device)
        up = up.masked_fill(impossible, -torch.inf)
        message, log_p = torch.zeros_like(up), self._log_table()
        for level in reversed(self.levels()[1:]):
            told = torch.logaddexp(*(up[:, level].unsqueeze(-2) + log_p[level]).unbind(-1))
            message[:, level] = told
            up.index_add_(1, self.parent[level], told)
        return up, message


def _levels(parent: Tensor) -> list[np.ndarray]:
    """Variables by depth; a ValueError if they are no forest."""
    above = parent.cpu().numpy()
    n = len(above)
    if above.ndim != 1 or above.dtype.kind != "i" or n == 0 or above.min() < -1 or above.max() >= n:
        raise ValueError(f"parents are D integers from -1 (a root) to D - 1, not {above.tolist()[:8]}")
    levels, found = [], np.flatnonzero(above < 0)
    while len(found):
        levels.append(found)
        here = np.zeros(n + 1, dtype=bool)  # a root looks at the last place, which is never set
        here[found] = True
        found = np.flatnonzero(here[above])
    if sum(map(len, levels)) < n:
        raise ValueError("the parents of a tree must not run in a circle")
    return levels


def _check_loaded(tree: ChowLiuTree, _: Any) -> None:
    """Parents come from the caller or from a file: they must be a forest."""
    if tree.parent.shape != (tree.n_variables,):
        raise ValueError(
            f"a tree of {tree.n_variables} variables has as many parents, not {tree.parent.shape}"
        )
    if not tree.parent.is_meta:
        _levels(tree.parent)
