"""What a family is: one-dimensional distributions for all D variables at once, given parameters eta."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Generator, Tensor, nn

from pynade.arguments import Part

Draw = Callable[[Tensor | None], Tensor]  # rows of a NADE, from noise


class Family(Part, ABC):
    """Abstract one-dimensional distribution of every variable: its domain, and what eta means.

    Data x are (B, D), features (what a net sees of x) are (B, D, F), eta is (B, D, P). Where a stepper is at
    one variable of each row, the same methods take x (G, N), eta (G, N, P) and `i`, the variable each row is
    at, broadcast against x. Constants of variables that differ are looked up by `i`; None means all D of
    them, in the last axis.

    Attributes:
        n_params: P, parameters per variable (the largest number, where variables differ).
        n_features: F, input features per variable.
        discrete: whether the best guess is a mode; if not, it is a mean. None: whether `best_guess` differs
            from `mean`.
        affine: whether `to_data` is affine, so that it maps means to means.
    """

    n_params: int
    n_features: int = 1
    discrete: bool | None = None
    affine: bool = True

    @abstractmethod
    def check(self, x: Tensor) -> None:
        """Raise a ValueError in one sentence if `x` has values outside the domain."""

    def encode(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """Features a net sees: (…) -> (…, F); the value itself, unless a family does otherwise."""
        return x.unsqueeze(-1)

    @abstractmethod
    def log_prob(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Log-probability or log-density of each value, in nats: the shape of x."""

    @abstractmethod
    def sample(self, eta: Tensor, i: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """One draw for each eta: (…, P) -> (…)."""

    @abstractmethod
    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Expected value: (…, P) -> (…)."""

    def best_guess(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The value to fill in, (…, P) -> (…): the mean of a real variable, the mode of a discrete one."""
        return self.mean(eta, i)

    @abstractmethod
    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """P(X <= x): the shape of x."""

    @abstractmethod
    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Smallest value whose cdf is at least q: the shape of q."""

    @abstractmethod
    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """Eta (D, P) of the best constant prediction for data x (N, D): a net's initial output bias."""

    def fit_constants(self, x: Tensor) -> None:
        """Initialise parameters that are no outputs of a net from data x (N, D), NaN = missing."""

    def fill(self, x: Tensor, keep: Tensor) -> Tensor:
        """x (B, D) with every cell that is not to be kept (missing, say) at some value of the domain."""
        return torch.where(keep, x, 0)

    @property
    def inner(self) -> Family:
        """The family of the variables a model computes with: this one, unless it transforms another."""
        return self

    def unwrap(self, x: Tensor, dtype: torch.dtype) -> tuple[Family, Tensor, Tensor | None]:
        """The inner family, the values y (B, D) of its variables in `dtype`, and log dy/dx of each, if any.

        A map acts in the type of x: float64 data far from zero lose their location before they are rounded.
        """
        return self, x.to(dtype), None

    def to_data(self, y: Tensor) -> Tensor:
        """Values (…, D) of the inner family's variables as values of the data."""
        return y

    def best_guess_from_draws(self, values: Tensor, means: Tensor, weights: Tensor) -> Tensor:
        """Each variable's mode (discrete) or mean (real) under M weighted draws: (B, M, D) -> (B, D).

        Args:
            values: the draws, (B, M, D).
            means: the expected value of a cell under its draw, where that is known, else the value itself.
            weights: (B, M), they sum to one in each row.
        """
        weights = weights.unsqueeze(-1)
        if not (self._has_modes(means) if self.discrete is None else self.discrete):
            return (weights * means).sum(1).to(values.dtype)
        most = weights.new_full(values[:, 0].shape, -1.0)
        guess = torch.zeros_like(values[:, 0])
        for level in values.unique():
            share = (weights * (values == level)).sum(1)
            guess, most = torch.where(share > most, level, guess), torch.maximum(share, most)
        return guess

    def _has_modes(self, like: Tensor) -> bool:
        """Whether `best_guess` is something else than `mean`, at some eta."""
        eta = torch.randn(64, self.n_params, generator=torch.Generator().manual_seed(0)).to(like)
        first = torch.zeros(64, dtype=torch.long, device=like.device)  # a variable that every model has
        guess, mean = self.best_guess(eta, first), self.mean(eta, first)
        return not torch.allclose(guess, mean, rtol=1e-3, atol=1e-3, equal_nan=True)

    def sample_nade(self, draw: Draw, like: Tensor, generator: Generator | None) -> Tensor | None:
        """Rows (B, D) of a NADE, one feature per variable, by a compiled loop; None: there is no such loop.

        Args:
            draw: the loop: mixtures from noise (B, D), binary rows from None (see `pynade.kernels.sample`).
            like: a tensor of the shape and type of the rows.
            generator: source of the noise.
        """
        return None


@dataclass(frozen=True)
class Conditional:
    """The distribution of one variable given others.

    Its functions take a number and return a float, or take an array (a sequence) and return an array.

    Example:
        >>> from pynade.families import Gaussian
        >>> x = Conditional(Gaussian(), torch.zeros(1, 2), torch.tensor([0]))
        >>> x.quantile(0.5), x.cdf([-1e9, 0, 1e9]).tolist()
        (0.0, [0.0, 0.5, 1.0])
    """

    family: Family
    eta: Tensor  # (1, P)
    i: Tensor  # (1,)

    def mean(self) -> float:
        """Expected value."""
        return float(self.family.mean(self.eta, self.i))

    def log_prob(self, value: Any) -> Any:
        """Log-probability (of a discrete variable) or log-density, in nats, at each value."""
        x = self._numbers(value, "a value")
        self.family.check(x.flatten()[:, None])
        return self._each(self.family.log_prob, x)

    def pmf(self, value: Any) -> Any:
        """Probability or density at each value (also called `pdf`)."""
        p = np.exp(self.log_prob(value))
        return p if p.ndim else float(p)

    pdf = pmf

    def cdf(self, value: Any) -> Any:
        """P(X <= value), at each value."""
        return self._each(self.family.cdf, self._numbers(value, "a value"))

    def quantile(self, q: Any) -> Any:
        """Smallest value whose cdf is at least q, for each probability q."""
        x = self._numbers(q, "a probability")
        outside = ~((x >= 0) & (x <= 1))
        if outside.any():
            raise ValueError(f"a quantile needs q between 0 and 1, not {x[outside][0].item():g}")
        return self._each(self.family.quantile, x)

    def sample(self, n: int = 1, generator: Generator | None = None) -> Tensor:
        """n draws (n,), with the randomness of the generator."""
        return self.family.sample(self.eta.expand(n, -1), self.i.expand(n), generator)

    def _numbers(self, values: Any, what: str) -> Tensor:
        try:
            return torch.from_numpy(np.asarray(values, dtype=np.float64).copy()).to(self.eta)
        except (TypeError, ValueError):
            raise TypeError(f"{what} must be a number or an array of numbers, not {values!r}") from None

    def _each(self, function: Callable[[Tensor, Tensor, Tensor], Tensor], x: Tensor) -> Any:
        n = x.numel()
        with torch.no_grad():
            y = function(x.reshape(n), self.eta.expand(n, -1), self.i.expand(n))
        return y.double().cpu().numpy().reshape(x.shape) if x.ndim else float(y)


class KeepsTypes(nn.Module):
    """A part whose buffers keep their type when a model is converted: maps in float64 lose no digits."""

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        before: Any = dict(self._buffers)
        after: Any = super()._apply(fn, recurse)._buffers
        after |= {n: before[n].to(t.device) for n, t in after.items() if t.dtype != before[n].dtype}
        return self


def at(constants: Tensor, i: Tensor | None) -> Tensor:
    """Constants (D, …) of all variables, or those of the variables i."""
    return constants if i is None else constants[i]


def refuse(x: Tensor, wrong: Tensor, rule: str) -> None:
    """Raise a ValueError that states the rule and names the first wrong cell of x (B, D), if there is one."""
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        value = x[row, column].item()
        what = "missing or not a number" if value != value else f"{value:g}"
        raise ValueError(f"{rule}, but row {row}, column {column} is {what}")
