"""Net + family + ordering = an exact density (eq. 1)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from pynade.families import Family
from pynade.models.density import Density, check_columns
from pynade.models.scoring import Rows, ancestral, dropout
from pynade.nets import Net
from pynade.ordering import Ordering


class Ordered(Density):
    """Abstract density of a net, a family, and one ordering (D,) or several (K, D) of the net's variables."""

    order: Tensor

    def __init__(self, net: Net, family: Family, ordering: Ordering) -> None:
        super().__init__()
        if ordering.n_variables != net.n_variables:
            raise ValueError(
                f"the ordering has {ordering.n_variables} variables but the net has {net.n_variables}"
            )
        check_parts(net, family)
        self.net, self.family, self.n_variables = net, family, net.n_variables
        self.register_buffer("order", ordering.order.clone())

    def check(self, x: Tensor) -> None:
        """Columns must match, values must be in the family's domain."""
        check_columns(x, self.n_variables)
        self.family.check(x)

    def _ready(self, x: Tensor) -> Tensor:
        return x  # the family rounds, after its own mapping


class Autoregressive(Ordered):
    """p(x) = Π_d p(x_{o_d} | x_{o_<d}), each factor a distribution with parameters from the net.

    Args:
        net: computes the parameters eta.
        family: the distributions that eta stands for.
        ordering: one ordering of the net's variables.

    Example:
        >>> import torch
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

    @property
    def ordering(self) -> Ordering:
        """The ordering, on this model's device."""
        return Ordering.trusted(self.order)

    def eta(self, x: Tensor, noise: Generator | None = None) -> Tensor:
        """Parameters (B, D, P) of every conditional p(x_i | variables before i); noise: dropout."""
        rows = Rows(self.net, self.family, x)
        return self.net.parallel(rows.features, self.ordering, **dropout(self.net, noise)).to(rows.y.dtype)

    def loss(self, x: Tensor, generator: Generator | None = None) -> Tensor:
        """Minus log p of each row (B,), with the net's dropout where it has any and a generator is given."""
        return -self._log_prob(x, generator)

    def conditional_means(self, x: Tensor) -> Tensor:
        """E[x_i | variables before i] for every i, (B, D): the pixel probabilities of the paper's figures."""
        return self.family.mean(self.eta(x))

    def _log_prob(self, x: Tensor, noise: Generator | None = None) -> Tensor:
        return Rows(self.net, self.family, x).log_prob(self.order, noise)

    @torch.no_grad()
    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        """n rows by ancestral sampling, O(HD) per row for NADE, compiled for some families."""
        rows = self.net.fused_sample(self.family.inner, self.order, n, generator)
        if rows is None:
            return ancestral(self.net, self.family, self.ordering, n, generator)
        return self.family.to_data(rows)


def check_parts(net: Net, family: Family) -> None:
    """A net and a family must have the same numbers of parameters and features."""
    if (net.n_params, net.n_features) != (family.n_params, family.n_features):
        raise ValueError(
            f"{type(family).__name__} needs n_params={family.n_params} and n_features={family.n_features}, "
            f"but the net was built with n_params={net.n_params} and n_features={net.n_features}"
        )
