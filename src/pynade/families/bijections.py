"""Increasing maps from the units of the data to those of a model, one for each variable."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pynade.families.real import moments

Numbers = float | Sequence[float] | Tensor


class Bijection(nn.Module, ABC):
    """Abstract increasing map y = f(x) of every variable, with its inverse and the logarithm of its slope.

    Its constants are buffers of shape (D,), in the last axis of x or looked up by `i` (see `Family`).

    Attributes:
        n_variables: D.
        bounded: whether some column's domain is less than all real numbers.
        affine: whether it is affine, so that it maps means to means.
    """

    bounded = False
    affine = False

    def __init__(self, n_variables: int | None, **constants: Numbers) -> None:
        super().__init__()
        rows = {k: torch.as_tensor(v, dtype=torch.get_default_dtype()) for k, v in constants.items()}
        sizes = {v.shape[0] for v in rows.values() if v.ndim} | ({n_variables} if n_variables else set())
        if len(sizes) != 1 or any(v.ndim > 1 for v in rows.values()):
            raise ValueError(
                f"{type(self).__name__} needs one number for each variable: give vectors of one length, "
                f"or n_variables, not shapes {[tuple(v.shape) for v in rows.values()]} and {n_variables}"
            )
        self.n_variables = int(sizes.pop())
        for name, value in rows.items():
            self.register_buffer(name, value.expand(self.n_variables).clone())

    @abstractmethod
    def forward(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """y = f(x); at and beyond the ends of the domain, minus and plus infinity."""

    @abstractmethod
    def inverse(self, y: Tensor, i: Tensor | None = None) -> Tensor:
        """The x with f(x) = y, never outside the domain by rounding."""

    @abstractmethod
    def log_abs_det(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """log dy/dx at x, in a shape that broadcasts against x."""

    def inside(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """Where x is in the domain; NaN counts as such, so that it stays NaN."""
        return torch.ones_like(x, dtype=torch.bool)

    def centre(self, i: Tensor | None = None) -> Tensor:
        """A value in the domain, which stands in for those outside it."""
        return torch.zeros_like(at(next(self.buffers()), i))

    def domain(self, column: int) -> str:
        """The domain of a column, in words."""
        return "of any size"

    def config(self) -> dict[str, Any]:
        """D; the numbers are buffers, stored as tensors."""
        return {"n_variables": self.n_variables}


class Affine(Bijection):
    """y = (x - loc) / scale: standardisation.

    Its constants stay float64 whatever type the model has, and the location is subtracted before anything is
    rounded, so float64 data far from zero keep the digits they have.

    Args:
        loc: a number, or one for each variable.
        scale: likewise, above zero.
        n_variables: D, where neither is a vector.

    Example:
        >>> import torch
        >>> Affine.fitted(torch.tensor([[1.0], [3.0]]))(torch.tensor([[5.0]])).item()
        3.0
    """

    affine = True
    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Numbers = 0.0, scale: Numbers = 1.0, n_variables: int | None = None) -> None:
        super().__init__(n_variables, loc=loc, scale=scale)
        for name, value in (("loc", loc), ("scale", scale)):
            exact = torch.as_tensor(value, dtype=torch.float64, device=self.loc.device)
            self.register_buffer(name, exact.expand(self.n_variables).clone())
        _require(self.scale > 0, self.scale, "the scale of an Affine must be above 0")

    @classmethod
    def fitted(cls, x: Tensor) -> Affine:
        """Mean and population standard deviation of each column of x (N, D); NaN is missing.

        Raises:
            ValueError: a column is constant or empty.
        """
        loc, scale = moments(x)
        rows = x.double()
        known = ~torch.isnan(rows)
        low, high = rows.where(known, torch.inf).amin(0), rows.where(known, -torch.inf).amax(0)
        constant = ~(low < high)
        if constant.any():
            column = int(constant.nonzero()[0, 0])
            what = "has no value" if not known[:, column].any() else f"is always {low[column].item():g}"
            raise ValueError(f"column {column} {what}, so it cannot be standardised; leave it out")
        return cls(loc, scale)

    def forward(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """(x - loc) / scale."""
        return ((x - at(self.loc, i)) / at(self.scale, i)).to(x.dtype)

    def inverse(self, y: Tensor, i: Tensor | None = None) -> Tensor:
        """Loc + scale y."""
        return (at(self.loc, i) + at(self.scale, i) * y).to(y.dtype)

    def log_abs_det(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """-log scale, the same for every x."""
        return -torch.log(at(self.scale, i)).to(x.dtype)

    def _apply(self, fn: Any, recurse: bool = True) -> Affine:
        """Move with the model, but keep float64."""
        exact = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, moved in self._buffers.items():
            value = exact[name]
            assert value is not None
            assert moved is not None
            if moved.dtype != value.dtype:
                self._buffers[name] = value.to(moved.device)
        return self


class Log(Bijection):
    """y = log(x - offset) of positive columns (x > offset); other columns pass through.

    Args:
        offset: a number, or one for each variable: the excluded lower end.
        columns: indexes of the columns that are mapped; None means all.
        n_variables: D, where offset is no vector.

    Example:
        >>> import torch
        >>> Log(n_variables=2, columns=[1])(torch.tensor([[1.0, 1.0]])).tolist()
        [[1.0, 0.0]]
    """

    bounded = True
    offset: Tensor
    active: Tensor

    def __init__(
        self,
        offset: Numbers = 0.0,
        columns: Sequence[int] | None = None,
        n_variables: int | None = None,
    ) -> None:
        super().__init__(n_variables, offset=offset)
        self.register_buffer("active", _active(columns, self.n_variables))

    def forward(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """log(x - offset)."""
        active = at(self.active, i)
        return torch.where(active, torch.log(self._gap(x, active, i)), x)

    def inverse(self, y: Tensor, i: Tensor | None = None) -> Tensor:
        """Offset + exp(y), at least the next number above the offset."""
        offset, active = at(self.offset, i), at(self.active, i)
        x = offset + torch.exp(torch.where(active, y, 0))
        return torch.where(active, torch.maximum(x, _just_above(offset.to(x.dtype))), y)

    def log_abs_det(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """-log(x - offset)."""
        return -torch.log(self._gap(x, at(self.active, i), i))

    def inside(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """Where x > offset."""
        return ~(at(self.active, i) & (x <= at(self.offset, i)))

    def centre(self, i: Tensor | None = None) -> Tensor:
        """Offset + 1."""
        return at(self.offset, i) + 1

    def domain(self, column: int) -> str:
        """Above the offset."""
        return f"above {self.offset[column].item():g}"

    def _gap(self, x: Tensor, active: Tensor, i: Tensor | None) -> Tensor:
        return torch.where(active, (x - at(self.offset, i)).clamp(min=0), 1)


class Logit(Bijection):
    """y = log((x - low) / (high - x)) of bounded columns (low < x < high); other columns pass through.

    Args:
        low: a number, or one for each variable: the excluded lower end.
        high: likewise, the excluded upper end.
        columns: indexes of the columns that are mapped; None means all.
        n_variables: D, where neither end is a vector.

    Example:
        >>> import torch
        >>> Logit(0.0, 10.0, n_variables=1)(torch.tensor([[5.0]])).item()
        0.0
    """

    bounded = True
    low: Tensor
    high: Tensor
    active: Tensor

    def __init__(
        self,
        low: Numbers = 0.0,
        high: Numbers = 1.0,
        columns: Sequence[int] | None = None,
        n_variables: int | None = None,
    ) -> None:
        super().__init__(n_variables, low=low, high=high)
        _require(self.high > self.low, self.high, "the upper end of a Logit must be above the lower one")
        self.register_buffer("active", _active(columns, self.n_variables))

    def forward(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """log(x - low) - log(high - x)."""
        active = at(self.active, i)
        below, above = self._gaps(x, active, i)
        return torch.where(active, torch.log(below) - torch.log(above), x)

    def inverse(self, y: Tensor, i: Tensor | None = None) -> Tensor:
        """Low + (high - low) sigm(y), kept strictly between the ends."""
        low, high, active = at(self.low, i), at(self.high, i), at(self.active, i)
        x = low + (high - low) * torch.sigmoid(y)
        first, last = _just_above(low.to(x.dtype)), -_just_above(-high.to(x.dtype))
        return torch.where(active, torch.minimum(torch.maximum(x, first), last), y)

    def log_abs_det(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """log(high - low) - log(x - low) - log(high - x)."""
        active = at(self.active, i)
        below, above = self._gaps(x, active, i)
        width = torch.where(active, at(self.high, i) - at(self.low, i), 1)
        return torch.log(width) - torch.log(below) - torch.log(above)

    def inside(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """Where low < x < high."""
        return ~(at(self.active, i) & ((x <= at(self.low, i)) | (x >= at(self.high, i))))

    def centre(self, i: Tensor | None = None) -> Tensor:
        """Half way."""
        return 0.5 * (at(self.low, i) + at(self.high, i))

    def domain(self, column: int) -> str:
        """Between the ends."""
        return f"between {self.low[column].item():g} and {self.high[column].item():g}, both excluded"

    def _gaps(self, x: Tensor, active: Tensor, i: Tensor | None) -> tuple[Tensor, Tensor]:
        below, above = (x - at(self.low, i)).clamp(min=0), (at(self.high, i) - x).clamp(min=0)
        return torch.where(active, below, 1), torch.where(active, above, 1)


def at(constants: Tensor, i: Tensor | None) -> Tensor:
    """Constants (D,) of all variables, or those of the variables i."""
    return constants if i is None else constants[i]


def _just_above(end: Tensor) -> Tensor:
    """The next number, but none so small that a GPU may take it for zero."""
    following = torch.nextafter(end, torch.full_like(end, torch.inf))
    return torch.maximum(following, end + torch.finfo(end.dtype).tiny)


def _active(columns: Sequence[int] | None, n_variables: int) -> Tensor:
    if columns is None:
        return torch.ones(n_variables, dtype=torch.bool)
    for column in columns:
        if not 0 <= column < n_variables:
            raise ValueError(f"there is no column {column} among {n_variables}")
    return torch.tensor([c in set(columns) for c in range(n_variables)])


def _require(right: Tensor, values: Tensor, rule: str) -> None:
    if right.is_meta:  # a saved model is being built; its numbers come later
        return
    if not bool(right.all()):
        column = int((~right).nonzero()[0, 0])
        raise ValueError(f"{rule}, but that of column {column} is {values[column].item():g}")
