"""Net + family + ordering = an exact density (eq. 1); every exact score and every draw along orderings."""

from __future__ import annotations

import math
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from pynade.families import Family
from pynade.kernels import Uniforms, sample
from pynade.models.density import Density, refuse_lost
from pynade.nets import AnyOrderNet, NADENet, Net, Walk, grouped
from pynade.nets.base import Random
from pynade.ordering import Ordering
from pynade.precision import computing_in
from pynade.processes import minibatch

CPU_NUMBERS = 1 << 17  # numbers of the orderings that are computed together: what stays in a cache
GPU_NUMBERS = 1 << 26  # what keeps a GPU busy


class Rows:
    """Rows x (B, D) that a net and a family score along orderings, in nats and summed in float64.

    Args:
        net: computes eta.
        family: the distributions that eta stands for.
        x: rows in any numeric dtype. Cells that no ordering visits must be filled (`Family.fill`).

    Example:
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import NADENet
        >>> net, orders = NADENet(3, hidden=4), Ordering.random(3, k=2).order
        >>> rows = Rows(net, Bernoulli(), torch.eye(3))
        >>> torch.allclose(rows.log_prob(orders[1]), rows.log_probs(orders)[1])
        True
    """

    def __init__(self, net: Net, family: Family, x: Tensor) -> None:
        self.net = net
        self.inner, self.y, self.log_slope = family.unwrap(x, net.bias.dtype)

    @cached_property
    def features(self) -> Tensor:
        """What the net sees, (B, D, F)."""
        return self.inner.encode(self.y)

    def log_prob(self, order: Tensor, noise: Random = None, precision: str | None = None) -> Tensor:
        """log p of each row (B,) along one order (D,) in one parallel pass.

        Args:
            order: the order; for a net that `takes_orderings` also one for each row, (B, D).
            noise: source of dropout in training, for a net that has any.
            precision: as for `Walk`.
        """
        with computing_in(precision, self.y.device):
            eta = self.net.parallel(self.features, Ordering.trusted(order), **dropout(self.net, noise))
        return row_sums(self.inner.log_prob(self.y, eta.to(self.y.dtype)), self.log_slope)

    @torch.no_grad()
    def log_probs(self, orders: Tensor, precision: str = "float32") -> Tensor:
        """log p of each row along each of G orders (G, D): (G, B); `precision` as for `Walk`.

        A net with a parallel pass of any ordering takes one for each; others one walk along all orders.
        """
        if self.net.takes_orderings:
            return torch.stack([self.log_prob(order, precision=precision) for order in orders])
        columns = self.y.T.contiguous()  # (D, B): the values of one variable are contiguous
        total = torch.zeros(len(orders), len(self.y), dtype=torch.float64, device=self.y.device)
        if self.log_slope is not None:
            total += self.log_slope.sum(-1)
        walk = Walk(self.net, orders, len(self.y), precision)
        for i in walk:
            value, at = columns[i], i[:, None]
            with computing_in(precision, orders.device):
                eta = self.net.predict(walk.state, i).to(value.dtype)
            total += self.inner.log_prob(value, eta, at)
            walk.observe(self.inner.encode(value, at))
        return total

    def prefix_log_probs(self, orders: Tensor) -> Tensor:
        """log p(y_{o_d} | y_{o_<d}) at each step of orders (K, B, steps), one for each row: (K, B, steps)."""
        rows = self.y.repeat(len(orders), 1).unsqueeze(1)  # a group is one order of one row
        walk = Walk(self.net, orders.flatten(0, 1), 1)
        steps = [rows.new_zeros(len(rows), 0)]  # where there are no steps
        for i in walk:
            value, at = walk.cells(rows), i[:, None]
            steps.append(self.inner.log_prob(value, walk.predict().to(value.dtype), at))
            walk.observe(self.inner.encode(value, at))
        return torch.cat(steps, 1).double().view(orders.shape)


def dropout(net: Net, noise: Random) -> dict[str, Any]:
    """Arguments of `parallel` by which a net that drops activations draws them from `noise`."""
    return {"noise": noise} if noise is not None and net.takes_noise else {}


def row_sums(log_p: Tensor, log_slope: Tensor | None) -> Tensor:
    """Log-densities (B, D), with those of a mapping if there is one, summed over variables in float64."""
    total = log_p.sum(-1, dtype=torch.float64)
    return total if log_slope is None else total + log_slope.sum(-1)


def ancestral(net: Net, family: Family, ordering: Ordering, n: int, generator: Random = None) -> Tensor:
    """Draw n rows along one ordering, or along one each: predict, draw, observe, D times."""
    y, order = grouped(net.bias.new_zeros(n, net.n_variables), ordering)  # (G, N, D), (G, D)
    nothing = torch.zeros_like(y, dtype=torch.bool)
    return family.to_data(_draw(net, family.inner, y, order, nothing, generator))


def complete(
    net: Net, family: Family, x: Tensor, observed: Tensor, order: Tensor, generator: Random = None
) -> Tensor:
    """Rows x (B, D) with every cell that is not observed drawn along its row's order (B, D)."""
    inner, y, _ = family.unwrap(family.fill(x, observed), net.bias.dtype)
    drawn = _draw(net, inner, y.clone().unsqueeze(1), order, observed.unsqueeze(1), generator)
    return torch.where(observed, x, family.to_data(drawn).to(x.dtype))


def _draw(net: Net, family: Family, y: Tensor, order: Tensor, known: Tensor, generator: Random) -> Tensor:
    """Draw the cells of y (G, N, D) that are not known, in place, along orders (G, D): (G · N, D)."""
    fewest, walk = int(known.sum(-1).min()) if y.numel() else 0, Walk(net, order, y.shape[1])
    lost = torch.zeros((), dtype=torch.bool, device=y.device)  # (looked at once, so that a GPU need not wait)
    for step, i in enumerate(walk):
        value, at = walk.cells(y), i[:, None]
        if step >= fewest:  # before, every row is at a known cell
            eta = walk.predict()
            lost |= torch.isnan(eta).any()
            value = torch.where(walk.cells(known), value, family.sample(eta, at, generator))
            walk.put(y, value)
        walk.observe(family.encode(value, at))
    refuse_lost(lost)
    return y.flatten(0, 1)


class Ordered(Density):
    """Abstract density of a net, a family, and one ordering (D,) or several (K, D) of the net's variables."""

    def __init__(self, net: Net, family: Family, ordering: Ordering) -> None:
        super().__init__()
        here, there = ordering.n_variables, net.n_variables
        if here != there:
            raise ValueError(f"the ordering has {here} variables but the net has {there}")
        check_parts(net, family)
        self.net, self.family, self.n_variables = net, family, net.n_variables
        self.order = nn.Buffer(ordering.order.clone())

    @property
    def ordering(self) -> Ordering:
        """The ordering(s), on this model's device."""
        return Ordering.trusted(self.order)

    def _ready(self, x: Tensor) -> Tensor:
        return x  # the family rounds, after its own mapping


class Autoregressive(Ordered):
    """p(x) = Π_d p(x_{o_d} | x_{o_<d}), each factor a distribution with parameters from the net.

    Args:
        net: computes the parameters eta.
        family: the distributions that eta stands for.
        ordering: one ordering of the net's variables.

    Example:
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import NADENet
        >>> nade = Autoregressive(NADENet(3, hidden=4), Bernoulli(), Ordering.natural(3)).double()
        >>> states = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3)
        >>> round(nade.log_prob(states).exp().sum().item(), 12)
        1.0
    """

    def __init__(self, net: Net, family: Family, ordering: Ordering) -> None:
        super().__init__(net, family, ordering)
        if ordering.is_batch:
            raise ValueError("Autoregressive takes one ordering; several make an Ensemble")

    def eta(self, x: Tensor, noise: Random = None) -> Tensor:
        """Parameters (B, D, P) of every conditional p(x_i | variables before i); noise: dropout."""
        rows = Rows(self.net, self.family, x)
        return self.net.parallel(rows.features, self.ordering, **dropout(self.net, noise)).to(rows.y.dtype)

    def loss(self, x: Tensor, generator: Random = None) -> Tensor:
        """Minus log p of each row (B,), with the net's dropout where it has any and a generator is given."""
        return -self._log_prob(x, generator)

    def conditional_means(self, x: Tensor) -> Tensor:
        """E[x_i | variables before i] for every i, (B, D): the pixel probabilities of the paper's figures."""
        return self.family.mean(self.eta(x))

    def _log_prob(self, x: Tensor, noise: Random = None) -> Tensor:
        return Rows(self.net, self.family, x).log_prob(self.order, noise)

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """n rows by ancestral sampling, O(HD) per row for NADE, compiled for some families."""
        net, rows = self.net, None
        if type(net) is NADENet and net.n_features == 1:  # a subclass may compute something else
            uniforms = Uniforms.draw(n, net.n_variables, generator)
            weights = (net.weight, net.hidden_bias, net.output, net.bias, self.order)
            draw = partial(sample, weights, uniforms, activation=net.activation)
            like = net.bias.new_empty(n, net.n_variables)
            rows = self.family.inner.sample_nade(draw, like, generator)
        if rows is None:
            return ancestral(net, self.family, self.ordering, n, generator)
        return self.family.to_data(rows)


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
            x, own = minibatch(x)
            return torch.rand(x.shape, generator=generator, device=where, dtype=torch.float64).argsort(1)[own]
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


def check_parts(net: Net, family: Family) -> None:
    """A net and a family must have the same numbers of parameters and features."""
    if (net.n_params, net.n_features) != (family.n_params, family.n_features):
        raise ValueError(
            f"{type(family).__name__} needs n_params={family.n_params} and n_features={family.n_features}, "
            f"but the net was built with n_params={net.n_params} and n_features={net.n_features}"
        )
