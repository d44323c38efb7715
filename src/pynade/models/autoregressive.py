"""Net + family + ordering = an exact density (eq. 1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pynade.families import (
    Bernoulli,
    Family,
    MixtureOfGaussians,
    MixtureOfLaplaces,
    MixtureOfLogistics,
    Transformed,
)
from pynade.kernels import Uniforms, sample_bernoulli, sample_mixture
from pynade.models.density import Density, check_columns
from pynade.nets import NADENet, Net, grouped
from pynade.ordering import Ordering


class Autoregressive(Density):
    """p(x) = Π_d p(x_{o_d} | x_{o_<d}), each factor a one-dimensional law with parameters from the net.

    Args:
        net: produces eta.
        family: says what eta means.
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

    order: Tensor

    def __init__(self, net: Net, family: Family, ordering: Ordering) -> None:
        super().__init__()
        check_parts(net, family, ordering)
        if ordering.is_batch:
            raise ValueError("Autoregressive takes one ordering; several make an Ensemble")
        self.net, self.family = net, family
        self.n_variables = net.n_variables
        self.register_buffer("order", ordering.order.clone())

    @property
    def ordering(self) -> Ordering:
        """The ordering, on this model's device."""
        return Ordering.trusted(self.order)

    def eta(self, x: Tensor, noise: torch.Generator | None = None) -> Tensor:
        """Raw parameters (B, D, P) of every conditional p(x_i | variables before i); noise: dropout."""
        return self._eta(self.family.encode(x), noise)

    def _eta(self, features: Tensor, noise: torch.Generator | None) -> Tensor:
        if noise is None or not self.net.takes_noise:
            return self.net(features, self.ordering).to(features.dtype)
        eta: Tensor = self.net.parallel(features, self.ordering, noise=noise)  # type: ignore[call-arg]
        return eta.to(features.dtype)

    def loss(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Minus log p of each row (B,), with the net's dropout where it has any and a generator is given."""
        return -self._log_prob(x, generator)

    def conditional_means(self, x: Tensor) -> Tensor:
        """E[x_i | variables before i] for every i, (B, D): the pixel probabilities of the paper's figures."""
        return self.family.mean(self.eta(x.to(self.dtype)))

    def _ready(self, x: Tensor) -> Tensor:
        return x  # the family rounds, after its own mapping

    def _log_prob(self, x: Tensor, noise: torch.Generator | None = None) -> Tensor:
        law, y, log_slope = self.family.unwrap(x, self.dtype)
        return row_sums(law.log_prob(y, self._eta(law.encode(y), noise)), log_slope)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n rows by ancestral sampling, O(HD) per row for NADE, whose walk is a fused kernel."""
        net, family = self.net, self.family
        if type(net) is not NADENet or net.n_features > 1:
            return ancestral(net, family, self.ordering, n, generator)
        parts = (net.weight, net.hidden_bias, net.output, net.bias, self.order)
        uniforms = Uniforms.draw(n, net.n_variables, generator)
        if isinstance(family, Bernoulli):
            return sample_bernoulli(*parts, uniforms, net.activation)
        base = family.base if isinstance(family, Transformed) else family
        if (
            isinstance(base, MixtureOfGaussians | MixtureOfLaplaces | MixtureOfLogistics)
            and not base.sigma_floor
        ):
            drawn = uniforms.tensor(self.dtype, self.device)
            rows = sample_mixture(*parts, drawn, base.law.noise(drawn, generator), net.activation)
            return family.to_data(rows) if isinstance(family, Transformed) else rows
        return ancestral(net, family, self.ordering, n, generator)

    def check(self, x: Tensor) -> None:
        """Columns must match, values must be in the family's domain."""
        check_columns(x, self.n_variables)
        self.family.check(x)

    def config(self) -> dict[str, Any]:
        """Constructor arguments."""
        return {"net": self.net, "family": self.family, "ordering": self.ordering}


def ancestral(
    net: Net, family: Family, ordering: Ordering, n: int, generator: torch.Generator | None = None
) -> Tensor:
    """Draw n rows along one ordering, or along one each: predict, draw, observe, D times."""
    if isinstance(
        family, Transformed
    ):  # its features are the base's values; mapped back at the end, in float64
        return family.to_data(ancestral(net, family.base, ordering, n, generator))
    x = torch.empty(n, net.n_variables, dtype=net.bias.dtype, device=net.bias.device)
    x, order = grouped(x, ordering)  # a view: (G, N, D)
    group = torch.arange(len(order), device=order.device)
    state = net.start(*x.shape[:2])
    for i in order.unbind(1):
        x_i = family.sample(net.predict(state, i), i[:, None], generator)
        x[group, :, i] = x_i
        state = net.observe(state, i, family.encode(x_i, i[:, None]))
    return x.flatten(0, 1)


def row_sums(log_p: Tensor, log_slope: Tensor | None) -> Tensor:
    """Log-densities (B, D), with those of a mapping if there is one, summed over variables in float64."""
    total = log_p.sum(-1, dtype=torch.float64)
    return total if log_slope is None else total + log_slope.sum(-1)


def check_parts(net: Net, family: Family, ordering: Ordering) -> None:
    """A net, a family and an ordering must speak of the same variables."""
    if ordering.n_variables != net.n_variables:
        raise ValueError(
            f"the ordering has {ordering.n_variables} variables but the net has {net.n_variables}"
        )
    if (net.n_params, net.n_features) != (family.n_params, family.n_features):
        raise ValueError(
            f"{type(family).__name__} needs n_params={family.n_params} and n_features={family.n_features}, "
            f"but the net was built with n_params={net.n_params} and n_features={net.n_features}"
        )
