"""Densities of a net, a family and one or several orderings (eq. 1): exact scores and ancestral samples."""

from __future__ import annotations

import math
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from pynade.families import Family
from pynade.kernels import Uniforms, sample
from pynade.models.density import Density, refuse_nan
from pynade.nets import AnyOrderNet, NADENet, Net, Walk, grouped
from pynade.nets.base import Random
from pynade.ordering import Ordering
from pynade.precision import computing_in
from pynade.processes import minibatch

CPU_NUMBERS = 1 << 17  # numbers in memory for the orderings of one pass, so that they fit into the cache
GPU_NUMBERS = 1 << 26  # the same on a GPU, so that it is well used


class Rows:
    """Rows x (B, D) to be scored by a net and a family along orderings, in nats, summed in float64.

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
        """Input features of the net, (B, D, F)."""
        return self.inner.encode(self.y)

    def log_prob(self, order: Tensor, noise: Random = None, precision: str | None = None) -> Tensor:
        """log p of each row (B,) along one order (D,) in one parallel pass.

        Args:
            order: the order; for a net that `takes_orderings` also one for each row, (B, D).
            noise: source of dropout in training.
            precision: as for `Walk`.
        """
        with computing_in(precision, self.y.device):
            eta = self.net.parallel(self.features, Ordering.trusted(order), **noise_argument(self.net, noise))
        return sum_variables(self.inner.log_prob(self.y, eta.to(self.y.dtype)), self.log_slope)

    @torch.no_grad()
    def log_probs(self, orders: Tensor, precision: str = "float32") -> Tensor:
        """log p of each row along each of G orders (G, D): (G, B); `precision` as for `Walk`.

        A net that `takes_orderings` makes one parallel pass per order, others one walk along all orders.
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
        """log p(y_{o_d} | y_{o_<d}) at each step of orders (K, B, steps) of each row: (K, B, steps)."""
        rows = self.y.repeat(len(orders), 1).unsqueeze(1)  # one group per order and row
        walk = Walk(self.net, orders.flatten(0, 1), 1)
        steps = [rows.new_zeros(len(rows), 0)]  # the result for no steps
        for i in walk:
            value, at = walk.cells(rows), i[:, None]
            steps.append(self.inner.log_prob(value, walk.predict().to(value.dtype), at))
            walk.observe(self.inner.encode(value, at))
        return torch.cat(steps, 1).double().view(orders.shape)


def noise_argument(net: Net, noise: Random) -> dict[str, Any]:
    """The argument `noise` of `Net.parallel`, for nets that have it."""
    return {"noise": noise} if noise is not None and net.takes_noise else {}


def sum_variables(log_p: Tensor, log_slope: Tensor | None) -> Tensor:
    """Log-densities (B, D), plus the log-derivatives of a map if any, summed over variables in float64."""
    total = log_p.sum(-1, dtype=torch.float64)
    return total if log_slope is None else total + log_slope.sum(-1)


def ancestral(net: Net, family: Family, ordering: Ordering, n: int, generator: Random = None) -> Tensor:
    """Draw n rows by ancestral sampling along one ordering, or along one ordering per row."""
    y, order = grouped(net.bias.new_zeros(n, net.n_variables), ordering)  # (G, N, D), (G, D)
    known = torch.zeros_like(y, dtype=torch.bool)
    return family.to_data(_draw_cells(net, family.inner, y, order, known, generator))


def complete(
    net: Net, family: Family, x: Tensor, observed: Tensor, order: Tensor, generator: Random = None
) -> Tensor:
    """Rows x (B, D) with unobserved cells drawn by ancestral sampling along an order per row (B, D)."""
    inner, y, _ = family.unwrap(family.fill(x, observed), net.bias.dtype)
    draws = _draw_cells(net, inner, y.clone().unsqueeze(1), order, observed.unsqueeze(1), generator)
    return torch.where(observed, x, family.to_data(draws).to(x.dtype))


def _draw_cells(
    net: Net, family: Family, y: Tensor, order: Tensor, known: Tensor, generator: Random
) -> Tensor:
    """Draw the unknown cells of y (G, N, D) in place, along orders (G, D): (G · N, D)."""
    fewest, walk = int(known.sum(-1).min()) if y.numel() else 0, Walk(net, order, y.shape[1])
    has_nan = torch.zeros((), dtype=torch.bool, device=y.device)  # (read once, at the end: no GPU waits)
    for step, i in enumerate(walk):
        value, index = walk.cells(y), i[:, None]
        if step >= fewest:  # in earlier steps the cells of all rows are known
            eta = walk.predict()
            has_nan |= torch.isnan(eta).any()
            value = torch.where(walk.cells(known), value, family.sample(eta, index, generator))
            walk.put(y, value)
        walk.observe(family.encode(value, index))
    refuse_nan(has_nan)
    return y.flatten(0, 1)


class Ordered(Density):
    """Abstract density of a net, a family, and one ordering (D,) or several (K, D) of the net's variables."""

    def __init__(self, net: Net, family: Family, ordering: Ordering) -> None:
        super().__init__()
        if (n := ordering.n_variables) != net.n_variables:
            raise ValueError(f"the ordering has {n} variables but the net has {net.n_variables}")
        check_parts(net, family)
        self.net, self.family, self.n_variables = net, family, net.n_variables
        self.order = nn.Buffer(ordering.order.clone())

    @property
    def ordering(self) -> Ordering:
        """The ordering(s), on this model's device."""
        return Ordering.trusted(self.order)

    def _to_dtype(self, x: Tensor) -> Tensor:
        return x  # the family converts the values after its map (`Family.unwrap`)


class Autoregressive(Ordered):
    """p(x) = Π_d p(x_{o_d} | x_{o_<d}), with the parameters of each factor computed by a net.

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
        """Parameters (B, D, P) of every conditional p(x_i | variables before i); `noise`: for dropout."""
        rows = Rows(self.net, self.family, x)
        return self.net.parallel(rows.features, self.ordering, **noise_argument(self.net, noise)).to(
            rows.y.dtype
        )

    def loss(self, x: Tensor, generator: Random = None) -> Tensor:
        """-log p of each row (B,), with dropout if a generator is given."""
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
        if type(net) is NADENet and net.n_features == 1:  # (a subclass may compute something else)
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

    An update of training maximises the exact likelihood under one of the orderings, drawn at random (MADE-E).
    With `fresh` it draws a new random ordering for every row, so that the net learns all D! of them; then
    `orderings` are only those that are averaged, and can be replaced after training (`under`).

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
        """log p(x | o⁽ᵏ⁾) of every row, (B, K), in batches of orderings (None: `orderings_at_once`)."""
        rows = Rows(self.net, self.family, x)
        at_once = self.orderings_at_once(len(x)) if at_once is None else at_once
        if at_once == 1:
            return torch.stack([rows.log_prob(order) for order in self.order.unbind()], dim=-1)
        return vmap(rows.log_prob, chunk_size=at_once)(self.order).T.contiguous()

    def orderings_at_once(self, rows: int, members: int = 1) -> int:
        """The number of orderings in a batch, for this many rows and members of a population.

        Each ordering needs memory for its etas and, in a net with masks, its weights. Batches are faster for
        small models; any-order nets and nets with `row_floats` use one ordering at a time.
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
        """-log p(x | o) of each row (B,), for a random member, or with `fresh` a random ordering per row."""
        return self.loss_given(x, self.draw(x, generator), generator)

    def draw(self, x: Tensor, generator: Random = None) -> Tensor:
        """The index (1,) of a random member; with `fresh`, random orders (B, D)."""
        device = "cpu" if generator is None else generator.device
        if self.fresh:
            x, part = minibatch(x)
            keys = torch.rand(x.shape, generator=generator, device=device, dtype=torch.float64)
            return keys.argsort(1)[part]
        return torch.randint(len(self.order), (1,), generator=generator, device=device)

    def loss_given(self, x: Tensor, drawn: Tensor, noise: Random = None) -> Tensor:
        """-log p(x | o) of each row (B,), for the member or the orders that `draw` returned."""
        drawn = drawn.to(self.order.device)
        order = drawn if self.fresh else self.order[drawn].squeeze(0)
        return -Rows(self.net, self.family, x).log_prob(order, noise)

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """n rows (n, D), each drawn along an ordering that is chosen uniformly."""
        device = "cpu" if generator is None else generator.device
        k = torch.randint(len(self.order), (n,), generator=generator, device=device).to(self.device)
        return ancestral(self.net, self.family, self.orderings[k], n, generator)

    def conditional_means(self, x: Tensor) -> Tensor:
        """E[x_i | variables before i] under the first ordering, (B, D)."""
        return self.member(0).conditional_means(x)


def check_parts(net: Net, family: Family) -> None:
    """Raise a ValueError unless net and family have the same numbers of parameters and features."""
    if (net.n_params, net.n_features) != (family.n_params, family.n_features):
        raise ValueError(
            f"{type(family).__name__} needs n_params={family.n_params} and n_features={family.n_features}, "
            f"but the net was built with n_params={net.n_params} and n_features={net.n_features}"
        )
