"""A real-valued family of transformed variables, in the units of the data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn

from pynade.families.base import Family, refuse
from pynade.families.bijections import Affine, Bijection
from pynade.families.real import Real, check_finite


class Transformed(Family):
    """The distribution of X where f(X) follows `base`, f a chain of increasing maps of each variable.

    log p(x) = log base(f(x)) + log f'(x). Nets see f(x); densities, cdfs, quantiles, draws and means are in
    the units of x. Values outside the domain of f have density 0.

    Args:
        base: distribution of the mapped variable.
        bijections: one, or several applied to the data in turn.

    Example:
        >>> import torch
        >>> from pynade.families import Gaussian
        >>> family = Transformed(Gaussian(), Affine(loc=[100.0], scale=[15.0]))
        >>> family.quantile(torch.tensor([[0.5]]), torch.zeros(1, 1, 2)).item()
        100.0
    """

    discrete = False

    def __init__(self, base: Real, bijections: Bijection | Sequence[Bijection]) -> None:
        super().__init__()
        chain = [bijections] if isinstance(bijections, Bijection) else list(bijections)
        if not isinstance(base, Real):
            raise TypeError(f"only real-valued families can be transformed, not {type(base).__name__}")
        if len({b.n_variables for b in chain}) != 1:
            raise ValueError(
                "Transformed needs bijections of the same number of variables, "
                f"not {[b.n_variables for b in chain]}"
            )
        self.base, self.bijections = base, nn.ModuleList(chain)
        self.n_params, self.n_variables = base.n_params, chain[0].n_variables
        self.bounded, self.affine = any(b.bounded for b in chain), all(b.affine for b in chain)

    def check(self, x: Tensor) -> None:
        """Finite numbers in the domains of their columns; if rows are not D wide, finite numbers only."""
        check_finite(x, type(self.base).__name__)
        if x.shape[-1] != self.n_variables:
            return
        for bijection in self._chain():
            wrong = ~bijection.inside(x)
            if wrong.any():
                column = int(wrong.nonzero()[0, 1])
                refuse(x, wrong, f"{type(bijection).__name__} needs values {bijection.domain(column)}")
            x = bijection(x)

    def encode(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """The mapped value; for one outside the domain, that of the middle."""
        return self._to_base(x, i)[0].unsqueeze(-1)

    def log_prob(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Log-density in the units of x; minus infinity outside the domain."""
        y, log_slope, inside = self._to_base(x, i)
        log_p = self.base.log_prob(y, eta, i) + log_slope
        return log_p if inside is None else torch.where(inside, log_p, -torch.inf)

    def sample(self, eta: Tensor, i: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """A draw of the base, mapped back."""
        return self._from_base(self.base.sample(eta, i, generator), i)

    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Expected value: exact under affine maps, else a numerical integral (`Real.expectation`).

        A map back that grows too fast for the base's tails (exp of a Laplace of scale 1) has no mean; what
        comes out then means nothing.
        """
        if self.affine:
            return self._from_base(self.base.mean(eta, i), i)
        return self.base.expectation(lambda y: self._from_base(y, i), eta, i)

    def best_guess(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The mean."""
        return self.mean(eta, i)

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The base's at f(x); 0 below and 1 above the domain."""
        for bijection in self._chain():
            x = bijection(x, i)
        return self.base.cdf(x, eta, i)

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The base's, mapped back."""
        return self._from_base(self.base.quantile(q, eta, i), i)

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """The base's, of the mapped data."""
        return self.base.eta_from_marginal(self._mapped(x))

    def fit_constants(self, x: Tensor) -> None:
        """The base's, of the mapped data."""
        self.base.fit_constants(self._mapped(x))

    def fill(self, x: Tensor, keep: Tensor) -> Tensor:
        """Cells not kept become the value that is mapped to 0."""
        constant = next(self.bijections.buffers())
        return torch.where(keep, x, self._from_base(torch.zeros_like(constant), None).to(x))

    @property
    def inner(self) -> Family:
        """The base."""
        return self.base

    def unwrap(self, x: Tensor, dtype: torch.dtype) -> tuple[Family, Tensor, Tensor | None]:
        """The base, its variables' values in `dtype`, and the logarithm of the slope at each."""
        x = x if x.is_floating_point() else x.to(dtype)
        y, log_slope, inside = self._to_base(x, None)
        log_slope = log_slope.double().expand_as(y)
        if inside is not None:
            log_slope = torch.where(inside, log_slope, -torch.inf)
        return self.base, y.to(dtype), log_slope

    def to_data(self, y: Tensor) -> Tensor:
        """Values (…, D) of the base's variables as values of the data, in float64."""
        return self._from_base(y.double(), None)

    def _chain(self) -> list[Bijection]:
        return [b for b in self.bijections if isinstance(b, Bijection)]

    def _mapped(self, x: Tensor) -> Tensor:
        x = x.double()
        for bijection in self._chain():
            x = bijection(x)
        return x

    def _to_base(self, x: Tensor, i: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """f(x), log f'(x), and where x is in the domain (None: everywhere)."""
        log_slope: Tensor | None = None
        inside: Tensor | None = None
        for bijection in self._chain():
            if bijection.bounded:  # outside, a safe value keeps infinities out of the gradient
                here = bijection.inside(x, i)
                x = torch.where(here, x, bijection.centre(i).to(x.dtype))
                inside = here if inside is None else inside & here
            slope = bijection.log_abs_det(x, i)
            log_slope = slope if log_slope is None else log_slope + slope
            x = bijection(x, i)
        assert log_slope is not None
        return x, log_slope, inside

    def _from_base(self, y: Tensor, i: Tensor | None) -> Tensor:
        for bijection in reversed(self._chain()):
            y = bijection.inverse(y, i)
        return y


def standardised(base: Real, x: Tensor, bijections: Sequence[Bijection] = ()) -> Transformed:
    """`base` on the standardised columns of x (N, D), after any `bijections`; NaN is missing.

    Densities stay those of x in its own units.

    Raises:
        ValueError: a column is constant or has no value.

    Example:
        >>> import torch
        >>> from pynade.families import Gaussian
        >>> x = torch.tensor([[0.0, 10.0], [2.0, 30.0]])
        >>> standardised(Gaussian(), x).encode(x).squeeze(-1).tolist()
        [[-1.0, -1.0], [1.0, 1.0]]
    """
    mapped = x.double()
    for bijection in bijections:
        mapped = bijection(mapped)
    return Transformed(base, [*bijections, Affine.fitted(mapped)])
