"""Averages of densities: probabilities are averaged, never logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from pynade.families import Family
from pynade.models.autoregressive import Autoregressive, Ordered, Rows, ancestral
from pynade.models.density import Density
from pynade.nets.base import AnyOrderNet, Net, Random
from pynade.ordering import Ordering

CPU_NUMBERS = 1 << 17  # numbers of the orderings that are computed together: what stays in a cache
GPU_NUMBERS = 1 << 26  # what keeps a GPU busy


class Mixture(Density):
    """p(x) = Σ_k w_k p_k(x) for any densities over the same variables.

    Args:
        components: the densities p_k.
        weights: positive, normalised here; equal when not given.

    Example:
        >>> from pynade.families import Bernoulli
        >>> from pynade.models import Independent
        >>> fair, sure = Independent(Bernoulli(), 2), Independent(Bernoulli(), 2)
        >>> _ = sure.eta.data.fill_(50.0)
        >>> round(Mixture([fair, sure]).log_prob(torch.ones(1, 2)).exp().item(), 6)
        0.625
    """

    components: Any  # nn.ModuleList of densities

    def __init__(self, components: Sequence[Density], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        self.n_variables, log_weights = checked_components(components, weights)
        self.components, self.log_weights = nn.ModuleList(components), nn.Buffer(log_weights)

    def _log_prob(self, x: Tensor) -> Tensor:
        each = torch.stack([c._log_prob(x) for c in self.components], dim=-1)
        return torch.logsumexp(each + self.log_weights, dim=-1)

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """Choose a component for each row, then draw from it."""
        weights = self.log_weights.exp()
        choice = torch.multinomial(weights, n, replacement=True, generator=generator) if n else weights[:0]
        x = torch.empty(n, self.n_variables, dtype=self.dtype, device=self.device)
        for k, component in enumerate(self.components):
            rows = (choice == k).nonzero().squeeze(-1)
            if len(rows):
                x[rows] = component.sample(len(rows), generator).to(x.dtype)
        return x

    def check(self, x: Tensor) -> None:
        """A row must be in the domain of every component."""
        for component in self.components:
            component.check(x)

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the components."""
        return self.components[0].dtype

    def config(self) -> dict[str, Any]:
        """Constructor arguments."""
        return {"components": list(self.components), "weights": self.log_weights.exp().tolist()}


def checked_components(components: Sequence[Density], weights: Sequence[float] | None) -> tuple[int, Tensor]:
    """The number of variables of all components, and their normalised log-weights (K,), float64."""
    if not components:
        raise ValueError("a mixture needs at least one component")
    sizes = {c.n_variables for c in components}
    if len(sizes) > 1:
        raise ValueError(f"all components must have the same number of variables, not {sorted(sizes)}")
    w = [1.0] * len(components) if weights is None else [float(v) for v in weights]
    if len(w) != len(components) or not all(v > 0 for v in w):
        raise ValueError("a mixture needs one positive weight for each component")
    return sizes.pop(), (torch.tensor(w, dtype=torch.float64) / sum(w)).log()


class Ensemble(Ordered):
    """One net under K orderings, averaged: p(x) = 1/K Σ_k p(x | o⁽ᵏ⁾) (section "Ensembles").

    Training draws one of the orderings for each update and maximises its exact likelihood (MADE-E). With
    `fresh` it draws a random ordering for every row instead, so that the net learns all D! of them, and
    `orderings` are only those that are averaged; others can replace them afterwards (`under`).

    Args:
        net: shared by all members.
        family: the distributions that eta stands for.
        orderings: a (K, D) batch.
        fresh: train on a random ordering of every row, for a net that `takes_orderings`.

    Example:
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import MADENet
        >>> model = Ensemble(MADENet(3, hidden=8), Bernoulli(), Ordering.random(3, k=4))
        >>> x = torch.tensor([[0.0, 1.0, 1.0]])
        >>> model.member_log_probs(x).shape
        torch.Size([1, 4])
        >>> bool(model.log_prob(x) >= model.member_log_probs(x).mean())
        True
    """

    orderings = Ordered.ordering

    def __init__(self, net: Net, family: Family, orderings: Ordering, fresh: bool = False) -> None:
        super().__init__(net, family, orderings)
        if not orderings.is_batch:
            raise ValueError("an Ensemble takes a (K, D) batch of orderings; one ordering is Autoregressive")
        if fresh and not net.takes_orderings:
            name = type(net).__name__
            raise ValueError(f"{name} takes one ordering at a time, so training cannot draw fresh ones")
        self.fresh = fresh

    def member(self, k: int) -> Autoregressive:
        """The density under ordering k (it shares this ensemble's net)."""
        return Autoregressive(self.net, self.family, self.orderings[k])

    def under(self, orderings: Ordering) -> Ensemble:
        """The same net averaged over other orderings (K, D)."""
        return Ensemble(self.net, self.family, orderings.to(self.device), self.fresh)

    def member_log_probs(self, x: Tensor, at_once: int | None = None) -> Tensor:
        """log p(x | o⁽ᵏ⁾) of every row, (B, K); at_once orderings together (None: `orderings_at_once`)."""
        rows = Rows(self.net, self.family, x)
        at_once = self.orderings_at_once(len(x)) if at_once is None else at_once
        if at_once == 1:
            return torch.stack([rows.log_prob(order) for order in self.order.unbind()], dim=-1)
        return vmap(rows.log_prob, chunk_size=at_once)(self.order).T.contiguous()

    def orderings_at_once(self, rows: int, members: int = 1) -> int:
        """How many orderings of so many rows, for each member of a population, are computed together.

        Every ordering has etas of its own and, in a net with masks, weights of its own: small models gain by
        fewer operations; nets without a parallel pass, and those with large rows, take one at a time.
        """
        net = self.net
        if isinstance(net, AnyOrderNet) or net.row_floats is not None:
            return 1
        numbers = rows * net.n_variables * (net.n_params + net.n_features)
        numbers += sum(p.numel() for p in net.parameters())
        limit = CPU_NUMBERS if self.order.device.type == "cpu" else GPU_NUMBERS
        return max(1, min(len(self.order), limit // (members * numbers)))

    def _log_prob(self, x: Tensor, at_once: int | None = None) -> Tensor:
        return torch.logsumexp(self.member_log_probs(x, at_once), -1) - math.log(len(self.order))

    def loss(self, x: Tensor, generator: Random = None) -> Tensor:
        """Minus log p(x | o) of each row (B,), for a member drawn uniformly, or (`fresh`) any ordering."""
        return self.loss_given(x, self.draw(x, generator), generator)

    def draw(self, x: Tensor, generator: Random = None) -> Tensor:
        """What an update draws, where the generator is: the number (1,) of a member; `fresh`: (B, D)."""
        where = "cpu" if generator is None else generator.device
        if self.fresh:
            return torch.rand(x.shape, generator=generator, device=where, dtype=torch.float64).argsort(1)
        return torch.randint(len(self.order), (1,), generator=generator, device=where)

    def loss_given(self, x: Tensor, drawn: Tensor, noise: Random = None) -> Tensor:
        """Minus log p(x | o) of each row (B,), for what an update has drawn."""
        drawn = drawn.to(self.order.device)
        order = drawn if self.fresh else self.order[drawn].squeeze(0)
        return -Rows(self.net, self.family, x).log_prob(order, noise)

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """Each row picks an ordering uniformly and is drawn along it; all rows together."""
        where = "cpu" if generator is None else generator.device
        k = torch.randint(len(self.order), (n,), generator=generator, device=where).to(self.device)
        return ancestral(self.net, self.family, self.orderings[k], n, generator)

    def conditional_means(self, x: Tensor) -> Tensor:
        """E[x_i | variables before i] under the first ordering, (B, D)."""
        return self.member(0).conditional_means(x)
