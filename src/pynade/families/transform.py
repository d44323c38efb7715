"""Families of transformed real variables, and their maps (standardisation, logarithm, logit)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Generator, Tensor, nn

from pynade.families.base import Family, KeepsTypes, at, refuse
from pynade.families.real import Real, moments

Numbers = float | Sequence[float] | Tensor
Columns = Sequence[int] | None


class Bijection(nn.Module, ABC):
    """Abstract increasing map y = f(x) of every variable; its constants are buffers (D,) (see `Family`).

    Attributes:
        n_variables: D.
        affine: whether it is affine, so that it maps means to means.
    """

    affine = False

    def __init__(self, n_variables: int | None, **constants: Numbers) -> None:
        super().__init__()
        dtype = torch.float64 if isinstance(self, KeepsTypes) else torch.get_default_dtype()
        rows = {k: torch.as_tensor(v, dtype=dtype) for k, v in constants.items()}
        shapes = [tuple(v.shape) for v in rows.values()]
        sizes = {n for shape in (*shapes, (n_variables or 0,)) for n in shape if n}
        if len(sizes) != 1 or any(len(shape) > 1 for shape in shapes):
            raise ValueError(
                f"{type(self).__name__} needs one number for each variable: give vectors of one length, "
                f"or n_variables, not shapes {shapes} and {n_variables}"
            )
        self.n_variables = int(sizes.pop())
        for name, value in rows.items():
            self.register_buffer(name, value.expand(self.n_variables).clone())

    @abstractmethod
    def forward(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """y = f(x); minus or plus infinity outside the domain and at its ends."""

    @abstractmethod
    def inverse(self, y: Tensor, i: Tensor | None = None) -> Tensor:
        """The x with f(x) = y, inside the domain in spite of rounding."""

    @abstractmethod
    def log_abs_det(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """log dy/dx at x, in a shape that broadcasts against x."""

    def config(self) -> dict[str, Any]:
        """D; the constants are buffers, which are saved as tensors."""
        return {"n_variables": self.n_variables}


class Affine(KeepsTypes, Bijection):
    """y = (x - loc) / scale: standardisation.

    Its constants stay float64, so that float64 data far from zero lose no digits.

    Args:
        loc: a number, or one for each variable.
        scale: a number above zero, or one for each variable.
        n_variables: D, if neither is a vector.

    Example:
        >>> Affine.fitted(torch.tensor([[1.0], [3.0]]))(torch.tensor([[5.0]])).item()
        3.0
    """

    affine = True
    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Numbers = 0.0, scale: Numbers = 1.0, n_variables: int | None = None) -> None:
        super().__init__(n_variables, loc=loc, scale=scale)
        _check_constants(self.scale > 0, self.scale, "the scale of an Affine must be above 0")

    @classmethod
    def fitted(cls, x: Tensor) -> Affine:
        """From mean and deviation of each column of x (N, D), NaN = missing; an error if one is constant."""
        rows = x.double()
        low, high = rows.nan_to_num(torch.inf).amin(0), rows.nan_to_num(-torch.inf).amax(0)
        if not (low < high).all():
            column = int((~(low < high)).nonzero()[0, 0])
            reason = "has no value" if low[column] > high[column] else f"is always {low[column].item():g}"
            raise ValueError(f"column {column} {reason}, so it cannot be standardised; leave it out")
        return cls(*moments(x))

    def forward(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """(x - loc) / scale."""
        return ((x - at(self.loc, i)) / at(self.scale, i)).to(x.dtype)

    def inverse(self, y: Tensor, i: Tensor | None = None) -> Tensor:
        """Loc + scale y."""
        return (at(self.loc, i) + at(self.scale, i) * y).to(y.dtype)

    def log_abs_det(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """-log scale, the same for every x."""
        return -torch.log(at(self.scale, i)).to(x.dtype)


class Bounded(Bijection):
    """Abstract log((x - low) / (high - x)), or log(x - low) without an upper end, of selected columns."""

    active: Tensor

    def __init__(self, columns: Columns, n_variables: int | None, **ends: Numbers) -> None:
        super().__init__(n_variables, **ends)
        self._names, n = tuple(ends), self.n_variables
        wrong = [c for c in columns or () if not 0 <= c < n]
        if wrong:
            raise ValueError(f"there is no column {wrong[0]} among {n}")
        self.register_buffer("active", torch.tensor([columns is None or c in columns for c in range(n)]))

    def _ends(self, i: Tensor | None = None) -> list[Tensor]:
        """The lower end, and the upper end if there is one."""
        return [at(self.get_buffer(name), i) for name in self._names]

    def _distances(self, x: Tensor, i: Tensor | None) -> list[Tensor]:
        """Distances from the ends, 0 outside the domain; 1 in columns that are not mapped."""
        gaps = (sign * (x - end) for sign, end in zip((1, -1), self._ends(i), strict=False))
        return [torch.where(at(self.active, i), gap.clamp(min=0), 1) for gap in gaps]

    def forward(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """Log of the distance from the lower end, minus that of the distance from the upper end."""
        below, *above = map(torch.log, self._distances(x, i))
        return torch.where(at(self.active, i), below - above[0] if above else below, x)

    def inverse(self, y: Tensor, i: Tensor | None = None) -> Tensor:
        """The x with f(x) = y, strictly inside the ends."""
        active, (low, *high) = at(self.active, i), self._ends(i)
        inner = torch.where(active, y, 0)
        x = low + ((high[0] - low) * torch.sigmoid(inner) if high else torch.exp(inner))
        x = torch.maximum(x, _next_above(low.to(x.dtype)))
        x = torch.minimum(x, -_next_above(-high[0].to(x.dtype))) if high else x
        return torch.where(active, x, y)

    def log_abs_det(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """log(high - low), if there is an upper end, minus the logs of the distances from the ends."""
        low, *high = self._ends(i)
        width = torch.where(at(self.active, i), high[0] - low if high else 1, 1).to(low.dtype)
        return torch.log(width) - sum(map(torch.log, self._distances(x, i)))

    def inside(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """Mask of the x strictly inside the ends; True for NaN, so that it stays NaN."""
        return ~(torch.stack(self._distances(x, i)) <= 0).any(0)

    def check(self, x: Tensor) -> None:
        """Raise a ValueError that names the first cell of x (B, D) outside its column's ends."""
        wrong = ~self.inside(x)
        if wrong.any():
            column = int(wrong.nonzero()[0, 1])
            low, *high = (f"{end[column].item():g}" for end in self._ends())
            domain = f"between {low} and {high[0]}, both excluded" if high else f"above {low}"
            refuse(x, wrong, f"{type(self).__name__} needs values {domain}")


class Log(Bounded):
    """y = log(x - offset) of positive columns (x > offset); other columns are unchanged.

    Args:
        offset: the excluded lower end, a number or one for each variable.
        columns: indexes of the columns that are mapped; None means all.
        n_variables: D, if offset is a number.

    Example:
        >>> Log(n_variables=2, columns=[1])(torch.tensor([[1.0, 1.0]])).tolist()
        [[1.0, 0.0]]
    """

    def __init__(
        self, offset: Numbers = 0.0, columns: Columns = None, n_variables: int | None = None
    ) -> None:
        super().__init__(columns, n_variables, offset=offset)


class Logit(Bounded):
    """y = log((x - low) / (high - x)) of bounded columns (low < x < high); other columns are unchanged.

    Args:
        low: the excluded lower end, a number or one for each variable.
        high: the excluded upper end, a number or one for each variable.
        columns, n_variables: as for `Log`.

    Example:
        >>> Logit(0.0, 10.0, n_variables=1)(torch.tensor([[5.0]])).item()
        0.0
    """

    def __init__(
        self, low: Numbers = 0.0, high: Numbers = 1.0, columns: Columns = None, n_variables: int | None = None
    ) -> None:
        super().__init__(columns, n_variables, low=low, high=high)
        lowest, highest = self._ends()
        _check_constants(highest > lowest, highest, "the upper end of a Logit must be above the lower one")


class Transformed(Family):
    """The distribution of X if f(X) has the distribution `base`, for a chain f of increasing maps.

    log p(x) = log base(f(x)) + log f'(x). The input of a net is f(x); densities, cdfs, quantiles, draws and
    means are in the units of x. Values outside the domain of f have density 0.

    Args:
        base: distribution of the mapped variable.
        bijections: one map, or several that are applied to the data in turn.

    Example:
        >>> from pynade.families import Gaussian
        >>> family = Transformed(Gaussian(), Affine(loc=[100.0], scale=[15.0]))
        >>> family.quantile(torch.tensor([[0.5]]), torch.zeros(1, 1, 2)).item()
        100.0
    """

    discrete = False
    bijections: Any  # a ModuleList

    def __init__(self, base: Real, bijections: Bijection | Sequence[Bijection]) -> None:
        super().__init__()
        chain = [bijections] if isinstance(bijections, Bijection) else list(bijections)
        if not isinstance(base, Real) or base.discrete:
            raise TypeError(f"only real-valued families can be transformed, not {type(base).__name__}")
        sizes = [b.n_variables for b in chain]
        if len(set(sizes)) != 1:
            raise ValueError(f"Transformed needs bijections of the same number of variables, not {sizes}")
        self.base, self.bijections = base, nn.ModuleList(chain)
        self.n_params, self.n_variables = base.n_params, sizes[0]
        self.affine = all(b.affine for b in chain)

    def check(self, x: Tensor) -> None:
        """Values must be finite numbers, and inside the domains of the maps if x has D columns."""
        Real.check(self.base, x)
        for bijection in self.bijections if x.shape[-1] == self.n_variables else ():
            if isinstance(bijection, Bounded):
                bijection.check(x)
            x = bijection(x)

    def encode(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """The mapped value; for values outside the domain, that of an interior point."""
        return self._to_base(x, i)[0].unsqueeze(-1)

    def log_prob(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Log-density in the units of x; minus infinity outside the domain."""
        y, log_slope = self._to_base(x, i)
        return self.base.log_prob(y, eta, i) + log_slope

    def sample(self, eta: Tensor, i: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """A draw from the base, mapped back."""
        return self._from_base(self.base.sample(eta, i, generator), i)

    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Expected value: exact for affine maps, else an integral (`Real.expectation`)."""
        if self.affine:
            return self._from_base(self.base.mean(eta, i), i)
        return self.base.expectation(lambda y: self._from_base(y, i), eta, i)

    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The cdf of the base at f(x); 0 below and 1 above the domain."""
        return self.base.cdf(_apply_maps(x, self.bijections, i), eta, i)

    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The quantile of the base, mapped back."""
        return self._from_base(self.base.quantile(q, eta, i), i)

    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """Eta of the base for the mapped data."""
        return self.base.eta_from_marginal(_apply_maps(x.double(), self.bijections))

    def fit_constants(self, x: Tensor) -> None:
        """Initialise the base from the mapped data."""
        self.base.fit_constants(_apply_maps(x.double(), self.bijections))

    def fill(self, x: Tensor, keep: Tensor) -> Tensor:
        """x with cells outside the mask `keep` set to the value that is mapped to 0."""
        zero = torch.zeros_like(next(self.bijections.buffers()))
        return torch.where(keep, x, self._from_base(zero, None).to(x))

    @property
    def inner(self) -> Family:
        """The base."""
        return self.base

    def unwrap(self, x: Tensor, dtype: torch.dtype) -> tuple[Family, Tensor, Tensor | None]:
        """The base, the mapped values in `dtype`, and the log-derivative of the map at each value."""
        x = x if x.is_floating_point() else x.to(dtype)
        y, log_slope = self._to_base(x, None)
        return self.base, y.to(dtype), log_slope.double().expand_as(y)

    def to_data(self, y: Tensor) -> Tensor:
        """Values (…, D) of the base's variables as values of the data, in float64."""
        return self._from_base(y.double(), None)

    def _to_base(self, x: Tensor, i: Tensor | None) -> tuple[Tensor, Tensor]:
        """f(x), and log f'(x), which is minus infinity outside the domain."""
        total = x.new_zeros(())
        for bijection in self.bijections:
            if not isinstance(bijection, Bounded):
                total = total + bijection.log_abs_det(x, i)
            else:  # replace values outside the domain, which would make gradients infinite
                inside = bijection.inside(x, i)
                x = torch.where(inside, x, bijection.inverse(torch.zeros_like(x), i))
                total = total + torch.where(inside, bijection.log_abs_det(x, i), -torch.inf)
            x = bijection(x, i)
        return x, total

    def _from_base(self, y: Tensor, i: Tensor | None) -> Tensor:
        return reduce(lambda x, bijection: bijection.inverse(x, i), reversed(self.bijections), y)


def standardised(base: Real, x: Tensor, bijections: Sequence[Bijection] = ()) -> Transformed:
    """The family `base` for columns that are mapped by `bijections`, then standardised by the rows x (N, D).

    Args:
        base: distribution of the mapped variable.
        x: rows; NaN = missing. Constant columns and columns without a value raise a ValueError.
        bijections: maps that are applied before the standardisation.

    Example:
        >>> from pynade.families import Gaussian
        >>> x = torch.tensor([[0.0, 10.0], [2.0, 30.0]])
        >>> standardised(Gaussian(), x).encode(x).squeeze(-1).tolist()
        [[-1.0, -1.0], [1.0, 1.0]]
    """
    return Transformed(base, [*bijections, Affine.fitted(_apply_maps(x.double(), bijections))])


def _next_above(end: Tensor) -> Tensor:
    """The next larger number; at least the smallest normal number above, since GPUs flush smaller ones."""
    following = torch.nextafter(end, torch.full_like(end, torch.inf))
    return torch.maximum(following, end + torch.finfo(end.dtype).tiny)


def _check_constants(valid: Tensor, values: Tensor, rule: str) -> None:
    if not valid.is_meta and not valid.all():  # (a model that is being loaded has meta tensors)
        column = int((~valid).nonzero()[0, 0])
        raise ValueError(f"{rule}, but that of column {column} is {values[column].item():g}")


def _apply_maps(x: Tensor, chain: Iterable[nn.Module], i: Tensor | None = None) -> Tensor:
    return reduce(lambda y, bijection: bijection(y, i), chain, x)
