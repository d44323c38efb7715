"""Mixtures of Chow–Liu trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.classical.binary import BinaryMarginalisable, choose
from pynade.classical.chow_liu import ChowLiuTree


class TreeMixture(BinaryMarginalisable):
    """p(x) = Σ_k w_k T_k(x), each T_k a tree with a structure of its own.

    Weights are the softmax of `log_weights` (K,). `learn.em_trees` fits one.

    Args:
        components: the trees T_k.
        weights: positive, normalised here; equal when not given.

    Example:
        >>> import torch
        >>> model = TreeMixture([ChowLiuTree(2, [-1, 0]), ChowLiuTree(2, [1, -1])], weights=[3, 1])
        >>> round(model.log_prob(torch.ones(1, 2)).exp().item(), 6)
        0.25
    """

    def __init__(self, components: Sequence[ChowLiuTree], weights: Sequence[float] | None = None) -> None:
        if not components:
            raise ValueError("a mixture needs at least one component")
        sizes = {tree.n_variables for tree in components}
        if len(sizes) > 1:
            raise ValueError(f"all components must have the same number of variables, not {sorted(sizes)}")
        super().__init__(sizes.pop())
        given = [1.0] * len(components) if weights is None else [float(w) for w in weights]
        if len(given) != len(components) or not all(w > 0 for w in given):
            raise ValueError("a mixture needs one positive weight for each component")
        self.components = nn.ModuleList(components)
        logits = components[0].logits
        log_weights = (torch.tensor(given, dtype=torch.float64) / sum(given)).log()
        self.log_weights = nn.Parameter(log_weights.to(logits))

    @property
    def trees(self) -> list[ChowLiuTree]:
        """The components."""
        return list(self.components)  # type: ignore[arg-type]

    def component_log_probs(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """log w_k + log T_k(observed cells), (B, K), float64; x is zero where not observed."""
        if observed is None:
            each = [tree._log_prob(x) for tree in self.trees]
        else:
            each = [tree._marginal(x, observed) for tree in self.trees]
        return torch.stack(each, -1) + torch.log_softmax(self.log_weights.double(), 0)

    def _log_prob(self, x: Tensor) -> Tensor:
        return torch.logsumexp(self.component_log_probs(x), -1)

    def _marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        return torch.logsumexp(self.component_log_probs(x, observed), -1)

    def _logits_given(self, x: Tensor, observed: Tensor) -> Tensor:
        weights = torch.log_softmax(self.component_log_probs(x, observed), -1)
        one = zero = torch.full(x.shape, -torch.inf, dtype=torch.float64, device=x.device)
        for k, tree in enumerate(self.trees):
            logits, weight = tree._logits_given(x, observed), weights[:, k : k + 1]
            one = torch.logaddexp(one, weight + functional.logsigmoid(logits))
            zero = torch.logaddexp(zero, weight + functional.logsigmoid(-logits))
        return one - zero

    @torch.no_grad()
    def sample_given(
        self, x: Tensor, observed: Tensor, n: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """A tree from its posterior, then the unobserved cells from it: (n, B, D)."""
        x = self._clean(x, observed)
        component = choose(self.component_log_probs(x, observed), n, generator)  # (n, B)
        out = x.expand(n, -1, -1).clone()
        for k, tree in enumerate(self.trees):
            draw, row = (component == k).nonzero(as_tuple=True)
            if len(row):
                out[draw, row] = tree.sample_given(x[row], observed[row], 1, generator)[0]
        return out

    def config(self) -> dict[str, Any]:
        """Constructor arguments; the weights travel as a tensor."""
        return {"components": self.trees}
